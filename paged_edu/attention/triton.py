"""PagedAttention on a GPU: the same call as `reference.attend`, carried out by the kernels of `kernels/` (Paper §4.1, §5.1).

Only here does the package touch Triton, and only when this backend is chosen: everything else works without it. Which kernel runs is decided
by what the step holds: few query tokens a sequence go to rung 2, which can split a long context; anything else goes to rung 3.
"""
from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

import torch
from torch import Tensor

from .cache import LayerCache
from .metadata import AttentionMetadata

FEW_QUERIES = 8
"""Up to this many query tokens in every sequence, reading the context is all the work: rung 2."""

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def interpreted() -> bool:
    """Whether Triton was told to interpret its kernels, which runs them on a CPU: for tests and lessons."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


def why_not(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """Why this backend can't serve such a model on such a device; None: it can."""
    from ..kernels.launch import MAX_HEAD_DIM

    if importlib.util.find_spec("triton") is None:
        return f"triton is not installed ({'no wheels for ' + sys.platform if sys.platform != 'linux' else 'pip install triton'})"
    if device.type != "cuda" and not interpreted():
        return (f"device {device} has no Triton; without a GPU, TRITON_INTERPRET=1 in the environment, set before Python starts, "
                "interprets the kernels (slowly)")
    if dtype not in DTYPES:
        return f"the kernels compute in float32, float16 and bfloat16, not {str(dtype).removeprefix('torch.')}"
    if dtype == torch.bfloat16 and interpreted():
        return "Triton's interpreter computes bfloat16 wrongly; float32 and float16 are right in it"
    if head_dim > MAX_HEAD_DIM:
        return f"the kernels take heads of up to {MAX_HEAD_DIM} numbers, not {head_dim}"
    return None


def attend(
    q: Tensor, k: Tensor, v: Tensor, cache: LayerCache, meta: AttentionMetadata, window: int | None, scale: float,
) -> Tensor:
    """As `reference.attend`: write the new keys and values, then attend through the block table. Nothing here waits for the device.

    Raises ValueError for head counts that don't divide, a head above 256 or a window below 1.
    """
    from ..kernels.cache import write_cache
    from ..kernels.split import split_attention
    from ..kernels.unified import unified_attention

    if window is not None and window < 1:
        raise ValueError(f"a sliding window holds at least 1 token, not {window}")
    if not q.shape[0]:
        return torch.empty_like(q)
    write_cache(k, v, cache, meta.slot_mapping)
    where: tuple[Any, ...] = (cache, meta.block_tables, meta.query_start_loc, meta.seq_lens, scale)
    if meta.max_query_len <= FEW_QUERIES:
        return split_attention(q, *where, meta.max_query_len, meta.max_seq_len, window)  # type: ignore[no-any-return, unused-ignore]
    return unified_attention(q, *where, window)  # type: ignore[no-any-return, unused-ignore]


def copy_pages(stack: Tensor, src: Tensor, dst: Tensor) -> None:
    """`cache.CopyPages` in one launch for all layers."""
    from ..kernels.cache import copy_blocks

    pages = stack.flatten(2)
    copy_blocks(pages, pages, src, dst, pages.shape[2])
