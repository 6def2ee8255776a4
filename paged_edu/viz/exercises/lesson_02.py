"""Exercises of lesson 02: the four parts of a contiguous cache, and buddies. Judged by `ContiguousKVManager` and `BuddyAllocator`."""
from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any, NamedTuple

from ...core.buddy import BuddyAllocator
from ...core.contiguous import ContiguousKVManager
from ...core.sequence import Request
from ...core.sequence import Sequence as TokenSequence
from .exercise import Case, Exercise, Misconception
from .readers import integer, list_of, tuple_of


class Held(NamedTuple):
    """One reservation, in the manner of Fig. 3 of the paper; all in slots."""

    prompt: int
    now: int
    """Tokens in the cache."""
    end: int
    """Tokens that will be in the cache when the request ends."""
    reserved: int


class _Reserved(ContiguousKVManager):
    """The engine's manager, with a reservation for each request (Fig. 3 has two different ones)."""

    def __init__(self, requests: Sequence[Held], pool: int) -> None:
        super().__init__(pool, 1, "max", max(r.reserved for r in requests))
        self.sizes = [r.reserved for r in requests]

    def reserved_tokens(self, request: Request, num_tokens: int) -> int:
        return self.sizes[int(request.request_id)]


def _parts_case(requests: list[Held], pool: int) -> Case:
    manager = _Reserved(requests, pool)
    for i, held in enumerate(requests):
        request = Request(str(i), tuple(range(held.prompt)), max_tokens=held.end - held.prompt + 1)
        seq = TokenSequence(i, request, 0, list(range(held.now)), held.now)
        if manager.admit(seq, held.now) is None:
            raise ValueError(f"a pool of {pool} slots does not hold {requests}")
    report = manager.report()
    return Case((requests, pool), (report.token_states, report.reservation, report.internal, report.external))


FIG_3 = [Held(7, 8, 10, 2048), Held(3, 4, 5, 512)]


def _parts_fixed() -> Sequence[Case]:
    return [
        _parts_case([Held(1, 1, 1, 4)], 4), _parts_case([Held(2, 3, 4, 8)], 16), _parts_case(FIG_3[:1], 2048), _parts_case(FIG_3, 4096),
        _parts_case([Held(16, 20, 64, 64), Held(5, 5, 30, 32)], 256),
    ]


def _draw_parts(random: Random) -> Case:
    requests, pool = [], 1024
    for _ in range(random.randint(1, 3)):
        prompt = random.randint(1, 20)
        now = prompt + random.randint(0, 20)
        end = now + random.randint(0, 20)
        requests.append(Held(prompt, now, end, random.choice((64, 128, 256))))
    return _parts_case(requests, pool)


def _parts(states: str, reservation: str, internal: str, requests: Sequence[Held], pool: int, external: bool = True) -> tuple[int, ...]:
    """The four sums, each part of a request by the name of a formula."""
    total = [0, 0, 0]
    for r in requests:
        sizes = {
            "now": r.now, "prompt": r.prompt, "coming": r.end - r.now, "after": r.reserved - r.end, "all": r.reserved - r.now, "none": 0,
            "whole": r.reserved, "answer": r.end - r.prompt,
        }
        total = [t + sizes[name] for t, name in zip(total, (states, reservation, internal))]
    return (*total, pool - sum(total) if external else 0)


def _wrong_parts(requests: Sequence[Held], pool: int, names: tuple[str, str, str]) -> tuple[int, ...]:
    return _parts(*names, requests, pool)


def _buddy_case(allocator: BuddyAllocator, start: int) -> Case:
    """Free a run; what is free before and after."""
    before, size = allocator.free_runs(), 1 << allocator.orders[start]
    after = allocator.copy()
    after.free(start)
    return Case((before, start, size), after.free_runs())


def four_sixteens() -> BuddyAllocator:
    """64 slots, all of them in four runs of 16."""
    allocator = BuddyAllocator(64)
    for _ in range(4):
        allocator.allocate(4)
    return allocator


def _buddy_fixed() -> Sequence[Case]:
    full, holes = four_sixteens(), four_sixteens()
    holes.free(16)
    three = four_sixteens()
    three.free(16)
    three.free(32)
    last = four_sixteens()
    for start in (16, 32, 48):
        last.free(start)
    return [_buddy_case(full, 16), _buddy_case(holes, 32), _buddy_case(holes, 0), _buddy_case(three, 48), _buddy_case(last, 0)]


def _draw_buddy(random: Random) -> Case:
    allocator = BuddyAllocator(random.choice((16, 32, 64)))
    held: list[int] = []
    for _ in range(random.randint(3, 12)):
        if held and random.random() < 0.4:
            allocator.free(held.pop(random.randrange(len(held))))
        elif (start := allocator.allocate(random.randint(0, 3))) is not None:
            held.append(start)
    if not held:
        held.append(allocator.allocate(0) or 0)
    return _buddy_case(allocator, random.choice(held))


def _merge(free: Sequence[Any], start: int, size: int, how: str) -> list[tuple[int, int]]:
    """Wrong ways to join free runs."""
    runs = {(int(s), int(n)) for s, n in free}
    if how == "neighbours":
        again = True
        while again:
            again = False
            for s, n in sorted(runs):
                if s + n == start or start + size == s:
                    runs.remove((s, n))
                    start, size, again = min(s, start), n + size, True
    elif how == "all":
        joined: list[tuple[int, int]] = []
        for s, n in sorted({*runs, (start, size)}):
            if joined and sum(joined[-1]) == s:
                joined[-1] = joined[-1][0], joined[-1][1] + n
            else:
                joined.append((s, n))
        return joined
    elif how in ("once", "right", "left"):
        while (run := ({"once": start ^ size, "right": start + size, "left": start - size}[how], size)) in runs:
            runs.remove(run)
            start, size = min(start, run[0]), 2 * size
            if how == "once":
                break
    return sorted({*runs, (start, size)})


_RUN = tuple_of(integer, integer, what="(start, size) for each free run")

EXERCISES = (
    Exercise(
        name="02.a",
        title="The four parts of a cache",
        signature="memory_parts(requests, pool)",
        statement=(
            "Each request has `prompt`, `now`, `end` and `reserved` (slots): tokens of its prompt, in the cache now, in the cache when it ends, and"
            " slots "
            "that are kept for it. Return (token states, reservation, internal, external) for all of them in a pool of `pool` slots. Fig. 3's A "
            "(`now=8, end=10, reserved=2048`) gives 8, 2 and 2038."
        ),
        hints=(
            "Ask of each slot: does it hold a token, will it hold one, will it never hold one, or does it belong to nobody?",
            "Draw A as a bar of 2048 slots and mark 8 and 10 on it. `MemoryReport` of the engine has the same four numbers.",
            "states += now; reservation += end - now; internal += reserved - end; external = pool - the other three",
        ),
        judge="ContiguousKVManager.report",
        passed="The four parts add up to the pool. Reservation will be used, internal never; both keep other requests out now.",
        read=tuple_of(integer, integer, integer, integer, what="(token states, reservation, internal, external)"),
        fixed=_parts_fixed,
        draw=_draw_parts,
        misconceptions=(
            Misconception(
                "you counted tokens that are still to come as internal fragmentation. They will be used: until then they are *reservation*.",
                partial(_wrong_parts, names=("now", "none", "all")),
            ),
            Misconception(
                "only the prompt counts as live in your answer. The answer's tokens have keys and values too.",
                partial(_wrong_parts, names=("prompt", "answer", "after")),
            ),
            Misconception(
                "everything that is kept and empty is reservation in your answer. What lies beyond the end will never be used: that is internal.",
                partial(_wrong_parts, names=("now", "all", "none")),
            ),
            Misconception(
                "you counted the whole of a reservation as token states: most of it holds no token.",
                partial(_wrong_parts, names=("whole", "none", "none")),
            ),
            Misconception(
                "you left out what belongs to nobody: the four parts must add up to the pool.",
                lambda requests, pool: _parts("now", "coming", "after", requests, pool, external=False),
            ),
            Misconception(
                "you exchanged reservation and internal: reservation is what will be used, internal what never will.",
                partial(_wrong_parts, names=("now", "after", "coming")),
            ),
        ),
    ),
    Exercise(
        name="02.b",
        title="Freeing in a buddy allocator",
        signature="buddy_free(free, start, size)",
        statement=(
            "`free` lists the free runs as (start, size); the run of `size` slots at `start` is given back. Return the free runs afterwards, "
            "sorted. A run "
            "joins its *buddy*, the other half of the run of twice the size, if that is free in one piece, and so on. Of four runs of 16 in 64 "
            "slots, free the 2nd and then the 3rd: 32 free slots lie side by side and stay two runs, so nobody gets 32."
        ),
        hints=(
            "Not every neighbour is a buddy. Runs of 16 begin at multiples of 16, and runs of 32 at multiples of 32.",
            "Write the starts in binary. A run and its buddy differ in one bit, the one that is worth `size`: `start ^ size`.",
            "while (buddy, size) is free: take it out, start = the smaller of the two starts, size *= 2; then put (start, size) in and sort",
        ),
        judge="BuddyAllocator",
        passed="Splitting and joining cost a few steps whatever the pool, and the price is a hole that nobody can use: external fragmentation.",
        read=list_of(_RUN, "a list of (start, size)"),
        fixed=_buddy_fixed,
        draw=_draw_buddy,
        misconceptions=(
            Misconception(
                "you join any neighbours. A buddy is the other half of the *same* larger run: 16..31 and 32..47 belong to different ones, so nobody "
                "gets 32.",
                lambda free, start, size: _merge(free, start, size, "neighbours"),
            ),
            Misconception(
                "you join any neighbours, also those that lay free side by side before. Only the two halves of the same larger run are buddies.",
                lambda free, start, size: _merge(free, start, size, "all"),
            ),
            Misconception(
                "you join once; the run that comes of it may have a free buddy as well.",
                lambda free, start, size: _merge(free, start, size, "once"),
            ),
            Misconception(
                "you never join: after a while only small runs would be left.",
                lambda free, start, size: _merge(free, start, size, "never"),
            ),
            Misconception(
                "you only look to the right. Half of all runs have their buddy on the left: `start ^ size` finds either.",
                lambda free, start, size: _merge(free, start, size, "right"),
            ),
            Misconception(
                "you only look to the left. Half of all runs have their buddy on the right: `start ^ size` finds either.",
                lambda free, start, size: _merge(free, start, size, "left"),
            ),
        ),
    ),
)
