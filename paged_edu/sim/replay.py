"""Running the paper's figures: jobs in several processes, one progress bar, the table of errors, JSON (`paged-edu simulate --figure`)."""
from __future__ import annotations

import gc
import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from queue import Empty
from statistics import median
from threading import Event, Thread
from typing import Any

from rich.console import Console
from rich.table import Table
from tqdm.auto import tqdm

from ..checks import integer, number, writable_file
from . import paper_view
from .panels import PANELS, crossing, published
from .paper import FIGURES, Curves, Job, jobs

THRESHOLDS = (0.2, 0.5)
"""Seconds a token at which capacities are compared."""


def _work(job: Job, scale: float, ticks: Any) -> Curves:
    gc.set_threshold(100_000, 50, 100)                      # a simulation makes small objects all the time: an eighth less of it
    return job.run(scale, lambda: ticks.put(1))


def run_jobs(chosen: Sequence[Job], scale: float = 1.0, workers: int | None = None) -> Curves:
    """All curves of some jobs, with a progress bar. ``scale``: the traces' length over the paper's. ``workers``: processes (all cores)."""
    number("--scale", scale, 0, low_open=True)
    processes = workers if workers is not None else os.cpu_count() or 1
    integer("--jobs", processes, 1, 256)
    found: Curves = {}
    context = get_context("spawn")
    longest_first = sorted(chosen, key=lambda job: -job.points)
    total = sum(job.points for job in chosen)
    with context.Manager() as manager, ProcessPoolExecutor(min(processes, len(chosen)), context) as pool, \
            tqdm(total=total, unit="point", disable=None, leave=False) as bar:
        ticks, done = manager.Queue(), Event()

        def count() -> None:
            while not done.is_set():
                try:
                    ticks.get(timeout=0.2)
                except (Empty, EOFError, OSError):
                    continue
                bar.total = max(bar.total, bar.n + 1)       # a curve may have taken more points than was thought
                bar.update(1)

        counter = Thread(target=count, daemon=True)
        counter.start()
        try:
            for future in as_completed([pool.submit(_work, job, scale, ticks) for job in longest_first]):
                for figure, curves in future.result().items():
                    found.setdefault(figure, {}).update(curves)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        finally:
            done.set()
            counter.join()
    return {figure: _ordered(figure, found[figure]) for figure in sorted(found, key=_number)}


def _number(figure: str) -> tuple[int, str]:
    digits = "".join(character for character in figure[3:5] if character.isdigit())
    return int(digits), figure


def _ordered(figure: str, curves: dict[str, Any]) -> dict[str, Any]:
    order = list(published().get(figure, {})) or [system for panel in PANELS.values() if panel.figure == figure for system in panel.systems]
    return dict(sorted(curves.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))


# -- against the paper -----------------------------------------------------------------------------------------------------------------
def capacities(curves: Curves, threshold: float) -> list[dict[str, Any]]:
    """For each system of each latency panel: the rate at which it crosses ``threshold``, ours, the paper's (None: not given), relative error."""
    rows = []
    for figure in (figure for figure in curves if figure in PANELS):
        for system, points in curves[figure].items():
            ours = crossing(points, threshold)
            paper = published().get(figure, {}).get(system)
            theirs = crossing(paper, threshold) if paper else None
            error = ours / theirs - 1 if ours is not None and theirs else None
            rows.append({"figure": figure, "system": system, "ours": ours, "paper": theirs, "error": error})
    return rows


def ratios(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """vLLM's capacity over Orca (Oracle)'s and Orca (Max)'s, from the rows of `capacities`."""
    by_name = {(row["figure"], row["system"]): row for row in rows}
    found = []
    for figure in dict.fromkeys(row["figure"] for row in rows):
        for other in ("Orca (Oracle)", "Orca (Max)"):
            mine, base = by_name.get((figure, "vLLM")), by_name.get((figure, other))
            if mine and base and mine["ours"] and base["ours"]:
                ours = mine["ours"] / base["ours"]
                paper = mine["paper"] / base["paper"] if mine["paper"] and base["paper"] else None
                found.append({"figure": figure, "over": other, "ours": ours, "paper": paper, "error": ours / paper - 1 if paper else None})
    return found


def bars(curves: Curves) -> list[dict[str, Any]]:
    """Figures that are not latencies over rate, point by point beside the paper's."""
    rows = []
    for figure, systems in curves.items():
        if figure in PANELS or figure.startswith("fig11"):
            continue
        for system, points in systems.items():
            given = {point[0]: point[1] for point in published().get(figure, {}).get(system, [])}
            for x, y in points:
                paper = given.get(x)
                rows.append({"figure": figure, "system": system, "x": x, "ours": y, "paper": paper,
                             "difference": None if paper is None else y - paper})
    return rows


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:+.0%}"


def _plain(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:,.{digits}g}"


def show(curves: Curves, console: Console) -> None:
    """The tables: capacities at 0.2 and 0.5 s/token with their errors, ratios, and what the other figures give."""
    by_threshold = [capacities(curves, threshold) for threshold in THRESHOLDS]
    if by_threshold[0]:
        table = Table(title="requests/s at which a token takes 0.2 and 0.5 s")
        for name in ("panel", "system", "ours", "paper", "error", "ours", "paper", "error"):
            table.add_column(name, justify="left" if name in ("panel", "system") else "right")
        for rows in zip(*by_threshold, strict=True):
            cells = [cell for row in rows for cell in (_plain(row["ours"]), _plain(row["paper"]), _percent(row["error"]))]
            table.add_row(f"{rows[0]['figure']} {PANELS[rows[0]['figure']].title}", rows[0]["system"], *cells)
        console.print(table)
        table = Table(title="vLLM's rate over another system's")
        for name in ("panel", "over", "at [s/token]", "ours", "paper", "error"):
            table.add_column(name, justify="left" if name in ("panel", "over") else "right")
        for threshold, rows in zip(THRESHOLDS, by_threshold, strict=True):
            for row in ratios(rows):
                table.add_row(row["figure"], row["over"], f"{threshold:g}", _plain(row["ours"]), _plain(row["paper"]), _percent(row["error"]))
        console.print(table)
        errors = [abs(row["error"]) for rows in by_threshold for row in rows if row["error"] is not None and row["system"] != "FasterTransformer"]
        if errors:
            console.print(f"median error of {len(errors)} capacities of Orca and vLLM: {median(errors):.1%}; the largest: {max(errors):.0%}")
    others = bars(curves)
    if others:
        table = Table(title="the other figures")
        for name in ("figure", "system", "x", "ours", "paper", "difference"):
            table.add_column(name, justify="left" if name in ("figure", "system") else "right")
        for row in others:
            table.add_row(row["figure"], row["system"], _plain(row["x"]), _plain(row["ours"]), _plain(row["paper"]), _plain(row["difference"]))
        console.print(table)


def run_figures(
    names: Sequence[str], json_file: Path | None = None, html_file: Path | None = None, scale: float = 1.0, workers: int | None = None,
) -> int:
    """``paged-edu simulate --figure NAME …`` or ``--all`` (all names of `FIGURES`): run, print, write."""
    for name, path in (("--json", json_file), ("--html", html_file)):
        if path is not None:
            writable_file(name, path)
    if json_file is not None and html_file is not None and json_file.resolve() == html_file.resolve():
        raise ValueError(f"--json and --html both write {json_file}")
    if html_file is not None:
        paper_view.drawable()
    curves = run_jobs(jobs(list(names) or list(FIGURES)), scale, workers)
    if json_file is not None:
        json_file.write_text(json.dumps(curves) + "\n", encoding="utf-8")
    console = Console()
    show(curves, console)
    said = "By a cost model calibrated on the paper's Fig. 1, 18a, 19a and its latencies at low load; no GPU ran."
    console.print(said + ("" if scale == 1 else f" The traces were {scale:g} of the paper's length: capacities come out higher."), style="dim")
    if html_file is not None:
        paper_view.write_html(curves, html_file)
        console.print(f"The figures: {html_file}", style="dim")
    return 0
