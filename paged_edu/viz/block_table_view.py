"""BlockTableView: logical to physical, the block table of one request, with arrows into the pool."""
from __future__ import annotations

from typing import Any

from ..trace import TraceState
from .figure import Traces, animated
from .palette import HUES, LIGHT, look
from .request_view import RequestView
from .table_svg import MOST_ROWS, chosen, first_sequence, pool_columns, rows_shown, table_svg, table_text, table_title


class BlockTableView(RequestView):
    """See `View`; ``request``: whose table, by its id. By default, and once that one has finished, the newest request that has blocks.

    In a page another request is chosen by a click on its letter or on one of its blocks in the pool beside it.
    """

    module = "table"
    title = "block table"

    def svg(self, state: TraceState | None = None) -> str:
        """The table of a state, the shown one by default."""
        return table_svg(self.state if state is None else state, self.request)

    def plain(self, state: TraceState | None = None) -> str:
        """The table in letters, an entry a line."""
        return table_text(self.state if state is None else state, self.request)

    def options(self) -> dict[str, Any]:
        return {"request": self.request}

    def figure(self) -> dict[str, Any] | None:
        """Table and pool as markers, the arrows as one line trace, a frame a step."""
        log = self._there()[0].log
        columns = pool_columns(log.state.num_blocks)
        lines = max(12, -(-log.state.num_blocks // columns))        # rows of 24 pixels: table entries, and blocks of the pool
        axis = {"showgrid": False, "zeroline": False, "showticklabels": False, "ticks": "", "fixedrange": True}
        layout = {"height": 190 + 24 * min(lines, 26), "width": 800, "xaxis": axis | {"range": [-6.5, max(columns, 8) + 0.5]},
                  "yaxis": axis | {"range": [lines + 0.5, -1.5]}}
        return animated(log, self.shown, lambda state: self._traces(state, columns), lambda state: self._heading(state), layout)

    def _heading(self, state: TraceState) -> str:
        return f"step {state.step}: {table_title(state, chosen(state, self.request))}"

    def _traces(self, state: TraceState, columns: int) -> Traces:
        request_id = chosen(state, self.request)
        seq = first_sequence(state, request_id) if request_id is not None else None
        table = list(seq.blocks) if seq is not None else []
        hue = HUES[state.requests[request_id].arrival % len(HUES)] if request_id is not None else LIGHT.muted
        owners = [look(state.arrival(view.owners[0])) if view.owners else None for view in state.blocks()]
        mine = set(table)
        pool = {
            "type": "scatter", "mode": "markers+text", "hoverinfo": "skip", "x": [b % columns for b in range(state.num_blocks)],
            "y": [b // columns for b in range(state.num_blocks)], "text": [o.letter if o else "" for o in owners],
            "textfont": {"size": 9 if state.num_blocks <= 256 else 6, "color": LIGHT.ink},
            "marker": {"symbol": "square", "size": 22 if columns <= 16 else 10, "line": {"width": 1, "color": LIGHT.muted},
                       "color": [hue + "80" if b in mine else "#EEEEEE" if o else LIGHT.ground for b, o in enumerate(owners)]},
        }
        words, ys, ends = [], [], []
        for line, index in enumerate(rows_shown(len(table))):
            ys.append(line)
            if index is None:
                words.append("...")
                continue
            filled = min(state.block_size, max(0, (seq.num_computed if seq is not None else 0) - index * state.block_size))
            words.append(f"{index} → {table[index]}   {filled}/{state.block_size}")
            if len(table) <= MOST_ROWS or index == len(table) - 1:
                ends.append((line, table[index] % columns, table[index] // columns))
        entries = {"type": "scatter", "mode": "text", "hoverinfo": "skip", "x": [-4.6] * len(words), "y": ys, "text": words,
                   "textfont": {"size": 12, "color": LIGHT.ink}}
        return [_arrows(ends[:-1], hue, 1, 0.45), pool, _arrows(ends[-1:], hue, 3, 1.0), entries]


def _arrows(ends: list[tuple[int, int, int]], hue: str, width: float, opacity: float) -> dict[str, Any]:
    """Lines with one bend from rows (their number) to blocks (column, row)."""
    x: list[float | None] = []
    y: list[float | None] = []
    for line, column, row in ends:
        x += [-2.6, column, column, None]
        y += [line, line, row, None]
    return {"type": "scatter", "mode": "lines", "hoverinfo": "skip", "x": x, "y": y, "line": {"color": hue, "width": width}, "opacity": opacity}
