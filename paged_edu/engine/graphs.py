"""CUDA graphs for decode: a step in which everybody needs one token is one launch instead of hundreds (Paper §5 leaves this to the framework).

In a decode step of a small batch the GPU waits for Python, which starts each kernel one by one. A CUDA graph records all launches of a
forward pass once and starts them together afterwards. What is recorded is fixed, addresses and shapes too: so a graph reads its batch
from buffers that stay where they are, and there is one for each of a few batch sizes. A batch is filled up to the next size with sequences
of length 0, whose slot is -1: they write nowhere, read nothing, and their rows are thrown away. How long the sequences are the kernels
read from the buffers.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..attention.cache import KVCache
from ..attention.metadata import PAD_BLOCK, Attend, AttentionMetadata, ModelInput
from ..core.block_table import num_blocks_for
from ..core.plan import Copy, ScheduledSeq
from ..model.spec import CausalLM

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Batch sizes that get a graph; larger batches keep the GPU busy without."""


def sizes_for(max_num_seqs: int) -> tuple[int, ...]:
    """`SIZES` up to the first one that holds ``max_num_seqs``, which takes its place."""
    below = tuple(size for size in SIZES if size < max_num_seqs)
    return (*below, max_num_seqs) if max_num_seqs <= SIZES[-1] else SIZES


@dataclass
class _Buffers:
    """What the recorded kernels read; the widest batch's length."""

    input_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    seq_lens: Tensor
    block_tables: Tensor
    query_start_loc: Tensor


class DecodeGraphs:
    """Runs decode steps of ``model`` padded to a few sizes, as CUDA graphs on a CUDA device.

    On any other device it runs the same padded batches eagerly: that is how tests without a GPU see what padding does. ``attend`` must
    read lengths and tables from the metadata's tensors, never from its ``host_`` fields, as the Triton backend does. `capture` records
    everything; before it, and for batches beyond the largest size, `holds` says no.
    """

    def __init__(self, model: CausalLM, cache: KVCache, attend: Attend, device: torch.device, max_num_seqs: int, max_model_len: int) -> None:
        self.model, self.cache, self.attend, self.device = model, cache, attend, device
        self.max_model_len = max_model_len
        self.sizes = sizes_for(max_num_seqs)
        most, blocks = self.sizes[-1], num_blocks_for(max_model_len, cache.block_size)
        self.buffers = _Buffers(
            input_ids=torch.zeros(most, dtype=torch.int64, device=device),
            positions=torch.zeros(most, dtype=torch.int64, device=device),
            slot_mapping=torch.full((most,), -1, dtype=torch.int64, device=device),
            seq_lens=torch.zeros(most, dtype=torch.int32, device=device),
            block_tables=torch.full((most, blocks), PAD_BLOCK, dtype=torch.int32, device=device),
            query_start_loc=torch.arange(most + 1, dtype=torch.int32, device=device),
        )
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self.num_replays = 0

    def capture(self) -> None:
        """Record a graph for each size, the largest first, so that the smaller ones find their memory in its pool; nothing off CUDA."""
        if self.device.type != "cuda":
            return
        pool = torch.cuda.graph_pool_handle()
        for size in reversed(self.sizes):
            stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(stream), torch.inference_mode():
                self._forward(size)                 # what happens the first time only, compiling and choosing algorithms, can't be recorded
            torch.cuda.current_stream(self.device).wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.inference_mode(), torch.cuda.graph(graph, pool=pool):
                hidden = self._forward(size)
            self.graphs[size] = graph, hidden
        torch.cuda.synchronize(self.device)

    def holds(self, scheduled: Sequence[ScheduledSeq]) -> bool:
        """Whether this is a decode step that `run` can carry out."""
        ready = self.device.type != "cuda" or bool(self.graphs)
        return ready and 0 < len(scheduled) <= self.sizes[-1] and all(item.num_new == 1 for item in scheduled)

    def run(self, batch: ModelInput) -> Tensor:
        """Hidden states ``[B, hidden_size]`` of a batch of one token a sequence, built on the host or on the device; valid until the next call."""
        count = batch.meta.num_seqs
        size = next(size for size in self.sizes if size >= count)
        self._fill(batch, count, size)
        self.num_replays += 1
        if self.device.type != "cuda":
            return self._forward(size)[:count]
        graph, hidden = self.graphs[size]
        graph.replay()
        return hidden[:count]

    def _fill(self, batch: ModelInput, count: int, size: int) -> None:
        buffers, meta = self.buffers, batch.meta
        for buffer, new in (
            (buffers.input_ids, batch.input_ids), (buffers.positions, batch.positions),
            (buffers.slot_mapping, meta.slot_mapping), (buffers.seq_lens, meta.seq_lens),
        ):
            buffer[:count].copy_(new, non_blocking=True)
        buffers.block_tables[:count, : meta.block_tables.shape[1]].copy_(meta.block_tables, non_blocking=True)
        # Rows that an earlier, larger batch has left are padding now.
        buffers.slot_mapping[count:size].fill_(-1)
        buffers.seq_lens[count:size].zero_()
        buffers.positions[count:size].zero_()

    def _forward(self, size: int) -> Tensor:
        buffers = self.buffers
        meta = AttentionMetadata(
            slot_mapping=buffers.slot_mapping[:size], query_start_loc=buffers.query_start_loc[: size + 1], seq_lens=buffers.seq_lens[:size],
            block_tables=buffers.block_tables[:size], block_size=self.cache.block_size, host_query_start_loc=tuple(range(size + 1)),
            # The longest there can be: it decides into how many parts contexts are split, which is recorded too.
            host_seq_lens=(self.max_model_len,) * size, max_query_len=1, max_seq_len=self.max_model_len, all_written=False,
        )
        hidden: Tensor = self.model(buffers.input_ids[:size], buffers.positions[:size], self.cache, meta, self.attend)
        return hidden


def warm_up(model: CausalLM, cache: KVCache, attend: Attend, device: torch.device, max_num_seqs: int, max_model_len: int, max_tokens: int) -> None:
    """Run one prompt-like and a few decode-like batches that write nowhere, so that no request waits for a kernel to be compiled.

    A kernel is compiled for each number of packed rows, so queries of 1, 2, 4 and 8 tokens are tried; few and many sequences, since few are split.
    Blocks are copied one at a time and two: where the second list of ids begins decides which variant of that kernel it is. Nobody owns them yet.
    """
    longest = min(max_model_len, max_tokens, 2 * max(SIZES))
    for length, count in ((longest, 1), *((length, count) for length in (1, 2, 4, 8) for count in (1, min(max_num_seqs, 256)))):
        if length > longest:
            continue
        rows = length * count
        meta = AttentionMetadata(
            slot_mapping=torch.full((rows,), -1, dtype=torch.int64, device=device),
            query_start_loc=torch.arange(0, rows + 1, length, dtype=torch.int32, device=device),
            seq_lens=torch.zeros(count, dtype=torch.int32, device=device),
            block_tables=torch.full((count, 1), PAD_BLOCK, dtype=torch.int32, device=device), block_size=cache.block_size,
            host_query_start_loc=tuple(range(0, rows + 1, length)), host_seq_lens=(length,) * count, max_query_len=length,
            max_seq_len=max_model_len if count == 1 else 1, all_written=False,
        )
        zeros = torch.zeros(rows, dtype=torch.int64, device=device)
        with torch.inference_mode():
            model.logits(model(zeros, zeros, cache, meta, attend)[:count])
    for count in range(1, min(3, cache.num_blocks)):
        cache.copy_blocks([Copy(0, 1 + i) for i in range(count)])
