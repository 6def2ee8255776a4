"""The KV cache: physical blocks in memory, and the two ways in which the paper's system moves them (Paper §4.1, §4.3, §5.1).

A *KV block* holds the key and value vectors of ``block_size`` consecutive tokens of one sequence. The block pool (`core/`) decides which
block belongs to whom; this file only owns the bytes. One layer's cache is a tuple of tensors whose first dimension is the physical
block number, ``(keys, values)``, and their scales where they are quantised, so everything that moves blocks goes over the whole tuple.
"""
from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from ..core.plan import Copy

LayerCache = tuple[Tensor, ...]
"""One layer: ``(keys, values)``, each ``[num_blocks, num_kv_heads, block_size, head_dim]``; stored as int8, with their scales behind them,
``(keys, values, key scales, value scales)``, the scales float32 ``[num_blocks, num_kv_heads, block_size]``."""

CopyPages = Callable[[Tensor, Tensor, Tensor], None]
"""``copy(stack, src, dst)``: in ``stack`` ``[num_layers, num_blocks, ...]``, blocks ``src`` to blocks ``dst``, in all layers; ids int64 ``[n]``."""

SCALE_DTYPE = torch.float32
LARGE_PAGES_FROM = 32 * 2**20
"""Bytes of a CPU's cache from which on it asks for the system's large pages."""
STAGING_BYTES = 64 * 2**20
"""Blocks that cross between devices are gathered side by side first; at most this much at a time."""

CODES = 127.0
"""An int8 code runs from -127 to 127."""


class KVCache:
    """The physical KV blocks of every layer.

    ``layers[i]`` is layer i's `LayerCache`: the page of one block and one head is contiguous, so a kernel that follows a block table
    reads whole pages (Paper §5.1). ``cache[i]`` and ``len(cache)`` work on layers, so a plain list of such tuples can stand in for a
    `KVCache` wherever a model reads it. ``stacks`` are the same numbers, all layers of one kind in one tensor ``[num_layers, num_blocks, ...]``:
    moving a block is one operation a stack, however many layers there are. ``dtype`` is a floating point type, or int8: every number is then
    a code times the scale of its token and head (see `quantise`).

    ``for_swapping`` lays it out for host memory: all layers of a block lie together, so that a block crosses the bus in one piece a stack, and
    where there is a GPU the memory is pinned. ``copy_pages`` copies blocks inside a stack (the Triton backend brings its own kernel).

    The memory is not initialised (the operating system hands out pages when a block is first written), so a slot that was never written
    may hold anything, NaN included; nothing may read it.

    Raises ValueError if a size is below 1 or ``dtype`` is neither a floating point type nor int8.
    """

    def __init__(
        self, num_layers: int, num_blocks: int, num_kv_heads: int, block_size: int, head_dim: int,
        dtype: torch.dtype, device: torch.device | str, *, for_swapping: bool = False, copy_pages: CopyPages | None = None,
    ) -> None:
        _check_sizes(num_layers=num_layers, num_blocks=num_blocks, num_kv_heads=num_kv_heads, block_size=block_size, head_dim=head_dim)
        if not dtype.is_floating_point and dtype != torch.int8:
            raise ValueError(f"a KV cache holds floating point numbers or int8 codes, not {dtype}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._copy_pages = copy_pages or copy_by_index
        page = (num_kv_heads, block_size, head_dim)
        kinds = [(page, dtype)] * 2 + [(page[:2], SCALE_DTYPE)] * (2 if dtype == torch.int8 else 0)
        pinned = for_swapping and torch.cuda.is_available()
        self.stacks: tuple[Tensor, ...] = tuple(
            torch.empty(num_blocks, num_layers, *shape, dtype=kind, device=device, pin_memory=pinned).transpose(0, 1) if for_swapping
            else _empty((num_layers, num_blocks, *shape), kind, torch.device(device))
            for shape, kind in kinds
        )
        self.layers: list[LayerCache] = [tuple(stack[layer] for stack in self.stacks) for layer in range(num_layers)]

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, layer: int) -> LayerCache:
        return self.layers[layer]

    def __iter__(self) -> Iterator[LayerCache]:
        return iter(self.layers)

    def fill_(self, value: float) -> KVCache:
        """Set every number of every block; tests poison the cache with NaN, so that a read of an unwritten slot shows (of codes, their scales)."""
        for stack in self.stacks:
            stack.fill_(value if stack.is_floating_point() else CODES)
        return self

    def copy_blocks(self, copies: Sequence[Copy]) -> None:
        """Copy whole blocks inside this cache, in all layers: copy-on-write (Paper §4.4) and moved reservations.

        Every read precedes every write. Raises ValueError, before anything moves, if an id is outside the cache, a block is both source
        and destination, or a block is a destination twice. One source may have several destinations.
        """
        sources = {c.src for c in copies}
        if both := sorted(sources.intersection(c.dst for c in copies)):
            raise ValueError(f"block {both[0]} is both source and destination of a copy in one step")
        if not copies:
            return
        src, dst = self._ids(self, copies)
        device = self.stacks[0].device
        where = torch.tensor([src, dst]).to(device, non_blocking=True)
        for stack in self.stacks:
            self._copy_pages(stack, where[0], where[1])

    def copy_to(self, other: KVCache, copies: Sequence[Copy], all_read: Callable[[], object] | None = None) -> None:
        """Copy whole blocks into another cache, in all layers: swapping out (GPU to CPU) and in (CPU to GPU) (Paper §4.5).

        ``src`` counts this cache's blocks and ``dst`` the other's. Between devices the copies are queued on the current stream (see
        `swap.Swapper`), a block in one piece a stack; ``all_read`` is called once the last read of this cache is queued. Raises ValueError,
        before anything moves, if the caches differ in anything but ``num_blocks``, layout and device, an id is outside its cache, or a
        block is a destination twice.
        """
        mine, theirs = _page_types(self), _page_types(other)
        if mine != theirs:
            raise ValueError(f"the caches hold different pages: {len(self)} layers of {mine[:2]} and {len(other)} layers of {theirs[:2]}")
        src, dst = self._ids(other, copies)
        block_bytes = sum(stack[:, 0].nbytes for stack in self.stacks)
        at_once = max(1, STAGING_BYTES // block_bytes)
        for first in range(0, len(copies), at_once):
            some = slice(first, first + at_once)
            pages = [_gather(stack, src[some], to.device) for stack, to in zip(self.stacks, other.stacks, strict=True)]
            if all_read is not None and first + at_once >= len(copies):
                all_read()
            for to, page in zip(other.stacks, pages, strict=True):
                _scatter(page, to, dst[some])

    def _ids(self, other: KVCache, copies: Sequence[Copy]) -> tuple[list[int], list[int]]:
        src, dst = [c.src for c in copies], [c.dst for c in copies]
        _check_ids("source", src, self.num_blocks)
        _check_ids("destination", dst, other.num_blocks)
        if len(set(dst)) < len(dst):
            raise ValueError(f"block {next(d for d in dst if dst.count(d) > 1)} is the destination of two copies in one step")
        return src, dst


def _empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory without values. On a CPU with Linux in large pages of the operating system (2 MiB), where it has some.

    A page of keys is as large as one of the system's usual ones (16 tokens of 64 float32 numbers: 4 KiB), and the next one lies elsewhere: the
    processor would look nearly every one of them up in the system's own page table, below ours.
    """
    size = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or size < LARGE_PAGES_FROM or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):                     # a system without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def _gather(stack: Tensor, blocks: list[int], to: torch.device) -> Tensor:
    """``[len(blocks), num_layers, ...]``, on a GPU if one takes part. A block out of host memory crosses in one piece."""
    by_block = stack.transpose(0, 1)
    if stack.device.type == "cpu" and to.type != "cpu":
        pages = torch.empty(len(blocks), *by_block.shape[1:], dtype=stack.dtype, device=to)
        for page, block in zip(pages, blocks):
            page.copy_(by_block[block], non_blocking=True)
        return pages
    return by_block.index_select(0, torch.tensor(blocks, device=stack.device))


def _scatter(pages: Tensor, stack: Tensor, blocks: list[int]) -> None:
    """The other half: pages to their blocks."""
    by_block = stack.transpose(0, 1)
    if stack.device != pages.device:
        for page, block in zip(pages, blocks):
            by_block[block].copy_(page, non_blocking=True)
    else:
        by_block.index_copy_(0, torch.tensor(blocks, device=stack.device), pages)


def copy_by_index(stack: Tensor, src: Tensor, dst: Tensor) -> None:
    """`CopyPages` in torch. index_select makes a temporary, so all reads are done before the first write; index_copy_ writes in place
    (``stack[:, dst].copy_(...)`` would write into a second temporary and change nothing)."""
    stack.index_copy_(1, dst, stack.index_select(1, src))


def write(layer_cache: LayerCache, k: Tensor, v: Tensor, slot_mapping: Tensor, all_written: bool = False) -> None:
    """Put the new tokens' keys and values into their slots of one layer (the paper's fused "reshape and block write", §5.1).

    ``k``, ``v``: ``[T, num_kv_heads, head_dim]``, cast to the cache's dtype, or quantised. ``slot_mapping``: int64 ``[T]``, slot = block *
    block_size + offset; a token with slot -1 is in the cache already and writes nowhere. ``all_written`` is the caller's word that no slot
    is -1: it saves looking, which on a GPU would wait for the device. Raises IndexError (CPU) for a slot past the last block.
    """
    if not all_written:
        new = slot_mapping >= 0
        k, v, slot_mapping = k[new], v[new], slot_mapping[new]
    block_size = layer_cache[0].shape[2]
    blocks = torch.div(slot_mapping, block_size, rounding_mode="floor")
    offsets = slot_mapping - blocks * block_size
    for which, x in enumerate((k, v)):
        cache = layer_cache[which]
        if cache.dtype == torch.int8:
            x, scale = quantise(x)
            layer_cache[2 + which][blocks, :, offsets] = scale
        cache[blocks, :, offsets] = x.to(cache.dtype)


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """int8 codes and float32 scales, one for each token and head, so that ``x ~ codes * scale``: of ``[T, heads, head_dim]``, codes of that shape and
    scales ``[T, heads]``.

    The scale is the largest absolute value over 127; a head of zeros has scale 0. A token's codes depend on nothing but the token, so
    chunks, cached prefixes and recomputation give what the whole prompt gives.
    """
    x = x.to(SCALE_DTYPE)
    scale = x.abs().amax(-1) / CODES
    return torch.floor(x / torch.where(scale > 0, scale, 1.0)[..., None] + 0.5).to(torch.int8), scale


def bytes_per_block(num_layers: int, num_kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype) -> int:
    """Bytes that one KV block takes, over all layers, keys and values, and scales if they are int8 (Paper §3: 800 KB a token for OPT-13B in fp16).

    Raises ValueError if a size is below 1.
    """
    _check_sizes(num_layers=num_layers, num_kv_heads=num_kv_heads, block_size=block_size, head_dim=head_dim)
    one_head = head_dim * dtype.itemsize + (SCALE_DTYPE.itemsize if dtype == torch.int8 else 0)
    return 2 * num_layers * num_kv_heads * block_size * one_head


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, not {size}")


def _check_ids(what: str, ids: list[int], num_blocks: int) -> None:
    for i in ids:
        if not 0 <= i < num_blocks:
            raise ValueError(f"{what} block {i} is outside the cache: it has blocks 0 to {num_blocks - 1}")


def _page_types(cache: KVCache) -> list[tuple[tuple[int, ...], torch.dtype]]:
    return [(tuple(t.shape[1:]), t.dtype) for layer in cache for t in layer]
