"""`attention.triton.attend` against `reference.attend` and float64, through the same plans: what the engine calls, with no engine around it."""
from __future__ import annotations

import itertools
import math

import pytest
import torch
from batches import Pager, dense_attention
from ladder import ATOL, DEVICE, NAN
from torch import Tensor

from paged_edu.attention import reference, triton
from paged_edu.attention.cache import KVCache
from paged_edu.attention.metadata import build_input

D = 16
SCALE = 1.5 / math.sqrt(D)
Sequences = list[tuple[Tensor, Tensor, Tensor]]


def qkv(n: int, heads: int, kv_heads: int, seed: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(n, h, D, generator=g).to(dtype).to(DEVICE) for h in (heads, kv_heads, kv_heads))
    return q, k, v


def dense(x: tuple[Tensor, Tensor, Tensor], window: int | None = None) -> Tensor:
    q, k, v = (t.double().cpu() for t in x)
    return dense_attention(q, k, v, SCALE, window)


def run(
    attend, sequences: Sequences, plan: list[dict[int, int]], block_size: int, window: int | None = None, dtype: torch.dtype | None = None,
) -> tuple[list[Tensor], KVCache, Pager]:
    """Run the steps of ``plan`` (sequence -> tokens in this step); each sequence's outputs, the cache in ``dtype`` and who has which block."""
    num_blocks = sum(-(-len(q) // block_size) for q, _, _ in sequences) + 3
    cache = KVCache(1, num_blocks, sequences[0][1].shape[1], block_size, D, dtype or sequences[0][0].dtype, DEVICE).fill_(NAN)
    pager = Pager(num_blocks, block_size, 0)
    outputs: list[list[Tensor]] = [[] for _ in sequences]
    for step in plan:
        scheduled = [pager.schedule(i, [0] * n) for i, n in step.items()]
        q, k, v = (torch.cat([sequences[s.seq_id][j][s.start : s.seq_len] for s in scheduled]) for j in range(3))
        out = attend(q, k, v, cache[0], build_input(scheduled, block_size, DEVICE).meta, window, SCALE)
        for s, rows in zip(scheduled, out.split([s.num_new for s in scheduled])):
            outputs[s.seq_id].append(rows)
    return [torch.cat(rows) for rows in outputs], cache, pager


def interleaved(lengths: list[int], sizes: list[int]) -> list[dict[int, int]]:
    """Sequence i in chunks of ``sizes[i]``, all side by side: prompts, chunks and single tokens share steps."""
    rows = itertools.zip_longest(*([min(size, n - i) for i in range(0, n, size)] for n, size in zip(lengths, sizes)))
    return [{i: n for i, n in enumerate(row) if n} for row in rows]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8])
@pytest.mark.parametrize(("window", "block_size"), [(None, 4), (6, 16)])
def test_interleaved_chunks(window: int | None, block_size: int, dtype: torch.dtype) -> None:
    """Steps of both kinds: with a chunk of more than 8 tokens in them, and without."""
    lengths, sizes = [6, 33, 12, 5, 1], [1, 7, 11, 2, 1]
    numbers = torch.float32 if dtype == torch.int8 else dtype
    sequences = [qkv(n, 6, 2, n, numbers) for n in lengths]
    plan = interleaved(lengths, sizes)
    assert {max(step.values()) > triton.FEW_QUERIES for step in plan} == {True, False}
    ours, our_cache, _ = run(triton.attend, sequences, plan, block_size, window, dtype)
    theirs, their_cache, _ = run(reference.attend, sequences, plan, block_size, window, dtype)
    for mine, other in zip(our_cache.stacks, their_cache.stacks):
        assert torch.equal(mine.view(torch.uint8), other.view(torch.uint8))
    for x, mine, other in zip(sequences, ours, theirs):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-5 if numbers == torch.float32 else 4e-3)
        if dtype != torch.int8:
            torch.testing.assert_close(mine.double().cpu(), dense(x, window), rtol=0, atol=ATOL[dtype])


@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_whole_or_in_chunks(chunk: int) -> None:
    """23 tokens at once, or seven at a time, or each by itself."""
    x = qkv(23, 4, 2, 1)
    [out], _, _ = run(triton.attend, [x], [{0: min(chunk, 23 - i)} for i in range(0, 23, chunk)], 4)
    torch.testing.assert_close(out.double().cpu(), dense(x), rtol=0, atol=ATOL[torch.float32])


def test_a_token_queried_again_writes_nothing_and_gives_the_same() -> None:
    q, k, v = x = qkv(12, 4, 2, 3)
    [out], cache, pager = run(triton.attend, [x], [{0: 12}], 4)
    before = [t.clone() for t in cache[0]]
    again = pager.schedule(0, [0], requeried=1)
    assert (again.start, again.slots) == (11, (-1,))
    meta = build_input([again], 4, DEVICE).meta
    rows = triton.attend(q[11:], torch.full_like(k[11:], 9.0), torch.full_like(v[11:], 9.0), cache[0], meta, None, SCALE)
    torch.testing.assert_close(rows, out[11:], rtol=0, atol=1e-6)
    for t, old in zip(cache[0], before):
        assert torch.equal(t.view(torch.uint8), old.view(torch.uint8))


@pytest.mark.parametrize("length", [8, 20])
def test_sequences_that_share_blocks_see_this_steps_writes(length: int) -> None:
    """One sequence fills blocks in the same step in which another, listed before it, reads them; on rung 2 and on rung 3."""
    x = qkv(length, 2, 1, 4)
    pager = Pager(7, 4, seed=0)
    writer = pager.schedule(0, [0] * length)
    pager.tables[1], pager.computed[1] = list(writer.block_table), length
    reader = pager.schedule(1, [0], requeried=1)
    cache = KVCache(1, 7, 1, 4, D, torch.float32, DEVICE).fill_(NAN)
    meta = build_input([reader, writer], 4, DEVICE).meta
    assert (meta.max_query_len > triton.FEW_QUERIES) == (length == 20)
    out = triton.attend(*(torch.cat([t[-1:], t]) for t in x), cache[0], meta, None, SCALE)
    torch.testing.assert_close(out[0].double().cpu(), dense(x)[-1], rtol=0, atol=ATOL[torch.float32])


def test_an_empty_batch() -> None:
    cache = KVCache(1, 2, 2, 4, D, torch.float32, DEVICE)
    empty = torch.empty(0, 2, D, device=DEVICE)
    assert triton.attend(empty, empty, empty, cache[0], build_input([], 4, DEVICE).meta, None, SCALE).shape == (0, 2, D)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="4 query heads can't share 3 KV heads"):
        run(triton.attend, [qkv(3, 4, 3, 7)], [{0: 3}], 4)
    with pytest.raises(ValueError, match="at least 1 token, not 0"):
        run(triton.attend, [qkv(3, 4, 2, 7)], [{0: 3}], 4, window=0)
