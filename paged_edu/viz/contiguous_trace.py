"""What TRACE24 looks like in a server that reserves one contiguous slab a request (Paper §3.1, Fig. 2): small enough to check by eye.

First come, first served; a request gets a slab of ``max_model_len`` slots when one is free and keeps it to its end; every running request
writes its prompt in its first step and one token in each later one. No engine is needed to say what that does.
"""
from __future__ import annotations

from dataclasses import dataclass

from .fake_engine import Trace24


@dataclass(frozen=True, slots=True)
class Slab:
    """One reservation of ``max_model_len`` slots."""

    arrival: int
    live: int
    """Slots that hold a token."""
    end: int
    """Slots that will hold one when the request ends."""


@dataclass(frozen=True, slots=True)
class ContiguousState:
    """The memory at the end of a step."""

    slabs: tuple[Slab | None, ...]
    """One a place; None: nobody waits for it."""
    waiting: tuple[int, ...]
    """Arrival numbers, first in line first."""
    num_finished: int
    num_sampled: int
    """Output tokens so far, of all requests."""
    steps: int

    @property
    def live(self) -> int:
        return sum(slab.live for slab in self.slabs if slab)


def contiguous(trace: Trace24, step: int | None = None) -> ContiguousState:
    """The state at the end of ``step``; without one, at the end of the run."""
    queue = list(range(len(trace.requests)))
    places: list[tuple[int, int] | None] = [None] * (trace.num_slots // trace.max_model_len)     # (arrival, steps it has run)
    finished = sampled = now = 0
    while (queue or any(places)) if step is None else now < step:
        now += 1
        for i, place in enumerate(places):
            if place is None and queue:
                places[i] = (queue.pop(0), 0)
        for i, place in enumerate(places):
            if place is not None:
                arrival, ran = place
                sampled += 1
                done = ran + 1 == trace.requests[arrival][1]
                finished += done
                places[i] = None if done else (arrival, ran + 1)
    slabs: list[Slab | None] = []
    for place in places:
        if place is None:
            slabs.append(None)
            continue
        prompt, output = trace.requests[place[0]]
        slabs.append(Slab(place[0], prompt + place[1] - 1, prompt + output - 1))    # the last sampled token is never written
    return ContiguousState(tuple(slabs), tuple(queue), finished, sampled, now)
