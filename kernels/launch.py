"""What is decided on the host before a kernel starts: shapes and padding, tile sizes, and into how many parts a long context is split."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

LOG2_E = 1.4426950408889634
"""Scores times this, and exp2 (the instruction that GPUs have) gives exp."""

MAX_HEAD_DIM = 256


class Shapes(NamedTuple):
    """The sizes that queries and cache agree on."""

    head_dim: int
    group: int
    """Query heads to a KV head."""
    block_size: int

    @classmethod
    def of(cls, q: Tensor, k: Tensor, v: Tensor) -> Shapes:
        """Of q ``[T, num_heads, head_dim]`` and k, v ``[num_blocks, num_kv_heads, block_size, head_dim]``; the last stride is 1, others are free.

        Raises ValueError for shapes that don't fit together, heads that don't divide, a head above 256, or numbers of a head that don't lie
        side by side.
        """
        num_heads, head_dim = q.shape[1:]
        num_kv_heads, block_size = k.shape[1:3]
        if k.shape != v.shape or k.shape[3] != head_dim:
            raise ValueError(f"queries have {head_dim} numbers a head; keys are {tuple(k.shape)} and values {tuple(v.shape)}")
        if num_heads % num_kv_heads:
            raise ValueError(f"{num_heads} query heads can't share {num_kv_heads} KV heads evenly")
        if head_dim > MAX_HEAD_DIM:
            raise ValueError(f"the kernels take heads of up to {MAX_HEAD_DIM} numbers, not {head_dim}")
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            if tensor.stride(-1) != 1 and head_dim > 1:
                raise ValueError(f"the numbers of one head of {name} must lie side by side; its strides are {tensor.stride()}")
        return cls(head_dim, num_heads // num_kv_heads, block_size)


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()


def head_pad(head_dim: int) -> int:
    """Columns of a tile: a power of two (80 and 96 become 128), and at least the 16 that `tl.dot` takes."""
    return max(16, power_of_two(head_dim))


def row_pad(rows: int) -> int:
    """Rows of a tile of queries: a power of two, at least the 16 that `tl.dot` takes."""
    return max(16, power_of_two(rows))


def fast_block(block_size: int) -> int:
    """The block size as a constant of the kernel where that is worth a variant of its own; 0: it is an argument."""
    return block_size if block_size in (16, 32) else 0


class Tile(NamedTuple):
    """How much one program holds at a time; the ahead-of-time tests check that it fits into registers, without spills up to head size 128."""

    rows: int
    """Packed rows of queries."""
    tokens: int
    """Cached tokens a turn."""
    warps: int
    """Groups of 32 threads that share the work."""


def split_tile(head_dim: int, dtype: torch.dtype, capability: int, rows: int = 64, quantised: bool = False) -> Tile:
    """For `tiled.py` and `split.py`, whose time goes into reading the cache. rows: how many there are to pack; the tile may hold less."""
    pad = head_pad(head_dim)
    if not _tensor_cores(dtype, capability):
        most, tokens, warps = (32, 32, 8) if pad <= 64 else (16, 16, 8 if quantised else 4)
    else:
        most, tokens, warps = 64, 64 if pad <= 128 else 32, 8 if pad >= 128 and rows > 32 else 4
    return Tile(min(most, row_pad(rows)), tokens, warps)


def unified_tile(head_dim: int, dtype: torch.dtype, quantised: bool, capability: int) -> Tile:
    """For `unified.py`, whose time goes into products of matrices: the more rows share a tile of keys, the better."""
    pad = head_pad(head_dim)
    if _tensor_cores(dtype, capability):
        if pad <= 64 or (pad == 128 and capability >= 90 and not quantised):
            return Tile(128, 64, 8)
        return Tile(128, 32, 8) if pad == 128 else Tile(64, 32, 8)
    if pad == 128 and not quantised:
        return Tile(32, 16, 8) if dtype != torch.float32 else Tile(16, 32, 8)
    return Tile(32, 32, 8) if pad <= 64 else Tile(16, 16, 8)


def _tensor_cores(dtype: torch.dtype, capability: int) -> bool:
    """Without them (exact float32, and what Triton makes of GPUs before Ampere) every thread holds its operands, and tiles must be small."""
    return dtype != torch.float32 and capability >= 80


_assumed = 80


@contextmanager
def assume_capability(capability: int) -> Iterator[None]:
    """What `capability_of` says where there is no GPU: for compiling ahead of time."""
    global _assumed
    before, _assumed = _assumed, capability
    try:
        yield
    finally:
        _assumed = before


def capability_of(device: torch.device) -> int:
    """90 for compute capability 9.0."""
    return _cuda_capability(device) if device.type == "cuda" else _assumed


@cache
def _cuda_capability(device: torch.device) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


@cache
def multiprocessors(device: torch.device) -> int:
    """Processors that run programs side by side. The interpreter has one."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


PROGRAMS_EACH = 2
"""Programs of a decode kernel that one multiprocessor holds at a time: so its registers and shared memory allow (`paged-edu bench kernels`)."""

MERGE_TILES = 2.0
"""What writing a part and merging it again costs, in tiles read: a second launch, and the part's numbers twice over the memory bus."""

MAX_SPLITS = 128
"""`choose_splits` never cuts a context into more parts."""

PART_TILES = 1.0
"""What a program costs beside its tiles: it starts, fetches its queries, and writes numbers that the merge reads again."""


def choose_splits(programs: int, num_tiles: int, processors: int, programs_each: int = PROGRAMS_EACH) -> int:
    """Into how many parts to split contexts of ``num_tiles`` tiles when ``programs`` (sequences x KV heads) would run without splitting.

    A step takes as many *rounds* as programs fill the processors, and a round takes as long as a program reads tiles. One long request
    leaves most processors idle, and splitting helps; a full batch keeps all of them busy, and splitting only adds the merge. So the
    estimate is rounds x (tiles + what any part costs), plus the merge, and the cheapest split wins: the fewest parts, where several are as
    cheap. If parts were free, the finest split would win whenever the last round is not quite full.
    """
    places = max(1, processors * programs_each)
    best, cheapest = 1, float("inf")
    for splits in range(1, max(1, min(num_tiles, MAX_SPLITS)) + 1):
        tiles = -(-num_tiles // splits)
        rounds = -(-programs * splits // places)
        cost = rounds * (tiles + PART_TILES) + (MERGE_TILES if splits > 1 else 0)
        if cost < cheapest:
            best, cheapest = splits, cost
    return best


def scales(cache: Sequence[Tensor]) -> tuple[tuple[Tensor, Tensor], tuple[int, ...], bool]:
    """``(k and v scales, their strides, whether there are any)``; without, any tensor serves as a pointer that nothing reads."""
    if len(cache) == 4:
        return (cache[2], cache[3]), (*cache[2].stride(), *cache[3].stride()), True
    return (cache[0], cache[1]), (0,) * 6, False
