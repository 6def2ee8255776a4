"""The capacity search against functions whose answer is known, its shortcut against whole runs, and what binds against servers built to be bound."""
from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paged_edu.core.paged import PagedKVManager
from paged_edu.core.scheduler import Scheduler, SchedulerConfig
from paged_edu.core.sequence import Request
from paged_edu.sim import capacity
from paged_edu.sim.capacity import ALONE, Measured, TooSlowError, Watch, search
from paged_edu.sim.cost_model import CostModel
from paged_edu.sim.presets import GPUS, MODELS
from paged_edu.sim.serve import serve
from paged_edu.sim.sim_runner import SimRunner
from paged_edu.sim.simulate import Options, find_capacity, simulate
from paged_edu.sim.timed import TimedScheduler
from paged_edu.sim.workload import Arrival, poisson

COST = CostModel(MODELS["opt-13b"], GPUS["A100-40GB"])


def timed(num_blocks=100, **limits) -> TimedScheduler:
    config = SchedulerConfig(**{"max_model_len": 512, "max_num_seqs": 64} | limits)
    return TimedScheduler(config, PagedKVManager(num_blocks, 16, prefix_caching=False))


@given(st.floats(0.002, 50_000), st.floats(0.01, 1000))
@settings(max_examples=200, deadline=None)
def test_the_search_finds_a_known_limit(edge, start):
    tried = []

    def measure(rate):
        tried.append(rate)
        return Measured(rate, 0.1 if rate <= edge else 0.3, 1000, binds="memory" if rate < 1.1 * edge else "compute")

    found = search(measure, 0.2, start)
    assert found.rate <= edge < found.above <= 1.02 * found.rate
    assert found.binds == "memory"                          # the nearest run above, not the first
    assert [m.rate for m in found.tried] == tried
    assert len(tried) <= 40


def test_a_limit_below_a_lone_requests_latency_is_told():
    found = search(lambda rate: Measured(rate, 0.5, 600, running=1.0 + rate), 0.2)
    assert (found.rate, found.latency, found.binds) == (0.0, 0.5, ALONE)


@pytest.mark.parametrize("latency", [0.1, 0.5])
def test_too_few_requests_say_nothing(latency):
    with pytest.raises(ValueError, match=r"9 requests at .* a second are too few to find .* more --seconds"):
        search(lambda rate: Measured(rate, latency, 9, running=4.0), 0.2)


@pytest.mark.parametrize(("options", "message"), [
    ({"limit": 0.0}, "threshold must be above 0"), ({"tolerance": float("nan")}, "tolerance"), ({"start": 0.0}, "start must be at least"),
])
def test_bad_limits_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        search(lambda rate: Measured(rate, 0.1, 100), **options)


@given(st.lists(st.tuples(st.floats(0.01, 100), st.integers(1, 50)), min_size=1, max_size=150), st.sampled_from(list(capacity.METRICS)),
       st.floats(0.05, 50))
@settings(max_examples=200, deadline=None)
def test_a_run_is_stopped_only_when_its_outcome_is_certain(requests, metric, limit):
    served = serve(timed(), SimRunner(COST), [])
    latencies = [latency for latency, _ in requests]
    normalized = sum(latency / tokens for latency, tokens in requests) / len(requests)
    final = capacity.latency_of(metric, replace(served, normalized_latency=normalized, latencies=latencies))
    watch = Watch(metric, limit, len(requests))
    try:
        for latency, tokens in requests:
            watch(Request("a", (1,), max_tokens=tokens), latency)
    except TooSlowError:
        assert limit < watch.reached <= final * (1 + 1e-9)
    else:
        assert final <= limit * (1 + 1e-9)


def test_p99():
    values = list(range(1, 201))
    random.Random(0).shuffle(values)
    assert capacity.p99(values) == 198
    assert capacity.p99([3.0]) == 3.0
    assert capacity.p99([]) == 0.0


def test_the_timed_scheduler_schedules_as_the_plain_one_and_keeps_serves_clock():
    arrivals = [*poisson("alpaca", 12.0, 20, seed=2), Arrival(200.0, 30, 40), Arrival(200.01, 90, 300)]
    plain = Scheduler(timed().config, PagedKVManager(60, 16, prefix_caching=False))
    expected = serve(plain, SimRunner(COST), arrivals)
    scheduler, heard = timed(60), []
    scheduler.ended = lambda request, latency: heard.append(latency)
    found = serve(scheduler, SimRunner(COST), arrivals)
    assert found == expected
    assert heard == pytest.approx(expected.latencies)
    assert scheduler.now == pytest.approx(expected.seconds)
    assert (scheduler.mean_running, scheduler.num_preemptions) == (expected.mean_running, expected.num_preemptions)
    assert expected.num_preemptions > 0


@pytest.mark.parametrize(("num_blocks", "limits", "binds"), [
    (20, {}, "memory"), (4000, {"max_num_seqs": 2}, "places"), (4000, {}, "compute"), (4000, {"max_num_batched_tokens": 64}, "compute"),
])
def test_what_binds(num_blocks, limits, binds):
    scheduler = timed(num_blocks, **limits)
    serve(scheduler, SimRunner(COST), [Arrival(0.0, 60, 100)] * 30)
    assert scheduler.binds == binds


@pytest.mark.parametrize("kv_manager", ["paged", "orca-max"])
def test_a_found_rate_holds_and_a_little_more_does_not(kv_manager):
    """The shortcut changes nothing: whole runs at both rates say the same."""
    options = Options(capacity=True, kv_managers=(kv_manager,), seconds=60, threshold=0.1, dataset="chat")
    served, rates = [], []
    found = find_capacity(options, kv_manager, served.append, rates.append)
    assert found.above <= 1.02 * found.rate
    assert rates == [run.rate for run in found.tried]
    plain = replace(options, capacity=False, threshold=None, rates=(found.rate, found.above))
    low, high = simulate(plain)
    assert low["normalized_latency"] == pytest.approx(found.latency)
    assert low["normalized_latency"] <= 0.1 < high["normalized_latency"]
    assert low["running"] == pytest.approx(found.running)
    assert found.binds == "memory"
    assert sum(served) < sum(run.requests for run in found.tried)          # some runs were stopped


def test_another_metric():
    options = Options(capacity=True, metric="p99", threshold=60.0, seconds=60, kv_managers=("orca-max",))
    found = find_capacity(options, "orca-max")
    assert 30 < found.latency <= 60
    assert found.above <= 1.02 * found.rate
