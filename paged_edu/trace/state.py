"""TraceState: what the manager's memory and the scheduler's queues look like at one moment, as a fold of events.

``state.apply(event)`` is the fold. `TraceState.of` reads the same thing off a live scheduler: the two agree at every step, which a
property test checks, so a picture drawn from a `TraceState` is a picture of the engine.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..core import events as ev
from ..core.block_table import block_fills
from ..core.contiguous import ContiguousKVManager
from ..core.paged import PagedKVManager
from ..core.scheduler import Scheduler
from ..core.sequence import Status


@dataclass(slots=True)
class SequenceState:
    """One live sequence."""

    request_id: str
    tokens: list[int]
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)
    """Its block table; empty while it holds nothing."""
    cpu_blocks: list[int] = field(default_factory=list)
    """Its blocks in host memory, while it is swapped out."""
    reserved: list[int] = field(default_factory=list)
    """Blocks set aside for the branches that it will fan out into."""
    capacity: int | None = None
    """Under a contiguous manager, while it holds a run: tokens that are reserved there."""


@dataclass(slots=True)
class RequestState:
    """One unfinished request. ``arrival`` is its place in the order of arrival: it picks letter and colour."""

    arrival: int
    num_prompt_tokens: int
    max_tokens: int
    status: Status = Status.WAITING
    num_preemptions: int = 0


class EntryState(NamedTuple):
    """What the prefix index knows of a block."""

    entry: int
    """A number that is never used twice."""
    parent: int
    """The entry of the block before it in the text, which may be forgotten by now; 0: it begins a text."""
    tokens: tuple[int, ...]
    salt: str | None


@dataclass(frozen=True, slots=True)
class BlockView:
    """One physical block as a picture shows it."""

    block: int
    owners: tuple[int, ...] = ()
    """``seq_id`` of every sequence whose table refers to the block, in table order of arrival; empty: free."""
    fill: int = 0
    """Slots that hold a token."""
    logical: int | None = None
    """Logical index in the first owner's table."""
    cached: bool = False
    """Nobody refers to it, and the prefix index still knows its text."""
    reserved_by: int | None = None
    """``seq_id`` of the sequence for whose branches it is set aside."""

    @property
    def ref_count(self) -> int:
        return len(self.owners)


@dataclass(slots=True)
class TraceState:
    """Queues and block tables after some prefix of the events."""

    num_blocks: int
    block_size: int
    step: int = 0
    num_arrived: int = 0
    requests: dict[str, RequestState] = field(default_factory=dict)
    sequences: dict[int, SequenceState] = field(default_factory=dict)
    scheduled: dict[int, int] = field(default_factory=dict)
    """Tokens that each sequence runs in the current step."""
    entries: dict[int, EntryState] = field(default_factory=dict)
    """Blocks that the prefix index knows, in use or not."""
    entered_by: dict[int, int] = field(default_factory=dict)
    """Of those, the arrival number of the request whose text each holds, so that a cached block keeps its colour when that request has gone."""
    released: dict[int, None] = field(default_factory=dict)
    """Of those, the ones that a table has dropped, by the last time that one did: what nobody uses is overwritten in this order."""
    evicted: list[int] = field(default_factory=list)
    """Blocks whose text was overwritten in the current step."""
    num_finished: int = 0
    num_preemptions: int = 0
    num_copies: int = 0
    num_swapped_out: int = 0
    """Preemptions by swapping."""

    # -- the fold ------------------------------------------------------------------------------------------------------------------
    def apply(self, event: ev.Event) -> None:
        """Advance by one event. Raises ValueError for a type that it does not know: a new event must say what it changes."""
        match event:
            case ev.StepStarted(step):
                self.step, self.scheduled, self.evicted = step, {}, []
            case ev.StepScheduled(_, tokens):
                self.scheduled = dict(tokens)
            case ev.RequestAdded(request_id, seq_id, prompt, max_tokens):
                if request_id in self.requests or seq_id in self.sequences:
                    raise ValueError(f"request {request_id!r} or sequence {seq_id} is there already")
                self.requests[request_id] = RequestState(self.num_arrived, len(prompt), max_tokens)
                self.sequences[seq_id] = SequenceState(request_id, list(prompt))
                self.num_arrived += 1
            case ev.RequestAdmitted(request_id, _, _):
                self.requests[request_id].status = Status.RUNNING
            case ev.RequestPreempted(request_id, _, mode):
                request = self.requests[request_id]
                request.status = Status.SWAPPED if mode == "swap" else Status.PREEMPTED
                request.num_preemptions += 1
                self.num_preemptions += 1
                self.num_swapped_out += mode == "swap"
                for seq in self.sequences.values():
                    if seq.request_id == request_id and mode == "recompute":
                        seq.num_computed = 0
            case ev.BlocksAllocated(seq_id, blocks, capacity):
                if not all(0 <= block < self.num_blocks for block in blocks):
                    raise ValueError(f"blocks {blocks} are not all in a pool of {self.num_blocks}")
                self.sequences[seq_id].blocks.extend(blocks)
                self.sequences[seq_id].capacity = capacity
                self._overwrite(blocks)
            case ev.BlocksReserved(seq_id, blocks):
                self.sequences[seq_id].reserved = list(blocks)
            case ev.RunMoved(seq_id, blocks, capacity):
                self.sequences[seq_id].blocks, self.sequences[seq_id].capacity = list(blocks), capacity
            case ev.BlocksShared(seq_id, blocks):
                seq = self.sequences[seq_id]
                seq.blocks = list(blocks)
                seq.num_computed = min(len(blocks) * self.block_size, len(seq.tokens) - 1)
            case ev.BlocksEntered(seq_id, blocks, entries, salt):
                seq, size = self.sequences[seq_id], self.block_size
                for block, (entry, parent) in zip(blocks, entries, strict=True):
                    start = seq.blocks.index(block) * size
                    self.entries[block] = EntryState(entry, parent, tuple(seq.tokens[start : start + size]), salt)
                self.entered_by.update(dict.fromkeys(blocks, self.arrival(seq_id)))
            case ev.BlocksForgotten(blocks):
                self._forget(blocks)
            case ev.BlocksSwappedOut(seq_id, cpu_blocks):
                self._release(self.sequences[seq_id].blocks)
                self.sequences[seq_id].blocks, self.sequences[seq_id].cpu_blocks = [], list(cpu_blocks)
            case ev.BlocksSwappedIn(seq_id, blocks, copied):
                self.sequences[seq_id].blocks, self.sequences[seq_id].cpu_blocks = list(blocks), []
                self._overwrite(copied)
            case ev.CpuBlocksFreed(seq_id):
                self.sequences[seq_id].cpu_blocks = []
            case ev.BlocksFreed(seq_id, blocks):
                seq = self.sequences[seq_id]
                if tuple(seq.blocks[len(seq.blocks) - len(blocks) :]) != tuple(blocks):
                    raise ValueError(f"sequence {seq_id} frees {blocks} but its table is {seq.blocks}")
                del seq.blocks[len(seq.blocks) - len(blocks) :]
                self._release(blocks)
                if not seq.blocks:
                    seq.capacity = None
            case ev.BlockCopied(seq_id, index, _, dst):
                self.sequences[seq_id].blocks[index] = dst
                self._overwrite((dst,))
                self.num_copies += 1
            case ev.SequenceForked(request_id, parent, child):
                self.sequences[child] = SequenceState(request_id, list(self.sequences[parent].tokens))
            case ev.TableForked(parent, child):
                source, seq = self.sequences[parent], self.sequences[child]
                seq.blocks, seq.num_computed = list(source.blocks), source.num_computed
            case ev.RunForked(parent, child, blocks, capacity):
                seq = self.sequences[child]
                seq.blocks, seq.num_computed, seq.capacity = list(blocks), self.sequences[parent].num_computed, capacity
            case ev.TokensWritten(seq_id, num_computed):
                self.sequences[seq_id].num_computed = num_computed
            case ev.TokensSampled(seq_id, token_ids):
                self.sequences[seq_id].tokens.extend(token_ids)
            case ev.SequenceFinished(_, seq_id, _, _):
                del self.sequences[seq_id]
            case ev.RequestFinished(request_id):
                del self.requests[request_id]
                self.num_finished += 1
            case ev.Recovered(step, num_arrived, requests, sequences):
                self.num_finished += len(self.requests.keys() - {request[0] for request in requests})
                self.step, self.num_arrived, self.scheduled, self.entries, self.entered_by = step, num_arrived, {}, {}, {}
                self.released, self.evicted = {}, []
                known = [self.requests[request[0]].num_preemptions for request in requests if request[0] in self.requests]
                self.num_preemptions += sum(request[5] for request in requests) - sum(known)
                self.requests = {name: RequestState(at, prompt, most, Status(status), times) for name, at, prompt, most, status, times in requests}
                self.sequences = {seq_id: SequenceState(name, list(tokens)) for seq_id, name, tokens in sequences}
            case ev.PoolExhausted():
                pass                                        # the events of its end follow
            case _:
                raise ValueError(f"TraceState does not know the event {event!r}")

    def _forget(self, blocks: Iterable[int]) -> None:
        """The prefix index no longer finds these."""
        for block in blocks:
            self.entries.pop(block, None)
            self.entered_by.pop(block, None)
            self.released.pop(block, None)

    def _overwrite(self, blocks: Iterable[int]) -> None:
        """They were handed out and will hold something else."""
        for block in blocks:
            if block in self.entries:
                self.evicted.append(block)
                self._forget((block,))

    def _release(self, blocks: Sequence[int]) -> None:
        """A table has dropped these, last block first, as `BlockPool.free` does: the head of a text is overwritten last."""
        for block in reversed(blocks):
            if block in self.entries:
                self.released.pop(block, None)
                self.released[block] = None

    def copy(self) -> TraceState:
        """An independent state. Written out, since `copy.deepcopy` takes fifty times as long and every step backwards needs one."""
        return replace(
            self, requests={name: replace(request) for name, request in self.requests.items()},
            sequences={seq_id: replace(
                seq, tokens=seq.tokens.copy(), blocks=seq.blocks.copy(), cpu_blocks=seq.cpu_blocks.copy(), reserved=seq.reserved.copy(),
            ) for seq_id, seq in self.sequences.items()},
            scheduled=self.scheduled.copy(), entries=self.entries.copy(), entered_by=self.entered_by.copy(), released=self.released.copy(),
            evicted=self.evicted.copy(),
        )

    # -- what a picture needs ------------------------------------------------------------------------------------------------------
    def blocks(self) -> list[BlockView]:
        """Every physical block, by id."""
        owners: dict[int, list[int]] = {}
        fill: dict[int, int] = {}
        logical: dict[int, int] = {}
        reserved = {block: seq_id for seq_id, seq in self.sequences.items() for block in seq.reserved}
        for seq_id, seq in sorted(self.sequences.items()):
            fills = block_fills(seq.num_computed, self.block_size, len(seq.blocks))
            for index, (block, filled) in enumerate(zip(seq.blocks, fills, strict=True)):
                owners.setdefault(block, []).append(seq_id)
                fill[block] = max(fill.get(block, 0), filled)
                logical.setdefault(block, index)
        return [
            BlockView(b, tuple(owners.get(b, ())), fill.get(b, 0), logical.get(b), b in self.entries and b not in owners, reserved.get(b))
            for b in range(self.num_blocks)
        ]

    @property
    def entered(self) -> Set[int]:
        """Blocks that the prefix index knows, in use or not."""
        return self.entries.keys()

    def cached_blocks(self) -> list[int]:
        """Blocks that only the prefix index knows, in the order in which they will be overwritten."""
        used = {block for seq in self.sequences.values() for block in seq.blocks}
        return [block for block in self.released if block not in used]

    def ref_counts(self) -> list[int]:
        """References to each block: entries in all tables."""
        counts = Counter(block for seq in self.sequences.values() for block in seq.blocks)
        return [counts[block] for block in range(self.num_blocks)]

    def arrival(self, seq_id: int) -> int:
        """Place of a sequence's request in the order of arrival."""
        return self.requests[self.sequences[seq_id].request_id].arrival

    def with_status(self, *status: Status) -> list[str]:
        """Ids of the requests in one of the given states, in order of arrival."""
        return sorted((r for r, s in self.requests.items() if s.status in status), key=lambda r: self.requests[r].arrival)

    def token_states(self) -> int:
        """Slots of the pool that hold a token."""
        return sum(view.fill for view in self.blocks())

    # -- the same, read off a live scheduler -----------------------------------------------------------------------------------------
    @classmethod
    def of(cls, scheduler: Scheduler) -> TraceState:
        """A snapshot of a live scheduler and its manager. The counters of what has ended before it start at zero."""
        manager = scheduler.manager
        swapped = manager.swapped.tables if isinstance(manager, PagedKVManager) else {}
        state = cls(manager.num_blocks, manager.block_size, step=scheduler.step)
        for request in scheduler.requests.values():
            state.requests[request.request_id] = RequestState(
                request.arrival_index, len(request.prompt_token_ids), request.max_tokens, request.status, request.num_preemptions,
            )
            for seq in request.live:
                away = swapped.get(seq.seq_id)
                here = manager.holds(seq) and away is None
                state.sequences[seq.seq_id] = SequenceState(
                    request.request_id, list(seq.token_ids), seq.num_computed_tokens, list(manager.table(seq)) if here else [],
                    list(away.blocks) if away is not None else [],
                    manager.spare_blocks(seq) if here and isinstance(manager, ContiguousKVManager) else [],
                    manager.capacity(seq) if here and isinstance(manager, ContiguousKVManager) else None,
                )
        state.num_arrived = scheduler.num_arrived
        if isinstance(manager, PagedKVManager):
            for block, ((parent, tokens, salt), entry) in manager.index.items() if manager.index is not None else ():
                state.entries[block] = EntryState(entry, parent, tokens, salt)
            state.released = dict.fromkeys(manager.pool.cached_blocks())
        return state
