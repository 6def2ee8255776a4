"""A list of kernels to compile ahead of time: not every combination, but every value of every choice on every architecture, and real models' shapes.

The full product of kernels, architectures, dtypes, head sizes, block sizes, groups, windows and caches is about ten thousand variants. Listed is what
differs in the machine code and what is most likely to need too much of it. `aot.py` compiles an entry, `paged-edu bench kernels` prints
what all of them need, and the tests hold them to it.

Nothing here needs triton until `Case.launch` is called.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .aot import Launch

ARCHES = (75, 80, 89, 90)
"""Compute capabilities: 75 Turing (T4), 80 Ampere (A100), 89 Ada (L4, RTX 40), 90 Hopper (H100, H200)."""

SHARED_LIMIT = {75: 64 * 1024, 80: 163 * 1024, 89: 99 * 1024, 90: 227 * 1024}
"""Bytes of shared memory that one program may have (CUDA C++ Programming Guide, compute capabilities)."""

SPILL_FREE = 128
"""Up to this head size nothing may spill."""

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

MODELS = {
    "tiny": (4, 4, 16), "tiny-mqa": (8, 1, 16), "gpt2": (12, 12, 64), "smollm2": (9, 3, 64), "phi2": (32, 32, 80), "phi3": (32, 32, 96),
    "gqa96": (32, 8, 96), "opt13b": (40, 40, 128), "llama3-8b": (32, 8, 128), "mistral": (32, 8, 128), "qwen2": (28, 4, 128),
    "llama3-70b": (64, 8, 128), "gemma7b": (16, 16, 256), "gemma2b": (8, 1, 256),
}
"""Query heads, KV heads, head size."""

SEQUENCES, CONTEXT, NUM_BLOCKS, LAYERS = 8, 1024, 1000, 4


@dataclass(frozen=True)
class Case:
    """One kernel for one architecture. ``queries``: query tokens of each sequence; ``splits``: parts of a context (split and merge)."""

    kernel: str
    model: str
    dtype: str
    block_size: int = 16
    int8: bool = False
    window: int | None = None
    queries: int = 1
    splits: int = 1
    warps: int | None = None
    """Instead of what `launch.py` chooses: for a test that wants a kernel to need too much."""
    arch: int = 80

    @property
    def heads(self) -> tuple[int, int, int]:
        return MODELS[self.model]

    @property
    def head_dim(self) -> int:
        return self.heads[2]

    @property
    def group(self) -> int:
        return self.heads[0] // self.heads[1]

    @property
    def name(self) -> str:
        """All that tells it apart from other entries, such as ``sm_80 split llama3-8b 32/8x128 bf16 block 16 int8 queries 8 splits 4``."""
        words = [f"sm_{self.arch}", self.kernel, self.model, "{}/{}x{}".format(*self.heads), self.dtype, f"block {self.block_size}"]
        words += ["int8"] * self.int8 + [f"window {self.window}"] * (self.window is not None)
        words += [f"queries {self.queries}"] * (self.queries > 1) + [f"splits {self.splits}"] * (self.splits > 1)
        return " ".join(words + [f"warps {self.warps}"] * (self.warps is not None))

    @property
    def tensor_cores(self) -> bool:
        """Whether its products must be the tensor cores' work."""
        return self.kernel in ("tiled", "split", "unified") and self.dtype != "fp32" and self.arch >= 80

    def launch(self) -> Launch:
        """The launch that this entry means. Needs triton, not interpreted; no GPU."""
        from .aot import launches

        calls: dict[str, Callable[[], object]] = {
            "naive": self._ladder, "tiled": self._ladder, "split": self._split, "merge": self._split, "unified": self._unified,
            "write": self._write, "copy": self._copy,
        }
        (found,) = [launch for launch in launches(calls[self.kernel], self.arch) if launch.name == f"{self.kernel}_kernel"]
        return replace(found, options=found.options | {"num_warps": self.warps}) if self.warps else found

    def _tensors(self) -> dict[str, Any]:
        num_heads, num_kv_heads, head_dim = self.heads
        page = meta(DTYPES[self.dtype] if not self.int8 else torch.int8, NUM_BLOCKS, num_kv_heads, self.block_size, head_dim)
        scale = meta(torch.float32, NUM_BLOCKS, num_kv_heads, self.block_size)
        return {
            "q": meta(DTYPES[self.dtype], SEQUENCES * self.queries, num_heads, head_dim), "cache": (page, page, *[scale] * (2 * self.int8)),
            "tables": meta(torch.int32, SEQUENCES, -(-CONTEXT // self.block_size)), "starts": meta(torch.int32, SEQUENCES + 1),
            "lengths": meta(torch.int32, SEQUENCES), "new": meta(DTYPES[self.dtype], SEQUENCES, num_kv_heads, head_dim),
        }

    def _ladder(self) -> None:
        from .naive import naive_attention
        from .tiled import tiled_attention

        t = self._tensors()
        (naive_attention if self.kernel == "naive" else tiled_attention)(t["q"], *t["cache"][:2], t["tables"], t["lengths"], 0.1)

    def _split(self) -> None:
        from .split import split_attention

        t = self._tensors()
        split_attention(t["q"], t["cache"], t["tables"], t["starts"], t["lengths"], 0.1, self.queries, CONTEXT, self.window, self.splits)

    def _unified(self) -> None:
        from .unified import unified_attention

        t = self._tensors()
        unified_attention(t["q"], t["cache"], t["tables"], t["starts"], t["lengths"], 0.1, self.window)

    def _write(self) -> None:
        from .cache import write_cache

        t = self._tensors()
        write_cache(t["new"], t["new"], t["cache"], meta(torch.int64, SEQUENCES))

    def _copy(self) -> None:
        from .cache import copy_blocks

        page = self._tensors()["cache"][0][0].numel()
        stack = meta(torch.int8 if self.int8 else DTYPES[self.dtype], LAYERS, NUM_BLOCKS, page)
        copy_blocks(stack, stack, meta(torch.int64, SEQUENCES), meta(torch.int64, SEQUENCES), page)


def meta(dtype: torch.dtype, *shape: int) -> Tensor:
    """A tensor with a shape and no memory."""
    return torch.empty(*shape, dtype=dtype, device="meta")


LISTED = (
    Case("naive", "tiny", "fp32"),
    Case("naive", "phi2", "fp16", 24),
    Case("naive", "llama3-8b", "bf16"),
    Case("tiled", "smollm2", "fp16", 24),
    Case("tiled", "phi3", "bf16", 32),
    Case("tiled", "llama3-8b", "bf16"),
    Case("tiled", "llama3-70b", "fp32"),
    Case("tiled", "gemma2b", "fp16"),
    Case("split", "tiny-mqa", "fp32"),
    Case("split", "gpt2", "fp16"),
    Case("split", "smollm2", "bf16", splits=4),
    Case("split", "smollm2", "fp32", 24, int8=True, window=100, queries=8, splits=4),
    Case("split", "phi2", "fp32", 32, int8=True, queries=8),
    Case("split", "phi3", "bf16", int8=True, splits=4),
    Case("split", "llama3-8b", "bf16"),
    Case("split", "llama3-8b", "fp16", int8=True, queries=8, splits=8),
    Case("split", "mistral", "fp16", 24, window=4096, splits=4),
    Case("split", "qwen2", "fp16", 32, queries=8, splits=4),
    Case("split", "llama3-70b", "bf16", 24, int8=True, window=100, queries=8, splits=4),
    Case("split", "opt13b", "fp32", queries=2, splits=4),
    Case("split", "gqa96", "fp16", 24, window=100),
    Case("split", "gemma2b", "bf16", int8=True, queries=8, splits=4),
    Case("split", "gemma7b", "fp32", splits=4),
    Case("unified", "tiny", "fp16", int8=True, window=100, queries=64),
    Case("unified", "gpt2", "fp16", queries=64),
    Case("unified", "smollm2", "bf16", 32, int8=True, queries=64),
    Case("unified", "smollm2", "fp32", 24, int8=True, window=100, queries=64),
    Case("unified", "phi2", "fp16", queries=64),
    Case("unified", "phi3", "fp32", 32, queries=64),
    Case("unified", "opt13b", "fp32", queries=64),
    Case("unified", "llama3-8b", "bf16", queries=64),
    Case("unified", "llama3-8b", "fp16", 24, int8=True, queries=64),
    Case("unified", "mistral", "bf16", window=4096, queries=64),
    Case("unified", "qwen2", "fp16", 24, queries=64),
    Case("unified", "llama3-70b", "fp32", int8=True, queries=64),
    Case("unified", "gqa96", "bf16", 24, int8=True, window=100, queries=64),
    Case("unified", "gemma2b", "bf16", queries=64),
    Case("merge", "smollm2", "fp16", splits=4),
    Case("merge", "phi2", "bf16", splits=16),
    Case("merge", "llama3-8b", "fp32", splits=128),
    Case("write", "smollm2", "fp32", int8=True),
    Case("write", "phi3", "bf16", 24),
    Case("write", "llama3-8b", "bf16", int8=True),
    Case("copy", "llama3-8b", "bf16"),
    Case("copy", "smollm2", "fp32", 5),
)
"""For every architecture; Turing has no bfloat16, and takes fp16 there."""

SPILLING = Case("split", "smollm2", "fp32", int8=True, queries=8, warps=1)
"""Too few warps for what it holds, on purpose: a check that can't see this one's spills sees none."""


def matrix(arches: tuple[int, ...] = ARCHES) -> list[Case]:
    """The listed cases on each of ``arches``, each once."""
    cases: dict[Case, None] = {}
    for case in LISTED:
        for arch in arches:
            dtype = "fp16" if arch < 80 and case.dtype == "bf16" else case.dtype
            cases[replace(case, arch=arch, dtype=dtype)] = None
    return list(cases)
