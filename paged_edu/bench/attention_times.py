"""Every rung of the ladder, and SDPA on contiguous keys and values, on one `Workload`: set up, compared with each other, timed in turns.

What SDPA reads lies in one piece, so the difference is the price of paging (Paper §7.1: 20 to 26 % for the paper's own kernel).
"""
from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .timers import Call, Timer, in_turns, spread
from .workloads import Workload, floor_ms, published_ms

NAIVE_TOKENS = 1024
"""Rung 0 takes part up to this context, a token at a time as it goes."""

FORCED_SPLITS = (1, 2, 4, 8, 16, 32, 64)
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
"""How far a result may be from SDPA's; the numbers are means of standard normal ones."""

SDPA = ("sdpa", "sdpa gqa")
"""Contiguous; the first its query heads of a KV head folded into the query length (decode), the other as PyTorch has it. The quicker counts."""


class Setup:
    """Tensors of a workload: contiguous ``[batch, num_kv_heads, context, head_dim]``, and the same numbers in blocks strewn over a cache.

    Slots behind the last token hold NaN. q ``[batch * queries, num_heads, head_dim]``.
    """

    def __init__(self, workload: Workload, dtype: torch.dtype, block_size: int, device: torch.device) -> None:
        w = self.workload = workload
        generator = torch.Generator(device).manual_seed(0)
        self.scale = w.head_dim**-0.5

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, dtype=dtype, device=device, generator=generator)

        self.q = normal(w.batch * w.queries, w.num_heads, w.head_dim)
        self.k, self.v = (normal(w.batch, w.num_kv_heads, w.context, w.head_dim) for _ in "kv")
        blocks = -(-w.context // block_size)
        table = torch.randperm(w.batch * blocks, device=device, generator=generator)
        self.cache = tuple(_paged(x, table, blocks, block_size) for x in (self.k, self.v))
        self.tables = table.view(w.batch, blocks).to(torch.int32)
        self.starts = torch.arange(0, w.batch * w.queries + 1, w.queries, dtype=torch.int32, device=device)
        self.lengths = torch.full((w.batch,), w.context, dtype=torch.int32, device=device)
        # Where the tokens of one query head lie, for SDPA: [batch, num_heads, queries, head_dim]
        self.q_heads = self.q.view(w.batch, w.queries, w.num_heads, w.head_dim).transpose(1, 2).contiguous()

    def rows(self, heads: Tensor) -> Tensor:
        """SDPA's result in the kernels' order."""
        return heads.transpose(1, 2).reshape(self.q.shape)

    def sdpa(self) -> Tensor:
        w = self.workload
        if w.decode:
            folded = self.q_heads.view(w.batch, w.num_kv_heads, w.num_heads // w.num_kv_heads, w.head_dim)
            return F.scaled_dot_product_attention(folded, self.k, self.v).view(w.batch, w.num_heads, 1, w.head_dim)
        return self.sdpa_gqa()

    def sdpa_gqa(self) -> Tensor:
        from torch.nn.attention.bias import causal_lower_right

        w = self.workload
        mask: Any = None if w.decode else causal_lower_right(w.queries, w.context)
        return F.scaled_dot_product_attention(self.q_heads, self.k, self.v, attn_mask=mask, enable_gqa=w.num_heads != w.num_kv_heads)

    def split(self, splits: int | None) -> Call:
        from ..kernels.split import split_attention

        w = self.workload
        return lambda: split_attention(self.q, self.cache, self.tables, self.starts, self.lengths, self.scale, w.queries, w.context, None, splits)

    def chosen_splits(self) -> int:
        """What ``split`` chooses by itself."""
        from ..kernels.launch import capability_of, choose_splits, multiprocessors, split_tile

        w = self.workload
        rows = w.queries * w.num_heads // w.num_kv_heads
        tile = split_tile(w.head_dim, self.q.dtype, capability_of(self.q.device), rows)
        programs = w.batch * -(-rows // tile.rows) * w.num_kv_heads
        return int(choose_splits(programs, -(-w.context // tile.tokens), multiprocessors(self.q.device)))

    def unified(self) -> Tensor:
        from ..kernels.unified import unified_attention

        return unified_attention(  # type: ignore[no-any-return, unused-ignore]
            self.q, self.cache, self.tables, self.starts, self.lengths, self.scale)

    def first_rungs(self) -> dict[str, Call]:
        """Rungs 0 and 1, which take one query token a sequence."""
        from ..kernels.naive import naive_attention
        from ..kernels.tiled import tiled_attention

        arguments = (self.q, *self.cache, self.tables, self.lengths, self.scale)
        calls: dict[str, Call] = {"naive": lambda: naive_attention(*arguments)} if self.workload.context <= NAIVE_TOKENS else {}
        return calls | {"tiled": lambda: tiled_attention(*arguments)}

    def calls(self, splits: tuple[int, ...]) -> dict[str, Call]:
        """All that take part, by name; ``splits``: forced numbers of splits beside the chosen one. SDPA's results need `rows`, which is not timed."""
        w = self.workload
        calls: dict[str, Call] = {"sdpa": self.sdpa} if w.decode else {}
        if w.num_heads != w.num_kv_heads or not w.decode:
            calls["sdpa gqa"] = self.sdpa_gqa
        if w.decode:
            calls |= self.first_rungs() | {"split": self.split(None)} | {f"split {n}": self.split(n) for n in splits if n <= w.context // 32}
        return calls | {"unified": self.unified}


def _paged(x: Tensor, table: Tensor, blocks: int, block_size: int) -> Tensor:
    batch, num_kv_heads, context, head_dim = x.shape
    pages = x.new_full((batch, num_kv_heads, blocks * block_size, head_dim), torch.nan)
    pages[:, :, :context] = x
    pages = pages.view(batch, num_kv_heads, blocks, block_size, head_dim).transpose(1, 2).reshape(-1, num_kv_heads, block_size, head_dim)
    cache = torch.empty_like(pages)
    cache[table] = pages
    return cache


def timed(
    workload: Workload, dtype: torch.dtype, block_size: int, device: torch.device, timer: Timer, rounds: int, peak_tflops: float,
    copy: Call, copy_bytes: int, splits: tuple[int, ...] = FORCED_SPLITS, advance: Callable[[int], object] = lambda count: None,
) -> dict[str, Any]:
    """One workload's row of the result. ``copy`` moves ``copy_bytes`` over the bus (read and written): its speed in these very rounds is the roof."""
    setup = Setup(workload, dtype, block_size, device)
    calls = setup.calls(splits)
    with sdpa_backend(dtype, device):
        errors = _errors(setup, calls)
        times = {name: spread(ms) for name, ms in in_turns({"copy": copy} | calls, rounds, timer, advance).items()}
    gb_per_s = copy_bytes / times.pop("copy")["median_ms"] / 1e6
    num_bytes = workload.num_bytes(dtype.itemsize, block_size)
    least = floor_ms(workload.flops, num_bytes, gb_per_s, peak_tflops)
    name = str(dtype).removeprefix("torch.")
    baseline = min(times[sdpa]["median_ms"] for sdpa in SDPA if sdpa in times)
    rows = [
        {"kernel": kernel, **its, "error": errors[kernel], "wrong": not errors[kernel] <= TOLERANCE[dtype],      # a NaN is wrong as well
         "against_sdpa": its["median_ms"] / baseline, "share_of_floor": least / its["median_ms"],
         "gb_per_s": num_bytes / its["median_ms"] / 1e6, "tflop_per_s": workload.flops / its["median_ms"] / 1e9}
        for kernel, its in times.items()
    ]
    return {
        "name": workload.name, "batch": workload.batch, "context": workload.context, "heads": workload.heads, "queries": workload.queries,
        "dtype": name, "block_size": block_size, "flops": workload.flops, "bytes": num_bytes, "copy_gb_per_s": gb_per_s, "floor_ms": least,
        "published_ms": published_ms(workload, name), "chosen_splits": setup.chosen_splits() if workload.decode else None, "rows": rows,
    }


def _errors(setup: Setup, calls: dict[str, Call]) -> dict[str, float]:
    """How far each result is from SDPA's, at most."""
    truth = setup.rows(setup.sdpa()).float()
    errors = {}
    for name, call in calls.items():
        result = call()
        assert isinstance(result, Tensor)
        errors[name] = float(((setup.rows(result) if name in SDPA else result).float() - truth).abs().max())
    return errors


def sdpa_backend(dtype: torch.dtype, device: torch.device) -> AbstractContextManager[object]:
    """FlashAttention where the card has it, so that nothing slower stands in for it unnoticed; elsewhere PyTorch chooses."""
    if device.type != "cuda" or dtype == torch.float32 or torch.cuda.get_device_capability(device) < (8, 0):
        return nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backend: AbstractContextManager[object] = sdpa_kernel(SDPBackend.FLASH_ATTENTION)
    return backend
