"""Requests that arrive by themselves, on the real engine: their times, a racer's own clock, races to the end."""
from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import pytest

from paged_edu.bench import open_loop, paper_figures
from paged_edu.bench.open_loop import Racer, at_rate, jobs, race, sizes
from paged_edu.bench.paper_figures import Setting

SETTING = Setting("tiny-shakespeare", "cpu", "float64", "sharegpt", 32, 2, 0, quick=True, seconds_per_request=1.0, share=0.0, least=0.5)


@pytest.fixture
def slow_clock(monkeypatch):
    """Each step takes 10 seconds of a made-up clock."""
    ticks = iter(range(0, 10**6, 10))
    monkeypatch.setattr(open_loop.time, "perf_counter", lambda: float(next(ticks)))


def test_arrivals_are_the_same_at_any_rate_only_closer_together():
    all_at_once = jobs(sizes("sharegpt", 200, 3, 128), 1024, 3)
    slow, fast = at_rate(all_at_once, 2.0, 3), at_rate(all_at_once, 8.0, 3)
    assert [job.time / 4 for job in slow] == pytest.approx([job.time for job in fast])
    assert [job.prompt for job in slow] == [job.prompt for job in fast]
    assert sorted(job.time for job in slow) == [job.time for job in slow]
    assert slow[-1].time == pytest.approx(100, rel=0.2)                 # 200 requests, 2 a second
    assert at_rate(all_at_once, 2.0, 4)[0].time != slow[0].time


def test_a_racers_clock_runs_in_its_steps_and_jumps_over_idle_time(slow_clock):
    """Request 1 comes at 1000, when request 0 is long done."""
    with ExitStack() as stack:
        llm = SETTING.open(stack, 60)
        first, second = jobs([(3, 2), (4, 3)], 1024, 0)
        racer = Racer({"who": "me"}, llm, [first, replace(second, time=1000.0)])
        while not racer.done:
            racer.step()
    assert racer.latencies == {0: 20.0, 1: 30.0}                        # two tokens, three tokens
    assert racer.now == 1030.0
    row = racer.row()
    assert (row["who"], row["steps"], row["running"], row["requests"]) == ("me", 5, 1, 2)
    assert row["normalized_latency"] == 10.0
    assert racer.full()["tokens_per_s"] == pytest.approx(0.1)


def test_a_request_that_comes_while_others_run_waits_for_the_next_step(slow_clock):
    with ExitStack() as stack:
        llm = SETTING.open(stack, 60)
        first, second = jobs([(3, 3), (4, 1)], 1024, 0)
        racer = Racer({}, llm, [first, replace(second, time=5.0)])
        while not racer.done:
            racer.step()
    assert racer.latencies == {0: 30.0, 1: 15.0}
    assert racer.running == [1, 2, 1]


def test_all_racers_come_to_their_end_with_the_same_tokens():
    with ExitStack() as stack:
        todo = jobs(sizes("sharegpt", 8, 0, 32), 1024, 0)
        racers = [Racer({"manager": name}, SETTING.open(stack, 60, kv_manager=name), todo) for name in ("paged", "orca-max", "orca-oracle")]
        paper_figures.share_weights([])
        ended = list(race(racers, turn=0.01))
    assert {id(racer) for racer in ended} == {id(racer) for racer in racers}
    assert all(racer.tokens == racers[0].tokens and len(racer.tokens) == 8 for racer in racers)
    assert all(len(racer.tokens[i]) == job.output_tokens for racer in racers for i, job in enumerate(todo))
