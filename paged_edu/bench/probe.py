"""Probe: what the memory held and who ran, step by step, of any engine behind any manager (Paper Fig. 2, Fig. 13).

Every run starts empty, with all requests waiting: a system under more load than it can serve. Two stretches of it are not counted. While
nobody waits, memory is not what limits the system. And at the start all sequences are young and short, so the first quarter of the steps in which
somebody waits is left out as well; the rest is the *measured* stretch.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from ..core.events import Event, RequestFinished, RequestPreempted, StepScheduled
from ..core.kv_manager import MemoryReport
from ..core.scheduler import Scheduler

PARTS = ("token_states", "reservation", "internal", "external")
"""The four parts of Paper Fig. 2; `MemoryReport` says what they are."""
WARM_UP = 4
"""One in so many of the steps in which somebody waits belongs to the start."""


class Probe:
    """A listener of an engine.

    A step is looked at when its plan is made, with its tokens as written: nobody who ends in it has left. ``every``: the memory is
    looked at in one step out of so many; who runs, in each. ``finished`` is called with 1 whenever a request ends.
    """

    def __init__(self, scheduler: Scheduler, every: int = 1, finished: Callable[[int], object] = lambda count: None) -> None:
        self.scheduler = scheduler
        self.every = every
        self.finished = finished
        self.running: list[int] = []
        """Requests that run, of each step."""
        self.waiting: list[int] = []
        self.reports: dict[int, tuple[MemoryReport, int]] = {}
        """Step (from 0) -> the report and how many tokens the step is about to write."""
        self.preemptions = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepScheduled):
            step = len(self.running)
            self.running.append(len(self.scheduler.running))
            self.waiting.append(len(self.scheduler.waiting))
            if step % self.every == 0:
                self.reports[step] = self.scheduler.manager.report(), sum(event.tokens.values())
        elif isinstance(event, RequestFinished):
            self.finished(1)
        elif isinstance(event, RequestPreempted):
            self.preemptions += 1

    def measured(self) -> list[int]:
        """The steps that count; all of them if nobody ever waited."""
        crowded = [step for step, waiting in enumerate(self.waiting) if waiting]
        return crowded[len(crowded) // WARM_UP :] or list(range(len(self.running)))

    def row(self) -> dict[str, Any]:
        """The run as plain numbers; shares are of all slots, but for ``in_use`` (token states in the blocks that somebody holds)."""
        steps = self.measured()
        samples = [self.reports[step] for step in steps if step in self.reports]
        if not samples:
            raise ValueError(f"the memory was looked at in no measured step: {len(self.running)} steps are too few, more requests make more")
        shares = [_shares(report, written, self.scheduler.manager.block_size) for report, written in samples]
        return {
            "steps": len(self.running), "crowded_steps": sum(map(bool, self.waiting)), "measured_steps": len(steps), "samples": len(samples),
            "parts": {name: _spread([share[name] for share in shares]) for name in PARTS},
            "in_use": _spread([share["in_use"] for share in shares]),
            "running": _spread([self.running[step] for step in steps]),
            "sharing_saving": _spread([report.sharing_saving for report, _ in samples]),
            "preemptions": self.preemptions,
        }


def _shares(report: MemoryReport, written: int, block_size: int) -> dict[str, float]:
    """The four parts once the step's tokens are written, as fractions of the pool, and token states as a fraction of what is held."""
    states = report.token_states + written
    return {
        "token_states": states / report.total, "reservation": (report.reservation - written) / report.total,
        "internal": report.internal / report.total, "external": report.external / report.total,
        "in_use": states / (report.num_used_blocks * block_size),
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"mean": round(fmean(values), 6), "min": round(min(values), 6), "max": round(max(values), 6)}
