"""The walk of a query as SVG: the pool, the table's arrows into it, and a row a visited block: its scores, then m, l and acc.

Rows of blocks that are still to be visited are empty, so the last step's picture is the whole walk.
"""
from __future__ import annotations

import math

from ..words import counted
from .palette import AUTO, HUES, OUTLINE, Theme
from .shapes import document, num, rect, text
from .walk import Numbers, Walk, WalkStep, compared, told

WIDTH, MARGIN, TOP, ROW = 820, 16, 82, 66
POOL, CELL, BOX, BOX_WIDTH = 16, 44, 118, 82
SCORES, SCORES_WIDTH, M, KEPT, L, ACC, ACC_WIDTH = 216, 168, 440, 505, 570, 596, 208
HUE, WRONG = HUES[0], HUES[5]
MOST_DRAWN = 16


def pool_rows(walk: Walk) -> list[int | None]:
    """The blocks of the pool that are drawn: all, or of a large one those of the table, with None where others are left out."""
    if walk.num_blocks <= MOST_DRAWN:
        return list(range(walk.num_blocks))
    rows: list[int | None] = []
    for block in sorted({*walk.table}):
        if block and (not rows or rows[-1] != block - 1):
            rows.append(None)
        rows.append(block)
    return rows if rows[-1] == walk.num_blocks - 1 else [*rows, None]


def heading(walk: Walk) -> str:
    return f"One query reads {counted(walk.length, 'token')} through the block table [{', '.join(map(str, walk.table))}]"


def walk_svg(walk: Walk, shown: int, forget: bool = False, theme: Theme = AUTO) -> str:
    """The picture after step ``shown``, as an SVG document; ``forget``: of somebody who does not rescale."""
    pool, now = pool_rows(walk), walk.steps[shown]
    count = len(walk.table)
    inside = max(count * ROW, 22 * len(pool))
    cell = min(30.0, inside / len(pool))
    body = [text(MARGIN, 26, heading(walk), theme.ink, 15, weight=600),
            text(WIDTH - MARGIN, 26, f"step {shown} of {count}", theme.ink, 15, "end", 600),
            text(MARGIN, 47, "forgetting to rescale l and acc" if forget else "l and acc are rescaled whenever m grows", theme.muted, 12)]
    low, high = score_range(walk)
    most = max(float(abs(step.sums(forget).acc).max()) for step in walk.steps)
    for x, words, anchor in (
        (POOL, "pool", "start"), (BOX, "table", "start"), (SCORES, f"scores ({low:.1f} to {high:.1f})", "start"), (M, "m", "end"),
        (KEPT, "× factor", "end"), (L, "l", "end"), (ACC, f"acc, {len(now.right.acc)} numbers (±{most:.1f})", "start"),
    ):
        body.append(text(x, TOP - 10, words, theme.muted, 11.5, anchor))
    places = {block: TOP + i * cell for i, block in enumerate(pool) if block is not None}
    body += _pool(walk, now, pool, cell, theme)
    for i, block in enumerate(walk.table):
        step, lit = walk.steps[i + 1], i + 1 == shown
        bend = POOL + CELL + 14 + (i + 0.5) * 36 / count
        body.append(_arrow(TOP + (i + 0.5) * ROW - 4, places[block] + cell / 2, bend, lit, i + 1 > shown))
        body += _entry(walk, i, step, lit, theme)
        if i + 1 <= shown:
            body += _scores(step, TOP + i * ROW, walk, lit, theme)
            body += _state(step, TOP + i * ROW, forget, lit, most, theme)
    y = TOP + inside + 22
    said = compared(now, forget)
    body.append(text(MARGIN, y, said, theme.ink, 13, weight=600))
    note = "Dashed: m, the largest score so far. Ticks over acc: what was summed before, as it counts now."
    body.append(text(MARGIN, y + 20, note, theme.muted, 11.5))
    label = f"{heading(walk)}. {told(now, forget)}. {said}"
    return document(WIDTH, y + 32, label, theme, body)


def score_range(walk: Walk) -> tuple[float, float]:
    every = [float(x) for step in walk.steps for x in step.scores]
    return min(0.0, *every), max(0.0, *every)


def _pool(walk: Walk, now: WalkStep, pool: list[int | None], cell: float, theme: Theme) -> list[str]:
    body = []
    done = {*walk.table[: now.step]}
    for i, block in enumerate(pool):
        y = TOP + i * cell
        if block is None:
            body.append(text(POOL + CELL / 2, y + cell / 2 + 4, "...", theme.muted, 12, "middle"))
            continue
        lit, mine = block == now.block, block in walk.table
        opacity = "1" if lit else ".45" if block in done else ".14"
        line = f'stroke="{theme.ink if lit else OUTLINE}" stroke-width="{2.5 if lit else 1}" fill-opacity="{opacity}"'
        body.append(rect(POOL + 1, y + 1, CELL - 2, cell - 3, HUE if mine else "none", 4, line))
        ink = "#FFFFFF" if lit else theme.ink if mine else theme.muted
        body.append(text(POOL + CELL / 2, y + cell / 2 + 3.5, str(block), ink, 12, "middle", 700 if mine else 400))
    return body


def _arrow(start: float, end: float, x: float, lit: bool, ahead: bool) -> str:
    """From a table entry to its block, to the left, with two bends at x: one of its own for each, so that none runs on another."""
    stop = POOL + CELL + 2
    path = f"M{BOX - 2} {num(start)}H{num(x)}V{num(end)}H{stop}M{stop + 6} {num(end - 4)}L{stop} {num(end)}L{stop + 6} {num(end + 4)}"
    style = f'stroke="{HUE}" stroke-width="{3 if lit else 1.5}" stroke-opacity="{1 if lit else .3 if ahead else .45}"'
    return f'<path d="{path}" fill="none" {style}/>'


def _entry(walk: Walk, i: int, step: WalkStep, lit: bool, theme: Theme) -> list[str]:
    y, filled = TOP + i * ROW, len(step.positions)
    line = f'fill-opacity="{.3 if lit else .1}" stroke="{theme.ink if lit else OUTLINE}" stroke-opacity="{1 if lit else .5}"'
    return [
        rect(BOX, y + 8, BOX_WIDTH, 42, HUE, 4, line),
        text(BOX + BOX_WIDTH / 2, y + 26, f"{i} → {step.block}", theme.ink, 13.5, "middle", 700),
        text(BOX + BOX_WIDTH / 2, y + 43, f"{filled} of {walk.block_size} slots", theme.ink, 11, "middle"),
    ]


def _scores(step: WalkStep, y: float, walk: Walk, lit: bool, theme: Theme) -> list[str]:
    low, high = score_range(walk)
    scale, pitch = (ROW - 12) / ((high - low) or 1), SCORES_WIDTH / walk.block_size
    zero = y + 4 + high * scale
    bars = "".join(_bar(SCORES + j * pitch, zero, pitch, float(s) * scale) for j, s in enumerate(step.scores))
    m = zero - step.m * scale
    return [
        f'<path d="{bars}" fill="{HUE}" fill-opacity="{1 if lit else .55}"/>',
        f'<path d="M{SCORES} {num(zero)}h{SCORES_WIDTH}" stroke="{OUTLINE}" stroke-opacity=".7"/>',
        f'<path d="M{SCORES} {num(m)}h{SCORES_WIDTH}" stroke="{theme.ink}" stroke-width="1.5" stroke-dasharray="4 3"/>',
    ]


def _state(step: WalkStep, y: float, forget: bool, lit: bool, most: float, theme: Theme) -> list[str]:
    sums, weight = step.sums(forget), 700 if lit else 400
    first, grew = math.isinf(step.m_before), step.m > step.m_before
    factor = "" if first else f"× {step.kept:.2f}"
    body = [
        text(M, y + 34, f"{step.m:.2f}", theme.ink, 13.5, "end", weight),
        text(KEPT, y + 34, factor, theme.ink if grew else theme.muted, 13.5, "end", weight if grew else 400),
        text(L, y + 34, f"{sums.l:.2f}", theme.ink, 13.5, "end", weight),
    ]
    if forget and grew and not first:
        body.append(f'<path d="M{KEPT - 46} {num(y + 29)}h48" stroke="{WRONG}" stroke-width="2.5"/>')
        body.append(text(KEPT, y + 50, "forgotten", theme.ink, 11, "end"))
    old = step.acc_before(forget) * (1.0 if forget else step.kept) if lit and not first else None
    return body + _acc(sums.acc, old, y, most, lit, WRONG if forget and sums.error > 1e-12 else HUE, theme)


def _acc(acc: Numbers, old: Numbers | None, y: float, most: float, lit: bool, hue: str, theme: Theme) -> list[str]:
    scale, pitch = (ROW - 12) / 2 / (most or 1), ACC_WIDTH / len(acc)
    zero = y + 4 + (ROW - 12) / 2
    bars = "".join(_bar(ACC + j * pitch, zero, pitch, float(a) * scale) for j, a in enumerate(acc))
    body = [f'<path d="{bars}" fill="{hue}" fill-opacity="{1 if lit else .55}"/>',
            f'<path d="M{ACC} {num(zero)}h{ACC_WIDTH}" stroke="{OUTLINE}" stroke-opacity=".7"/>']
    if old is not None:
        marks = "".join(f"M{num(ACC + j * pitch)} {num(zero - float(a) * scale)}h{num(pitch * .8)}" for j, a in enumerate(old))
        body.append(f'<path d="{marks}" stroke="{theme.ink}" stroke-width="1.4"/>')
    return body


def _bar(x: float, zero: float, pitch: float, height: float) -> str:
    return f"M{num(x)} {num(zero)}v{num(-height)}h{num(pitch * .8)}v{num(height)}z"
