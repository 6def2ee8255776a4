"""Lessons' views that play in the book with the package's own JavaScript: the run is made again while the book is built.

A stored output holds a view's figure and picture, not the events of its run. Where a run takes no model (or its words do not matter), it is cheap to
repeat: the functions below make the same view, and `player` compares its text with what the notebook stores, so the page cannot show another run
than the lesson speaks of. All other views are shown as their plotly figures.
"""
from __future__ import annotations

import ast
import json
from collections.abc import Callable
from functools import cache
from typing import Any

from paged_edu.sim import panels, watching
from paged_edu.viz import EngineStepper, FragmentationView, LatencyCurves
from paged_edu.viz.fake_engine import trace24
from paged_edu.viz.page import mount_html
from paged_edu.viz.race import engine as racing_engine
from paged_edu.viz.view import View

from .assets import ROOT


class DiffersError(ValueError):
    """The view that was made again says something else than the notebook."""


def _to_the_end(view: View, step: int) -> View:
    while view.live == "unfinished":
        view.step()
    view.seek(step)
    return view


def two_runs(step: int) -> View:
    """Lesson 00: slabs against blocks. The lesson has a model; the same requests without one take the same places."""
    engines = {"slabs": trace24().engine("orca-max"), "paged": trace24().engine()}
    return _to_the_end(EngineStepper.compare(engines, name=f"the book's tour {step}"), step)


def four_managers() -> View:
    """Lesson 02."""
    managers = {"Max": "orca-max", "Pow2": "orca-pow2", "Oracle": "orca-oracle", "paged": "paged"}
    engines = {name: trace24().engine(manager) for name, manager in managers.items()}
    return _to_the_end(FragmentationView.of(engines, name="the book's four managers"), 31)


def seen() -> View:
    """Lesson 11: Fig. 12a with its runs."""
    runs = watching.stored()
    curves = {system: [[run.rate, run.latency] for run in found] for system, found in runs.items()}
    paper = {system: panels.published()["fig12a"][system] for system in runs}
    return LatencyCurves("OPT-13B, ShareGPT (Fig. 12a)", curves, paper, runs, name="the book's lesson 11")


def unseen() -> View:
    """Lesson 11: a panel that nobody had looked at."""
    ours = {system: panels.replayed()["fig12f"][system] for system in ("Orca (Max)", "Orca (Pow2)", "Orca (Oracle)", "vLLM")}
    return LatencyCurves("OPT-175B, Alpaca (Fig. 12f), not seen before", ours, threshold=0.2, name="the book's unseen panel")


def race() -> View:
    """Lesson 13: two policies, which are the notebook's own classes."""
    first, shortest = (_class_of("13_your_turn", name) for name in ("FirstCome", "ShortestPrompt"))
    view = EngineStepper.compare(
        {"first come": racing_engine(first()), "shortest prompt": racing_engine(shortest())}, ["timeline"], name="the book's race",
        fill=lambda server: server.add(trace24().requests))
    return _to_the_end(view, 10_000)


def _class_of(lesson: str, name: str) -> Any:
    """A class that a notebook defines."""
    for cell in json.loads((ROOT / "notebooks" / f"{lesson}.ipynb").read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and f"class {name}:" in source:
            node = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == name)
            names: dict[str, Any] = {}
            exec(compile(ast.Module([node], []), f"{lesson}, {cell['id']}", "exec"), names)
            return names[name]
    raise LookupError(f"lesson {lesson} has no class {name}")


PLAYERS: dict[str, Callable[[], View]] = {
    "00-two-runs": lambda: two_runs(1), "00-preempted": lambda: two_runs(13), "02-rows": four_managers, "11-10": seen, "11-24": unseen,
    "13-11": race,
}
"""Cell -> the function that makes its view again."""


@cache
def player(cell: str, stored: str) -> str | None:
    """The HTML of a cell's player; None for a cell that has none. Raises DiffersError if the view does not say what the notebook stores."""
    if cell not in PLAYERS:
        return None
    view = PLAYERS[cell]()
    try:
        said = f"{view.plain()}\n{view.sentence}"
        if said.split() != stored.split():
            raise DiffersError(f"cell {cell}: the notebook stores {stored[:300]!r}, the book's player says {said[:300]!r}")
        return f'<div class="pe-player">{mount_html(view)}<script type="module" src="../_static/views.js"></script></div>'
    finally:
        view.close()
