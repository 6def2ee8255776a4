"""Requests that arrive over time, through the project's scheduler on a virtual clock: latencies, batch sizes, preemptions (Paper §6.1)."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..core.plan import SchedulerOutput
from ..core.sequence import Request
from .beams import BeamSearch
from .sim_runner import SimRunner
from .systems import AnyScheduler
from .workload import Arrival


@dataclass
class Served:
    """What came of a run."""

    normalized_latency: float
    """Mean over requests of (seconds from arrival to the last token) / output tokens [s/token] (Paper §6.1)."""
    seconds: float
    """Virtual time from 0 to the last token."""
    num_requests: int
    num_steps: int
    mean_running: float
    """Requests in the batch, averaged over steps in which any ran."""
    num_preemptions: int
    latencies: list[float] = field(repr=False, default_factory=list)
    """Seconds a request, in order of their ends. Requests that outgrew the pool are not among them."""
    ends: list[float] = field(repr=False, default_factory=list)
    """When these requests ended, in virtual time [s]."""


def serve(
    scheduler: AnyScheduler, runner: SimRunner, arrivals: Sequence[Arrival], n: int = 1, advance: Callable[[int], object] = lambda count: None,
    *, beam: bool = False, watch: Callable[[AnyScheduler, float], object] | None = None, backlog: int = 0,
) -> Served:
    """Run ``arrivals`` (in order of time) dry. ``backlog``: requests come earlier than their times say whenever fewer than so many wait.

    Each request fans out into ``n`` samples, or is a beam search of width ``n``. ``advance`` is called with 1 at the end of each, ``watch`` with
    the scheduler and the virtual time after each plan.
    """
    now, at, running, steps, preemptions = 0.0, 0, 0, 0, 0
    waiting: dict[str, tuple[Arrival, float]] = {}
    normalized, latencies, ends = 0.0, [], []
    while at < len(arrivals) or scheduler.has_unfinished():
        if not backlog and not scheduler.has_unfinished():
            now = max(now, arrivals[at].time)
        while at < len(arrivals) and (arrivals[at].time <= now or len(scheduler.waiting) < backlog):
            arrival, name = arrivals[at], str(at)
            came = min(arrival.time, now)
            waiting[name] = (arrival, came)
            if beam:
                runner.searches[name] = BeamSearch(n, arrival.output_tokens, at)
            scheduler.add(Request(name, arrival.prompt(at), max_tokens=arrival.output_tokens, n=n, beam=beam, arrival_time=came))
            runner.received += 1
            at += 1
        output: SchedulerOutput = scheduler.schedule()
        if watch is not None:
            watch(scheduler, now)
        result = runner.execute(output)
        now += result.elapsed
        steps += 1
        running += len(scheduler.running)
        preemptions += len(output.preempted)
        for seq in scheduler.update(output, result):
            # Several branches of a request may end in one step: it is counted once.
            if seq.finish_reason is not None and not seq.request.live and seq.request.request_id in waiting:
                arrival, came = waiting.pop(seq.request.request_id)
                runner.searches.pop(seq.request.request_id, None)
                advance(1)
                ends.append(now)
                latencies.append(now - came)
                normalized += (now - came) / arrival.output_tokens
        for name in output.refused:                         # alone in the pool, and too long for it
            waiting.pop(name, None)
            runner.searches.pop(name, None)
    return Served(normalized / max(1, len(latencies)), now, len(latencies), steps, running / max(1, steps), preemptions, latencies, ends)
