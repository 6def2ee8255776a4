"""LLM: generate text from a list of prompts, with one call. Builds an `Engine` from an `EngineConfig`, feeds it and collects the outputs."""
from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from ..attention import reference
from ..attention.cache import KVCache, bytes_per_block
from ..checks import known_keywords
from ..config import EngineConfig
from ..core.kv_manager import MemoryReport, PagedKVManager
from ..core.scheduler import Scheduler, SchedulerConfig
from ..model.loader import choose_dtype, load_model, load_spec, resolve
from ..sampling.params import SamplingParams
from ..sampling.sampler import Sampler
from .engine import Engine, Prompt
from .memory import MemoryPlan, plan_blocks
from .outputs import RequestOutput
from .runner import ModelRunner


def choose_device(device: str) -> torch.device:
    """"auto" is CUDA where there is one; raises ValueError for a device that torch does not know or does not have."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device={device!r}: {str(error).splitlines()[0]}") from error
    if chosen.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be 'auto', 'cpu' or 'cuda', not {device!r}")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device={device!r}: torch sees {torch.cuda.device_count()} CUDA devices")
    return chosen


TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


def load_tokenizer(path: Path) -> Any:
    """The tokenizer in a local folder. transformers makes an empty one up where the files are missing: that is an error here."""
    from transformers import AutoTokenizer

    if not any((path / name).is_file() for name in TOKENIZER_FILES):
        raise ValueError(f"no tokenizer in {path}: none of {', '.join(TOKENIZER_FILES)}; pass tokenizer=..., or skip_tokenizer_init=True")
    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"no tokenizer could be loaded from {path}: {str(error).splitlines()[0]}") from error


def build_engine(config: EngineConfig) -> tuple[Engine, MemoryPlan]:
    """Load model and tokenizer, size the pool, and put scheduler and runner together."""
    path = resolve(config.model)
    spec = load_spec(path)
    device = choose_device(config.device)
    dtype = choose_dtype(config.dtype, spec, device)
    max_model_len = config.max_model_len if config.max_model_len is not None else spec.max_positions
    if max_model_len > spec.max_positions:
        raise ValueError(f"max_model_len is {max_model_len}; {config.model} has positions for {spec.max_positions} tokens")
    limits = scheduler_config(config, max_model_len)
    tokenizer = None
    if not config.skip_tokenizer_init:
        tokenizer = load_tokenizer(resolve(config.tokenizer) if config.tokenizer is not None else path)
    model, spec = load_model(path, dtype, device)
    # A tied head is one tensor under two names: count storages.
    weights = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in (*model.parameters(), *model.buffers())}
    block_bytes = bytes_per_block(spec.num_layers, spec.num_kv_heads, config.block_size, spec.head_dim, dtype)
    plan = plan_blocks(config, max_model_len, block_bytes, sum(weights.values()), device)
    cache = KVCache(spec.num_layers, plan.num_blocks, spec.num_kv_heads, config.block_size, spec.head_dim, dtype, device)
    manager = PagedKVManager(plan.num_blocks, config.block_size, config.watermark)
    sampler = Sampler(vocab_limit=spec.vocab_size if tokenizer is None else min(spec.vocab_size, len(tokenizer)))
    runner = ModelRunner(model, cache, config.block_size, reference.attend, sampler, device)
    engine = Engine(
        Scheduler(limits, manager), runner, tokenizer, vocab_size=spec.vocab_size, eos_token_ids=spec.eos_token_ids, seed=config.seed,
    )
    return engine, plan


def scheduler_config(config: EngineConfig, max_model_len: int) -> SchedulerConfig:
    """The scheduler's limits; an unset token budget is 2048, or more where the other options need more."""
    budget = config.max_num_batched_tokens
    if budget is None:
        budget = max(2048, config.max_num_seqs, 0 if config.enable_chunked_prefill else max_model_len)
    return SchedulerConfig(
        max_model_len, config.max_num_seqs, budget, config.long_prefill_token_threshold, config.enable_chunked_prefill,
    )


class LLM:
    """Offline generation.

    >>> with LLM("tiny-shakespeare") as llm:
    ...     print(llm.generate("ROMEO:", SamplingParams(max_tokens=40, seed=1))[0].outputs[0].text)

    ``options`` are those of `EngineConfig`; an unknown one raises TypeError. `close` gives the memory back, in a notebook too.
    """

    def __init__(self, model: str = "tiny-shakespeare", **options: Any) -> None:
        known_keywords("LLM", options, [f.name for f in fields(EngineConfig)])
        self.config = EngineConfig(model=str(model), **options)
        self._engine: Engine | None
        self._engine, self.memory_plan = build_engine(self.config)
        self._num_calls = 0

    @property
    def engine(self) -> Engine:
        """The engine, to add requests by hand and to step it. Raises RuntimeError after `close`."""
        if self._engine is None:
            raise RuntimeError("this LLM is closed")
        return self._engine

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
        engine = self.engine
        batch = _as_list(prompts)
        params = _params_for(batch, sampling_params)
        call, self._num_calls = self._num_calls, self._num_calls + 1
        ids = [f"{call}-{i}" for i in range(len(batch))]
        outputs: dict[str, RequestOutput] = {}
        others: list[RequestOutput] = []            # of requests that the caller added to the engine by hand
        try:
            for request_id, prompt, param in zip(ids, batch, params, strict=True):
                engine.add_request(request_id, prompt, param)
            self._run(engine, set(ids), outputs, others, use_tqdm)
        finally:
            engine.keep(others)
            for request_id in ids:
                if request_id not in outputs:
                    engine.abort_request(request_id)
        return [outputs[request_id] for request_id in ids]

    def _run(
        self, engine: Engine, ids: set[str], outputs: dict[str, RequestOutput], others: list[RequestOutput], use_tqdm: bool,
    ) -> None:
        from tqdm.auto import tqdm

        with tqdm(total=len(ids), desc="Processed prompts", unit="prompt", disable=not use_tqdm, dynamic_ncols=True) as bar:
            tokens = 0
            while len(outputs) < len(ids):
                for output in engine.step_finished():
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
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A single prompt becomes a list of one; a list of integers is a single prompt."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes):
        raise TypeError(f"prompts must be text, token ids or a list of prompts, not {type(prompts).__name__}")
    if prompts and isinstance(prompts[0], int):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _params_for(batch: list[Prompt], params: SamplingParams | Sequence[SamplingParams] | None) -> list[SamplingParams | None]:
    if params is None or isinstance(params, SamplingParams):
        return [params] * len(batch)
    if len(params) != len(batch):
        raise ValueError(f"{len(params)} sampling_params for {len(batch)} prompts: give one for all, or one each")
    return list(params)
