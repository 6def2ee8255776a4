"""What `paged-edu bench kernels` times, and what no kernel can beat: the bytes that must be read over the bandwidth of the card.

Shapes only: nothing here needs torch or a GPU.
"""
from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from ..checks import integer

HEADS = re.compile(r"(\d+)/(\d+)x(\d+)")


@dataclass(frozen=True)
class Workload:
    """A batch of equal sequences: ``context`` cached tokens each, the last ``queries`` of which ask."""

    batch: int
    context: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    queries: int = 1

    def __post_init__(self) -> None:
        for name, high in (("batch", 65_536), ("context", 2**20), ("num_heads", 1024), ("num_kv_heads", 1024), ("head_dim", 256), ("queries", 2**20)):
            integer(name.replace("_", " "), getattr(self, name), 1, high)
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.num_heads} query heads can't share {self.num_kv_heads} KV heads evenly")
        if self.queries > self.context:
            raise ValueError(f"the {self.queries} tokens that ask are among those of the context, which has {self.context}")

    @property
    def heads(self) -> str:
        return f"{self.num_heads}/{self.num_kv_heads}x{self.head_dim}"

    @property
    def name(self) -> str:
        """``64 x 4,096, 32/8x128``, and how many tokens ask, if not one."""
        return f"{self.batch} x {self.context:,}, {self.heads}" + (f", {self.queries:,} asking" if self.queries > 1 else "")

    @property
    def decode(self) -> bool:
        return self.queries == 1

    @property
    def flops(self) -> int:
        """Multiplications and additions of the two products over the tokens that each query sees, itself included."""
        seen = self.queries * (self.context - self.queries) + self.queries * (self.queries + 1) // 2
        return 4 * self.batch * self.num_heads * self.head_dim * seen

    def num_bytes(self, itemsize: int, block_size: int, int8: bool = False) -> int:
        """What must cross the memory bus once: keys and values, queries and results, block tables and lengths; all of it, and nothing twice."""
        tokens = self.batch * self.context * self.num_kv_heads
        cache = 2 * tokens * (self.head_dim + 4 if int8 else self.head_dim * itemsize)         # int8: a float32 scale for each token and head
        rows = 2 * self.batch * self.queries * self.num_heads * self.head_dim * itemsize
        tables = 4 * (self.batch * -(-self.context // block_size) + 2 * self.batch + 1)
        return cache + rows + tables

    def cache_bytes(self, itemsize: int) -> int:
        """Keys and values as they would lie contiguously."""
        return 2 * self.batch * self.context * self.num_kv_heads * self.head_dim * itemsize


LLAMA, SMOLLM2, OPT13B = (32, 8, 128), (9, 3, 64), (40, 40, 128)
DEFAULT = (
    Workload(1, 1024, *LLAMA), Workload(8, 4096, *LLAMA), Workload(64, 4096, *LLAMA),
    Workload(1, 1024, *SMOLLM2), Workload(8, 2048, *SMOLLM2), Workload(64, 2048, *SMOLLM2),
    Workload(1, 1024, *OPT13B), Workload(8, 2048, *OPT13B), Workload(32, 2048, *OPT13B),
    Workload(1, 2048, *LLAMA, queries=2048), Workload(1, 8192, *LLAMA, queries=512), Workload(8, 2048, *LLAMA, queries=256),
)
QUICK = DEFAULT[:3]

PUBLISHED_MS = {(1, 1024): (0.053, 0.030), (8, 4096): (0.263, 0.153), (64, 4096): (1.154, 0.932)}
"""Batch and context: published times of a Triton kernel, 32/8 heads of 128 in bfloat16, before and after an improvement. The card was not named."""


def published_ms(workload: Workload, dtype: str) -> tuple[float, float] | None:
    """Published times of this very shape, if there are any."""
    if (workload.num_heads, workload.num_kv_heads, workload.head_dim) != LLAMA or dtype != "bfloat16" or not workload.decode:
        return None
    return PUBLISHED_MS.get((workload.batch, workload.context))


def floor_ms(flops: int, num_bytes: int, gb_per_s: float, tflop_per_s: float) -> float:
    """The least time [ms] in which a card of that measured bandwidth and arithmetic could do it: the slower of the two decides."""
    return max(num_bytes / gb_per_s / 1e6, flops / tflop_per_s / 1e9)


def chosen(batches: str | None, contexts: str | None, heads: str | None, queries: str | None, quick: bool = False) -> tuple[Workload, ...]:
    """The default list; or every combination of what the flags name, comma-separated, with Llama-3-8B's decode at 8 x 4096 for those left out.

    Raises ValueError for what is no such list, or no workload.
    """
    if batches is contexts is heads is queries is None:
        return QUICK if quick else DEFAULT
    shapes = product(numbers("--heads", "32/8x128" if heads is None else heads), numbers("--context", "4096" if contexts is None else contexts),
                     numbers("--batch", "8" if batches is None else batches), numbers("--queries", "1" if queries is None else queries))
    return tuple(Workload(*batch, *context, *head, *query) for head, context, batch, query in shapes)


def numbers(flag: str, text: str) -> Sequence[tuple[int, ...]]:
    """``1,8`` as ((1,), (8,)); for ``--heads``, ``32/8x128,9/3x64`` as ((32, 8, 128), (9, 3, 64))."""
    pattern, example = (HEADS, "32/8x128,9/3x64") if flag == "--heads" else (re.compile(r"(\d{1,9})"), "1,8,64")
    found = [pattern.fullmatch(part.strip()) for part in text.split(",")]
    if not all(found):
        raise ValueError(f"{flag} takes a list such as {example}, not {text!r}")
    return tuple(tuple(int(number) for number in match.groups()) for match in found if match)
