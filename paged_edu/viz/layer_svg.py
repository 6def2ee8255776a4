"""A layer as SVG: its lines with the shapes of a prefill and of a decode step, the pool beside them, an arrow into it and one out of it.

Lines that are still to come are dimmed, so the last step's picture is the whole layer.
"""
from __future__ import annotations

from textwrap import wrap

from .layer_walk import BLOCK_SIZE, INTO, NUM_BLOCKS, OUT_OF, TABLE, LayerLine, LayerWalk, slot, told
from .palette import AUTO, HUES, OUTLINE, Theme
from .shapes import document, num, rect, text

WIDTH, MARGIN, TOP, ROW = 856, 16, 84, 27
CODE, PREFILL, DECODE, POOL, CELL = 42, 330, 522, 740, 23
FIRST, NEXT = HUES[0], HUES[1]
"""Of the prefill's tokens, and of the decoded one."""


def heading(walk: LayerWalk) -> str:
    return f"{walk.name}: a layer, line by line"


def layer_svg(walk: LayerWalk, shown: int, theme: Theme = AUTO) -> str:
    """The picture at line ``shown``, as an SVG document."""
    now, count = walk.lines[shown], len(walk.lines)
    body = [
        text(MARGIN, 26, heading(walk), theme.ink, 15, weight=600),
        text(WIDTH - MARGIN, 26, f"line {shown} of {count - 1}", theme.ink, 15, "end", 600),
        text(MARGIN, 47, "The shapes that come out of each line; T tokens are computed together.", theme.muted, 12),
        text(CODE, TOP - 12, "line", theme.muted, 12), text(PREFILL, TOP - 12, f"prefill, T = {walk.num_tokens}", theme.ink, 12, weight=600),
        text(DECODE, TOP - 12, "decode, T = 1", theme.ink, 12, weight=600), text(WIDTH - MARGIN, TOP - 12, "pool", theme.muted, 12, "end"),
        rect(PREFILL - 16, TOP - 21, 10, 10, FIRST, 2), rect(DECODE - 16, TOP - 21, 10, 10, NEXT, 2),
    ]
    for line in walk.lines:
        body += _line(line, shown, theme)
    body += _pool(walk, now, theme)
    for line in walk.lines:
        if line.pool:
            body.append(_arrow(line, shown))
    y = TOP + count * ROW + 22
    said = wrap(now.why, 128)
    body += [text(MARGIN, y + 18 * i, words, theme.ink, 13) for i, words in enumerate(said)]
    return document(WIDTH, y + 18 * len(said) + 2, f"{heading(walk)}. {told(now)}. {now.why}", theme, body)


def _line(line: LayerLine, shown: int, theme: Theme) -> list[str]:
    y, lit = TOP + line.step * ROW, line.step == shown
    body = []
    if lit:
        body.append(rect(MARGIN - 6, y, POOL - 60 - MARGIN, ROW - 2, HUES[4], 4, 'fill-opacity=".28"'))
    faint = ' opacity=".35"' if line.step > shown else ""
    weight = 700 if lit else 400
    words = [
        text(MARGIN, y + 17, str(line.step), theme.muted, 11.5), text(CODE, y + 17, line.code, theme.ink, 12.5, weight=weight),
        text(PREFILL, y + 17, line.prefill, theme.ink, 12.5, weight=weight), text(DECODE, y + 17, line.decode, theme.ink, 12.5, weight=weight),
    ]
    return [*body, f"<g{faint}>{''.join(words)}</g>"]


def _pool(walk: LayerWalk, now: LayerLine, theme: Theme) -> list[str]:
    """Every slot of the pool; those of the sequence hold their position once the walk has come past the write."""
    places = {slot(position): position for position in range(walk.num_tokens + 1)}
    written = now.step >= next(line.step for line in walk.lines if line.pool == INTO)
    frame = f'stroke="{theme.ink if now.pool else OUTLINE}" stroke-width="{2 if now.pool else 1}"'
    body = [rect(POOL - 24, TOP + 6, 4 * CELL + 32, NUM_BLOCKS * (CELL + 4) + 40, "none", 6, frame),
            text(POOL - 14, TOP + 24, "position in slot", theme.muted, 11.5)]
    for block in range(NUM_BLOCKS):
        y = TOP + 34 + block * (CELL + 4)
        body.append(text(POOL - 7, y + 16, str(block), theme.ink if block in TABLE else theme.muted, 12, "end", 700 if block in TABLE else 400))
        for offset in range(BLOCK_SIZE):
            x, position = POOL + offset * CELL, places.get(block * BLOCK_SIZE + offset)
            if position is None or not written:
                body.append(rect(x, y, CELL - 2, CELL, "none", 3, f'stroke="{OUTLINE}" stroke-opacity=".5"'))
                continue
            decoded, lit = position == walk.num_tokens, bool(now.pool)
            line = f'stroke="{theme.ink if lit else OUTLINE}" stroke-width="{2 if lit else 1}" fill-opacity="{1 if lit else .6}"'
            body.append(rect(x, y, CELL - 2, CELL, NEXT if decoded else FIRST, 3, line))
            body.append(text(x + CELL / 2 - 1, y + 16, str(position), "#111111" if decoded else "#FFFFFF", 12, "middle", 700))
    return body


def _arrow(line: LayerLine, shown: int) -> str:
    """Between the end of a line and the pool."""
    y, lit = TOP + line.step * ROW + ROW / 2 - 1, line.step == shown
    start, stop = POOL - 64, POOL - 28
    tip, back = (stop, -6) if line.pool == INTO else (start, 6)
    path = f"M{start} {num(y)}H{stop}M{tip + back} {num(y - 5)}L{tip} {num(y)}L{tip + back} {num(y + 5)}"
    hue, width, opacity = HUES[5] if line.pool == OUT_OF else FIRST, 3.5 if lit else 2, 1 if lit else .3 if line.step > shown else .6
    return f'<path d="{path}" fill="none" stroke="{hue}" stroke-width="{width}" stroke-opacity="{opacity}"/>'
