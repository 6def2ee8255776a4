"""Exercises of lesson 04: attention through a block table (`attending.py` has its cases), and what a kernel may load (`BlockTable.slot` judges)."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from ...core.block_pool import BlockPool
from ...core.block_table import BlockTable
from .attending import (
    attend_drive,
    attend_fixed,
    attend_over,
    averaged,
    draw_attention,
    online,
    remainder,
    say_rows,
    scores_only,
    tell_attention,
    vector,
    visited,
    whole_blocks,
)
from .exercise import Case, Exercise, Function, Misconception
from .readers import integer, list_of, optional


# -- b: what a kernel may load -------------------------------------------------------------------------------------------------------------
def _lanes_case(start: int, tile: int, length: int, size: int, extra: int = 0, seed: int = 0) -> Case:
    """``extra`` blocks more in the table than hold tokens: room for what will be written next."""
    blocks = -(-length // size) + extra
    pool = BlockPool(blocks + 2)
    pool.allocate(blocks + 2)
    for block in Random(seed).sample(range(blocks + 2), blocks + 2):
        pool.free([block])
    table = BlockTable(pool, size)
    table.grow(blocks * size)
    want = [table.slot(t) if t < length else None for t in range(start, start + tile)]
    return Case((start, tile, list(table.blocks), size, length), want)


def _lanes_fixed() -> Sequence[Case]:
    return [_lanes_case(*args) for args in (
        (0, 4, 4, 4), (0, 4, 3, 4), (0, 4, 1, 4, 1), (4, 4, 7, 4), (4, 4, 8, 4), (4, 4, 5, 4, 1), (0, 8, 6, 4, 1), (8, 8, 9, 4, 0, 3),
        (0, 8, 5, 2, 1, 4), (0, 4, 4, 16, 0, 5), (4, 4, 6, 16, 0, 6),
    )]


def _draw_lanes(random: Random) -> Case:
    size, tile = random.choice((2, 4, 8)), random.choice((4, 8))
    length = random.randint(1, 3 * tile)
    start = tile * random.randint(0, (length - 1) // tile)
    return _lanes_case(start, tile, length, size, random.randint(0, 1), random.randint(0, 10**6))


def _lanes(there: Callable[..., bool], where: Callable[..., int] | None = None) -> Function:
    """`lanes` with another mask, ``there(t, lane, start, table, B, L)``, or another slot."""

    def wrong(start: int, tile: int, table: list[int], B: int, L: int) -> list[int | None]:
        found: list[int | None] = []
        for lane in range(tile):
            t = start + lane
            if not there(t, lane, start, table, B, L):
                found.append(None)
            else:
                found.append(where(t, lane, start, table, B) if where else table[t // B] * B + t % B)
        return found

    return wrong


def _only_full_tiles(start: int, tile: int, table: list[int], B: int, L: int) -> list[int | None]:
    return [table[t // B] * B + t % B if start + tile <= L else None for t in range(start, start + tile)]


def _in_sequence(t: int, lane: int, start: int, table: list[int], B: int, L: int) -> bool:
    return t < L


EXERCISES = (
    Exercise(
        name="04.a",
        title="Attention through a table",
        signature="attend(q, table, pool_k, pool_v, L)",
        statement=(
            "One head's attention for one query, by online softmax: `q` is an array `[d]`, `pool_k` and `pool_v` are arrays `[num_blocks, B, d]`, "
            "`table` is the block table, and the query sees the first `L` tokens. Scores are q · k / √d. Return an array `[d]`. Slots from `L` on "
            "were never written and hold NaN."
        ),
        hints=(
            "Visit one block after the other and carry three things on: the largest score m, the sum of weights l, the weighted sum acc. At the end, "
            "acc / l.",
            "Logical block i holds positions i·B to i·B + B - 1, of which those below `L` exist: `n = min(B, L - i * B)` tokens. Cut keys *and* "
            "values to `[:n]`: a weight of 0 times NaN is NaN.",
            "for each block: s = k[:n] @ q / sqrt(d); m_new = max(m, s.max()); kept = exp(m - m_new); w = exp(s - m_new); l = l * kept + w.sum(); "
            "acc = acc * kept + w @ v[:n]; m = m_new",
        ),
        judge="`reference.attend`",
        passed="m, l and acc are all that goes from block to block, however long the context is. That is why a kernel can do it in registers.",
        read=vector,
        fixed=attend_fixed,
        draw=draw_attention,
        drive=attend_drive,
        tell=tell_attention,
        say=say_rows,
        misconceptions=(
            Misconception(
                "you take a softmax in each block and average the results: a block with large scores must weigh more than one with small ones.",
                averaged,
            ),
            Misconception(
                "you do not rescale: when m grows, l and acc were summed with weights that are too large by exp(m_new - m).", online(False, False),
            ),
            Misconception("you rescale acc and leave l as it was: both were summed with the old m.", online(False, True)),
            Misconception("you rescale l and leave acc as it was: both were summed with the old m.", online(True, False)),
            Misconception("you return acc: it is still to be divided by l, the sum of the weights.", online(True, True, divide=False)),
            Misconception(
                "slots from L on get in: read L tokens, and not whole blocks.", attend_over(whole_blocks),
            ),
            Misconception(
                "you take the scores from L on away, and their values still get in: 0 times NaN is NaN. Leave them out of the values too.",
                scores_only,
            ),
            Misconception(
                "you take `L % B` tokens of the last block. When it is full that is 0, and the block is lost.", remainder,
            ),
            Misconception(
                "you did not look into the table: the pool's first blocks may be anybody's.",
                attend_over(lambda table, k, v, L: visited(range(len(k)), k, v, L)),
            ),
            Misconception(
                "you read the blocks in the order of the pool. If the table has another, a query sees tokens after it, or the wrong block is cut.",
                attend_over(lambda table, k, v, L: visited(sorted(table), k, v, L)),
            ),
            Misconception(
                "you attend to the last block only: PagedAttention drops nothing.",
                attend_over(lambda table, k, v, L: iter(list(visited(table, k, v, L))[-1:])),
            ),
            Misconception("the scores are not scaled: divide q · k by √d.", attend_over(visited, 1.0)),
        ),
    ),
    Exercise(
        name="04.b",
        title="What a tile may load",
        signature="lanes(start, tile, table, B, L)",
        statement=(
            "A turn of rung 1 takes `tile` tokens, from position `start` on, one a lane. Return a list with one entry a lane: the slot that it "
            "loads, or `None` if it must not load. The sequence has `L` tokens; its table may have a block more, for tokens that are still to come."
        ),
        hints=(
            "Two questions a lane: which position is mine, and does it exist? Only then: where is it?",
            "Lane i has position `start + i`. It exists if it is below `L`; the block's size has nothing to do with that. Where it is, 03.a said.",
            "for i in range(tile): t = start + i; append table[t // B] * B + t % B if t < L, else None",
        ),
        judge="`BlockTable.slot`",
        passed="`there = t < seq_len`: that line of the kernel masks table, keys and values, and it is all that keeps garbage out.",
        read=list_of(optional(integer), "a list of slots and None"),
        fixed=_lanes_fixed,
        draw=_draw_lanes,
        misconceptions=(
            Misconception(
                "you ask whether the offset is inside its block (offset < B): it always is. What counts is whether the *token* exists: t < L.",
                _lanes(lambda t, lane, start, table, B, L: t // B < len(table)),
            ),
            Misconception(
                "you ask whether the *block* holds a token: the last one holds some, and garbage after them.",
                _lanes(lambda t, lane, start, table, B, L: t // B < -(-L // B)),
            ),
            Misconception("position L is one past the last token.", _lanes(lambda t, lane, start, table, B, L: t <= L and t // B < len(table))),
            Misconception(
                "you compare the lane with L; its position is start + lane.",
                _lanes(lambda t, lane, start, table, B, L: lane < L and t // B < len(table)),
            ),
            Misconception(
                "you leave out a tile that is not full: its tokens before L are then never read.",
                _only_full_tiles,
            ),
            Misconception(
                "one look into the table for the whole tile: a tile has nothing to do with a block, its tokens may lie in several.",
                _lanes(_in_sequence, lambda t, lane, start, table, B: table[start // B] * B + start % B + lane),
            ),
            Misconception(
                "you did not look into the table: a position is not a slot.", _lanes(_in_sequence, lambda t, lane, start, table, B: t),
            ),
            Misconception(
                "you count positions within the tile: lane i has position start + i, in logical block (start + i) // B.",
                _lanes(_in_sequence, lambda t, lane, start, table, B: table[lane // B] * B + lane % B),
            ),
        ),
    ),
)
