"""Card: a short piece of text as the value of a cell, as HTML for a page and as plain text for a terminal.

No colour carries meaning alone (a sign and a word do), ink and ground are the page's own, and there is no script: a card looks and works the
same in a light or dark JupyterLab, in VS Code, and on a page without a kernel.
"""
from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

GOOD, OPEN, NEUTRAL = "#009E73", "#D55E00", "#7B7B7B"
"""Colours of a card's edge: contrast 3 : 1 or better on the light and on the dark ground."""


def prose(text: str) -> str:
    """Text as HTML: everything escaped, `code` in backquotes and *emphasis* in stars."""
    html = escape(text, quote=True)
    html = re.sub(r"`([^`]+)`", r"<code>\1</code>", html)
    return re.sub(r"(?<![\w*])\*([^*\s][^*]*)\*(?![\w*])", r"<em>\1</em>", html)


def block(text: str) -> str:
    """A paragraph, or, where the text has several lines, one that keeps them and their spaces."""
    if "\n" in text:
        return f'<pre style="margin:0.3em 0;white-space:pre-wrap;background:transparent;color:inherit">{escape(text)}</pre>'
    return f'<p style="margin:0.3em 0">{prose(text)}</p>'


@dataclass(frozen=True, slots=True)
class Fold:
    """Text behind a summary that opens it."""

    summary: str
    body: str

    def html(self) -> str:
        return (
            f'<details style="margin:0.2em 0"><summary style="cursor:pointer;padding:0.2em 0">{prose(self.summary)}</summary>'
            f'<div style="margin:0 0 0.5em 1.2em">{block(self.body)}</div></details>'
        )


@dataclass(frozen=True, slots=True)
class Card:
    """A heading, then paragraphs and folds."""

    heading: str
    parts: Sequence[str | Fold] = ()
    edge: str = NEUTRAL

    def html(self) -> str:
        body = "".join(part.html() if isinstance(part, Fold) else block(part) for part in self.parts)
        heading = f'<p style="margin:0 0 0.3em"><strong>{prose(self.heading)}</strong></p>' if self.heading else ""
        return f'<div style="border-left:4px solid {self.edge};padding:0.3em 0 0.3em 0.9em;margin:0.5em 0;max-width:50em">{heading}{body}</div>'

    def __str__(self) -> str:
        lines = [self.heading] if self.heading else []
        for part in self.parts:
            text = f"> {part.summary}\n    {part.body}" if isinstance(part, Fold) else part
            lines += ["  " + line for line in text.splitlines()]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Mapping[str, object]:
        return {"text/html": self.html(), "text/plain": str(self)}


@dataclass(frozen=True, slots=True, repr=False)
class Cards:
    """Several cards as one value."""

    cards: tuple[Card, ...]

    def html(self) -> str:
        return "".join(card.html() for card in self.cards)

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.cards))

    __repr__ = __str__

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Mapping[str, object]:
        return {"text/html": self.html(), "text/plain": str(self)}


def show(card: Card) -> None:
    """Put a card on the page of a running notebook, or print it. For functions whose value is something else."""
    ipython = sys.modules.get("IPython")
    if ipython is not None and ipython.get_ipython() is not None:
        from IPython.display import display

        display(card)
    else:
        print(card)
