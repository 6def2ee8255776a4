"""`paged-edu bench scheduler`: what a step, a block and an event cost on this machine, without any model.

Three measurements, all of the core alone: (a) `schedule` + `update` for running sequences with long contexts, the runner's share left out;
(b) allocating and freeing blocks in pools of a thousand to a million: O(1) a block says that the size must not matter; (c) events that
nobody listens to, against the same code with every emitting statement removed. What is compared runs interleaved, so that a machine that is
busy with something else slows all sides alike; medians and paired ratios do the rest.
"""
from __future__ import annotations

import gc
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..checks import writable_file
from ..core.block_pool import BlockPool
from ..trace import EventLog
from ..words import counted
from .core_copies import load_copy, real_core
from .machine import machine

BLOCK_SIZE = 16
PROMPT = 128
"""Prompt tokens of each sequence: together with hundreds of steps a long-ish context."""
SEQUENCES = (1, 16, 64, 256)
POOLS = (1_000, 10_000, 100_000, 1_000_000)
EVENT_SEQUENCES = 64

Advance = Callable[[], None]


class Decoding:
    """A scheduler with ``sequences`` running sequences, past their prompts; each call of `step` is one decode step of all of them."""

    def __init__(self, core: dict[str, ModuleType], sequences: int, steps: int) -> None:
        blocks = sequences * -(-(PROMPT + steps + 8) // BLOCK_SIZE)
        self.manager = core["paged"].PagedKVManager(blocks, BLOCK_SIZE)
        limits = core["scheduler"].SchedulerConfig(
            max_model_len=PROMPT + steps + 8, max_num_seqs=sequences, max_num_batched_tokens=sequences * PROMPT,
        )
        self.scheduler = core["scheduler"].Scheduler(limits, self.manager)
        self.plan = core["plan"]
        for i in range(sequences):
            prompt = tuple((31 * i + 7 * k) % 1000 for k in range(PROMPT))
            self.scheduler.add(core["sequence"].Request(str(i), prompt, max_tokens=steps + 8))
        self.step()     # the prompts
        if len(self.scheduler.running) != sequences:
            raise RuntimeError(f"{len(self.scheduler.running)} of {sequences} sequences run")

    def step(self) -> tuple[float, float]:
        """One step with a runner that always answers the same token; the seconds of `schedule` and of `update`."""
        start = time.perf_counter()
        output = self.scheduler.schedule()
        scheduled = time.perf_counter()
        branch, token = self.plan.Branch, (7,)
        result = self.plan.StepResult({item.request_id: (branch(item.seq_id, token),) for item in output.scheduled})
        ran = time.perf_counter()
        self.scheduler.update(output, result)
        return scheduled - start, time.perf_counter() - ran


def _spread(seconds: list[float]) -> dict[str, float]:
    """Median and 90th percentile in microseconds."""
    return {"median_us": median(seconds) * 1e6, "p90_us": quantiles(seconds, n=10)[-1] * 1e6}


def measure_steps(sequences: int, steps: int, advance: Advance = lambda: None) -> dict[str, Any]:
    """(a) A step of ``sequences`` running sequences: whole, and the share of `schedule` and of `update`."""
    decoding = Decoding(real_core(), sequences, steps)
    gc.collect()
    times = []
    for _ in range(steps):
        times.append(decoding.step())
        advance()
    return {
        "sequences": sequences, "steps": steps, "context": [PROMPT + 1, PROMPT + steps],
        "step": _spread([a + b for a, b in times]), "schedule": _spread([a for a, _ in times]), "update": _spread([b for _, b in times]),
    }


def measure_pools(rounds: int, chunks: int = 500, advance: Advance = lambda: None) -> dict[str, Any]:
    """(b) Nanoseconds to allocate and to free a block, in chunks of 16 blocks; the rounds of all pools interleaved."""
    pools = {size: BlockPool(size) for size in POOLS}
    allocate: dict[int, list[float]] = {size: [] for size in POOLS}
    free: dict[int, list[float]] = {size: [] for size in POOLS}
    for pool in pools.values():
        for _ in range(2 * pool.num_blocks // 48 + 1):     # a used pool: its free queue is no longer in the order of the ids
            held = [pool.allocate(16) or [] for _ in range(3)]
            for blocks in (held[1], held[0], held[2]):
                pool.free(blocks)
    for _ in range(rounds):
        for size, pool in pools.items():
            in_flight = []
            taken = given = 0.0
            for _ in range(chunks):
                start = time.perf_counter()
                blocks = pool.allocate(16) or []
                taken += time.perf_counter() - start
                in_flight.append(blocks)
                if len(in_flight) > 32:
                    blocks = in_flight.pop(0)
                    start = time.perf_counter()
                    pool.free(blocks)
                    given += time.perf_counter() - start
            allocate[size].append(taken / chunks / 16 * 1e9)
            free[size].append(given / (chunks - 32) / 16 * 1e9)
            for blocks in in_flight:
                pool.free(blocks)
            advance()
    rows = [{"blocks": s, "allocate_ns": median(allocate[s]), "free_ns": median(free[s])} for s in POOLS]
    both = {size: [a + f for a, f in zip(allocate[size], free[size], strict=True)] for size in (POOLS[0], POOLS[-1])}
    ratio = median(large / small for large, small in zip(both[POOLS[-1]], both[POOLS[0]], strict=True))
    return {"rounds": rounds, "pools": rows, "ratio_largest_to_smallest": ratio}


def _interleave(
    cores: dict[str, dict[str, ModuleType]], steps: int, order: random.Random, listening: str | None = None,
) -> dict[str, list[float]]:
    """Step times of the same run in several cores, one step of each in turn, in an order that is drawn anew for every step."""
    runs = {name: Decoding(core, EVENT_SEQUENCES, steps) for name, core in cores.items()}
    if listening is not None:
        log = EventLog.of(runs[listening].scheduler)
        runs[listening].manager.emit = runs[listening].scheduler.emit = log
    times: dict[str, list[float]] = {name: [] for name in cores}
    gc.collect()
    gc.disable()    # a collection would land on whichever side happens to run
    try:
        for _ in range(steps):
            for name in order.sample(list(cores), len(cores)):
                times[name].append(sum(runs[name].step()))
    finally:
        gc.enable()
    return times


def measure_events(rounds: int, steps: int, advance: Advance = lambda: None) -> dict[str, Any]:
    """(c) Paired ratios of step times, against the code without events and against the code with nobody listening.

    The code as it is takes part twice, as two copies: what they differ by is the noise of the measurement.
    """
    stripped, removed = load_copy("stripped", without_events=True)
    quiet = {"stripped": stripped, "off": load_copy("off")[0], "off again": load_copy("off_again")[0]}
    heard = {"off": real_core(), "listening": real_core()}
    order = random.Random(0)
    off: list[float] = []
    again: list[float] = []
    listening: list[float] = []
    base: list[float] = []
    total = {"off": 0.0, "listening": 0.0}
    for _ in range(rounds):
        times = _interleave(quiet, steps, order)
        base += times["stripped"]
        off += [a / b for a, b in zip(times["off"], times["stripped"], strict=True)]
        again += [a / b for a, b in zip(times["off again"], times["off"], strict=True)]
        times = _interleave(heard, steps, order, listening="listening")
        listening += [a / b for a, b in zip(times["listening"], times["off"], strict=True)]
        total = {name: total[name] + sum(times[name]) for name in total}
        advance()
    return {
        "sequences": EVENT_SEQUENCES, "rounds": rounds, "steps": steps, "removed_statements": removed, "stripped_us": median(base) * 1e6,
        "off": median(off), "off_again": median(again), "listening": median(listening), "listening_mean": total["listening"] / total["off"],
    }


def measure(quick: bool, advance: Callable[[str], Advance]) -> dict[str, Any]:
    """Everything; ``advance(what)`` announces a part and returns what to call after each piece of it."""
    steps, rounds = (60, 5) if quick else (400, 40)
    result: dict[str, Any] = {"quick": quick, "block_size": BLOCK_SIZE, "prompt": PROMPT, "machine": machine()}
    result["steps"] = [measure_steps(n, steps, advance(f"steps of {counted(n, 'sequence')}")) for n in SEQUENCES]
    result["allocation"] = measure_pools(rounds, advance=advance("block allocation"))
    result["events"] = measure_events(2 if quick else 12, steps, advance("events"))
    return result


def pieces(quick: bool) -> int:
    """How often `measure` calls what ``advance`` returned."""
    steps, rounds = (60, 5) if quick else (400, 40)
    return len(SEQUENCES) * steps + rounds * len(POOLS) + (2 if quick else 12)


def tables(result: dict[str, Any]) -> list[tuple[str, Table]]:
    """The numbers as a person reads them: titles and tables."""
    steps = Table()
    for column in ("sequences", "schedule", "update", "step, median", "step, p90"):
        steps.add_column(column, justify="right")
    for row in result["steps"]:
        cells = [row["schedule"]["median_us"], row["update"]["median_us"], row["step"]["median_us"], row["step"]["p90_us"]]
        steps.add_row(str(row["sequences"]), *(f"{us:,.0f}" for us in cells))
    pools = Table()
    for column in ("blocks in the pool", "allocate", "free"):
        pools.add_column(column, justify="right")
    for row in result["allocation"]["pools"]:
        pools.add_row(f"{row['blocks']:,}", f"{row['allocate_ns']:.0f}", f"{row['free_ns']:.0f}")
    ev = result["events"]
    events = Table()
    events.add_column("")
    events.add_column("cost", justify="right")
    for name, key in (
        ("nobody listens, against events taken out of the code", "off"), ("nobody listens, against the same (the noise)", "off_again"),
        ("an EventLog listens, against nobody", "listening"), ("  with its snapshots (mean, not median)", "listening_mean"),
    ):
        events.add_row(name, f"{ev[key] - 1:+.1%}")
    ratio = result["allocation"]["ratio_largest_to_smallest"]
    return [
        ("(a) one step of the scheduler, in µs", steps),
        (f"(b) a block, in ns; the largest pool against the smallest: {ratio:.2f} x", pools),
        (f"(c) events; a step of {counted(ev['sequences'], 'sequence')} takes {ev['stripped_us']:,.0f} µs without any", events),
    ]


class _Bar:
    """A progress bar that draws between two measurements only: a thread of its own would draw in the middle of one."""

    def __init__(self, progress: Progress, total: int) -> None:
        self.progress = progress
        self.task = progress.add_task("", total=total)
        self.drawn = 0.0

    def announce(self, what: str) -> Advance:
        self.progress.update(self.task, description=what)
        return self.advance

    def advance(self) -> None:
        self.progress.advance(self.task)
        if time.monotonic() - self.drawn > 0.2 and not self.progress.disable:
            self.progress.refresh()
            self.drawn = time.monotonic()


def run(quick: bool = False, json_file: Path | None = None) -> int:
    """Measure, print, and write ``json_file`` if asked to."""
    if json_file is not None:
        writable_file("--json", json_file)
    columns = (TextColumn("{task.description:<24}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True, disable=not sys.stderr.isatty()) as progress:
        result = measure(quick, _Bar(progress, pieces(quick)).announce)
    console = Console(highlight=False)
    for title, table in tables(result):
        console.print(title, style="bold", markup=False)
        console.print(table)
    where = result["machine"]
    load = "" if where["load_average"] is None else f", load average {where['load_average']:.1f}"
    console.print(f"Python {where['python']}, {where['cpu']}, {counted(where['cpu_count'], 'CPU')}{load}", style="dim", markup=False)
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0
