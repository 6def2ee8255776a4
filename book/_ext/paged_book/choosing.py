"""The page about choosing: block sizes, what fits on a card, and what other cards and lengths would change, from the package's own views."""
from __future__ import annotations

from html import escape

from paged_edu.sim.block_sizes import WORKLOADS
from paged_edu.viz.block_size_view import BlockSizeView
from paged_edu.viz.memory_budget import MemoryBudget
from paged_edu.viz.what_if_view import WhatIf

from .plots import described, plot


def block_sizes() -> str:
    """The slider over nine block sizes, for each workload that the simulator has run."""
    made = []
    for i, (name, workload) in enumerate(WORKLOADS.items()):
        view = BlockSizeView(name, name=f"the book's block sizes {name}")
        svg = view.svg()
        made.append(f'<details class="pe-fold"{"" if i else " open"}><summary>{escape(workload.label)}</summary>'
                    f"{plot(view.figure(), described(svg), svg)}</details>")
        view.close()
    return "".join(made)


def budget() -> str:
    """Weights, cache and the rest of a card, for some models."""
    view = MemoryBudget()
    svg = view.svg()
    return plot(view.figure(), described(svg), svg)


def what_if() -> str:
    """Sliders over a simulated server."""
    view = WhatIf(name="the book's what if")
    try:
        svg = view.svg()
        return plot(view.figure(), described(svg), svg)
    finally:
        view.close()
