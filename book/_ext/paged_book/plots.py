"""A plot in a page: plotly's figure as data beside a still picture of it. ``_site/book.js`` draws it when the reader comes near.

Until then, and without JavaScript, the picture is what there is; where there is none, a sentence. One copy of plotly serves the whole site.
"""
from __future__ import annotations

import json
import re
from html import escape, unescape
from typing import Any

PLOTLY_MIME = "application/vnd.plotly.v1+json"
KEPT = ("data", "layout", "frames")
HEIGHT = 450


def plot(figure: Any, said: str, picture: str = "") -> str:
    """``figure``: plotly's, as an object or as JSON; ``said``: what it shows, in words; ``picture``: an SVG that shows the same."""
    spec = json.loads(figure.to_json()) if hasattr(figure, "to_json") else dict(figure)
    spec = {key: spec[key] for key in KEPT if spec.get(key)}
    layout = spec["layout"] = _roomy(dict(spec.get("layout", {})))
    height = int(layout.get("height") or HEIGHT)
    text = json.dumps(spec, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    still = f'<div class="pe-still">{picture or escape(said)}</div>'
    place = f'<div class="pe-plotly" role="group" aria-label="{escape(said, quote=True)}"></div>'
    return (
        f'<figure class="pe-figure" style="--plot-height:{height}px">{place}{still}'
        f'<script type="application/json">{text}</script></figure>\n'
    )


def _roomy(layout: dict[str, Any]) -> dict[str, Any]:
    """A column of a book is narrower than a notebook: the title above the buttons, the slider below the title of the axis."""
    title = layout.get("title")
    if layout.get("updatemenus") and isinstance(title, dict) and "y" not in title:
        layout["title"] = {**title, "y": 0.985, "yanchor": "top"}
    if layout.get("sliders") and isinstance(layout.get("xaxis"), dict) and layout["xaxis"].get("title"):
        pads = [slider.get("pad", {}) for slider in layout["sliders"]]
        layout["sliders"] = [{**slider, "pad": {**pad, "t": max(65, pad.get("t", 0))}} for slider, pad in zip(layout["sliders"], pads, strict=True)]
    return layout


def described(svg: str) -> str:
    """The text that a picture of this package carries."""
    found = re.search(r'aria-label="([^"]*)"', svg)
    return unescape(found[1]) if found else ""


def picture(svg: str) -> str:
    """A still picture inside the page, so that it takes the page's light or dark colours."""
    return f'<figure class="pe-inline">{svg}</figure>\n'
