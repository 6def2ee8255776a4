"""Logits of whole sequences, ours through the paged cache and transformers', for the parity tests of every architecture."""
from __future__ import annotations

import itertools
from typing import Any

import torch
from batches import Pager
from torch import Tensor

from paged_edu.attention import reference
from paged_edu.attention.cache import KVCache
from paged_edu.attention.metadata import build_input

VOCAB = 97
"""Of the models that `prompts` are for."""
LENGTHS = [41, 9, 23]  # 41: beyond every sliding window, and beyond llama3's original 32 tokens


def prompts(lengths: list[int] = LENGTHS, seed: int = 0) -> list[list[int]]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randint(VOCAB, (n,), generator=g).tolist() for n in lengths]


def expected(model: Any, sequences: list[list[int]]) -> list[Tensor]:
    with torch.no_grad():
        return [model(torch.tensor([tokens])).logits[0] for tokens in sequences]


def run(
    model: Any, sequences: list[list[int]], sizes: list[int], block_size: int = 16, seed: int | None = 0, dtype: torch.dtype = torch.float64,
    attend: Any = None,
) -> list[Tensor]:
    """Logits of every token; sequence i is computed in chunks of ``sizes[i]``, all sequences side by side, on a poisoned cache."""
    spec = model.spec
    num_blocks = sum(-(-len(t) // block_size) for t in sequences) + 2
    cache = KVCache(spec.num_layers, num_blocks, spec.num_kv_heads, block_size, spec.head_dim, dtype, "cpu").fill_(float("nan"))
    pager = Pager(num_blocks, block_size, seed)
    pieces = [[tokens[i : i + size] for i in range(0, len(tokens), size)] for tokens, size in zip(sequences, sizes)]
    outputs: list[list[Tensor]] = [[] for _ in sequences]
    for step in itertools.zip_longest(*pieces):
        scheduled = [pager.schedule(i, piece) for i, piece in enumerate(step) if piece]
        batch = build_input(scheduled, block_size, "cpu")
        with torch.no_grad():
            hidden = model(batch.input_ids, batch.positions, cache, batch.meta, attend or reference.attend)
            logits = model.logits(hidden[batch.logits_rows])
        for s, rows in zip(scheduled, logits.split(batch.logits_counts)):
            outputs[s.seq_id].append(rows)
    return [torch.cat(rows) for rows in outputs]


def difference(got: list[Tensor], want: list[Tensor]) -> float:
    return max(float((a.double() - b.double()).abs().max()) for a, b in zip(got, want, strict=True))
