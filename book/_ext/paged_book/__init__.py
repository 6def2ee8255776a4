"""The book's Sphinx extension: lessons as pages, source pages, generated tables and plots, formulas as MathML, and the replay of the first page.

One module an idea. What a page shows that could go stale (numbers, signatures, lines of code) comes out of here while the book is built, and what
no longer exists is a warning; `jupyter-book build -W` turns it into a failed build.
"""
from __future__ import annotations

from typing import Any

from . import api, assets, generated, lessons, maths, source_pages


def setup(app: Any) -> dict[str, Any]:
    """Sphinx calls this."""
    for part in (assets, maths, source_pages, lessons, generated, api):
        part.setup(app)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
