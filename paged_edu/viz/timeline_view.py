"""TimelineView: requests as bars over steps; who waits, computes a prompt, writes tokens, steps back, and why each ended."""
from __future__ import annotations

from typing import Any

from ..trace import Lane, TraceState, history
from .figure import Traces, animated
from .palette import LIGHT, look
from .svg import counts
from .timeline_svg import MOST_LANES, loads, reason_words, shown_kinds, steps_of, timeline_svg, timeline_text
from .view import View

_SHAPES = {"waiting": "", "prefill": "/", "decode": "", "stalled": ".", "preempted": "", "swapped": "x"}


class TimelineView(View):
    """See `View`. A lane a request, in order of arrival; a line marks the shown step, and what comes after it is pale."""

    module = "timeline"
    title = "timeline"
    takes_a_row = True

    def svg(self, state: TraceState | None = None) -> str:
        """The bars of the whole log, with the line at the step of a state, the shown one by default."""
        return timeline_svg(self._there()[0].log, self.state if state is None else state)

    def plain(self, state: TraceState | None = None) -> str:
        """A line of letters a request."""
        return timeline_text(self._there()[0].log, self.state if state is None else state)

    def figure(self) -> dict[str, Any]:
        """The bars once, and a line that moves: a frame a step."""
        log = self._there()[0].log
        lanes = history(log)
        hidden, lanes = max(0, len(lanes) - MOST_LANES), lanes[-MOST_LANES:]
        names = [look(lane.arrival).letter for lane in lanes]
        bars = [_bars(lanes, kind) for kind in shown_kinds(lanes)]
        load = loads(lanes)
        first, last = steps_of(log)

        def traces(state: TraceState) -> Traces:
            line = {"type": "scatter", "mode": "lines", "x": [state.step + 0.5] * 2, "y": [-0.5, len(lanes) - 0.5], "hoverinfo": "skip",
                    "line": {"color": LIGHT.ink, "width": 2}}
            return [*bars, line]

        def title(state: TraceState) -> str:
            return f"step {state.step}: {sum(load.get(state.step, (0, 0)))} tokens; {counts(state)}"

        layout = {
            "height": 200 + 20 * max(6, len(lanes)), "barmode": "overlay", "bargap": 0.15, "showlegend": True,
            "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
            "xaxis": {"title": {"text": "step"}, "range": [first - 0.5, last + 0.5], "zeroline": False},
            "yaxis": {"range": [len(lanes) - 0.5, -0.5], "tickvals": list(range(len(lanes))), "ticktext": names, "zeroline": False, "showgrid": False,
                      "title": {"text": "request" + (f" (the last {len(lanes)})" if hidden else "")}},
        }
        return animated(log, self.shown, traces, title, layout)


def _bars(lanes: list[Lane], kind: str) -> dict[str, Any]:
    """The spans of one kind as horizontal bars."""
    found = [(i, lane, span) for i, lane in enumerate(lanes) for span in lane.spans if span.kind == kind]
    hues = [look(lane.arrival).hue for _, lane, _ in found]
    hollow = kind in ("waiting", "preempted", "swapped")
    ended = {(lane.arrival, lane.spans[-1].last): f", ended: {reason_words(lane.reason)}" for lane in lanes if lane.ended is not None and lane.spans}
    words = [
        f"{look(lane.arrival).letter}: {kind}, steps {span.first} to {span.last}" + (f", {sum(span.tokens)} tokens" if sum(span.tokens) else "")
        + ended.get((lane.arrival, span.last), "") for _, lane, span in found
    ]
    high = {"waiting": 0.12, "prefill": 0.85}.get(kind, 0.5)
    return {
        "type": "bar", "orientation": "h", "name": kind, "y": [i for i, _, _ in found], "base": [span.first - 0.5 for _, _, span in found],
        "x": [len(span.tokens) for _, _, span in found], "width": high, "hovertext": words, "hoverinfo": "text",
        "marker": {"color": ["#C9CDD4"] * len(found) if kind == "waiting" else [LIGHT.ground] * len(found) if hollow else hues,
                   "line": {"color": hues if hollow and kind != "waiting" else LIGHT.muted, "width": 1.5 if hollow and kind != "waiting" else 0},
                   "pattern": {"shape": _SHAPES[kind], "fgcolor": LIGHT.ground if not hollow else LIGHT.muted, "size": 6}},
    }
