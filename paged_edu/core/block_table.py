"""BlockTable: where the tokens of one sequence lie (Paper §4.1, §4.3), how tables share blocks and copy them on write (§4.4).

Logical block ``i`` of a sequence holds its positions ``i * block_size .. (i + 1) * block_size - 1``; ``table.blocks[i]`` is the physical
block that stores them. A *slot* is one token's place in the whole cache: ``physical block * block_size + offset``.
"""
from __future__ import annotations

from collections.abc import Iterator

from .block_pool import BlockPool
from .plan import COMPUTED_SLOT, Copy


def num_blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold ``num_tokens`` tokens: the quotient rounded up."""
    return -(-num_tokens // block_size)


def block_fills(num_tokens: int, block_size: int, num_blocks: int) -> Iterator[int]:
    """Filled slots of each of the first ``num_blocks`` logical blocks of a sequence with ``num_tokens`` tokens in the cache."""
    for index in range(num_blocks):
        yield min(block_size, max(0, num_tokens - index * block_size))


class BlockTable:
    """The block table of one sequence. Every entry is one reference to a block of the pool."""

    __slots__ = ("block_size", "blocks", "entries", "frozen", "pool")

    def __init__(self, pool: BlockPool, block_size: int, blocks: list[int] | None = None, entries: list[int] | None = None) -> None:
        self.pool = pool
        self.block_size = block_size
        self.blocks: list[int] = blocks if blocks is not None else []
        self.entries: list[int] = entries if entries is not None else []
        """Prefix index entries of the full, computed blocks, from the first one on; empty where nothing is cached."""
        self.frozen: tuple[int, ...] | None = None
        """``blocks`` as plans list them, kept from step to step; None since they have changed."""

    def __len__(self) -> int:
        return len(self.blocks)

    def slot(self, position: int) -> int:
        """The slot of one position. Raises IndexError when the table does not reach that far."""
        index, offset = divmod(position, self.block_size)
        if not 0 <= index < len(self.blocks):
            raise IndexError(f"position {position} is in logical block {index}; the table has {len(self.blocks)} blocks of {self.block_size}")
        return self.blocks[index] * self.block_size + offset

    def slots(self, start: int, stop: int) -> tuple[int, ...]:
        """The slots of positions ``start .. stop - 1``; `COMPUTED_SLOT` for what the prefix index knows, since that is computed already."""
        size, written = self.block_size, min(max(start, len(self.entries) * self.block_size), stop)
        for position in (start, stop - 1)[: stop - start]:  # raises where the table does not reach that far
            self.slot(position)
        blocks, skip = self.blocks[written // size : num_blocks_for(stop, size)], written % size
        slots = [slot for block in blocks for slot in range(block * size, (block + 1) * size)]
        return (COMPUTED_SLOT,) * (written - start) + tuple(slots[skip : skip + stop - written])

    def blocks_needed(self, num_tokens: int) -> int:
        """New blocks that the table needs before it can hold ``num_tokens`` tokens."""
        return max(0, num_blocks_for(num_tokens, self.block_size) - len(self.blocks))

    def grow(self, num_tokens: int) -> list[int] | None:
        """Append the blocks that ``num_tokens`` tokens need; returns them, or None and nothing changed when too few are free."""
        new = self.pool.allocate(self.blocks_needed(num_tokens))
        if new:
            self.blocks += new
            self.frozen = None
        return new

    def shared_indexes(self, start: int, stop: int) -> list[int]:
        """Logical blocks that writing positions ``start .. stop - 1`` would touch and that another table refers to as well."""
        first, last = start // self.block_size, min(num_blocks_for(stop, self.block_size), len(self.blocks))
        counts, blocks = self.pool.ref_counts, self.blocks
        return [index for index in range(first, last) if counts[blocks[index]] > 1]

    def copy_on_write(self, index: int) -> Copy | None:
        """Give this table a block of its own at ``index`` (Paper §4.4, Fig. 8).

        Returns the copy that must run before the write, or None when nobody else refers to the block any more: of k sequences that
        write to a shared block k - 1 copy it and the last one writes in place. The caller has made sure that a block is free.
        """
        old = self.blocks[index]
        if self.pool.ref_counts[old] == 1:
            return None
        new = self.pool.allocate(1)
        if new is None:
            raise ValueError(f"no free block to copy block {old} into: reserve before writing")
        self.pool.free([old])
        self.blocks[index] = new[0]
        self.frozen = None
        return Copy(old, new[0])

    def fork(self, num_tokens: int | None = None) -> BlockTable:
        """A second table that refers to the same blocks, or to those of the first ``num_tokens`` tokens: nothing is copied until somebody writes."""
        keep = len(self.blocks) if num_tokens is None else num_blocks_for(num_tokens, self.block_size)
        full = len(self.entries) if num_tokens is None else num_tokens // self.block_size
        blocks = self.blocks[:keep]
        self.pool.share(blocks)
        return BlockTable(self.pool, self.block_size, blocks, self.entries[:full])

    def truncate(self, num_tokens: int) -> list[int]:
        """Drop the blocks beyond ``num_tokens`` tokens; returns them."""
        if num_tokens < 0:
            raise ValueError(f"a table cannot be cut to {num_tokens} tokens")
        keep, full = num_blocks_for(num_tokens, self.block_size), num_tokens // self.block_size
        dropped = self.blocks[keep:]
        self.pool.free(dropped)
        del self.blocks[keep:]
        self.frozen = None
        if full < keep and len(self.entries) > full and self.pool.index is not None and self.pool.ref_counts[self.blocks[full]] == 1:
            self.pool.index.forget(self.blocks[full])       # it will be written again; a shared one is copied before that
        del self.entries[full:]
        return dropped

    def release(self) -> list[int]:
        """Drop every block; returns what the table held."""
        return self.truncate(0)
