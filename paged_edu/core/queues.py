"""Queues: every request that the scheduler knows, from the moment it is added to its one exit, and the way back after an interruption.

``waiting`` and ``running`` are kept in policy order; a request is in exactly one of them, or finished and in none. `Scheduler` adds the step.
"""
from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from itertools import count

from . import events
from .groups import assign_leaders
from .kv_manager import AllocStatus, KVManager
from .limits import SchedulerConfig
from .policy import FCFS, Policy
from .sequence import Request, Sequence, Status


@dataclass(slots=True)
class PrefixStats:
    """What the prefix cache was good for, in tokens."""

    queries: int = 0
    """Tokens of requests when they were first admitted."""
    hits: int = 0
    """Of those, the ones that the cache held."""
    returning_hits: int = 0
    """Tokens that a preempted request found again; no user would call them hits."""

    @property
    def hit_rate(self) -> float:
        """``hits / queries``; 0 before the first request."""
        return self.hits / self.queries if self.queries else 0.0


class Queues:
    """Requests come, wait, run and go."""

    def __init__(
        self, config: SchedulerConfig, manager: KVManager, policy: Policy | None = None, emit: events.Emit | None = None,
    ) -> None:
        self.config = config
        self.manager = manager
        self.policy: Policy = policy if policy is not None else FCFS()
        self.emit = emit
        self.step = 0
        self.requests: dict[str, Request] = {}
        self.sequences: dict[int, Sequence] = {}
        """Every live sequence, by id."""
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.num_running_seqs = 0
        self.num_arrived = 0
        """Requests ever queued; the next one's place in the order of arrival."""
        self.prefix_stats = PrefixStats()
        self._planned = False
        """A step is planned and its `update` has not come yet."""
        self._seq_ids = count()

    # -- requests come and go ------------------------------------------------------------------------------------------------------
    def check(self, request: Request) -> None:
        """Raise ValueError, with the value and the limit, if the request could not be added or could never run; changes nothing."""
        name, limit, length = f"request {request.request_id!r}", self.config.max_model_len, len(request.prompt_token_ids)
        if request.request_id in self.requests:
            raise ValueError(f"request id {request.request_id!r} is in use by a request that has not finished")
        for what, most in (("max_num_seqs", self.config.max_num_seqs), ("max_num_batched_tokens", self.config.max_num_batched_tokens)):
            if request.n > most:
                raise ValueError(f"{name}: {'its beams' if request.beam else 'n'} would be {request.n} sequences at once; {what} is {most}")
        if length >= limit:
            raise ValueError(f"{name}: the prompt has {length} tokens; max_model_len is {limit}, and at least 1 is for the output")
        if self.manager.needs_known_length and (request.eos_token_ids or request.stop_token_ids):
            raise ValueError(
                f"{name} may end before its max_tokens={request.max_tokens}, and this KV manager reserves for the true length of an output: "
                "set ignore_eos=True and leave out stop tokens"
            )
        if self.manager.status(request) is AllocStatus.NEVER:
            raise ValueError(f"{name}: the prompt has {length} tokens and {self.manager.explain(request)}")

    def add(self, request: Request) -> None:
        """Queue a request. Raises ValueError, and changes nothing, if its id is in use or if it could never run."""
        self.check(request)
        request.max_tokens = min(request.max_tokens, self.config.max_model_len - len(request.prompt_token_ids))
        request.arrival_index = self.num_arrived
        request.status = Status.WAITING
        seq = Sequence(next(self._seq_ids), request, 0, list(request.prompt_token_ids))
        request.sequences, request.live, request.pending = [seq], [seq], [seq]
        self.num_arrived += 1
        self.requests[request.request_id] = request
        self.sequences[seq.seq_id] = seq
        insort(self.waiting, request, key=self.policy.key)
        if self.emit is not None:
            self.emit(events.RequestAdded(request.request_id, seq.seq_id, request.prompt_token_ids, request.max_tokens))

    def abort(self, request_id: str) -> bool:
        """End a request in whatever state it is; False if there is no such request (it may just have finished)."""
        request = self.requests.get(request_id)
        if request is None:
            return False
        self._finish_all(request, "abort", None)
        return True

    def finish(self, seq_id: int, reason: str, stop_reason: int | str | None = None) -> None:
        """End one live sequence from outside: stop strings are found after `update`, in the text."""
        if seq_id not in self.sequences:
            raise ValueError(f"no live sequence has the id {seq_id}")
        self._finish(self.sequences[seq_id], reason, stop_reason)

    def has_unfinished(self) -> bool:
        return bool(self.requests)

    def _finish_all(self, request: Request, reason: str, stop_reason: str | None) -> None:
        """End every branch of a request."""
        request.pending = []                                # nobody will lead anybody
        for seq in list(request.live):
            self._finish(seq, reason, stop_reason)

    def _finish(self, seq: Sequence, reason: str, stop_reason: int | str | None) -> None:
        """The one exit for every end: blocks, queues and registry together, so that nothing outlives its request."""
        request = seq.request
        if self.manager.holds(seq):
            self.manager.free(seq)
        seq.finish_reason, seq.stop_reason = reason, stop_reason
        places = request.places
        request.live.remove(seq)
        del self.sequences[seq.seq_id]
        if request.pending:                                 # a leader may have gone
            request.pending = [other for other in request.pending if other is not seq]
            self._assign_leaders(request)
        if request.status is Status.RUNNING:
            self.num_running_seqs += request.places - places
        if self.emit is not None:
            self.emit(events.SequenceFinished(request.request_id, seq.seq_id, reason, stop_reason))
        if not request.live:
            self._remove(self.running if request.status is Status.RUNNING else self.waiting, request)
            request.status = Status.FINISHED
            del self.requests[request.request_id]
            if self.emit is not None:
                self.emit(events.RequestFinished(request.request_id))

    def _assign_leaders(self, request: Request) -> None:
        """Who of a group that comes back computes what several of its branches begin with; nobody where blocks cannot be shared."""
        if len(request.live) > 1 and self.manager.shares_blocks:
            assign_leaders(request, self.manager.block_size)
        else:
            for seq in request.pending:
                seq.leader, seq.num_led_tokens = None, 0

    def _remove(self, queue: list[Request], request: Request) -> None:
        index = bisect_left(queue, self.policy.key(request), key=self.policy.key)
        if index == len(queue) or queue[index] is not request:
            raise RuntimeError(f"{type(self.policy).__name__}.key of {request.request_id!r} is not unique or changed while it was queued")
        del queue[index]

    def recover(self) -> None:
        """Something stopped in the middle of a change (an error of the runner, Ctrl-C): start again from what cannot be half done.

        That is the tokens of each sequence. Everything else, tables, queues and counters, is thrown away; every request waits, to be recomputed.
        """
        self.manager.reset()
        self.running, self.waiting, self.sequences, self.num_running_seqs = [], [], {}, 0
        self._planned = False
        for request in list(self.requests.values()):
            if request.branching is not None:               # complete what was begun
                request.branching.apply(request)
                for seq, reason in request.branching.ended:
                    seq.finish_reason, seq.stop_reason = reason, request.stop_reason(seq, reason)
                request.branching = None
            for seq in request.sequences:
                seq.num_computed_tokens = 0
                if not seq.finished and seq.num_output_tokens:
                    seq.finish_reason, seq.stop_reason = seq.stop_check(self.config.max_model_len) or (None, None)
            request.live = [seq for seq in request.live if not seq.finished]
            if not request.live:
                request.status = Status.FINISHED
                del self.requests[request.request_id]
                continue
            if request.status is Status.RUNNING:
                request.num_preemptions += 1
            if request.status in (Status.RUNNING, Status.SWAPPED):
                request.status = Status.PREEMPTED
            request.pending = list(request.live)
            self._assign_leaders(request)
            self.sequences |= {seq.seq_id: seq for seq in request.live}
            self.waiting.append(request)
        self.waiting.sort(key=self.policy.key)
        if self.emit is not None:
            self.emit(events.Recovered(self.step, self.num_arrived, tuple(
                (r.request_id, r.arrival_index, len(r.prompt_token_ids), r.max_tokens, str(r.status), r.num_preemptions) for r in self.waiting
            ), tuple((seq.seq_id, seq.request.request_id, tuple(seq.token_ids)) for seq in self.sequences.values())))
