"""Every rung against float64: block borders, head layouts and sizes, windows. Slots that nobody wrote hold NaN or infinity throughout."""
from __future__ import annotations

import pytest
import torch
from batches import dense_attention
from ladder import DEVICE, LATER, RUNGS, Batch, check, make

DTYPES = [torch.float32, torch.float16]


def around(*borders: int) -> list[tuple[int, int]]:
    return [(n, 1) for border in borders for n in (border - 1, border, border + 1) if n > 0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize(("block_size", "borders"), [(1, (1, 2)), (3, (3, 6)), (16, (16, 32)), (32, (32,)), (64, (64,)), (256, (256,))])
def test_lengths_around_block_borders(rung: str, block_size: int, borders: tuple[int, ...], dtype: torch.dtype) -> None:
    """At a border the table is exactly full. 32 and 64 are borders of tiles as well."""
    if rung == "naive" and DEVICE == "cpu" and block_size == 256:
        batch = make([(256, 1), (257, 1)], 1, 1, block_size=block_size, dtype=dtype, seed=block_size)
    else:
        batch = make(around(*borders), 1 if block_size > 16 else 2, 1, block_size=block_size, dtype=dtype, seed=block_size)
    check(RUNGS[rung](batch), batch)


@pytest.mark.parametrize("rung", ["tiled", "split", "unified"])
def test_lengths_around_tile_borders(rung: str) -> None:
    batch = make([*around(64, 128), (200, 1)], 6, 2, block_size=16)
    check(RUNGS[rung](batch), batch)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 3), (28, 4), (8, 2), (6, 1)])
def test_head_layouts(rung: str, heads: int, kv_heads: int, dtype: torch.dtype) -> None:
    batch = make([(5, 1), (3, 1)], heads, kv_heads, block_size=3, dtype=dtype, seed=heads)
    check(RUNGS[rung](batch), batch)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("head_dim", [16, 20, 64, 80, 96, 128, 256])
def test_head_sizes(rung: str, head_dim: int, dtype: torch.dtype) -> None:
    batch = make([(13, 1), (4, 1)], 2, 1, head_dim, 4, dtype=dtype, seed=head_dim)
    check(RUNGS[rung](batch), batch)


@pytest.mark.parametrize("rung", LATER)
@pytest.mark.parametrize("head_dim", [80, 256])
def test_large_heads_with_several_queries_and_tiles(rung: str, head_dim: int) -> None:
    batch = make([(40, 3), (70, 8), (5, 5)], 4, 2, head_dim, dtype=torch.float16)
    check(LATER[rung](batch), batch)
    check(LATER[rung](batch, window=9), batch, window=9)


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("poison", [float("inf"), float("-inf"), 1e30])
def test_what_is_in_unwritten_slots_never_shows(rung: str, poison: float) -> None:
    """NaN is in them in every other test."""
    batch = make([(5, 1), (16, 1), (17, 1)], 2, 1, poison=poison)
    assert all((t == poison).any() for t in batch.cache)
    check(RUNGS[rung](batch), batch)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rung", LATER)
@pytest.mark.parametrize("window", [1, 4, 33, 500])
def test_windows(rung: str, window: int, dtype: torch.dtype) -> None:
    batch = make([(1, 1), (3, 2), (40, 1), (70, 8), (100, 4)], 4, 2, block_size=3, dtype=dtype)
    check(LATER[rung](batch, window=window), batch, window)


def one_hot(length: int, query_len: int) -> Batch:
    """Uniform attention over values that are unit vectors: the output's nonzero channels are the positions seen."""
    batch = make([(length, query_len)], 1, 1, 16, 4)
    batch.q.zero_()
    for p in range(length):
        batch.cache[1][batch.block_tables[0, p // 4].long(), 0, p % 4] = torch.eye(16, device=DEVICE)[p]
    return batch


@pytest.mark.parametrize("rung", LATER)
def test_a_window_holds_the_token_itself_and_those_before_it(rung: str) -> None:
    """known fault B76"""
    out = LATER[rung](one_hot(11, 11) if rung == "unified" else one_hot(11, 8), window=4)[:, 0].cpu()
    first = 11 - len(out)
    for position, seen in ((0, [0]), (3, [0, 1, 2, 3]), (10, [7, 8, 9, 10])):
        if position >= first:
            row = out[position - first]
            assert row.nonzero()[:, 0].tolist() == seen
            torch.testing.assert_close(row[seen], torch.full((len(seen),), 1 / len(seen)))
    if rung == "split":
        for length in (1, 4):
            row = LATER[rung](one_hot(length, 1), window=4)[0, 0].cpu()
            assert row.nonzero()[:, 0].tolist() == list(range(length))


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 2), (32, 8), (28, 4), (4, 4), (6, 1)])
def test_which_kv_head_a_query_head_reads(rung: str, heads: int, kv_heads: int) -> None:
    """known fault B77: every KV head has a value of its own."""
    batch = make([(2, 1)], heads, kv_heads)
    for h in range(kv_heads):
        batch.cache[1][batch.block_tables[0, 0].long(), h, :2] = float(h)
    out = RUNGS[rung](batch)[0].cpu()
    for h in range(heads):
        torch.testing.assert_close(out[h], torch.full((16,), float(h // (heads // kv_heads))))


@pytest.mark.parametrize("rung", RUNGS)
def test_the_upper_channels_count(rung: str) -> None:
    """known fault B73: with heads cut at 64 all scores would be equal, and the output the mean of the values."""
    batch = make([(20, 1)], 2, 1, 128)
    lower = torch.ones(128, dtype=torch.bool)
    lower[[64, 127]] = False
    batch.q[..., lower] = 0
    batch.q.mul_(8)
    out = RUNGS[rung](batch)
    check(out, batch)
    assert (out[0].double().cpu() - batch.values[0].mean(0)).abs().max() > 0.1


@pytest.mark.parametrize("rung", RUNGS)
def test_rows_of_padding_give_zeros(rung: str) -> None:
    batch = make([(0, 1), (5, 1), (0, 1)], 4, 2)
    out = RUNGS[rung](batch)
    check(out, batch)
    assert not out[[0, 2]].any()


def test_the_oracle_is_the_definition() -> None:
    batch = make([(12, 12)], 6, 3, dtype=torch.float16)
    for window in (None, 5):
        dense = dense_attention(batch.q.double().cpu(), batch.keys[0], batch.values[0], batch.scale, window)
        torch.testing.assert_close(batch.expected(window), dense, rtol=0, atol=1e-12)


def test_the_tests_can_fail() -> None:
    """What a broken kernel would compute is far from right on such inputs."""
    batch = make([(20, 3)], 4, 2, block_size=4)
    right = batch.expected(window=5)
    q, k, v = torch.zeros(20, 4, 16).double(), batch.keys[0], batch.values[0]
    q[17:] = batch.q.double().cpu()
    wrong = {
        "no window": dense_attention(q, k, v, batch.scale), "a window of one more": dense_attention(q, k, v, batch.scale, 6),
        "heads interleaved": dense_attention(q, k[:, [0, 1, 0, 1]], v[:, [0, 1, 0, 1]], batch.scale, 5),
        "another scale": dense_attention(q, k, v, 0.25, 5), "uniform": dense_attention(q * 0, k, v, batch.scale, 5),
        "blocks swapped": dense_attention(q, k.roll(4, 0), v.roll(4, 0), batch.scale, 5),
        "exp for exp2": dense_attention(q, k, v, batch.scale * 1.4427, 5),
    }
    for name, result in wrong.items():
        assert (right - result[17:]).abs().max() > 0.02, name
