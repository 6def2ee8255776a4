"""The events that manager, scheduler and engine emit: small, typed, enough to rebuild every state of a run.

The state at any moment is a snapshot plus the fold of the events after it (`paged_edu.trace`). Widgets replay them forwards and
backwards; metrics and plots read the same stream. Whoever emits holds ``emit: Callable[[Event], None] | None``; with no listener the cost is one
``if`` at each place.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias


class StepStarted(NamedTuple):
    """`Scheduler.schedule` begins step ``step``."""

    step: int


class StepScheduled(NamedTuple):
    """The plan of the step is made: ``tokens`` maps each scheduled sequence to the number of tokens it runs."""

    step: int
    tokens: dict[int, int]


class RequestAdded(NamedTuple):
    """A request entered the waiting queue with its first sequence."""

    request_id: str
    seq_id: int
    prompt_token_ids: tuple[int, ...]
    max_tokens: int


class RequestAdmitted(NamedTuple):
    """Waiting, preempted or swapped -> running. ``num_cached`` of its ``num_tokens`` tokens were found in the prefix cache; 0 after a swap."""

    request_id: str
    num_tokens: int
    num_cached: int


class RequestPreempted(NamedTuple):
    """Running -> preempted or swapped: its blocks are free. "recompute": ``num_lost`` computed tokens have to be computed again."""

    request_id: str
    num_lost: int
    mode: str = "recompute"
    """"recompute" or "swap"."""


class PoolExhausted(NamedTuple):
    """The request had the pool to itself and its next token does not fit: it ends with "length", stop_reason "kv_pool"."""

    request_id: str
    num_tokens: int
    num_slots: int


class SequenceFinished(NamedTuple):
    """A sequence ended; its blocks have been given back."""

    request_id: str
    seq_id: int
    finish_reason: str
    stop_reason: int | str | None


class RequestFinished(NamedTuple):
    """The last sequence of the request ended and the scheduler forgot it."""

    request_id: str


class BlocksAllocated(NamedTuple):
    """``blocks`` were appended to the table of ``seq_id``."""

    seq_id: int
    blocks: tuple[int, ...]
    capacity: int | None = None
    """Contiguous managers: tokens that are reserved; what the run has beyond them is rounding."""


class RunForked(NamedTuple):
    """``child`` got a run of its own, ``blocks``, for a copy of what ``parent`` has computed (contiguous managers)."""

    parent: int
    child: int
    blocks: tuple[int, ...]
    capacity: int


class BlocksReserved(NamedTuple):
    """``blocks`` are what is set aside now, beside its table, for the branches that ``seq_id`` will fan out into (contiguous managers)."""

    seq_id: int
    blocks: tuple[int, ...]


class RunMoved(NamedTuple):
    """The table of ``seq_id`` is now ``blocks``, a longer run (contiguous managers); `BlockCopied` says what is copied into it."""

    seq_id: int
    blocks: tuple[int, ...]
    capacity: int


class BlocksFreed(NamedTuple):
    """The table of ``seq_id`` gave up its last ``len(blocks)`` entries; a block is free once no table refers to it."""

    seq_id: int
    blocks: tuple[int, ...]


class BlocksShared(NamedTuple):
    """The table of ``seq_id`` begins with blocks that hold its text already: hits of the prefix cache, or blocks of its own group."""

    seq_id: int
    blocks: tuple[int, ...]


class BlocksEntered(NamedTuple):
    """``blocks``, full and computed by ``seq_id``, can be found in the prefix index from now on, until they are handed out for something else."""

    seq_id: int
    blocks: tuple[int, ...]
    entries: tuple[tuple[int, int], ...]
    """``(entry, the entry of the block before it)`` of each, as the index numbers them; 0 comes before a first block."""
    cache_salt: str | None


class BlocksForgotten(NamedTuple):
    """``blocks`` are no longer in the prefix index."""

    blocks: tuple[int, ...]


class BlocksSwappedOut(NamedTuple):
    """The computed blocks of ``seq_id`` are in host memory, in ``cpu_blocks``; its table is empty."""

    seq_id: int
    cpu_blocks: tuple[int, ...]


class BlocksSwappedIn(NamedTuple):
    """``seq_id`` has a table again: ``blocks``, of which ``copied`` came back from host memory; the others were still here."""

    seq_id: int
    blocks: tuple[int, ...]
    copied: tuple[int, ...]


class CpuBlocksFreed(NamedTuple):
    """``seq_id`` ended while its blocks were in host memory."""

    seq_id: int


class TableForked(NamedTuple):
    """``child`` got a table with the same blocks as ``parent``'s (Paper §4.4)."""

    parent: int
    child: int


class BlockCopied(NamedTuple):
    """Block ``logical`` of ``seq_id`` is a copy, ``dst``, of ``src``: copy-on-write, or, for contiguous managers, a part of a run that is copied."""

    seq_id: int
    logical: int
    src: int
    dst: int


class TokensWritten(NamedTuple):
    """The first ``num_computed`` tokens of ``seq_id`` are in the cache."""

    seq_id: int
    num_computed: int


class TokensSampled(NamedTuple):
    """``seq_id`` grew by ``token_ids``."""

    seq_id: int
    token_ids: tuple[int, ...]


class SequenceForked(NamedTuple):
    """A new branch ``child`` of a request starts with ``parent``'s tokens."""

    request_id: str
    parent: int
    child: int


class Recovered(NamedTuple):
    """A change was interrupted: every block is free, every request that is left waits. Carries all that a fold needs to go on."""

    step: int
    """The step that was interrupted, or the last one."""
    num_arrived: int
    requests: tuple[tuple[str, int, int, int, str, int], ...]
    """(request_id, arrival, prompt tokens, max_tokens, status, num_preemptions), first in line first."""
    sequences: tuple[tuple[int, str, tuple[int, ...]], ...]
    """(seq_id, request_id, token_ids)."""


Event: TypeAlias = (
    StepStarted | StepScheduled | RequestAdded | RequestAdmitted | RequestPreempted | PoolExhausted | SequenceFinished | RequestFinished
    | BlocksAllocated | BlocksFreed | BlocksShared | BlocksEntered | BlocksForgotten | BlocksSwappedOut | BlocksSwappedIn | CpuBlocksFreed
    | TableForked | BlockCopied | RunForked | BlocksReserved | RunMoved | TokensWritten | TokensSampled | SequenceForked | Recovered
)
Emit: TypeAlias = Callable[[Event], None]
EVENT_TYPES: dict[str, type] = {t.__name__: t for t in Event.__args__}
