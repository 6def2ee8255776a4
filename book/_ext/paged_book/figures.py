"""The paper's figures, replayed: plots and tables of errors from ``data/sim`` and ``data/bench/paper.json``, beside the paper's own points."""
from __future__ import annotations

import io
from statistics import median

from rich.console import Console

from paged_edu.bench import paper_view as bench_view
from paged_edu.sim import paper_view, replay, watching
from paged_edu.sim.panels import PANELS, published, replayed
from paged_edu.viz import LatencyCurves
from paged_edu.viz.page import mount_html

from .plots import plot
from .tables import paragraph, pre, stored, table, where

ROWS = (("fig12a", "fig12b"), ("fig12c", "fig12d"), ("fig12e", "fig12f"), ("fig14a", "fig14d"), ("fig14b", "fig14e"), ("fig14c", "fig14f"),
        ("fig16a", "fig16b"), ("fig17",))
OTHERS = (("fig1_memory", "fig1_throughput"), ("fig2",), ("fig13a", "fig13b"), ("fig15a", "fig15b"), ("fig18b",), ("fig19a", "fig19b"))
HALVES = ("at 0.2: ours", "paper", "error", "at 0.5: ours", "paper", "error")
SYSTEMS_LEFT_OUT = "FasterTransformer"
"""Its curve has no knee, so its capacity is whatever the threshold makes it; see lesson 11."""


def curves() -> str:
    """Fig. 12a with a threshold to drag and runs behind the points."""
    runs = watching.stored()
    view = LatencyCurves(
        "OPT-13B, ShareGPT (Fig. 12a)", {system: [[run.rate, run.latency] for run in found] for system, found in runs.items()},
        {system: published()["fig12a"][system] for system in runs}, runs, name="the curves of the book")
    try:
        return f'<div class="pe-wide-view">{mount_html(view)}</div>'
    finally:
        view.close()


def _row(names: tuple[str, ...]) -> str:
    there = {name: replayed()[name] for name in names if name in replayed()}
    if not there:
        return ""
    said = "; ".join(f"{name.replace('fig', 'Fig. ')}{': ' + PANELS[name].title if name in PANELS else ''}" for name in there)
    drawn = paper_view.figure(there)
    drawn.update_layout(height=470, margin={"t": 50, "b": 130, "l": 60, "r": 20}, legend={"y": -0.28, "yanchor": "top"}, title_font_size=14)
    return plot(drawn, f"{said}. Lines are ours, open marks the paper's points")


def latency() -> str:
    """Latency over request rate: every panel of Fig. 12, 14, 16 and 17."""
    return "".join(_row(names) for names in ROWS)


def others() -> str:
    """The figures that are no curves over request rate, whatever the simulator has of them."""
    known = {name for names in (*ROWS, *OTHERS) for name in names}
    rest = tuple(name for name in replayed() if name not in known and not name.startswith("fig11"))
    return "".join(_row(names) for names in (*OTHERS, *(rest[i : i + 2] for i in range(0, len(rest), 2))))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.3g}"


def _error(value: float | None) -> str:
    return "" if value is None else f"{value:+.0%}"


def capacities() -> str:
    """Requests a second at which a token takes 0.2 and 0.5 s, ours and the paper's."""
    found = [replay.capacities(replayed(), threshold) for threshold in replay.THRESHOLDS]
    rows = [(first["figure"].replace("fig", ""), PANELS[first["figure"]].title, first["system"],
             *(cell for row in (first, second) for cell in (_number(row["ours"]), _number(row["paper"]), _error(row["error"]))))
            for first, second in zip(*found, strict=True)]
    compared = [row for part in found for row in part if row["error"] is not None and row["system"] != SYSTEMS_LEFT_OUT]
    errors, worst = [abs(row["error"]) for row in compared], max(compared, key=lambda row: abs(row["error"]))
    headings = ("Fig.", "panel", "system", *HALVES)
    said = (
        f"Of {len(errors)} capacities of Orca and vLLM that can be compared, half are off by at most {median(errors):.1%}; the largest error is "
        f"{max(errors):.0%} ({worst['figure'].replace('fig', 'Fig. ')}, {worst['system']}). A dash: the curve never crosses, or that panel's points "
        "were not looked at.")
    return paragraph(said) + table(headings, rows, "Requests a second at which a token takes 0.2 s and 0.5 s", words=3)


def ratios() -> str:
    """vLLM's rate over another's, the numbers that are quoted."""
    found: dict[tuple[str, str], dict[float, dict[str, float | None]]] = {}
    for threshold in replay.THRESHOLDS:
        for row in replay.ratios(replay.capacities(replayed(), threshold)):
            found.setdefault((row["figure"].replace("fig", ""), row["over"]), {})[threshold] = row
    rows = []
    for (figure, over), by_threshold in found.items():
        both = [by_threshold.get(threshold, {}) for threshold in replay.THRESHOLDS]
        cells = ((_number(row.get("ours")), _number(row.get("paper")), _error(row.get("error"))) for row in both)
        rows.append((figure, over, *(cell for three in cells for cell in three)))
    return table(("Fig.", "vLLM's rate over that of", *HALVES), rows, "Ratios of capacities, at 0.2 and 0.5 s/token", words=2)


def differences() -> str:
    """The other figures point by point."""
    rows = [(row["figure"].replace("fig", ""), row["system"], *(_number(row[key]) for key in ("x", "ours", "paper", "difference")))
            for row in replay.bars(replayed())]
    return table(("Fig.", "system", "x", "ours", "paper", "difference"), rows, "The other figures, point by point", words=2)


def engine() -> str:
    """The same figures, small, from the real engine."""
    made = []
    for path, result in stored("fig12", "speed"):
        text = io.StringIO()
        bench_view.show(result, list(bench_view.DRAWN), Console(file=text, width=92, highlight=False, color_system=None))
        made += [paragraph(f"{where(result)}; model {result['options']['model']}. Stored in {path}.", small=True), pre(text.getvalue())]
    return "".join(made)
