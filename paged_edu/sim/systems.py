"""The systems of the paper's evaluation, each as a scheduler and the runner that keeps its time (Paper §6.1)."""
from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from ..checks import one_of
from ..config import CONTIGUOUS
from ..core.contiguous import ContiguousKVManager
from ..core.kv_manager import KVManager
from ..core.paged import PagedKVManager
from ..core.plan import SchedulerOutput, StepResult
from ..core.scheduler import Scheduler, SchedulerConfig
from ..core.sequence import Request, Sequence
from .cost_model import STATIC, Constants, CostModel
from .presets import Server
from .sim_runner import SimRunner
from .static_batch import StaticBatchScheduler

SYSTEMS = ("paged", *CONTIGUOUS, "fastertransformer")
PAPER_SYSTEMS = {
    "FasterTransformer": "fastertransformer", "Orca (Max)": "orca-max", "Orca (Pow2)": "orca-pow2", "Orca (Oracle)": "orca-oracle", "vLLM": "paged",
}
"""Name in the paper -> ours."""
MOST_TOKENS = 2560
MOST_SEQS = 256
WATERMARK = 0.01
"""Token budget of a step, most sequences in one, and share of the pool that admission leaves free, in the vLLM of the paper's time."""


class AnyScheduler(Protocol):
    """What a simulation asks of a scheduler: the project's own, or padded batches."""

    running: list[Request]

    def add(self, request: Request) -> None: ...
    def has_unfinished(self) -> bool: ...
    def schedule(self) -> SchedulerOutput: ...
    def update(self, output: SchedulerOutput, result: StepResult) -> list[Sequence]: ...


def build(
    server: Server, system: str, *, block_size: int = 16, max_model_len: int = 2048, prefix_caching: bool = False, preemption_mode: str = "auto",
    constants: Constants | None = None,
) -> tuple[AnyScheduler, SimRunner]:
    """``system`` (one of `SYSTEMS`) on ``server``. Raises ValueError for an unknown one, and where the memory holds no block."""
    one_of("--kv-manager", system, SYSTEMS)
    if system == "fastertransformer":
        cost = CostModel(server.model, server.gpu, server.num_gpus, paged=False, block_table=False, constants=constants or STATIC)
        return StaticBatchScheduler(server.num_slots, max_model_len), SimRunner(cost)
    num_blocks = server.num_slots // block_size
    if num_blocks < 1:
        raise ValueError(f"--block-size {block_size}: {server.num_slots} slots are left for the cache, less than one block")
    paged = system == "paged"
    manager: KVManager
    if paged:
        manager = PagedKVManager(num_blocks, block_size, WATERMARK, prefix_caching=prefix_caching, num_cpu_blocks=num_blocks)
    else:
        manager = ContiguousKVManager(num_blocks, block_size, CONTIGUOUS[system], max_model_len)
    config = SchedulerConfig(
        max_model_len, MOST_SEQS, MOST_TOKENS, enable_chunked_prefill=False, preemption_mode=preemption_mode if paged else "recompute")
    cost = CostModel(server.model, server.gpu, server.num_gpus, block_size, paged, constants=constants or Constants())
    return Scheduler(config, manager), SimRunner(cost)


def without_overhead(constants: Constants) -> Constants:
    """The same card and kernels without what a serving program takes on the host: what better programs can still win."""
    return replace(constants, sequence_overhead=0.0, request_overhead=0.0, beam_overhead=0.0, broadcast=0.0)
