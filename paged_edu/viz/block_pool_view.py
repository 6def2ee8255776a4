"""BlockPoolView: the block pool of a running engine or of a recording, every physical block of it (Paper Fig. 6, 7)."""
from __future__ import annotations

from typing import Any

from ..checks import integer
from ..trace import EventLog, TraceState
from .figure import Traces, animated
from .palette import AUTO, HUES, LIGHT, look
from .svg import fit, headline, plain_text, pool_svg
from .track import Decode, Steppable
from .view import View


class BlockPoolView(View):
    """See `View`; ``columns``: blocks in a row, 1 or more; by default as many as make the largest cells."""

    module = "pool"
    title = "block pool"

    def __init__(
        self, log: EventLog, engine: Steppable | None = None, *, name: str | None = None, speed: float = 2.0, columns: int | None = None,
        decode: Decode | None = None,
    ) -> None:
        if columns is not None:
            integer("columns", columns, 1)
        self.columns = columns
        super().__init__(log, engine, name=name, speed=speed, decode=decode)

    def svg(self, state: TraceState | None = None) -> str:
        """The picture of a state, the shown one by default."""
        return pool_svg(self.state if state is None else state, AUTO, self.columns, self.decode)

    def plain(self, state: TraceState | None = None) -> str:
        """The grid in letters."""
        return plain_text(self.state if state is None else state, self.columns)

    def options(self) -> dict[str, Any]:
        return {"columns": self.columns}

    def figure(self) -> dict[str, Any] | None:
        """Owners as a heatmap, letters and filled slots as text, a frame a step."""
        log = self._there()[0].log
        grid = fit(log.state.num_blocks, self.columns)
        rows = grid.rows

        def traces(state: TraceState) -> Traces:
            return pool_traces(state, grid.columns, grid.shown)

        side = max(16, min(48, grid.cell))
        axis = {"showgrid": False, "zeroline": False, "showticklabels": False, "ticks": "", "fixedrange": True}
        layout = {
            "height": rows * side + 190, "width": max(480, grid.columns * side + 70), "yaxis": axis | {"range": [rows - 0.5, -0.5]},
            "xaxis": axis | {"range": [-0.5, grid.columns - 0.5]},
        }
        return animated(log, self.shown, traces, lambda state: f"step {state.step}: {headline(state)}", layout, redraw=True)

    def __repr__(self) -> str:
        if not self.tracks:
            return super().__repr__()
        return f"BlockPoolView {self.name!r}: {headline(self.state)}; {self.sentence}"


def pool_traces(state: TraceState, columns: int, shown: int) -> Traces:
    """A heatmap of owners (0 free, 1-7 a hue, 8 cached) and the letters on it, with the filled slots where there is room."""
    blocks = state.blocks()[:shown]
    z, text = [], []
    for view in blocks:
        arrival = state.arrival(view.owners[0]) if view.owners else None
        z.append(8 if view.cached else 0 if arrival is None else 1 + arrival % len(HUES))
        words = "" if arrival is None else look(arrival).letter + (f" ×{view.ref_count}" if view.ref_count > 1 else "")
        text.append(f"{words}<br>{view.fill}" if words and shown <= 128 else words)
    grid = [[*z[i : i + columns], *[None] * (columns - len(z[i : i + columns]))] for i in range(0, len(z), columns)]
    colours = ["#F0F0F0", *map(_lighter, HUES), "#D5D5D5"]
    scale = [[(i + edge) / len(colours), colour] for i, colour in enumerate(colours) for edge in (0, 1)]
    heat = {"type": "heatmap", "z": grid, "zmin": -0.5, "zmax": len(colours) - 0.5, "colorscale": scale, "showscale": False, "xgap": 2, "ygap": 2,
            "hoverinfo": "skip"}
    letters = {
        "type": "scatter", "mode": "text", "x": [i % columns for i in range(shown)], "y": [i // columns for i in range(shown)], "text": text,
        "textfont": {"size": 11 if shown <= 128 else 8, "color": LIGHT.ink}, "hoverinfo": "skip",
    }
    return [heat, letters]


def _lighter(hue: str) -> str:
    """The hue with 45 % white: dark letters are readable on all seven."""
    return "#" + "".join(f"{round(0.55 * int(hue[i : i + 2], 16) + 0.45 * 255):02X}" for i in (1, 3, 5))
