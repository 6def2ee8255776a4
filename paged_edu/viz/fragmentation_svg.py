"""The four parts of Paper Fig. 2 as a bar: what the slots of the cache hold, of one memory manager or of several below one another."""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..core.kv_manager import MemoryReport
from ..core.sequence import Status
from ..trace import TraceState, memory_report
from ..words import counted, percent
from .palette import AUTO, EXTERNAL, INTERNAL, OUTLINE, RESERVED, TOKENS, Theme
from .shapes import clean, document, num, part, rect, text

WIDTH, MARGIN, BAR = 832, 16, 44


class Part(NamedTuple):
    """One of the four parts."""

    field: str
    """Its name in `MemoryReport`."""
    name: str
    kind: str
    """Its pattern; see `picture.part`."""
    hue: str
    meaning: str


PARTS = (
    Part("token_states", "token states", "token", TOKENS, "hold the keys and values of a token"),
    Part("reservation", "reservation", "reserved", RESERVED, "empty now, needed later if requests run to their longest; nobody else can have them"),
    Part("internal", "internal fragmentation", "internal", INTERNAL, "allocated and never to be used"),
    Part("external", "external or free", "free", EXTERNAL, "belong to nobody, or only to an allocator that rounds"),
)


def headline(report: MemoryReport) -> str:
    """What the picture is about, in one line."""
    return f"{percent(report.token_states, report.total)} of {counted(report.total, 'slot')} hold tokens"


def numbers(report: MemoryReport) -> str:
    """The four parts in slots."""
    words = ", ".join(f"{name} {getattr(report, field)}" for field, name, *_ in PARTS)
    return f"slots: {words}" + (f" ({report.cached} of them in the prefix cache)" if report.cached else "")


def told(part_: Part, report: MemoryReport) -> str:
    """What the tooltip of a part says."""
    slots = getattr(report, part_.field)
    return f"{part_.name}: {counted(slots, 'slot')}, {percent(slots, report.total)}\n{part_.meaning}"


def fragmentation_svg(rows: Sequence[tuple[str, TraceState]], theme: Theme = AUTO) -> str:
    """A bar for each (label, state), all of the same length; the axis is in % and, where the pools are equally large, in slots."""
    reports = [memory_report(state) for _, state in rows]
    body: list[str] = []
    y = 10.0
    wide = WIDTH - 2 * MARGIN
    for (label, state), report in zip(rows, reports, strict=True):
        name = f"{label}: {headline(report)}" if label else headline(report)
        body += [text(MARGIN, y + 14, name, theme.ink, 15, weight=600), text(WIDTH - MARGIN, y + 14, f"step {state.step}", theme.muted, 12, "end")]
        running, waiting = len(state.with_status(Status.RUNNING)), len(state.requests) - len(state.with_status(Status.RUNNING))
        body.append(f"<g>{''.join(_bar(report, MARGIN, y + 24, wide, theme))}</g>")
        body.append(text(MARGIN, y + 24 + BAR + 15, f"{numbers(report)}; {running} running, {waiting} waiting", theme.muted, 11.5))
        y += BAR + 54
    body += _axis(reports, y - 4, wide, theme)
    y += 36
    for part_, x in zip(PARTS, (MARGIN, 160, 300, 520), strict=True):
        body += [part(x, y, 30, 16, part_.kind, part_.hue), rect(x, y, 30, 16, "none", 2, f'stroke="{OUTLINE}"')]
        body.append(text(x + 38, y + 12.5, part_.name, theme.muted, 12))
    said = ". ".join(f"{label + ': ' if label else ''}{headline(r)}; {numbers(r)}" for (label, _), r in zip(rows, reports, strict=True))
    step = rows[0][1].step
    return document(WIDTH, y + 26, f"Memory at step {step}. {said}", theme, body)


def _bar(report: MemoryReport, x: float, y: float, wide: float, theme: Theme) -> list[str]:
    parts, at = [], x
    for part_ in PARTS:
        slots = getattr(report, part_.field)
        width = slots / report.total * wide
        if width > 0:
            drawn = part(at, y, width, BAR, part_.kind, part_.hue) + label(part_.name, percent(slots, report.total), at, y, width, theme)
            parts.append(f"<g><title>{clean(told(part_, report))}</title>{drawn}</g>")
        at += width
        if width > 0 and at < x + wide - 0.5:
            parts.append(f'<path d="M{num(at)} {num(y)}v{BAR}" stroke="{OUTLINE}"/>')
    return [*parts, rect(x, y, wide, BAR, "none", 3, f'stroke="{OUTLINE}"')]


def label(name: str, share: str, x: float, y: float, width: float, theme: Theme) -> str:
    """Percentage and, where there is room, name, on a ground of their own: a pattern makes letters hard to read."""
    words = next((w for w in (f"{name} {share}", share, share[:-2]) if 7.4 * len(w) + 14 <= width - 4), "")
    if not words:
        return ""
    wide = 7.4 * len(words) + 14
    left, middle = x + (width - wide) / 2, x + width / 2
    return rect(left, y + BAR / 2 - 10, wide, 20, theme.ground, 10) + text(middle, y + BAR / 2 + 4.5, words, theme.ink, 12.5, "middle", 600)


def _axis(reports: Sequence[MemoryReport], y: float, wide: float, theme: Theme) -> list[str]:
    totals = {report.total for report in reports}
    body = [f'<path d="M{MARGIN} {num(y)}h{num(wide)}" stroke="{OUTLINE}"/>']
    for i in range(5):
        x, anchor = MARGIN + wide * i / 4, ("start", "middle", "middle", "middle", "end")[i]
        slots = f" = {counted(next(iter(totals)) * i // 4, 'slot')}" if len(totals) == 1 and i else ""
        body.append(f'<path d="M{num(x)} {num(y)}v5" stroke="{OUTLINE}"/>')
        body.append(text(x, y + 18, f"{25 * i} %{slots}", theme.muted, 11, anchor))
    return body


def fragmentation_text(rows: Sequence[tuple[str, TraceState]]) -> str:
    """A bar of letters and the numbers, for each row."""
    lines = []
    for name, state in rows:
        report = memory_report(state)
        bar = ""
        done = 0
        for part_, sign in zip(PARTS, "#:/ ", strict=True):
            done += getattr(report, part_.field)
            bar += sign * (round(60 * done / report.total) - len(bar))
        lines.append(f"{name + ', ' if name else ''}step {state.step}: {headline(report)}")
        lines.append(f"[{bar}] # token states, : reservation, / internal, blank external or free")
        lines.append(numbers(report))
    return "\n".join(lines)
