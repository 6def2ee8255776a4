"""Views: several views of one log in one player, with one slider."""
from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import unescape
from typing import Any, TypeAlias

from ..trace import EventLog, TraceState
from .figure import MOST_ACROSS, side_by_side
from .palette import AUTO
from .shapes import document, num, text
from .track import Decode, Steppable, Track
from .view import View

Part: TypeAlias = str | type[View] | View
"""A view by the name of its module ("pool"), by its class, or made already, of the same log."""


def part_class(part: str | type[View]) -> type[View]:
    """The class that a name stands for. Raises ValueError for an unknown name, TypeError for what is no view."""
    if isinstance(part, str):
        if part not in View.kinds:
            raise ValueError(f"no view is called {part!r}; there are {', '.join(sorted(View.kinds))}")
        return View.kinds[part]
    if not (isinstance(part, type) and issubclass(part, View) and part.module and part.plays_logs):
        raise TypeError(f"a view is a name ({', '.join(sorted(View.kinds))}), a class of views or a view, not {part!r}")
    return part


class Views(View):
    """``views`` beside one another, all at the same step of ``log``; the other arguments are those of `View`.

    A view that was made already must be one of the same log; it is closed with this one.
    """

    title = "views"

    def __init__(
        self, log: EventLog, views: Iterable[Part] = ("pool",), engine: Steppable | None = None, *, name: str | None = None, speed: float = 2.0,
        decode: Decode | None = None,
    ) -> None:
        super().__init__(log, engine, name=name, speed=speed, decode=decode)
        self._fill(views)

    def _fill(self, views: Iterable[Part]) -> None:
        """Make the parts, each view once a track."""
        self.parts: list[tuple[int, View]] = []
        try:
            for part in [views] if isinstance(views, str | View | type) else views:
                for index, track in enumerate(self.tracks):
                    self.parts.append((index, self._part(part, track, index)))
            if not self.parts:
                raise ValueError("views is empty: name at least 1 view")
        except BaseException:
            self.close()
            raise

    def _part(self, part: Part, track: Track, index: int) -> View:
        if isinstance(part, View):
            if part.log is not track.log:
                raise ValueError(f"{part!r} is not a view of this log")
            return part
        cls = part_class(part)
        return cls(track.log, name=f"{self.name} / {cls.title} {index} {len(self.parts)}", decode=track.decode)

    # -- what it looks like ------------------------------------------------------------------------------------------------------------
    def _states(self, state: TraceState | None) -> list[tuple[View, TraceState]]:
        there = self._there()
        return [(part, self.state_of(there[index]) if state is None else state) for index, part in self.parts]

    def svg(self, state: TraceState | None = None) -> str:
        """The parts one below the other; those of several tracks side by side where there is room."""
        pictures = [part.svg(shown) for part, shown in self._states(state)]
        return stacked(pictures, [self.tracks[index].label for index, _ in self.parts], across=len(self.tracks))

    def plain(self, state: TraceState | None = None) -> str:
        """The parts one after the other."""
        labels = [self.tracks[index].label for index, _ in self.parts]
        said = [part.plain(shown) for part, shown in self._states(state)]
        return "\n".join(f"{label}: {words}" if label else words for label, words in zip(labels, said, strict=True))

    def figure(self) -> dict[str, Any] | None:
        """The first view's figure, of each track: a page without a kernel plays one picture, or one a side."""
        figures = []
        for index, part in self.parts[: len(self._there())]:
            part.shown = self._step_of(self.tracks[index])
            figures.append(part.figure())
        whole = [figure for figure in figures if figure is not None]
        if len(whole) < len(figures):
            return None
        return whole[0] if len(whole) == 1 else side_by_side(whole, [track.label for track in self.tracks])

    def panes(self) -> list[dict[str, Any]]:
        return [
            {"track": index, "module": part.module, "title": self.tracks[index].label,
             "options": part.options() | ({"basis": MOST_ACROSS} if part.takes_a_row and len(self.tracks) > 1 else {})}
            for index, part in self.parts
        ]

    def close(self) -> None:
        """Close the parts too."""
        super().close()
        for _, part in getattr(self, "parts", ()):
            part.close()
        self.parts = []


_BOX = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')


def stacked(pictures: Sequence[str], titles: Sequence[str], across: int = 1, gap: float = 8) -> str:
    """SVG documents of this package in one, row by row, ``across`` in a row, or one where that is too wide; each under its title if it has one."""
    if len(pictures) == 1:
        return pictures[0]
    head = 26.0 if any(titles) else 0.0
    sizes = [(float(box[1]), float(box[2])) for box in map(_BOX.search, pictures) if box]
    labels = [found[1] for found in (re.search(r'aria-label="([^"]*)"', picture) for picture in pictures) if found]
    if any(sum(wide for wide, _ in sizes[i : i + across]) > MOST_ACROSS for i in range(0, len(sizes), across)):
        across = 1
    body: list[str] = []
    y = width = 0.0
    for i in range(0, len(pictures), across):
        x = 0.0
        for (wide, high), picture, title in zip(sizes[i : i + across], pictures[i : i + across], titles[i : i + across], strict=True):
            if title:
                body.append(text(x + 16, y + 20, title, AUTO.ink, 18, weight=700))
            inner = re.sub(r'^<svg xmlns="[^"]*"', f'<svg x="{num(x)}" y="{num(y + head)}"', picture.strip(), count=1)
            body.append(re.sub(r' width="[^"]*"(?: height="[^"]*")? style="[^"]*"', f' width="{num(wide)}" height="{num(high)}"', inner, count=1))
            x += wide + gap
        width, y = max(width, x - gap), y + head + max(high for _, high in sizes[i : i + across]) + gap
    said = [f"{title}: {label}" if title else label for title, label in zip(titles, labels, strict=True)]
    return document(width, y - gap, unescape(". ".join(said)), AUTO, body)
