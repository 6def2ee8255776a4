"""What a card does under load, by the project's scheduler and the cost model: latencies at given rates, or the rate that it holds (Paper §6.2)."""
from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .. import checks, lengths
from ..config import CONTIGUOUS
from ..trace.perfetto import PerfettoTrace
from . import capacity, systems, workload
from .presets import MODELS, PAPER_SERVERS, Server, server
from .serve import Served, serve
from .sim_runner import SimRunner
from .timed import TimedScheduler
from .traces import Trace, read_trace

MANAGERS = ("paged", *CONTIGUOUS)
MOST_REQUESTS = 1_000_000
"""Of one run."""
MOST_SEARCHED = 100_000
"""Of one run of a search for the capacity, which makes a dozen: some minutes each."""
RATES, DATASET, SECONDS = (0.5, 1.0, 1.5), "sharegpt", 600.0
"""What is simulated where nothing else is asked for."""

Advance = Callable[[int], object]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to simulate. None: not asked for. Raises ValueError naming option, value and limit, and for options that have no effect together."""

    model: str = "opt-13b"
    gpu: str = "A100-40GB"
    gpus: int = 1
    utilization: float | None = None
    """Share of the cards' memory for weights and cache; None: 0.9, and the paper's own number of slots for the paper's servers."""
    rates: tuple[float, ...] | None = None
    """Requests a second; None: `RATES`, and of a trace its own rate."""
    kv_managers: tuple[str, ...] = ("paged", "orca-max")
    dataset: str | None = None
    """A name in `workload.WORKLOADS`; None: `DATASET`, or the trace."""
    prefix_tokens: int | None = None
    """Of "translation": tokens that all prompts begin with; None: one example's."""
    trace: Path | None = None
    """A file for `read_trace`."""
    seconds: float | None = None
    """How long requests arrive; None: `SECONDS`, and all of a trace."""
    block_size: int = 16
    n: int = 1
    beam: bool = False
    seed: int | None = None
    """Of arrivals and lengths; None: 0."""
    capacity: bool = False
    """Search for the rate that each manager holds, instead of simulating ``rates``."""
    threshold: float | None = None
    """What "holds" means: a latency of at most so much, in the metric's unit; None: 0.2 s/token."""
    metric: str | None = None
    """A name in `capacity.METRICS`; None: "normalized"."""

    def __post_init__(self) -> None:
        checks.integer("--gpus", self.gpus, 1, 64)
        checks.integer("--block-size", self.block_size, 1, 256)
        checks.integer("--n", self.n, 1, 64)
        checks.integer("--seed", self.seed or 0, 0)
        if self.utilization is not None:
            checks.number("--utilization", self.utilization, 0, 1, low_open=True)
        if self.seconds is not None:
            checks.number("--seconds", self.seconds, 0, low_open=True)
        if self.dataset is not None:
            checks.one_of("--dataset", self.dataset, workload.WORKLOADS)
        if self.prefix_tokens is not None:
            checks.integer("--prefix-tokens", self.prefix_tokens, 0, lengths.PAPER_MODEL_LEN // 2)
        for rate in self.rates or ():
            checks.number("--rate", rate, 0, low_open=True)
        for manager in self.kv_managers:
            checks.one_of("--kv-manager", manager, MANAGERS)
        if self.threshold is not None:
            checks.number("--threshold", self.threshold, 0, low_open=True)
        if self.metric is not None:
            checks.one_of("--metric", self.metric, capacity.METRICS)
        self._refuse_what_has_no_effect()
        _ = self.server

    def _refuse_what_has_no_effect(self) -> None:
        traced, asked = self.trace is not None, self.capacity
        for wrong, message in (
            (asked and self.rates is not None, "--rate with --capacity: the search chooses the rates; leave one of them out"),
            (traced and self.dataset is not None, "--dataset with --trace: the lengths are the file's; leave one of them out"),
            (traced and self.seed is not None, "--seed with --trace: nothing is drawn; leave --seed out"),
            (self.threshold is not None and not asked, "--threshold without --capacity: given rates are only measured; add --capacity"),
            (self.metric is not None and not asked, "--metric without --capacity: the search compares it with --threshold; add --capacity"),
            (asked and self.metric not in (None, "normalized") and self.threshold is None,
             f"--metric {self.metric} needs its --threshold, in seconds"),
            (self.prefix_tokens is not None and self.dataset != "translation",
             "--prefix-tokens without --dataset translation: no other workload has a prefix that all requests share"),
            (self.beam and self.n == 1, "--beam with --n 1: a beam search of width 1 is a plain request; give --n 2 or more"),
        ):
            if wrong:
                raise ValueError(message)

    @property
    def server(self) -> Server:
        """The paper's, with its own number of slots, where it is one of the paper's; otherwise what a share of the cards' memory holds."""
        paper = PAPER_SERVERS.get(self.model)
        if self.utilization is None and paper is not None and (paper.gpu.name, paper.num_gpus) == (self.gpu, self.gpus):
            return paper
        return server(self.model, self.gpu, self.gpus, 0.9 if self.utilization is None else self.utilization)

    @property
    def max_model_len(self) -> int:
        """Positions: the paper's 2,048 for its workloads, all that the model has for a trace."""
        longest = MODELS[self.model].max_model_len
        return longest if self.trace is not None else min(lengths.PAPER_MODEL_LEN, longest)

    @property
    def shares_prefix(self) -> bool:
        return self.dataset == "translation" and self.prefix_tokens != 0


class Load:
    """The requests of ``options``, at any rate. Reads a trace once."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.trace: Trace | None = None
        if options.trace is not None:
            self.trace = read_trace(options.trace, options.max_model_len, options.seconds)
            if not self.trace.arrivals:
                reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.trace.skipped.items()) or "the file has none"
                raise ValueError(f"--trace {options.trace}: no request that {options.model} can serve ({reasons})")

    @property
    def rates(self) -> tuple[float, ...]:
        """Those asked for, or the usual ones."""
        return self.options.rates or (RATES if self.trace is None else (self.trace.rate,))

    def at(self, rate: float) -> list[workload.Arrival]:
        if self.trace is not None:
            return self.trace.at_rate(rate)
        options = self.options
        seconds = options.seconds or SECONDS
        if rate * seconds > MOST_REQUESTS:
            raise ValueError(f"{rate:g} requests/s for {seconds:g} s are {rate * seconds:,.0f}; at most {MOST_REQUESTS:,}: fewer --seconds")
        prefix = workload.ONE_EXAMPLE if options.prefix_tokens is None else options.prefix_tokens
        return workload.arrivals(options.dataset or DATASET, rate, seconds, options.seed or 0, options.max_model_len, prefix)


def build(options: Options, kv_manager: str) -> tuple[TimedScheduler, SimRunner]:
    """The project's scheduler over one of its managers, and the runner that keeps the time. Raises ValueError where the pool holds no block."""
    return systems.with_manager(
        options.server, kv_manager, block_size=options.block_size, max_model_len=options.max_model_len, prefix_caching=options.shares_prefix,
        scheduler=TimedScheduler)


def simulate(
    options: Options, advance: Advance = lambda count: None, load: Load | None = None, perfetto: Path | None = None,
) -> list[dict[str, Any]]:
    """A row for each manager and rate: the latencies are virtual seconds. ``advance`` is called with 1 at the end of each request."""
    load = load or Load(options)
    rows = []
    for rate in load.rates:
        arrivals = load.at(rate)
        for kv_manager in options.kv_managers:
            scheduler, runner = build(options, kv_manager)
            with ExitStack() as stack:
                if perfetto is not None:
                    scheduler.emit = stack.enter_context(PerfettoTrace(perfetto, scheduler, scheduler.clock))
                found = _serve(options, scheduler, runner, arrivals, advance)
            rows.append({
                "kv_manager": kv_manager, "rate": rate, "requests": found.num_requests, "normalized_latency": found.normalized_latency,
                "running": found.mean_running, "preemptions": found.num_preemptions, "steps": found.num_steps, "seconds": found.seconds,
                "outgrew_pool": len(arrivals) - found.num_requests,
            })
    return rows


def _serve(options: Options, scheduler: TimedScheduler, runner: SimRunner, arrivals: list[workload.Arrival], advance: Advance) -> Served:
    extra: dict[str, Any] = {"beam": True} if options.beam else {}
    return serve(scheduler, runner, arrivals, options.n, advance, **extra)


def find_capacity(
    options: Options, kv_manager: str, advance: Advance = lambda count: None, trying: Callable[[float], object] = lambda rate: None,
    load: Load | None = None,
) -> capacity.Capacity:
    """The rate that a manager holds. ``trying`` is called with each rate before its run, ``advance`` with 1 at the end of each request."""
    load = load or Load(options)
    metric, limit = options.metric or "normalized", options.threshold or capacity.THRESHOLD

    def measure(rate: float) -> capacity.Measured:
        trying(rate)
        arrivals = load.at(rate)
        if load.trace is None and len(arrivals) > MOST_SEARCHED:
            raise ValueError(f"latencies are still within {limit:g} at {rate / 2:g} requests/s; twice that would be {len(arrivals):,} requests, more "
                             f"than the {MOST_SEARCHED:,} that a search runs: other --seconds, or a lower --threshold")
        scheduler, runner = build(options, kv_manager)
        watch = capacity.Watch(metric, limit, len(arrivals))
        scheduler.ended = watch
        try:
            latency = capacity.latency_of(metric, _serve(options, scheduler, runner, arrivals, advance))
        except capacity.TooSlowError:
            latency = watch.reached
        return capacity.Measured(rate, latency, len(arrivals), scheduler.mean_running, scheduler.num_preemptions, scheduler.binds)

    start = load.trace.rate if load.trace is not None else 1.0
    return capacity.search(measure, limit, min(max(start, capacity.LOWEST), capacity.HIGHEST))


def as_json(options: Options) -> dict[str, Any]:
    """The options that were asked for."""
    return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(options).items()}
