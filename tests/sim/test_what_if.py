"""What if: a queue that never runs dry, factors that act on what they name and on nothing else, refusals."""
from __future__ import annotations

import pytest

from paged_edu.sim import what_if
from paged_edu.sim.cost_model import Constants
from paged_edu.sim.presets import PAPER_SERVERS
from paged_edu.sim.sim_runner import SimRunner
from paged_edu.sim.systems import with_manager
from paged_edu.sim.what_if import SYSTEMS, Setting, held
from paged_edu.sim.workload import Arrival


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(what_if, "FEWEST", 100)
    monkeypatch.setattr(what_if, "BATCHES", 0)


def test_a_queue_that_never_runs_dry(monkeypatch):
    """So many wait at every step as long as any are left to come, and each request waits from its own coming on."""
    seen, real = [], what_if.serve

    def listening(scheduler, runner, arrivals, watch, backlog):
        left = len(arrivals)

        def both(scheduler, now):
            nonlocal left
            seen.append((len(scheduler.waiting), len(scheduler.running)))
            watch(scheduler, now)
        found = real(scheduler, runner, arrivals, watch=both, backlog=backlog)
        assert len(found.latencies) == left
        assert found.latencies[0] < found.ends[0] + 1e-9
        return found

    monkeypatch.setattr(what_if, "serve", listening)
    found = held(Setting(), "Orca (Max)")
    assert found.running == 7                               # Paper Fig. 13: what the memory holds
    assert max(waiting for waiting, _ in seen) <= what_if.BACKLOG
    assert min(waiting for waiting, running in seen[: len(seen) // 2]) >= what_if.BACKLOG - 7


def test_equal_requests_are_counted_exactly(monkeypatch):
    """Requests of one length each: Orca (Max) answers seven at a time, and a batch takes a prompt's pass and 19 more."""
    monkeypatch.setattr(Setting, "requests", lambda self, seed: [Arrival(float("inf"), 30, 20)] * 140)
    found = held(Setting(), "Orca (Max)")
    _, runner = with_manager(PAPER_SERVERS["opt-13b"], "orca-max")
    cost = runner.cost
    assert isinstance(runner, SimRunner)
    batch = cost.forward(7 * 30, 7) + cost.receiving(7) + sum(cost.forward(7, 7) + cost.attention(7 * (30 + i), 30 + i, 7) for i in range(1, 20))
    assert found.rate == pytest.approx(7 / batch, rel=1e-6)
    assert found.step == pytest.approx(batch / 20, rel=1e-6)


def test_every_factor_acts():
    base = {system: held(Setting(), system) for system in SYSTEMS}
    for better in ({"memory": 2.0}, {"bandwidth": 2.0}, {"compute": 2.0}, {"host": 0.0}):
        for system in ("Orca (Max)", "vLLM"):
            assert held(Setting(**better), system).rate > base[system].rate
    for worse in ({"answers": 2.0}, {"prompts": 4.0}):
        assert held(Setting(**worse), "vLLM").rate < base["vLLM"].rate
    assert held(Setting(block_size=256), "vLLM").parts["token_states"] < base["vLLM"].parts["token_states"] - 0.05
    assert sum(base["vLLM"].parts.values()) == pytest.approx(1)
    assert base["vLLM"].rate > base["Orca (Oracle)"].rate > base["Orca (Pow2)"].rate > base["Orca (Max)"].rate


def test_factors_change_what_they_name():
    changed = Setting(memory=0.5, bandwidth=2, compute=3, host=0.5)
    paper, server, usual = PAPER_SERVERS["opt-13b"], changed.server(), Constants()
    assert (server.num_slots, server.gpu.bandwidth, server.gpu.flops) == (7864, 2 * paper.gpu.bandwidth, 3 * paper.gpu.flops)
    assert (server.model, server.gpu.memory, server.gpu.link) == (paper.model, paper.gpu.memory, paper.gpu.link)
    assert changed.constants().request_overhead == usual.request_overhead / 2
    assert changed.constants().attention_start == usual.attention_start
    assert Setting().constants() == usual
    doubled, plain = Setting(answers=2).requests(0), Setting().requests(0)
    assert all(b.output_tokens == min(2 * a.output_tokens, 2047) for a, b in zip(plain, doubled))
    assert all(b.prompt_tokens == min(a.prompt_tokens, 2048 - b.output_tokens) for a, b in zip(plain, doubled))


@pytest.mark.parametrize(("setting", "message"), [
    (Setting(memory=0.01), "memory must be"), (Setting(bandwidth=0), "bandwidth must be"), (Setting(answers=17), "answers must be"),
    (Setting(host=-1), "host must be"), (Setting(model="gpt-5"), "model"), (Setting(prompts=float("nan")), "prompts must be"),
    (Setting(memory=1 / 16), "memory 0.0625 leaves 983 slots, and the longest request needs"),
])
def test_refusals(setting, message):
    with pytest.raises(ValueError, match=message):
        held(setting, "vLLM")


def test_an_unknown_system():
    with pytest.raises(ValueError, match="system"):
        held(Setting(), "FasterTransformer")
