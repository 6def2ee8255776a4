"""The recorder of a run: it changes nothing, and what it says is what somebody who looks at every step sees."""
from __future__ import annotations

import math
from itertools import pairwise

import pytest

from paged_edu.sim import panels
from paged_edu.sim.points import Run
from paged_edu.sim.presets import PAPER_SERVERS
from paged_edu.sim.serve import serve
from paged_edu.sim.systems import with_manager
from paged_edu.sim.timed import TimedScheduler
from paged_edu.sim.watching import NUM_REQUESTS, NUM_SAMPLES, Recorder, watched_curve


def watched(manager: str, rate: float, seconds: float) -> tuple[Run, dict[float, list[float]], list[tuple[float, int, int]]]:
    """A run, the exact ends of requests by their arrival, and every plan."""
    scheduler, runner = with_manager(PAPER_SERVERS["opt-13b"], manager, scheduler=TimedScheduler)
    ends: dict[float, list[float]] = {}
    scheduler.ended = lambda request, latency: ends.setdefault(round(request.arrival_time, 2), []).append(request.arrival_time + latency)
    plans: list[tuple[float, int, int]] = []
    recorder = Recorder(seconds)

    def watch(scheduler, now):
        recorder(scheduler, now)
        plans.append((now, len(scheduler.running), len(scheduler.waiting)))

    served = serve(scheduler, runner, panels.arrivals("sharegpt", rate, seconds), watch=watch)
    return recorder.run(manager, rate, served), ends, plans


@pytest.mark.parametrize(("manager", "rate"), [("orca-max", 0.2), ("orca-max", 1.5), ("paged", 3.5)])
def test_a_run_is_what_its_steps_were(manager, rate):
    seconds = 100.0
    run, ends, plans = watched(manager, rate, seconds)
    area = [0.0, 0.0]
    for (start, *counts), (stop, *_) in pairwise(plans):
        span = min(stop, seconds) - max(start, seconds / 5)
        if span > 0 and (rate > 1 or stop - start < 1):     # a longer one is the pause of an empty system
            area = [a + span * count for a, count in zip(area, counts)]
    assert [run.running, run.waiting] == pytest.approx([a / (0.8 * seconds) for a in area], rel=0.02, abs=0.01)
    assert len(run.requests) == min(NUM_REQUESTS, sum(len(found) for arrival, found in ends.items() if arrival >= seconds / 5))
    for arrival, *changes in run.requests:
        assert arrival >= seconds / 5
        assert len(changes) % 2 == 0
        assert changes == sorted(changes)
        assert changes[0] >= arrival
        assert min(abs(changes[-1] - end) for end in ends[arrival]) < 0.1
    if rate > 1:
        assert run.waiting > 3
        assert any(changes[0] > arrival + 1 for arrival, *changes in run.requests)
    if manager == "paged":
        assert run.num_preemptions > 0
        assert any(len(times) > 3 for times in run.requests)
    times = [sample.time for sample in run.samples]
    assert times == sorted(times)
    assert NUM_SAMPLES <= len(times) <= 2 * NUM_SAMPLES
    assert times[-1] == run.end > seconds - 20
    by_time = {now: counts for now, *counts in plans}
    for sample in run.samples:
        assert sum(sample.parts) == pytest.approx(1.0)
        if sample.time in by_time:
            assert [sample.running, sample.waiting] == by_time[sample.time]
    gaps = [b - a for a, b in pairwise(times[:-1])]
    assert max(gaps) < 2.5 * seconds / NUM_SAMPLES or rate > 1


def test_an_empty_system_holds_nothing():
    """Between requests that are far apart nobody runs, and no plan says so."""
    run, _, _ = watched("paged", 0.02, 400)
    empty = [sample for sample in run.samples if not sample.running]
    assert len(empty) > 20
    assert all(sample.parts == (0.0, 0.0, 0.0, 1.0) for sample in empty)
    assert run.running < 1


def test_watching_changes_nothing():
    points, (run,) = watched_curve("opt-13b", "sharegpt", "vLLM", [2.5], 40)
    plain = panels.run("opt-13b", "sharegpt", "vLLM", 2.5, 40)
    assert points == [[2.5, plain.normalized_latency]]
    assert (run.system, run.rate, run.latency) == ("vLLM", 2.5, plain.normalized_latency)
    assert (run.num_requests, run.num_preemptions) == (plain.num_requests, plain.num_preemptions)


def test_a_curve_has_a_run_a_point():
    done = []
    points, runs = watched_curve("opt-13b", "sharegpt", "FasterTransformer", (0.05, 0.2), 60, step=lambda: done.append(1))
    assert [run.rate for run in runs] == [x for x, _ in points] == [0.05, 0.2]
    assert len(done) == 2
    assert all(sample.parts is None for run in runs for sample in run.samples), "padded batches keep no account"
    assert all(math.isfinite(run.running) for run in runs)
    _, (beams,) = watched_curve("opt-13b", "alpaca", "vLLM", [2], 20, n=2, beam=True)
    assert beams.requests
