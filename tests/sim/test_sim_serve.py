"""The simulator runs the engine's own scheduler: the same schedule as a real model's, a clock that adds up, arrivals that are what they claim."""
from __future__ import annotations

from itertools import pairwise

import pytest

from paged_edu import LLM, SamplingParams
from paged_edu.core.contiguous import ContiguousKVManager
from paged_edu.core.paged import PagedKVManager
from paged_edu.core.scheduler import Scheduler, SchedulerConfig
from paged_edu.core.sequence import Request
from paged_edu.sim.cost_model import CostModel
from paged_edu.sim.presets import GPUS, MODELS
from paged_edu.sim.serve import serve
from paged_edu.sim.sim_runner import SimRunner
from paged_edu.sim.workload import Arrival, poisson

COST = CostModel(MODELS["opt-13b"], GPUS["A100-40GB"])


def scheduler(num_blocks=100, manager=None, **limits) -> Scheduler:
    config = SchedulerConfig(**{"max_model_len": 512, "max_num_seqs": 64} | limits)
    return Scheduler(config, manager or PagedKVManager(num_blocks, 16, prefix_caching=False))


def shape(output):
    """A step without its tokens, which a simulator has not."""
    rows = [(s.request_id, s.branch, s.start, s.num_new, s.slots, s.block_table, s.num_samples) for s in output.scheduled]
    return output.step, rows, output.copies, output.admitted, output.preempted, len(output.swap_out), len(output.swap_in)


@pytest.mark.parametrize(("n", "mode"), [(1, "recompute"), (1, "swap"), (3, "swap")])
def test_the_schedule_is_the_real_engines(n, mode):
    """Requests that end by themselves too: the simulator is told the lengths that came out. The pool is so small that some step back.

    Recomputed groups are left out: what samples have in common by chance, and need not compute twice, no simulator knows.
    """
    prompts = ["ROMEO:", "First Citizen:\nBefore we proceed any further, hear me speak.", "O", "JULIET:\nGood night", "KING:", "The"] * 2
    blocks = 14 if n == 1 else 36
    options = {"num_gpu_blocks_override": blocks, "block_size": 8, "enable_prefix_caching": False, "preemption_mode": mode,
               "max_num_batched_tokens": 40, "max_num_seqs": 12}
    with LLM("tiny-shakespeare", **options) as llm:
        engine, real = llm.engine, []
        for i, prompt in enumerate(prompts):
            engine.add_request(str(i), prompt, SamplingParams(n=n, temperature=1.0, seed=i, max_tokens=60, ignore_eos=n > 1))
        requests = {r.request_id: r for r in engine.scheduler.waiting}
        while engine.has_unfinished_requests():
            engine.step()
            real.append(shape(engine.last_output))
        model_len, cpu_blocks = engine.scheduler.config.max_model_len, engine.scheduler.manager.num_cpu_blocks
        lengths = {name: (len(r.prompt_token_ids), r.sequences[0].num_output_tokens) for name, r in requests.items()}
    assert any(step[4] for step in real)
    if n == 1:
        assert any(length < 60 for _, length in lengths.values())      # some ended by their end token
    ours = Scheduler(
        SchedulerConfig(model_len, 12, 40, preemption_mode=mode), PagedKVManager(blocks, 8, prefix_caching=False, num_cpu_blocks=cpu_blocks))
    for name, (prompt_tokens, output_tokens) in lengths.items():
        ours.add(Request(name, tuple(range(prompt_tokens)), max_tokens=output_tokens, n=n))
    runner = SimRunner(COST)
    for step in real:
        output = ours.schedule()
        assert shape(output) == step
        ours.update(output, runner.execute(output))
    assert not ours.has_unfinished()


def test_one_request_takes_its_prompt_and_its_tokens():
    found = serve(scheduler(), SimRunner(COST), [Arrival(5.0, 100, 4)])
    received = COST.constants.request_overhead
    expected = received + COST.forward(100, 1) + sum(COST.forward(1, 1) + COST.attention(100 + i, 100 + i, 1) for i in (1, 2, 3))
    assert found.latencies == [pytest.approx(expected)]
    assert found.normalized_latency == pytest.approx(expected / 4)
    assert found.seconds == pytest.approx(5 + expected)
    assert (found.num_requests, found.num_steps, found.mean_running) == (1, 4, 1.0)


def test_a_prompt_that_shares_a_step_costs_a_pass_of_its_own_unless_told_otherwise():
    arrivals = [Arrival(0.0, 50, 30), Arrival(0.1, 50, 30)]
    apart, together = (serve(scheduler(), SimRunner(COST, separate), arrivals) for separate in (True, False))
    assert apart.num_steps == together.num_steps
    assert together.seconds < apart.seconds


def test_swapping_takes_time():
    def run(**cost):
        manager = PagedKVManager(20, 16, prefix_caching=False, num_cpu_blocks=20)
        return serve(scheduler(manager=manager, preemption_mode="swap"), SimRunner(CostModel(COST.model, COST.gpu, **cost)),
                     [Arrival(0.0, 60, 100)] * 4)

    found = run()
    assert found.num_preemptions > 0
    slow_link = run(constants=type(COST.constants)(link_out=0.01, link_in=0.01))
    assert slow_link.num_steps == found.num_steps
    assert slow_link.seconds > found.seconds


def test_the_manager_decides_how_many_run():
    arrivals = [Arrival(0.0, 30, 60)] * 30
    slabs = serve(scheduler(manager=ContiguousKVManager(96, 16, "max", 512)), SimRunner(COST), arrivals)
    paged = serve(scheduler(96), SimRunner(COST), arrivals)
    assert slabs.mean_running <= 3
    assert paged.mean_running > 4 * slabs.mean_running
    assert paged.seconds < slabs.seconds
    assert paged.num_requests == slabs.num_requests == 30


def test_arrivals_are_poisson_and_only_move_closer():
    slow, fast = poisson("sharegpt", 2.0, 3600, seed=3), poisson("sharegpt", 4.0, 1800, seed=3)
    assert len(slow) == pytest.approx(7200, rel=0.04)
    assert [(a.prompt_tokens, a.output_tokens) for a in slow] == [(a.prompt_tokens, a.output_tokens) for a in fast]
    assert [a.time / 2 for a in slow] == pytest.approx([a.time for a in fast])
    gaps = [b.time - a.time for a, b in pairwise(slow)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.5, rel=0.04)
    assert (sum((g - mean) ** 2 for g in gaps) / len(gaps)) ** 0.5 == pytest.approx(mean, rel=0.05)     # exponential: as wide as its mean
    assert all(a.prompt_tokens + a.output_tokens <= 2048 for a in slow)
    assert poisson("alpaca", 1e-9, 1.0) == []


@pytest.mark.parametrize(("rate", "seconds"), [(0, 10), (-1, 10), (float("nan"), 10), (1, 0)])
def test_rates_and_times_must_be_positive(rate, seconds):
    with pytest.raises(ValueError, match="must be above 0"):
        poisson("sharegpt", rate, seconds)


def test_more_load_never_means_less_waiting():
    runs = [serve(scheduler(200, max_model_len=2048), SimRunner(COST), poisson("alpaca", rate, 30, seed=1)) for rate in (2, 8, 20)]
    latencies = [run.normalized_latency for run in runs]
    assert latencies == sorted(latencies)
