"""SVG by hand: escaping, numbers, rectangles, text, ticks and hatches as strings.

No shape uses an ``id``: several pictures may stand in one page, and ids of inline pictures would collide. Hatches are therefore drawn
line by line instead of as ``<pattern>``.
"""
from __future__ import annotations

import re
from xml.sax.saxutils import escape as _escape

from .palette import Theme

FONT = "system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif"
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def clean(text: str) -> str:
    """``text`` as XML character data or attribute value: markup escaped, characters that XML cannot hold shown as U+FFFD."""
    return _escape(_NOT_XML.sub("\ufffd", text), {'"': "&quot;"})


def num(value: float) -> str:
    """A coordinate, at most two decimals, no trailing zeros: pictures stay small and the same on every machine."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def rect(x: float, y: float, width: float, height: float, fill: str, radius: float = 0, extra: str = "") -> str:
    """A rectangle; ``extra`` is raw attributes."""
    corner = f' rx="{num(radius)}"' if radius else ""
    return (
        f'<rect x="{num(x)}" y="{num(y)}" width="{num(width)}" height="{num(height)}"{corner} fill="{fill}"'
        f'{" " + extra if extra else ""}/>'
    )


def text(x: float, y: float, content: str, fill: str, size: float, anchor: str = "start", weight: int = 400) -> str:
    """A line of text with its baseline at ``y``; ``content`` is escaped here."""
    more = (f' text-anchor="{anchor}"' if anchor != "start" else "") + (f' font-weight="{weight}"' if weight != 400 else "")
    return f'<text x="{num(x)}" y="{num(y)}" fill="{fill}" font-size="{num(size)}"{more}>{clean(content)}</text>'


def span(content: str, fill: str, size: float, weight: int = 400, gap: float = 0) -> str:
    """A part of a line, ``gap`` pixels after the one before: the browser knows how wide its own font is, we don't."""
    shift = f' dx="{num(gap)}"' if gap else ""
    return f'<tspan fill="{fill}" font-size="{num(size)}" font-weight="{weight}"{shift}>{clean(content)}</tspan>'


def ticks(x: float, y: float, pitch: float, height: float, first: int, stop: int, fill: str, extra: str = "") -> str:
    """Ticks ``first .. stop - 1`` of a strip that starts at ``x``: one path, or one bar where ticks would be too thin to tell apart."""
    if stop <= first or height <= 0:
        return ""
    if pitch < MIN_TICK:
        return rect(x + first * pitch, y, (stop - first) * pitch, height, fill, extra=extra)
    gap = min(1.0, 0.3 * pitch)                             # one dashed line: a tenth of the bytes of sixteen rectangles
    line = f"M{num(x + first * pitch)} {num(y + height / 2)}h{num((stop - first) * pitch - gap)}"
    dashes = f'stroke="{fill}" stroke-width="{num(height)}" stroke-dasharray="{num(pitch - gap)} {num(gap)}"'
    return f'<path d="{line}" {dashes}{" " + extra if extra else ""}/>'


MIN_TICK = 2.0
"""Narrowest tick, in pixels, that is drawn by itself."""


def hatch(x: float, y: float, width: float, height: float, kind: str, gap: float = 6) -> str:
    """Path data of diagonal lines that fill a rectangle: ``kind`` is "rising", "falling" or "crossed"; "solid" gives none."""
    lines = []
    offset = gap / 2
    while kind != "solid" and offset < width + height:
        # The falling diagonal through (offset, 0) and (0, offset), cut at the rectangle; the other one is its mirror image.
        x0, y0 = (offset, 0.0) if offset <= width else (width, offset - width)
        x1, y1 = (0.0, offset) if offset <= height else (offset - height, height)
        if kind in ("rising", "crossed"):
            lines.append(f"M{num(x + x0)} {num(y + y0)}L{num(x + x1)} {num(y + y1)}")
        if kind in ("falling", "crossed"):
            lines.append(f"M{num(x + width - x0)} {num(y + y0)}L{num(x + width - x1)} {num(y + y1)}")
        offset += gap
    return "".join(lines)


def document(width: float, height: float, label: str, theme: Theme, body: list[str], scales: bool = False) -> str:
    """The whole picture on its own ground. ``label`` says in words what it shows; ``scales``: as wide as its place, ``width`` at most."""
    size = f'width="100%" style="max-width:{num(width)}px"'
    if not scales:
        size = f'width="{num(width)}" height="{num(height)}" style="max-width:100%;height:auto"'
    style = f"<style>{theme.style}</style>" if theme.style else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="paged-edu" role="img" aria-label="{clean(label)}" '
        f'viewBox="0 0 {num(width)} {num(height)}" {size} font-family="{FONT}">{style}'
        f"{rect(0, 0, width, height, theme.ground)}{''.join(body)}</svg>\n"
    )


def dots(x: float, y: float, width: float, height: float, gap: float = 5) -> str:
    """Path data of a lattice of dots that fills a rectangle: stroke it with round line ends."""
    across, down = int(width // gap), int(height // gap)
    x0, y0 = x + (width - (across - 1) * gap) / 2, y + (height - (down - 1) * gap) / 2
    return "".join(f"M{num(x0 + i * gap)} {num(y0 + j * gap)}h.01" for j in range(down) for i in range(across))


def part(x: float, y: float, width: float, height: float, kind: str, hue: str) -> str:
    """A stretch of slots: "token" solid, "reserved" (needed later) dotted, "internal" (never needed) hatched, "free" cross-hatched."""
    if width <= 0:
        return ""
    if kind == "token":
        return rect(x, y, width, height, hue)
    ground = rect(x, y, width, height, hue, extra=f'fill-opacity="{".35" if kind == "reserved" else ".1"}"')
    if kind == "reserved":
        marks, width_ = dots(x, y, width, height), "1.6"
    else:
        marks, width_ = hatch(x, y, width, height, "rising" if kind == "internal" else "crossed", 7), "1"
    return f'{ground}<path d="{marks}" stroke="{hue}" stroke-width="{width_}" stroke-linecap="round" fill="none"/>'
