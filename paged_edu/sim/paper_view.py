"""The replayed figures as one plotly figure: the paper's points beside ours. plotly is imported when a figure is drawn (Paper §6)."""
from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..viz import palette
from .panels import PANELS, published

BARS = ("fig2", "fig13")
"""Figures of bars: the paper's are hatched."""
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross")
COLUMNS = 3


def drawable() -> None:
    """Raise ImportError, before anything is simulated, where there is no plotly."""
    if find_spec("plotly") is None:
        raise ImportError("--html draws with plotly, which is not installed: pip install 'paged-edu[lab]'")


def figure(curves: dict[str, dict[str, Any]]) -> Any:
    """A panel for each figure of ``curves`` ({figure: {system: [[x, y], …]}}): ours as lines, the paper's points as open markers."""
    from plotly.subplots import make_subplots

    names = list(curves)
    columns = min(COLUMNS, len(names))
    rows = -(-len(names) // columns)
    fig = make_subplots(
        rows, columns, subplot_titles=[_title(name) for name in names], vertical_spacing=min(0.09, 0.35 / rows), horizontal_spacing=0.08)
    shown: set[str] = set()
    for place, name in enumerate(names):
        where = {"row": place // columns + 1, "col": place % columns + 1}
        for i, (system, points) in enumerate(curves[name].items()):
            look = palette.SYSTEMS.get(system)
            colour = look.hue if look is not None else palette.HUES[i % len(palette.HUES)]
            for whose, series in (("", points), (", paper", published().get(name, {}).get(system, []))):
                if not series:
                    continue
                label = system + whose
                common = {"x": [x for x, _ in series], "y": [y for _, y in series], "name": label, "legendgroup": label,
                          "showlegend": label not in shown, **where}
                shown.add(label)
                if name.startswith(BARS):
                    pattern = {"shape": "/" if whose else "", "fgcolor": palette.LIGHT.ground}
                    fig.add_bar(marker={"color": colour, "pattern": pattern}, **common)
                    continue
                fig.add_scatter(
                    mode="markers" if whose else "lines+markers" if len(series) < 3 else "lines", line={"color": colour, "width": 2},
                    marker={"symbol": SYMBOLS[i % len(SYMBOLS)] + ("-open" if whose else ""), "color": colour, "size": 8}, **common)
        _axes(fig, name, where)
    fig.update_layout(
        template="plotly_white", height=120 + 330 * rows, font_size=13, legend={"orientation": "h", "y": -60 / (120 + 330 * rows)},
        margin={"t": 60, "r": 20})
    return fig


def _title(name: str) -> str:
    number = name.removeprefix("fig").replace("_", ", ")
    return f"Fig. {number}" + (f": {PANELS[name].title}" if name in PANELS else "")


def _axes(fig: Any, name: str, where: dict[str, int]) -> None:
    if name in PANELS:
        fig.update_xaxes(title="requests a second", rangemode="tozero", **where)
        fig.update_yaxes(title="s a token", range=[0, 1.1], **where)
    elif name.startswith(("fig18b", "fig19")):
        fig.update_xaxes(title="slots of a block", type="log", tickvals=[1, 4, 16, 64, 256], **where)
        fig.update_yaxes(title="ms" if name == "fig19a" else "s a token", type="log", **where)
    elif name == "fig2":
        fig.update_xaxes(tickvals=[0, 1, 2, 3], ticktext=["tokens", "reserved", "internal", "external"], **where)
        fig.update_yaxes(title="% of the memory", **where)
    elif name.startswith("fig13"):
        fig.update_xaxes(showticklabels=False, **where)
        fig.update_yaxes(title="requests in the batch", rangemode="tozero", **where)
    elif name.startswith("fig15"):
        fig.update_xaxes(title="samples" if name == "fig15a" else "beams", tickvals=[2, 4, 6], **where)
        fig.update_yaxes(title="% of blocks saved", rangemode="tozero", **where)


def write_html(curves: dict[str, dict[str, Any]], path: Path) -> None:
    """The figure as one file that needs no network."""
    figure(curves).write_html(path, include_plotlyjs=True)
