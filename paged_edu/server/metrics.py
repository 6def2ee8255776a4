"""Metrics: what the engine did, counted once a step in its thread, and what Prometheus is told of it."""
from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from ..core.kv_manager import MemoryReport
from ..core.plan import SchedulerOutput
from ..core.sequence import Status
from ..engine.engine import Engine
from ..engine.outputs import RequestOutput
from ..engine.prepared import PreparedRequest

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Histogram:
    """Counts by upper limit. Written by one thread; whoever reads may miss the newest entry."""

    def __init__(self, limits: tuple[float, ...] = SECONDS) -> None:
        self.limits = limits
        self.counts = [0] * (len(limits) + 1)
        self.sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.limits, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        return sum(self.counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Prometheus's: of each limit, how many are not above it."""
        found, total = [], 0
        for limit, count in zip((*self.limits, float("inf")), self.counts, strict=True):
            total += count
            found.append(("+Inf" if limit == float("inf") else str(limit), float(total)))
        return found


class EngineStats:
    """A watcher of steps (`AsyncEngine.watch_steps`). All sequences of a request get their tokens in the same steps: one time a request will do."""

    def __init__(self) -> None:
        self.steps = self.generated = self.computed = self.copies = 0
        self.preemptions: Counter[str] = Counter()
        self.swapped: Counter[str] = Counter()
        self.between_tokens = Histogram()
        self._last: dict[str, float] = {}
        self._step = -1

    def __call__(self, engine: Engine, plan: SchedulerOutput) -> None:
        if plan.step == self._step:                         # nothing was planned since
            return
        self._step, now, last = plan.step, engine.clock(), self._last
        self.steps += 1
        self.copies += len(plan.copies)
        self.swapped["out"] += len(plan.swap_out)
        self.swapped["in"] += len(plan.swap_in)
        requests = engine.scheduler.requests
        for request_id in plan.preempted:
            request = requests.get(request_id)
            self.preemptions["swap" if request is not None and request.status is Status.SWAPPED else "recompute"] += 1
        sampled: Counter[str] = Counter()
        for item in plan.scheduled:
            self.computed += len(item.token_ids)
            if item.num_samples:
                sampled[item.request_id] += item.num_samples
        gaps: Counter[float] = Counter()
        for request_id, count in sampled.items():
            self.generated += count
            if request_id in last:
                gaps[now - last[request_id]] += count
            last[request_id] = now
        for gap, count in gaps.items():
            self.between_tokens.add(gap, count)
        if len(last) > len(requests) + 64:
            self._last = {request_id: last[request_id] for request_id in last if request_id in requests}


class RequestStats:
    """Counted in the event loop, when an output says it."""

    def __init__(self) -> None:
        self.first_token, self.whole, self.queued = Histogram(), Histogram(), Histogram()
        self.prompt_tokens = self.cached_tokens = self.finished = self.dropped = self.failed = 0

    def begun(self, prepared: PreparedRequest) -> None:
        """Once for each request: with its first output, or at its end if nobody has read one."""
        its = prepared.metrics
        if its.first_scheduled_time is not None:
            self.queued.add(its.first_scheduled_time - its.arrival_time)
        if its.first_token_time is not None:
            self.first_token.add(its.first_token_time - its.arrival_time)
            self.prompt_tokens += len(prepared.request.prompt_token_ids)
            self.cached_tokens += prepared.request.num_cached_tokens

    def last(self, output: RequestOutput) -> None:
        self.finished += 1
        if output.metrics.finished_time is not None:
            self.whole.add(output.metrics.finished_time - output.metrics.arrival_time)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The engine between two steps."""

    report: MemoryReport
    running: int
    waiting: int
    swapped: int
    blocks: int
    block_size: int
    prefix_queries: int
    prefix_hits: int

    @classmethod
    def of(cls, engine: Engine) -> Snapshot:
        scheduler, manager = engine.scheduler, engine.scheduler.manager
        swapped = sum(request.status is Status.SWAPPED for request in scheduler.waiting)
        stats = scheduler.prefix_stats
        return cls(
            manager.report(), len(scheduler.running), len(scheduler.waiting) - swapped, swapped, manager.num_blocks, manager.block_size,
            stats.queries, stats.hits,
        )

    @property
    def waste(self) -> float:
        """Of the slots in blocks that are in use: the share without a token."""
        used = self.report.token_states + self.report.reservation + self.report.internal
        return (used - self.report.token_states) / used if used else 0.0

    def numbers(self) -> dict[str, float]:
        """For the live page."""
        return {
            "running": self.running, "waiting": self.waiting, "swapped": self.swapped, "blocks": self.blocks, "used": self.report.num_used_blocks,
            "cached": self.report.cached // self.block_size, "waste": self.waste,
        }


class _Families:
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)


def exposition(
    snapshot: Snapshot, engine: EngineStats, requests: RequestStats, answered: Mapping[tuple[str, str, int], int], healthy: bool, in_flight: int,
) -> bytes:
    """The text of /metrics."""
    families = [*_gauges(snapshot, healthy, in_flight), *_counters(snapshot, engine, requests, answered)]
    for name, what, histogram in (
        ("time_to_first_token_seconds", "From the arrival of a request to its first token", requests.first_token),
        ("inter_token_seconds", "Between two tokens of a text, as the engine made them", engine.between_tokens),
        ("request_seconds", "From the arrival of a request to its last token", requests.whole),
        ("queue_seconds", "From the arrival of a request to the first step that ran it", requests.queued),
    ):
        family = HistogramMetricFamily(f"paged_edu_{name}", what)
        family.add_metric([], histogram.buckets(), histogram.sum)
        families.append(family)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families))
    return generate_latest(registry)


def _gauge(name: str, what: str, values: Mapping[str, float] | float, label: str = "") -> Metric:
    family = GaugeMetricFamily(f"paged_edu_{name}", what, labels=[label] if label else [])
    for key, value in values.items() if isinstance(values, Mapping) else [("", values)]:
        family.add_metric([key] if label else [], value)
    return family


def _counter(name: str, what: str, values: Mapping[Any, float] | float, *labels: str) -> Metric:
    family = CounterMetricFamily(f"paged_edu_{name}", what, labels=labels)
    for key, value in values.items() if isinstance(values, Mapping) else [((), values)]:
        family.add_metric([str(part) for part in (key if isinstance(key, tuple) else (key,))], value)
    return family


def _gauges(snapshot: Snapshot, healthy: bool, in_flight: int) -> list[Metric]:
    report = snapshot.report
    cached = report.cached // snapshot.block_size
    blocks = {"used": report.num_used_blocks, "cached": cached, "free": snapshot.blocks - report.num_used_blocks - cached}
    slots = {name: getattr(report, name) for name in ("token_states", "reservation", "internal", "external")}
    return [
        _gauge("healthy", "1: /health answers 200", float(healthy)),
        _gauge("requests_in_flight", "Accepted, and neither answered nor dropped", in_flight),
        _gauge("requests_running", "Have blocks and are stepped", snapshot.running),
        _gauge("requests_waiting", "Wait for their turn or for memory", snapshot.waiting),
        _gauge("requests_swapped", "Wait with their blocks in host memory", snapshot.swapped),
        _gauge("kv_blocks", "Blocks of the pool by state", blocks, "state"),
        _gauge("kv_slots", "Slots of the pool by what they hold (the four parts of the paper's figure 2)", slots, "part"),
        _gauge("kv_usage_ratio", "Blocks in use, of the pool", report.num_used_blocks / snapshot.blocks),
        _gauge("kv_waste_ratio", "Slots without a token, of those in blocks that are in use", snapshot.waste),
        _gauge("kv_shared_blocks", "Blocks that would exist in addition without sharing", report.shared_saved),
    ]


def _counters(snapshot: Snapshot, engine: EngineStats, requests: RequestStats, answered: Mapping[tuple[str, str, int], int]) -> list[Metric]:
    ends = {"finished": requests.finished, "dropped": requests.dropped, "failed": requests.failed}
    return [
        _counter("http_requests", "Answers by method, path and status (499: the client went)", answered, "method", "path", "status"),
        _counter("requests", "Prompts that ended, and how", ends, "end"),
        _counter("prompt_tokens", "Of the requests that got a token", requests.prompt_tokens),
        _counter("cached_prompt_tokens", "Of those, found in the prefix cache", requests.cached_tokens),
        _counter("generated_tokens", "Sampled by the engine", engine.generated),
        _counter("computed_tokens", "Run through the model, recomputed ones included", engine.computed),
        _counter("steps", "Of the engine", engine.steps),
        _counter("preemptions", "Requests that stepped back, by how they return", {k: engine.preemptions[k] for k in ("recompute", "swap")}, "kind"),
        _counter("copied_blocks", "Copy-on-write", engine.copies),
        _counter("swapped_blocks", "Copied to host memory and back", {k: engine.swapped[k] for k in ("out", "in")}, "direction"),
        _counter("prefix_queries", "Tokens looked for in the prefix cache", snapshot.prefix_queries),
        _counter("prefix_hits", "Tokens found there", snapshot.prefix_hits),
    ]
