"""Engine: the serving loop. ``step()`` is schedule -> execute -> update, and nothing else runs between two steps (Paper §4, Fig. 4).

From a prompt to the kernel: `LLM.generate` -> `Engine.step` -> `Scheduler.schedule` -> `ModelRunner.execute` -> the model's layers -> ``attend``.
"""
from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..checks import UnsupportedError, integer, number
from ..core.events import Emit
from ..core.kv_manager import MemoryReport
from ..core.paged import PagedKVManager
from ..core.plan import SchedulerOutput, StepResult
from ..core.policy import FCFS
from ..core.scheduler import Scheduler
from ..core.sequence import Request
from ..core.sequence import Sequence as CoreSequence
from ..sampling.beam import BeamSearchParams, check_vocab
from ..sampling.params import SamplingParams
from ..sampling.rows import BeamState, BrokenLogitsError, SamplingState, State
from .completions import Completions
from .listeners import Listeners
from .outputs import RequestMetrics, RequestOutput
from .prepared import Params, PreparedRequest, check_request_id, check_tokens, derived_seed
from .prompts import Prompt as Prompt
from .prompts import check_ids, salt_of, tokenize
from .runner import Runner


class Engine:
    """Serves requests with one scheduler and one runner.

    ``tokenizer`` may be None: prompts are token ids then and outputs have no text. ``vocab_size`` bounds the ids of prompts and stop tokens.
    One thread at a time steps an engine. Listeners may add and abort requests: an abort that comes in the middle of a step happens at its end.
    """

    def __init__(
        self, scheduler: Scheduler, runner: Runner, tokenizer: Any = None, *, vocab_size: int, eos_token_ids: Sequence[int] = (), seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.num_known = vocab_size if tokenizer is None else min(vocab_size, len(tokenizer))      # the head may have rows for padding
        self.eos_token_ids = frozenset(eos_token_ids)
        self.seed = seed
        self.clock = clock
        self.last_output: SchedulerOutput | None = None
        """The plan of the latest step."""
        self.completions = Completions(tokenizer)
        self._records: dict[str, PreparedRequest] = {}      # a request stays until its last output has been returned
        self._sampling: dict[str, State] = {}
        self._kept: list[RequestOutput] = []        # outputs that the next step returns first
        self._aborts: list[str] = []                # asked for in the middle of a change
        self._notes: list[str] = []                 # warnings that wait for a moment at which everything is consistent
        self._busy = False
        self._lock = threading.RLock()              # held while tables change: readers in other threads wait for it
        self._num_added = 0
        self._listeners = Listeners(scheduler, self._notes)

    # -- requests ------------------------------------------------------------------------------------------------------------------
    def add_request(
        self, request_id: str, prompt: Prompt, params: Params | None = None, *, arrival_time: float | None = None, priority: int = 0,
    ) -> None:
        """Queue one request. Everything is checked before anything is queued: ValueError or TypeError leave the engine as it was."""
        self.queue(self.prepare(request_id, prompt, params, arrival_time=arrival_time, priority=priority))

    def prepare(
        self, request_id: str, prompt: Prompt, params: Params | None = None, *, arrival_time: float | None = None, priority: int = 0,
    ) -> PreparedRequest:
        """Check a request and turn it into tokens; nothing is queued. Raises ValueError or TypeError with the value and the limit.

        Other threads may prepare while one steps.
        """
        params = params if params is not None else SamplingParams()
        if not isinstance(params, Params):
            raise TypeError(f"params must be SamplingParams or BeamSearchParams, not {type(params).__name__}")
        check_request_id(request_id)
        if request_id in self._records:
            raise ValueError(f"request id {request_id!r} is in use by a request that has not finished")
        if arrival_time is not None:
            number("arrival_time", arrival_time, 0)
        integer("priority", priority, -(2**63))
        if priority and isinstance(self.scheduler.policy, FCFS):
            raise UnsupportedError(f"priority={priority} does nothing under first come, first served; leave it at 0")
        text, ids = tokenize(prompt, self.tokenizer, self.vocab_size)
        check_ids("stop_token_ids", params.stop_token_ids or (), self.vocab_size)
        now = self.clock() if arrival_time is None else arrival_time
        request = Request(
            request_id, ids, max_tokens=params.max_tokens, min_tokens=params.min_tokens,
            eos_token_ids=frozenset() if params.ignore_eos else self.eos_token_ids, stop_token_ids=frozenset(params.stop_token_ids or ()),
            n=params.beam_width if isinstance(params, BeamSearchParams) else params.n, beam=isinstance(params, BeamSearchParams),
            cache_salt=salt_of(prompt), priority=priority, arrival_time=now,
        )
        stops = request.eos_token_ids | request.stop_token_ids
        if isinstance(params, SamplingParams):
            check_tokens(params, self.num_known, sum(token < self.num_known for token in stops), self.runner.gives_logprobs)
            request.num_prompt_logits = None if params.prompt_logprobs is None else 0
        if params.stop and self.tokenizer is None:
            raise ValueError(f"stop={list(params.stop)} is looked for in the text, and this engine has no tokenizer; use stop_token_ids")
        self.scheduler.check(request)
        if params.stop and self.scheduler.manager.needs_known_length:
            raise ValueError(f"stop={list(params.stop)} may end an output early, and this KV manager reserves for its true length; leave it out")
        if isinstance(params, BeamSearchParams):
            check_vocab(params, self.num_known, stops, self.scheduler.config.max_model_len - len(ids))
        return PreparedRequest(request, params, text, RequestMetrics(now))

    def queue(self, prepared: PreparedRequest) -> None:
        """Queue a request that `prepare` has checked. Raises ValueError if its id has been taken since."""
        request, params = prepared.request, prepared.params
        if request.request_id in self._records:
            raise ValueError(f"request id {request.request_id!r} is in use by a request that has not finished")
        state: State
        if isinstance(params, BeamSearchParams):
            state = BeamState(params, request)
        else:
            seed = params.seed if params.seed is not None else derived_seed(self.seed, self._num_added)
            stops = tuple(sorted(request.eos_token_ids | request.stop_token_ids))
            state = SamplingState(params, seed, request, stops)
        try:
            self._records[request.request_id], self._sampling[request.request_id] = prepared, state
            self.scheduler.add(request)
        except ValueError:                          # refused, and nothing was changed
            self._forget(request.request_id)
            raise
        except BaseException:                       # interrupted half way
            self.scheduler.recover()
            self.scheduler.abort(request.request_id)
            self._forget(request.request_id)
            raise
        self._num_added += 1
        self._warn()

    def abort_request(self, request_id: str) -> RequestOutput | None:
        """End a request in whatever state it is; its output so far (finish_reason "abort"), or None if there is no such request.

        Called in the middle of a step, by a listener or from another thread: None, and the output comes with the step's own.
        """
        record = self._records.get(request_id)
        if record is None:
            return None
        if self._busy:
            self._aborts.append(request_id)
            return None
        if not record.request.finished:
            with self._change("abort_request"):
                self.scheduler.abort(request_id)
                self._late_aborts()
        output = self._output(record)
        self._forget(request_id)
        self._warn()
        return output

    def discard(self, request_id: str) -> bool:
        """End a request, if it has not ended, and drop its output: nobody waits for it. False in the middle of a step: then ask again."""
        if self._busy:
            self._aborts.append(request_id)
            return False
        self.abort_request(request_id)
        self._kept = [output for output in self._kept if output.request_id != request_id]
        return True

    def knows(self, request_id: str) -> bool:
        """Whether the last output of this request is still to come."""
        return request_id in self._records or any(output.request_id == request_id for output in self._kept)

    def has_unfinished_requests(self) -> bool:
        """Whether a step would do or return something."""
        return bool(self._records or self._kept)

    @property
    def num_unfinished_requests(self) -> int:
        return len(self._records)

    # -- the loop ------------------------------------------------------------------------------------------------------------------
    def step(
        self, *, finished_only: bool = False, only: Container[str] | None = None, growing: Container[str] | None = None,
    ) -> list[RequestOutput]:
        """One iteration; the requests that grew or ended, each with everything so far. Nothing to do: an empty list.

        ``finished_only``: leave out those that go on, so that no text is made that nobody reads. ``only``: ids of the requests that the caller
        waits for. Other requests that ended are kept for a step that asks for them; what others have grown is in their next output.
        ``growing``: of those, the ids of the requests whose outputs are wanted before they end (None: all).
        An error in mid-step, or Ctrl-C, leaves the engine consistent: what was running is computed again, with the same tokens.
        """
        with self._change("step"):
            grown = self._advance()
        outputs = list(self._kept)
        known = {output.request_id for output in outputs}
        for request in grown:
            wanted = not finished_only and (only is None or request.request_id in only) and (growing is None or request.request_id in growing)
            if request.request_id not in known and (request.finished or wanted):
                outputs.append(self._output(self._records[request.request_id]))
        # An interruption from here on must not swallow an output: until the return the next step would give them again.
        self._kept = [output for output in outputs if output.finished]
        for output in self._kept:
            self._forget(output.request_id)
        shown = self.completions.shown_with(output.request_id for output in outputs if not output.finished)
        others = [output for output in self._kept if only is not None and output.request_id not in only]
        returned = [output for output in outputs if only is None or output.request_id in only]
        self._warn()
        self._kept, self.completions.shown = others, shown
        return returned

    def _advance(self) -> list[Request]:
        """Schedule, execute, update; the requests that grew or ended."""
        grown: list[Request] = []
        # Nothing to find here, unless the step before was interrupted between a token and its text.
        self._end_at_stop_strings([seq for record in self._records.values() if record.params.stop for seq in record.request.live])
        if self.scheduler.has_unfinished():
            output = self.scheduler.schedule()
            self.last_output = output
            self._note_plan(output)
            try:
                result = self.runner.execute(output, self._sampling) if output.scheduled else StepResult()
            except BrokenLogitsError as error:
                self.scheduler.recover()        # the others are computed again and go on
                self._aborts += error.request_ids
                self._notes.append(f"{error}: finish_reason 'abort'")
            else:
                for request_id, (first, entries) in result.prompt_logprobs.items():     # kept before the scheduler counts them
                    self._records[request_id].keep_prompt_logprobs(first, entries)
                sequences = self.scheduler.update(output, result)
                grown = self._grown_requests(sequences)
                self._end_at_stop_strings(sequences)
        self._late_aborts()
        ended = [record.request for record in self._records.values() if record.request.finished]
        return list({request.request_id: request for request in (*grown, *ended)}.values())

    def _end_at_stop_strings(self, sequences: Iterable[CoreSequence]) -> None:
        """A stop string ends its sequence, and frees its blocks, in the step that completes it."""
        for seq in sequences:
            stop = self.completions.find_stop(seq, self._records[seq.request.request_id].params)
            if stop is not None and not seq.finished:
                self.scheduler.finish(seq.seq_id, "stop", stop.string)

    @contextmanager
    def _change(self, what: str) -> Iterator[None]:
        """One change at a time; whatever interrupts it leaves queues, tables and pool consistent."""
        if self._busy:
            raise RuntimeError(f"{what}() in the middle of a step: a listener may not step the engine, and one thread at a time may")
        self._busy = True
        try:
            with self._lock:
                yield
        except BaseException:
            self.scheduler.recover()
            raise
        finally:
            self._busy = False

    def _late_aborts(self) -> None:
        """The aborts that were asked for in the middle of the change."""
        while self._aborts:
            self.scheduler.abort(self._aborts.pop(0))

    def _note_plan(self, output: SchedulerOutput) -> None:
        """Times of the requests that start, and those that ended because the pool cannot hold them."""
        now = self.clock()
        for request_id in output.admitted:
            metrics = self._records[request_id].metrics
            if metrics.first_scheduled_time is None:
                metrics.first_scheduled_time = now
        for request_id in output.refused:
            request, manager = self._records[request_id].request, self.scheduler.manager
            full = "it has filled the pool" if manager.shares_blocks else "it found no longer run in the pool"
            self._notes.append(
                f"request {request_id!r} ended with {request.sequences[0].num_output_tokens} output tokens: alone, {full} of "
                f"{manager.num_blocks} blocks of {manager.block_size} tokens (stop_reason 'kv_pool')"
            )

    def _grown_requests(self, sequences: list[CoreSequence]) -> list[Request]:
        """The requests of ``sequences``; notes when each of them got its first token."""
        now = self.clock()
        requests: dict[str, Request] = {}
        for seq in sequences:
            requests[seq.request.request_id] = seq.request
            metrics = self._records[seq.request.request_id].metrics
            if metrics.first_token_time is None:
                metrics.first_token_time = now
        return list(requests.values())

    def _warn(self) -> None:
        """Say what has happened, now that everything is consistent (a warning may be an error)."""
        while self._notes:
            warnings.warn(self._notes.pop(0), RuntimeWarning, stacklevel=3)

    # -- outputs -------------------------------------------------------------------------------------------------------------------
    def _forget(self, request_id: str) -> None:
        """Every table that knows a request forgets it."""
        self._records.pop(request_id, None)
        self._sampling.pop(request_id, None)
        self.completions.forget(request_id)

    def _output(self, record: PreparedRequest) -> RequestOutput:
        request = record.request
        record.metrics.num_preemptions = request.num_preemptions
        if request.finished:
            record.metrics.finished_time = self.clock()
        return RequestOutput(
            request.request_id, record.prompt, request.prompt_token_ids,
            self.completions.of(request, record.params), request.finished, record.metrics, request.num_cached_tokens,
            self.completions.prompt_logprobs(record),
        )

    # -- watching ------------------------------------------------------------------------------------------------------------------
    def memory_report(self) -> MemoryReport:
        """What the KV cache holds now: the four parts of Paper Fig. 2. From another thread it waits for the end of the step."""
        with self._lock:
            return self.scheduler.manager.report()

    def reset_prefix_cache(self) -> int:
        """Forget every cached prefix, so that nothing is found before it has been computed again; returns how many blocks that were."""
        if not isinstance(self.scheduler.manager, PagedKVManager):
            return 0
        with self._change("reset_prefix_cache"):
            return self.scheduler.manager.reset_prefix_cache()

    def listen(self, listener: Emit) -> Callable[[], None]:
        """Send every event to ``listener`` from now on; returns the function that ends that (calling it twice does no harm).

        A listener that raises is dropped, with a warning: nobody's requests depend on who watches them.
        """
        return self._listeners.add(listener)
