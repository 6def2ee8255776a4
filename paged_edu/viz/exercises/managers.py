"""Exercise 13.b: a KV manager with two block sizes. Its books are kept a second time here; tokens and steps must be those of `PagedKVManager`.

A *large* block is four neighbouring small ones, numbers 4k to 4k + 3. A block table stays a list of small ones, so scheduler, runner and kernels see
no difference, as with the contiguous managers.
"""
from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Any

from ...core.block_pool import IntegrityError
from ...engine.own_manager import OwnManager
from ..fake_engine import FakeEngine
from ..race import DisqualifiedError, Run
from .exercise import Case, Function
from .policies import Finding
from .readers import Reader

FOUR = 4
"""Small blocks in a large one."""

OPERATIONS: dict[str, tuple[int, tuple[int, ...]]] = {
    # name -> (small blocks, what is done: n takes n blocks, -i gives back what the i-th take got)
    "a fresh pool": (24, (8, 5, 1, 4)),
    "nearly full": (12, (5, 5, 2, 1, -2, 5, -1, -3, -5)),
    "no large one is left whole": (12, (1, 3, 1, 3, 1, 3, -2, -4, 5, -1, 2, -3, -7, 4)),
    "given back one by one": (8, (1, 1, -1, -2, 8)),
    "neighbours that do not belong together": (12, (2, 4, 4, -2, 4, -1)),
    "too much is asked for": (12, (9, 4, 3, 1, -2, 4, 3)),
}
TRACES = {"short prompts": (8, 10, 12), "long prompts": (20, 30, 12), "all sizes": (16, 22, 20)}
"""Name -> (blocks of 4 slots, longest prompt, longest answer)."""


class Books:
    """Who has what, beside the learner's own record."""

    def __init__(self, manager: OwnManager) -> None:
        self.manager, self.pool = manager, manager.num_blocks
        self.held: dict[int, list[int]] = {}
        self.taken = 0
        self.faults: dict[str, str] = {}

    def fault(self, kind: str, words: str) -> None:
        self.faults.setdefault(kind, words)

    def free(self) -> set[int]:
        return {*range(self.pool)} - {block for blocks in self.held.values() for block in blocks}

    def wholes(self) -> int:
        free = self.free()
        return sum(all(FOUR * k + i in free for i in range(FOUR)) for k in range(self.pool // FOUR))

    def take(self, count: int) -> None:
        self.taken += 1
        before, free, wholes = self.manager.num_free(), self.free(), self.wholes()
        got = self.manager.take(count)
        asked = f"take({count}) with {len(free)} free blocks, {wholes} large ones whole among them,"
        if got is None:
            if count <= len(free):
                self.fault("refuses", f"{asked} said None")
            if self.manager.num_free() != before:
                self.fault("keeps", f"{asked} said None and kept {before - self.manager.num_free()} blocks")
            return
        got = list(got)
        if len(got) != count or len({*got}) != count or not free >= {*got}:
            self.fault("illegal", f"{asked} gave {got}")
            return
        self.held[self.taken] = got
        used = sum(got[i] % FOUR == 0 and got[i : i + FOUR] == [*range(got[i], got[i] + FOUR)] for i in range(0, count - FOUR + 1, FOUR))
        if used < (right := min(count // FOUR, wholes)):
            self.fault("torn", f"{asked} gave {got}: {used} large, {right} were possible")
        singles, rest = len(free) - FOUR * wholes, count - FOUR * right
        if self.wholes() < wholes - right - -(-max(0, rest - singles) // FOUR):
            self.fault("breaks", f"{asked} gave {got}: a large one was broken although {singles} small ones were free")

    def give(self, take: int) -> None:
        if take in self.held:
            self.manager.give(self.held.pop(take))

    def close(self) -> Finding:
        for take in list(self.held):
            self.give(take)
        if self.manager.num_free() != self.pool:
            self.fault("leak", f"all is given back, and {self.manager.num_free()} of {self.pool} blocks are free")
        if not self.faults:
            return Finding("good", "every block is where it should be")
        return Finding(" ".join(sorted(self.faults)), next(iter(self.faults.values())))


def operate(cls: Function, name: str) -> Finding:
    pool, operations = OPERATIONS[name]
    books = Books(cls(pool, 4, 64))
    for operation in operations:
        if operation > 0:
            books.take(operation)
        else:
            books.give(-operation)
    return books.close()


def serve(kv_manager: Any, name: str) -> tuple[int, list[list[int]]]:
    """``(steps, tokens of each request)``; every token is also what it should be, or this raises `DisqualifiedError`."""
    num_blocks, prompt, answer = TRACES[name]
    random = Random(name)
    run = Run(FakeEngine(num_blocks, 4, 64, 64, kv_manager, max_num_seqs=16), ())
    for _ in range(10):
        run.add(random.randint(1, prompt), random.randint(1, answer))
    while run.server.has_unfinished_requests():
        run.step()
        run.server.scheduler.manager.check()
    run.check()
    return run.server.scheduler.step, [request.sequences[0].output_token_ids for request in run.made]


@cache
def paged(name: str) -> tuple[int, list[list[int]]]:
    return serve("paged", name)


def drive_manager(function: Function, args: tuple[Any, ...], read: Reader) -> Finding:
    """One run of the learner's class."""
    (name,) = args
    if name in OPERATIONS:
        return operate(function, name)
    (steps, tokens) = paged(name)
    try:
        got = serve(function, name)
    except (DisqualifiedError, IntegrityError) as broken:
        return Finding("broken", str(broken))
    if got[1] != tokens:
        return Finding("other tokens", "other tokens than the paged manager's")
    if got[0] != steps:
        return Finding("other steps", f"the same tokens in {got[0]} steps; PagedKVManager with blocks of 4 takes {steps}")
    return Finding("good", f"the same tokens in the same {steps} steps")


@cache
def manager_case(name: str) -> Case:
    words = "every block is where it should be" if name in OPERATIONS else f"the same tokens in {paged(name)[0]} steps"
    return Case((name,), Finding("good", words))


def manager_fixed() -> Sequence[Case]:
    return [manager_case(name) for name in (*OPERATIONS, *TRACES)]


def draw_manager(random: Random) -> Case:
    return manager_case(random.choice((*OPERATIONS, *TRACES)))


# -- wrong ideas ------------------------------------------------------------------------------------------------------------------------
class Two(OwnManager):
    """What the wrong ideas have in common: a list of the large ones that are whole, and one of the small ones beside them."""

    def start(self) -> None:
        self.whole, self.small = list(range(self.num_blocks // FOUR)), list[int]()

    def num_free(self) -> int:
        return FOUR * len(self.whole) + len(self.small)

    def split(self) -> list[int]:
        first = FOUR * self.whole.pop(0)
        return [*range(first, first + FOUR)]

    def take(self, count: int) -> list[int] | None:
        return self.collect(count) if count <= self.num_free() else None

    def collect(self, count: int) -> list[int]:
        got: list[int] = []
        while count - len(got) >= FOUR and self.whole:
            got += self.split()
        while len(got) < count:
            if not self.small:
                self.small += self.split()
            got.append(self.small.pop(0))
        return got

    def give(self, blocks: list[int]) -> None:
        self.small += blocks
        for k in sorted({block // FOUR for block in blocks}):
            four = range(FOUR * k, FOUR * k + FOUR)
            if {*four} <= {*self.small}:
                self.small = [block for block in self.small if block not in four]
                self.whole.append(k)


class LargeOnly(Two):
    """Every request gets whole large blocks; what it does not need of the last one is nobody's until it ends."""

    def start(self) -> None:
        super().start()
        self.lent: dict[int, int] = {}

    def take(self, count: int) -> list[int] | None:
        need = -(-count // FOUR)
        if need > len(self.whole):
            return None
        got = [block for _ in range(need) for block in self.split()][:count]
        self.lent |= {k: sum(block // FOUR == k for block in got) for k in {block // FOUR for block in got}}
        return got

    def give(self, blocks: list[int]) -> None:
        for block in blocks:
            k = block // FOUR
            self.lent[k] -= 1
            if not self.lent[k]:
                self.whole.append(k)


class NeedsWhole(Two):
    """Refuses where no large block is whole, although there are small ones."""

    def take(self, count: int) -> list[int] | None:
        return None if count // FOUR > len(self.whole) else super().take(count)


class NeverWhole(Two):
    """What was broken once stays so."""

    def give(self, blocks: list[int]) -> None:
        self.small += blocks


class AlwaysBreaks(Two):
    """Breaks a large one for every rest."""

    def collect(self, count: int) -> list[int]:
        got: list[int] = []
        while count - len(got) >= FOUR and self.whole:
            got += self.split()
        if len(got) < count and self.whole:
            self.small = self.split() + self.small
        return got + [self.small.pop(0) for _ in range(count - len(got))]


class TakesFirst(Two):
    """Takes before it finds too few."""

    def take(self, count: int) -> list[int] | None:
        if count <= self.num_free():
            return self.collect(count)
        self.collect(self.num_free())
        return None


class AnyNeighbours(Two):
    """Any four neighbours make a large block, wherever they begin."""

    def start(self) -> None:
        self.runs, self.small = [*range(0, self.num_blocks, FOUR)], list[int]()
        self.whole = self.runs

    def split(self) -> list[int]:
        first = self.runs.pop(0)
        return [*range(first, first + FOUR)]

    def give(self, blocks: list[int]) -> None:
        free = sorted([*self.small, *blocks])
        self.small = []
        while free:
            if free[:FOUR] == [*range(free[0], free[0] + FOUR)]:
                self.runs.insert(0, free[0])
                del free[:FOUR]
            else:
                self.small.append(free.pop(0))


class LosesTheRest(Two):
    """Of a large block that is broken, what is not needed now is forgotten."""

    def collect(self, count: int) -> list[int]:
        got: list[int] = []
        while len(got) < count:
            got += self.split() if self.whole else [self.small.pop(0)]
        return got[:count]


class SmallOnly(Two):
    """One list of small blocks, as in the paged manager."""

    def start(self) -> None:
        self.whole, self.small = [], [*range(self.num_blocks)]

    def give(self, blocks: list[int]) -> None:
        self.small += blocks
