"""PagedKVManager: blocks on demand, shared between sequences, copied on write, kept for later hits, swapped (Paper §4.2-4.5).

Every sequence that runs has one `BlockTable` over one `BlockPool`. What each method promises is said once, in `KVManager`.
"""
from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import takewhile

from . import events
from .block_pool import BlockPool, IntegrityError
from .block_table import BlockTable, block_fills, num_blocks_for
from .kv_manager import AllocStatus, MemoryReport, check_block_size
from .plan import Copy
from .prefix_index import ROOT, PrefixIndex
from .sequence import Request, Sequence
from .swap import SwapSpace


class PagedKVManager:
    """Blocks from one pool, through one table a sequence.

    ``watermark``: share of the pool that admission leaves free for the requests that already run; it never holds back a request that has
    the pool to itself. ``prefix_caching``: full blocks stay findable by their text after their sequence has ended. ``num_cpu_blocks``: room for
    swapped-out blocks in host memory; with 0, `swap_out` answers None, "full".
    """

    shares_blocks = True
    needs_known_length = False

    def __init__(
        self, num_blocks: int, block_size: int, watermark: float = 0.0, emit: events.Emit | None = None, *, prefix_caching: bool = False,
        num_cpu_blocks: int = 0,
    ) -> None:
        check_block_size(block_size)
        if not 0 <= watermark < 1:
            raise ValueError(f"watermark is a share of the pool, at least 0 and below 1, not {watermark}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.watermark_blocks = int(watermark * num_blocks)
        self.emit = emit
        self.prefix_caching = prefix_caching
        self.num_cpu_blocks = num_cpu_blocks
        self.reset()

    def reset(self) -> None:
        self.index = PrefixIndex() if self.prefix_caching else None
        self.pool = BlockPool(self.num_blocks, self.index)
        self.swapped = SwapSpace(self.num_cpu_blocks)
        self.tables: dict[int, BlockTable] = {}
        self._sequences: dict[int, Sequence] = {}

    # -- admission -----------------------------------------------------------------------------------------------------------------
    def status(self, request: Request) -> AllocStatus:
        spare = self.watermark_blocks if self.pool.num_used else 0
        if any(seq.seq_id in self.swapped.tables for seq in request.live):
            need, most = self._blocks_to_return(request.live)
        elif request.live:
            most = sum(num_blocks_for(seq.num_tokens, self.block_size) - seq.num_led_tokens // self.block_size for seq in request.live)
            short = self.pool.num_available - most < spare              # only then it matters which of them others hold already
            need = most - (sum(self._hits_in_use(seq) for seq in request.live) if short else 0)
        else:
            need = most = num_blocks_for(len(request.prompt_token_ids), self.block_size)
        if not request.forked and request.max_tokens > 1:   # every branch will write a block of its own
            most = max(most, len(request.prompt_token_ids) // self.block_size + request.n)
        if most > self.num_blocks:
            return AllocStatus.NEVER
        return AllocStatus.OK if self.pool.num_available - need >= spare else AllocStatus.LATER

    def explain(self, request: Request) -> str:
        need = num_blocks_for(len(request.prompt_token_ids), self.block_size)
        also = f", and each of the {request.n} branches a block of its own" if need <= self.num_blocks else ""
        return f"needs {need} blocks of {self.block_size}{also}; the pool has {self.num_blocks}"

    def _lookup(self, seq: Sequence, num_tokens: int) -> list[tuple[int, int]]:
        """``(entry, block)`` of the full blocks at the beginning of ``seq`` that the prefix index has.

        A hit is not computed and gives no logits: a request that wants those of its prompt finds no more than it has had them for.
        """
        if self.index is None:
            return []
        if seq.request.num_prompt_logits is not None:
            num_tokens = min(num_tokens, seq.request.num_prompt_logits)
        return self.index.lookup(seq.token_ids[:num_tokens], self.block_size, seq.request.cache_salt)

    def _hits_in_use(self, seq: Sequence) -> int:
        """How many of its hits cost no available block, since another table holds them. Its leader's blocks are counted already."""
        return sum(self.pool.ref_counts[block] > 0 for _, block in self._lookup(seq, seq.num_tokens)) if seq.leader is None else 0

    def admit(self, seq: Sequence, num_tokens: int, leader: Sequence | None = None, num_led: int = 0) -> int | None:
        if seq.seq_id in self.tables:
            raise ValueError(f"sequence {seq.seq_id} has a block table already")
        num_shared = num_led // self.block_size if leader is not None else 0
        hits = self._lookup(seq, num_tokens)[num_shared:]
        pinned = sum(self.pool.ref_counts[block] == 0 for _, block in hits)
        if num_blocks_for(num_tokens, self.block_size) - num_shared - len(hits) > self.pool.num_available - pinned:
            return None
        table = BlockTable(self.pool, self.block_size) if leader is None else self.tables[leader.seq_id].fork(num_led)
        self._register(seq, table)
        # Hits are pinned before a new block is taken: a new block may overwrite whatever is cached and not pinned.
        self.pool.share([block for _, block in hits])
        table.blocks += [block for _, block in hits]
        table.entries += [entry for entry, _ in hits]
        num_cached = len(table) * self.block_size
        if num_cached and self.emit is not None:
            self.emit(events.BlocksShared(seq.seq_id, tuple(table.blocks)))
        self._grow(seq, num_tokens)
        return num_cached

    # -- growth --------------------------------------------------------------------------------------------------------------------
    def next_slot(self, seq: Sequence) -> tuple[int, tuple[int, ...]] | None:
        table, position, size = self.tables[seq.seq_id], seq.num_computed_tokens, self.block_size
        if table.frozen is None:
            table.frozen = tuple(table.blocks)
        blocks, index = table.frozen, position // size
        # In a block of its own that is not full yet. Where the cache has the whole text, the last token is queried and not written.
        if len(table.entries) <= index < len(blocks) and self.pool.ref_counts[blocks[index]] == 1:
            return blocks[index] * size + position % size, blocks
        return None

    def reserve(self, seqs: Seq[Sequence], num_new: Seq[int], lookahead: int = 0) -> list[Copy] | None:
        if len(seqs) == 1 and num_new[0] and seqs[0].num_computed_tokens == len(self.tables[seqs[0].seq_id].blocks) * self.block_size:
            # Alone and at the end of its table: nothing that it writes is shared, and growing is all or nothing by itself.
            return [] if self._grow(seqs[0], seqs[0].num_computed_tokens + num_new[0] + lookahead) else None
        need = 0
        writers: dict[int, list[tuple[Sequence, int]]] = {}     # shared block -> who writes to it, and its logical index there
        growing = [(seq, seq.num_computed_tokens + count + lookahead) for seq, count in zip(seqs, num_new, strict=True) if count]
        for seq, stop in growing:
            table = self.tables[seq.seq_id]
            start = max(seq.num_computed_tokens, len(table.entries) * self.block_size)     # what the index knows is not written again
            need += table.blocks_needed(stop)
            for index in table.shared_indexes(start, stop):
                writers.setdefault(table.blocks[index], []).append((seq, index))
        # Of k tables that refer to a block, w <= k write to it: w copies, or k - 1 when all of them write (the last one in place).
        need += sum(min(len(w), self.pool.ref_counts[block] - 1) for block, w in writers.items())
        if need > self.pool.num_available:
            return None
        copies = []
        for writer in writers.values():
            for seq, index in writer:
                copy = self.tables[seq.seq_id].copy_on_write(index)
                if copy is not None:
                    copies.append(copy)
                    if self.emit is not None:
                        self.emit(events.BlockCopied(seq.seq_id, index, copy.src, copy.dst))
        for seq, stop in growing:
            self._grow(seq, stop)
        return copies

    def _grow(self, seq: Sequence, num_tokens: int) -> bool:
        new = self.tables[seq.seq_id].grow(num_tokens)
        if new and self.emit is not None:
            self.emit(events.BlocksAllocated(seq.seq_id, tuple(new)))
        return new is not None

    def commit(self, seq: Sequence, num_computed: int) -> None:
        table = self.tables[seq.seq_id]
        if num_computed > (held := len(table.blocks) * self.block_size):
            raise IntegrityError(f"sequence {seq.seq_id} computed {num_computed} tokens but its table holds {held}")
        if self.emit is not None:
            self.emit(events.TokensWritten(seq.seq_id, num_computed))
        if self.index is not None and (len(table.entries) + 1) * self.block_size <= num_computed:
            self._enter(self.index, seq, table, num_computed)

    def _enter(self, index: PrefixIndex, seq: Sequence, table: BlockTable, num_computed: int) -> None:
        """Make the blocks that are now full findable. Not before: an entry promises that the block has been computed."""
        entered: dict[int, tuple[int, int]] = {}
        for i in range(len(table.entries), num_computed // self.block_size):
            tokens = tuple(seq.token_ids[i * self.block_size : (i + 1) * self.block_size])
            parent = table.entries[-1] if table.entries else ROOT
            table.entries.append(index.register(table.blocks[i], parent, tokens, seq.request.cache_salt))
            if index.block_of(table.entries[-1]) == table.blocks[i]:        # else another block has the same text already
                entered[table.blocks[i]] = table.entries[-1], parent
        if entered and self.emit is not None:
            self.emit(events.BlocksEntered(seq.seq_id, tuple(entered), tuple(entered.values()), seq.request.cache_salt))

    def fork(self, parent: Sequence, child: Sequence) -> bool:
        if child.seq_id in self.tables:
            raise ValueError(f"sequence {child.seq_id} has a block table already")
        self._register(child, self.tables[parent.seq_id].fork())
        if self.emit is not None:
            self.emit(events.TableForked(parent.seq_id, child.seq_id))
        return True

    # -- giving back ---------------------------------------------------------------------------------------------------------------
    def truncate(self, seq: Sequence, num_tokens: int) -> None:
        table, index = self.tables[seq.seq_id], self.index
        at = num_tokens // self.block_size
        known = at < len(table) and index is not None and table.blocks[at] in index
        dropped = table.truncate(num_tokens)
        if self.emit is not None:
            if dropped:
                self.emit(events.BlocksFreed(seq.seq_id, tuple(dropped)))
            if known and at < len(table) and index is not None and table.blocks[at] not in index:
                self.emit(events.BlocksForgotten((table.blocks[at],)))

    def free(self, seq: Sequence) -> None:
        if seq.seq_id in self.swapped.tables:
            self.swapped.drop(seq.seq_id)
            if self.emit is not None:
                self.emit(events.CpuBlocksFreed(seq.seq_id))
            return
        dropped = self._drop_table(seq)
        if self.emit is not None:
            self.emit(events.BlocksFreed(seq.seq_id, tuple(dropped)))

    def _drop_table(self, seq: Sequence) -> list[int]:
        del self._sequences[seq.seq_id]
        return self.tables.pop(seq.seq_id).release()

    def reset_prefix_cache(self) -> int:
        """Forget every cached text, that of running sequences included; returns how many blocks could be found until now."""
        known = tuple(self.index) if self.index is not None else ()
        self.pool.forget_cached()
        if self.emit is not None:
            self.emit(events.BlocksForgotten(known))
        return len(known)

    # -- swapping (Paper §4.5) -----------------------------------------------------------------------------------------------------
    def swap_out(self, seqs: Seq[Sequence]) -> list[Copy] | None:
        tables = {seq.seq_id: self.tables[seq.seq_id] for seq in seqs}
        computed = {seq.seq_id: tables[seq.seq_id].blocks[: num_blocks_for(seq.num_computed_tokens, self.block_size)] for seq in seqs}
        moved = self.swapped.put(computed, {seq_id: table.entries for seq_id, table in tables.items()})
        if moved is None:
            return None
        for seq in seqs:
            self._drop_table(seq)
            if self.emit is not None:
                self.emit(events.BlocksSwappedOut(seq.seq_id, tuple(self.swapped.tables[seq.seq_id].blocks)))
        return [Copy(block, target) for block, target in moved.items()]

    def swap_in(self, seqs: Seq[Sequence]) -> list[Copy] | None:
        if missing := [seq.seq_id for seq in seqs if seq.seq_id not in self.swapped.tables]:
            raise ValueError(f"sequences {missing} are not swapped out")
        hits, fresh = self._split_swapped(seqs)
        if self._blocks_to_return(seqs)[0] > self.pool.num_available:
            return None
        self.pool.share(list(hits.values()))                # pinned before a new block is taken, as in `admit`
        arrived = hits | dict(zip(fresh, self.pool.allocate(len(fresh)) or (), strict=True))
        for seq in seqs:
            swapped = self.swapped.tables[seq.seq_id]
            blocks = [arrived[block] for block in swapped.blocks]
            self.pool.share(blocks)
            known = list(takewhile(lambda entry: self._block_of(entry) is not None, swapped.entries))
            self._register(seq, BlockTable(self.pool, self.block_size, blocks, known))
            self.swapped.drop(seq.seq_id)
            if self.emit is not None:
                self.emit(events.BlocksSwappedIn(seq.seq_id, tuple(blocks), tuple(arrived[b] for b in swapped.blocks if b not in hits)))
        for block in arrived.values():                      # one by one: two CPU blocks may have the same text, and then one hit
            self.pool.free([block])
        return [Copy(block, arrived[block]) for block in fresh]

    def _block_of(self, entry: int) -> int | None:
        return self.index.block_of(entry) if self.index is not None else None

    def _split_swapped(self, seqs: Seq[Sequence]) -> tuple[dict[int, int], list[int]]:
        """The CPU blocks of ``seqs``: those whose text is still in the GPU pool, with the block there, and those to copy back."""
        hits: dict[int, int] = {}
        blocks: dict[int, None] = {}
        for seq in seqs:
            table = self.swapped.tables[seq.seq_id]
            blocks |= dict.fromkeys(table.blocks)
            for block, entry in zip(table.blocks, table.entries):
                if (hit := self._block_of(entry)) is not None:
                    hits[block] = hit
        return hits, [block for block in blocks if block not in hits]

    def _blocks_to_return(self, seqs: Seq[Sequence]) -> tuple[int, int]:
        """Blocks that swapped sequences need to come back and compute all tokens that they have: ``(of the available ones, in all)``.

        The first leaves out hits that another table holds: those are shared. The second says whether they fit the pool at all.
        """
        hits, fresh = self._split_swapped(seqs)
        growth = 0
        writers: dict[int, int] = {}
        for seq in seqs:
            blocks = self.swapped.tables[seq.seq_id].blocks
            growth += num_blocks_for(seq.num_tokens, self.block_size) - len(blocks)
            index = seq.num_computed_tokens // self.block_size
            if index < len(blocks):
                writers[blocks[index]] = writers.get(blocks[index], 0) + 1
        copies = sum(min(count, self.swapped.sharers(block) - 1) for block, count in writers.items())
        idle = {hit for hit in hits.values() if self.pool.ref_counts[hit] == 0}
        return len(fresh) + len(idle) + growth + copies, len(fresh) + len(set(hits.values())) + growth + copies

    # -- reading -------------------------------------------------------------------------------------------------------------------
    def holds(self, seq: Sequence) -> bool:
        return seq.seq_id in self.tables or seq.seq_id in self.swapped.tables

    def table(self, seq: Sequence) -> list[int]:
        return self.tables[seq.seq_id].blocks

    def slots(self, seq: Sequence, start: int, stop: int) -> tuple[int, ...]:
        return self.tables[seq.seq_id].slots(start, stop)

    def report(self) -> MemoryReport:
        fill: dict[int, int] = {}       # physical block -> slots that hold a token
        longest: dict[int, int] = {}    # physical block -> slots that will hold one if its requests run to their longest
        for seq_id, table in self.tables.items():
            seq = self._sequences[seq_id]
            now = block_fills(seq.num_computed_tokens, self.block_size, len(table))
            later = block_fills(seq.longest, self.block_size, len(table))
            for block, filled, final in zip(table.blocks, now, later, strict=True):
                fill[block] = max(fill.get(block, 0), filled)
                longest[block] = max(longest.get(block, 0), final)
        states, used, entries = sum(fill.values()), len(fill) * self.block_size, sum(len(t) for t in self.tables.values())
        reservation = sum(max(0, longest[block] - filled) for block, filled in fill.items())
        total = self.num_blocks * self.block_size
        return MemoryReport(
            total=total, token_states=states, reservation=reservation, internal=used - states - reservation, external=total - used,
            num_sequences=len(self.tables), shared_saved=entries - len(fill), cached=self.pool.num_cached * self.block_size,
            swapped=self.swapped.num_used * self.block_size, num_used_blocks=len(fill),
        )

    def check(self) -> None:
        self.pool.check()
        self.swapped.check()
        entries = [0] * self.num_blocks
        for table in self.tables.values():
            for block in table.blocks:
                entries[block] += 1
        for block, (count, listed) in enumerate(zip(self.pool.ref_counts, entries, strict=True)):
            if count != listed:
                raise IntegrityError(f"block {block} has a reference count of {count} but appears in {listed} of the block tables")
        if both := self.tables.keys() & self.swapped.tables.keys():
            raise IntegrityError(f"sequences {sorted(both)} have a table here and one in host memory")
        for seq_id, table in self.tables.items():
            computed, held = self._sequences[seq_id].num_computed_tokens, len(table) * self.block_size
            if computed > held:
                raise IntegrityError(f"sequence {seq_id} computed {computed} tokens but its table holds {held}")
            if len(table.entries) * self.block_size > computed + 1:     # + 1: of a text that is cached whole the last token is queried again
                raise IntegrityError(f"sequence {seq_id} computed {computed} tokens but has {len(table.entries)} full blocks in the prefix index")

    def _register(self, seq: Sequence, table: BlockTable) -> None:
        self.tables[seq.seq_id] = table
        self._sequences[seq.seq_id] = seq
