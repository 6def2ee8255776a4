"""The systems of the paper's evaluation, each as a scheduler and the runner that keeps its time (Paper §6.1)."""
from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, TypedDict, TypeVar, Unpack

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


S = TypeVar("S", bound=Scheduler)


class AnyScheduler(Protocol):
    """What a simulation asks of a scheduler: the project's own, or padded batches."""

    running: list[Request]

    @property
    def waiting(self) -> Collection[Request]: ...

    def add(self, request: Request) -> None: ...
    def has_unfinished(self) -> bool: ...
    def schedule(self) -> SchedulerOutput: ...
    def update(self, output: SchedulerOutput, result: StepResult) -> list[Sequence]: ...


class _Options(TypedDict, total=False):
    block_size: int
    max_model_len: int
    prefix_caching: bool
    preemption_mode: str
    constants: Constants | None


def build(server: Server, system: str, **options: Unpack[_Options]) -> tuple[AnyScheduler, SimRunner]:
    """``system`` (one of `SYSTEMS`) on ``server``, see `with_manager`. Raises ValueError for an unknown one."""
    one_of("system", system, SYSTEMS)
    if system != "fastertransformer":
        return with_manager(server, system, **options)
    cost = CostModel(server.model, server.gpu, server.num_gpus, paged=False, block_table=False, constants=options.get("constants") or STATIC)
    return StaticBatchScheduler(server.num_slots, options.get("max_model_len", 2048)), SimRunner(cost)


def with_manager(
    server: Server, kv_manager: str, *, block_size: int = 16, max_model_len: int = 2048, prefix_caching: bool = False, preemption_mode: str = "auto",
    constants: Constants | None = None, scheduler: type[S] = Scheduler,  # type: ignore[assignment]
) -> tuple[S, SimRunner]:
    """The project's scheduler over one of its managers, and the runner that keeps the time. Raises ValueError where the memory holds no block."""
    num_blocks = server.num_slots // block_size
    if num_blocks < 1:
        raise ValueError(f"--block-size {block_size}: {server.num_slots} slots are left for the cache, less than one block")
    paged = kv_manager == "paged"
    manager: KVManager
    if paged:
        manager = PagedKVManager(num_blocks, block_size, WATERMARK, prefix_caching=prefix_caching, num_cpu_blocks=num_blocks)
    else:
        manager = ContiguousKVManager(num_blocks, block_size, CONTIGUOUS[kv_manager], max_model_len)
    # Without chunks a whole prompt must fit a step.
    config = SchedulerConfig(
        max_model_len, MOST_SEQS, max(MOST_TOKENS, max_model_len), enable_chunked_prefill=False,
        preemption_mode=preemption_mode if paged else "recompute")
    cost = CostModel(server.model, server.gpu, server.num_gpus, block_size, paged, constants=constants or Constants())
    return scheduler(config, manager), SimRunner(cost)
