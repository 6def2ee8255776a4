"""The reference backend against attention written from its definition: any block size, batch mix, head grouping, window and placement."""
from __future__ import annotations

import itertools

import pytest
import torch
from batches import Pager, dense_attention
from torch import Tensor

from paged_edu.attention.cache import KVCache
from paged_edu.attention.metadata import build_input
from paged_edu.attention.reference import attend, page_tables, read

SCALE = 0.7  # with normal q and k: attention far from uniform
D = 8


def qkv(n: int, heads: int, kv_heads: int, seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(n, h, D, generator=g, dtype=torch.float64) * 2 for h in (heads, kv_heads, kv_heads))
    return q.to(dtype), k.to(dtype), v.to(dtype)


def run(
    sequences: list[tuple[Tensor, Tensor, Tensor]], plan: list[dict[int, int]], block_size: int, window: int | None = None,
    seed: int | None = 0, poison: float = float("nan"),
) -> tuple[list[Tensor], KVCache, Pager]:
    """Run the steps of ``plan`` (sequence -> tokens in this step) and return each sequence's outputs, ``[n, num_heads, head_dim]``."""
    kv_heads, dtype = sequences[0][1].shape[1], sequences[0][0].dtype
    num_blocks = sum(-(-q.shape[0] // block_size) for q, _, _ in sequences) + 3
    cache = KVCache(1, num_blocks, kv_heads, block_size, D, dtype, "cpu").fill_(poison)
    pager = Pager(num_blocks, block_size, seed)
    outputs: list[list[Tensor]] = [[] for _ in sequences]
    for step in plan:
        scheduled = [pager.schedule(i, [0] * n) for i, n in step.items()]
        meta = build_input(scheduled, block_size, "cpu").meta
        q, k, v = (torch.cat([sequences[s.seq_id][j][s.start : s.seq_len] for s in scheduled]) for j in range(3))
        out = attend(q, k, v, cache[0], meta, window, SCALE)
        for s, rows in zip(scheduled, out.split([s.num_new for s in scheduled])):
            outputs[s.seq_id].append(rows)
    return [torch.cat(rows) for rows in outputs], cache, pager


def chunks(n: int, size: int) -> list[int]:
    return [min(size, n - i) for i in range(0, n, size)]


def interleaved(lengths: list[int], sizes: list[int]) -> list[dict[int, int]]:
    """Sequence i in chunks of ``sizes[i]``, all side by side: prompts, chunks and single tokens share steps."""
    rows = itertools.zip_longest(*(chunks(n, size) for n, size in zip(lengths, sizes)))
    return [{i: n for i, n in enumerate(row) if n} for row in rows]


@pytest.mark.parametrize("block_size", [1, 2, 3, 16, 64, 256])
@pytest.mark.parametrize("chunk", [1, 7, 100])
@pytest.mark.parametrize("window", [None, 1, 5, 40])
def test_one_sequence_equals_the_definition(block_size: int, chunk: int, window: int | None) -> None:
    q, k, v = qkv(37, 4, 2, seed=1)
    [out], _, _ = run([(q, k, v)], [{0: n} for n in chunks(37, chunk)], block_size, window)
    torch.testing.assert_close(out, dense_attention(q, k, v, SCALE, window), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 4), (6, 2), (6, 3), (8, 1)])
@pytest.mark.parametrize("window", [None, 6])
def test_mixed_batches_and_grouped_heads(heads: int, kv_heads: int, window: int | None) -> None:
    lengths, sizes = [19, 33, 8, 5, 1], [1, 7, 8, 2, 1]
    sequences = [qkv(n, heads, kv_heads, seed=n) for n in lengths]
    plan = interleaved(lengths, sizes)
    assert set(plan[0].values()) >= {1, 7, 8}  # decode-like, chunk and whole prompt in one step
    outputs, _, _ = run(sequences, plan, 4, window)
    for (q, k, v), out in zip(sequences, outputs):
        torch.testing.assert_close(out, dense_attention(q, k, v, SCALE, window), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 2e-5), (torch.float16, 2e-2), (torch.bfloat16, 1e-1)])
def test_smaller_types(dtype: torch.dtype, atol: float) -> None:
    q, k, v = qkv(37, 4, 2, seed=2, dtype=dtype)
    [out], _, _ = run([(q, k, v)], [{0: 20}, {0: 16}, {0: 1}], 16)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), dense_attention(q.double(), k.double(), v.double(), SCALE), rtol=0, atol=atol)


def test_placement_does_not_change_a_bit() -> None:
    lengths = [19, 33, 8]
    sequences = [qkv(n, 4, 2, seed=n, dtype=torch.float32) for n in lengths]
    plan = interleaved(lengths, [3, 7, 8])
    in_order, _, a = run(sequences, plan, 4, seed=None)
    shuffled, _, b = run(sequences, plan, 4, seed=5)
    assert a.tables != b.tables
    for x, y in zip(in_order, shuffled):
        assert torch.equal(x, y)


def test_garbage_in_unwritten_slots_never_shows() -> None:
    sequences = [qkv(n, 4, 2, seed=n) for n in (5, 9)]
    plan = [{0: 5, 1: 8}, {1: 1}]
    clean, _, _ = run(sequences, plan, 16, window=3, poison=0.0)
    for poison in (float("nan"), float("inf"), 1e300):
        dirty, cache, _ = run(sequences, plan, 16, window=3, poison=poison)
        assert any((t == poison).any() or t.isnan().any() for t in cache[0])  # there was something to leak
        for x, y in zip(clean, dirty):
            assert torch.equal(x, y)


def test_a_token_queried_again_writes_nothing_and_gives_the_same() -> None:
    q, k, v = qkv(12, 4, 2, seed=3)
    [out], cache, pager = run([(q, k, v)], [{0: 12}], 4)
    before = [t.clone() for t in cache[0]]
    again = pager.schedule(0, [0], requeried=1)
    assert (again.start, again.slots) == (11, (-1,))
    meta = build_input([again], 4, "cpu").meta
    rows = attend(q[11:], torch.full_like(k[11:], 9.0), torch.full_like(v[11:], 9.0), cache[0], meta, None, SCALE)
    torch.testing.assert_close(rows, out[11:], rtol=0, atol=1e-12)
    for t, old in zip(cache[0], before):
        assert torch.equal(t.nan_to_num(-1.0), old.nan_to_num(-1.0))


def test_sequences_that_share_blocks_see_this_steps_writes() -> None:
    """One sequence fills a block in the same step in which another, listed before it, reads it."""
    q, k, v = qkv(8, 2, 1, seed=4)
    pager = Pager(4, 4, seed=0)
    writer = pager.schedule(0, [0] * 8)
    pager.tables[1], pager.computed[1] = list(writer.block_table), 8
    reader = pager.schedule(1, [0], requeried=1)
    cache = KVCache(1, 4, 1, 4, D, torch.float64, "cpu").fill_(float("nan"))
    meta = build_input([reader, writer], 4, "cpu").meta
    out = attend(*(torch.cat([x[7:], x]) for x in (q, k, v)), cache[0], meta, None, SCALE)
    torch.testing.assert_close(out[0], dense_attention(q, k, v, SCALE)[7], rtol=0, atol=1e-12)


def test_read_returns_the_tokens_in_order() -> None:
    _, k, v = qkv(11, 2, 2, seed=5)
    _, cache, pager = run([(k, k, v)], [{0: 11}], 4)
    pages = page_tables(torch.tensor([[*pager.tables[0], 0, 0]], dtype=torch.int32), 2)[0]
    for tensor, written in zip(cache[0], (k, v)):
        assert torch.equal(read(tensor, pages, 11), written.transpose(0, 1))


def test_an_empty_batch() -> None:
    cache = KVCache(1, 2, 2, 4, D, torch.float64, "cpu")
    empty = torch.empty(0, 2, D, dtype=torch.float64)
    assert attend(empty, empty, empty, cache[0], build_input([], 4, "cpu").meta, None, SCALE).shape == (0, 2, D)


def test_the_tests_can_fail() -> None:
    """What a broken kernel would compute differs visibly on these inputs."""
    q, k, v = qkv(20, 4, 2, seed=6)
    [right], _, _ = run([(q, k, v)], [{0: 20}], 4, window=5)
    no_window = dense_attention(q, k, v, SCALE)
    window_off_by_one = dense_attention(q, k, v, SCALE, window=6)
    wrong_heads = dense_attention(q, k[:, [1, 0]], v[:, [1, 0]], SCALE, window=5)
    interleaved_heads = dense_attention(q, k[:, [0, 1, 0, 1]], v[:, [0, 1, 0, 1]], SCALE, window=5)
    wrong_scale = dense_attention(q, k, v, D**-0.5, window=5)
    uniform = dense_attention(q * 0, k, v, SCALE, window=5)
    for broken in (no_window, window_off_by_one, wrong_heads, interleaved_heads, wrong_scale, uniform):
        assert (right - broken).abs().max() > 0.1


def test_bad_arguments_are_refused() -> None:
    q, k, v = qkv(3, 4, 3, seed=7)
    with pytest.raises(ValueError, match="4 query heads can't share 3 KV heads"):
        run([(q, k, v)], [{0: 3}], 4)
    q, k, v = qkv(3, 4, 2, seed=7)
    with pytest.raises(ValueError, match="at least 1 token, not 0"):
        run([(q, k, v)], [{0: 3}], 4, window=0)
