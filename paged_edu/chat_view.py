"""How an answer appears in ``paged-edu chat``: plainly, as it comes, or in a terminal with a live line of numbers below it."""
from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import Protocol, Self

from .terminal import visible


class View(Protocol):
    """Shows the pieces of one answer between ``with`` and its end."""

    def show(self, delta: str, status: str) -> None: ...


class PlainView:
    """Each piece as it comes, and a line end after the last. Control characters are shown as pictures, in a pipe too."""

    def show(self, delta: str, status: str) -> None:
        print(visible(delta), end="", flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        print(flush=True)


class LiveView:
    """The answer, wrapped at words, and below it the status, drawn again with each piece.

    Only the last row of the text and the status are live: rows above can no longer change, so they are printed for good and scroll away as usual.
    """

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(highlight=False, markup=False, emoji=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._row = ""

    @staticmethod
    def possible() -> bool:
        return sys.stdout.isatty() and os.environ.get("TERM") not in (None, "dumb", "unknown")

    def show(self, delta: str, status: str) -> None:
        from rich.console import Group
        from rich.text import Text

        *complete, last = (self._row + visible(delta).expandtabs(4)).split("\n")
        for line in complete:
            self._console.print(Text(line))
        rows = Text(last).wrap(self._console, self._console.width)
        for row in rows[:-1]:
            self._console.print(row)
        # The wrapped row has lost the spaces at its end; the next word needs them.
        self._row = last[len(last.rstrip()) - len(rows[-1].plain.rstrip()) :] if len(rows) > 1 else last
        dim = "" if os.environ.get("NO_COLOR") else "dim"
        self._live.update(Group(Text(self._row), Text(status, dim, no_wrap=True, overflow="ellipsis")), refresh=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        from rich.text import Text

        self._live.stop()
        if self._row:
            self._console.print(Text(self._row))
