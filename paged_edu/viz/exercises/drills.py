"""Drills beyond the exercises: the hard spots of the lessons, as small problems with answers from the engine."""
from __future__ import annotations

from collections.abc import Callable
from random import Random

from ...core.block_pool import BlockPool
from ...core.block_table import BlockTable
from ...core.paged import PagedKVManager
from ...core.scheduler import Scheduler, SchedulerConfig
from ...core.sequence import Request
from ...core.sequence import Sequence as TokenSequence
from ...words import counted
from .lesson_05 import advance

Drill = Callable[[Random], tuple[str, str]]
"""A seeded random generator -> (problem, answer)."""


def blocks_of_a_request(random: Random) -> tuple[str, str]:
    """Blocks that a request ends with: the last sampled token is never cached."""
    B = random.choice((2, 4, 8, 16))
    prompt, output = random.randint(1, 3 * B), random.randint(1, 3 * B)
    scheduler = Scheduler(SchedulerConfig(max_model_len=256), PagedKVManager(64, B))
    scheduler.add(Request("A", tuple(range(prompt)), max_tokens=output))
    most = 0
    while scheduler.has_unfinished():
        most = max(most, *(len(item.block_table) for item in advance(scheduler).scheduled))
    problem = f"A prompt of {counted(prompt, 'token')}, an answer of {output}, B = {B}. How many blocks has the request when it ends?"
    return problem, f"{counted(most, 'block')}: {prompt} + {output} - 1 = {prompt + output - 1} tokens are ever cached"


def copies_of_a_fork(random: Random) -> tuple[str, str]:
    """n - 1 copies, or none where the prompt ends with a full block."""
    B, n = random.choice((4, 8, 16)), random.randint(2, 6)
    prompt = random.randint(1, 3 * B) if random.random() < 0.7 else B * random.randint(1, 3)
    manager = PagedKVManager(64, B)
    request = Request("A", tuple(range(prompt)), n=n)
    seqs = [TokenSequence(i, request, i, list(range(prompt + 1)), prompt) for i in range(n)]
    manager.admit(seqs[0], prompt)
    for seq in seqs[1:]:
        manager.fork(seqs[0], seq)
    copies = manager.reserve(seqs, [1] * n) or []
    used = manager.pool.num_used
    problem = (
        f"A prompt of {counted(prompt, 'token')} with n = {n} and B = {B}; every branch then computes its first token. "
        "How many copies are made, and how many blocks are in use then?"
    )
    return problem, f"{counted(len(copies), 'copy', 'copies')}, {counted(used, 'block')}"


def cached_tokens(random: Random) -> tuple[str, str]:
    """Full blocks only, and the last token of a prompt is always queried."""
    B = random.choice((4, 8, 16))
    common = random.randint(1, 4 * B)
    first, second = common + random.randint(0, B), common + (0 if random.random() < 0.3 else random.randint(1, B))
    scheduler = Scheduler(SchedulerConfig(max_model_len=256), PagedKVManager(64, B, prefix_caching=True))
    shared = tuple(range(common))
    scheduler.add(Request("A", (*shared, *(1000 + i for i in range(first - common))), max_tokens=1))
    advance(scheduler)
    request = Request("B", (*shared, *(2000 + i for i in range(second - common))), max_tokens=1)
    scheduler.add(request)
    advance(scheduler)
    problem = (
        f"B = {B}. A request with a prompt of {counted(first, 'token')} has ended. The next has {second}, of which the first {common} are the same. "
        f"For how many tokens of it does the cache save the work?"
    )
    return problem, counted(request.num_cached_tokens, "token")


def units(random: Random) -> tuple[str, str]:
    """GiB and GB."""
    gb = random.choice((16, 24, 40, 80))
    return f"A data sheet says {gb} GB and means 10^9 bytes each. How many GiB (2^30 bytes) is that?", f"{gb * 10**9 / 2**30:.1f} GiB"


EIGHT = ("come", "come", "write", "fork", "write", "write", "end", "come")
"""What happens in the hand trace, in an order that is drawn."""


class _Hand:
    """A pool on paper: tables by letter, and how many tokens each holds."""

    def __init__(self, random: Random) -> None:
        self.random, self.pool = random, BlockPool(12)
        self.tables: dict[str, tuple[BlockTable, int]] = {}
        self.told: list[str] = []
        self.copies = 0

    def do(self, what: str) -> bool:
        """Do it, if there is somebody to do it and room for it."""
        name = self.random.choice([*self.tables]) if self.tables else ""
        if what == "come":
            table, tokens = BlockTable(self.pool, 4), self.random.randint(1, 11)
            if not table.grow(tokens):
                return False
            self._enter(table, tokens, f"comes with {counted(tokens, 'token')}")
        elif not name:
            return False
        elif what == "fork":
            table, tokens = self.tables[name]
            self._enter(table.fork(), tokens, f"is forked from {name}")
        elif what == "write":
            return self._write(name, self.random.randint(1, 5))
        else:
            self.tables.pop(name)[0].release()
            self.told.append(f"{name} ends")
        return True

    def _enter(self, table: BlockTable, tokens: int, how: str) -> None:
        name = "ABCDEFGH"[sum(" ends" not in line and " writes" not in line for line in self.told)]
        self.tables[name] = table, tokens
        self.told.append(f"{name} {how}")

    def _write(self, name: str, count: int) -> bool:
        table, tokens = self.tables[name]
        shared = table.shared_indexes(tokens, tokens + count)
        if len(shared) + table.blocks_needed(tokens + count) > self.pool.num_free:
            return False
        for index in shared:
            table.copy_on_write(index)
            self.copies += 1
        table.grow(tokens + count)
        self.tables[name] = table, tokens + count
        self.told.append(f"{name} writes {counted(count, 'token')}")
        return True


def trace_by_hand(random: Random) -> tuple[str, str]:
    """Eight operations on a pool: tables, reference counts, free queue. The first part of the assessment (`book/teaching.md`)."""
    hand, left, tries = _Hand(random), [*EIGHT], 0
    while left or not hand.copies:
        if not left or (tries := tries + 1) > 60:           # no copy in it, or no room for what is left to do: from the beginning
            hand, left, tries = _Hand(random), [*EIGHT], 0
        what = left[0] if len(left) == len(EIGHT) else random.choice(left)
        if hand.do(what):
            left.remove(what)
    told = "\n".join(f"{i}. {line}" for i, line in enumerate(hand.told, 1))
    problem = (
        f"12 blocks, B = 4, all free: 0, 1, 2, ... Whoever ends gives its blocks back last one first, to the end of the queue. A fork shares all "
        f"blocks; a shared one is copied when somebody writes to it.\n{told}\nTables, reference counts, and the free queue, next one first?"
    )
    tables = "; ".join(f"{name} {table.blocks}" for name, (table, _) in hand.tables.items())
    counts = ", ".join(f"{block}: {count}" for block, count in enumerate(hand.pool.ref_counts) if count)
    return problem, f"tables {tables}\ncounts {counts}\nfree {hand.pool.free_blocks()}"


DRILLS: dict[str, Drill] = {
    "01.units": units, "03.blocks": blocks_of_a_request, "06.copies": copies_of_a_fork, "06.trace": trace_by_hand, "07.hits": cached_tokens,
}
"""Name -> drill; every exercise is a drill as well."""
