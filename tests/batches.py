"""A stand-in for the scheduler: hands out blocks in any order and builds `ScheduledSeq` by hand, so that attention is tested alone."""
from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from paged_edu.core.plan import ScheduledSeq


class Pager:
    """Block tables of a few sequences over one pool. ``seed=None`` places blocks in order, a number shuffles the pool."""

    def __init__(self, num_blocks: int, block_size: int, seed: int | None = None) -> None:
        self.block_size = block_size
        self.free = list(range(num_blocks))
        if seed is not None:
            random.Random(seed).shuffle(self.free)
        self.tables: dict[int, list[int]] = {}
        self.computed: dict[int, int] = {}

    def schedule(
        self, seq_id: int, token_ids: Sequence[int], logits_from: int | None = 0, num_samples: int = 1, requeried: int = 0,
    ) -> ScheduledSeq:
        """Run ``token_ids`` next; the first ``requeried`` of them are in the cache already (slot -1)."""
        table = self.tables.setdefault(seq_id, [])
        start = self.computed.get(seq_id, 0) - requeried
        stop = start + len(token_ids)
        while len(table) * self.block_size < stop:
            table.append(self.free.pop(0))
        self.computed[seq_id] = stop
        slots = [table[p // self.block_size] * self.block_size + p % self.block_size for p in range(start, stop)]
        slots[:requeried] = [-1] * requeried
        return ScheduledSeq(
            request_id=f"r{seq_id}", seq_id=seq_id, branch=0, token_ids=tuple(token_ids), start=start, slots=tuple(slots),
            block_table=tuple(table), logits_from=logits_from, num_samples=num_samples,
        )


def dense_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None = None) -> Tensor:
    """Attention of one whole sequence from its definition, one query and head at a time: no pages, no masks, no batching.

    q ``[n, num_heads, head_dim]``; k, v ``[n, num_kv_heads, head_dim]``.
    """
    out = torch.empty_like(q)
    group = q.shape[1] // k.shape[1]
    for p in range(q.shape[0]):
        first = 0 if window is None else max(0, p - window + 1)
        for h in range(q.shape[1]):
            keys, values = k[first : p + 1, h // group], v[first : p + 1, h // group]
            scores = torch.tensor([scale * float(q[p, h] @ key) for key in keys], dtype=q.dtype)
            weights = (scores - scores.max()).exp()
            out[p, h] = (weights / weights.sum()) @ values
    return out
