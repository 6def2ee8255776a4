"""`paged-edu simulate`: what a card would do under load, by the project's scheduler and the cost model (Paper §6.2)."""
from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tqdm.auto import tqdm

from .. import checks, lengths
from ..config import CONTIGUOUS
from ..core.contiguous import ContiguousKVManager
from ..core.kv_manager import KVManager
from ..core.paged import PagedKVManager
from ..core.scheduler import Scheduler, SchedulerConfig
from .cost_model import CostModel
from .presets import MODELS, PAPER_SERVERS, Server, server
from .serve import Served, serve
from .sim_runner import SimRunner
from .workload import poisson

MANAGERS = ("paged", *CONTIGUOUS)
MOST_TOKENS = 2560
"""Token budget of a step, as in the vLLM of the paper."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to simulate. Raises ValueError naming option, value and limit."""

    model: str = "opt-13b"
    gpu: str = "A100-40GB"
    gpus: int = 1
    rates: tuple[float, ...] = (0.5, 1.0, 1.5)
    kv_managers: tuple[str, ...] = ("paged", "orca-max")
    dataset: str = "sharegpt"
    seconds: float = 600.0
    block_size: int = 16
    n: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        checks.integer("--gpus", self.gpus, 1, 64)
        checks.integer("--block-size", self.block_size, 1, 256)
        checks.integer("--n", self.n, 1, 64)
        checks.integer("--seed", self.seed, 0)
        checks.number("--seconds", self.seconds, 0, low_open=True)
        checks.one_of("--dataset", self.dataset, lengths.DATASETS)
        for rate in self.rates:
            checks.number("--rate", rate, 0, low_open=True)
        for manager in self.kv_managers:
            checks.one_of("--kv-manager", manager, MANAGERS)
        _ = self.server

    @property
    def server(self) -> Server:
        """The paper's, with its own number of slots, where it is one of the paper's; otherwise what 90 % of the cards' memory hold."""
        paper = PAPER_SERVERS.get(self.model)
        if paper is not None and (paper.gpu.name, paper.num_gpus) == (self.gpu, self.gpus):
            return paper
        return server(self.model, self.gpu, self.gpus)


def build(options: Options, kv_manager: str) -> tuple[Scheduler, SimRunner]:
    """The project's scheduler over one of its managers, and the runner that keeps the time. Raises ValueError where the pool holds no block."""
    chosen = options.server
    num_blocks = chosen.num_slots // options.block_size
    if num_blocks < 1:
        raise ValueError(f"--block-size {options.block_size}: {chosen.num_slots} slots are left for the cache, less than one block")
    longest = min(lengths.PAPER_MODEL_LEN, MODELS[options.model].max_model_len)
    manager: KVManager = PagedKVManager(num_blocks, options.block_size, 0.01, prefix_caching=False, num_cpu_blocks=num_blocks)
    if kv_manager != "paged":
        manager = ContiguousKVManager(num_blocks, options.block_size, CONTIGUOUS[kv_manager], longest)
    config = SchedulerConfig(longest, max_num_batched_tokens=MOST_TOKENS, enable_chunked_prefill=False)
    cost = CostModel(chosen.model, chosen.gpu, chosen.num_gpus, options.block_size, kv_manager == "paged")
    return Scheduler(config, manager), SimRunner(cost)


def simulate(options: Options, advance: Callable[[int], object] = lambda count: None) -> list[dict[str, Any]]:
    """A row for each manager and rate: the latencies are virtual seconds."""
    rows = []
    for rate in options.rates:
        arrivals = poisson(options.dataset, rate, options.seconds, options.seed)
        for kv_manager in options.kv_managers:
            found: Served = serve(*build(options, kv_manager), arrivals, options.n, advance)
            rows.append({
                "kv_manager": kv_manager, "rate": rate, "requests": found.num_requests, "normalized_latency": found.normalized_latency,
                "running": found.mean_running, "preemptions": found.num_preemptions, "steps": found.num_steps, "seconds": found.seconds,
            })
    return rows


def run(options: Options, json_file: Path | None = None) -> int:
    """Simulate with a progress bar, print a table, write JSON."""
    if json_file is not None:
        checks.writable_file("--json", json_file)
    chosen = options.server
    total = sum(len(poisson(options.dataset, rate, options.seconds, options.seed)) for rate in options.rates) * len(options.kv_managers)
    with tqdm(total=total, unit="request", disable=None, leave=False) as bar:
        rows = simulate(options, bar.update)
    title = f"{options.model} on {options.gpus} x {options.gpu}, {chosen.num_slots:,} slots, {options.dataset}, {options.seconds:g} s of arrivals"
    table = Table(title=title)
    for name in ("requests/s", "manager", "s/token", "running", "preempted", "done after [s]"):
        table.add_column(name, justify="left" if name == "manager" else "right")
    for row in rows:
        table.add_row(f"{row['rate']:g}", row["kv_manager"], f"{row['normalized_latency']:.3f}", f"{row['running']:.1f}",
                      f"{row['preemptions']:,}", f"{row['seconds']:,.0f}")
    console = Console()
    console.print(table)
    said = "s/token: mean of latency over output tokens. By a cost model calibrated on the paper's Fig. 1, 18a and 19a; no GPU ran."
    console.print(said, style="dim")
    if json_file is not None:
        json_file.write_text(json.dumps({"options": asdict(options), "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return 0
