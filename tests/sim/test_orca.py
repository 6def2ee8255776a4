"""Contiguous memory under beam searches: a run to copy into, for each of them, and nobody else's business."""
from __future__ import annotations

import pytest

from paged_edu.core.contiguous import ContiguousKVManager
from paged_edu.core.scheduler import Scheduler, SchedulerConfig
from paged_edu.core.sequence import Request
from paged_edu.sim.beams import BeamSearch
from paged_edu.sim.cost_model import CostModel
from paged_edu.sim.orca import OrcaManager
from paged_edu.sim.presets import PAPER_SERVERS
from paged_edu.sim.sim_runner import SimRunner

SERVER = PAPER_SERVERS["opt-13b"]
SLABS = SERVER.num_slots // 16


def played(manager, requests, beam, n, num_seqs=64):
    """Requests together in the first step, and (time, state) of every step: `check` is called after each."""
    scheduler = Scheduler(SchedulerConfig(2048, num_seqs, 4096, enable_chunked_prefill=False, preemption_mode="recompute"), manager)
    runner = SimRunner(CostModel(SERVER.model, SERVER.gpu, paged=False))
    for i, (prompt, output) in enumerate(requests):
        if beam:
            runner.searches[str(i)] = BeamSearch(n, output, i)
        scheduler.add(Request(str(i), tuple(range(i * 5000, i * 5000 + prompt)), max_tokens=output, n=n, beam=beam))
    together, steps = [], 0
    while scheduler.has_unfinished():
        output = scheduler.schedule()
        together.append(len(scheduler.running))
        manager.check()
        scheduler.update(output, runner.execute(output))
        manager.check()
        assert sum(manager.report().shares().values()) == pytest.approx(1)
        steps += 1
        assert steps < 5000
    assert manager.report().num_used_blocks == 0
    assert manager.buddy.num_free == manager.num_blocks
    return together


@pytest.mark.parametrize(("n", "with_room", "without"), [(2, 2, 3), (3, 1, 2), (4, 1, 1), (6, 1, 1)])
def test_seven_slabs_hold_so_many_searches(n, with_room, without):
    """OPT-13B's 7 slabs of 2,048 slots: width n takes n + 1 of them."""
    requests = [(20, 12), (8, 30), (100, 9), (3, 25), (50, 50)]
    assert played(OrcaManager(SLABS, 16, "max", 2048), requests, True, n)[0] == with_room
    assert played(ContiguousKVManager(SLABS, 16, "max", 2048), requests, True, n)[0] == without


def test_a_search_that_needs_the_run_alone_is_refused_at_the_door():
    manager = OrcaManager(SLABS, 16, "max", 2048)
    with pytest.raises(ValueError, match="needs"):
        played(manager, [(20, 12)], True, 7)
    assert played(ContiguousKVManager(SLABS, 16, "max", 2048), [(20, 12)], True, 7)[0] == 1


@pytest.mark.parametrize("reservation", ["max", "pow2", "oracle", "grow"])
@pytest.mark.parametrize("n", [2, 4, 6])
def test_beams_come_and_go_and_leave_nothing(reservation, n):
    """The smallest pool for it, and a roomy one; checked after every step."""
    requests = [(17, 20), (40, 5), (3, 60), (90, 33), (10, 1), (16, 16)]
    for num_blocks in (1024 if reservation == "max" else 128, 2048):
        played(OrcaManager(num_blocks, 16, reservation, 2048), requests, True, n)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_samples_are_as_before(n):
    requests = [(20, 12), (8, 30), (100, 9), (3, 25), (50, 50)]
    ours, usual = (played(manager(SLABS, 16, "oracle", 2048), requests, False, n) for manager in (OrcaManager, ContiguousKVManager))
    assert ours == usual
