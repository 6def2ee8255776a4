"""Request and Sequence: what a user asked for, and the token sequences that grow out of it (Paper §4.3, §4.5).

A request starts as one sequence; parallel samples and beams are further sequences, the branches of the same request. The
sequences of a request are scheduled, preempted and resumed together (the paper's gang scheduling of a sequence group).
"""
from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Status(StrEnum):
    """Where a request is. Only a RUNNING request holds blocks of the pool."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    """Gave its blocks back; waits to be recomputed."""
    SWAPPED = "swapped"
    """Its blocks are in host memory."""
    FINISHED = "finished"


@dataclass(eq=False, slots=True)
class Sequence:
    """One branch of a request. ``num_computed_tokens`` catches up with ``num_tokens``: the one rule behind prefill, decode, chunks
    and recomputation. A preempted sequence has computed 0 tokens; everything else follows."""

    seq_id: int
    request: Request
    branch: int
    token_ids: list[int]
    """Prompt, then sampled tokens."""
    num_computed_tokens: int = 0
    """Tokens whose keys and values are in the cache."""
    finish_reason: str | None = None
    """"stop", "length" or "abort"; None while it is alive."""
    stop_reason: int | str | None = None
    """The stop token or string that ended it; "kv_pool" when it had the whole pool and filled it."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_uncomputed(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - len(self.request.prompt_token_ids)

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[len(self.request.prompt_token_ids) :]

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def stop_check(self, max_model_len: int) -> tuple[str, int | None] | None:
        """``(finish_reason, stop_reason)`` if the last token ends the sequence. Runs after every sampled token, the first included."""
        request, last, num_tokens = self.request, self.token_ids[-1], len(self.token_ids)
        num_output_tokens = num_tokens - len(request.prompt_token_ids)
        if num_output_tokens >= request.min_tokens:
            if last in request.stop_token_ids:
                return "stop", last
            if last in request.eos_token_ids:
                return "stop", None
        if num_output_tokens >= request.max_tokens or num_tokens >= max_model_len:
            return "length", None
        return None


@dataclass(eq=False, slots=True)
class Request:
    """What a user asked for, as far as memory and scheduling are concerned."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    max_tokens: int = 16
    """`Scheduler.add` lowers it to what ``max_model_len`` has room for."""
    min_tokens: int = 0
    """Before that many output tokens no stop token ends a sequence."""
    eos_token_ids: frozenset[int] = frozenset()
    """The model's end tokens; empty if the request ignores them."""
    stop_token_ids: frozenset[int] = frozenset()
    """The user's own stop tokens."""
    n: int = 1
    """Sequences that the request fans out into."""
    priority: int = 0
    """Smaller is more urgent; read by the priority policy only."""
    arrival_time: float = 0.0
    """Seconds, on the clock of whoever adds the request."""
    arrival_index: int = -1
    """Place in the order of arrival; set by `Scheduler.add`."""
    status: Status = Status.WAITING
    sequences: list[Sequence] = field(default_factory=list)
    """Every sequence that the request ever had, finished ones included."""
    live: list[Sequence] = field(default_factory=list)
    """The branches that still grow, in branch order."""
    num_preemptions: int = 0

    def __post_init__(self) -> None:
        if not self.prompt_token_ids:
            raise ValueError(f"request {self.request_id!r}: the prompt is empty; at least 1 token is needed")
        if type(self.max_tokens) is not int or self.max_tokens < 1:
            raise ValueError(f"request {self.request_id!r}: max_tokens is {self.max_tokens}; at least 1 is needed")
        if self.n < 1:
            raise ValueError(f"request {self.request_id!r}: n is {self.n}; at least 1 is needed")

    @property
    def finished(self) -> bool:
        return self.status is Status.FINISHED
