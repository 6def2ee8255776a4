"""Exercises of lesson 04: attention through a block table, and what a kernel may load. Judged by `reference.attend` and `BlockTable.slot`."""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from ...core.block_pool import BlockPool
from ...core.block_table import BlockTable
from .exercise import Case, Exercise, Function, Misconception
from .guard import NoAnswerError
from .readers import Reader, integer, kind_of, list_of, optional

Numbers = npt.NDArray[np.float64]
Row = tuple[list[float], int]
"""A query and how many tokens it sees."""

TOLERANCE = 1e-4
"""How far two right answers may be apart: float32 is right as well."""


class Close(list[float]):
    """Numbers that equal others when none is further off than `TOLERANCE`; NaN equals NaN."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list) and len(self) == len(other) and np.allclose(self, other, rtol=0, atol=TOLERANCE, equal_nan=True)

    __hash__ = None


def vector(value: Any) -> Close:
    """A vector of floats: an array, a tensor, a list or a tuple."""
    try:
        found = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value, dtype=np.float64)
    except (TypeError, ValueError):
        raise NoAnswerError(f"it returned {kind_of(value)}, and a vector of numbers was wanted") from None
    if found.ndim != 1:
        shape = "a single number" if not found.ndim else f"an array of shape {found.shape}"
        raise NoAnswerError(f"it returned {kind_of(value) if value is None else shape}, and a vector as long as q was wanted")
    return Close(found.tolist())


# -- a: attention through a table --------------------------------------------------------------------------------------------------------
def attention_case(random: Random, size: int, length: int, prefill: bool = False, head_dim: int = 2) -> Case:
    """Random numbers in the blocks of a random table, NaN in every slot that was never written; one query, or those of a whole prompt."""
    blocks = -(-length // size)
    table = random.sample(range(blocks + 1), blocks)

    def numbers(count: int) -> list[list[float]]:
        return [[round(random.uniform(-3, 3), 1) for _ in range(head_dim)] for _ in range(count)]

    pools = []
    for tokens in (numbers(length), numbers(length)):
        pool = [[[math.nan] * head_dim for _ in range(size)] for _ in range(blocks + 1)]
        for position, token in enumerate(tokens):
            pool[table[position // size]][position % size] = token
        pools.append(pool)
    rows = list(zip(numbers(length), range(1, length + 1))) if prefill else [(numbers(1)[0], length)]
    return Case((rows, table, *pools), _reference(rows, table, *pools))


def _reference(rows: Sequence[Row], table: list[int], pool_k: Any, pool_v: Any) -> list[Close]:
    """What `reference.attend` gives for these queries, the last ones of the sequence."""
    import torch

    from ...attention.metadata import AttentionMetadata
    from ...attention.reference import attend

    count, length = len(rows), rows[-1][1]
    cache = tuple(torch.tensor(pool, dtype=torch.float64)[:, None] for pool in (pool_k, pool_v))
    q = torch.tensor([query for query, _ in rows], dtype=torch.float64)[:, None]
    meta = AttentionMetadata(
        slot_mapping=torch.full((count,), -1), query_start_loc=torch.tensor([0, count], dtype=torch.int32),
        seq_lens=torch.tensor([length], dtype=torch.int32), block_tables=torch.tensor([table], dtype=torch.int32), block_size=len(pool_k[0]),
        host_query_start_loc=(0, count), host_seq_lens=(length,), max_query_len=count, max_seq_len=length, all_written=False,
    )
    out = attend(q, torch.zeros_like(q), torch.zeros_like(q), cache, meta, None, 1 / math.sqrt(q.shape[-1]))
    return [Close(row.tolist()) for row in out[:, 0]]


def _attend_fixed() -> Sequence[Case]:
    random = Random("04.a")
    sizes = [(2, 1), (2, 2), (2, 3), (2, 4), (2, 5), (4, 3), (4, 4), (4, 5), (4, 7), (4, 8), (4, 9)]
    return [*(attention_case(random, *size) for size in sizes), attention_case(random, 2, 6, True), attention_case(random, 2, 5, True)]


def _draw_attention(random: Random) -> Case:
    size = random.choice((2, 3, 4))
    prefill = random.random() < 0.3
    return attention_case(random, size, random.randint(1, 6 if prefill else 3 * size + 1), prefill)


def _attend_drive(function: Function, args: tuple[Any, ...], read: Reader) -> Any:
    rows, table, pool_k, pool_v = args
    answers = []
    for query, length in rows:
        given = np.array(query), list(table), np.array(pool_k), np.array(pool_v)
        answers.append(read(function(*given, length)))
        if list(given[1]) != table or any(not np.array_equal(x, y, equal_nan=True) for x, y in zip(given[2:], (pool_k, pool_v))):
            raise NoAnswerError("it changes its arguments: other requests read the same pool")
        if len(answers[-1]) != len(query):
            raise NoAnswerError(f"it returned {len(answers[-1])} numbers, and q has {len(query)}")
    return answers


def _tell_attention(case: Case) -> str:
    rows, table, pool_k, pool_v = case.args
    queries = f"q={rows[0][0]}, L={rows[0][1]}"
    if len(rows) > 1:
        queries = f"a whole prompt, one call a token, L = 1 to {rows[-1][1]}: q = {', '.join(str(query) for query, _ in rows)}"
    return f"attend: {queries}\n  table={table}\n  pool_k={_compact(pool_k)}\n  pool_v={_compact(pool_v)}"


def _compact(pool: Any) -> str:
    return str(pool).replace(" ", "").replace("[nan,nan]", "nan")


def _say_rows(value: Any) -> str:
    rows = ["[" + ", ".join(f"{x:.3f}" for x in row) + "]" for row in value]
    return ", ".join(rows)


Blocks = Iterator[tuple[Numbers, Numbers]]


def _visited(table: Sequence[int], pool_k: Numbers, pool_v: Numbers, length: int) -> Blocks:
    """Keys and values, a block at a time, the last one cut where the sequence ends."""
    size = pool_k.shape[1]
    for logical in range(-(-length // size)):
        count = min(size, length - logical * size)
        yield pool_k[table[logical], :count], pool_v[table[logical], :count]


def _softmax(q: Numbers, k: Numbers, v: Numbers, scale: float | None = None) -> Numbers:
    scores = k @ q * (1 / math.sqrt(len(q)) if scale is None else scale)
    weights = np.exp(scores - scores.max())
    result: Numbers = weights @ v / weights.sum()
    return result


def _joined(blocks: Blocks) -> tuple[Numbers, Numbers]:
    keys, values = zip(*blocks)
    return np.concatenate(keys), np.concatenate(values)


def _of(choose: Callable[[Sequence[int], Numbers, Numbers, int], Blocks], scale: float | None = None) -> Function:
    """Exact attention over the wrong tokens, or with the wrong scale."""
    return lambda q, table, pool_k, pool_v, L: _softmax(q, *_joined(choose(table, pool_k, pool_v, L)), scale)


def _averaged(q: Numbers, table: list[int], pool_k: Numbers, pool_v: Numbers, L: int) -> Numbers:
    results = [_softmax(q, k, v) for k, v in _visited(table, pool_k, pool_v, L)]
    return sum(results[1:], results[0]) / len(results)


def _online(rescale_l: bool, rescale_acc: bool, divide: bool = True) -> Function:
    """The loop, with a part of it left out."""

    def wrong(q: Numbers, table: list[int], pool_k: Numbers, pool_v: Numbers, L: int) -> Numbers:
        m, total, acc = -math.inf, 0.0, np.zeros(len(q))
        for k, v in _visited(table, pool_k, pool_v, L):
            scores = k @ q / math.sqrt(len(q))
            larger = max(m, float(scores.max()))
            kept, weights, m = math.exp(m - larger), np.exp(scores - larger), larger
            total = total * (kept if rescale_l else 1.0) + float(weights.sum())
            acc = acc * (kept if rescale_acc else 1.0) + weights @ v
        return acc / total if divide else acc

    return wrong


def _whole_blocks(table: Sequence[int], pool_k: Numbers, pool_v: Numbers, L: int) -> Blocks:
    size = pool_k.shape[1]
    return _visited(table, pool_k, pool_v, -(-L // size) * size)


def _scores_only(q: Numbers, table: list[int], pool_k: Numbers, pool_v: Numbers, L: int) -> Numbers:
    """A mask on the scores of all slots of the table, and none on the values."""
    k, v = pool_k[table].reshape(-1, len(q)), pool_v[table].reshape(-1, len(q))
    scores = np.where(np.arange(len(k)) < L, k @ q / math.sqrt(len(q)), -np.inf)
    weights = np.exp(scores - scores.max())
    result: Numbers = weights @ v / weights.sum()
    return result


def _remainder(q: Numbers, table: list[int], pool_k: Numbers, pool_v: Numbers, L: int) -> Numbers:
    """L % B tokens of the last block: none of a full one."""
    size = pool_k.shape[1]
    full, rest = divmod(L, size)
    if not rest:
        full -= 1
    if not full and not rest:
        return np.zeros(len(q))
    return _softmax(q, *_joined(_visited(table, pool_k, pool_v, full * size + rest)))


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
        fixed=_attend_fixed,
        draw=_draw_attention,
        drive=_attend_drive,
        tell=_tell_attention,
        say=_say_rows,
        misconceptions=(
            Misconception(
                "you take a softmax in each block and average the results: a block with large scores must weigh more than one with small ones.",
                _averaged,
            ),
            Misconception(
                "you do not rescale: when m grows, l and acc were summed with weights that are too large by exp(m_new - m).", _online(False, False),
            ),
            Misconception("you rescale acc and leave l as it was: both were summed with the old m.", _online(False, True)),
            Misconception("you rescale l and leave acc as it was: both were summed with the old m.", _online(True, False)),
            Misconception("you return acc: it is still to be divided by l, the sum of the weights.", _online(True, True, divide=False)),
            Misconception(
                "slots from L on get in: read L tokens, and not whole blocks.", _of(_whole_blocks),
            ),
            Misconception(
                "you take the scores from L on away, and their values still get in: 0 times NaN is NaN. Leave them out of the values too.",
                _scores_only,
            ),
            Misconception(
                "you take `L % B` tokens of the last block. When it is full that is 0, and the block is lost.", _remainder,
            ),
            Misconception(
                "you did not look into the table: the pool's first blocks may be anybody's.",
                _of(lambda table, k, v, L: _visited(range(len(k)), k, v, L)),
            ),
            Misconception(
                "you read the blocks in the order of the pool. If the table has another, a query sees tokens after it, or the wrong block is cut.",
                _of(lambda table, k, v, L: _visited(sorted(table), k, v, L)),
            ),
            Misconception(
                "you attend to the last block only: PagedAttention drops nothing.",
                _of(lambda table, k, v, L: iter(list(_visited(table, k, v, L))[-1:])),
            ),
            Misconception("the scores are not scaled: divide q · k by √d.", _of(_visited, 1.0)),
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
