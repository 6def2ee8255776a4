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
    pass_overhead: float = 2.03e-4
    """For each layer of a pass, in starting kernels and the serving program."""
    sequence_overhead: float = 5.7e-5
    """For each sequence of a pass, in the serving program and the sampler."""
    request_overhead: float = 1.35e-2
    request_overhead_llama: float = 5.4e-3
    """For each request that comes, in the serving program (receiving, tokenizing, answering), with OPT and with LLaMA. LLaMA's is read off the one
    curve there is of it, at less than half of what vLLM holds there: 0.0407 s/token at 24 requests a second (Fig. 16a). Its leftmost point,
    1 request a second, shows nothing of it. OPT's 13.5 ms would leave a third of the 50 requests a second that LLaMA-13B was measured to hold."""
    beam_overhead: float = 8e-5
    """For each beam of a pass, beside ``sequence_overhead``: choosing candidates."""
    attention_start: float = 1.02e-5
    attention_sequence: float = 4.5e-7
    attention_longest: float = 7.4e-8
    attention_bandwidth: float = 0.568
    """Attention through a block table in one layer (Fig. 18a): a start, a part for each sequence, a part for each token of the longest context, and
    reading keys and values at this share of the memory's peak. See `CostModel.attention`."""
    contiguous_start: float = 5.6e-6
    contiguous_sequence: float = 3.6e-7
    contiguous_longest: float = 4.7e-8
    contiguous_bandwidth: float = 0.649
    """The same for the kernel over contiguous memory."""
    tokens_a_turn: int = 16
    """Fig. 18a ran blocks of 16. A warp walks through a context block by block, all its threads on one: a smaller block takes as long a turn as one
    of 16 (the kernel's structure, §5.1), while the bytes are the same."""
    all_reduce: float = 6.0e-5
    """For each of the two all-reduces of a layer, beside its bytes."""
    broadcast: float = 6.6e-3
    """For each pass on several cards, where the plan goes to every worker: OPT-66B's 0.055 s/token at low load on four cards, less all else."""
    link_out: float = 0.41
    link_in: float = 0.385
    """Of the host link's peak, when blocks are swapped: Fig. 19a's 13.1 and 12.3 of 32 GB/s, if its sequence has 256 tokens."""
    copy_out: float = 1.9e-6
    copy_in: float = 3.6e-6
    """For each piece that is swapped, a block's keys or values of one layer (Fig. 19a)."""
    launch: float = 1.0e-5
    """Starting a copy within the memory: of the keys or values of one layer."""


STATIC = Constants(
    pass_overhead=9.0e-5, sequence_overhead=0.0, request_overhead=0.0, request_overhead_llama=0.0, beam_overhead=0.0, broadcast=0.0)
"""FasterTransformer: a C++ program, no Python between two passes. Its 0.0238 and 0.0378 s/token at 0.01 requests a second leave 0.10 and 0.07 ms a
layer; all else is the same card."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """Step times of a model on ``num_gpus`` cards that share it (tensor parallel)."""

    model: Model
    gpu: GPU
    num_gpus: int = 1
    block_size: int = 16
    paged: bool = True
    """Whether blocks are shared, so that only blocks are copied; False: runs."""
    block_table: bool = True
    """Whether attention goes through block tables; False: the kernel over contiguous memory."""
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

    def receiving(self, num_requests: int) -> float:
        """Seconds that the serving program takes for requests that come."""
        c = self.constants
        return num_requests * (c.request_overhead if self.model.family == "opt" else c.request_overhead_llama)

    def attention(self, context: int, longest: int, num_seqs: int) -> float:
        """Seconds of attention of ``num_seqs`` sequences that decode, in all layers, over ``context`` tokens together.

        The kernel reads all sequences side by side, a thread block for each head of each. As long as they run, they share the bandwidth; each token
        also takes its turn (``attention_longest``), so the ``longest`` context is what the kernel ends with.
        """
        c, model = self.constants, self.model
        start, each, turn, share = (
            (c.attention_start, c.attention_sequence, c.attention_longest, c.attention_bandwidth) if self.block_table else
            (c.contiguous_start, c.contiguous_sequence, c.contiguous_longest, c.contiguous_bandwidth))
        if self.block_table and self.block_size < c.tokens_a_turn:
            turn *= c.tokens_a_turn / self.block_size
        kernel = start + each * num_seqs + turn * longest
        return kernel * model.num_layers + model.kv_bytes_per_token * context / self.num_gpus / (self.gpu.bandwidth * share)

    def copies(self, num_blocks: int, num_runs: int) -> float:
        """Seconds of copying blocks within the memory: copy-on-write in one kernel a layer, or whole runs, each by itself."""
        size = self.model.kv_bytes_per_token * self.block_size * num_blocks / self.num_gpus
        launches = 1 if self.paged else num_runs
        return 2 * size / (self.gpu.bandwidth * self.constants.weight_bandwidth) + self.constants.launch * 2 * self.model.num_layers * launches

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
