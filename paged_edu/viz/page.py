"""A trace as one HTML file that plays by itself: no kernel, no server, no request to anywhere."""
from __future__ import annotations

import json
import os
from collections.abc import Iterable
from html import escape
from pathlib import Path

from ..trace import EventLog
from .bundle import bundle, css
from .track import Decode
from .view import View
from .views import Part, Views

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title>
<style>:root{{color-scheme:light dark}}body{{margin:0;background:light-dark(#FFFFFF,#16181D)}}
{css}</style></head>
<body>{mount}
<script type="module">
{script}</script></body></html>
"""


def mount_html(view: View) -> str:
    """The element that ``page.js`` turns into a player of this view; until then, and without JavaScript, it is the still picture."""
    data = json.dumps(view.page_data() | {"shown": view.shown, "speed": view.speed}, separators=(",", ":")).replace("<", "\\u003c")
    return f'<div class="pe-mount"><noscript>{view.svg()}</noscript><script type="application/json">{data}</script></div>'


def page_html(view: View, title: str | None = None) -> str:
    """A whole page that shows a view: recorded steps play, an engine behind it is not asked."""
    modules = tuple(dict.fromkeys(pane["module"] for pane in view.panes()))
    return _PAGE.format(title=escape(title if title is not None else view.name), css=css(), mount=mount_html(view), script=bundle(modules, "page"))


def save_html(
    log: EventLog, path: str | os.PathLike[str], views: Iterable[Part] = ("pool",), *, title: str = "A run of paged_edu", step: int | None = None,
    decode: Decode | None = None,
) -> None:
    """Write ``log`` as one self-contained HTML file with the given views (see `Views`), stopped at ``step`` (its first one by default).

    ``decode``: token ids to text, for the tooltips. Raises ValueError for an unknown view.
    """
    view = Views(log, views, name=f"page {title}", decode=decode)
    try:
        view.seek(log.first_step if step is None else step)
        Path(path).write_text(page_html(view, title), encoding="utf-8")
    finally:
        view.close()
