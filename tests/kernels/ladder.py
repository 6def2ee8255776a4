"""Random batches over a paged cache, what attention is over them in float64, and the four rungs behind one signature.

A file that imports this one is skipped where there is no Triton. The interpreter takes some 5 ms for each turn of a kernel's inner loop, however
wide the tile: a test stays under a few hundred programs x turns (rung 0 takes a turn for each token and head).
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed; its wheels are for Linux")

from paged_edu.kernels.naive import naive_attention
from paged_edu.kernels.split import split_attention
from paged_edu.kernels.tiled import tiled_attention
from paged_edu.kernels.unified import unified_attention

from paged_edu.attention.cache import LayerCache, quantise

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NAN = float("nan")
ATOL = {torch.float32: 3e-6, torch.float16: 2e-3}
"""How far from float64 a result of numbers around 1 may be; the fp16 one is a rounding of the result, and of weights, to 11 bits."""


@dataclass
class Batch:
    """What a kernel is called with; sequence b queries its last ``query_lens[b]`` tokens."""

    q: Tensor
    cache: LayerCache
    block_tables: Tensor
    query_start_loc: Tensor
    seq_lens: Tensor
    scale: float
    query_lens: list[int]
    lengths: list[int]
    keys: list[Tensor]
    """float64 ``[seq_len, num_kv_heads, head_dim]`` of every sequence: what its slots hold."""
    values: list[Tensor]

    def expected(self, window: int | None = None) -> Tensor:
        """Attention from its definition in float64, one query token and head at a time; zeros for a row of padding."""
        q = self.q.double().cpu()
        out = torch.zeros_like(q)
        group = q.shape[1] // self.cache[0].shape[1]
        row = 0
        for n, length, keys, values in zip(self.query_lens, self.lengths, self.keys, self.values):
            for p in range(length - n, length) if length else [None] * n:
                if p is not None:
                    first = 0 if window is None else max(0, p - window + 1)
                    for h in range(q.shape[1]):
                        weights = torch.softmax(keys[first : p + 1, h // group] @ q[row, h] * self.scale, 0)
                        out[row, h] = weights @ values[first : p + 1, h // group]
                row += 1
        return out


def make(
    sequences: Sequence[tuple[int, int]], heads: int = 2, kv_heads: int = 1, head_dim: int = 16, block_size: int = 16, *,
    dtype: torch.dtype = torch.float32, seed: int = 0, poison: float = NAN, quantised: bool = False,
) -> Batch:
    """A batch of ``(seq_len, query_len)``, a length of 0 being a row of padding.

    Blocks are dealt out in random order, tables are as wide as the longest sequence needs and padded with a block that is nobody's. Slots past a
    sequence's end, and that block, hold ``poison`` (where the cache is int8: the scales do).
    """
    g = torch.Generator().manual_seed(seed)
    lengths, query_lens = [length for length, _ in sequences], [n for _, n in sequences]
    used = [-(-length // block_size) for length in lengths]
    order = torch.randperm(sum(used) + 1, generator=g).tolist()
    spare = order.pop()
    tables = torch.full((len(lengths), max(used)), spare, dtype=torch.int32)
    shape = (sum(used) + 1, kv_heads, block_size, head_dim)
    cache: LayerCache = tuple(torch.full(shape, poison, dtype=dtype) for _ in range(2))
    if quantised:
        cache = (*(torch.full(shape, 127, dtype=torch.int8) for _ in range(2)), *(torch.full(shape[:3], poison) for _ in range(2)))
    q = torch.randn(sum(query_lens), heads, head_dim, generator=g).to(dtype)
    starts, seq_lens = torch.tensor([0, *query_lens]).cumsum(0).int(), torch.tensor(lengths, dtype=torch.int32)
    batch = Batch(q, cache, tables, starts, seq_lens, 1.5 / math.sqrt(head_dim), query_lens, lengths, [], [])
    for row, length, n in zip(tables, lengths, used):
        row[:n] = torch.tensor([order.pop() for _ in range(n)])
        position = torch.arange(length)
        where = row[position // block_size].long(), slice(None), position % block_size
        for which, into in enumerate((batch.keys, batch.values)):
            x = torch.randn(length, kv_heads, head_dim, generator=g).to(dtype)
            if quantised:
                x, scale = quantise(x)
                cache[2 + which][where] = scale
                into.append(x.double() * scale.double()[..., None])
            else:
                into.append(x.double())
            cache[which][where] = x
    return to_device(batch)


def to_device(batch: Batch) -> Batch:
    batch.cache = tuple(t.to(DEVICE) for t in batch.cache)
    for name in ("q", "block_tables", "query_start_loc", "seq_lens"):
        setattr(batch, name, getattr(batch, name).to(DEVICE))
    return batch


def naive(b: Batch) -> Tensor:
    return naive_attention(b.q, *b.cache, b.block_tables, b.seq_lens, b.scale)


def tiled(b: Batch) -> Tensor:
    return tiled_attention(b.q, *b.cache, b.block_tables, b.seq_lens, b.scale)


def split(b: Batch, window: int | None = None, splits: int | None = None) -> Tensor:
    return split_attention(
        b.q, b.cache, b.block_tables, b.query_start_loc, b.seq_lens, b.scale, max(b.query_lens), max(b.lengths), window, splits)


def unified(b: Batch, window: int | None = None) -> Tensor:
    return unified_attention(b.q, b.cache, b.block_tables, b.query_start_loc, b.seq_lens, b.scale, window)


RUNGS: dict[str, Callable[[Batch], Tensor]] = {"naive": naive, "tiled": tiled, "split": split, "unified": unified}
"""One query token a sequence: what every rung can do."""
LATER = {"split": split, "unified": unified}
"""The rungs that know windows, several query tokens and int8."""


def check(out: Tensor, batch: Batch, window: int | None = None, atol: float | None = None) -> None:
    """``out`` is of the queries' shape and dtype, and as far from float64 as its dtype may be."""
    assert out.shape == batch.q.shape
    assert out.dtype == batch.q.dtype
    torch.testing.assert_close(out.double().cpu(), batch.expected(window), rtol=0, atol=atol or ATOL[out.dtype])
