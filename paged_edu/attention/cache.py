"""The KV cache: physical blocks in memory, and the two ways in which the paper's system moves them (Paper §4.1, §4.3, §5.1).

A *KV block* holds the key and value vectors of ``block_size`` consecutive tokens of one sequence. The block pool (`core/`) decides which
block belongs to whom; this file only owns the bytes. One layer's cache is a tuple of tensors whose first dimension is the physical
block number, ``(keys, values)`` today and more once blocks are quantised, so everything that moves blocks goes over the whole tuple.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..core.plan import Copy

LayerCache = tuple[Tensor, ...]
"""One layer: ``(keys, values)``, each ``[num_blocks, num_kv_heads, block_size, head_dim]``."""

TENSORS_PER_LAYER = 2  # keys and values


class KVCache:
    """The physical KV blocks of every layer.

    ``layers[i]`` is ``(keys, values)`` of layer i, each ``[num_blocks, num_kv_heads, block_size, head_dim]``: the page of one block and
    one head is contiguous, so a kernel that follows a block table reads whole pages (Paper §5.1). ``cache[i]`` and ``len(cache)`` work
    on layers, so a plain list of such tuples can stand in for a `KVCache` wherever a model reads it.

    The memory is not initialised (the operating system hands out pages when a block is first written), so a slot that was never written
    may hold anything, NaN included; nothing may read it.

    Raises ValueError if a size is below 1 or ``dtype`` is not a floating point type.
    """

    def __init__(
        self, num_layers: int, num_blocks: int, num_kv_heads: int, block_size: int, head_dim: int,
        dtype: torch.dtype, device: torch.device | str,
    ) -> None:
        _check_sizes(num_layers=num_layers, num_blocks=num_blocks, num_kv_heads=num_kv_heads, block_size=block_size, head_dim=head_dim)
        if not dtype.is_floating_point:
            raise ValueError(f"a KV cache holds floating point numbers, not {dtype}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        shape = (num_blocks, num_kv_heads, block_size, head_dim)
        self.layers: list[LayerCache] = [
            tuple(torch.empty(shape, dtype=dtype, device=device) for _ in range(TENSORS_PER_LAYER)) for _ in range(num_layers)
        ]

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, layer: int) -> LayerCache:
        return self.layers[layer]

    def __iter__(self) -> Iterator[LayerCache]:
        return iter(self.layers)

    def fill_(self, value: float) -> KVCache:
        """Set every number of every block; tests poison the cache with NaN, so that a read of an unwritten slot shows."""
        for layer in self.layers:
            for tensor in layer:
                tensor.fill_(value)
        return self

    def copy_blocks(self, copies: Sequence[Copy]) -> None:
        """Copy whole blocks inside this cache, in all layers: copy-on-write (Paper §4.4) and moved reservations.

        Every read precedes every write. Raises ValueError, before anything moves, if an id is outside the cache, a block is both source
        and destination, or a block is a destination twice. One source may have several destinations.
        """
        sources = {c.src for c in copies}
        if both := sorted(sources.intersection(c.dst for c in copies)):
            raise ValueError(f"block {both[0]} is both source and destination of a copy in one step")
        self._move(self, copies)

    def copy_to(self, other: KVCache, copies: Sequence[Copy]) -> None:
        """Copy whole blocks into another cache, in all layers: swapping out (GPU to CPU) and in (CPU to GPU) (Paper §4.5).

        ``src`` counts this cache's blocks and ``dst`` the other's. Raises ValueError, before anything moves, if the caches differ in
        anything but ``num_blocks`` and device, an id is outside its cache, or a block is a destination twice.
        """
        mine, theirs = _page_types(self), _page_types(other)
        if mine != theirs:
            raise ValueError(f"the caches hold different pages: {len(self)} layers of {mine[:2]} and {len(other)} layers of {theirs[:2]}")
        self._move(other, copies)

    def _move(self, other: KVCache, copies: Sequence[Copy]) -> None:
        if not copies:
            return
        src, dst = [c.src for c in copies], [c.dst for c in copies]
        _check_ids("source", src, self.num_blocks)
        _check_ids("destination", dst, other.num_blocks)
        if len(set(dst)) < len(dst):
            raise ValueError(f"block {next(d for d in dst if dst.count(d) > 1)} is the destination of two copies in one step")
        for ours, theirs in zip(self.layers, other.layers, strict=True):
            for a, b in zip(ours, theirs, strict=True):
                # index_select makes a temporary, so all reads are done before the first write; index_copy_ writes in place
                # (`b[dst].copy_(...)` would write into a second temporary and change nothing).
                pages = a.index_select(0, torch.tensor(src, device=a.device))
                b.index_copy_(0, torch.tensor(dst, device=b.device), pages.to(b.device))


def write(layer_cache: LayerCache, k: Tensor, v: Tensor, slot_mapping: Tensor, all_written: bool = False) -> None:
    """Put the new tokens' keys and values into their slots of one layer (the paper's fused "reshape and block write", §5.1).

    ``k``, ``v``: ``[T, num_kv_heads, head_dim]``, cast to the cache's dtype. ``slot_mapping``: int64 ``[T]``, slot = block * block_size +
    offset; a token with slot -1 is in the cache already and writes nowhere. ``all_written`` is the caller's word that no slot is -1:
    it saves looking, which on a GPU would wait for the device. Raises IndexError (CPU) for a slot past the last block.
    """
    keys, values = layer_cache
    if not all_written:
        new = slot_mapping >= 0
        k, v, slot_mapping = k[new], v[new], slot_mapping[new]
    block_size = keys.shape[2]
    blocks = torch.div(slot_mapping, block_size, rounding_mode="floor")
    offsets = slot_mapping - blocks * block_size
    keys[blocks, :, offsets] = k.to(keys.dtype)
    values[blocks, :, offsets] = v.to(values.dtype)


def bytes_per_block(num_layers: int, num_kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype) -> int:
    """Bytes that one KV block takes, over all layers, keys and values (Paper §3: 800 KB a token for OPT-13B in fp16).

    Raises ValueError if a size is below 1.
    """
    _check_sizes(num_layers=num_layers, num_kv_heads=num_kv_heads, block_size=block_size, head_dim=head_dim)
    return num_layers * TENSORS_PER_LAYER * num_kv_heads * block_size * head_dim * dtype.itemsize


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
