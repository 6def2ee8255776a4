"""OwnManager: a KV manager in which only one question is open: *which* blocks does somebody get? A subclass answers it (Paper §4.2, §4.3).

Everything else is done here as the scheduler wants it: OK, LATER and NEVER, block tables, growth that is all or nothing, the report. Nothing is
shared and nothing is swapped: a preempted request is recomputed, a request of several branches computes each.

Two sets of books are kept, the subclass's and these. A block that is given out twice, does not exist, or never comes back is named at once.
"""
from __future__ import annotations

import operator
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from itertools import islice
from typing import Any

from ..checks import own_class
from ..core import events
from ..core.block_pool import IntegrityError
from ..core.block_table import num_blocks_for
from ..core.kv_manager import AllocStatus, KVManager, MemoryReport, check_block_size
from ..core.plan import Copy
from ..core.sequence import Request, Sequence


class OwnManager:
    """Subclass it and write `start`, `take`, `give` and `num_free`. ``LLM(kv_manager=YourClass)`` makes one and uses it."""

    shares_blocks = False
    needs_known_length = False

    def __init__(self, num_blocks: int, block_size: int, max_model_len: int = 2048) -> None:
        check_block_size(block_size)
        self.num_blocks, self.block_size, self.max_model_len = num_blocks, block_size, max_model_len
        self.emit: events.Emit | None = None
        self.reset()

    # -- yours ---------------------------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """All blocks, 0 to ``num_blocks - 1``, are free."""
        raise NotImplementedError("your turn")

    def take(self, count: int) -> list[int] | None:
        """``count`` free blocks, which are not free from now on; None, and nothing is changed, if there are not so many."""
        raise NotImplementedError("your turn")

    def give(self, blocks: list[int]) -> None:
        """``blocks`` are free again."""
        raise NotImplementedError("your turn")

    def num_free(self) -> int:
        """Blocks that `take` could give."""
        raise NotImplementedError("your turn")

    # -- admission -----------------------------------------------------------------------------------------------------------------
    def reset(self) -> None:
        self._tables: dict[int, list[int]] = {}
        self._frozen: dict[int, tuple[int, ...]] = {}
        self._sequences: dict[int, Sequence] = {}
        self._owner: dict[int, int] = {}        # block -> the sequence that has it
        self.start()

    def status(self, request: Request) -> AllocStatus:
        if request.live:
            need = most = sum(num_blocks_for(seq.num_tokens, self.block_size) for seq in request.live)
        else:
            need = most = num_blocks_for(len(request.prompt_token_ids), self.block_size)
        if not request.forked:                  # every branch will compute the prompt into blocks of its own
            most = max(most, request.n * self._first(request))
        if most > self.num_blocks:
            return AllocStatus.NEVER
        if need <= self._num_free():
            return AllocStatus.OK
        self.check()                            # for blocks that are lost one would wait for ever
        return AllocStatus.LATER

    def _first(self, request: Request) -> int:
        """Blocks of a branch with its prompt and one token."""
        return num_blocks_for(len(request.prompt_token_ids) + 1, self.block_size)

    def explain(self, request: Request) -> str:
        each = "" if request.n == 1 else f", each of its {request.n} branches"
        return f"needs {self._first(request)} blocks of {self.block_size} for its prompt and a first token{each}; the pool has {self.num_blocks}"

    def admit(self, seq: Sequence, num_tokens: int, leader: Sequence | None = None, num_led: int = 0) -> int | None:
        if seq.seq_id in self._tables:
            raise ValueError(f"sequence {seq.seq_id} has a block table already")
        new = self._take(seq, num_blocks_for(num_tokens, self.block_size))
        if new is None:
            return None
        self._sequences[seq.seq_id], self._tables[seq.seq_id] = seq, []
        self._append(seq, new)
        return 0

    def _take(self, seq: Sequence, count: int) -> list[int] | None:
        """What the subclass gives, after a look at it."""
        before = self._num_free()
        got = self.take(count)
        name = type(self).__name__
        if got is None:
            if self.num_free() != before:
                raise IntegrityError(f"{name}.take({count}) said None and kept {before - self.num_free()} of {before} free blocks: all or nothing")
            return None
        if not isinstance(got, Iterable):
            raise IntegrityError(f"{name}.take({count}) gave {got!r}: a list of {count} blocks was wanted, or None")
        blocks = list(islice(got, count + 1))
        if len(blocks) != count or len({*map(repr, blocks)}) != count:
            raise IntegrityError(f"{name}.take({count}) gave {blocks}: {count} different blocks were wanted")
        for block in blocks:
            if type(block) is not int or not 0 <= block < self.num_blocks:
                raise IntegrityError(f"{name}.take({count}) gave block {block!r}; there are 0 to {self.num_blocks - 1}")
            if block in self._owner:
                raise IntegrityError(f"{name}.take({count}) gave block {block}, which sequence {self._owner[block]} has")
        self._owner |= dict.fromkeys(blocks, seq.seq_id)
        return blocks

    def _num_free(self) -> int:
        """What the subclass says, if it is a number."""
        said = self.num_free()
        try:
            return operator.index(said)
        except TypeError:
            raise IntegrityError(f"{type(self).__name__}.num_free() gave {said!r}: a number of blocks was wanted") from None

    def _append(self, seq: Sequence, new: list[int]) -> None:
        table = self._tables[seq.seq_id]
        table += new
        self._frozen[seq.seq_id] = tuple(table)
        if new and self.emit is not None:
            self.emit(events.BlocksAllocated(seq.seq_id, tuple(new)))

    # -- growth --------------------------------------------------------------------------------------------------------------------
    def next_slot(self, seq: Sequence) -> tuple[int, tuple[int, ...]] | None:
        blocks, (index, offset) = self._frozen[seq.seq_id], divmod(seq.num_computed_tokens, self.block_size)
        return (blocks[index] * self.block_size + offset, blocks) if index < len(blocks) else None

    def reserve(self, seqs: Seq[Sequence], num_new: Seq[int], lookahead: int = 0) -> list[Copy] | None:
        missing = [
            max(0, num_blocks_for(seq.num_computed_tokens + count + lookahead, self.block_size) - len(self._tables[seq.seq_id])) if count else 0
            for seq, count in zip(seqs, num_new, strict=True)
        ]
        if sum(missing) > self._num_free():
            self.check()
            return None
        grown: list[tuple[Sequence, list[int]]] = []
        for seq, count in zip(seqs, missing):
            new = self._take(seq, count) if count else []
            if new is None:                     # it has fewer than it says: what was taken goes back
                for _, blocks in grown:
                    self._give(blocks)
                return None
            grown.append((seq, new))
        for seq, new in grown:
            self._append(seq, new)
        return []

    def commit(self, seq: Sequence, num_computed: int) -> None:
        if num_computed > len(self._tables[seq.seq_id]) * self.block_size:
            raise IntegrityError(f"sequence {seq.seq_id} computed {num_computed} tokens; its table is {self._tables[seq.seq_id]}")
        if self.emit is not None:
            self.emit(events.TokensWritten(seq.seq_id, num_computed))

    def fork(self, parent: Sequence, child: Sequence) -> bool:
        """No block is shared: the child is computed from its tokens."""
        return False

    # -- giving back ---------------------------------------------------------------------------------------------------------------
    def _give(self, blocks: list[int]) -> None:
        for block in blocks:
            del self._owner[block]
        if blocks:
            self.give(list(blocks))

    def free(self, seq: Sequence) -> None:
        blocks = self._tables.pop(seq.seq_id)
        del self._sequences[seq.seq_id], self._frozen[seq.seq_id]
        self._give(blocks)
        if self.emit is not None:
            self.emit(events.BlocksFreed(seq.seq_id, tuple(blocks)))

    def truncate(self, seq: Sequence, num_tokens: int) -> None:
        table, keep = self._tables[seq.seq_id], num_blocks_for(num_tokens, self.block_size)
        if not 0 <= num_tokens <= len(table) * self.block_size:
            raise ValueError(f"sequence {seq.seq_id} cannot be cut to {num_tokens} tokens: its table is {table}")
        dropped = table[keep:]
        del table[keep:]
        self._frozen[seq.seq_id] = tuple(table)
        self._give(dropped)
        if dropped and self.emit is not None:
            self.emit(events.BlocksFreed(seq.seq_id, tuple(dropped)))

    def swap_out(self, seqs: Seq[Sequence]) -> list[Copy] | None:
        return None

    def swap_in(self, seqs: Seq[Sequence]) -> list[Copy] | None:
        raise ValueError(f"sequences {[seq.seq_id for seq in seqs]} are not swapped out: this manager recomputes")

    # -- reading -------------------------------------------------------------------------------------------------------------------
    def holds(self, seq: Sequence) -> bool:
        return seq.seq_id in self._tables

    def table(self, seq: Sequence) -> list[int]:
        return list(self._tables[seq.seq_id])

    def slots(self, seq: Sequence, start: int, stop: int) -> tuple[int, ...]:
        table, size = self._tables[seq.seq_id], self.block_size
        return tuple(table[position // size] * size + position % size for position in range(start, stop))

    def report(self) -> MemoryReport:
        states = reservation = used = 0
        for seq_id, table in self._tables.items():
            seq, capacity = self._sequences[seq_id], len(table) * self.block_size
            states += seq.num_computed_tokens
            reservation += max(0, min(seq.longest, capacity) - seq.num_computed_tokens)
            used += len(table)
        total = self.num_blocks * self.block_size
        return MemoryReport(
            total=total, token_states=states, reservation=reservation, internal=used * self.block_size - states - reservation,
            external=total - used * self.block_size, num_sequences=len(self._tables), num_used_blocks=used,
        )

    def check(self) -> None:
        free, held = self._num_free(), len(self._owner)
        if free + held != self.num_blocks:
            raise IntegrityError(f"{free} free blocks and {held} in tables are not the {self.num_blocks} of the pool")


def check_manager(manager: Any) -> None:
    """Raise TypeError that names what a reader's KV manager lacks of the `KVManager` protocol."""
    methods = [name for name, value in vars(KVManager).items() if callable(value) and not name.startswith("_")]
    own_class("KV manager", manager, methods, attributes=("num_blocks", "block_size", "shares_blocks", "needs_known_length", "emit"))
