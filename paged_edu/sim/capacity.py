"""Capacity: the highest request rate that a server holds with its latency within a limit (Paper §6.2: "can sustain ... at similar latencies")."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..checks import number, one_of
from ..core.sequence import Request
from .serve import Served

METRICS = {"normalized": "s/token", "mean": "s", "p99": "s"}
"""How latencies are summed up, with the unit: "normalized", the mean over requests of latency over output tokens (Paper §6.1); the mean latency; the
latency that 99 of 100 requests do not exceed."""
THRESHOLD = 0.2
"""Seconds a token: the curves of Paper Fig. 12 are steep there."""
TOLERANCE = 0.02
"""The highest rate that holds and the lowest that does not are no further apart than this share."""
LOWEST, HIGHEST = 2.0**-10, 2.0**20
"""Rates [requests/s] between which is searched."""
FEWEST = 10
"""Requests that a run needs before it says anything."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One run. If it was stopped because its latency could only end above the limit, ``latency`` is what it had reached."""

    rate: float
    latency: float
    requests: int
    """Requests that came."""
    running: float = 0.0
    preemptions: int = 0
    binds: str = "compute"
    """See `TimedScheduler.binds`."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a search found."""

    rate: float
    """Requests a second; 0: the limit is below what requests take that hardly meet."""
    latency: float
    """At that rate; where the rate is 0, at the lowest rate tried."""
    running: float
    preemptions: int
    binds: str
    """What held back the first run above the limit."""
    above: float
    """The lowest rate tried that did not hold."""
    tried: list[Measured] = field(repr=False, default_factory=list)


class TooSlowError(Exception):
    """A run's latency can only end above the limit."""


class Watch:
    """Hears each request's end and stops a run (`TooSlowError`) once its outcome is certain: overloaded runs are the long ones."""

    def __init__(self, metric: str, limit: float, num_requests: int) -> None:
        self.metric, self.limit, self.num_requests = metric, limit, num_requests
        self.sum, self.num_slow, self.least_slow = 0.0, 0, math.inf

    @property
    def reached(self) -> float:
        """What the latency is at least, whatever the requests that have not ended will take."""
        if self.metric == "p99":
            return self.least_slow if self.num_slow > self.num_requests - _rank(self.num_requests) else 0.0
        return self.sum / self.num_requests

    def __call__(self, request: Request, latency: float) -> None:
        self.sum += latency / request.max_tokens if self.metric == "normalized" else latency
        if latency > self.limit:
            self.num_slow += 1
            self.least_slow = min(self.least_slow, latency)
        if self.reached > self.limit:
            raise TooSlowError


def latency_of(metric: str, served: Served) -> float:
    """A run's latency by ``metric``, a name in `METRICS`."""
    one_of("metric", metric, METRICS)
    if metric == "normalized":
        return served.normalized_latency
    return sum(served.latencies) / max(1, len(served.latencies)) if metric == "mean" else p99(served.latencies)


def p99(latencies: Sequence[float]) -> float:
    """The shortest latency that at least 99 of 100 do not exceed; 0 of none."""
    return sorted(latencies)[_rank(len(latencies)) - 1] if latencies else 0.0


def _rank(count: int) -> int:
    return math.ceil(0.99 * count)


def search(measure: Callable[[float], Measured], limit: float = THRESHOLD, start: float = 1.0, tolerance: float = TOLERANCE) -> Capacity:
    """The highest rate at which ``measure`` finds a latency of at most ``limit``: from ``start`` by doubling or halving, then by bisection.

    Latencies grow with the rate but for the luck of the draw, so near the answer a single run may fall on either side. Raises ValueError where too
    few requests come to say anything.
    """
    number("threshold", limit, 0, low_open=True)
    number("tolerance", tolerance, 0, 1, low_open=True)
    number("start", start, LOWEST, HIGHEST)
    tried: list[Measured] = []

    def run(rate: float) -> Measured:
        tried.append(measure(rate))
        return tried[-1]

    low: Measured | None = None
    high: Measured | None = None
    rate = start
    while low is None or high is None:
        found = run(rate)
        if found.latency <= limit:
            low, rate = found, rate * 2
        else:
            high, rate = found, rate / 2
        if low is None and high is not None and (rate < LOWEST or high.requests < FEWEST):
            alone = next((run for run in tried if run.running < _HARDLY_MEET), None)
            if alone is not None:
                return Capacity(0.0, alone.latency, alone.running, alone.preemptions, ALONE, alone.rate, tried)
            raise ValueError(_few(high))
        if low is not None and (rate > HIGHEST if high is None else low.requests < FEWEST):
            raise ValueError(_few(low))
    while high.rate / low.rate > 1 + tolerance:
        found = run(math.sqrt(low.rate * high.rate))
        low, high = (found, high) if found.latency <= limit else (low, found)
    return Capacity(low.rate, low.latency, low.running, low.preemptions, high.binds, high.rate, tried)


ALONE = "alone"
"""`Capacity.binds` where the rate is 0: a request takes too long even by itself."""
_HARDLY_MEET = 1.5
"""Requests in the mean batch of a run whose requests are alone most of the time."""


def _few(run: Measured) -> str:
    return f"{run.requests} requests at {run.rate:g} a second are too few to find what the server holds: more --seconds"
