"""BlockSizeView: a slider over nine block sizes, and what grows and what shrinks with them, for a workload (Paper §7.2); lesson 12.

Everything is there at once: formulas are computed when the view is made, the simulator's rates are stored. Pages without a kernel have a plotly
figure with the same slider, an SVG and a table.
"""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..checks import integer, one_of
from ..sim.block_sizes import SIZES, WORKLOADS, as_tokens, stored
from .block_size_rows import CLOSE, Row, formula_rows, simulated_rows
from .palette import AUTO, HUES, LIGHT, OUTLINE, TOKENS
from .shapes import FONT, document, num, rect, text
from .sliders import Sliders

YOURS = "yours"
"""The reader's own lengths, where a workload's name stands."""
BEST = HUES[2]
NOT_SIMULATED = "Computed only: the simulator has not run your lengths, so there is no rate held and no time of a step."


class BlockSizeView(Sliders):
    """Block sizes for a workload of `sim.block_sizes.WORKLOADS`: ``BlockSizeView("chat")``.

    ``BlockSizeView(lengths=[90, 300], prefix=80)`` computes for sequences of your own: tokens of each at its end, those of a prefix that all begin
    with included. The simulator has not run them: there is no rate and no time of a step. ``change(size=64)`` does what the slider does. A new one
    closes the one that had its ``name`` before. Raises ValueError for an unknown workload or size, for lengths that are no integers above 0, and for
    a prefix that is not shorter than each of them.
    """

    def __init__(
        self, workload: str | None = None, size: int = 16, *, lengths: Iterable[int] | None = None, prefix: int = 0, name: str = "block sizes",
    ) -> None:
        self.rows_of: dict[str, list[Row]] = {}
        self._yours = ""
        if lengths is not None:
            tokens = as_tokens(lengths, "lengths")
            integer("prefix", prefix, 0, int(tokens.min()) - 1)
            after = f" after {prefix:,} common ones" if prefix else ""
            self._yours = f"your lengths, {tokens.mean() - prefix:,.0f} tokens on average{after}"
            self.rows_of[YOURS] = formula_rows(tokens, prefix)
        elif prefix:
            raise ValueError(f"prefix={prefix!r} belongs to lengths of your own, and there are none")
        self.workload = workload if workload is not None else YOURS if self._yours else "chat"
        self.size = size
        self._check(self.workload, size)
        super().__init__(name)

    # -- what is asked ---------------------------------------------------------------------------------------------------------------
    @property
    def workloads(self) -> dict[str, str]:
        """What can be chosen: name -> as people say it."""
        return ({YOURS: self._yours} if self._yours else {}) | {name: workload.label for name, workload in WORKLOADS.items()}

    @property
    def rows(self) -> list[Row]:
        """What the picture shows."""
        if self.workload not in self.rows_of:
            workload = WORKLOADS[self.workload]
            found = formula_rows(workload.totals(), workload.prefix) + simulated_rows(workload, stored()[self.workload])
            self.rows_of[self.workload] = found
        return self.rows_of[self.workload]

    def _check(self, workload: str, size: int) -> None:
        one_of("workload", workload, self.workloads)
        integer("size", size, SIZES[0], SIZES[-1])
        one_of("size", size, SIZES)

    def change(self, size: int | None = None, workload: str | None = None) -> BlockSizeView:
        """Another block size, another workload, or both; what is not named stays. Raises ValueError, and changes nothing, for an unknown one."""
        wanted = workload if workload is not None else self.workload, size if size is not None else self.size
        self._check(*wanted)
        (self.workload, self.size), self.notice = wanted, ""
        self._show()
        return self

    def _summary(self) -> str:
        said = ", ".join(f"{row.label} {row.told(self.size)}" for row in self.rows)
        return f"{self._heading(self.size)}: {said}" + (f". {NOT_SIMULATED}" if self.workload == YOURS else f" ({self.rows[-1].told_best()}).")

    def _heading(self, size: int) -> str:
        return f"Blocks of {size} slot{'s' * (size > 1)}, {self.workloads[self.workload]}"

    # -- without a kernel --------------------------------------------------------------------------------------------------------------
    def __str__(self) -> str:
        """A line a quantity, a column a size."""
        labels = [f"{row.label} [{row.unit}]" for row in self.rows]
        width = max(map(len, labels))
        lines = [f"{self.workloads[self.workload]}, by slots of a block", " " * width + "".join(f"{size:>9}" for size in SIZES)]
        for label, row in zip(labels, self.rows, strict=True):
            numbers = "".join(f"{row.told(size).split()[0]:>9}" for size in SIZES)
            lines.append(f"{label:{width}}{numbers}   {row.told_best()}")
        return "\n".join(lines)

    __repr__ = __str__

    def svg(self) -> str:
        """A curve a row over all sizes, the chosen one marked in each; rings are the best sizes."""
        left, pitch, top, high = 330, 44, 56, 56
        right, rows = left + 8 * pitch, self.rows
        bottom = top + high * len(rows)
        at = left + SIZES.index(self.size) * pitch
        body = [
            text(12, 26, self._heading(self.size), AUTO.ink, 15, weight=600),
            rect(at - 15, top - 14, 30, bottom - top + 38, AUTO.ink, 6, 'fill-opacity=".09"'),
        ]
        for i, row in enumerate(rows):
            body += _curve(row, self.size, top + high * i, left, pitch)
        for i, size in enumerate(SIZES):
            chosen = size == self.size
            body.append(text(left + i * pitch, bottom + 16, str(size), AUTO.ink if chosen else AUTO.muted, 13, "middle", 700 if chosen else 400))
        y, rates = bottom + 42, "" if self.workload == YOURS else f"; rates within {100 * CLOSE:g} % count as equal"
        body += [
            text(12, bottom + 16, "slots of a block", AUTO.ink, 13),
            _dot(18, y - 4), text(30, y, "the chosen size", AUTO.muted, 12),
            _ring(142, y - 4), text(156, y, f"the best sizes of a row{rates}", AUTO.muted, 12),
        ]
        if self.workload == YOURS:
            y += 20
            body.append(text(12, y, NOT_SIMULATED, AUTO.muted, 12))
        return document(right + 178, y + 14, self.sentence, AUTO, body)

    def figure(self) -> dict[str, Any]:
        """The plotly figure as a plain dict: the curves, and a slider over the sizes."""
        rows, names, at, part = self.rows, [str(size) for size in SIZES], SIZES.index(self.size), 1 / len(self.rows)
        middles = [1 - part * (i + 0.5) for i in range(len(rows))]
        data: list[dict[str, Any]] = []
        axes: dict[str, Any] = {}

        def marks(i: int, sizes: list[int], marker: dict[str, Any], **more: Any) -> dict[str, Any]:
            """Some sizes of a row; markers on the zero line stay whole."""
            values = [round(rows[i].values[SIZES.index(size)], 3) for size in sizes]
            return {"type": "scatter", "mode": "markers", "x": [str(size) for size in sizes], "y": values, "yaxis": f"y{i + 1}", "marker": marker,
                    "cliponaxis": False, "hoverinfo": "skip", **more}

        def notes(size: int) -> list[dict[str, Any]]:
            """What each row is, on its left, and its value, on its right."""
            left, right = ({"xref": "paper", "yref": "paper", "yanchor": "middle", "showarrow": False, **place} for place in (
                {"x": 0, "xanchor": "right", "xshift": -45, "align": "right"}, {"x": 1, "xanchor": "left", "xshift": 8, "align": "left"}))
            found: list[dict[str, Any]] = []
            for y, row in zip(middles, rows, strict=True):
                found += [{"y": y, "text": f"{row.label}<br><span style='color:{LIGHT.muted}'>{row.how}</span>", **left},
                          {"y": y, "text": f"<b>{row.told(size)}</b><br>{row.told_best()}", **right}]
            return found

        for i, row in enumerate(rows):
            told = [f"{row.label}, blocks of {size}: {row.told(size)}" for size in SIZES]
            line = {"mode": "lines+markers", "line": {"color": OUTLINE, "width": 2}, "text": told, "hoverinfo": "text"}
            data += [marks(i, list(SIZES), {"size": 6}, **line),
                     marks(i, row.best(), {"size": 15, "symbol": "circle-open", "color": BEST, "line": {"width": 2}})]
            axes[f"yaxis{i + 1}"] = {"domain": [middles[i] - 0.37 * part, middles[i] + 0.37 * part], "range": [0, 1.15 * max(row.values) or 1],
                                     "showgrid": False, "zerolinecolor": OUTLINE, "fixedrange": True, "nticks": 3}
        chosen = list(range(len(data), len(data) + len(rows)))
        data += [marks(i, [self.size], {"size": 10, "color": TOKENS}) for i in range(len(rows))]
        steps = [{"label": str(size), "method": "update",
                  "args": [{"x": [[str(size)]] * len(rows), "y": [marks(i, [size], {})["y"] for i in range(len(rows))]},
                           {"title.text": self._heading(size), "annotations": notes(size)}, chosen]} for size in SIZES]
        layout = {
            "height": 90 * len(rows) + 160, "width": 860, "title": {"text": self._heading(self.size), "x": 0.01, "font": {"size": 15}},
            "paper_bgcolor": LIGHT.ground, "plot_bgcolor": LIGHT.ground, "font": {"family": FONT, "color": LIGHT.ink, "size": 12},
            "xaxis": {"type": "category", "categoryorder": "array", "categoryarray": names, "anchor": f"y{len(rows)}", "gridcolor": "#E4E6EA",
                      "fixedrange": True, "title": {"text": "slots of a block (green rings: the best sizes of a row)", "font": {"size": 12}}},
            "showlegend": False, "margin": {"l": 290, "r": 130, "t": 50, "b": 20}, "annotations": notes(self.size),
            "sliders": [{"active": at, "steps": steps, "currentvalue": {"prefix": "slots of a block = "}, "pad": {"t": 55}}],
        }
        return {"data": data, "layout": axes | layout}

    # -- in Jupyter --------------------------------------------------------------------------------------------------------------------
    def _build(self) -> Any:
        """The widget: a slider over the sizes, the workloads, the picture. Raises ImportError without ipywidgets."""
        import ipywidgets as w

        size = w.SelectionSlider(options=SIZES, value=self.size, description="slots of a block", style={"description_width": "110px"},
                                 layout=w.Layout(width="400px"))
        workload = w.Dropdown(options=[(label, name) for name, label in self.workloads.items()], value=self.workload, description="workload",
                              layout=w.Layout(width="420px"))
        picture, status = w.HTML(), w.HTML()
        quiet = [False]

        def show() -> None:
            quiet[0] = True                                 # what is set here was not asked for by a reader
            try:
                size.value, workload.value = self.size, self.workload
            finally:
                quiet[0] = False
            picture.value, status.value = self.svg(), self._said()

        def asked(_: object) -> None:
            if not quiet[0]:
                self._attempt(lambda: self.change(size.value, workload.value))

        for control in (size, workload):
            control.observe(asked, "value")
        self._show = show
        show()
        return w.VBox([w.HBox([size, workload], layout=w.Layout(flex_flow="row wrap")), picture, status])


def _curve(row: Row, chosen: int, y: float, left: float, pitch: float) -> list[str]:
    """A row: what it is, its values from 0 on, the chosen one and the best, and the chosen one in words."""
    low, tall, most = y + 34, 30, max(row.values) or 1
    places = [(left + i * pitch, low - tall * value / most) for i, value in enumerate(row.values)]
    right, best, at = places[-1][0], row.best(), places[SIZES.index(chosen)]
    return [
        text(12, y + 14, row.label, AUTO.ink, 13), text(12, y + 31, row.how, AUTO.muted, 12),
        text(left - 18, low + 4, "0", AUTO.muted, 12, "end"), text(left - 18, low - tall + 6, f"{most:,.{row.decimals}f}", AUTO.muted, 12, "end"),
        f'<path d="M{num(left - 12)} {num(low)}H{num(right + 12)}" stroke="{OUTLINE}" stroke-width="1"/>',
        f'<path d="M{"L".join(f"{num(x)} {num(v)}" for x, v in places)}" fill="none" stroke="{AUTO.muted}" stroke-width="2"/>',
        *(f'<circle cx="{num(x)}" cy="{num(v)}" r="3" fill="{AUTO.muted}"/>' for x, v in places),
        *(_ring(x, v) for size, (x, v) in zip(SIZES, places, strict=True) if size in best), _dot(*at),
        text(right + 30, y + 16, row.told(chosen), AUTO.ink, 15, weight=600), text(right + 30, y + 33, row.told_best(), AUTO.muted, 12),
    ]


def _dot(x: float, y: float) -> str:
    return f'<circle cx="{num(x)}" cy="{num(y)}" r="5" fill="{TOKENS}" stroke="{AUTO.ink}" stroke-width="1.5"/>'


def _ring(x: float, y: float) -> str:
    return f'<circle cx="{num(x)}" cy="{num(y)}" r="8" fill="none" stroke="{BEST}" stroke-width="2"/>'
