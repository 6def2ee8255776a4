"""Exercise 04.a's cases, its judge `reference.attend`, and the typical wrong ways to attend through a block table."""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from .exercise import Case, Function
from .guard import NoAnswerError
from .readers import Reader, kind_of

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


def attend_fixed() -> Sequence[Case]:
    random = Random("04.a")
    sizes = [(2, 1), (2, 2), (2, 3), (2, 4), (2, 5), (4, 3), (4, 4), (4, 5), (4, 7), (4, 8), (4, 9)]
    return [*(attention_case(random, *size) for size in sizes), attention_case(random, 2, 6, True), attention_case(random, 2, 5, True)]


def draw_attention(random: Random) -> Case:
    size = random.choice((2, 3, 4))
    prefill = random.random() < 0.3
    return attention_case(random, size, random.randint(1, 6 if prefill else 3 * size + 1), prefill)


def attend_drive(function: Function, args: tuple[Any, ...], read: Reader) -> Any:
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


def tell_attention(case: Case) -> str:
    rows, table, pool_k, pool_v = case.args
    queries = f"q={rows[0][0]}, L={rows[0][1]}"
    if len(rows) > 1:
        queries = f"a whole prompt, one call a token, L = 1 to {rows[-1][1]}: q = {', '.join(str(query) for query, _ in rows)}"
    return f"attend: {queries}\n  table={table}\n  pool_k={_compact(pool_k)}\n  pool_v={_compact(pool_v)}"


def _compact(pool: Any) -> str:
    return str(pool).replace(" ", "").replace("[nan,nan]", "nan")


def say_rows(value: Any) -> str:
    rows = ["[" + ", ".join(f"{x:.3f}" for x in row) + "]" for row in value]
    return ", ".join(rows)


Blocks = Iterator[tuple[Numbers, Numbers]]


def visited(table: Sequence[int], pool_k: Numbers, pool_v: Numbers, length: int) -> Blocks:
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


def attend_over(choose: Callable[[Sequence[int], Numbers, Numbers, int], Blocks], scale: float | None = None) -> Function:
    """Exact attention over the wrong tokens, or with the wrong scale."""
    return lambda q, table, pool_k, pool_v, L: _softmax(q, *_joined(choose(table, pool_k, pool_v, L)), scale)


def averaged(q: Numbers, table: list[int], pool_k: Numbers, pool_v: Numbers, L: int) -> Numbers:
    results = [_softmax(q, k, v) for k, v in visited(table, pool_k, pool_v, L)]
    return sum(results[1:], results[0]) / len(results)


def online(rescale_l: bool, rescale_acc: bool, divide: bool = True) -> Function:
    """The loop, with a part of it left out."""

    def wrong(q: Numbers, table: list[int], pool_k: Numbers, pool_v: Numbers, L: int) -> Numbers:
        m, total, acc = -math.inf, 0.0, np.zeros(len(q))
        for k, v in visited(table, pool_k, pool_v, L):
            scores = k @ q / math.sqrt(len(q))
            larger = max(m, float(scores.max()))
            kept, weights, m = math.exp(m - larger), np.exp(scores - larger), larger
            total = total * (kept if rescale_l else 1.0) + float(weights.sum())
            acc = acc * (kept if rescale_acc else 1.0) + weights @ v
        return acc / total if divide else acc

    return wrong


def whole_blocks(table: Sequence[int], pool_k: Numbers, pool_v: Numbers, L: int) -> Blocks:
    size = pool_k.shape[1]
    return visited(table, pool_k, pool_v, -(-L // size) * size)


def scores_only(q: Numbers, table: list[int], pool_k: Numbers, pool_v: Numbers, L: int) -> Numbers:
    """A mask on the scores of all slots of the table, and none on the values."""
    k, v = pool_k[table].reshape(-1, len(q)), pool_v[table].reshape(-1, len(q))
    scores = np.where(np.arange(len(k)) < L, k @ q / math.sqrt(len(q)), -np.inf)
    weights = np.exp(scores - scores.max())
    result: Numbers = weights @ v / weights.sum()
    return result


def remainder(q: Numbers, table: list[int], pool_k: Numbers, pool_v: Numbers, L: int) -> Numbers:
    """L % B tokens of the last block: none of a full one."""
    size = pool_k.shape[1]
    full, rest = divmod(L, size)
    if not rest:
        full -= 1
    if not full and not rest:
        return np.zeros(len(q))
    return _softmax(q, *_joined(visited(table, pool_k, pool_v, full * size + rest)))
