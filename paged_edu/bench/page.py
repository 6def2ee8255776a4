"""The pages of `bench throughput --html`, `bench latency --html` and others: charts, and below them the tables as text (with plotly)."""
from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import cycle
from pathlib import Path
from typing import Any

from rich.console import Console

from ..viz import palette
from . import step_profile_view
from .throughput_view import HUES, about, name_of, ran, sentences, tables, title

CHART: dict[str, Any] = {
    "template": "plotly_white", "font_size": 14, "height": 380, "showlegend": False, "margin": {"l": 70, "r": 20, "t": 50, "b": 60},
}
DASHES = ("solid", "dash", "dot", "dashdot")


def write(result: dict[str, Any], path: Path) -> None:
    """The page of `bench throughput`, one file that needs no network."""
    text = io.StringIO()
    tables(result, Console(file=text, width=96, highlight=False, color_system=None))
    figures = [speeds(result), *latencies(result)]
    write_page("bench throughput", title(result), about(result), sentences(result["throughput"]), figures, text.getvalue(), path)


def write_latency(result: dict[str, Any], path: Path) -> None:
    """The page of `bench latency`."""
    from . import latency

    text = io.StringIO()
    latency.tables(result, Console(file=text, width=96, highlight=False, color_system=None))
    parts = [own for own in result["latency"]["batches"].values() if own.get("summary")]
    said = [f"Batch {batch}: {line}" for batch, own in result["latency"]["batches"].items() if own.get("summary") for line in sentences(own)]
    write_page("bench latency", latency.title(result), ran(result, parts), said, [tokens(result), prefills(result)], text.getvalue(), path)


def write_page(command: str, heading: str, small: str, said: Sequence[str], figures: Sequence[Any], text: str, path: Path) -> None:
    drawn = [figure.to_html(full_html=False, include_plotlyjs=not i, config={"displaylogo": False}) for i, figure in enumerate(figures)]
    html = (
        f'<!doctype html>\n<html lang=en><meta charset=utf-8><meta name=viewport content="width=device-width"><title>paged-edu {command}</title>'
        f"<style>{step_profile_view.STYLE} pre {{ overflow-x: auto; font-size: .85rem; line-height: 1.25 }}</style>\n<body>\n"
        f"<h1>{escape(heading)}</h1>\n" + "".join(f"<p>{escape(line)}</p>" for line in said) + "\n" + "\n".join(drawn)
        + f"\n<h2>All numbers</h2>\n<pre>{escape(text)}</pre>\n<p class=small>{escape(small)}</p>\n</body></html>\n"
    )
    path.write_text(html, encoding="utf-8")


def _colours(found: Mapping[str, Any]) -> dict[str, str]:
    return {name: HUES[i % len(HUES)] for i, name in enumerate(found)}


def speeds(result: Mapping[str, Any]) -> Any:
    """A bar for each system's median, and a point for each of its rounds."""
    from plotly.graph_objects import Figure

    part, fig = result["throughput"], Figure()
    for name, colour in _colours(part["summary"]).items():
        median = part["summary"][name]["tokens_per_s"]["median"]
        rounds = [one["tokens_per_s"] for one in part["systems"][name]["rounds"]]
        fig.add_bar(x=[name_of(name)], y=[median], marker_color=colour, width=0.5, hovertemplate="median %{y:,.1f}<extra></extra>")
        fig.add_scatter(
            x=[name_of(name)] * len(rounds), y=rounds, mode="markers",
            marker={"color": "white", "size": 9, "line": {"width": 2, "color": palette.LIGHT.ink}},
            customdata=list(range(1, len(rounds) + 1)), hovertemplate="round %{customdata}: %{y:,.1f}<extra></extra>")
    fig.update_layout(title="Output tokens a second: medians, and every round", **CHART)
    fig.update_yaxes(title="tokens/s", rangemode="tozero")
    return fig


def latencies(result: Mapping[str, Any]) -> list[Any]:
    """How many of the requests, of all rounds, had waited no longer than x."""
    from plotly.graph_objects import Figure

    part, figures = result["throughput"], []
    for key, what in (("ttft_s", "first token"), ("tpot_s", "a token after the first")):
        fig = Figure()
        for (name, colour), dash in zip(_colours(part["summary"]).items(), cycle(DASHES), strict=False):
            values = sorted(1e3 * x for one in part["systems"][name]["rounds"] for x in one.get(key, ()))
            if values:
                shares = [(i + 1) / len(values) for i in range(len(values))]
                fig.add_scatter(x=values, y=shares, mode="lines", name=name_of(name),
                                line={"color": colour, "width": 2, "shape": "hv", "dash": dash},
                                hovertemplate="%{y:.0%} within %{x:,.1f} ms")
        if not fig.data:
            continue
        fig.update_layout(title=f"Time to the {what}" if key == "ttft_s" else "Time of a token after the first: a mean of each request", **CHART)
        fig.update_layout(showlegend=True, legend={"orientation": "h", "y": -0.25})
        fig.update_xaxes(title="ms", range=[0, 1.03 * max(max(line.x) for line in fig.data)])
        fig.update_yaxes(title="share of the requests", tickformat=".0%", range=[0, 1.02])
        figures.append(fig)
    return figures


# -- latency ---------------------------------------------------------------------------------------------------------------------------
def tokens(result: Mapping[str, Any]) -> Any:
    """Milliseconds of a token: the median, and as a whisker the way to p90."""
    return _bars(result, "A token after the first: p50, and p90 as a whisker", lambda its: (its["step_s"]["p50"], its["step_s"]["p90"]))


def prefills(result: Mapping[str, Any]) -> Any:
    """Milliseconds until all have a first token, with the upper quartile."""
    heading = "Prefill: median of the rounds, and the upper quartile as a whisker"
    return _bars(result, heading, lambda its: (its["prefill_s"]["median"], its["prefill_s"]["high"]))


def _bars(result: Mapping[str, Any], heading: str, height: Callable[[Mapping[str, Any]], tuple[float, float]]) -> Any:
    from plotly.graph_objects import Figure

    found, fig = result["latency"]["summary"], Figure()
    names = list(dict.fromkeys(name for its in found.values() for name in its))
    for name, colour in _colours(dict.fromkeys(names)).items():
        heights = {f"batch {batch}": height(its[name]) for batch, its in found.items() if name in its}
        fig.add_bar(
            x=list(heights), y=[1e3 * low for low, _ in heights.values()], name=name_of(name), marker_color=colour,
            error_y={"type": "data", "symmetric": False, "array": [1e3 * (high - low) for low, high in heights.values()], "color": palette.LIGHT.ink},
            hovertemplate="%{x}: %{y:,.2f} ms")
    fig.update_layout(title=heading, **CHART)
    fig.update_layout(showlegend=True, legend={"orientation": "h", "y": -0.2}, barmode="group")
    fig.update_yaxes(title="ms", rangemode="tozero")
    return fig
