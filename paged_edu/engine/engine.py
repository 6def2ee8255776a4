"""Engine: the serving loop. ``step()`` is schedule -> execute -> update, and nothing else runs between two steps (Paper §4, Fig. 4).

From a prompt to the kernel: `LLM.generate` -> `Engine.step` -> `Scheduler.schedule` -> `ModelRunner.execute` -> the model's layers -> ``attend``.
"""
from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..checks import number
from ..core.events import Emit, Event
from ..core.kv_manager import MemoryReport
from ..core.plan import SchedulerOutput, StepResult
from ..core.scheduler import Scheduler
from ..core.sequence import Request
from ..core.sequence import Sequence as CoreSequence
from ..sampling.params import SamplingParams
from ..sampling.sampler import BrokenLogitsError, SamplingState
from .outputs import CompletionOutput, RequestMetrics, RequestOutput
from .runner import Runner

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or ``{"prompt": text}`` / ``{"prompt_token_ids": ids}``."""


@dataclass(slots=True)
class _Record:
    """What the engine keeps of a live request besides the scheduler's `Request`."""

    request: Request
    params: SamplingParams
    prompt: str | None
    metrics: RequestMetrics


class Engine:
    """Serves requests with one scheduler and one runner.

    ``tokenizer`` may be None: prompts are token ids then and outputs have no text. ``vocab_size`` bounds the ids of prompts and stop tokens.
    """

    def __init__(
        self, scheduler: Scheduler, runner: Runner, tokenizer: Any = None, *, vocab_size: int, eos_token_ids: Sequence[int] = (), seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.eos_token_ids = frozenset(eos_token_ids)
        self.seed = seed
        self.clock = clock
        self.last_output: SchedulerOutput | None = None
        """The plan of the latest step."""
        self._records: dict[str, _Record] = {}
        self._sampling: dict[str, SamplingState] = {}
        self._ended: list[Request] = []
        self._kept: list[RequestOutput] = []
        self._num_added = 0
        self._listeners: list[Emit] = []

    # -- requests ------------------------------------------------------------------------------------------------------------------
    def add_request(
        self, request_id: str, prompt: Prompt, params: SamplingParams | None = None, *, arrival_time: float | None = None, priority: int = 0,
    ) -> None:
        """Queue one request. Everything is checked before anything is queued: ValueError or TypeError leave the engine as it was."""
        params = params if params is not None else SamplingParams()
        if not isinstance(params, SamplingParams):
            raise TypeError(f"params must be SamplingParams, not {type(params).__name__}")
        if not isinstance(request_id, str) or not request_id:
            raise ValueError(f"request_id must be a non-empty string, not {request_id!r}")
        if arrival_time is not None:
            number("arrival_time", arrival_time, 0)
        text, ids = self.tokenize(prompt)
        self._check_ids("stop_token_ids", params.stop_token_ids or ())
        now = self.clock() if arrival_time is None else arrival_time
        request = Request(
            request_id, ids, max_tokens=params.max_tokens, min_tokens=params.min_tokens,
            eos_token_ids=frozenset() if params.ignore_eos else self.eos_token_ids, stop_token_ids=frozenset(params.stop_token_ids or ()),
            n=params.n, priority=priority, arrival_time=now,
        )
        self.scheduler.add(request)
        self._records[request_id] = _Record(request, params, text, RequestMetrics(now))
        seed = params.seed if params.seed is not None else _derived_seed(self.seed, self._num_added)
        stops = tuple(sorted(request.eos_token_ids | request.stop_token_ids))
        self._sampling[request_id] = SamplingState(params, seed, len(ids), stops)
        self._num_added += 1

    def tokenize(self, prompt: Prompt) -> tuple[str | None, tuple[int, ...]]:
        """``(text, token ids)`` of a prompt; raises for an empty prompt and for ids that the model does not have."""
        if isinstance(prompt, Mapping):
            if len(prompt) != 1 or not set(prompt) <= {"prompt", "prompt_token_ids"}:
                raise ValueError(f"a prompt given as a dict has one key, 'prompt' or 'prompt_token_ids', not {sorted(map(str, prompt))}")
            ((key, value),) = prompt.items()
            if (key == "prompt") != isinstance(value, str) or isinstance(value, Mapping):
                raise TypeError(f"{key!r} must be {'text' if key == 'prompt' else 'a list of token ids'}, not {type(value).__name__}")
            return self.tokenize(value)
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise ValueError("this engine has no tokenizer: give the prompt as token ids")
            ids = tuple(self.tokenizer(prompt)["input_ids"])
            if not ids:
                raise ValueError(f"the prompt {prompt!r} is empty: at least 1 token is needed")
            return prompt, ids
        if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
            raise TypeError(f"a prompt is text or a list of token ids, not {type(prompt).__name__}")
        given: list[Any] = list(prompt)
        if not given:
            raise ValueError("the prompt is empty: at least 1 token is needed")
        self._check_ids("prompt_token_ids", given)
        return None, tuple(int(token) for token in given)

    def _check_ids(self, name: str, ids: Sequence[int]) -> None:
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, int | np.integer):
                raise ValueError(f"{name} must hold token ids (integers), not {token!r}")
            if not 0 <= token < self.vocab_size:
                raise ValueError(f"{name}: the id {token} is not in the vocabulary, 0 to {self.vocab_size - 1}")

    def abort_request(self, request_id: str) -> RequestOutput | None:
        """End a request in whatever state it is; its output so far (finish_reason "abort"), or None if there is no such request."""
        record = self._records.get(request_id)
        if record is None or not self.scheduler.abort(request_id):
            return None
        return self._leave(record.request)

    def has_unfinished_requests(self) -> bool:
        return bool(self._records or self._kept)

    @property
    def num_unfinished_requests(self) -> int:
        return len(self._records)

    # -- the loop ------------------------------------------------------------------------------------------------------------------
    def step(self, *, finished_only: bool = False) -> list[RequestOutput]:
        """One iteration; the requests that grew or ended, each with everything so far. Nothing to do: an empty list.

        ``finished_only``: leave out those that go on, so that no text is made that nobody reads.
        """
        grown = self._advance()
        outputs, self._kept = self._kept, []
        for request in grown:
            if request.finished:
                outputs.append(self._leave(request))
            elif not finished_only:
                outputs.append(self._output(self._records[request.request_id]))
        return outputs

    def keep(self, outputs: Sequence[RequestOutput]) -> None:
        """Hand back outputs of ended requests that the caller did not add; the next `step` returns them first."""
        self._kept += outputs

    def _advance(self) -> list[Request]:
        """Schedule, execute, update; the requests that grew or ended."""
        if not self.scheduler.has_unfinished() and not self._ended:
            return []
        output = self.scheduler.schedule()
        self.last_output = output
        self._note_plan(output)
        try:
            result = self.runner.execute(output, self._sampling) if output.scheduled else StepResult()
        except BrokenLogitsError as error:
            self.scheduler.roll_back(output)
            self._drop(error)                   # the others are computed again and go on
            grown = []
        except BaseException:
            self.scheduler.roll_back(output)    # an error or Ctrl-C in mid-step: what it would have computed is computed again
            raise
        else:
            grown = self._grown_requests(self.scheduler.update(output, result))
        ended, self._ended = self._ended, []
        return ended + grown

    def _note_plan(self, output: SchedulerOutput) -> None:
        """Times of the requests that start, and those that ended because the pool cannot hold them."""
        now = self.clock()
        for request_id in output.admitted:
            metrics = self._records[request_id].metrics
            if metrics.first_scheduled_time is None:
                metrics.first_scheduled_time = now
        for request_id in output.refused:
            request = self._records[request_id].request
            self._ended.append(request)
            manager = self.scheduler.manager
            warnings.warn(
                f"request {request_id!r} ended with {request.sequences[0].num_output_tokens} output tokens: alone, it has filled the pool of "
                f"{manager.num_blocks} blocks of {manager.block_size} tokens (stop_reason 'kv_pool')", RuntimeWarning, stacklevel=4,
            )

    def _drop(self, error: BrokenLogitsError) -> None:
        """A model that gives NaN for a request would give it again: the request ends, with what it has."""
        warnings.warn(f"{error}: they end with finish_reason 'abort'", RuntimeWarning, stacklevel=5)
        for request_id in error.request_ids:
            self.scheduler.abort(request_id)
            self._ended.append(self._records[request_id].request)

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

    # -- outputs -------------------------------------------------------------------------------------------------------------------
    def _leave(self, request: Request) -> RequestOutput:
        """The last output of a request; every table that knows it forgets it."""
        record = self._records.pop(request.request_id)
        self._sampling.pop(request.request_id)
        record.metrics.finished_time = self.clock()
        return self._output(record)

    def _output(self, record: _Record) -> RequestOutput:
        request = record.request
        record.metrics.num_preemptions = request.num_preemptions
        return RequestOutput(
            request.request_id, record.prompt, request.prompt_token_ids,
            tuple(self._completion(seq, record.params) for seq in request.sequences), request.finished, record.metrics,
        )

    def _completion(self, seq: CoreSequence, params: SamplingParams) -> CompletionOutput:
        ids = seq.output_token_ids
        # A stop token that the user named is no part of the text, though it is one of the tokens; special tokens follow skip_special_tokens.
        shown = ids[:-1] if seq.finish_reason == "stop" and seq.stop_reason is not None else ids
        text = self.tokenizer.decode(shown, skip_special_tokens=params.skip_special_tokens) if self.tokenizer is not None else ""
        return CompletionOutput(seq.branch, text, tuple(ids), seq.finish_reason, seq.stop_reason)

    # -- watching ------------------------------------------------------------------------------------------------------------------
    def memory_report(self) -> MemoryReport:
        """What the KV cache holds now: the four parts of Paper Fig. 2."""
        return self.scheduler.manager.report()

    def listen(self, listener: Emit) -> Callable[[], None]:
        """Send every event to ``listener`` from now on; returns the function that ends that (calling it twice does no harm)."""
        self._listeners.append(listener)
        self._wire()

        def unlisten() -> None:
            self._listeners = [other for other in self._listeners if other is not listener]
            self._wire()

        return unlisten

    def _wire(self) -> None:
        """No listener: None, so that the core pays one ``if`` an event. One: the listener itself. Several: a loop."""
        listeners = tuple(self._listeners)

        def broadcast(event: Event) -> None:
            for listener in listeners:
                listener(event)

        emit = broadcast if len(listeners) > 1 else listeners[0] if listeners else None
        self.scheduler.emit = self.scheduler.manager.emit = emit


def _derived_seed(seed: int, index: int) -> int:
    """The seed of the ``index``-th request that brings none: a function of the engine's seed alone."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0])
