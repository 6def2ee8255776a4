"""From an `EngineConfig` to an `Engine`: load model and tokenizer, size the pool, put scheduler and runner together."""
from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..attention import backends
from ..attention.cache import KVCache, bytes_per_block
from ..config import CONTIGUOUS, EngineConfig
from ..core.contiguous import ContiguousKVManager
from ..core.kv_manager import KVManager
from ..core.limits import SchedulerConfig
from ..core.paged import PagedKVManager
from ..core.policy import FCFS, Priority
from ..model.catalog import PULLED
from ..model.checkpoint import read_json
from ..model.errors import ModelLoadError
from ..model.fused import fuse_model
from ..model.gguf_tokenizer import load_gguf_tokenizer
from ..model.int8 import check_served, quantise_model
from ..model.loader import choose_dtype, load_model, load_spec, resolve
from ..model.packed import pack_model
from ..sampling.sampler import Sampler
from ..words import counted
from .choosing import build_scheduler
from .engine import Engine
from .graphs import DecodeGraphs, warm_up
from .memory import MemoryPlan, plan_blocks
from .own_manager import check_manager
from .runner import ModelRunner


def choose_device(device: str) -> torch.device:
    """"auto" is CUDA where there is one; raises ValueError for a device that torch does not know or does not have."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:                # with a list of a dozen kinds that are not served
        chosen = torch.device("meta")
    if chosen.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', not {device!r}")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device={device!r}: torch sees {counted(torch.cuda.device_count(), 'CUDA device')}; 'cpu' is always there")
    return chosen


TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


def load_tokenizer(path: Path) -> Any:
    """The tokenizer in a local folder or GGUF file. transformers makes an empty one up where the files are missing: that is an error here."""
    if path.is_file():
        return load_gguf_tokenizer(path)
    if not any((path / name).is_file() for name in TOKENIZER_FILES):
        raise ValueError(f"no tokenizer in {path}: none of {', '.join(TOKENIZER_FILES)}; pass tokenizer=..., or skip_tokenizer_init=True")
    try:
        if _is_plain(path):
            from transformers import PreTrainedTokenizerFast

            return PreTrainedTokenizerFast.from_pretrained(path)
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(path)
    except Exception as error:      # transformers and tokenizers raise a dozen types, some of them bare Exception
        raise ValueError(f"no tokenizer could be loaded from {path}: {(str(error).splitlines() or [type(error).__name__])[0]}") from error


def _is_plain(path: Path) -> bool:
    """Whether AutoTokenizer would take the plain class, as transformers 5 saves it; it spends two seconds on the model's configuration first."""
    files = [path / name for name in ("tokenizer_config.json", "config.json", "tokenizer.json")]
    if not all(file.is_file() for file in files):
        return False
    tokenizer, model = read_json(files[0]), read_json(files[1])
    # For other model types, qwen2 and mistral among them, it may put another class in its place.
    return tokenizer.get("tokenizer_class") == "TokenizersBackend" and "auto_map" not in tokenizer and model.get("model_type") in ("gpt2", "llama")


def build_engine(config: EngineConfig) -> tuple[Engine, MemoryPlan]:
    """Load model and tokenizer, size the pool, and put scheduler and runner together."""
    path = resolve(config.model)
    try:
        return _build(config, path)
    except ModelLoadError as error:
        if config.model not in PULLED:
            raise
        raise ModelLoadError(f"{error}; to get it again: paged-edu pull {config.model} --force") from error


def _build(config: EngineConfig, path: Path) -> tuple[Engine, MemoryPlan]:
    spec = load_spec(path)
    device = choose_device(config.device)
    dtype = choose_dtype(config.dtype, spec, device)
    if config.quantization == "int8":
        check_served(device, dtype)
    max_model_len = config.max_model_len if config.max_model_len is not None else spec.max_positions
    if max_model_len > spec.max_positions:
        raise ValueError(f"max_model_len is {max_model_len}; {config.model} has positions for {spec.max_positions} tokens")
    limits = scheduler_config(config, max_model_len)
    backend = backends.choose(config.attention_backend, device, dtype, spec.head_dim)
    tokenizer = None
    if not config.skip_tokenizer_init:
        tokenizer = load_tokenizer(resolve(config.tokenizer) if config.tokenizer is not None else path)
    model, spec = load_model(path, dtype, device)
    if config.quantization == "int8":
        quantise_model(model)
    else:
        pack_model(model, device, dtype)
    fuse_model(model, device, dtype)
    kv_dtype = torch.int8 if config.kv_cache_dtype == "int8" else dtype
    pages = spec.num_kv_heads, config.block_size, spec.head_dim, kv_dtype
    block_bytes = bytes_per_block(spec.num_layers, *pages)
    sized = config if config.kv_manager == "paged" else replace(config, swap_space=0)
    plan = plan_blocks(sized, max_model_len, block_bytes, model.weight_bytes(), device)
    cache = KVCache(spec.num_layers, plan.num_blocks, *pages, device, copy_pages=backend.copy_pages)
    cpu_cache = None
    if plan.num_cpu_blocks:
        cpu_cache = KVCache(spec.num_layers, plan.num_cpu_blocks, *pages, "cpu", for_swapping=True)
    manager = build_manager(config, plan.num_blocks, max_model_len, plan.num_cpu_blocks)
    sampler = Sampler(vocab_limit=spec.vocab_size if tokenizer is None else min(spec.vocab_size, len(tokenizer)))
    graphs = None
    if backend is backends.TRITON and device.type == "cuda":
        warm_up(model, cache, backend.attend, device, limits.max_num_seqs, max_model_len, limits.max_num_batched_tokens)
        if not config.enforce_eager:
            graphs = DecodeGraphs(model, cache, backend.attend, device, limits.max_num_seqs, max_model_len)
            graphs.capture()
    runner = ModelRunner(model, cache, backend.attend, sampler, device, cpu_cache=cpu_cache, backend=backend.name, graphs=graphs)
    policy = config.policy if config.policy is not None else Priority() if config.scheduling_policy == "priority" else FCFS()
    engine = Engine(
        build_scheduler(limits, manager, policy), runner, tokenizer, vocab_size=spec.vocab_size, eos_token_ids=spec.eos_token_ids, seed=config.seed,
    )
    return engine, plan


def build_manager(config: EngineConfig, num_blocks: int, max_model_len: int, num_cpu_blocks: int = 0) -> KVManager:
    """The manager that ``config.kv_manager`` names, over ``num_blocks`` blocks, or one of that class. Raises TypeError if it is none."""
    if isinstance(config.kv_manager, type):
        own: KVManager = config.kv_manager(num_blocks, config.block_size, max_model_len)
        check_manager(own)
        return own
    if config.kv_manager != "paged":
        return ContiguousKVManager(num_blocks, config.block_size, CONTIGUOUS[config.kv_manager], max_model_len)
    return PagedKVManager(
        num_blocks, config.block_size, config.watermark, prefix_caching=config.enable_prefix_caching is not False, num_cpu_blocks=num_cpu_blocks,
    )


def scheduler_config(config: EngineConfig, max_model_len: int) -> SchedulerConfig:
    """The scheduler's limits; an unset token budget is 2048, or more where the other options need more."""
    budget = config.max_num_batched_tokens
    if budget is None:
        budget = max(2048, config.max_num_seqs, 0 if config.enable_chunked_prefill else max_model_len)
    return SchedulerConfig(
        max_model_len, config.max_num_seqs, budget, config.long_prefill_token_threshold, config.enable_chunked_prefill,
        config.preemption_mode,
    )
