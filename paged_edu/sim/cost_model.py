"""How long a step takes on a GPU, from bytes, operations and overheads (Paper §2.3, §6.1, §7.1, §7.3).

A forward pass reads all weights once and computes with them: the slower of the two counts. Attention reads the keys and values of every
token of every context. Then there is what is neither: starting kernels, sampling, and the serving program itself. All constants are in
`Constants`; where each comes from is written beside it. None of them knows a workload, a manager or a figure of the evaluation.
"""
from __future__ import annotations

from dataclasses import dataclass

from .presets import GPU, Model


@dataclass(frozen=True, slots=True)
class Constants:
    """What is not on a data sheet. Seconds, or shares of a peak rate."""

    weight_bandwidth: float = 0.93
    """Of the memory's peak, when weights are read: 17.5 ms for one token of a 13B model's layers on an A100-40GB (public per-layer profiles)."""
    compute: float = 0.66
    """Of the peak rate of operations: those profiles' 66.9, 131.2 and 238 ms for 512, 1,024 and 2,048 tokens are 199 to 224 of 312 TFLOP/s."""
    pass_overhead: float = 1.94e-4
    """For each layer of a pass, in starting kernels and the serving program: Fig. 1's 26.24 ms for an empty batch, less weights and the start
    of attention."""
    sequence_overhead: float = 1.15e-4
    """For each sequence of a pass, in the serving program and the sampler: Fig. 1's 0.419 ms a request, less reading 290 tokens of context (the paper
    does not say how long the contexts were)."""
    attention_overhead: float = 1.8e-5
    """For each layer of a pass that decodes: Fig. 18a, where a straight line through the paged kernel's times begins."""
    attention_bandwidth: float = 0.50
    """Of the memory's peak, when attention reads keys and values through a block table: that line's slope, 780 of 1,555 GB/s."""
    contiguous_overhead: float = 1.0e-5
    contiguous_bandwidth: float = 0.58
    """The same for the kernel over contiguous memory: 900 GB/s."""
    tokens_at_once: int = 16
    """A warp takes one block at a time, and a smaller block as long as one of so many tokens (the kernel's structure, §5.1; Fig. 18a ran 16)."""
    all_reduce: float = 6.0e-5
    """For each of the two all-reduces of a layer, beside its bytes."""
    broadcast: float = 1.05e-2
    """For each pass on several cards, where the plan goes to every worker: OPT-66B's 0.055 s/token at low load on four cards, less all else."""
    link_out: float = 0.41
    link_in: float = 0.385
    """Of the host link's peak, when blocks are swapped: Fig. 19a's 13.1 and 12.3 of 32 GB/s, if its sequence has 256 tokens."""
    copy_out: float = 1.9e-6
    copy_in: float = 3.6e-6
    """For each piece that is swapped, a block's keys or values of one layer (Fig. 19a)."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """Step times of a model on ``num_gpus`` cards that share it (tensor parallel)."""

    model: Model
    gpu: GPU
    num_gpus: int = 1
    block_size: int = 16
    paged: bool = True
    """False: attention over contiguous memory."""
    constants: Constants = Constants()

    def forward(self, num_tokens: int, num_seqs: int) -> float:
        """Seconds of one pass over ``num_tokens`` tokens of ``num_seqs`` sequences, without reading contexts."""
        c, model = self.constants, self.model
        weights = model.weight_bytes / self.num_gpus / (self.gpu.bandwidth * c.weight_bandwidth)
        compute = 2 * model.num_parameters * num_tokens / self.num_gpus / (self.gpu.flops * c.compute)
        seconds = max(weights, compute) + c.pass_overhead * model.num_layers + c.sequence_overhead * num_seqs
        if self.num_gpus > 1:
            moved = 2 * model.hidden_size * num_tokens * model.bytes_per_number / _NVLINK
            seconds += c.broadcast + 2 * model.num_layers * (c.all_reduce + moved)
        return seconds

    def attention(self, context: int, num_blocks: int) -> float:
        """Seconds of reading ``context`` tokens' keys and values in all layers, that lie in ``num_blocks`` blocks, for decoding."""
        c, model = self.constants, self.model
        share, start = (c.attention_bandwidth, c.attention_overhead) if self.paged else (c.contiguous_bandwidth, c.contiguous_overhead)
        read = max(context, c.tokens_at_once * num_blocks) if self.paged and self.block_size < c.tokens_at_once else context
        return model.kv_bytes_per_token * read / self.num_gpus / (self.gpu.bandwidth * share) + start * model.num_layers

    def swap_out(self, num_blocks: int) -> float:
        """Seconds of moving ``num_blocks`` blocks to host memory."""
        return self._swap(num_blocks, self.constants.link_out, self.constants.copy_out)

    def swap_in(self, num_blocks: int) -> float:
        """Seconds of moving ``num_blocks`` blocks back."""
        return self._swap(num_blocks, self.constants.link_in, self.constants.copy_in)

    def _swap(self, num_blocks: int, share: float, piece: float) -> float:
        size = self.model.kv_bytes_per_token * self.block_size * num_blocks / self.num_gpus
        return size / (self.gpu.link * share) + piece * 2 * self.model.num_layers * num_blocks


_NVLINK = 300e9
"""Bytes a second between cards, one direction (A100)."""
