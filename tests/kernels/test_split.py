"""Rung 2: any number of splits gives the same result, a few query tokens a sequence, stable sums."""
from __future__ import annotations

import pytest
import torch
from ladder import ATOL, check, make, split
from paged_edu.kernels.launch import choose_splits
from paged_edu.kernels.split import split_attention, split_tile

SPLITS = range(1, 17)


@pytest.mark.parametrize(("dtype", "window"), [(torch.float32, None), (torch.float32, 20), (torch.float16, None)])
def test_any_number_of_splits_gives_the_same(dtype: torch.dtype, window: int | None) -> None:
    """16 splits of at most 5 tiles: most see nothing. A window leaves tiles to nobody; a sequence of one token leaves all splits but one empty."""
    batch = make([(130, 1), (1, 1), (64, 2), (0, 1)], 2, 1, dtype=dtype)
    whole = split(batch, window, 1)
    for splits in (SPLITS if dtype == torch.float32 and window is None else SPLITS[1::3]):
        out = split(batch, window, splits)
        check(out, batch, window)
        torch.testing.assert_close(out, whole, rtol=0, atol=5e-7 if dtype == torch.float32 else 1e-3)
        assert not out[4].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("splits", [2, 5])
def test_a_split_that_one_row_sees_and_another_does_not(splits: int, dtype: torch.dtype) -> None:
    """Two tiles, a window of one token: each row sees one token of one tile, and the other split is masked from end to end for it."""
    tile = split_tile(16, dtype, 80).tokens
    batch = make([(tile + 4, 8)], 4, 2, dtype=dtype)
    out = split(batch, 1, splits)
    check(out, batch, 1)
    wanted = batch.values[0][-8:].repeat_interleave(2, 1)
    torch.testing.assert_close(out.double().cpu(), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("query_len", range(1, 9))
def test_a_few_query_tokens(query_len: int) -> None:
    batch = make([(query_len, query_len), (37, query_len), (34, 1)], 6, 3, block_size=3, seed=query_len)
    check(split(batch, splits=1 + query_len % 3), batch)


@pytest.mark.parametrize(("heads", "kv_heads", "dtype", "splits"), [
    (14, 2, torch.float32, 1), (10, 1, torch.float16, 2), (40, 1, torch.float32, 1), (9, 1, torch.float32, 3),
])
def test_rows_over_several_tiles(heads: int, kv_heads: int, dtype: torch.dtype, splits: int) -> None:
    batch = make([(35, 8), (8, 5)], heads, kv_heads, dtype=dtype)
    assert 8 * heads // kv_heads > split_tile(16, dtype, 80).rows
    check(split(batch, splits=splits), batch)


def test_the_bounds_shape_the_launch_and_not_the_result() -> None:
    """A captured graph is launched for the longest context there may be; some of its sequences are shorter."""
    batch = make([(40, 1), (5, 2)], 4, 2)
    for max_query_len, max_seq_len, splits in ((2, 40, 2), (8, 40, 2), (2, 4000, 2), (8, 100_000, 7), (8, 4000, None)):
        out = split_attention(
            batch.q, batch.cache, batch.block_tables, batch.query_start_loc, batch.seq_lens, batch.scale, max_query_len, max_seq_len, None, splits)
        check(out, batch)


@pytest.mark.parametrize("splits", [1, 4, 8])
def test_huge_scores_and_padding(splits: int) -> None:
    """known fault B82"""
    batch = make([(100, 1), (0, 1), (128, 8), (3, 1)], 2, 1)
    batch.scale = 1e4
    out = split(batch, splits=splits)
    assert out.isfinite().all()
    assert not out[1].any()
    check(out, batch, atol=1e-3)


@pytest.mark.parametrize(("splits", "scale", "atol"), [(1, 1e29, 1e-6), (4, 1e29, 1.0), (4, 1.0, 1e-5)])
def test_scores_far_below_zero(splits: int, scale: float, atol: float) -> None:
    """All scores are -16 * scale: what starts the running maximum must be lower still. Parts of different length weigh by it, as long as a sum
    of so many weights shows in float32 beside such a score; their mean is a mean of values in any case."""
    batch = make([(70, 1)], 2, 1)
    batch.q.fill_(-1.0)
    batch.cache[0][batch.block_tables[0].long()] = 1.0
    batch.scale = scale
    out = split(batch, splits=splits)
    assert out.any()
    torch.testing.assert_close(out[0].double().cpu(), batch.values[0].mean(0).expand(2, -1), rtol=0, atol=atol)


def test_the_choice_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """One long request on a card with many processors is split, and a window is no longer than it is."""
    import paged_edu.kernels.split as module

    batch = make([(200, 1)], 2, 1)
    seen = []
    monkeypatch.setattr(module, "multiprocessors", lambda device: 132)
    monkeypatch.setattr(module, "choose_splits", lambda *args: seen.append((args, choose_splits(*args))) or seen[-1][1])
    check(split(batch), batch)
    check(split(batch, window=30), batch, 30)
    assert [args for args, _ in seen] == [(1, 7, 132), (1, 1, 132)]
    assert [n for _, n in seen] == [7, 1]


def test_the_tests_can_fail() -> None:
    """Parts that are averaged without their weights, or a part that is left out, are far off."""
    batch = make([(130, 1)], 2, 1)
    right = batch.expected()
    k, v = batch.keys[0][:, 0], batch.values[0][:, 0]
    scores = batch.q[0].double().cpu() @ k.T * batch.scale
    parts = [torch.softmax(scores[:, part], 1) @ v[part] for part in (slice(0, 64), slice(64, 130))]
    for wrong in (sum(parts) / 2, parts[0], parts[1]):
        assert (wrong - right[0]).abs().max() > 1000 * ATOL[torch.float32]
