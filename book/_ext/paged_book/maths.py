"""Formulas as MathML, written while the book is built: every browser of the last years draws it without a script or a font from elsewhere."""
from __future__ import annotations

from html import escape
from typing import Any

from docutils import nodes


def mathml(tex: str, display: bool) -> str:
    """A formula of TeX as MathML; the TeX stays as its text for those who hear the page or copy from it."""
    from latex2mathml.converter import convert

    made = convert(tex, display="block" if display else "inline")
    return made.replace("<math ", f'<math alttext="{escape(tex, quote=True)}" ', 1)


def inline(self: Any, node: Any) -> None:
    self.body.append(f'<span class="pe-math">{mathml(node.astext(), False)}</span>')
    raise nodes.SkipNode


def block(self: Any, node: Any) -> None:
    self.body.append(f'<div class="pe-math-block">{mathml(node.astext(), True)}</div>')
    raise nodes.SkipNode


def setup(app: Any) -> None:
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
