"""Exercises of lesson 03: from a position to a slot, and all or nothing. Judged by `BlockTable`, `BlockPool` and `PagedKVManager.status`."""
from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from ...core.block_pool import BlockPool
from ...core.block_table import BlockTable
from ...core.kv_manager import AllocStatus
from ...core.paged import PagedKVManager
from ...core.sequence import Request
from .exercise import Case, Exercise, Function, Misconception
from .guard import NoAnswerError
from .readers import Reader, integer, list_of, unless, word


def _slot_case(table: list[int], pos: int, B: int) -> Case:
    return Case((table, pos, B), BlockTable(BlockPool(max(table) + 1), B, list(table)).slot(pos))


def _slot_fixed() -> Sequence[Case]:
    return [_slot_case([5], 0, 4), _slot_case([5], 3, 4), *(_slot_case([7, 1, 3], pos, 4) for pos in (2, 6, 7, 8)), _slot_case([2, 9, 4], 2, 1)]


def _draw_slot(random: Random) -> Case:
    B = random.choice((1, 2, 3, 4, 8, 16))
    table = random.sample(range(12), random.randint(1, 5))
    return _slot_case(table, random.randrange(len(table) * B), B)


def _allocate_case(pool: BlockPool, n: int) -> Case:
    """What the manager would answer to a prompt of ``n`` blocks of one token, and what the pool does."""
    before = pool.free_blocks()
    manager = PagedKVManager(pool.num_blocks, 1)
    manager.pool = pool
    status = manager.status(Request("A", tuple(range(n)))) if n else AllocStatus.OK
    blocks = pool.allocate(n) if status is AllocStatus.OK else None
    return Case((before, pool.num_blocks, n), (blocks if blocks is not None else str(status), pool.free_blocks()))


def _used(num_blocks: int, taken: Sequence[int], back: Sequence[int] = ()) -> BlockPool:
    """A pool of which the first ``taken`` allocations are made and those numbered ``back`` are given back."""
    pool = BlockPool(num_blocks)
    held = [pool.allocate(count) or [] for count in taken]
    for i in back:
        pool.free(held[i])
    return pool


def _allocate_fixed() -> Sequence[Case]:
    return [
        _allocate_case(_used(4, [1]), 1), _allocate_case(_used(4, [1]), 3), _allocate_case(_used(4, [1]), 4), _allocate_case(_used(4, [1]), 5),
        _allocate_case(_used(4, []), 4), _allocate_case(_used(6, [2, 1, 2], [0]), 2), _allocate_case(_used(3, [3]), 1),
        _allocate_case(_used(3, [1]), 0),
    ]


def _draw_allocate(random: Random) -> Case:
    counts = [random.randint(1, 3) for _ in range(3)]
    pool = _used(sum(counts) + random.randint(0, 3), counts, random.sample(range(3), random.randint(0, 3)))
    return _allocate_case(pool, random.randint(0, pool.num_blocks + 2))


def _allocate_drive(function: Function, args: tuple[Any, ...], read: Reader) -> Any:
    """The answer, and what is left in ``free``."""
    free, num_blocks, n = args
    answer = read(function(free, num_blocks, n))
    if not isinstance(free, list) or not all(type(block) is int for block in free):
        raise NoAnswerError("it puts something that is no block id into `free`")
    return answer, list(free)


def _say_allocate(value: Any) -> str:
    answer, free = value
    return f"{answer!r}, and free is {free!r} afterwards"


def _pop_first(free: list[int], num_blocks: int, n: int) -> Any:
    if n > num_blocks:
        return "never"
    blocks: list[int] = []
    while len(blocks) < n:
        if not free:
            return "later"
        blocks.append(free.pop(0))
    return blocks


def _pop_and_crash(free: list[int], num_blocks: int, n: int) -> Any:
    return "never" if n > num_blocks else [free.pop(0) for _ in range(n)]


def _by(later: bool, never: str, take: str) -> Any:
    """`allocate` with a wrong limit or a wrong way of taking."""

    def wrong(free: list[int], num_blocks: int, n: int) -> Any:
        if n > (len(free) if never == "free" else num_blocks) and never != "no":
            return "never"
        if n > len(free) and later:
            return "later"
        blocks = free[len(free) - n :][::-1] if take == "tail" else free[:n]
        if take == "tail":
            del free[len(free) - n :]
        elif take != "keep":
            del free[:n]
        return blocks

    return wrong


EXERCISES = (
    Exercise(
        name="03.a",
        title="From position to slot",
        signature="slot(table, pos, B)",
        statement=(
            "`table` is a block table: `table[i]` is the physical block of logical block i. Return the slot of position `pos` when blocks have `B` "
            "slots. "
            "With `table = [7, 1, 3]` and B = 4, position 2 is in slot 30."
        ),
        hints=(
            "A position is a page number and a place on the page, like page 2, line 3 of a book whose pages are stored out of order.",
            "`divmod(pos, B)` gives both. Look into `table` with the first.",
            "split `pos` by `B` into quotient and remainder; look the quotient up in `table`; that block's first slot is its number times `B`; go "
            "on by the remainder",
        ),
        judge="BlockTable.slot",
        passed=(
            "That division with remainder is the whole of paging. The engine does it in Python for a step's new tokens, its kernels on the device "
            "for all others."
        ),
        read=integer,
        fixed=_slot_fixed,
        draw=_draw_slot,
        misconceptions=(
            Misconception(
                "that is contiguous thinking: you went on from the first block. Position 6 lies in the second block of the table, wherever that is.",
                lambda table, pos, B: table[0] * B + pos,
            ),
            Misconception("you exchanged quotient and remainder.", lambda table, pos, B: table[pos % B] * B + pos // B),
            Misconception(
                "you added the offset to the block's *number*; the block begins at slot number times B.",
                lambda table, pos, B: table[pos // B] + pos % B,
            ),
            Misconception("you found the block and left out the place in it: add the offset.", lambda table, pos, B: table[pos // B] * B),
            Misconception("that is the physical block; the slot is a place in it.", lambda table, pos, B: table[pos // B]),
            Misconception("you did not look into the table: a position is not a slot.", lambda table, pos, B: pos),
            Misconception("you count positions from 1; they begin at 0.", lambda table, pos, B: table[(pos - 1) // B] * B + (pos - 1) % B),
        ),
    ),
    Exercise(
        name="03.b",
        title="All or nothing",
        signature="allocate(free, num_blocks, n)",
        statement=(
            "`free` lists the free blocks of a pool of `num_blocks`, next one first. Take `n` blocks out of it and return them; or return "
            '`"later"` when there are too few now, `"never"` when even the empty pool has too few, and leave `free` as it is. With 4 blocks, '
            "1 of them used: 4 is later and 3 blocks are still free; 5 is never. (`AllocStatus.LATER` and `AllocStatus.NEVER` will do.)"
        ),
        hints=(
            "Decide first, take afterwards. Half an allocation helps nobody, and its blocks are lost.",
            "Two different limits: `len(free)` is what there is now, `num_blocks` what there ever can be.",
            "if not even the whole pool would do: never; if what is free will not do: later; otherwise note the first n of `free`, remove them "
            "from that very list (a shortened copy would leave the caller's as it was), and return them",
        ),
        judge="BlockPool and PagedKVManager.status",
        passed="LATER promises that waiting helps; NEVER that it does not, so the request is refused at the door. Neither costs a block.",
        read=unless(word("later", "never"), list_of(integer, "a list of block ids")),
        fixed=_allocate_fixed,
        draw=_draw_allocate,
        drive=_allocate_drive,
        say=_say_allocate,
        misconceptions=(
            Misconception(
                "you take blocks before you find that there are too few: asked for 4, three free blocks are lost. That is a leak.",
                _pop_first,
            ),
            Misconception(
                "you take blocks before you find that there are too few, and then fail: the blocks that you took are lost.",
                _pop_and_crash,
            ),
            Misconception(
                "whoever asks for more than the pool has waits for ever in your answer: that is NEVER, not LATER.", _by(True, "no", "head"),
            ),
            Misconception(
                "you answer NEVER when there are too few blocks *now*. Others will give theirs back: that is LATER.", _by(True, "free", "head"),
            ),
            Misconception("you hand out what there is when it is too little. A request with half its blocks cannot run.", _by(False, "pool", "head")),
            Misconception("you take from the end of the queue. Blocks are handed out from its head.", _by(True, "pool", "tail")),
            Misconception("you hand the blocks out and leave them in `free`: the next request gets the same ones.", _by(True, "pool", "keep")),
        ),
    ),
)
