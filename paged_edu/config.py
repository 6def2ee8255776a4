"""EngineConfig: every option of the engine, validated in one place. vLLM's names; its defaults too, but for a few (see book/design.md)."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import checks
from .checks import UnsupportedError
from .core.limits import PREEMPTION_MODES

CONTIGUOUS = {"orca-max": "max", "orca-pow2": "pow2", "orca-oracle": "oracle", "grow": "grow"}
"""Values of ``kv_manager`` that reserve contiguous runs -> ``reservation`` of `ContiguousKVManager`."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Options of `LLM`. Raises ValueError, with the value and its limits; `UnsupportedError` for what is not served yet."""

    model: str = "tiny-shakespeare"
    """A short name, a local directory in Hugging Face layout, a .gguf file, or a hub name."""
    tokenizer: str | None = None
    """A directory, .gguf file or hub name, if the tokenizer lies elsewhere than the model."""
    skip_tokenizer_init: bool = False
    """Load no tokenizer: prompts are token ids, outputs have no text."""
    dtype: str = "auto"
    """"auto" (float32 on a CPU, the checkpoint's own on a GPU), "float32", "float64", "float16", "bfloat16"; "float" and "half" are
    float32 and float16."""
    seed: int = 0
    """Seed of the requests that bring none of their own."""
    max_model_len: int | None = None
    """Longest sequence, prompt and output together [tokens]; None: what the model can do."""
    block_size: int = 16
    """Tokens a block, 1 to 256 (Paper §7.2)."""
    gpu_memory_utilization: float = 0.9
    """Share of the device memory that weights and KV cache may take together; on a CPU of half of what is free (see `engine.memory`)."""
    num_gpu_blocks_override: int | None = None
    """Exactly that many blocks, whatever the memory says."""
    swap_space: float | None = None
    """Host memory for the blocks of swapped-out requests [GiB]; 0: never swap. None: a tenth of the host memory that the engine plans with, and no
    more than the KV cache itself has."""
    max_num_seqs: int = 256
    """Sequences that may run at the same time."""
    max_num_batched_tokens: int | None = None
    """Token budget of a step; None: 2048, or more where ``max_num_seqs`` or unchunked prompts need it."""
    long_prefill_token_threshold: int = 0
    """Longest chunk of a prompt in one step; 0: only the budget bounds it."""
    enable_prefix_caching: bool | None = None
    """Whether prompts find the blocks of earlier texts that begin alike. None: on where the manager can share blocks."""
    enable_chunked_prefill: bool = True
    """Whether a prompt may be computed in several steps; if not, it waits until it fits one step whole."""
    preemption_mode: str = "auto"
    """How a preempted request comes back (Paper §4.5): "recompute", "swap" while there is room in host memory, or "auto", which swaps requests of
    several branches and recomputes the others."""
    watermark: float = 0.0
    """Share of the blocks that admission keeps free for the requests that run."""
    scheduling_policy: str = "fcfs"
    """"fcfs", first come, first served, or "priority", the smallest ``priority`` first."""
    policy: Any = None
    """An object of your own that says who comes first and who steps back: with ``order`` and ``victim`` (see `engine.choosing`), or with a fixed
    ``key`` (see `core.policy`). None: ``scheduling_policy`` names one."""
    kv_cache_dtype: str = "auto"
    """"auto": the model's dtype, or "int8": 8-bit codes with a scale for each token and KV head, about a quarter of float32's memory."""
    quantization: str | None = None
    """None: weights in ``dtype``; "int8": 8-bit weights, about a quarter of float32's memory and faster, on a CPU with x86 instructions (see
    `model.int8`)."""
    enforce_eager: bool = False
    """No CUDA graphs: every step launches its kernels one by one. Without CUDA, and without the Triton backend, that is so anyway."""
    tensor_parallel_size: int = 1
    """Devices that share a model; 1 is all that is served yet."""
    device: str = "auto"
    """"auto" (CUDA if there is one), "cpu", "cuda" or "cuda:1"."""
    attention_backend: str = "auto"
    """"reference" (torch's own operations), "cpu" (compiled by numba), "triton" (the kernels; needs CUDA, or Triton's interpreter), or "auto":
    Triton on CUDA, compiled code on a CPU, and the reference where those can't serve the model."""
    kv_manager: str | type = "paged"
    """"paged", the paper's, or what came before it, for comparison: "orca-max", "orca-pow2", "orca-oracle" and "grow" give every sequence one run of
    consecutive blocks (see `core.contiguous`). "orca-pow2" and "orca-oracle" must know how long an output gets: ``ignore_eos`` and no stops.
    Or a class of your own, called with ``(num_blocks, block_size, max_model_len)`` (see `engine.own_manager`)."""

    def __post_init__(self) -> None:
        for name in ("model", "dtype", "device"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ValueError(f"{name} must be a non-empty string, not {getattr(self, name)!r}")
        if self.tokenizer is not None and (not isinstance(self.tokenizer, str) or not self.tokenizer):
            raise ValueError(f"tokenizer must be a directory or a hub name, not {self.tokenizer!r}")
        checks.one_of("dtype", self.dtype, ("auto", "float32", "float64", "float16", "bfloat16", "float", "half"))
        checks.integer("seed", self.seed, 0, 2**64 - 1)
        if self.max_model_len is not None:
            checks.integer("max_model_len", self.max_model_len, 2)
        checks.integer("block_size", self.block_size, 1, 256)
        checks.number("gpu_memory_utilization", self.gpu_memory_utilization, 0, 1, low_open=True)
        if self.num_gpu_blocks_override is not None:
            checks.integer("num_gpu_blocks_override", self.num_gpu_blocks_override, 1, 2**31 - 1)
        if self.swap_space is not None:
            checks.number("swap_space", self.swap_space, 0)
        checks.integer("max_num_seqs", self.max_num_seqs, 1)
        if self.max_num_batched_tokens is not None:
            checks.integer("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        checks.integer("long_prefill_token_threshold", self.long_prefill_token_threshold, 0)
        checks.flag("enable_chunked_prefill", self.enable_chunked_prefill)
        checks.number("watermark", self.watermark, 0, 1, high_open=True)
        checks.flag("skip_tokenizer_init", self.skip_tokenizer_init)
        checks.flag("enforce_eager", self.enforce_eager)
        checks.integer("tensor_parallel_size", self.tensor_parallel_size, 1)
        self._check_choices()

    def _check_choices(self) -> None:
        """Options with a few values, of which some may not be served yet."""
        checks.one_of("preemption_mode", self.preemption_mode, PREEMPTION_MODES)
        if self.preemption_mode == "swap" and self.swap_space == 0:
            raise ValueError("preemption_mode='swap' with swap_space=0: there is no room to swap to; leave swap_space out, or give it some GiB")
        checks.one_of("scheduling_policy", self.scheduling_policy, ("fcfs", "priority"))
        checks.one_of("kv_cache_dtype", self.kv_cache_dtype, ("auto", "int8"), ("fp8", "float16", "bfloat16"))
        checks.one_of("quantization", self.quantization, (None, "int8"), ("fp8", "awq", "gptq", "bitsandbytes"))
        checks.one_of("attention_backend", self.attention_backend, ("auto", "reference", "cpu", "triton"))
        if not isinstance(self.kv_manager, type):
            checks.one_of("kv_manager", self.kv_manager, ("paged", *CONTIGUOUS))
        if self.policy is not None and self.scheduling_policy != "fcfs":
            raise ValueError(f"scheduling_policy={self.scheduling_policy!r} and a policy of your own: give one of them")
        if not isinstance(self.enable_prefix_caching, bool | None):
            raise ValueError(f"enable_prefix_caching must be True, False or None, not {self.enable_prefix_caching!r}")
        if self.kv_manager != "paged":
            asked_for = {
                "enable_prefix_caching=True": self.enable_prefix_caching is True, f"swap_space={self.swap_space}": bool(self.swap_space),
                "preemption_mode='swap'": self.preemption_mode == "swap", f"watermark={self.watermark}": self.watermark > 0,
            }
            for option, asked in asked_for.items():
                if asked:
                    name = self.kv_manager.__name__ if isinstance(self.kv_manager, type) else repr(self.kv_manager)
                    raise ValueError(f"{option} needs kv_manager='paged': {name} gives each sequence blocks of its own")
        if self.tensor_parallel_size > 1:
            raise UnsupportedError(f"tensor_parallel_size={self.tensor_parallel_size!r} is not served yet; leave it out")
