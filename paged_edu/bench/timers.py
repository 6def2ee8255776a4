"""Time several ways to do the same thing against each other, fairly: in turns, from cold caches, medians.

The clock of a machine drifts (heat, neighbours), so nobody is timed all at once: a *round* runs each of them once, and the next round begins with
another one. Before each run the caches are filled with something else, or a context that fits into them would seem to cost nothing.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median, quantiles
from typing import Any, Protocol

import torch
from torch import Tensor

Call = Callable[[], object]


class Timer(Protocol):
    """How long a call takes on some device."""

    def prepare(self, call: Call) -> Call:
        """Warm ``call`` up; what it returns is timed."""

    def once(self, call: Call) -> Callable[[], float]:
        """Run it once from cold caches; ask for the milliseconds when the round is over."""


class WallTimer:
    """On the CPU, by the wall clock."""

    def prepare(self, call: Call) -> Call:
        call()
        return call

    def once(self, call: Call) -> Callable[[], float]:
        start = time.perf_counter()
        call()
        ms = 1e3 * (time.perf_counter() - start)
        return lambda: ms


class CudaTimer:
    """On the GPU, by its own events, so that what Python takes does not count.

    ``graphs``: a call is captured into a CUDA graph first, as the engine does with decode: two launches then follow each other at once. Without,
    the launches are made while the card is still busy with the caches.
    """

    def __init__(self, device: torch.device, graphs: bool = True) -> None:
        self.device, self.graphs = device, graphs
        l2 = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0) or 64 * 2**20
        self.filler = torch.zeros(max(256 * 2**20, 4 * l2) // 4, dtype=torch.int32, device=device)
        self.sink: Tensor | None = None

    def prepare(self, call: Call) -> Call:
        side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call, unused-ignore]
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            for _ in range(3):                              # compiles, and fills the allocator's pools
                call()
        torch.cuda.current_stream(self.device).wait_stream(side)
        torch.cuda.synchronize(self.device)
        if not self.graphs:
            return call
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return graph.replay

    def once(self, call: Call) -> Callable[[], float]:
        # Read, not written: lines that were written would have to be put back while the call runs.
        self.sink = self.filler.amax()
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call, unused-ignore]
        start.record()
        call()
        stop.record()

        def ms() -> float:
            stop.synchronize()
            return float(start.elapsed_time(stop))

        return ms


def in_turns(calls: Mapping[str, Call], rounds: int, timer: Timer, advance: Callable[[int], object] = lambda count: None) -> dict[str, list[float]]:
    """Milliseconds of each call, ``rounds`` of them, each round beginning with another one. ``advance`` gets 1 for every round."""
    names = list(calls)
    prepared = {name: timer.prepare(call) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in names}
    for i in range(rounds):
        first = i % len(names)
        pending = [(name, timer.once(prepared[name])) for name in names[first:] + names[:first]]
        for name, ms in pending:
            times[name].append(ms())
        advance(1)
    return times


def spread(ms: list[float]) -> dict[str, Any]:
    """Median, quartiles and number of runs; times in milliseconds."""
    low, _, high = quantiles(ms, n=4) if len(ms) > 1 else (ms[0],) * 3
    return {"median_ms": median(ms), "low_ms": low, "high_ms": high, "runs": len(ms)}
