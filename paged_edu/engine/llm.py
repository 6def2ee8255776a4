"""LLM: text from a list of prompts, whole (`generate`), as it comes (`stream`) or as the answer in a chat. It feeds an `Engine` and steps it."""
from __future__ import annotations

import gc
import os
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from types import TracebackType
from typing import Any

import numpy as np
import torch

from ..checks import known_keywords
from ..config import EngineConfig
from ..core.kv_manager import MemoryReport
from ..sampling.beam import BeamSearchParams
from ..sampling.params import SamplingParams
from .build import build_engine
from .engine import Engine
from .messages import Conversation, as_conversations, no_tools, render
from .outputs import RequestOutput
from .prepared import Params, PreparedRequest
from .prompts import Prompt
from .runner import ModelRunner


class LLM:
    """Offline generation.

    >>> with LLM("tiny-shakespeare") as llm:
    ...     print(llm.generate("ROMEO:", SamplingParams(max_tokens=40, seed=1))[0].outputs[0].text)

    ``options`` are those of `EngineConfig`; an unknown one raises TypeError, a bad value ValueError, what is not served yet `UnsupportedError`, a
    model that cannot be loaded `ModelLoadError`. `config` and `memory_plan` say what was asked for and what the pool became. `close` gives
    the memory back, in a notebook too.
    """

    def __init__(self, model: str | os.PathLike[str] = "tiny-shakespeare", **options: Any) -> None:
        known_keywords("LLM", options, [f.name for f in fields(EngineConfig)])
        if not isinstance(model, str | os.PathLike):
            raise TypeError(f"model must be a name or a directory, not {model!r}")
        self.config = EngineConfig(model=os.fspath(model), **options)
        self._engine: Engine | None
        self._engine, self.memory_plan = build_engine(self.config)
        self._num_calls = 0
        self._lock = threading.RLock()
        self._abandoned: set[str] = set()       # requests whose stream was left

    @property
    def engine(self) -> Engine:
        """The engine, to add requests by hand and to step it. Raises RuntimeError after `close`."""
        if self._engine is None:
            raise RuntimeError("this LLM is closed: its `with` block has ended, or close() was called; make another one")
        return self._engine

    @property
    def tokenizer(self) -> Any:
        return self.engine.tokenizer

    def generate(
        self, prompts: Prompt | Sequence[Prompt], sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, *,
        use_tqdm: bool = True, priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """One `RequestOutput` a prompt, in the order of the prompts.

        ``prompts``: one prompt or a list of them, each text, token ids or a dict (see `Prompt`). ``sampling_params``: one for all, or one
        each; ``priority``: one each, for ``scheduling_policy="priority"``. A bad prompt raises before any of them is queued. Interrupting the call
        drops its requests and frees their blocks.
        """
        batch = _as_list(prompts)
        return self._generate("generate", batch, list(_params_for(batch, sampling_params)), priority, use_tqdm)

    def beam_search(
        self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams, *, use_tqdm: bool = True, priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """The most probable outputs of each prompt, best first, with their ``cumulative_logprob`` (Paper §4.4, Fig. 9).

        Tokens and scores are those of transformers' ``generate(num_beams=...)``. The beams of a prompt share the blocks of what they have in common.
        """
        if not isinstance(params, BeamSearchParams):
            raise TypeError(f"params must be BeamSearchParams, not {type(params).__name__}")
        batch = _as_list(prompts)
        return self._generate("beam_search", batch, [params] * len(batch), priority, use_tqdm)

    def _generate(
        self, what: str, batch: list[Prompt], params: list[Params | None], priority: Sequence[int] | None, use_tqdm: bool,
    ) -> list[RequestOutput]:
        with self._turn() as engine:                # one thread at a time; the others wait for their turn
            prepared = self._prepare(engine, what, batch, params, priority)
            queued: set[str] = set()
            outputs: dict[str, RequestOutput] = {}
            try:
                _queue(engine, prepared, queued)
                self._run(engine, queued, outputs, use_tqdm)
            finally:
                self._drop(queued - set(outputs))
        return [outputs[request.request.request_id] for request in prepared]

    def _prepare(
        self, engine: Engine, what: str, batch: list[Prompt], params: list[Params | None], priority: Sequence[int] | None = None,
    ) -> list[PreparedRequest]:
        if priority is not None and (not isinstance(priority, Sequence | np.ndarray) or isinstance(priority, str | bytes | bytearray)):
            raise TypeError(f"priority must be a list of integers, one a prompt, not {type(priority).__name__}")
        if priority is not None and len(priority) != len(batch):
            raise ValueError(f"{len(priority)} priorities for {len(batch)} prompts: give one each")
        call, self._num_calls = self._num_calls, self._num_calls + 1
        return [
            engine.prepare(f"{what}-{call}-{i}", prompt, params[i], priority=0 if priority is None else priority[i])
            for i, prompt in enumerate(batch)
        ]

    def _run(self, engine: Engine, ids: set[str], outputs: dict[str, RequestOutput], use_tqdm: bool) -> None:
        from tqdm.auto import tqdm

        with tqdm(total=len(ids), desc="Processed prompts", unit="prompt", disable=not use_tqdm, dynamic_ncols=True) as bar:
            tokens = 0
            while len(outputs) < len(ids):
                _check_known(engine, ids - set(outputs))
                for output in engine.step(finished_only=True, only=ids):
                    outputs[output.request_id] = output
                    tokens += sum(len(completion.token_ids) for completion in output.outputs)
                    bar.update()
                    elapsed = bar.format_dict["elapsed"]
                    if elapsed:
                        bar.set_postfix_str(f"{tokens / elapsed:.0f} output tokens/s", refresh=False)

    # -- as it comes ---------------------------------------------------------------------------------------------------------------
    def stream(
        self, prompts: Prompt | Sequence[Prompt], sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Generator[RequestOutput, None, None]:
        """The outputs of `generate` as they grow: each new piece of text is the ``delta`` of a `CompletionOutput`.

        >>> for output in llm.stream("ROMEO:"):
        ...     print(output.outputs[0].delta, end="", flush=True)

        Prompts are checked now, and queued at the first ``next``; the outputs of several interleave. Leaving the loop, by ``break`` or an error, or
        ``close()``, drops what has not ended and frees its blocks. While a stream is open this LLM may be used as always: every call steps the
        same engine, so the stream's requests grow too, and its next output has all that they grew by.
        """
        batch = _as_list(prompts)
        params = _params_for(batch, sampling_params)
        with self._turn() as engine:
            return self._stream(self._prepare(engine, "stream", batch, list(params)))

    def _stream(self, prepared: list[PreparedRequest]) -> Generator[RequestOutput, None, None]:
        waiting: set[str] = set()
        try:
            with self._turn() as engine:
                _queue(engine, prepared, waiting)
            while waiting:
                with self._turn() as engine:
                    _check_known(engine, waiting)
                    outputs = engine.step(only=waiting)
                for output in outputs:
                    if output.finished:
                        waiting.discard(output.request_id)
                    yield output
        finally:
            self._drop(waiting)

    @contextmanager
    def _turn(self) -> Iterator[Engine]:
        """The engine, for this thread alone."""
        try:
            with self._lock:
                yield self.engine
        finally:
            self._sweep()

    def _drop(self, request_ids: Iterable[str]) -> None:
        """Nobody waits for these any more. Never waits for a turn: a forgotten stream is closed whenever, and in whatever thread, Python finds it."""
        self._abandoned |= set(request_ids)
        self._sweep()

    def _sweep(self) -> None:
        while self._abandoned and self._lock.acquire(blocking=False):      # if another thread has its turn, it does this at the end
            try:
                for request_id in tuple(self._abandoned):
                    if self._engine is not None and not self._engine.discard(request_id):
                        return              # found in the middle of a step of this very thread
                    self._abandoned.discard(request_id)
            finally:
                self._lock.release()

    # -- conversations -------------------------------------------------------------------------------------------------------------
    def chat(
        self, messages: Conversation | Sequence[Conversation], sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, *,
        use_tqdm: bool = True, chat_template: str | None = None, add_generation_prompt: bool = True, continue_final_message: bool = False,
        tools: Any = None,
    ) -> list[RequestOutput]:
        """The model's answer to a conversation, or to each of a list of them: `generate` after `render_chat`, whose options are here too.

        ``tools`` are not served yet: anything but None raises `UnsupportedError`.
        """
        no_tools(tools)
        prompts = [
            self._rendered(conversation, chat_template, add_generation_prompt, continue_final_message)
            for conversation in as_conversations(messages)
        ]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def render_chat(
        self, messages: Conversation, *, chat_template: str | None = None, add_generation_prompt: bool = True, continue_final_message: bool = False,
    ) -> list[int]:
        """The prompt token ids of one conversation, through the model's chat template, or the one given: ``llm.stream(llm.render_chat(messages))``.

        Raises ValueError or TypeError that names the message; ValueError if there is no chat template.
        """
        conversations = as_conversations(messages)
        if len(conversations) != 1:
            raise ValueError(f"messages are {len(conversations)} conversations; one is rendered at a time")
        return self._rendered(conversations[0], chat_template, add_generation_prompt, continue_final_message)

    def _rendered(self, conversation: list[dict[str, str]], template: str | None, add_generation_prompt: bool, go_on: bool) -> list[int]:
        return render(
            self.tokenizer, conversation, chat_template=template, add_generation_prompt=add_generation_prompt, continue_final_message=go_on,
        )

    def memory_report(self) -> MemoryReport:
        """What the KV cache holds now."""
        return self.engine.memory_report()

    def reset_prefix_cache(self) -> int:
        """Forget every cached prefix, as after a change of the weights; returns how many blocks could be found until now."""
        with self._turn() as engine:
            return engine.reset_prefix_cache()

    def close(self) -> None:
        """Give weights and KV cache back; a second call does nothing."""
        if self._engine is None:
            return
        on_gpu = isinstance(self._engine.runner, ModelRunner) and self._engine.runner.device.type == "cuda"
        # A notebook may hold the engine in a view or in Out[...]: the tensors go whoever still refers to the objects around them.
        if isinstance(self._engine.runner, ModelRunner):
            self._engine.runner.close()
        self._engine = None
        gc.collect()
        if on_gpu:
            torch.cuda.empty_cache()

    def __enter__(self) -> LLM:
        self.engine     # noqa: B018  raises when this LLM is closed
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _queue(engine: Engine, prepared: list[PreparedRequest], queued: set[str]) -> None:
    """Queue the requests; ``queued`` has their ids also if this is interrupted, and never the id of somebody else's request."""
    for request in prepared:
        queued.add(request.request.request_id)
        try:
            engine.queue(request)
        except ValueError:
            queued.discard(request.request.request_id)
            raise


def _check_known(engine: Engine, request_ids: Iterable[str]) -> None:
    """Nobody waits for what will never come. Raises RuntimeError if a request was ended, and its output taken, by hand."""
    for request_id in request_ids:
        if not engine.knows(request_id):
            raise RuntimeError(f"request {request_id!r} was ended outside of this call: engine.step() or engine.abort_request() took its output")


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A single prompt becomes a list of one; a list of integers is a single prompt."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes | bytearray):
        raise TypeError(f"prompts must be text, token ids or a list of prompts, not {type(prompts).__name__}")
    if prompts and isinstance(prompts[0], int | np.integer):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _params_for(batch: list[Prompt], params: SamplingParams | Sequence[SamplingParams] | None) -> list[SamplingParams | None]:
    if params is None or isinstance(params, SamplingParams):
        return [params] * len(batch)
    if isinstance(params, BeamSearchParams):
        raise TypeError("BeamSearchParams are for beam_search()")
    if not isinstance(params, Sequence) or isinstance(params, str):  # type: ignore[unreachable]
        raise TypeError(f"sampling_params must be SamplingParams or a list of them, not {type(params).__name__}")
    if len(params) != len(batch):
        raise ValueError(f"{len(params)} sampling_params for {len(batch)} prompts: give one for all, or one each")
    return list(params)
