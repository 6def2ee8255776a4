"""Plotly figures with frames, as plain dicts: what plays in a book without a kernel. plotly itself is never imported.

At most 60 frames and 300 kB: more of either makes pages slow (plotly.js#6533) and notebooks large. The ground is opaque and light, because a
stored figure does not know the theme of the page that will show it.
"""
from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from ..trace import EventLog, TraceState
from .palette import LIGHT
from .shapes import FONT

MOST_FRAMES, MOST_BYTES = 60, 300_000
MOST_ACROSS = 860
"""Widest picture [pixels]: what the page of a notebook has room for."""
Traces = list[dict[str, Any]]


def chosen_steps(first: int, last: int, shown: int, most: int = MOST_FRAMES) -> list[int]:
    """At most ``most`` (2 or more) steps from ``first`` to ``last``, evenly spread, with both ends and ``shown`` among them."""
    if last - first < most:
        return list(range(first, last + 1))
    steps = {first + round(i * (last - first) / (most - 2)) for i in range(most - 1)} if most > 2 else {first, last}
    return sorted(steps | ({shown} if len(steps) < most else set()))


class Recording(Protocol):
    """What can be drawn step by step: an `EventLog`, or a list of steps that were computed beforehand."""

    @property
    def first_step(self) -> int: ...

    @property
    def last_step(self) -> int: ...

    def replay(self, step: int) -> Any: ...


def states_at(log: Recording, steps: Sequence[int]) -> Iterator[Any]:
    """The state at the end of each of ``steps``, which rise. One fold for all: read a state before you take the next."""
    if not isinstance(log, EventLog):
        yield from map(log.replay, steps)
        return
    state: TraceState | None = None
    for step in steps:
        if state is None:
            state = log.replay(step)
        else:
            for number in range(state.step + 1, step + 1):
                for event in log.events(number):
                    state.apply(event)
        yield state


def animated(
    log: Recording, shown: int, traces: Callable[[Any], Traces], title: Callable[[Any], str], layout: dict[str, Any], *,
    redraw: bool = False, most: int = MOST_FRAMES,
) -> dict[str, Any]:
    """A figure with a frame a step, a slider and Play and Pause, at first at step ``shown``.

    ``traces`` gives the same traces with the same keys for each state, in the same order, and keeps nothing of the state. ``redraw``
    is for heatmaps and bars, which plotly cannot update in place. Frames are left out until the JSON has less than 300 kB.
    """
    while True:
        figure = _figure(log, shown, traces, title, layout, redraw, most)
        if most <= 2 or len(json.dumps(figure)) < MOST_BYTES:
            return figure
        most = max(2, most // 2)


def _figure(
    log: Recording, shown: int, traces: Callable[[Any], Traces], title: Callable[[Any], str], layout: dict[str, Any], redraw: bool,
    most: int,
) -> dict[str, Any]:
    steps = chosen_steps(log.first_step, log.last_step, shown, most)
    start = max(i for i, step in enumerate(steps) if step <= max(shown, steps[0]))
    made = [(traces(state), title(state)) for state in states_at(log, steps)]
    first = made[start][0]
    # Only what differs from step to step goes into the frames.
    changing = [[key for key in trace if any(data[i][key] != trace[key] for data, _ in made)] for i, trace in enumerate(first)]
    frames = [
        {"name": str(step), "data": [{key: trace[key] for key in ("type", *keys)} for trace, keys in zip(data, changing, strict=True)],
         "traces": list(range(len(data))), "layout": {"title": {"text": words}}}
        for step, (data, words) in zip(steps, made, strict=True)
    ]
    now = {"duration": 0, "redraw": redraw}
    instant = {"mode": "immediate", "frame": now, "transition": {"duration": 0}}
    play = {"frame": {"duration": 500, "redraw": redraw}, "transition": {"duration": 0}, "fromcurrent": True}
    common = {
        "title": {"text": made[start][1], "x": 0, "xanchor": "left", "xref": "paper", "font": {"size": 15}},
        "font": {"family": FONT, "color": LIGHT.ink, "size": 12}, "paper_bgcolor": LIGHT.ground, "plot_bgcolor": LIGHT.ground, "showlegend": False,
        "margin": {"l": 40, "r": 20, "t": 60, "b": 20},
        "sliders": [{"active": start, "currentvalue": {"prefix": "step "}, "pad": {"t": 30}, "x": 0.16, "len": 0.84,
                     "steps": [{"label": str(step), "method": "animate", "args": [[str(step)], instant]} for step in steps]}],
        "updatemenus": [{"type": "buttons", "direction": "left", "x": 0, "y": 0, "xanchor": "left", "yanchor": "top", "pad": {"t": 40},
                         "showactive": False, "buttons": [{"label": "Play", "method": "animate", "args": [None, play]},
                                                          {"label": "Pause", "method": "animate", "args": [[None], instant]}]}],
    }
    return {"data": first, "layout": common | layout, "frames": frames}


def side_by_side(figures: Sequence[dict[str, Any]], labels: Sequence[str]) -> dict[str, Any]:
    """Figures of `animated` beside one another with one slider, that of the longest; a run that is over stays at its end. Those that are as wide
    as the page, such as timelines, stand one above the other, over the same steps.

    Frames are left out until the JSON has less than 300 kB.
    """
    longest = max(figures, key=lambda figure: int(figure["frames"][-1]["name"]))
    names = [frame["name"] for frame in longest["frames"]]
    while True:
        joined = _joined(figures, labels, longest["layout"], names)
        if len(names) <= 2 or len(json.dumps(joined)) < MOST_BYTES:
            return joined
        names = sorted({*names[::2], names[-1]}, key=int)


def _joined(figures: Sequence[dict[str, Any]], labels: Sequence[str], layout: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    count, above = len(figures), any("width" not in figure["layout"] for figure in figures)
    last = max(figure["layout"]["xaxis"].get("range", [0, 0])[1] for figure in figures) if above else 0
    named: set[str] = set()                                 # in the legend already
    data: Traces = []
    axes: dict[str, Any] = {}
    for i, figure in enumerate(figures):
        number = "" if i == 0 else str(i + 1)
        data += [trace | {"xaxis": f"x{number}", "yaxis": f"y{number}"} for trace in figure["data"]]
        across = [0, 1] if above else [i / count, (i + 0.96) / count]
        axes[f"xaxis{number}"] = figure["layout"]["xaxis"] | {"domain": across, "anchor": f"y{number}"}
        axes[f"yaxis{number}"] = figure["layout"]["yaxis"] | {"anchor": f"x{number}"}
        if above:
            axes[f"xaxis{number}"] |= {"range": [figure["layout"]["xaxis"]["range"][0], last]}
            axes[f"yaxis{number}"] |= {"domain": [1 - (i + 0.86) / count, 1 - i / count]}
    if above:
        for trace in data:
            trace["showlegend"] = "name" in trace and trace["name"] not in named
            named.add(trace.get("name", ""))
    frames: list[dict[str, Any]] = []
    for name in names:
        now = [[frame for frame in figure["frames"] if int(frame["name"]) <= int(name)][-1] for figure in figures]
        words = [f"<b>{label}</b>, {frame['layout']['title']['text']}" for label, frame in zip(labels, now, strict=True)]
        places = [(0.0, 1 - i / count) if above else (i / count, 1.0) for i in range(count)]
        notes = [{"text": text, "x": x, "y": y, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom", "showarrow": False}
                 for (x, y), text in zip(places, words, strict=True)]
        frames.append({"name": name, "data": [trace for frame in now for trace in frame["data"]], "traces": list(range(len(data))),
                       "layout": {"annotations": notes}})
    slider = layout["sliders"][0]
    wanted = int(slider["steps"][slider["active"]]["label"])
    start = max(i for i, name in enumerate(names) if int(name) <= wanted)
    data = [trace | changed for trace, changed in zip(data, frames[start]["data"], strict=True)]
    slider = slider | {"active": start, "steps": [step for step in slider["steps"] if step["label"] in names]}
    if above:
        size = {"height": sum(figure["layout"]["height"] for figure in figures) - 120 * (count - 1), "legend": layout["legend"] | {"y": 1.04}}
    else:
        size = {"width": min(MOST_ACROSS, sum(figure["layout"]["width"] for figure in figures))}
    wide: dict[str, Any] = size | {"title": {"text": ""}}
    return {"data": data, "layout": layout | wide | axes | {"sliders": [slider]} | frames[start]["layout"], "frames": frames}
