"""StaticBatchScheduler: padded batches that run to their end, as FasterTransformer's (Paper §6.1), with the scheduler's interface.

Whenever nothing runs, the requests that have waited longest become a batch: as many as fit the memory once all are padded to the longest prompt
and the longest answer among them. All rows compute to the end of the longest answer, finished ones included; then the whole batch is answered.
"""
from __future__ import annotations

from collections import deque

from ..core.kv_manager import AllocStatus
from ..core.plan import ScheduledSeq, SchedulerOutput, StepResult
from ..core.sequence import Request, Sequence, Status


class StaticBatchScheduler:
    """Batches over ``num_slots`` token slots of the KV cache, each row a slab of them; no prompt and answer together exceed ``max_model_len``.

    A request's ``max_tokens`` is taken for the length of its answer. Raises ValueError for sizes that hold nothing.
    """

    def __init__(self, num_slots: int, max_model_len: int) -> None:
        for name, value in (("num_slots", num_slots), ("max_model_len", max_model_len)):
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, not {value!r}")
        self.num_slots = num_slots
        self.max_model_len = max_model_len
        self.step = 0
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.padded_prompt = 0
        """Tokens of each prompt of the batch, padding included."""
        self.padded_output = 0
        """Steps of the batch: the longest answer."""
        self._done = 0                                      # steps of the batch that have run
        self._planned = False
        self._next_seq_id = 0

    def status(self, request: Request) -> AllocStatus:
        """Whether the request would fit: alone (else NEVER), or into the batch that is formed next."""
        if len(request.prompt_token_ids) + request.max_tokens > min(self.num_slots, self.max_model_len):
            return AllocStatus.NEVER
        return AllocStatus.LATER if self.running else AllocStatus.OK

    def add(self, request: Request) -> None:
        """Queue a request. Raises ValueError for one that never fits, and for several samples or beams, which a padded row has no place for."""
        if request.n > 1 or request.beam:
            raise ValueError(f"request {request.request_id!r}: padded batches have one answer a request; n is {request.n}, beam {request.beam}")
        if self.status(request) is AllocStatus.NEVER:
            raise ValueError(
                f"request {request.request_id!r} needs {len(request.prompt_token_ids) + request.max_tokens} slots; "
                f"{min(self.num_slots, self.max_model_len)} is the most that a row may have"
            )
        self.waiting.append(request)

    def has_unfinished(self) -> bool:
        return bool(self.waiting or self.running)

    def schedule(self) -> SchedulerOutput:
        """The next step of the batch, a new one if none runs. Raises ValueError if the last step was not taken in."""
        if self._planned:
            raise ValueError(f"step {self.step} is planned and not carried out: update() comes first")
        self.step += 1
        self._planned = True
        admitted: tuple[str, ...] = ()
        if not self.running:
            admitted = self._form()
        scheduled, width = [], self.padded_prompt + self.padded_output
        start = self.padded_prompt + self._done - 1 if self._done else 0
        stop = start + 1 if self._done else self.padded_prompt
        for row, request in enumerate(self.running):
            seq, first = request.sequences[0], row * width
            tokens = (0,) * (stop - start) if self._done else request.prompt_token_ids + (0,) * (stop - len(request.prompt_token_ids))
            slots = tuple(range(first + start, first + stop))
            scheduled.append(ScheduledSeq(request.request_id, seq.seq_id, 0, tokens, start, slots, (row,), len(tokens) - 1, 1))
        return SchedulerOutput(self.step, tuple(scheduled), admitted=admitted)

    def _form(self) -> tuple[str, ...]:
        prompt = output = 0
        while self.waiting:
            request = self.waiting[0]
            longest = max(prompt, len(request.prompt_token_ids)), max(output, request.max_tokens)
            if (len(self.running) + 1) * sum(longest) > self.num_slots:
                break
            prompt, output = longest
            self.waiting.popleft()
            seq = Sequence(self._next_seq_id, request, 0, list(request.prompt_token_ids))
            self._next_seq_id += 1
            request.sequences, request.live, request.status = [seq], [seq], Status.RUNNING
            self.running.append(request)
        self.padded_prompt, self.padded_output, self._done = prompt, output, 0
        return tuple(request.request_id for request in self.running)

    def update(self, output: SchedulerOutput, result: StepResult) -> list[Sequence]:
        """Take a step in; returns the sequences that grew, and at the end of the batch all of them, finished."""
        if not self._planned or output.step != self.step:
            raise ValueError(f"update() got step {output.step}; " + (f"step {self.step} is planned" if self._planned else "no step is planned"))
        self._planned = False
        self._done += 1
        grown = []
        for request in self.running:
            seq = request.sequences[0]
            if seq.num_output_tokens < request.max_tokens:
                (branch,) = result.branches[request.request_id]
                seq.token_ids += branch.tokens
                grown.append(seq)
            seq.num_computed_tokens = min(self.padded_prompt + self._done, seq.num_tokens) - 1
        if self._done < self.padded_output:
            return grown
        ended = [request.sequences[0] for request in self.running]
        for request, seq in zip(self.running, ended, strict=True):
            seq.finish_reason = "length"
            request.live, request.status = [], Status.FINISHED
        self.running = []
        return ended
