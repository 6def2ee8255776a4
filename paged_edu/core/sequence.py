"""Request and Sequence: what a user asked for, and the token sequences that grow out of it (Paper §4.3, §4.5).

A request starts as one sequence; parallel samples and beams are further sequences, the branches of the same request. The
sequences of a request are scheduled, preempted and resumed together (the paper's gang scheduling of a sequence group).
"""
from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


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
    """"stop", "length", "abort" or, of a beam that the search gave up, "pruned"; None while it is alive."""
    stop_reason: int | str | None = None
    """The stop token or string that ended it; "kv_pool" when it had the whole pool and filled it."""
    cumulative_logprob: float = 0.0
    """Sum of the log-probabilities of its output tokens, in a beam search."""
    leader: Sequence | None = None
    """While the group comes back: the branch that computes the first ``num_led_tokens`` tokens for this one as well."""
    num_led_tokens: int = 0
    logprobs: list[Any] = field(default_factory=list)
    """``Branch.logprobs`` of its output tokens, if asked for. They are stored just before their tokens: an interruption may leave some too many."""

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
    def longest(self) -> int:
        """Tokens that will be in the cache if it runs to ``max_tokens``: the last sampled one is never a query, so it is never written."""
        return max(len(self.token_ids), len(self.request.prompt_token_ids) + self.request.max_tokens - 1)

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def stop_check(self, max_model_len: int) -> tuple[str, int | None] | None:
        """``(finish_reason, stop_reason)`` if the last token ends the sequence. Runs after every sampled token, the first included."""
        request, last, num_tokens = self.request, self.token_ids[-1], len(self.token_ids)
        if request.beam:                                    # the search says which branches end
            return None
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
    """Sequences that the request fans out into; of a beam search its width."""
    beam: bool = False
    """Beam search: every step the runner says which branches go on and which have ended; no token ends a sequence by itself."""
    cache_salt: str | None = None
    """Only requests with the same salt share cached blocks."""
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
    """The branches that still grow; samples in branch order, beams best first."""
    pending: list[Sequence] = field(default_factory=list)
    """Live branches that have no blocks yet although the request runs: they wait for their leaders."""
    branching: Branching | None = None
    """The outcome of a step while it is taken in; see `Branching`."""
    num_preemptions: int = 0
    num_cached_tokens: int = 0
    """Prompt tokens that the prefix cache held when the request was first admitted."""
    num_prompt_logits: int | None = None
    """For a request that wants the logits of its whole prompt: so many positions have given theirs. None: it doesn't want them, or has them all."""

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

    def got_prompt_logits(self, num_computed: int) -> None:
        """The runner gave the missing logits of the positions before ``num_computed``; those of the last one belong to the first output token."""
        done = max(num_computed, self.num_prompt_logits or 0)
        self.num_prompt_logits = done if done < len(self.prompt_token_ids) - 1 else None

    @property
    def forked(self) -> bool:
        """Whether it has fanned out into its branches."""
        return len(self.sequences) > 1 or self.n == 1

    def stop_reason(self, seq: Sequence, reason: str) -> int | None:
        """The user's stop token, if that is what ended a hypothesis of a beam search."""
        last = seq.token_ids[-1]
        return last if reason == "stop" and last in self.stop_token_ids else None

    @property
    def places(self) -> int:
        """Of ``max_num_seqs``: a request that has not fanned out yet keeps room for all its branches; none once its only sequence has ended."""
        return len(self.live) if self.forked or not self.live else self.n


@dataclass(frozen=True, slots=True)
class Branching:
    """What a step makes of the branches of a request, written down before anything is changed.

    The changes follow one by one; an interruption between two of them would leave beams of different lengths. Applying the record again
    completes it.
    """

    tokens: tuple[tuple[Sequence, list[int], tuple[int, ...], float], ...]
    """``(sequence, all its tokens, the new ones, its cumulative log-probability)`` for old and new branches."""
    sequences: list[Sequence]
    """All sequences of the request, new branches included."""
    going_on: list[Sequence]
    """The branches that live on, in the order in which the step's result names them."""
    ended: list[tuple[Sequence, str]]
    """``(sequence, finish_reason)``: finished hypotheses, and parents that nobody continues ("pruned")."""

    def apply(self, request: Request) -> None:
        """Give every branch its tokens. The ended ones stay among the live until `Queues` has freed what they hold."""
        for seq, token_ids, _, cumulative in self.tokens:
            seq.token_ids, seq.cumulative_logprob = token_ids, cumulative
        request.sequences, request.live = self.sequences, self.going_on + [seq for seq, _ in self.ended]
