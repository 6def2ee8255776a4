"""ForkTreeView: the branches of a request over the blocks that they share; forks, reference counts and the copy before a write (Paper §4.4)."""
from __future__ import annotations

from typing import Any

from ..trace import TraceState, history
from .figure import Traces, animated
from .fork_svg import MOST_ROWS, Family, family, fork_svg, fork_text, headline
from .layout import lay_out
from .palette import LIGHT, look
from .request_view import RequestView


class ForkTreeView(RequestView):
    """See `View`; ``request``: whose branches, by its id. By default the newest request that has several; a click on a letter elsewhere chooses.

    Samples and beams are numbered from 0 in the order in which they came; a beam that goes on twice is a branch and a new one that forked from it.
    """

    module = "forks"
    title = "branches"

    def svg(self, state: TraceState | None = None) -> str:
        """The tree at a state, the shown one by default."""
        return fork_svg(self._there()[0].log, self.state if state is None else state, self.request)

    def plain(self, state: TraceState | None = None) -> str:
        """A branch a line."""
        return fork_text(self._there()[0].log, self.state if state is None else state, self.request)

    def options(self) -> dict[str, Any]:
        return {"request": self.request}

    def figure(self) -> dict[str, Any]:
        """Blocks as squares, edges as lines, copies as a marker trace; a frame a step."""
        log = self._there()[0].log
        lanes = history(log)

        def traces(state: TraceState) -> Traces:
            return fork_traces(family(log, state, self.request, lanes))

        def title(state: TraceState) -> str:
            return f"step {state.step}: {headline(family(log, state, self.request, lanes))}"

        axis = {"showgrid": False, "zeroline": False, "showticklabels": False, "ticks": "", "fixedrange": True}
        layout = {"height": 520, "width": 800, "xaxis": axis | {"range": [-0.6, 10.2]}, "yaxis": axis | {"range": [9, -1]}}
        return animated(log, self.shown, traces, title, layout)


def fork_traces(found: Family | None) -> Traces:
    """Edges, blocks (id and ×n), branch numbers at the right, and rings around what was copied; eight columns wide."""
    paths = dict(sorted(found.paths().items())[:MOST_ROWS]) if found is not None else {}
    tree = lay_out(paths, 8)
    step = min(1.0, 9 / max(1, len(tree.order)))
    at = [(cell.column, cell.row * step) for cell in tree.cells]
    x: list[float | None] = []
    y: list[float | None] = []
    for a, b in tree.edges:
        x += [at[a][0], at[b][0] - 0.5, at[b][0] - 0.5, at[b][0], None]
        y += [at[a][1], at[a][1], at[b][1], at[b][1], None]
    owner = look(found.lane.arrival) if found is not None else look(0)
    refs = found.refs if found is not None else {}
    words = [f"{cell.block}<br><b>×{refs[cell.block]}</b>" if refs.get(cell.block, 0) > 1 else str(cell.block) for cell in tree.cells]
    copied = {block for pair in found.copies for block in pair} if found is not None else set()
    rings = [place for place, cell in zip(at, tree.cells, strict=True) if cell.block in copied]
    names = [f"branch {found.numbers[key]}" for key in tree.order] if found is not None else []
    side = 34 if step == 1 else 18
    hidden = {"hoverinfo": "skip", "type": "scatter"}
    return [
        {**hidden, "mode": "lines", "x": x, "y": y, "line": {"color": LIGHT.muted, "width": 1.3}},
        {**hidden, "mode": "markers+text", "x": [p[0] for p in at], "y": [p[1] for p in at], "text": words,
         "textfont": {"size": 10, "color": owner.on_hue},
         "marker": {"symbol": "square", "size": side, "color": owner.hue, "line": {"width": 1, "color": LIGHT.ink}}},
        {**hidden, "mode": "markers+text", "x": [p[0] for p in rings], "y": [p[1] for p in rings], "text": ["copy"] * len(rings),
         "textposition": "top right", "textfont": {"size": 11, "color": LIGHT.ink},
         "marker": {"symbol": "square-open", "size": side + 6, "color": LIGHT.ink, "line": {"width": 3, "color": LIGHT.ink}}},
        {**hidden, "mode": "text", "x": [len(tree.columns) + 0.1] * len(names), "y": [r * step for r in range(len(names))], "text": names,
         "textposition": "middle right", "textfont": {"size": 11, "color": LIGHT.ink}},
    ]
