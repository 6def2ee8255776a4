"""What each request did in every step of a log, and the branches that it had: what a state at one moment cannot tell."""
from __future__ import annotations

from dataclasses import dataclass, field

from ..core import events as ev
from ..core.sequence import Status
from .log import EventLog
from .state import SequenceState, TraceState

PREFILL, DECODE, STALLED = "prefill", "decode", "stalled"
"""Kinds of a step beside those of `Status`. Stalled: it runs and gets no token in this step."""


@dataclass(slots=True)
class Span:
    """Steps in a row in which a request did the same."""

    kind: str
    """"waiting", "prefill" (also what is computed again), "decode", "stalled", "preempted" or "swapped"."""
    first: int
    tokens: list[int]
    """Tokens that it ran, of all its branches, one number a step."""

    @property
    def last(self) -> int:
        return self.first + len(self.tokens) - 1


@dataclass(slots=True)
class Branch:
    """One sequence of a request."""

    seq_id: int
    parent: int | None
    """``seq_id`` of the branch that it was forked from."""
    born: int
    """The step at whose end it was there."""
    ended: int | None = None
    reason: str = ""
    """"stop", "length", "abort", "kv_pool", or "pruned": a beam that nobody continued."""
    output: list[int] = field(default_factory=list)
    """What it had generated when it ended."""


@dataclass(slots=True)
class Lane:
    """One request from arrival to end. ``arrival``: place in the order of arrival."""

    request_id: str
    arrival: int
    num_prompt_tokens: int
    max_tokens: int
    arrived: int
    """It was there at the end of this step: its first own step is the next one."""
    spans: list[Span] = field(default_factory=list)
    cached: list[tuple[int, int, int]] = field(default_factory=list)
    """``(step, tokens that it had, how many of them the prefix cache held)`` of each admission."""
    branches: list[Branch] = field(default_factory=list)
    ended: int | None = None
    """Its last step."""
    reason: str = ""
    """Why its last branch ended."""

    def at(self, step: int) -> tuple[str, int] | None:
        """``(kind, tokens)`` of a step; None if it was not there."""
        for span in reversed(self.spans):
            if span.first <= step <= span.last:
                return span.kind, span.tokens[step - span.first]
        return None

    def put(self, step: int, kind: str, tokens: int) -> None:
        """What it does in ``step``; a second word about the same step replaces the first."""
        if self.spans and self.spans[-1].last == step:
            self.spans[-1].tokens.pop()
            if not self.spans[-1].tokens:
                self.spans.pop()
        if self.spans and self.spans[-1].kind == kind and self.spans[-1].last == step - 1:
            self.spans[-1].tokens.append(tokens)
        else:
            self.spans.append(Span(kind, step, [tokens]))


def history(log: EventLog) -> list[Lane]:
    """The requests of a log, in order of arrival: those that were there when it began, and all that came."""
    fold = _History(log.start.copy())
    for event in log:
        fold.take(event)
    return sorted(fold.lanes, key=lambda lane: lane.arrival)


class _History:
    """A fold that remembers. ``state`` is always the state before the next event."""

    def __init__(self, state: TraceState) -> None:
        self.state = state
        self.lanes: list[Lane] = []
        self.now: dict[str, Lane] = {}                      # the unfinished ones; an id may come again later
        self.committed = True                               # the scheduled step has computed something
        for seq_id, seq in state.sequences.items():
            self._branch(seq, seq_id)

    def _branch(self, seq: SequenceState, seq_id: int, parent: int | None = None) -> None:
        lane = self.now.get(seq.request_id)
        if lane is None:
            r = self.state.requests[seq.request_id]
            lane = self.now[seq.request_id] = Lane(seq.request_id, r.arrival, r.num_prompt_tokens, r.max_tokens, self.state.step)
            self.lanes.append(lane)
        lane.branches.append(Branch(seq_id, parent, self.state.step))

    def take(self, event: ev.Event) -> None:
        state = self.state
        match event:
            case ev.StepScheduled(step, tokens):
                self._scheduled(step, tokens)
            case ev.TokensWritten():
                self.committed = True
            case ev.RequestAdmitted(request_id, num_tokens, num_cached):
                self.now[request_id].cached.append((state.step, num_tokens, num_cached))
            case ev.SequenceFinished(request_id, seq_id, reason, stop_reason):
                self._ended(request_id, seq_id, "kv_pool" if stop_reason == "kv_pool" else reason)
            case ev.RequestFinished(request_id):
                self.now.pop(request_id).ended = state.step
        state.apply(event)
        match event:
            case ev.RequestAdded(_, seq_id, _, _):
                self._branch(state.sequences[seq_id], seq_id)
            case ev.SequenceForked(_, parent, child):
                self._branch(state.sequences[child], child, parent)
            case ev.Recovered():
                self._recovered()

    def _scheduled(self, step: int, tokens: dict[int, int]) -> None:
        """The plan is made: who runs what."""
        self.committed = False
        count: dict[str, int] = {}
        kinds: dict[str, str] = {}
        for seq_id, number in tokens.items():
            seq = self.state.sequences[seq_id]
            prompt = self.state.requests[seq.request_id].num_prompt_tokens
            decodes = seq.num_computed == len(seq.tokens) - 1 >= prompt
            count[seq.request_id] = count.get(seq.request_id, 0) + number
            if not decodes or seq.request_id not in kinds:
                kinds[seq.request_id] = DECODE if decodes else PREFILL
        for request_id, request in self.state.requests.items():
            kind = kinds.get(request_id, STALLED if request.status is Status.RUNNING else str(request.status))
            self.now[request_id].put(step, kind, count.get(request_id, 0))

    def _ended(self, request_id: str, seq_id: int, reason: str) -> None:
        lane = self.now[request_id]
        branch = next(b for b in reversed(lane.branches) if b.seq_id == seq_id)
        branch.ended, branch.reason = self.state.step, reason
        branch.output = self.state.sequences[seq_id].tokens[lane.num_prompt_tokens :]
        if reason != "pruned":
            lane.reason = reason

    def _recovered(self) -> None:
        """An interrupted step has not happened; who is not there any more had ended in it."""
        state = self.state
        for request_id in self.now.keys() - state.requests.keys():
            self.now.pop(request_id).ended = state.step
        for request_id, request in state.requests.items():
            lane = self.now.get(request_id)
            if lane is not None and not self.committed:
                lane.put(state.step, str(request.status), 0)
        for lane in self.now.values():
            for branch in lane.branches:
                if branch.ended is None and branch.seq_id not in state.sequences:
                    branch.ended = state.step
        for seq_id, seq in state.sequences.items():
            if seq.request_id not in self.now or all(branch.seq_id != seq_id for branch in self.now[seq.request_id].branches):
                self._branch(seq, seq_id)
        self.committed = True
