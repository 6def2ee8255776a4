"""Chart: a few series over one axis, as the value of a cell: an SVG that follows the page's theme, and a table for those who get no picture.

Series differ in hue, dash and mark, and each carries its name at its end. Axes begin at zero.
"""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .palette import AUTO, OUTLINE
from .shapes import document, num, text

HUES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
DASHES = ("", "6 4", "2 4", "9 3 2 3")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 342, 70, 150, 56, 52


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one series, ordered by x; ``line``: joined by lines, else marks only."""

    name: str
    points: tuple[tuple[float, float], ...]
    line: bool = True


class Chart:
    """``series``: name -> points (x, y), none below 0; those named in ``marks`` are drawn as marks without lines.

    Raises ValueError where there is nothing to draw, or too much.
    """

    def __init__(
        self, title: str, x: str, y: str, series: Mapping[str, Sequence[tuple[float, float]]], marks: Sequence[str] = (),
    ) -> None:
        if not series or not all(series.values()):
            raise ValueError(f"each series of {title!r} needs at least one point")
        if len(series) > len(HUES):
            raise ValueError(f"{len(series)} series in one chart; at most {len(HUES)} can be told apart")
        self.title, self.x, self.y = title, x, y
        self.series = [Series(name, tuple((float(a), float(b)) for a, b in points), name not in marks) for name, points in series.items()]
        points = [point for one in self.series for point in one.points]
        if not all(math.isfinite(value) and value >= 0 for point in points for value in point):
            raise ValueError(f"the points of {title!r} must be finite and not negative")
        self._top = tuple(nice(max(point[i] for point in points)) for i in (0, 1))

    def _at(self, x: float, y: float) -> tuple[float, float]:
        return LEFT + (WIDTH - LEFT - RIGHT) * x / self._top[0][-1], HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * y / self._top[1][-1]

    def svg(self) -> str:
        """The picture."""
        body = [text(LEFT - 56, 22, self.title, AUTO.ink, 15, weight=600)]
        for value in self._top[1]:
            x, y = self._at(0, value)
            body.append(f'<path d="M{num(x)} {num(y)}H{WIDTH - RIGHT}" stroke="{OUTLINE}" stroke-opacity="{1 if value == 0 else .3}"/>')
            body.append(text(x - 8, y + 4, f"{value:g}", AUTO.muted, 12, "end"))
        for value in self._top[0]:
            x, y = self._at(value, 0)
            body.append(text(x, y + 18, f"{value:g}", AUTO.muted, 12, "middle"))
        body.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, self.x, AUTO.ink, 13, "middle"))
        body.append(text(LEFT - 56, TOP - 14, self.y, AUTO.ink, 13))
        for i, one in enumerate(self.series):
            body += self._drawn(one, HUES[i], DASHES[i])
        return document(WIDTH, HEIGHT, str(self), AUTO, body)

    def _drawn(self, one: Series, hue: str, dash: str) -> list[str]:
        places = [self._at(*point) for point in one.points]
        body = []
        if one.line:
            path = "L".join(f"{num(x)} {num(y)}" for x, y in places)
            body.append(f'<path d="M{path}" stroke="{hue}" stroke-width="2.2" fill="none"' + (f' stroke-dasharray="{dash}"/>' if dash else "/>"))
        else:
            body += [f'<circle cx="{num(x)}" cy="{num(y)}" r="4.5" fill="{hue}"/>' for x, y in places]
        x, y = places[-1]
        return [*body, text(x + 10, y + 4 + (-10 if one.line else 10), one.name, AUTO.ink, 12.5)]

    def __str__(self) -> str:
        lines = [f"{self.title}: {self.y} over {self.x}"]
        lines += [f"  {one.name}: " + ", ".join(f"{x:g}: {y:g}" for x, y in one.points) for one in self.series]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Mapping[str, object]:
        return {"text/plain": str(self), "image/svg+xml": self.svg()}


def nice(largest: float) -> list[float]:
    """Marks of an axis from 0 to at least ``largest``: four to six steps of 1, 2, 2.5 or 5 times a power of ten."""
    if largest < 1e-9:                                      # nothing that anybody measures
        return [0.0, 1.0]
    base = 10.0 ** math.floor(math.log10(largest))
    step = next(s * base for s in (0.1, 0.2, 0.25, 0.5, 1, 2, 2.5) if largest / (s * base) <= 6)
    return [float(f"{step * i:.6g}") for i in range(math.ceil(round(largest / step, 9)) + 1)]
