"""KVManager: the protocol of whoever decides which blocks a sequence gets (Paper §4.2-4.5). `PagedKVManager` (`paged.py`) is the paper's.

The scheduler asks a manager and never touches a block itself, so the same scheduler drives the paged manager, the contiguous ones that
came before it, and a reader's own.
"""
from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from . import events
from .plan import Copy
from .sequence import Request, Sequence


class AllocStatus(StrEnum):
    """Can a request get its blocks?"""

    OK = "ok"
    LATER = "later"
    """Not now; once others have given blocks back."""
    NEVER = "never"
    """Not even alone in an empty pool."""


def check_block_size(block_size: int) -> None:
    """Raise ValueError for a block size that no manager has."""
    if type(block_size) is not int or not 1 <= block_size <= 256:
        raise ValueError(f"block_size must be an integer between 1 and 256, not {block_size}")


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """What the slots of the KV cache hold, in slots of one token; the four parts of Paper Fig. 2 add up to ``total``.

    The figure's parts, for any manager. *Token states*: keys and values of tokens. *Reservation*: kept for tokens that the request will still
    have at its longest; it will be used, and until then nobody else can. *Internal fragmentation*: kept for tokens that will never come.
    *External fragmentation and others*: everything that belongs to nobody, or only to an allocator that must round. A request's longest is
    ``max_tokens``: where it may end earlier, some of its reservation turns out to have been internal.
    """

    total: int
    token_states: int
    """Slots that hold the keys and values of a token. A shared slot counts once."""
    reservation: int
    """Allocated, empty, and needed later if the request runs to its longest (``max_tokens``)."""
    internal: int
    """Internal fragmentation: allocated and never to be used, even at the longest."""
    external: int
    """Asked for by nobody: free and cached blocks; of contiguous managers also what a run is longer than its reservation."""
    num_sequences: int
    """Sequences that hold blocks."""
    shared_saved: int = 0
    """Blocks that would exist in addition if no table shared a block (Paper Fig. 15)."""
    cached: int = 0
    """Of the external slots, those in blocks that nobody uses and the prefix cache can still serve."""
    swapped: int = 0
    """Slots of host memory that hold the blocks of swapped-out sequences; not part of the total."""

    num_used_blocks: int = 0
    """Blocks that tables refer to, each once, and those that are set aside for branches."""

    @property
    def sharing_saving(self) -> float:
        """Blocks saved by sharing, as a fraction of those that would be in use without it (Paper Fig. 15)."""
        return self.shared_saved / (self.num_used_blocks + self.shared_saved) if self.shared_saved else 0.0

    def shares(self) -> dict[str, float]:
        """The four parts as fractions of the total."""
        return {name: getattr(self, name) / self.total for name in ("token_states", "reservation", "internal", "external")}

    def __str__(self) -> str:
        parts = ", ".join(f"{name.replace('_', ' ')} {share:.1%}" for name, share in self.shares().items())
        parts += f" (cached {self.cached / self.total:.1%})" if self.cached else ""
        parts += f"; {self.swapped} more slots swapped out" if self.swapped else ""
        return f"{self.num_sequences} sequence{'s' * (self.num_sequences != 1)} in {self.total} slots: {parts}"


class KVManager(Protocol):
    """Memory management behind the scheduler. Every method that allocates does it wholly or not at all."""

    num_blocks: int
    block_size: int
    emit: events.Emit | None
    shares_blocks: bool
    """Whether two tables may refer to the same block: then a group that is recomputed computes what its branches have in common once."""
    needs_known_length: bool
    """Whether ``Request.max_tokens`` must be the true length of the output: then a request that may end earlier is refused."""

    def status(self, request: Request) -> AllocStatus:
        """Whether all live branches of the request, with all tokens that they have now (not queued yet: its prompt), could be admitted."""
        ...

    def explain(self, request: Request) -> str:
        """What the prompt of a request needs and what the pool has, in words and numbers, for whoever is told NEVER."""
        ...

    def admit(self, seq: Sequence, num_tokens: int, leader: Sequence | None = None, num_led: int = 0) -> int | None:
        """Give ``seq`` a table for ``num_tokens`` tokens; returns how many of them the cache holds already, None: no room.

        Its first ``num_led`` tokens (whole blocks) are in blocks of ``leader``, computed, and are shared with it.
        """
        ...

    def next_slot(self, seq: Sequence) -> tuple[int, tuple[int, ...]] | None:
        """Where the next token goes, and the block table, if nothing has to be allocated or copied first; None: `reserve` says more."""
        return None

    def reserve(self, seqs: Seq[Sequence], num_new: Seq[int], lookahead: int = 0) -> list[Copy] | None:
        """Room for the next ``num_new[i]`` tokens of each sequence, for all of them or for none (None).

        ``lookahead``: slots beyond that, for draft tokens. Returns the copies that come first: copy-on-write (Paper §4.4), or runs that move.
        """
        ...

    def commit(self, seq: Sequence, num_computed: int) -> None:
        """The first ``num_computed`` tokens of ``seq`` are in the cache now."""
        ...

    def fork(self, parent: Sequence, child: Sequence) -> bool:
        """``child`` starts with ``parent``'s tokens: shared blocks (paged) or a run of its own (contiguous; False: no room for it).

        What must be copied for that is among the copies of the first `reserve` for the child.
        """
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
        """Give back everything that ``seq`` holds, here or in host memory. Raises KeyError if it holds nothing."""
        ...

    def reset(self) -> None:
        """Forget every table and everything cached; all blocks are free."""
        ...

    def holds(self, seq: Sequence) -> bool:
        """Whether ``seq`` has a table, of blocks here or in host memory."""
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
