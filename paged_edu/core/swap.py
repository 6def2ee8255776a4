"""SwapSpace: where the blocks of preempted sequences wait in host memory (Paper §4.5, "Swapping").

It is a second, smaller pool with block tables of its own. Sharing survives the round trip: a block that several sequences of a group refer
to is moved once each way.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .block_pool import BlockPool, IntegrityError


@dataclass(frozen=True, slots=True)
class SwappedTable:
    """The block table of one swapped-out sequence."""

    blocks: list[int]
    """CPU blocks, in logical order, of the tokens that were computed."""
    entries: list[int]
    """The prefix index entries that it had: what is still in the GPU pool when it comes back need not be copied."""


class SwapSpace:
    """``num_blocks`` CPU blocks; 0: there is no room for anything."""

    def __init__(self, num_blocks: int) -> None:
        if type(num_blocks) is not int or num_blocks < 0:
            raise ValueError(f"the number of CPU blocks must be an integer of at least 0, not {num_blocks}")
        self.num_blocks = num_blocks
        self.pool = BlockPool(num_blocks or 1)              # where there is no room: a block that `put` never asks for
        self.tables: dict[int, SwappedTable] = {}

    @property
    def num_used(self) -> int:
        """CPU blocks that hold something."""
        return self.pool.num_used

    def put(self, blocks: Mapping[int, list[int]], entries: Mapping[int, list[int]]) -> dict[int, int] | None:
        """Room for the GPU blocks of each sequence, each distinct one once; returns GPU block -> CPU block, None: it is too full."""
        distinct = list(dict.fromkeys(block for table in blocks.values() for block in table))
        targets = self.pool.allocate(len(distinct)) if self.num_blocks else None
        if targets is None:
            return None
        moved = dict(zip(distinct, targets, strict=True))
        for seq_id, table in blocks.items():
            mine = [moved[block] for block in table]
            self.pool.share(mine)
            self.tables[seq_id] = SwappedTable(mine, list(entries[seq_id]))
        self.pool.free(targets)                             # the references of the allocation: the tables have their own now
        return moved

    def drop(self, seq_id: int) -> None:
        """The sequence has come back, or has ended."""
        self.pool.free(self.tables.pop(seq_id).blocks)

    def sharers(self, block: int) -> int:
        """Tables that refer to a CPU block."""
        return self.pool.ref_counts[block]

    def check(self) -> None:
        """Raise `IntegrityError` unless every reference is an entry of a table."""
        self.pool.check()
        entries = [0] * self.pool.num_blocks
        for table in self.tables.values():
            for block in table.blocks:
                entries[block] += 1
        if entries != self.pool.ref_counts:
            raise IntegrityError(f"CPU blocks count {self.pool.ref_counts} references but appear {entries} times in the swapped tables")
