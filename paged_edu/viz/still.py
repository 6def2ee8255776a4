"""Still: an SVG as the value of a cell, with its description for those who get no picture (an untrusted notebook, a terminal)."""
from __future__ import annotations

import re
from collections.abc import Mapping
from html import unescape


class Still:
    """A picture that does not move. ``svg`` is a document of this package: its ``aria-label`` is the text."""

    def __init__(self, svg: str) -> None:
        self.svg = svg

    def __repr__(self) -> str:
        label = re.search(r'aria-label="([^"]*)"', self.svg)
        return unescape(label.group(1)) if label else "a picture"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Mapping[str, object]:
        return {"image/svg+xml": self.svg, "text/plain": repr(self)}
