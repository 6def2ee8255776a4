"""Scheduler: which sequences run which tokens in the next step, and who steps back when memory runs out (Paper §4.5).

One rule covers prefill, chunked prefill, decode and recomputation: ``num_computed_tokens`` catches up with ``num_tokens``. A step has a budget of
tokens; sequences that need one token come first, so a long prompt never stalls them; what is left goes to prompts, in policy order.
Memory is given out in policy order as well: whoever finds no block takes it from the last running request, which gives back all its
blocks (all or nothing) and is recomputed later, or swapped out and in. The branches of a request run, stop and return together.
"""
from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from . import events
from .groups import Fork, branch_out
from .kv_manager import AllocStatus
from .limits import SchedulerConfig as SchedulerConfig
from .plan import Branch, Copy, ScheduledSeq, SchedulerOutput, StepResult
from .queues import Queues
from .sequence import Request, Sequence, Status

new_tuple, RUNNING = tuple.__new__, Status.RUNNING
"""Looked up once: a member of an enum, or of a type, takes as long as a call, and every step asks for it for every sequence."""


@dataclass(slots=True)
class _Step:
    """The plan of a step while it is made."""

    scheduled: list[ScheduledSeq] = field(default_factory=list)
    swap_out: list[Copy] = field(default_factory=list)
    swap_in: list[Copy] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    admitted: list[str] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


class Scheduler(Queues):
    """Plans steps and takes their results in. Built from `SchedulerConfig`, a `KVManager` and a policy (first come, first served by default)."""

    # -- one step ------------------------------------------------------------------------------------------------------------------
    def schedule(self) -> SchedulerOutput:
        """Plan the next step; blocks are allocated, nothing is computed yet. Its `update` must come before the next plan."""
        if self._planned:
            raise ValueError(f"step {self.step} is planned and not carried out: update() comes first, or recover()")
        self.step += 1
        self._planned = True
        if self.emit is not None:
            self.emit(events.StepStarted(self.step))
        step = _Step()
        for request in [r for r in self.running if r.pending]:
            self._rejoin(request, step)
        chunks, budget = self._split_budget()
        for request in self.running.copy():
            chunk = chunks.get(request) if chunks else None
            if request.status is not RUNNING or (chunk is None and self._decode(request, step.scheduled)):
                continue                                    # preempted earlier in this loop; or planned, nearly always
            tokens = [1] * len(request.live) if chunk is None else chunk
            if not any(tokens):                             # no budget left
                continue
            copies = self.manager.reserve(request.live, tokens)
            if copies is None:
                copies = self._make_room(request, tokens, step)
            if copies is not None:
                step.copies += copies
                if chunk is not None or not self._decode(request, step.scheduled):
                    self._plan(request, tokens, step)
        if not step.preempted:                              # who has just stepped back is not overtaken
            self._admit(step, budget)
        output = SchedulerOutput(
            self.step, tuple(step.scheduled), tuple(step.swap_out), tuple(step.swap_in), tuple(step.copies), tuple(step.admitted),
            tuple(step.preempted), tuple(step.refused),
        )
        if self.emit is not None:
            self.emit(events.StepScheduled(self.step, {s.seq_id: len(s.token_ids) for s in output.scheduled}))
        return output

    def _split_budget(self) -> tuple[dict[Request, list[int]], int]:
        """For each running request that catches up the tokens of its branches in this step (others: one token each), and what is left."""
        budget = self.config.max_num_batched_tokens
        chunks: dict[Request, list[int]] = {}
        for request in self.running:
            left = 0
            for seq in request.live:
                left += len(seq.token_ids) - seq.num_computed_tokens
            if left == len(request.live):                   # the decode step
                budget -= left
            else:
                chunks[request] = []
        for request in chunks:
            chunks[request] = chunk = self._chunk(request, budget)
            budget -= sum(chunk)
        return chunks, budget

    def _chunk(self, request: Request, budget: int) -> list[int]:
        """Tokens that each branch computes, at most ``budget`` together.

        Either all branches catch up in this step (then the request samples), or each stays at least one token behind, so that the
        last tokens of all branches run in the same step: the gang barrier. A branch whose beginning another one computes waits for that.
        """
        left = [seq.num_uncomputed for seq in request.live]
        chunked = self.config.enable_chunked_prefill
        limit = min(budget, self.config.long_prefill_token_threshold or budget) if chunked else budget
        if all(seq.leader is None for seq in request.live):
            if sum(left) <= (budget if sum(left) == len(left) else limit):      # one token each is no long prefill
                return left
            if not chunked and len(left) == 1:
                return [0]
        chunk = []
        for seq, tokens in zip(request.live, left):
            run = tokens - 1 if seq.leader is None else 0
            chunk.append(min(run, limit) if chunked or run <= limit else 0)
            limit -= chunk[-1]
        return chunk

    def _make_room(self, request: Request, tokens: list[int], step: _Step) -> list[Copy] | None:
        """Take blocks from the last in policy order until ``request`` has those that it needs; returns its copies-on-write.

        None: it must step back itself (it is the last, or a move needs more than there is beside it), or it has ended, alone in a full pool.
        """
        while len(self.running) > 1:
            victim = self.running[-1]
            self._preempt(victim, step)
            if victim is request:
                return None
            if (copies := self.manager.reserve(request.live, tokens)) is not None:
                return copies
        if self.manager.status(request) is AllocStatus.NEVER:
            self._exhausted(request, step)
        else:
            self._preempt(request, step)
        return None

    def _admit(self, step: _Step, budget: int) -> None:
        """Start waiting requests in policy order, as long as the first one finds its places, a token of the budget and its blocks."""
        while self.waiting:
            request = self.waiting[0]
            if self.num_running_seqs + request.places > self.config.max_num_seqs or not any(self._chunk(request, budget)):
                return
            status = self.manager.status(request)
            if status is AllocStatus.LATER:
                return
            if any(other.pending and self.policy.key(other) < self.policy.key(request) for other in self.running):
                return                                      # a group that is still coming back is not overtaken
            if status is AllocStatus.NEVER:     # only after a preemption: its outputs have outgrown the pool
                self._exhausted(request, step)
                continue
            started = self._start(request, step)
            chunk = self._chunk(request, budget)
            copies = self.manager.reserve(request.live, chunk) if started else None
            if copies is None:
                raise RuntimeError(f"the manager answered OK for {request.request_id!r} and then found no blocks for it")
            step.copies += copies
            self._plan(request, chunk, step)
            budget -= sum(chunk)

    def _start(self, request: Request, step: _Step) -> bool:
        """Waiting, preempted or swapped -> running, with its blocks; False: there was no room for them."""
        swapped = request.status is Status.SWAPPED
        if swapped:
            if (copies := self.manager.swap_in(request.live)) is None:
                return False
            step.swap_in += copies
        elif not self._join(request):
            return False
        num_cached = 0 if swapped else sum(seq.num_computed_tokens for seq in request.live)
        tokens = sum(seq.num_tokens for seq in request.live)
        if request.status is Status.WAITING:
            request.num_cached_tokens = num_cached
            self.prefix_stats.queries += tokens
            self.prefix_stats.hits += num_cached
        else:
            self.prefix_stats.returning_hits += num_cached
        self._remove(self.waiting, request)                 # perhaps no longer the first: a listener may have added a more urgent one
        insort(self.running, request, key=self.policy.key)
        self.num_running_seqs += request.places
        request.status = Status.RUNNING
        step.admitted.append(request.request_id)
        if self.emit is not None:
            self.emit(events.RequestAdmitted(request.request_id, tokens, num_cached))
        return True

    def _join(self, request: Request) -> bool:
        """Blocks for the pending branches whose leader has come far enough; False: there was no room for one of them."""
        for seq in list(request.pending):
            leader = seq.leader
            if leader is None or (leader not in request.pending and leader.num_computed_tokens >= seq.num_led_tokens):
                num_cached = self.manager.admit(seq, seq.num_tokens, leader, seq.num_led_tokens)
                if num_cached is None:
                    return False
                seq.num_computed_tokens = min(num_cached, seq.num_tokens - 1)       # at least one token is queried
                seq.leader, seq.num_led_tokens = None, 0
                request.pending.remove(seq)
        return True

    def _rejoin(self, request: Request, step: _Step) -> None:
        """The next branches of a group that comes back; if somebody has taken their blocks, the last in policy order steps back."""
        while request.status is Status.RUNNING and not self._join(request):     # it may be the last itself
            self._preempt(self.running[-1], step)

    def _decode(self, request: Request, scheduled: list[ScheduledSeq]) -> bool:
        """Plan one token for each branch if all of them have their next slot already: most of all work. False: `reserve` and `_plan` do it."""
        if request.pending or (request.n > 1 and not request.forked):
            return False
        planned, next_slot, request_id = len(scheduled), self.manager.next_slot, request.request_id
        for seq in request.live:
            if (place := next_slot(seq)) is None:
                del scheduled[planned:]
                return False
            start, (slot, blocks) = seq.num_computed_tokens, place
            row = (request_id, seq.seq_id, seq.branch, (seq.token_ids[start],), start, (slot,), blocks, 0, 1)
            scheduled.append(new_tuple(ScheduledSeq, row))  # the constructor takes twice as long
        return True

    def _plan(self, request: Request, tokens: list[int], step: _Step) -> None:
        """Write down what the branches of a request run. They sample when all of them have caught up."""
        manager, num_samples = self.manager, 1 if request.forked else request.n
        caught_up = not request.pending and all(n >= seq.num_uncomputed for seq, n in zip(request.live, tokens))
        for seq, n in zip(request.live, tokens):
            if n:
                start = seq.num_computed_tokens
                had = request.num_prompt_logits             # of the prompt, the other ones are still missing
                wanted = max(had - start, 0) if had is not None else n - 1 if caught_up else n
                step.scheduled.append(ScheduledSeq(
                    request.request_id, seq.seq_id, seq.branch, tuple(seq.token_ids[start : start + n]), start,
                    manager.slots(seq, start, start + n), tuple(manager.table(seq)),
                    wanted if wanted < n else None, num_samples if caught_up else 0,
                ))

    # -- the end of a step ---------------------------------------------------------------------------------------------------------
    def update(self, output: SchedulerOutput, result: StepResult) -> list[Sequence]:
        """Take in what the runner computed; returns the sequences that grew, the finished ones among them included."""
        if not self._planned or output.step != self.step:
            raise ValueError(f"update() got step {output.step}; " + (f"step {self.step} is planned" if self._planned else "no step is planned"))
        self._planned = False
        sequences, commit, given = self.sequences, self.manager.commit, result.branches
        for request_id, seq_id, _, token_ids, start, _, _, _, num_samples in output.scheduled:
            seq = sequences.get(seq_id)
            if seq is not None:                             # None: aborted while the step ran
                if request_id not in given and num_samples:
                    raise ValueError(f"step {output.step}: {request_id!r} was to be sampled and the runner gave no token for it")
                seq.num_computed_tokens = computed = start + len(token_ids)
                commit(seq, computed)
                if seq.request.num_prompt_logits is not None:
                    seq.request.got_prompt_logits(computed)
        grown: list[Sequence] = []
        for request_id, branches in given.items():
            request = self.requests.get(request_id)
            if request is None or request.status is not RUNNING:
                continue                                    # aborted while the step ran; the id may be in use again
            live = request.live
            one = len(branches) == 1 == request.n and branches[0][0] == live[0].seq_id and branches[0][4] is None       # nearly always, and quicker
            if request.beam or (not one and (not request.forked or [b[0] for b in branches if b[4] is None] != [seq.seq_id for seq in live])):
                self._branch_out(request, branches, grown)
                continue
            for seq, (_, new, logprobs, logprob, _) in ((live[0], branches[0]),) if one else zip(live, branches):   # nothing forks or is freed
                if logprobs is not None:
                    seq.logprobs[seq.num_output_tokens :] = logprobs
                seq.token_ids += new
                seq.cumulative_logprob += logprob
                if self.emit is not None:                   # asked each time: a listener that fails is dropped at once
                    self.emit(events.TokensSampled(seq.seq_id, new))
                grown.append(seq)
        for seq in grown:
            reason = seq.stop_check(self.config.max_model_len)
            if reason is not None:
                self._finish(seq, *reason)
        return grown

    def _branch_out(self, request: Request, branches: tuple[Branch, ...], grown: list[Sequence]) -> None:
        """Append the sampled tokens; free the parents that nobody continues, and fork the children of the others (Paper §4.4)."""
        places = request.places
        record, forks = branch_out(request, branches, self._seq_ids)
        request.branching = record
        record.apply(request)
        for parent, child in forks:
            self.sequences[child.seq_id] = child
            if self.emit is not None:
                self.emit(events.SequenceForked(request.request_id, parent.seq_id, child.seq_id))
        if self.emit is not None:
            for seq, _, new, _ in record.tokens:
                self.emit(events.TokensSampled(seq.seq_id, new))
        self.num_running_seqs += request.places - places
        grown += [seq for seq, *_ in record.tokens]
        for seq, reason in record.ended:                    # first, for managers that have no block to spare; no child goes on from these
            self._finish(seq, reason, request.stop_reason(seq, reason))
        self._fork(request, [fork for fork in forks if fork[1] in record.going_on])
        request.branching = None

    def _fork(self, request: Request, forks: list[Fork]) -> None:
        """A table for each new branch that goes on; an ended hypothesis needs none."""
        for parent, child in forks:
            if not self.manager.fork(parent, child):        # a manager that copies, and has no room: the child is computed from its tokens
                child.num_computed_tokens = 0
                request.pending.append(child)

    # -- leaving -------------------------------------------------------------------------------------------------------------------
    def _preempt(self, request: Request, step: _Step) -> None:
        """All-or-nothing: the request gives back every block (Paper §4.5).

        Recomputation throws keys and values away and computes them again from the tokens, sampled ones included; swapping moves
        them to host memory. "auto" recomputes a single sequence: in the paper that took at most a fifth longer than moving its blocks, with small
        blocks much less (§7.3), and it needs no host memory. It swaps several branches: all would be computed again beyond what they share.
        """
        lost = sum(seq.num_computed_tokens for seq in request.live)
        mode = self.config.preemption_mode
        swap = lost and not request.pending and (mode == "swap" or (mode == "auto" and len(request.live) > 1))
        copies = self.manager.swap_out(request.live) if swap else None
        if copies is None:                                  # host memory is full, or swapping was not asked for
            for seq in request.live:
                if self.manager.holds(seq):
                    self.manager.free(seq)
                seq.num_computed_tokens = 0
            request.pending = list(request.live)
            self._assign_leaders(request)
        else:
            step.swap_out += copies
        self._remove(self.running, request)
        self.num_running_seqs -= request.places
        insort(self.waiting, request, key=self.policy.key)
        request.status = Status.PREEMPTED if copies is None else Status.SWAPPED
        request.num_preemptions += 1
        step.preempted.append(request.request_id)
        if self.emit is not None:
            self.emit(events.RequestPreempted(request.request_id, *((lost, "recompute") if copies is None else (0, "swap"))))

    def _exhausted(self, request: Request, step: _Step) -> None:
        """Even alone the request would not fit: every branch ends with what it has."""
        step.refused.append(request.request_id)
        if self.emit is not None:
            tokens = sum(seq.num_tokens for seq in request.live)
            self.emit(events.PoolExhausted(request.request_id, tokens, self.manager.num_blocks * self.manager.block_size))
        self._finish_all(request, "length", "kv_pool")
