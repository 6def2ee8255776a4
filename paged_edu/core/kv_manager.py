"""KVManager: who decides which blocks a sequence gets (Paper §4.2-4.4). The protocol, and `PagedKVManager`, the paper's.

The scheduler asks a manager and never touches a block itself, so the same scheduler drives the paged manager, the contiguous ones that
came before it, and a reader's own.
"""
from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from . import events
from .block_pool import BlockPool, IntegrityError
from .block_table import BlockTable, block_fills, num_blocks_for
from .plan import Copy
from .sequence import Request, Sequence


class AllocStatus(StrEnum):
    """Can a request get its blocks?"""

    OK = "ok"
    LATER = "later"
    """Not now; once others have given blocks back."""
    NEVER = "never"
    """Not even alone in an empty pool."""


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """What the slots of the KV cache hold, in slots of one token; the four parts of Paper Fig. 2 add up to ``total``."""

    total: int
    token_states: int
    """Slots that hold the keys and values of a token. A shared slot counts once."""
    reservation: int
    """Allocated, empty, and needed later if the request runs to its longest (``max_tokens``)."""
    internal: int
    """Internal fragmentation: allocated and never to be used, even at the longest."""
    external: int
    """Not allocated: free blocks (for contiguous managers also the holes between reservations)."""
    num_sequences: int
    """Sequences that hold blocks."""
    shared_saved: int = 0
    """Blocks that would exist in addition if no table shared a block (Paper Fig. 15)."""

    def shares(self) -> dict[str, float]:
        """The four parts as fractions of the total."""
        return {name: getattr(self, name) / self.total for name in ("token_states", "reservation", "internal", "external")}

    def __str__(self) -> str:
        parts = ", ".join(f"{name.replace('_', ' ')} {share:.1%}" for name, share in self.shares().items())
        return f"{self.num_sequences} sequences in {self.total} slots: {parts}"


class KVManager(Protocol):
    """Memory management behind the scheduler. Every method that allocates does it wholly or not at all."""

    num_blocks: int
    block_size: int
    emit: events.Emit | None

    def status(self, request: Request) -> AllocStatus:
        """Whether all live branches of the request, with all tokens that they have now (not queued yet: its prompt), could be admitted."""
        ...

    def admit(self, seq: Sequence, num_tokens: int) -> int | None:
        """Give ``seq`` a table for ``num_tokens`` tokens; returns how many of them the cache holds already, None: no room."""
        ...

    def reserve(self, seqs: Seq[Sequence], num_new: Seq[int], lookahead: int = 0) -> list[Copy] | None:
        """Room for the next ``num_new[i]`` tokens of each sequence, for all of them or for none (None).

        ``lookahead``: slots beyond that, for draft tokens. Returns the copy-on-write that the writes need (Paper §4.4).
        """
        ...

    def commit(self, seq: Sequence, num_computed: int) -> None:
        """The first ``num_computed`` tokens of ``seq`` are in the cache now."""
        ...

    def fork(self, parent: Sequence, child: Sequence) -> list[Copy]:
        """``child`` starts with ``parent``'s tokens: shared blocks (paged: no copies) or a copied run (contiguous)."""
        ...

    def truncate(self, seq: Sequence, num_tokens: int) -> None:
        """Give back what lies beyond the first ``num_tokens`` tokens."""
        ...

    def swap_out(self, seqs: Seq[Sequence]) -> list[Copy] | None:
        """Move the sequences' blocks to the CPU pool; None when it is too full."""
        ...

    def swap_in(self, seqs: Seq[Sequence]) -> list[Copy] | None:
        """Bring them back; None when the GPU pool is too full."""
        ...

    def free(self, seq: Sequence) -> None:
        """Give back everything that ``seq`` holds."""
        ...

    def reset(self) -> None:
        """Forget every table; all blocks are free."""
        ...

    def holds(self, seq: Sequence) -> bool:
        """Whether ``seq`` has a table."""
        ...

    def table(self, seq: Sequence) -> list[int]:
        """The block table: physical block of each logical block."""
        ...

    def slots(self, seq: Sequence, start: int, stop: int) -> tuple[int, ...]:
        """The slots of positions ``start .. stop - 1``."""
        ...

    def report(self) -> MemoryReport:
        """What the memory holds now."""
        ...

    def check(self) -> None:
        """Raise `IntegrityError` if an invariant is broken."""
        ...


class PagedKVManager:
    """Blocks on demand, from one pool, through one table a sequence (Paper §4.3).

    ``watermark`` is the share of the pool that admission leaves free for the requests that already run; it never holds back a request
    that has the pool to itself. There is no CPU pool yet: `swap_out` answers None, "full", and the scheduler recomputes.
    """

    def __init__(self, num_blocks: int, block_size: int, watermark: float = 0.0, emit: events.Emit | None = None) -> None:
        if type(block_size) is not int or not 1 <= block_size <= 256:
            raise ValueError(f"block_size must be an integer between 1 and 256, not {block_size}")
        if not 0 <= watermark < 1:
            raise ValueError(f"watermark is a share of the pool, at least 0 and below 1, not {watermark}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.watermark_blocks = int(watermark * num_blocks)
        self.emit = emit
        self.pool = BlockPool(num_blocks)
        self.tables: dict[int, BlockTable] = {}
        self._sequences: dict[int, Sequence] = {}

    # -- admission (what each method promises: `KVManager`) ------------------------------------------------------------------------
    def status(self, request: Request) -> AllocStatus:
        lengths = [seq.num_tokens for seq in request.live] or [len(request.prompt_token_ids)]
        need = sum(num_blocks_for(length, self.block_size) for length in lengths)
        if need > self.num_blocks:
            return AllocStatus.NEVER
        spare = self.watermark_blocks if self.pool.num_used else 0
        return AllocStatus.OK if self.pool.num_free - need >= spare else AllocStatus.LATER

    def admit(self, seq: Sequence, num_tokens: int) -> int | None:
        if seq.seq_id in self.tables:
            raise ValueError(f"sequence {seq.seq_id} has a block table already")
        table = BlockTable(self.pool, self.block_size)
        new = table.grow(num_tokens)
        if new is None:
            return None
        self._register(seq, table)
        if self.emit is not None:
            self.emit(events.BlocksAllocated(seq.seq_id, tuple(new)))
        return 0

    # -- growth --------------------------------------------------------------------------------------------------------------------
    def reserve(self, seqs: Seq[Sequence], num_new: Seq[int], lookahead: int = 0) -> list[Copy] | None:
        if len(seqs) == 1 and num_new[0] == 1 and not lookahead:
            # Decoding, most steps: the next slot is in a block that the table has and shares with nobody. Written out: calls cost 10 % here.
            blocks, index = self.tables[seqs[0].seq_id].blocks, seqs[0].num_computed_tokens // self.block_size
            if index < len(blocks) and self.pool.ref_counts[blocks[index]] == 1:
                return []
        need = 0
        writers: dict[int, list[tuple[Sequence, int]]] = {}     # shared block -> who writes to it, and its logical index there
        for seq, count in zip(seqs, num_new, strict=True):
            if count:
                table, start = self.tables[seq.seq_id], seq.num_computed_tokens
                stop = start + count + lookahead
                need += table.blocks_needed(stop)
                for index in table.shared_indexes(start, stop):
                    writers.setdefault(table.blocks[index], []).append((seq, index))
        # Of k tables that refer to a block, w <= k write to it: w copies, or k - 1 when all of them write (the last one in place).
        need += sum(min(len(w), self.pool.ref_counts[block] - 1) for block, w in writers.items())
        if need > self.pool.num_free:
            return None
        copies = []
        for writer in writers.values():
            for seq, index in writer:
                copy = self.tables[seq.seq_id].copy_on_write(index)
                if copy is not None:
                    copies.append(copy)
                    if self.emit is not None:
                        self.emit(events.BlockCopied(seq.seq_id, index, copy.src, copy.dst))
        for seq, count in zip(seqs, num_new, strict=True):
            if count:
                new = self.tables[seq.seq_id].grow(seq.num_computed_tokens + count + lookahead)
                if new and self.emit is not None:
                    self.emit(events.BlocksAllocated(seq.seq_id, tuple(new)))
        return copies

    def commit(self, seq: Sequence, num_computed: int) -> None:
        held = len(self.tables[seq.seq_id].blocks) * self.block_size
        if num_computed > held:
            raise IntegrityError(f"sequence {seq.seq_id} computed {num_computed} tokens but its table holds {held}")
        if self.emit is not None:
            self.emit(events.TokensWritten(seq.seq_id, num_computed))

    def fork(self, parent: Sequence, child: Sequence) -> list[Copy]:
        if child.seq_id in self.tables:
            raise ValueError(f"sequence {child.seq_id} has a block table already")
        self._register(child, self.tables[parent.seq_id].fork())
        if self.emit is not None:
            self.emit(events.TableForked(parent.seq_id, child.seq_id))
        return []

    # -- giving back ---------------------------------------------------------------------------------------------------------------
    def truncate(self, seq: Sequence, num_tokens: int) -> None:
        dropped = self.tables[seq.seq_id].truncate(num_tokens)
        if dropped and self.emit is not None:
            self.emit(events.BlocksFreed(seq.seq_id, tuple(dropped)))

    def free(self, seq: Sequence) -> None:
        dropped = self.tables.pop(seq.seq_id).release()
        del self._sequences[seq.seq_id]
        if self.emit is not None:
            self.emit(events.BlocksFreed(seq.seq_id, tuple(dropped)))

    def reset(self) -> None:
        self.pool = BlockPool(self.num_blocks)
        self.tables.clear()
        self._sequences.clear()

    def swap_out(self, seqs: Seq[Sequence]) -> list[Copy] | None:
        return None

    def swap_in(self, seqs: Seq[Sequence]) -> list[Copy] | None:
        raise ValueError(f"sequences {[s.seq_id for s in seqs]} are not swapped out")

    # -- reading -------------------------------------------------------------------------------------------------------------------
    def holds(self, seq: Sequence) -> bool:
        return seq.seq_id in self.tables

    def table(self, seq: Sequence) -> list[int]:
        return self.tables[seq.seq_id].blocks

    def slots(self, seq: Sequence, start: int, stop: int) -> tuple[int, ...]:
        return self.tables[seq.seq_id].slots(start, stop)

    def report(self) -> MemoryReport:
        fill: dict[int, int] = {}       # physical block -> slots that hold a token
        longest: dict[int, int] = {}    # physical block -> slots that will hold one if its requests run to their longest
        for seq_id, table in self.tables.items():
            seq = self._sequences[seq_id]
            # The last sampled token is never a query, so its keys and values are never written.
            end = max(seq.num_tokens, len(seq.request.prompt_token_ids) + seq.request.max_tokens - 1)
            now = block_fills(seq.num_computed_tokens, self.block_size, len(table))
            later = block_fills(end, self.block_size, len(table))
            for block, filled, final in zip(table.blocks, now, later, strict=True):
                fill[block] = max(fill.get(block, 0), filled)
                longest[block] = max(longest.get(block, 0), final)
        states, used, entries = sum(fill.values()), len(fill) * self.block_size, sum(len(t) for t in self.tables.values())
        reservation = sum(max(0, longest[block] - filled) for block, filled in fill.items())
        total = self.num_blocks * self.block_size
        return MemoryReport(
            total=total, token_states=states, reservation=reservation, internal=used - states - reservation, external=total - used,
            num_sequences=len(self.tables), shared_saved=entries - len(fill),
        )

    def check(self) -> None:
        self.pool.check()
        entries = [0] * self.num_blocks
        for table in self.tables.values():
            for block in table.blocks:
                entries[block] += 1
        for block, (count, listed) in enumerate(zip(self.pool.ref_counts, entries, strict=True)):
            if count != listed:
                raise IntegrityError(f"block {block} counts {count} references but appears in {listed} block tables")
        for seq_id, table in self.tables.items():
            computed, held = self._sequences[seq_id].num_computed_tokens, len(table) * self.block_size
            if computed > held:
                raise IntegrityError(f"sequence {seq_id} computed {computed} tokens but its table holds {held}")

    def _register(self, seq: Sequence, table: BlockTable) -> None:
        self.tables[seq.seq_id] = table
        self._sequences[seq.seq_id] = seq
