"""What `paged-edu simulate` shows: progress, tables, files."""
from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from tqdm.auto import tqdm

from .. import checks
from ..words import counted
from . import capacity
from .presets import GIB, GPUS, MODELS, PAPER_SERVERS
from .simulate import DATASET, SECONDS, Load, Options, as_json, find_capacity, simulate

_MODEL_NOTE = "By a cost model calibrated on the paper's Fig. 1, 18a, 19a and its low-load latencies; no GPU ran."


def run(options: Options, json_file: Path | None = None, perfetto: Path | None = None) -> int:
    """Simulate with a progress bar, print a table, write files."""
    for name, file in (("--json", json_file), ("--perfetto", perfetto)):
        if file is not None:
            checks.writable_file(name, file)
    if json_file is not None and perfetto is not None and json_file.resolve() == perfetto.resolve():
        raise ValueError(f"--json and --perfetto both write {json_file}")
    load = Load(options)
    if perfetto is not None and (options.capacity or len(options.kv_managers) * len(load.rates) > 1):
        found = "a search for the capacity" if options.capacity else f"{len(options.kv_managers)} managers x {counted(len(load.rates), 'rate')}"
        raise ValueError(f"--perfetto shows one run, not {found}: give one --kv-manager and one --rate")
    rows = _find_capacities(options, load) if options.capacity else _simulate(options, load, perfetto)
    console = Console()
    console.print((_capacity_table if options.capacity else _rate_table)(options, load, rows))
    for line in _notes(options, load, rows):
        _say(console, line)
    if json_file is not None:
        skipped = {} if load.trace is None else {"trace": {"rows": load.trace.num_rows, "skipped": load.trace.skipped}}
        json_file.write_text(json.dumps({"options": as_json(options), **skipped, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    if perfetto is not None:
        _say(console, f"{perfetto}: {perfetto.stat().st_size / 1e6:,.1f} MB, for ui.perfetto.dev")
    return 0


def _say(console: Console, line: str) -> None:
    console.print(line, style="dim", highlight=False, markup=False)


def _simulate(options: Options, load: Load, perfetto: Path | None) -> list[dict[str, Any]]:
    total = sum(len(load.at(rate)) for rate in load.rates) * len(options.kv_managers)
    with tqdm(total=total, unit="request", disable=None, leave=False) as bar:
        return simulate(options, bar.update, load, perfetto)


def _find_capacities(options: Options, load: Load) -> list[dict[str, Any]]:
    rows = []
    with tqdm(unit="request", disable=None, leave=False) as bar:
        for kv_manager in options.kv_managers:
            def trying(rate: float, kv_manager: str = kv_manager) -> None:
                bar.set_description(f"{kv_manager}, {rate:.3g} requests/s")

            found = find_capacity(options, kv_manager, bar.update, trying, load)
            rows.append({"kv_manager": kv_manager, **asdict(found)})
    return rows


def _title(options: Options, load: Load) -> str:
    if load.trace is None:
        what = f"{options.dataset or DATASET}, {options.seconds or SECONDS:g} s of arrivals"
    else:
        what = f"{load.options.trace.name if load.options.trace else ''}, {counted(len(load.trace.arrivals), 'request')}"
    samples = f", {options.n} {'beams' if options.beam else 'samples'}" if options.n > 1 else ""
    return f"{options.model} on {options.gpus} x {options.gpu}, {options.server.num_slots:,} slots, {what}{samples}"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=Text(title))
    for name in columns:
        table.add_column(name, justify="left" if name in _LEFT else "right", no_wrap=name in ("model", "card", "manager"))
    return table


_LEFT = ("manager", "limit", "card", "model", "in the paper")


def _rate_table(options: Options, load: Load, rows: list[dict[str, Any]]) -> Table:
    table = _table(_title(options, load), "requests/s", "manager", "s/token", "running", "preempted", "done after [s]")
    for row in rows:
        table.add_row(f"{row['rate']:.4g}", row["kv_manager"], f"{row['normalized_latency']:.3f}", f"{row['running']:.1f}",
                      f"{row['preemptions']:,}", f"{row['seconds']:,.0f}")
    return table


def _capacity_table(options: Options, load: Load, rows: list[dict[str, Any]]) -> Table:
    metric = options.metric or "normalized"
    latency = {"normalized": "s/token", "mean": "mean [s]", "p99": "p99 [s]"}[metric]
    table = _table(_title(options, load), "manager", "requests/s", latency, "running", "preempted", "limit")
    for row in rows:
        table.add_row(row["kv_manager"], f"{row['rate']:.3g}", f"{row['latency']:.3g}", f"{row['running']:.1f}", f"{row['preemptions']:,}",
                      row["binds"])
    return table


_REASONS = {
    "memory": "a little above that rate, requests wait for blocks", "places": "they wait for one of the 256 places of a batch",
    "compute": "the steps themselves take too long", capacity.ALONE: "a request takes longer even by itself",
}


def _notes(options: Options, load: Load, rows: list[dict[str, Any]]) -> list[str]:
    lines = []
    if options.capacity:
        metric = options.metric or "normalized"
        what = {"normalized": "latency over output tokens, mean,", "mean": "the mean latency", "p99": "99 of 100 latencies"}[metric]
        limit = f"{options.threshold or capacity.THRESHOLD:g} {capacity.METRICS[metric]}"
        lines.append(f"Holds: the highest rate with {what} within {limit}, to {capacity.TOLERANCE * 100:g} %. {_MODEL_NOTE}")
        lines += [f"{name}: {_REASONS[name]}." for name in dict.fromkeys(row["binds"] for row in rows)]
    else:
        lines.append(f"s/token: mean of latency over output tokens. {_MODEL_NOTE}")
    if load.trace is not None and load.trace.skipped:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in load.trace.skipped.items())
        lines.append(f"Left out of {counted(load.trace.num_rows, 'request')}: {reasons}.")
    outgrew = max((row.get("outgrew_pool", 0) for row in rows), default=0)
    if outgrew:
        lines.append(f"{counted(outgrew, 'request')} outgrew the whole pool, alone, and ended early: they count in no latency.")
    return lines


# -- what is known -----------------------------------------------------------------------------------------------------------------
def show_presets() -> int:
    """The two tables of `presets`."""
    papers_cards = {chosen.gpu.name for chosen in PAPER_SERVERS.values()}
    cards = _table("cards (--gpu)", "card", "TFLOP/s", "GB/s", "memory [GiB]", "host link [GB/s]", "in the paper")
    for gpu in GPUS.values():
        cards.add_row(gpu.name, f"{gpu.flops / 1e12:,.0f}", f"{gpu.bandwidth / 1e9:,.0f}", f"{gpu.memory / GIB:,.0f}", f"{gpu.link / 1e9:,.0f}",
                      "yes" if gpu.name in papers_cards else "")
    models = _table("models (--model)", "model", "layers", "hidden", "heads", "x 10^9", "GiB", "KiB/token", "length")
    for model in MODELS.values():
        heads = f"{model.num_heads}" if model.num_heads == model.num_kv_heads else f"{model.num_heads}/{model.num_kv_heads}"
        models.add_row(model.name, str(model.num_layers), f"{model.hidden_size:,}", heads, f"{model.num_parameters / 1e9:.4g}",
                       f"{model.weight_bytes / GIB:.1f}", f"{model.kv_bytes_per_token / 1024:,.4g}", f"{model.max_model_len:,}")
    console = Console()
    console.print(cards)
    _say(console, "Peak rates for dense float16; one direction of the host link.")
    console.print(models)
    _say(console, "x 10^9: parameters; GiB of weights; KiB of KV cache a token; length: of the longest sequence, in tokens.")
    _say(console, "The paper's servers, with its slots of KV cache:")
    for name, paper in PAPER_SERVERS.items():
        _say(console, f"  {name} on {paper.num_gpus} x {paper.gpu.name}: {paper.num_slots:,}")
    return 0
