"""Points of a latency curve, where it crosses a threshold, and what a run behind a point looked like: plain data, for whoever draws it."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Points = list[list[float]]
"""``[[x, y], …]``"""
PARTS = ("token_states", "reservation", "internal", "external")
"""Memory parts of Paper Fig. 2, as `MemoryReport.shares` names them."""


def crossing(points: Sequence[Sequence[float]], threshold: float) -> float | None:
    """The request rate at which a curve first passes ``threshold`` [s/token], on straight lines between its points; None: it does not."""
    before: Sequence[float] | None = None
    for x, y in points:
        if y > threshold:
            if before is None:
                return None
            return before[0] + (threshold - before[1]) * (x - before[0]) / (y - before[1])
        before = [x, y]
    return None


@dataclass(frozen=True, slots=True)
class Sample:
    """What a run was doing at one time of the virtual clock."""

    time: float
    """Seconds."""
    running: int
    waiting: int
    """Requests in line: new ones, and those that gave their memory back."""
    parts: tuple[float, float, float, float] | None
    """What the KV cache holds, as `PARTS`, shares of 1; None for a system that keeps no account of it."""


@dataclass(frozen=True, slots=True)
class Run:
    """What stands behind one point of a curve: one system under one load, watched."""

    system: str
    rate: float
    """Requests a second."""
    seconds: float
    """For how long requests came."""
    latency: float
    """The point's other coordinate [s/token]."""
    running: float
    """Requests in the batch, on average over the time in which requests came, its first fifth left out."""
    waiting: float
    """Requests in line, likewise."""
    num_requests: int
    num_preemptions: int
    samples: tuple[Sample, ...]
    """About 60, evenly over the virtual time, the time after the last arrival included."""
    requests: tuple[tuple[float, ...], ...]
    """The first requests that came after a fifth of the time: arrival, then in turn when it began to run and when it stopped, the last stop being
    its end [s]. Two times more for each time that it was preempted. An end is exact to one step."""

    @property
    def end(self) -> float:
        """When the last sample was taken [s]."""
        return self.samples[-1].time if self.samples else self.seconds
