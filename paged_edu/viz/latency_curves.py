"""LatencyCurves: latency over request rate with a threshold that moves, and the run behind each point (Paper Fig. 12-17; lesson 11)."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from ..checks import number
from ..sim.points import Points, Run
from ..words import counted
from .crossings import Curves, Row, cells, compare, fixed, leading, run_told, told
from .curves_svg import LATENCY, RATES, TOP_LATENCY, curves_svg
from .palette import LIGHT, system_looks
from .shapes import FONT
from .track import WholeTrack
from .view import View

LOW, HIGH = 0.05, 1.0
"""Limits of the threshold [s/token]; a page moves it by hundredths."""
DASHES = {"": "solid", "2 3": "dot", "10 3 2 3": "dashdot", "7 4": "dash", "14 4": "longdash"}
"""An SVG's dashes in plotly's words."""


class LevelTrack(WholeTrack):
    """The thresholds where a view expects a log: one a step, in hundredths of a second a token."""

    def __init__(self) -> None:
        super().__init__(self)
        self.first_step, self.last_step = round(100 * LOW), round(100 * HIGH)

    def replay(self, step: int) -> float:
        return step / 100

    def whole(self) -> dict[str, Any]:
        return {"label": "", "levels": [self.first_step, self.last_step], "count": 0}


class LatencyCurves(View):
    """Curves of normalized latency over request rate, ours beside the paper's, and a threshold that can be dragged.

    ``curves``: system -> ``[[requests/s, s/token], …]``, ours; ``paper``: the same for the paper's points. ``runs``: system -> a `Run` for each
    of our points, in their order (see `sim.watching.watched_curve`): what a click on the point shows. ``threshold``: where the line is at first
    [s/token], a whole number of hundredths. A step of this view is a hundredth of a second a token: `step`, `back` and `seek` move the line.
    Raises ValueError for points that are no curve, for runs that do not go with them, and for a threshold outside 0.05 to 1.
    """

    module = "curves"
    title = "latency curves"
    plays_logs = False

    def __init__(
        self, title: str, curves: Curves, paper: Curves | None = None, runs: Mapping[str, Sequence[Run]] | None = None, threshold: float = 0.5,
        name: str | None = None,
    ) -> None:
        self.heading = str(title)
        self.curves, self.paper = _checked("curves", curves), _checked("paper", paper or {})
        if not self.curves:
            raise ValueError("curves is empty: at least 1 system is needed")
        self.looks = system_looks(dict.fromkeys([*self.curves, *self.paper]))
        self.runs = _matched(runs or {}, self.curves)
        number("threshold", threshold, LOW, HIGH)
        if abs(100 * threshold - round(100 * threshold)) > 1e-6:
            raise ValueError(f"threshold must be a whole number of hundredths of a second, not {threshold!r}")
        self._begin([LevelTrack()], name if name is not None else f"{self.title}: {self.heading}", 2.0)
        self.shown = round(100 * threshold)

    @property
    def threshold(self) -> float:
        """Where the line is [s/token]: where somebody has dragged it, if the page has a kernel."""
        return self.shown / 100

    @property
    def state(self) -> Any:
        return self.threshold

    @property
    def rows(self) -> list[Row]:
        """What the threshold makes of the curves, a row a system."""
        return compare(self.curves, self.paper, self.threshold)

    @property
    def sentence(self) -> str:
        """The main ratio at the threshold."""
        return self.notice if self.notice or not self.tracks else told(self.rows, self.threshold)

    def svg(self, state: Any = None) -> str:
        """The picture at a threshold, the present one by default."""
        return curves_svg(self.heading, self.curves, self.paper, self.looks, self.threshold if state is None else state)

    def plain(self, state: Any = None) -> str:
        """The crossings as a table."""
        threshold = self.threshold if state is None else state
        rows = compare(self.curves, self.paper, threshold)
        first = leading([row.system for row in rows])
        lines = [["", "ours", "paper", "error", f"{first} over it", "paper"], *(cells(row) for row in rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(6)]
        head = f"{self.heading}: requests/s at {fixed(threshold, 2)} s/token"
        return "\n".join([head, *("  " + _line(line, widths) for line in lines)])

    def options(self) -> dict[str, Any]:
        """The curves with their looks, and the runs in short."""
        systems = [
            {"name": name, **asdict(look), "ours": self.curves.get(name, []), "paper": self.paper.get(name, []),
             "runs": [short(run) for run in self.runs.get(name, ())]}
            for name, look in self.looks.items()
        ]
        return {"heading": self.heading, "systems": systems}

    def page_data(self) -> dict[str, Any]:
        return super().page_data() | {"bare": True}

    # -- plotly ----------------------------------------------------------------------------------------------------------------------
    def figure(self) -> dict[str, Any]:
        """The curves with a slider of 20 thresholds: it moves the line and says what comes of it."""
        data: list[dict[str, Any]] = []
        for name, look in self.looks.items():
            for of, what in ((self.curves, ""), (self.paper, ", paper")):
                if name in of:
                    x, y = ([round(point[i], 4) for point in of[name]] for i in (0, 1))
                    data.append({
                        "type": "scatter", "name": name + what, "x": x, "y": y, "mode": "markers" if what else "lines+markers",
                        "line": {"color": look.hue, "width": 2, "dash": DASHES.get(look.dash, "dash")},
                        "marker": {"color": look.hue, "size": 8, "symbol": look.mark + ("-open" if what else "")},
                        "hovertemplate": f"{name}{what}<br>%{{x}} requests/s: %{{y}} s/token<extra></extra>"})
        across = max(x for trace in data for x in trace["x"]) * 1.03
        line = {"type": "scatter", "name": "threshold", "mode": "lines", "x": [0, across], "y": [self.threshold] * 2, "hoverinfo": "skip",
                "line": {"color": LIGHT.ink, "dash": "dash", "width": 1.5}}
        levels = [level / 100 for level in range(5, 101, 5)]
        steps = [{"label": f"{level:.2f}", "method": "update",
                  "args": [{"y": [[level, level]]}, {"title.text": self._heading(level)}, [len(data)]]} for level in levels]
        axis = {"gridcolor": "#E4E6EA", "zerolinecolor": "#7B7B7B", "fixedrange": True}
        layout = {
            "height": 560, "width": 860, "margin": {"l": 60, "r": 20, "t": 130, "b": 20}, "font": {"family": FONT, "color": LIGHT.ink, "size": 12},
            "paper_bgcolor": LIGHT.ground, "plot_bgcolor": LIGHT.ground,
            "title": {"text": self._heading(self.threshold), "x": 0, "xanchor": "left", "xref": "paper", "font": {"size": 14}},
            "xaxis": axis | {"title": {"text": RATES}, "range": [0, across]}, "yaxis": axis | {"title": {"text": LATENCY}, "range": [0, TOP_LATENCY]},
            "sliders": [{"active": min(range(20), key=lambda i: abs(levels[i] - self.threshold)), "steps": steps, "pad": {"t": 50},
                         "currentvalue": {"prefix": "threshold [s/token] = "}}],
        }
        return {"data": [*data, line], "layout": layout}

    def _heading(self, threshold: float) -> str:
        rows = compare(self.curves, self.paper, threshold)
        first = leading([row.system for row in rows])
        ratios = [f"{cell[0]} {cell[4]}" + (f" (paper {cell[5]})" if row.paper_ratio is not None else "")
                  for row, cell in ((row, cells(row)) for row in rows) if row.ratio is not None]
        lines = [", ".join(ratios[i : i + 3]) for i in range(0, len(ratios), 3)]
        over = f"<br>{first} over " + ",<br>".join(lines) if lines else ""
        return f"<b>{self.heading}</b><br>{told(rows, threshold)}<span style='font-size:12px'>{over}</span>"

    def __repr__(self) -> str:
        if not self.tracks:
            return super().__repr__()
        return f"{type(self).__name__} {self.heading!r}: {self.sentence}"


def short(run: Run) -> dict[str, Any]:
    """A run for a page: numbers rounded, samples as columns, memory parts in percent."""
    parts = [sample.parts for sample in run.samples]
    return {
        "system": run.system, "rate": run.rate, "seconds": run.seconds, "end": round(run.end, 1), "latency": round(run.latency, 4),
        "running": round(run.running, 2), "waiting": round(run.waiting, 2), "count": run.num_requests, "preemptions": run.num_preemptions,
        "told": run_told(run), "time": [round(sample.time, 1) for sample in run.samples], "batch": [sample.running for sample in run.samples],
        "queue": [sample.waiting for sample in run.samples],
        "parts": None if None in parts else [[round(100 * part[i], 1) for part in parts if part is not None] for i in range(4)],
        "requests": [[round(time, 2) for time in times] for times in run.requests],
    }


def _line(words: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join([words[0].ljust(widths[0]), *(word.rjust(width) for word, width in zip(words[1:], widths[1:], strict=True))]).rstrip()


def _checked(what: str, curves: Any) -> dict[str, Points]:
    """Curves as lists of floats. Raises ValueError with the name of the system and what is wrong with its points."""
    if not isinstance(curves, Mapping):
        raise ValueError(f"{what} must be a dict, system -> points, not {curves!r}")
    found: dict[str, Points] = {}
    for name, points in curves.items():
        where = f"{what}[{name!r}]"
        if isinstance(points, str) or not hasattr(points, "__len__") or not len(points):
            raise ValueError(f"{where} must be at least 1 point [requests/s, s/token], not {points!r}")
        for point in points:
            if isinstance(point, str) or not hasattr(point, "__len__") or len(point) != 2:
                raise ValueError(f"{where}: a point is [requests/s, s/token], not {point!r}")
        pairs = [[_float(value) for value in point] for point in points]
        for rate, latency in pairs:
            number(f"{where}: each rate", rate, 0)
            number(f"{where}: each latency", latency, 0)
        for before, after in pairwise(pairs):
            if after[0] < before[0]:
                raise ValueError(f"{where}: rates must not fall, and {after[0]:g} comes after {before[0]:g}")
        found[str(name)] = [[float(rate), float(latency)] for rate, latency in pairs]
    return found


def _float(value: Any) -> Any:
    """Numbers of numpy as Python's own; anything else stays for the check to name."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value


def _matched(runs: Any, curves: Mapping[str, Points]) -> dict[str, tuple[Run, ...]]:
    if not isinstance(runs, Mapping):
        raise ValueError(f"runs must be a dict, system -> runs, not {runs!r}")
    for name, of in runs.items():
        if name not in curves:
            raise ValueError(f"runs has {name!r}, and curves has only {', '.join(map(repr, curves))}")
        if isinstance(of, str) or not isinstance(of, Sequence) or not all(isinstance(run, Run) for run in of):
            raise ValueError(f"runs[{name!r}] must be a list of Run, not {of!r}")
        if len(of) != len(curves[name]):
            found = f"{counted(len(of), 'run')}, and the curve has {counted(len(curves[name]), 'point')}"
            raise ValueError(f"runs[{name!r}] has {found}: one each is needed")
        for run, (rate, _) in zip(of, curves[name], strict=True):
            if abs(run.rate - rate) > 1e-9 * max(1.0, rate):
                raise ValueError(f"runs[{name!r}]: a run at {run.rate:g} requests/s stands for the point at {rate:g}: the order must be the same")
    return {name: tuple(of) for name, of in runs.items()}
