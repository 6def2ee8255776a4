"""FragmentationView: the four parts of Paper Fig. 2, live, of one memory manager or of several below one another."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from ..trace import EventLog, TraceState, memory_report
from .figure import Traces, animated
from .fragmentation_svg import PARTS, fragmentation_svg, fragmentation_text
from .palette import LIGHT
from .track import Decode, Steppable, Track
from .view import View

_SHAPES = {"token": "", "reserved": ".", "internal": "/", "free": "x"}


class FragmentationView(View):
    """See `View`; ``log`` may also be several logs by their labels, ``{"contiguous": a, "paged": b}``: a bar each, one slider.

    A log that ends before the shown step stays at its end. The parts are those of the manager's own `report`.
    """

    module = "fragmentation"
    title = "memory parts"

    def __init__(
        self, log: EventLog | Mapping[str, EventLog], engine: Steppable | None = None, *, name: str | None = None, speed: float = 2.0,
        decode: Decode | None = None,
    ) -> None:
        if not isinstance(log, Mapping):
            super().__init__(log, engine, name=name, speed=speed, decode=decode)
            return
        if not log:
            raise ValueError("there is no log: give one, or several by their labels")
        if engine is not None:
            raise ValueError("several logs have no engine in common: FragmentationView.of({label: engine, ...}) runs several engines")
        self._begin([Track(one, None, label, decode) for label, one in log.items()], name, speed)

    @classmethod
    def of(cls, source: Any, **options: Any) -> Self:
        """A view of an engine or an `LLM`, or of several by their labels, from their present state on; a step is a step of each."""
        if not isinstance(source, Mapping):
            return super().of(source, **options)
        tracks = [Track.of(one, label) for label, one in source.items()]
        view = cls({track.label: track.log for track in tracks}, **options)
        view.tracks = tracks
        for track in tracks:
            track.listen()
        return view

    def _rows(self, state: TraceState | None) -> list[tuple[str, TraceState]]:
        there = self._there()
        return [(track.label, self.state_of(track)) for track in there] if state is None else [(there[0].label, state)]

    def svg(self, state: TraceState | None = None) -> str:
        """A bar a log at the shown step; of one state, its bar."""
        return fragmentation_svg(self._rows(state))

    def plain(self, state: TraceState | None = None) -> str:
        """The bars in letters and the parts in slots."""
        return fragmentation_text(self._rows(state))

    def panes(self) -> list[dict[str, Any]]:
        rows = [{"label": track.label, "rest": track is self.tracks[-1], "basis": 2000} for track in self._there()]     # one below the other
        return [{"track": i, "module": self.module, "title": "", "options": row} for i, row in enumerate(rows)]

    def figure(self) -> dict[str, Any]:
        """Stacked bars in %, a frame a step."""
        there = self._there()
        cursors = [(track.label or "memory", _Cursor(track.log)) for track in there]
        longest = max((track.log for track in there), key=lambda log: log.last_step)

        def traces(state: TraceState) -> Traces:
            reports = [memory_report(cursor.at(state.step)) for _, cursor in cursors]
            found = []
            for part in PARTS:
                shares = [round(100 * getattr(report, part.field) / report.total, 1) for report in reports]
                found.append({
                    "type": "bar", "orientation": "h", "name": part.name, "y": [label for label, _ in cursors], "x": shares,
                    "text": [f"{share} %" if share >= 4 else "" for share in shares], "insidetextanchor": "middle", "textposition": "inside",
                    "textangle": 0, "textfont": {"color": "#FFFFFF" if part.kind == "token" else LIGHT.ink, "size": 12},
                    "hovertext": [f"{part.name}: {getattr(report, part.field)} of {report.total} slots" for report in reports], "hoverinfo": "text",
                    "marker": {"color": part.hue, "line": {"color": LIGHT.muted, "width": 1},
                               "pattern": {"shape": _SHAPES[part.kind], "fgcolor": LIGHT.muted, "size": 7, "solidity": 0.2}},
                })
            return found

        layout = {
            "height": 230 + 70 * len(cursors), "barmode": "stack", "showlegend": True, "margin": {"l": 110, "r": 20, "t": 100, "b": 20},
            "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
            "xaxis": {"title": {"text": "% of the slots of the cache"}, "range": [0, 100], "zeroline": False},
            "yaxis": {"autorange": "reversed"},
        }
        return animated(longest, self.shown, traces, lambda state: f"step {state.step}: what the slots hold", layout, redraw=True)


class _Cursor:
    """A state that moves along a log: forwards by its own events, backwards by a replay."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.state: TraceState | None = None

    def at(self, step: int) -> TraceState:
        """The state at the end of ``step``, or of the nearest step that the log holds. Read it before the next call."""
        step = min(max(step, self.log.first_step), self.log.last_step)
        if self.state is None or self.state.step > step:
            self.state = self.log.replay(step)
        for number in range(self.state.step + 1, step + 1):
            for event in self.log.events(number):
                self.state.apply(event)
        return self.state
