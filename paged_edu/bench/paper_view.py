"""The numbers of `paged-edu bench paper` as a person reads them: a table a figure beside the paper's numbers, and what to see in it."""
from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console

from ..words import counted
from . import stored
from .memory import PAPER_FIG2, PAPER_RUNNING
from .memory_view import NAMES, memory_table, new_table, same_tokens, serving_table
from .paper_numbers import FIG12_RATES, FIG15, FIG18B, FIG19A
from .paper_swap import WAYS, crossing

BEND = 2.0
"""A system's queue has begun to grow where its latency is that many times the lowest that anybody has."""


def show(result: dict[str, Any], figures: Sequence[str], console: Console | None = None) -> None:
    """Print ``figures`` of what was measured, in 80 columns; those that are not there are left out, and named."""
    console = console or Console(highlight=False)
    speed, machine = result["speed"], result["machine"]
    if "requests_per_s" in speed:
        console.print(
            f"{result['options']['model']} on {speed['device']}, {machine['cpu']}, {machine['date']}: {speed['tokens_per_s']:.0f} tokens/s, "
            f"{speed['requests_per_s']:.1f} requests/s with a batch of {speed['running']:.0f}", markup=False,
        )
    absent = []
    for name in figures:
        key, title, draw = DRAWN[name]
        if not result.get(key, {}).get("rows"):
            absent.append(name)
            continue
        console.print(f"\n{title}", style="bold", markup=False)
        draw(result[key], console)
    if absent:
        console.print(f"\nnot measured: {', '.join(absent)}", markup=False)


def _say(console: Console, text: str) -> None:
    console.print(text, style="dim", markup=False)


# -- Fig. 2 and 13 ---------------------------------------------------------------------------------------------------------------------
def _fig2(part: dict[str, Any], console: Console) -> None:
    console.print(f"{_scaled(part)}; {_pool(part)}", markup=False)
    console.print(memory_table(part, PAPER_FIG2 if part["dataset"] == "sharegpt" else {}))
    _say(console, "See how little of what is reserved holds tokens, and that paging leaves empty a part of each last block only. No machine changes "
                  "these shares: on an A100 only pool and lengths are larger.")


def _fig13(part: dict[str, Any], console: Console) -> None:
    console.print(f"{_scaled(part)}; {_pool(part)}", markup=False)
    console.print(serving_table(part, PAPER_RUNNING[part["dataset"]]))
    if "same_tokens_as_paged" in part["rows"][0]:
        console.print(same_tokens(part), markup=False)
    _say(console, "See the same requests done in fewer steps, because more of them run in each. On an A100 a step hardly takes longer for it; on a "
                  "processor it does, which Fig. 12 shows.")


def _pool(part: dict[str, Any]) -> str:
    """How large the pool is, and which part of the paper's, scaled, that is."""
    pool = "the paper's pool" if part["pool"] == 1 else f"{part['pool']:g} of the paper's pool"
    return f"{pool}: {part['num_blocks']} blocks of {part['block_size']} slots"


def _scaled(part: dict[str, Any]) -> str:
    return f"{counted(part['requests'], 'request')}, {part['dataset']} lengths scaled to {part['max_model_len']} positions"


# -- Fig. 12 ---------------------------------------------------------------------------------------------------------------------------
def _fig12(part: dict[str, Any], console: Console) -> None:
    console.print(f"{_scaled(part)}; {_pool(part)}", markup=False)
    managers = [name for name in NAMES if any(row["manager"] == name for row in part["rows"])]
    short = [NAMES[name].removeprefix("Orca ") for name in managers]
    table = new_table("load", *(f"{name},\ns/token" for name in short), *(f"{name},\nbatch" for name in short))
    cells = {(row["manager"], row["rate"]): row for row in part["rows"]}
    whole = (part["capacity_beside"] or {}).get("requests_per_s")
    for rate in [*sorted({row["rate"] for row in part["rows"]} - {None}), None]:
        rows = [cells.get((name, rate)) for name in managers]
        label, share = ("all at once", "") if rate is None else (f"{rate:.1f}/s", f"{rate / whole:.0%}" if whole else "")
        table.add_row(label, share, *_numbers(rows, "normalized_latency", ".3f"), *_numbers(rows, "running", ".1f"))
    console.print(table)
    _capacities(part, console)
    _bends(part, managers, console)
    _say(console, "See latency rise first where the fewest requests run at once: the others queue for memory. The paper's A100 decodes 30 sequences "
                  "in little more time than 7; on a processor every sequence adds to a step, so a larger batch wins by less.")


def _numbers(rows: Sequence[Mapping[str, Any] | None], name: str, form: str) -> list[str]:
    return ["" if row is None else format(row[name], form) for row in rows]


def _capacities(part: dict[str, Any], console: Console) -> None:
    capacity, beside = part["capacity"], part["capacity_beside"]
    if "paged" not in capacity or "orca-max" not in capacity:
        return
    said = ", ".join(f"{NAMES[name]} {capacity[name]['requests_per_s']:.1f}" for name in NAMES if name in capacity)
    times = capacity["paged"]["requests_per_s"] / capacity["orca-max"]["requests_per_s"]
    console.print(f"Requests served a second while others wait: {said}; paging {times:.1f} times Orca Max.", markup=False)
    if beside is not None:
        console.print(f"Load is the rate over what paging could serve in those minutes, {beside['requests_per_s']:.1f}.", markup=False)


def bend(rows: Sequence[Mapping[str, Any]], manager: str) -> str:
    """Where a system's latency crosses `BEND` times the lowest of all, in requests a second, on lines between the points."""
    level = BEND * min(row["normalized_latency"] for row in rows)
    own = sorted((row["rate"], row["normalized_latency"]) for row in rows if row["manager"] == manager and row["rate"] is not None)
    if not own:
        return "not measured"
    if own[0][1] > level:
        return f"below {own[0][0]:.1f}"
    for (low, below), (high, above) in pairwise(own):
        if below <= level < above:
            return f"{low + (high - low) * (level - below) / (above - below):.1f}"
    return f"above {own[-1][0]:.1f}"


def _bends(part: dict[str, Any], managers: Sequence[str], console: Console) -> None:
    found = ", ".join(f"{NAMES[name]} {bend(part['rows'], name)}" for name in managers)
    console.print(f"Requests/s at which latency is {BEND:g} times the lowest: {found}.", markup=False)
    paper = ", ".join(f"{NAMES[name]} {FIG12_RATES[name]:.2f}" for name in managers)
    times = FIG12_RATES["paged"] / FIG12_RATES["orca-max"]
    console.print(f"Paper, Fig. 12a, requests/s at 0.5 s/token: {paper}; paging {times:.1f} times Orca Max.", markup=False)


# -- Fig. 15 ---------------------------------------------------------------------------------------------------------------------------
def _fig15(part: dict[str, Any], console: Console) -> None:
    kind = "alpaca's own lengths" if part["scale"] == 1 else f"alpaca lengths and blocks over {part['scale']}"
    console.print(f"{counted(part['requests'], 'request')}, {kind}, blocks of {part['block_size']} slots, prefix cache off", markup=False)
    table = new_table("saved, mean\nof the steps", "low-\nhigh", "saved, of\nall steps", "paper,\nFig. 15")
    for row in part["rows"]:
        saved = row["saving"]
        name = f"{row['n']} samples" if row["how"] == "sampling" else f"{row['n']} beams"
        table.add_row(name, f"{saved['mean']:.1%}", f"{100 * saved['min']:.0f}-{100 * saved['max']:.0f}", f"{row['saving_of_the_whole_run']:.1%}",
                      f"{FIG15[row['how'], row['n']]:.1%}" if (row["how"], row["n"]) in FIG15 else "")
    console.print(table)
    _say(console, "Blocks that sharing saves, of those that there would be without it. See beams save far more than samples: these share the prompt "
                  "only, beams what they have written as well. The machine plays no part; model, prompts and the few requests do.")


# -- Fig. 18b --------------------------------------------------------------------------------------------------------------------------
def _fig18b(part: dict[str, Any], console: Console) -> None:
    console.print(f"{_scaled(part)}, {part['num_slots']} slots, {part['rate']:.1f} requests/s", markup=False)
    table = new_table("s/token", "at once", "preemp-\ntions", f"step of {part['batch']},\nms", "paper, Fig. 18b\ns/token")
    for row in sorted(part["rows"], key=lambda row: row["block_size"]):
        step = part["steps"].get(str(row["block_size"]))
        paper = FIG18B.get(row["block_size"])
        table.add_row(f"blocks of {row['block_size']}", f"{row['normalized_latency']:.3f}", f"{row['running']:.1f}", f"{row['preemptions']}",
                      "" if step is None else f"{step['median_ms']:.1f}", "" if paper is None else f"{paper:.3f}")
    console.print(table)
    _say(console, f"See latency rise where blocks are so large that few sequences fit: no sequence has more than {part['max_model_len']} tokens "
                  "here, so the largest blocks are slabs (the paper's have up to 2048). Small blocks cost the paper's kernel dearly on an A100; the "
                  "reference backend gathers a sequence's blocks in one operation, whatever their size: compare the steps.")


# -- Fig. 19 ---------------------------------------------------------------------------------------------------------------------------
def _fig19(part: dict[str, Any], console: Console) -> None:
    console.print(f"a sequence of {part['tokens']} tokens, medians of {counted(part['rows'][0]['recompute']['runs'], 'run')}", markup=False)
    table = new_table("recompute,\nms", "swap in,\nms", "swap out,\nms", "recompute /\n(in + out)", "paper,\nFig. 19a")
    for row in part["rows"]:
        again, *both = (row[way]["median_ms"] for way in WAYS)
        paper = FIG19A.get(row["block_size"])
        table.add_row(f"blocks of {row['block_size']}", f"{again:.1f}", *(f"{ms:.2f}" for ms in both), f"{again / sum(both):.1f}",
                      "" if paper is None else f"{paper[0] / sum(paper[1:]):.2f}")
    console.print(table)
    where = crossing(part["rows"])
    if where is None:
        console.print("Recomputing is the faster way at every block size.", markup=False)
    elif where == min(row["block_size"] for row in part["rows"]):
        console.print("Swapping is the faster way at every block size: there is no crossing point.", markup=False)
    else:
        console.print(f"Swapping is the faster way from blocks of {where} on.", markup=False)
    for row in part["served"]:
        swapped = f", {counted(row['swapped_blocks'], 'block')} out" if row["mode"] == "swap" else ""
        preempted = counted(row["preemptions"], "preemption")
        console.print(f"In a sixth of the pool, {row['mode']}: {row['normalized_latency']:.3f} s/token, {preempted}{swapped}", markup=False)
    if part["same_tokens"] is not None:
        console.print(f"Requests with the same tokens both ways: {part['same_tokens']} of {part['requests']}", markup=False)
    _say(console, "See recomputing cost the same at every block size. On a processor both caches are host memory: a swap is a short copy, and a "
                  "prompt step takes many times as long. An A100 computes fast and its bus is slow, above all in small pieces: there the ways cross.")


Draw = Callable[[dict[str, Any], Console], None]
DRAWN: dict[str, tuple[str, str, Draw]] = {
    "fig2": ("memory", "Fig. 2: what the KV cache holds", _fig2), "fig12": ("fig12", "Fig. 12: normalized latency against request rate", _fig12),
    "fig13": ("memory", "Fig. 13: requests at once", _fig13), "fig15": ("fig15", "Fig. 15: blocks saved by sharing", _fig15),
    "fig18b": ("fig18b", "Fig. 18b: block size", _fig18b), "fig19": ("fig19", "Fig. 19: swapping against recomputing", _fig19),
}


def loaded(path: Path) -> dict[str, Any]:
    """What an earlier run wrote. Raises ValueError for another file, OSError where there is none."""
    def drawn(result: dict[str, Any]) -> None:
        show(result, tuple(DRAWN), Console(file=io.StringIO(), width=80))
        if not any(result.get(key, {}).get("rows") for key, _, _ in DRAWN.values()):
            raise ValueError

    return stored.load(path, "bench paper", drawn)

