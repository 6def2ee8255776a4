"""AttentionWalk: one query visits its blocks through the table, with what online softmax carries from block to block (Paper §4.1)."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .figure import Traces, animated
from .palette import HUES, LIGHT, OUTLINE
from .track import WholeTrack
from .view import View
from .walk import Walk, WalkStep, compared, told, walk
from .walk_svg import heading, score_range, walk_svg


class WalkTrack(WholeTrack):
    """A walk where a view expects a log."""

    def __init__(self, steps: Walk, forget: bool) -> None:
        super().__init__(steps)
        self.forget = forget

    def whole(self) -> dict[str, Any]:
        """A frame a step, each in two variants, as the page's switch says: of somebody who rescales, and of somebody who forgets to."""
        frames = [
            [{"said": told(step, forget), "compared": compared(step, forget), "picture": walk_svg(self.log, step.step, forget)}
             for forget in (False, True)]
            for step in self.log.steps
        ]
        return {"label": "", "frames": frames, "variant": int(self.forget), "count": 0}


class AttentionWalk(View):
    """One query over one head's blocks: ``AttentionWalk(q, keys, values, table=[7, 1, 3, 9], length=50)``.

    q ``[head_dim]``; keys, values ``[num_blocks, block_size, head_dim]``, what one head holds of a layer's cache (``cache[layer][0][:, head]`` of the
    engine's). See `walk` for the other arguments and what raises ValueError. ``forget``: show at first what comes of not rescaling. Steps, playing
    and `close` are those of `View`; it begins at step 1, at the first block.
    """

    module = "walk"
    title = "attention walk"
    plays_logs = False

    def __init__(
        self, q: Any, keys: Any, values: Any, table: Sequence[int], length: int, *, scale: float | None = None, forget: bool = False,
        name: str | None = None, speed: float = 1.0,
    ) -> None:
        steps = walk(q, keys, values, table, length, scale)
        self.forget = bool(forget)
        self._begin([WalkTrack(steps, self.forget)], name, speed)
        self.shown = 1

    @property
    def state(self) -> Any:
        """The shown step, a `WalkStep`."""
        return self.walk.steps[self.shown]

    @property
    def walk(self) -> Walk:
        """All steps."""
        steps: Walk = self._there()[0].log  # type: ignore[assignment]
        return steps

    @property
    def sentence(self) -> str:
        """What happened in the shown step, with its numbers."""
        return self.notice if self.notice or not self.tracks else told(self.state, self.forget)

    def svg(self, state: Any = None) -> str:
        """The picture after a step, the whole walk by default: for pages that cannot step."""
        return walk_svg(self.walk, self.walk.last_step if state is None else state.step, self.forget)

    def plain(self, state: Any = None) -> str:
        """A line a step."""
        lines = [heading(self.walk), *(told(step, self.forget) for step in self.walk.steps[1:]), compared(self.walk.steps[-1], self.forget)]
        return "\n".join(lines)

    def figure(self) -> dict[str, Any]:
        """Scores by position and acc as bars, m as a line; a frame a step."""
        steps = self.walk
        low, high = score_range(steps)
        most = max(float(abs(step.sums(self.forget).acc).max()) for step in steps.steps) * 1.05
        axis = {"zeroline": True, "zerolinecolor": OUTLINE, "gridcolor": "#E4E6EA", "fixedrange": True}
        layout = {
            "height": 400, "width": 820, "margin": {"l": 60, "r": 20, "t": 90, "b": 40}, "bargap": 0.15,
            "xaxis": axis | {"title": {"text": "position [tokens]"}, "range": [-1, steps.length], "domain": [0, 0.56], "anchor": "y"},
            "yaxis": axis | {"title": {"text": "score q · k × scale"}, "range": [low - 0.3, high + 0.3], "anchor": "x"},
            "xaxis2": axis | {"title": {"text": "number of acc"}, "range": [-1, len(steps.steps[0].right.acc)], "domain": [0.66, 1], "anchor": "y2"},
            "yaxis2": axis | {"title": {"text": "acc"}, "range": [-most, most], "anchor": "x2"},
        }
        return animated(steps, self.shown, lambda step: self._traces(steps, step), lambda step: self._heading(step), layout, redraw=True)

    def _heading(self, step: WalkStep) -> str:
        return f"{told(step, self.forget)}<br>{compared(step, self.forget)}"

    def _traces(self, steps: Walk, now: WalkStep) -> Traces:
        scores = [round(float(s), 3) for step in steps.steps[: now.step + 1] for s in step.scores]
        colours = [HUES[0] if p in now.positions else HUES[4] for p in range(len(scores))]
        acc, line = [round(float(a), 3) for a in now.sums(self.forget).acc], {"line": {"width": 0.5, "color": OUTLINE}}
        level = [None, None] if now.block is None else [round(now.m, 3)] * 2
        return [
            {"type": "bar", "hoverinfo": "x+y", "x": list(range(len(scores))), "y": scores, "marker": {"color": colours} | line},
            {"type": "scatter", "mode": "lines", "hoverinfo": "skip", "x": [-1, steps.length], "y": level,
             "line": {"color": LIGHT.ink, "dash": "dash", "width": 1.5}},
            {"type": "bar", "hoverinfo": "x+y", "x": list(range(len(acc))), "y": acc, "xaxis": "x2", "yaxis": "y2",
             "marker": {"color": HUES[5] if self.forget else HUES[0]} | line},
        ]
