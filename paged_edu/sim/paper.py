"""The paper's figures, one function each: the jobs that make it up (Paper Fig. 1, 2, 11-17, 18b, 19). `replay.py` runs them.

A job is one curve or one group of bars and can run in a process of its own. Its result is ``{figure: {system: [[x, y], …]}}``, systems and figures
named as the paper's published points are (`panels.published`).
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import numpy as np

from .. import lengths
from ..core.scheduler import Scheduler
from .cost_model import CostModel
from .panels import ORCAS, PANELS, Panel, curve, published, rates_of, run
from .points import PARTS, Points, crossing
from .presets import PAPER_SERVERS
from .systems import AnyScheduler

Curves = dict[str, dict[str, Points]]
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
OVERLOAD = {"sharegpt": 2.0, "alpaca": 30.0}
"""Requests a second of Fig. 13, beyond what any system serves."""
SERVER = PAPER_SERVERS["opt-13b"]


@dataclass(frozen=True, slots=True)
class Job:
    """One part of a figure. ``run`` takes a function to call after each of its ``points`` and returns curves."""

    figure: str
    what: str
    points: int
    """How many points it is expected to take, for a progress bar."""
    run: Callable[[float, Callable[[], object]], Curves]
    """Takes a factor for the length of the traces as well (1: as in the paper)."""


# -- latency over rate -----------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Curve:
    panel: Panel
    system: str

    def __call__(self, scale: float, step: Callable[[], object]) -> Curves:
        return {self.panel.figure: {self.system: curve(self.panel, self.system, self.panel.seconds * scale, step)}}


def _panel(figure: str) -> list[Job]:
    panel = PANELS[figure]
    return [Job(figure, f"{panel.title}: {system}", len(rates_of(figure, system)) or 14, _Curve(panel, system)) for system in panel.systems]


def fig12(letter: str) -> list[Job]:
    """Basic sampling: OPT-13B, 66B and 175B, ShareGPT (a-c) and Alpaca (d-f)."""
    return _panel(f"fig12{letter}")


def fig14(letter: str) -> list[Job]:
    """Parallel sampling (a-c) and beam search (d-f), OPT-13B on Alpaca."""
    return _panel(f"fig14{letter}")


def fig16(letter: str) -> list[Job]:
    """Translation with a shared prefix, LLaMA-13B."""
    return _panel(f"fig16{letter}")


def fig17() -> list[Job]:
    """The chatbot, OPT-13B on rounds of ShareGPT conversations."""
    return _panel("fig17")


# -- memory ----------------------------------------------------------------------------------------------------------------------------
def fig1() -> list[Job]:
    """Memory and throughput by batch size."""
    return [Job("fig1", "memory and throughput by batch", 1, _fig1)]


def _fig1(scale: float, step: Callable[[], object]) -> Curves:
    model, params = SERVER.model, SERVER.model.weight_bytes / 1e9
    slab, mean = 2048 * model.kv_bytes_per_token / 1e9, _mean_context("sharegpt")
    full = SERVER.num_slots * model.kv_bytes_per_token / 1e9
    context = (mean + 7.5) * model.kv_bytes_per_token / 1e9             # the last block is half empty
    batches = [4 * i for i in range(1, 11)]
    cost = CostModel(model, SERVER.gpu)
    throughput = [[n, n / (cost.forward(n, n) + cost.attention(round(n * mean), round(mean), n))] for n in batches]
    step()
    return {
        "fig1_memory": {
            "Existing systems": [[n, params + n * slab] for n in range(int(full // slab) + 1)],
            "vLLM": [[n, params + n * context] for n in range(0, int(full // context) + 1, 2)],
        },
        "fig1_throughput": {"Throughput": throughput},
    }


def _mean_context(dataset: str) -> float:
    """Tokens in the cache of a running request, on average over time: its prompt and half of its answer, long answers counted longer."""
    drawn = np.array(lengths.load(dataset).matched(20_000, np.random.default_rng(0)), dtype=float)
    prompts, outputs = drawn.T
    return float((outputs * (prompts + outputs / 2)).sum() / outputs.sum())


class _Memory:
    """A watcher: who runs and what the memory holds, while requests come and after the first fifth of that time."""

    def __init__(self, seconds: float, every: int) -> None:
        self.first, self.last, self.every = seconds / 5, seconds, every
        self.running: list[int] = []
        self.parts: list[list[float]] = []
        self.saving: list[float] = []

    def __call__(self, scheduler: AnyScheduler, now: float) -> None:
        if isinstance(scheduler, Scheduler) and self.first <= now <= self.last:
            self.running.append(len(scheduler.running))
            if len(self.running) % self.every == 1:
                report = scheduler.manager.report()
                shares = report.shares()
                self.parts.append([100 * shares[part] for part in PARTS])
                if report.num_used_blocks:
                    self.saving.append(100 * report.sharing_saving)


@dataclass(frozen=True, slots=True)
class _Overload:
    dataset: str
    system: str
    seconds: float

    def __call__(self, scale: float, step: Callable[[], object]) -> Curves:
        seen = _Memory(self.seconds * scale, every=25)
        run("opt-13b", self.dataset, self.system, OVERLOAD[self.dataset], self.seconds * scale, watch=seen)
        step()
        running = {self.system: [[0.0, fmean(seen.running)]]}
        if self.dataset == "alpaca":
            return {"fig13b": running}
        return {"fig13a": running, "fig2": {self.system: [[float(i), fmean(part)] for i, part in enumerate(zip(*seen.parts, strict=True))]}}


def fig2() -> list[Job]:
    """What the KV cache holds under more load than any system serves, and how many requests run (Fig. 13a)."""
    return [Job("fig2", f"memory: {system}", 1, _Overload("sharegpt", system, 1800)) for system in ORCAS]


def fig13() -> list[Job]:
    """Requests in the batch: ShareGPT at 2, Alpaca at 30 requests a second."""
    return fig2() + [Job("fig13", f"batch, Alpaca: {system}", 1, _Overload("alpaca", system, 900)) for system in ORCAS]


def fig11() -> list[Job]:
    """The lengths that were drawn, as the paper's histograms have them."""
    return [Job("fig11", "lengths", 1, _fig11)]


def _fig11(scale: float, step: Callable[[], object]) -> Curves:
    curves: Curves = {}
    for dataset in lengths.DATASETS:
        drawn = np.array(lengths.load(dataset).matched(20_000, np.random.default_rng(0)))
        high = 2048 if dataset == "sharegpt" else 512
        for side, values in zip(("Input", "Output"), drawn.T, strict=True):
            density, edges = np.histogram(values, bins=64, range=(0, high), density=True)
            centres = (edges[:-1] + edges[1:]) / 2
            curves.setdefault(f"fig11_{dataset}", {})[side] = [[float(x), float(y)] for x, y in zip(centres, density, strict=True)]
    step()
    return curves


@dataclass(frozen=True, slots=True)
class _Sharing:
    figure: str
    dataset: str
    beam: bool

    def __call__(self, scale: float, step: Callable[[], object]) -> Curves:
        points = []
        for n in (2, 4, 6):
            # Half of what a sixth panel would serve: enough requests at once for a mean, no queue.
            rate, seconds = ((6.0 / n, 300.0) if self.dataset == "alpaca" else (0.75 / n, 2400.0))
            seen = _Memory(seconds * scale, every=7)
            run("opt-13b", self.dataset, "vLLM", rate, seconds * scale, n=n, beam=self.beam, watch=seen)
            points.append([float(n), fmean(seen.saving)])
            step()
        return {self.figure: {"vLLM" if self.dataset == "alpaca" else "vLLM, ShareGPT": points}}


def fig15() -> list[Job]:
    """Blocks that sharing saves: parallel sampling (a) and beam search (b)."""
    return [
        Job("fig15", f"sharing, {'beams' if beam else 'samples'}, {dataset}", 3, _Sharing(figure, dataset, beam))
        for figure, beam in (("fig15a", False), ("fig15b", True)) for dataset in lengths.DATASETS
    ]


# -- block sizes -----------------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _BlockSizes:
    figure: str
    name: str
    dataset: str
    preemption_mode: str
    seconds: float

    def __call__(self, scale: float, step: Callable[[], object]) -> Curves:
        rate, points = steady_rate(self.dataset), []
        for block_size in BLOCK_SIZES:
            found = run("opt-13b", self.dataset, "vLLM", rate, self.seconds * scale, block_size=block_size, preemption_mode=self.preemption_mode)
            points.append([float(block_size), found.normalized_latency])
            step()
        return {self.figure: {self.name: points}}


def steady_rate(dataset: str) -> float:
    """The rate of Fig. 18b and 19b, which the paper does not state: where its own Fig. 12 has the latency that 18b prints for blocks of 16."""
    panel = {"sharegpt": "fig12a", "alpaca": "fig12d"}[dataset]
    name = {"sharegpt": "ShareGPT", "alpaca": "Alpaca"}[dataset]
    latency = next(y for x, y in published()["fig18b"][name] if x == 16)
    rate = crossing(published()[panel]["vLLM"], latency)
    if rate is None:
        raise ValueError(f"the paper's {panel} does not reach {latency} s/token")
    return rate


def fig18b() -> list[Job]:
    """Latency by block size at one rate."""
    return [
        Job("fig18b", f"block size, {name}", len(BLOCK_SIZES), _BlockSizes("fig18b", name, dataset, "recompute", seconds))
        for name, dataset, seconds in (("ShareGPT", "sharegpt", 1200), ("Alpaca", "alpaca", 600))
    ]


def fig19() -> list[Job]:
    """Swapping against recomputing: what each takes for a sequence of 256 tokens (a), and the latency with each (b), by block size."""
    modes = (("Recompute", "recompute"), ("Swap", "swap"))
    return [Job("fig19a", "swap and recompute times", 1, _fig19a)] + [
        Job("fig19b", f"preemption: {name}", len(BLOCK_SIZES), _BlockSizes("fig19b", name, "sharegpt", mode, 1200)) for name, mode in modes
    ]


def _fig19a(scale: float, step: Callable[[], object]) -> Curves:
    rows: dict[str, Points] = {name: [] for name in ("Recompute", "Swap in", "Swap out", "Swap in + out")}
    for block_size in BLOCK_SIZES:
        cost = CostModel(SERVER.model, SERVER.gpu, block_size=block_size)
        swap_in, swap_out = cost.swap_in(256 // block_size), cost.swap_out(256 // block_size)
        for name, seconds in zip(rows, (cost.forward(256, 1), swap_in, swap_out, swap_in + swap_out), strict=True):
            rows[name].append([float(block_size), seconds * 1e3])
    step()
    return {"fig19a": rows}


FIGURES: dict[str, Callable[[], list[Job]]] = {
    "fig1": fig1, "fig2": fig2, "fig11": fig11,
    **{f"fig12{letter}": partial(fig12, letter) for letter in "abcdef"}, "fig13": fig13,
    **{f"fig14{letter}": partial(fig14, letter) for letter in "abcdef"}, "fig15": fig15,
    "fig16a": partial(fig16, "a"), "fig16b": partial(fig16, "b"), "fig17": fig17, "fig18b": fig18b, "fig19": fig19,
}
"""Name on the command line -> its jobs."""


def jobs(names: Sequence[str]) -> list[Job]:
    """The jobs of some figures; a name without its letter ("fig12") means all panels. No job twice. Raises ValueError for unknown names."""
    chosen: dict[str, Job] = {}
    for name in names:
        keys = [key for key in FIGURES if key == name or (key[:-1] == name and key[-1].isalpha())]
        if not keys:
            raise ValueError(f"--figure {name}: there are {', '.join(FIGURES)}, and fig12, fig14, fig16 for all their panels")
        for key in keys:
            chosen.update({job.what: job for job in FIGURES[key]()})
    return list(chosen.values())
