"""LayerStepper: a layer of a model line by line, the shapes of a prefill beside those of a decode step, and its way into and out of the pool."""
from __future__ import annotations

from collections.abc import Mapping
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from .figure import Traces, animated
from .layer_svg import FIRST, NEXT, heading, layer_svg
from .layer_walk import BLOCK_SIZE, INTO, NUM_BLOCKS, OUT_OF, LayerLine, LayerWalk, layer_walk, slot, told
from .palette import HUES, LIGHT
from .track import WholeTrack
from .view import View

if TYPE_CHECKING:
    from ..model.spec import ModelSpec

MOST_MODELS = 4
ACROSS = 112
"""Characters that the title of the figure has room for."""


class LayerTrack(WholeTrack):
    """Walks, one a model, where a view expects a log; the first one is the log."""

    def __init__(self, walks: list[LayerWalk]) -> None:
        super().__init__(walks[0])
        self.walks = walks

    def whole(self) -> dict[str, Any]:
        """A frame a line, with a variant for each model."""
        frames = [
            [{"said": told(walk.lines[i]), "why": walk.lines[i].why, "picture": layer_svg(walk, i)} for walk in self.walks]
            for i in range(self.log.last_step + 1)
        ]
        return {"label": "", "frames": frames, "variant": 0, "count": 0}

    def close(self) -> None:
        super().close()
        self.walks = []


class LayerStepper(View):
    """One layer, line by line: ``LayerStepper({"SmolLM2-135M": spec, "tiny-shakespeare": other})``; a spec comes from `model.loader.load_spec`.

    ``num_tokens``: how many tokens the prefill computes, 1 to 7. The page has a button for each model, at most 4; what is stored (picture, letters,
    figure) is of the first one. Steps, playing and `close` are those of `View`; it begins at line 0. Raises ValueError for no model, for too many,
    and for what `layer_walk` refuses.
    """

    module = "layer"
    title = "layer stepper"
    plays_logs = False

    def __init__(self, models: Mapping[str, ModelSpec], *, num_tokens: int = 5, name: str | None = None, speed: float = 1.0) -> None:
        from ..model.spec import ModelSpec

        if not isinstance(models, Mapping) or not all(isinstance(spec, ModelSpec) for spec in models.values()):
            raise ValueError(f"models must map names to ModelSpecs, not {models!r}")
        if not 1 <= len(models) <= MOST_MODELS:
            raise ValueError(f"a layer stepper shows 1 to {MOST_MODELS} models, not {len(models)}")
        walks = [layer_walk(str(model), spec, num_tokens) for model, spec in models.items()]
        self._begin([LayerTrack(walks)], name, speed)
        self.shown = 0

    @property
    def walk(self) -> LayerWalk:
        """The first model's lines."""
        lines: LayerWalk = self._there()[0].log  # type: ignore[assignment]
        return lines

    @property
    def state(self) -> Any:
        """The shown line, a `LayerLine`."""
        return self.walk.lines[self.shown]

    @property
    def sentence(self) -> str:
        """The shown line with its shapes."""
        return self.notice if self.notice or not self.tracks else told(self.state)

    def options(self) -> dict[str, Any]:
        track = self._there()[0]
        assert isinstance(track, LayerTrack)
        return {"names": [walk.name for walk in track.walks]}

    def svg(self, state: Any = None) -> str:
        """The picture at a line, the whole layer by default: for pages that cannot step."""
        return layer_svg(self.walk, self.walk.last_step if state is None else state.step)

    def plain(self, state: Any = None) -> str:
        """A line a line."""
        return "\n".join([heading(self.walk), *map(told, self.walk.lines)])

    def figure(self) -> dict[str, Any]:
        """Lines and shapes as text, the pool as squares; a frame a line."""
        walk, bare = self.walk, {"visible": False, "fixedrange": True}
        layout = {
            "height": 500, "width": 856, "margin": {"l": 10, "r": 10, "t": 95, "b": 30},
            "xaxis": bare | {"range": [0, 100]}, "yaxis": bare | {"range": [len(walk.lines) - 0.4, -1.5]},
        }
        return animated(walk, self.shown, lambda line: self._traces(walk, line), lambda line: self._heading(walk, line), layout, redraw=True)

    def _heading(self, walk: LayerWalk, line: LayerLine) -> str:
        said = wrap(line.why, ACROSS)
        return "<br>".join([heading(walk), *said, *[" "] * (2 - len(said))])       # always as many lines, so that nothing jumps

    def _traces(self, walk: LayerWalk, now: LayerLine) -> Traces:
        def written(x: float, words: list[str]) -> dict[str, Any]:
            colours = [LIGHT.muted, *(LIGHT.ink if line.step <= now.step else "#B8BCC4" for line in walk.lines)]
            return {"type": "scatter", "mode": "text", "hoverinfo": "skip", "x": [x] * (len(walk.lines) + 1), "y": list(range(-1, len(walk.lines))),
                    "text": words, "textposition": "middle right", "textfont": {"color": colours, "size": 12}}

        there = now.step >= next(line.step for line in walk.lines if line.pool == INTO)
        cells = [(block, offset) for block in range(NUM_BLOCKS) for offset in range(BLOCK_SIZE)]
        places = {slot(position): position for position in range(walk.num_tokens + 1)}
        held = [places.get(block * BLOCK_SIZE + offset) if there else None for block, offset in cells]
        fill = ["#FFFFFF" if position is None else NEXT if position == walk.num_tokens else FIRST for position in held]
        return [
            {"type": "scatter", "mode": "lines", "fill": "toself", "hoverinfo": "skip", "x": [0, 79, 79, 0], "fillcolor": "rgba(86,180,233,0.28)",
             "line": {"width": 0}, "y": [now.step - 0.5, now.step - 0.5, now.step + 0.5, now.step + 0.5]},
            written(0, ["line", *(f"{line.step}  {line.code}" for line in walk.lines)]),
            written(37, [f"prefill, T = {walk.num_tokens}", *(line.prefill for line in walk.lines)]),
            written(60, ["decode, T = 1", *(line.decode for line in walk.lines)]),
            {"type": "scatter", "mode": "markers+text", "hoverinfo": "skip", "x": [87 + 3.6 * offset for _, offset in cells],
             "y": [2.2 + block for block, _ in cells], "text": ["" if position is None else str(position) for position in held],
             "textfont": {"color": ["#111111" if position == walk.num_tokens else "#FFFFFF" for position in held], "size": 11},
             "marker": {"symbol": "square", "size": 20, "color": fill, "line": {"width": 1, "color": "#7B7B7B"}}},
            {"type": "scatter", "mode": "text", "hoverinfo": "skip", "x": [83] * NUM_BLOCKS + [92.4],
             "y": [*(2.2 + i for i in range(NUM_BLOCKS)), 1.1],
             "text": [*map(str, range(NUM_BLOCKS)), "pool: position in slot"], "textfont": {"size": 11, "color": LIGHT.muted}},
            {"type": "scatter", "mode": "text", "hoverinfo": "skip", "x": [81], "y": [now.step],
             "text": [{INTO: "➜", OUT_OF: "⬅"}.get(now.pool, "")], "textfont": {"size": 20, "color": FIRST if now.pool == INTO else HUES[5]}},
        ]
