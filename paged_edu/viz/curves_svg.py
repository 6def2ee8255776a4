"""Latency curves as SVG: ours as lines with marks, the paper's points as open marks, the threshold as a line across.

A curve is cut where it leaves the axes; a point above them stands as its mark at the upper edge.
"""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from textwrap import wrap

from .chart import nice
from .crossings import Curves, cells, compare, fixed, told
from .palette import AUTO, OUTLINE, SystemLook, Theme
from .shapes import document, num, text

TOP_LATENCY = 1.1
"""Upper end of the axis [s/token], as in the paper."""
WIDTH, LEFT, RIGHT, TOP, HEIGHT = 780, 62, 64, 84, 260
RATES, LATENCY = "request rate [requests/s]", "normalized latency [s/token]"
Point = Sequence[float]


def clipped(points: Sequence[Point], top: float = TOP_LATENCY) -> list[list[Point]]:
    """The parts of a line through ``points`` that are not above ``top``."""
    parts: list[list[Point]] = []
    inside = False
    for i, (x, y) in enumerate(points):
        if i and inside != (y <= top):
            x0, y0 = points[i - 1]
            edge = (x0 + (top - y0) * (x - x0) / (y - y0), top)
            if inside:
                parts[-1].append(edge)
            else:
                parts.append([edge])
        elif not i:
            parts.append([])
        inside = y <= top
        if inside:
            parts[-1].append((x, y))
    return [part for part in parts if len(part) > 1]


def mark(kind: str, x: float, y: float, size: float = 4.6) -> str:
    """Path data of a mark, a plotly symbol by name, around a point."""
    if kind == "square":
        return f"M{num(x - size)} {num(y - size)}h{num(2 * size)}v{num(2 * size)}h{num(-2 * size)}z"
    if kind == "circle":
        return f"M{num(x - size)} {num(y)}a{num(size)} {num(size)} 0 1 0 {num(2 * size)} 0a{num(size)} {num(size)} 0 1 0 {num(-2 * size)} 0z"
    turns = {"diamond": (0, 90, 180, 270), "triangle-up": (0, 120, 240), "triangle-down": (180, 300, 60)}[kind]
    size *= 1.25
    corners = [f"{num(x + size * math.sin(math.radians(turn)))} {num(y - size * math.cos(math.radians(turn)))}" for turn in turns]
    return f"M{'L'.join(corners)}z"


def curves_svg(
    title: str, curves: Curves, paper: Curves, looks: Mapping[str, SystemLook], threshold: float, theme: Theme = AUTO,
) -> str:
    """The picture at one threshold, with the crossings in a table below, as an SVG document."""
    across = nice(max(point[0] for of in (curves, paper) for points in of.values() for point in points))
    wide, bottom = WIDTH - LEFT - RIGHT, TOP + HEIGHT

    def at(x: float, y: float) -> tuple[float, float]:
        return LEFT + wide * x / across[-1], bottom - HEIGHT * min(y, TOP_LATENCY) / TOP_LATENCY

    body = [text(16, 26, title, theme.ink, 15, weight=600), *_legend(looks, theme)]
    above = any(point[1] > TOP_LATENCY for of in (curves, paper) for points in of.values() for point in points)
    notes = ["open marks: the paper's points"] * bool(paper) + ["▴ above the axis"] * above
    body.append(text(WIDTH - 16, 26, "; ".join(notes), theme.muted, 12, "end"))
    for i in range(6):
        x, y = at(0, i / 5)
        body.append(f'<path d="M{num(x)} {num(y)}H{WIDTH - RIGHT}" stroke="{OUTLINE}" stroke-opacity="{.3 if i else 1}"/>')
        body.append(text(x - 8, y + 4, f"{i / 5:g}", theme.muted, 12, "end"))
    for value in across:
        body.append(text(at(value, 0)[0], bottom + 18, f"{value:g}", theme.muted, 12, "middle"))
    body.append(text(LEFT + wide / 2, bottom + 38, RATES, theme.ink, 13, "middle"))
    body.append(f'<g transform="translate(18 {num(TOP + HEIGHT / 2)}) rotate(-90)">{text(0, 0, LATENCY, theme.ink, 13, "middle")}</g>')
    for name, look in looks.items():
        for part in clipped(curves.get(name, ())):
            line = "L".join(f"{num(x)} {num(y)}" for x, y in (at(*point) for point in part))
            dash = f' stroke-dasharray="{look.dash}"' if look.dash else ""
            body.append(f'<path d="M{line}" stroke="{look.hue}" stroke-width="2.2" fill="none"{dash}/>')
        for of, fill in ((paper, theme.ground), (curves, look.hue)):
            if of.get(name):
                marks = "".join(mark(look.mark, *at(*point)) + _beyond(*at(*point), point[1]) for point in of[name])
                body.append(f'<path d="{marks}" fill="{fill}" stroke="{look.hue}" stroke-width="1.6"/>')
    y = at(0, threshold)[1]
    body.append(f'<path d="M{LEFT} {num(y)}H{WIDTH - RIGHT}" stroke="{theme.ink}" stroke-width="1.6" stroke-dasharray="6 3"/>')
    body.append(text(WIDTH - RIGHT + 6, y + 4.5, fixed(threshold, 2), theme.ink, 13.5, weight=700))
    rows = compare(curves, paper, threshold)
    said = told(rows, threshold)
    lines = wrap(said, 104)
    body += [text(16, bottom + 68 + 18 * i, line, theme.ink, 12.5, weight=600) for i, line in enumerate(lines)]
    bottom += 18 * len(lines) - 18
    columns = [16, 270, 360, 460, 590, 690]
    first = next((row.system for row in rows if row.ratio is None and row.paper_ratio is None), "")
    heads = ["rate at the line [requests/s]", "ours", "paper", "error", f"{first} over it", "paper"]
    for i, words in enumerate([heads, *(cells(row) for row in rows)]):
        for x, word in zip(columns, words, strict=True):
            body.append(text(x, bottom + 94 + 20 * i, word, theme.ink if i else theme.muted, 12.5, "start" if x == 16 else "end"))
    return document(WIDTH, bottom + 108 + 20 * len(rows), f"{title}: {LATENCY} over {RATES}. {said}", theme, body)


def _beyond(x: float, y: float, latency: float) -> str:
    """An arrow at a point that is above the axes."""
    return f"M{num(x)} {num(y - 13)}l-3.5 5h7z" if latency > TOP_LATENCY else ""


def _legend(looks: Mapping[str, SystemLook], theme: Theme) -> list[str]:
    body, x = [], 16.0
    for name, look in looks.items():
        dash = f' stroke-dasharray="{look.dash}"' if look.dash else ""
        body.append(f'<path d="M{num(x)} 50h34" stroke="{look.hue}" stroke-width="2.2"{dash}/>')
        body.append(f'<path d="{mark(look.mark, x + 17, 50)}" fill="{look.hue}"/>')
        body.append(text(x + 40, 54, name, theme.ink, 12))
        x += 58 + 6.4 * len(name)
    return body
