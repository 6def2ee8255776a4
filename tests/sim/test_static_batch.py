"""Padded batches: who is in one, what it computes, when it is answered; and the simulated beam search."""
from __future__ import annotations

from itertools import pairwise

import pytest

from paged_edu.core.sequence import Request
from paged_edu.sim.beams import BeamSearch, next_tokens
from paged_edu.sim.cost_model import STATIC, CostModel
from paged_edu.sim.presets import GPUS, MODELS, PAPER_SERVERS
from paged_edu.sim.serve import serve
from paged_edu.sim.sim_runner import SimRunner
from paged_edu.sim.static_batch import StaticBatchScheduler
from paged_edu.sim.systems import build
from paged_edu.sim.workload import Arrival

COST = CostModel(MODELS["opt-13b"], GPUS["A100-40GB"], paged=False, block_table=False)


def request(name, prompt, output, **more):
    return Request(str(name), tuple(range(prompt)), max_tokens=output, **more)


def test_a_batch_is_padded_to_its_longest_and_runs_to_its_end():
    scheduler = StaticBatchScheduler(100, 64)
    for name, prompt, output in (("a", 10, 4), ("b", 3, 8), ("c", 20, 8), ("d", 1, 8), ("e", 2, 30)):
        scheduler.add(request(name, prompt, output))
    plans, ends = [], []
    runner = SimRunner(COST)
    while scheduler.has_unfinished():
        output = scheduler.schedule()
        plans.append(output)
        result = runner.execute(output)
        ends += [(output.step, seq.request.request_id, seq.num_output_tokens) for seq in scheduler.update(output, result) if seq.finish_reason]
    # (20 + 8) * 3 = 84 slots; a fourth row would make 112 of it. Then d and e: (2 + 30) * 2 = 64.
    assert ends == [(8, "a", 4), (8, "b", 8), (8, "c", 8), (38, "d", 8), (38, "e", 30)]
    assert [plan.admitted for plan in plans if plan.admitted] == [("a", "b", "c"), ("d", "e")]
    assert [s.num_new for s in plans[0].scheduled] == [20, 20, 20]
    assert all(len(plan.scheduled) == 3 for plan in plans[:8])              # finished rows run on
    assert [s.start for s in plans[1].scheduled] == [20, 20, 20]
    for plan in plans[:8]:
        slots = [slot for s in plan.scheduled for slot in s.slots]
        assert len(set(slots)) == len(slots)
        assert max(slots) < 100


def test_the_oldest_come_first_and_nobody_is_lost():
    arrivals = [Arrival(0.3 * i, 5 + i % 40, 3 + i % 17) for i in range(60)]
    found = serve(StaticBatchScheduler(300, 128), SimRunner(COST), arrivals)
    assert found.num_requests == 60
    assert found.num_preemptions == 0


@pytest.mark.parametrize(("bad", "message"), [
    (request("x", 60, 10), "'x' needs 70 slots; 64 is the most"), (request("x", 4, 4, n=2), "one answer a request; n is 2"),
    (request("x", 4, 4, beam=True), "beam True"),
])
def test_what_no_row_can_hold_is_refused(bad, message):
    scheduler = StaticBatchScheduler(100, 64)
    with pytest.raises(ValueError, match=message):
        scheduler.add(bad)
    assert not scheduler.has_unfinished()
    with pytest.raises(ValueError, match="num_slots must be an integer of at least 1, not 0"):
        StaticBatchScheduler(0, 64)


def test_steps_alternate():
    scheduler = StaticBatchScheduler(100, 64)
    scheduler.add(request("a", 4, 4))
    output = scheduler.schedule()
    with pytest.raises(ValueError, match="step 1 is planned and not carried out"):
        scheduler.schedule()
    scheduler.update(output, SimRunner(COST).execute(output))
    with pytest.raises(ValueError, match="no step is planned"):
        scheduler.update(output, SimRunner(COST).execute(output))


def test_beams_keep_the_best_and_share_a_past():
    """Scores fall step by step by somebody's candidates, best first; a width beyond the table is refused."""
    rows = next_tokens()
    assert all(list(row) == sorted(row, reverse=True) and max(row) <= 0 for row in rows)
    search, parents = BeamSearch(4, 40, seed=3), [7]
    children_of_one = 0
    for step in range(40):
        before = list(search.scores) or [0.0]
        branches = search.step(parents)
        assert len(branches) == 4
        assert {branch.parent for branch in branches} <= set(parents)
        assert search.scores == sorted(search.scores, reverse=True)
        assert search.scores[0] <= max(before)
        assert len({(branch.parent, branch.tokens) for branch in branches}) == 4
        assert all((branch.finish_reason == "length") == (step == 39) for branch in branches)
        children_of_one += len({branch.parent for branch in branches}) < 4
        parents = [10 * (step + 1) + i for i in range(4)]
    assert children_of_one > 10
    with pytest.raises(ValueError, match="a beam width of 13: the simulator knows searches of 1 to 12 beams"):
        BeamSearch(13, 4)


def test_the_same_seed_is_the_same_search():
    one, two, other = ([BeamSearch(3, 5, seed).step([1, 2, 3]) for seed in seeds] for seeds in ((1, 2), (1, 2), (5, 6)))
    assert one == two != other
    assert all(a != b for a, b in pairwise([one[0], other[0]]))


def test_fastertransformer_is_padded_batches_without_a_serving_programs_overhead():
    scheduler, runner = build(PAPER_SERVERS["opt-66b"], "fastertransformer")
    assert isinstance(scheduler, StaticBatchScheduler)
    assert (scheduler.num_slots, scheduler.max_model_len) == (9_700, 2048)
    assert runner.cost.constants is STATIC
    assert (runner.cost.paged, runner.cost.block_table, runner.cost.num_gpus) == (False, False, 4)
    with pytest.raises(ValueError, match="system must be one of"):
        build(PAPER_SERVERS["opt-66b"], "tgi")
