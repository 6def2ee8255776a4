"""ContiguousKVManager: what came before PagedAttention (Paper §3.1, §6.1). Every sequence lies in one run of consecutive blocks.

The run is reserved when the request is admitted, for as many tokens as the request *may* need. Orca's three variants differ in what they know:
"max" reserves ``max_model_len``, "pow2" the prompt and the next power of two of the output's length, "oracle" the prompt and the output itself.
"grow" reserves what is there and moves to a run of twice the size when that is full. Nothing can be shared: a fork gets a run of its own and a copy.

A run is a part of the same cache that paging uses; its table is ``start, start + 1, ...``, so scheduler, runners and kernels see no difference.
"""
from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from . import events
from .block_pool import IntegrityError
from .block_table import num_blocks_for
from .buddy import BuddyAllocator, order_for
from .kv_manager import AllocStatus, MemoryReport, check_block_size
from .plan import Copy
from .sequence import Request, Sequence

RESERVATIONS = ("max", "pow2", "oracle", "grow")


@dataclass(slots=True)
class _Held:
    """What a sequence holds."""

    seq: Sequence
    start: int
    """First block of its run."""
    blocks: tuple[int, ...]
    """All blocks of it: its block table."""
    capacity: int
    """Tokens that are reserved; what its run has beyond them is the buddy allocator's rounding."""
    spares: list[int] = field(default_factory=list)
    """Runs for the branches that it will fan out into."""
    source: int | None = None
    """The run that its tokens are still to be copied from; held until the step that copies them has run."""
    copied: bool = False
    """Those copies are part of a plan."""


class ContiguousKVManager:
    """One run of consecutive blocks a sequence, of `BuddyAllocator`.

    ``reservation``: one of `RESERVATIONS`; "pow2" and "oracle" take ``Request.max_tokens`` for the true length of the output.
    ``max_model_len``: tokens. A request of ``n`` branches gets its ``n`` runs at admission. Host memory is not used: `swap_out` answers None,
    and the scheduler recomputes. Raises ValueError for sizes and names that cannot be.
    """

    shares_blocks = False

    def __init__(self, num_blocks: int, block_size: int, reservation: str, max_model_len: int, emit: events.Emit | None = None) -> None:
        check_block_size(block_size)
        if reservation not in RESERVATIONS:
            raise ValueError(f"reservation must be one of {', '.join(RESERVATIONS)}, not {reservation!r}")
        if type(max_model_len) is not int or max_model_len < 1:
            raise ValueError(f"max_model_len must be an integer of at least 1, not {max_model_len}")
        self.num_blocks, self.block_size = num_blocks, block_size
        self.reservation = reservation
        self.max_model_len = max_model_len
        self.needs_known_length = reservation in ("pow2", "oracle")
        self.emit = emit
        self.num_copied_blocks = 0
        """Blocks that were copied so far because a run moved or was forked."""
        self.reset()

    def reset(self) -> None:
        self.buddy = BuddyAllocator(self.num_blocks)
        self._held: dict[int, _Held] = {}

    # -- admission -----------------------------------------------------------------------------------------------------------------
    def reserved_tokens(self, request: Request, num_tokens: int) -> int:
        """Tokens that are reserved for a branch of ``request`` that has ``num_tokens`` now."""
        prompt, output = len(request.prompt_token_ids), request.max_tokens
        if self.reservation == "grow":
            return num_tokens
        if self.reservation == "max":
            return self.max_model_len
        if self.reservation == "pow2":
            output = 1 << (output - 1).bit_length()         # the next power of two
        return min(prompt + output, self.max_model_len)

    def _order(self, tokens: int) -> int:
        return order_for(num_blocks_for(tokens, self.block_size))

    def _orders(self, request: Request) -> list[int]:
        """The runs that the request would be admitted with."""
        if request.forked and request.live:
            return [self._order(self.reserved_tokens(request, seq.num_tokens)) for seq in request.live]
        num_tokens = request.live[0].num_tokens if request.live else len(request.prompt_token_ids)
        return [self._order(self.reserved_tokens(request, num_tokens))] * request.n

    def status(self, request: Request) -> AllocStatus:
        orders = self._orders(request)
        if not self.buddy.fits(orders, empty=True):
            return AllocStatus.NEVER
        return AllocStatus.OK if self.buddy.fits(orders) else AllocStatus.LATER

    def explain(self, request: Request) -> str:
        tokens = self.reserved_tokens(request, len(request.prompt_token_ids))
        size, runs = 1 << self._order(tokens), "a run" if request.n == 1 else f"{request.n} runs"
        return (
            f"needs {runs} of {size} block{'s' * (size > 1)} of {self.block_size} ({self.reservation!r} reserves {tokens} tokens in each); "
            f"the pool has {self.num_blocks}, its largest run {self.buddy.largest()}"
        )

    def admit(self, seq: Sequence, num_tokens: int, leader: Sequence | None = None, num_led: int = 0) -> int | None:
        if seq.seq_id in self._held:
            raise ValueError(f"sequence {seq.seq_id} has a run already")
        tokens = self.reserved_tokens(seq.request, num_tokens)
        order, runs = self._order(tokens), 1 if seq.request.forked else seq.request.n
        if not self.buddy.fits([order] * runs):
            return None
        start, *spares = [start for _ in range(runs) if (start := self.buddy.allocate(order)) is not None]
        self._held[seq.seq_id] = held = _Held(seq, start, self._blocks(start), self._capacity(tokens, start), spares)
        if self.emit is not None:
            self.emit(events.BlocksAllocated(seq.seq_id, held.blocks, held.capacity))
            if spares:
                self.emit(events.BlocksReserved(seq.seq_id, tuple(self.spare_blocks(seq))))
        return 0

    def _capacity(self, tokens: int, start: int) -> int:
        # "grow" asks for the whole run, a power of two: nothing is rounded.
        return len(self._blocks(start)) * self.block_size if self.reservation == "grow" else tokens

    def fork(self, parent: Sequence, child: Sequence) -> bool:
        held = self._held[parent.seq_id]
        tokens = self.reserved_tokens(parent.request, child.num_tokens)
        spare = held.spares.pop(0) if held.spares else None
        start = spare if spare is not None else self.buddy.allocate(self._order(tokens))
        if start is None:
            return False
        # Nothing is copied now: until the child is in a plan it may end, or its run may move.
        self._held[child.seq_id] = _Held(child, start, self._blocks(start), self._capacity(tokens, start), source=held.start)
        self.buddy.share(held.start)
        if self.emit is not None:
            self.emit(events.RunForked(parent.seq_id, child.seq_id, self._blocks(start), self.capacity(child)))
            if spare is not None:
                self.emit(events.BlocksReserved(parent.seq_id, tuple(self.spare_blocks(parent))))
        return True

    # -- growth --------------------------------------------------------------------------------------------------------------------
    def next_slot(self, seq: Sequence) -> tuple[int, tuple[int, ...]] | None:
        held, position = self._held[seq.seq_id], seq.num_computed_tokens
        room = position < held.capacity and held.source is None
        return (held.start * self.block_size + position, held.blocks) if room else None

    def reserve(self, seqs: Seq[Sequence], num_new: Seq[int], lookahead: int = 0) -> list[Copy] | None:
        full: list[tuple[_Held, int]] = []                  # whose run is too short, and the order of the one that is not
        for seq, count in zip(seqs, num_new, strict=True):
            tokens = seq.num_computed_tokens + count + lookahead
            if count and tokens > self._held[seq.seq_id].capacity:
                full.append((self._held[seq.seq_id], self._order(tokens)))
        copies: list[Copy] = []
        if full:
            before = self.buddy.copy()
            moves: list[tuple[_Held, int, bool]] = []
            for held, order in full:
                larger = self._larger(held, order)
                if larger is None:
                    self.buddy = before
                    return None
                moves.append((held, *larger))
            for held, start, joined in moves:
                copies += self._move(held, start, joined)
        for seq, count in zip(seqs, num_new):
            held = self._held[seq.seq_id]
            if count and held.source is not None:
                copies += self._copy(held, held.source)
                held.copied = True
        return copies

    def _larger(self, held: _Held, order: int) -> tuple[int, bool] | None:
        """First block of a larger run, and whether the old one is a part of it: joined with its buddy if that is free, or else a run elsewhere."""
        extended = self.buddy.extend(held.start) if self.buddy.orders[held.start] + 1 == order else None
        start = extended if extended is not None else self.buddy.allocate(order)
        return None if start is None else (start, extended is not None)

    def _move(self, held: _Held, start: int, joined: bool) -> list[Copy]:
        """Let the sequence have the larger run at ``start``, and see to its tokens.

        A fork that has not been copied yet has none in its old run: they come from ``source`` as before. Otherwise they come from the old run:
        in the next copies of `reserve` if the new run is elsewhere, and at once, into the other half, if the old run is the right half of the new
        one (these are returned). If it is the left half they are in place.
        """
        old, held.start, held.blocks = held.start, start, self._blocks(start)
        held.capacity = len(held.blocks) * self.block_size
        if self.emit is not None:
            self.emit(events.RunMoved(held.seq.seq_id, held.blocks, held.capacity))
        if held.source is not None:
            if not joined:
                self.buddy.free(old)
        elif not joined:
            held.source = old
        elif old != start:
            return self._copy(held, old)
        return []

    def _copy(self, held: _Held, source: int) -> list[Copy]:
        copies = [Copy(source + i, held.start + i) for i in range(num_blocks_for(held.seq.num_computed_tokens, self.block_size))]
        self.num_copied_blocks += len(copies)
        if self.emit is not None:
            for i, copy in enumerate(copies):
                self.emit(events.BlockCopied(held.seq.seq_id, i, copy.src, copy.dst))
        return copies

    def commit(self, seq: Sequence, num_computed: int) -> None:
        held = self._held[seq.seq_id]
        if num_computed > held.capacity:
            raise IntegrityError(f"sequence {seq.seq_id} computed {num_computed} tokens but {held.capacity} are reserved")
        if held.copied and held.source is not None:
            self.buddy.free(held.source)
            held.source, held.copied = None, False
        if self.emit is not None:
            self.emit(events.TokensWritten(seq.seq_id, num_computed))

    # -- giving back ---------------------------------------------------------------------------------------------------------------
    def truncate(self, seq: Sequence, num_tokens: int) -> None:
        """A reservation stays as it is: what lies beyond the tokens is free for the sequence's own next ones."""
        if not 0 <= num_tokens <= self._held[seq.seq_id].capacity:
            raise ValueError(f"sequence {seq.seq_id} cannot be cut to {num_tokens} tokens: {self._held[seq.seq_id].capacity} are reserved")

    def swap_out(self, seqs: Seq[Sequence]) -> list[Copy] | None:
        return None

    def swap_in(self, seqs: Seq[Sequence]) -> list[Copy] | None:
        raise ValueError(f"sequences {[seq.seq_id for seq in seqs]} are not swapped out: contiguous managers recompute")

    def free(self, seq: Sequence) -> None:
        held = self._held.pop(seq.seq_id)
        for start in (held.start, *held.spares, *(() if held.source is None else (held.source,))):
            self.buddy.free(start)
        if self.emit is not None:
            if held.spares:
                self.emit(events.BlocksReserved(seq.seq_id, ()))
            self.emit(events.BlocksFreed(seq.seq_id, held.blocks))

    # -- reading -------------------------------------------------------------------------------------------------------------------
    def holds(self, seq: Sequence) -> bool:
        return seq.seq_id in self._held

    def _blocks(self, start: int) -> tuple[int, ...]:
        return tuple(range(start, start + (1 << self.buddy.orders[start])))

    def table(self, seq: Sequence) -> list[int]:
        return list(self._held[seq.seq_id].blocks)

    def capacity(self, seq: Sequence) -> int:
        """Tokens that are reserved in its run."""
        return self._held[seq.seq_id].capacity

    def spare_blocks(self, seq: Sequence) -> list[int]:
        """The blocks that wait for the branches ``seq`` will fan out into."""
        return [block for start in self._held[seq.seq_id].spares for block in self._blocks(start)]

    def slots(self, seq: Sequence, start: int, stop: int) -> tuple[int, ...]:
        held = self._held[seq.seq_id]
        if not 0 <= start <= stop <= held.capacity:
            raise IndexError(f"positions {start} to {stop - 1} of sequence {seq.seq_id}: {held.capacity} are reserved")
        return tuple(range(held.start * self.block_size + start, held.start * self.block_size + stop))

    def report(self) -> MemoryReport:
        states = reservation = internal = used = 0
        for held in self._held.values():
            computed, longest = held.seq.num_computed_tokens, min(held.seq.longest, held.capacity)
            states += computed
            reservation += max(0, longest - computed) + longest * len(held.spares)
            internal += (held.capacity - max(longest, computed)) + (held.capacity - longest) * len(held.spares)
            used += len(held.blocks) * (1 + len(held.spares))
        total = self.num_blocks * self.block_size
        return MemoryReport(
            total=total, token_states=states, reservation=reservation, internal=internal, external=total - states - reservation - internal,
            num_sequences=len(self._held), num_used_blocks=used,
        )

    def check(self) -> None:
        self.buddy.check()
        holders: dict[int, int] = {}
        for held in self._held.values():
            for start in (held.start, *held.spares, *(() if held.source is None else (held.source,))):
                holders[start] = holders.get(start, 0) + 1
            if not held.seq.num_computed_tokens <= held.capacity <= len(held.blocks) * self.block_size:
                computed = f"sequence {held.seq.seq_id} computed {held.seq.num_computed_tokens} tokens"
                raise IntegrityError(f"{computed}; {held.capacity} are reserved in a run of {len(held.blocks)} blocks")
        if holders != self.buddy.ref_counts:
            raise IntegrityError(f"runs and their holders are {holders}; the allocator counts {self.buddy.ref_counts}")
