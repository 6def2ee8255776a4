"""Rung 3: whatever a step brings in one launch, and which program works for which sequence."""
from __future__ import annotations

import itertools
import random

import pytest
import torch
import triton
import triton.language as tl
from ladder import DEVICE, NAN, check, make, split, unified
from paged_edu.kernels.launch import unified_tile
from paged_edu.kernels.unified import sequence_of

MIXED = [(37, 37), (70, 20), (50, 1), (1, 1), (8, 8), (129, 3), (33, 2)]
"""Prompt, chunk, decode, a prompt of one token, a short prompt, a chunk's end over a long context, two tokens."""


@pytest.mark.parametrize("window", [None, 1, 10, 64])
@pytest.mark.parametrize(("heads", "kv_heads", "block_size", "dtype"), [
    (4, 2, 16, torch.float32), (3, 1, 3, torch.float32), (4, 4, 32, torch.float16), (14, 2, 5, torch.float16),
])
def test_mixed_batches(heads: int, kv_heads: int, block_size: int, dtype: torch.dtype, window: int | None) -> None:
    batch = make(MIXED, heads, kv_heads, block_size=block_size, dtype=dtype)
    check(unified(batch, window), batch, window)


@pytest.mark.parametrize("order", range(3))
def test_any_order_of_sequences(order: int) -> None:
    sequences = MIXED[:]
    random.Random(order).shuffle(sequences)
    batch = make(sequences, 4, 2, seed=order)
    check(unified(batch), batch)


@pytest.mark.parametrize("window", [None, 40])
def test_decode_batches_equal_rung_2(window: int | None) -> None:
    batch = make([(n, 1) for n in (1, 16, 17, 64, 100)], 4, 2)
    torch.testing.assert_close(unified(batch, window), split(batch, window, 2), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("heads", "dtype"), [(1, torch.float32), (5, torch.float32), (1, torch.float16)])
def test_prompts_around_the_borders_of_row_tiles(heads: int, dtype: torch.dtype) -> None:
    tokens = unified_tile(16, dtype, False, 80).rows // heads
    batch = make([(n, n) for n in (tokens - 1, tokens, tokens + 1)] + [(tokens + 40, tokens)], heads, 1, dtype=dtype)
    check(unified(batch), batch)


def test_more_query_heads_than_rows() -> None:
    batch = make([(9, 9), (40, 1)], 80, 1)
    assert unified_tile(16, torch.float32, False, 80).rows < 80
    check(unified(batch), batch)


def test_tiles_below_the_diagonal_are_visited_without_a_mask() -> None:
    """A context of several tiles before the chunk, and none: both loops, each with and without turns."""
    tile = unified_tile(16, torch.float32, False, 80).tokens
    batch = make([(3 * tile, 4), (2 * tile, 1), (2 * tile + 1, 1), (tile - 1, 4), (tile + 3, 4)], 2, 1)
    check(unified(batch), batch)
    for keys in batch.keys:                 # and one token far above all others, in the tile that needs no mask
        keys.zero_()
    batch.cache[0].zero_()
    batch.cache[0][batch.block_tables[0, 0].long(), 0, 3] = 20.0
    batch.keys[0][3] = 20.0
    batch.q.abs_()
    out = unified(batch)
    check(out, batch)
    torch.testing.assert_close(out[0, 0].double().cpu(), batch.values[0][3, 0], rtol=0, atol=1e-4)


@pytest.mark.filterwarnings("ignore:All-NaN slice")           # the later rows, which do see them
@pytest.mark.parametrize("window", [None, 5])
def test_a_program_stops_where_its_last_token_sees(window: int | None) -> None:
    """Keys and values of later tokens may not be there yet for the earlier ones: whole tiles of NaN above the diagonal are never read."""
    tile = unified_tile(16, torch.float32, False, 80)
    tokens = tile.rows // 2
    length = 4 * tile.tokens
    batch = make([(length, length)], 2, 1)
    expected = batch.expected(window)[:tokens]
    for p in range(max(tokens, tile.tokens), length):
        for t in batch.cache:
            t[batch.block_tables[0, p // 16].long(), :, p % 16] = NAN
    out = unified(batch, window)[:tokens]
    torch.testing.assert_close(out.double().cpu(), expected, rtol=0, atol=3e-6)


def test_a_window_starts_at_its_first_tile() -> None:
    """Blocks that no window reaches any more may belong to somebody else: whole tiles of NaN before it are never read."""
    tile = unified_tile(16, torch.float32, False, 80).tokens
    batch = make([(5 * tile, 4)], 2, 1)
    expected = batch.expected(tile)
    for t in batch.cache:
        t[batch.block_tables[0, : 3 * tile // 16].long()] = NAN
    for out in (unified(batch, tile), split(batch, tile, 1), split(batch, tile, 3)):
        torch.testing.assert_close(out.double().cpu(), expected, rtol=0, atol=3e-6)


@triton.jit
def ask(out_ptr, query_start_ptr, num_seqs, TOKENS: tl.constexpr):
    program = tl.program_id(0)
    tl.store(out_ptr + program, sequence_of(program, query_start_ptr, num_seqs, TOKENS))


def programs_of(starts: list[int], tokens: int) -> list[int]:
    """From the definition: the last sequence whose first program is not past this one."""
    first = [start // tokens + b for b, start in enumerate(starts[:-1])]
    return [max(b for b, f in enumerate(first) if f <= p) for p in range(starts[-1] // tokens + len(first))]


def random_starts(rng: random.Random, most: int) -> list[int]:
    starts = [0]
    for _ in range(rng.randint(1, most)):
        starts.append(starts[-1] + rng.choice((1, 1, 2, rng.randint(1, 40))))
    return starts


def test_every_program_finds_its_sequence() -> None:
    rng = random.Random(0)
    for _ in range(12):
        starts, tokens = random_starts(rng, 9), rng.choice((1, 2, 3, 8, 16))
        wanted = programs_of(starts, tokens)[:30]
        found = torch.full((len(wanted),), -1, dtype=torch.int32, device=DEVICE)
        ask[(len(wanted),)](found, torch.tensor(starts, dtype=torch.int32, device=DEVICE), len(starts) - 1, TOKENS=tokens)
        assert found.tolist() == wanted


def test_every_tile_has_exactly_one_program() -> None:
    """Whatever the lengths: the programs of all sequences cover all their tiles, and at most one of each has nothing to do."""
    rng = random.Random(1)
    for _ in range(300):
        starts, tokens = random_starts(rng, 30), rng.randint(1, 40)
        work = [(b, p - (starts[b] // tokens + b)) for p, b in enumerate(programs_of(starts, tokens))]
        tiles = {(b, i) for b, (first, stop) in enumerate(itertools.pairwise(starts)) for i in range(-(-(stop - first) // tokens))}
        assert len(set(work)) == len(work)
        assert tiles <= set(work)
        idle = [b for b, _ in set(work) - tiles]
        assert len(set(idle)) == len(idle)


def test_the_tests_can_fail() -> None:
    """Positions counted from the chunk and not from the sequence, or not bounded at the diagonal, would show."""
    batch = make([(20, 5)], 2, 1)
    right = batch.expected()
    q, (k, v) = batch.q.double().cpu(), (batch.keys[0][:, 0], batch.values[0][:, 0])
    scores = torch.einsum("ihd,td->hit", q, k) * batch.scale
    full = (torch.softmax(scores, -1) @ v).transpose(0, 1)
    from_chunk = (torch.softmax(scores.masked_fill(torch.arange(20) > torch.arange(5)[:, None], -torch.inf), -1) @ v).transpose(0, 1)
    strict = (torch.softmax(scores.masked_fill(torch.arange(20) >= torch.arange(15, 20)[:, None], -torch.inf), -1) @ v).transpose(0, 1)
    for wrong in (full, from_chunk, strict):
        assert (wrong - right).abs().max() > 0.1
