"""LLM: generate text from a list of prompts, with one call. It feeds an `Engine`, steps it and collects the outputs."""
from __future__ import annotations

import gc
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import fields
from types import TracebackType
from typing import Any

import numpy as np
import torch

from ..checks import known_keywords
from ..config import EngineConfig
from ..core.kv_manager import MemoryReport
from ..sampling.params import SamplingParams
from .build import build_engine
from .engine import Engine
from .outputs import RequestOutput
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
        self._lock = threading.Lock()

    @property
    def engine(self) -> Engine:
        """The engine, to add requests by hand and to step it. Raises RuntimeError after `close`."""
        if self._engine is None:
            raise RuntimeError("this LLM is closed")
        return self._engine

    def __getattr__(self, name: str) -> Any:
        if name in ("chat", "stream", "beam_search"):
            raise AttributeError(f"LLM.{name} is not served yet; today: generate")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def tokenizer(self) -> Any:
        return self.engine.tokenizer

    def generate(
        self, prompts: Prompt | Sequence[Prompt], sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """One `RequestOutput` a prompt, in the order of the prompts.

        ``prompts``: one prompt or a list of them, each text, token ids or a dict (see `Prompt`). ``sampling_params``: one for all, or one
        each. A bad prompt raises before any of them is queued. Interrupting the call drops its requests and frees their blocks.
        """
        engine, batch = self.engine, _as_list(prompts)
        params = _params_for(batch, sampling_params)
        with self._lock:                            # one thread at a time; the others wait for their turn
            call, self._num_calls = self._num_calls, self._num_calls + 1
            prepared = [engine.prepare(f"generate-{call}-{i}", *item) for i, item in enumerate(zip(batch, params, strict=True))]
            queued: list[str] = []
            outputs: dict[str, RequestOutput] = {}
            others: list[RequestOutput] = []        # of requests that the caller added to the engine by hand
            try:
                for request in prepared:
                    engine.queue(request)
                    queued.append(request.request.request_id)
                self._run(engine, set(queued), outputs, others, use_tqdm)
            finally:
                for request_id in queued:
                    if request_id not in outputs:
                        engine.abort_request(request_id)
                engine.keep(others)
        return [outputs[request_id] for request_id in queued]

    def _run(
        self, engine: Engine, ids: set[str], outputs: dict[str, RequestOutput], others: list[RequestOutput], use_tqdm: bool,
    ) -> None:
        from tqdm.auto import tqdm

        with tqdm(total=len(ids), desc="Processed prompts", unit="prompt", disable=not use_tqdm, dynamic_ncols=True) as bar:
            tokens = 0
            while len(outputs) < len(ids):
                for output in engine.step(finished_only=True):
                    if output.request_id not in ids:
                        others.append(output)
                    else:
                        outputs[output.request_id] = output
                        tokens += sum(len(completion.token_ids) for completion in output.outputs)
                        bar.update()
                        elapsed = bar.format_dict["elapsed"]
                        if elapsed:
                            bar.set_postfix_str(f"{tokens / elapsed:.0f} output tokens/s", refresh=False)

    def memory_report(self) -> MemoryReport:
        """What the KV cache holds now."""
        return self.engine.memory_report()

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
    if len(params) != len(batch):
        raise ValueError(f"{len(params)} sampling_params for {len(batch)} prompts: give one for all, or one each")
    return list(params)
