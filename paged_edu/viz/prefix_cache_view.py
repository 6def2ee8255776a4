"""PrefixCacheView: the tree of cached blocks; who shares which beginning, what a newcomer found, what is overwritten first (Paper §4.4)."""
from __future__ import annotations

from typing import Any

from ..trace import TraceState, history
from .figure import Traces, animated
from .layout import lay_out
from .palette import LIGHT, OUTLINE, look
from .prefix_svg import headline, hits, kept, prefix_svg, prefix_text, sections, users
from .view import View


class PrefixCacheView(View):
    """See `View`. From left to right the blocks of a text, texts with the same beginning on the same blocks; a part a salt.

    Below, the blocks that nobody uses, in the order in which they will be overwritten once no block is free.
    """

    module = "prefix"
    title = "prefix cache"

    def svg(self, state: TraceState | None = None) -> str:
        """The tree at a state, the shown one by default."""
        return prefix_svg(self._there()[0].log, self.state if state is None else state, self.decode)

    def plain(self, state: TraceState | None = None) -> str:
        """A text a line, and the order in which blocks go."""
        return prefix_text(self._there()[0].log, self.state if state is None else state)

    def figure(self) -> dict[str, Any]:
        """Blocks as squares, edges as lines, a frame a step."""
        log = self._there()[0].log
        lanes = history(log)
        axis = {"showgrid": False, "zeroline": False, "showticklabels": False, "ticks": "", "fixedrange": True}
        layout = {"height": 520, "width": 800, "xaxis": axis | {"range": [-0.6, 10.4]}, "yaxis": axis | {"range": [9, -1]},
                  "margin": {"l": 40, "r": 20, "t": 80, "b": 20}}
        return animated(log, self.shown, prefix_traces, lambda state: f"step {state.step}: {headline(state)}<br>{hits(lanes, state)}", layout)


def prefix_traces(state: TraceState) -> Traces:
    """Edges, blocks (letters of the users, or of whose text it is in brackets, and the id), and the strip of cached blocks as text."""
    used = users(state)
    x: list[float | None] = []
    y: list[float | None] = []
    at: list[tuple[float, float]] = []
    words, hues = [], []
    top = 0
    names: list[tuple[float, float, str]] = []
    for salt, paths in sections(state):
        if salt is not None:
            names.append((-0.4, top - 0.45, f"salt {salt!r}"))
        tree = lay_out(kept(paths, state), 8)
        spots = [(float(cell.column), top + cell.row) for cell in tree.cells]
        for a, b in tree.edges:
            x += [spots[a][0], spots[b][0] - 0.5, spots[b][0] - 0.5, spots[b][0], None]
            y += [spots[a][1], spots[a][1], spots[b][1], spots[b][1], None]
        for cell in tree.cells:
            arrivals, by = used.get(cell.block, []), state.entered_by.get(cell.block)
            who = "".join(look(a).letter for a in arrivals[:3]) or (f"({look(by).letter})" if by is not None else "")
            words.append(f"{who}<br>{cell.block}")
            hues.append(look(arrivals[0]).hue + "B0" if arrivals else look(by).hue + "30" if by is not None else OUTLINE + "30")
        at += spots
        top += len(tree.order) + (1 if tree.order else 0)
    cached = state.cached_blocks()
    strip = f"overwritten first: {' '.join(map(str, cached[:22]))}" if cached else "no cached block waits to be overwritten"
    names.append((-0.4, 8.6, strip))
    hidden = {"hoverinfo": "skip", "type": "scatter"}
    return [
        {**hidden, "mode": "lines", "x": x, "y": y, "line": {"color": LIGHT.muted, "width": 1.3}},
        {**hidden, "mode": "markers+text", "x": [p[0] for p in at], "y": [p[1] for p in at], "text": words,
         "textfont": {"size": 10, "color": LIGHT.ink},
         "marker": {"symbol": "square", "size": 34, "color": hues, "line": {"width": 1, "color": LIGHT.ink}}},
        {**hidden, "mode": "text", "x": [n[0] for n in names], "y": [n[1] for n in names], "text": [n[2] for n in names],
         "textposition": "middle right", "textfont": {"size": 12, "color": LIGHT.ink}},
    ]
