"""Requests as bars over steps, as SVG and as letters: who waited, computed a prompt, wrote tokens, stepped back, and when each ended."""
from __future__ import annotations

from dataclasses import dataclass

from ..trace import EventLog, Lane, TraceState, history
from ..words import counted
from .palette import AUTO, OUTLINE, Theme, look
from .shapes import clean, document, dots, hatch, num, rect, text
from .svg import counts

KINDS = {
    "waiting": "waits", "prefill": "prefill: computes its prompt, or again what was lost", "decode": "decode: one token a step and branch",
    "stalled": "runs, but gets no token in this step", "preempted": "preempted: its blocks are gone", "swapped": "swapped out to host memory",
}
"""Every kind of span, and what the legend calls it."""
LETTERS = {"waiting": ".", "prefill": "P", "decode": "d", "stalled": "-", "preempted": "x", "swapped": "s"}
MOST_LANES, MIN_STEP, MAX_STEP, BARS = 32, 1.5, 44.0, 44
WIDTH, LEFT, TOP, MARGIN = 832, 104, 66, 16


@dataclass(frozen=True, slots=True)
class Window:
    """The steps ``first .. last`` and the lanes that fit into the picture, and where a step and a lane stand."""

    first: int
    last: int
    lanes: tuple[Lane, ...]
    left: float
    pitch: float
    row: float

    @classmethod
    def of(cls, lanes: list[Lane], first: int, last: int, now: int, left: float, room: float) -> Window:
        """Of a long run the part around ``now``; of many requests, the first one that is unfinished then and those about it."""
        fits = max(8, int(room / MIN_STEP))
        if last - first + 1 > fits:
            page = fits // 2
            first = max(first, min((now - first) // page * page + first - page // 2, last - fits + 1))
            last = min(last, first + fits - 1)
        if len(lanes) > MOST_LANES:
            open_at = next((i for i, lane in enumerate(lanes) if lane.ended is None or lane.ended >= now), len(lanes))
            start = max(0, min(open_at - 4, len(lanes) - MOST_LANES))
            lanes = lanes[start : start + MOST_LANES]
        row = max(12, min(26, 390 // max(1, len(lanes))))
        return cls(first, last, tuple(lanes), left, min(MAX_STEP, room / max(1, last - first + 1)), row)

    def x(self, step: int) -> float:
        """Left edge of a step; ``x(step + 1)`` is its right edge."""
        return self.left + (min(max(step, self.first), self.last + 1) - self.first) * self.pitch


def steps_of(log: EventLog) -> tuple[int, int]:
    """The steps of a log that something can have happened in: from its first one after the beginning."""
    return log.first_step + 1, max(log.last_step, log.first_step + 12)


def timeline_svg(log: EventLog, state: TraceState, theme: Theme = AUTO) -> str:
    """The bars of a whole log; what comes after the step of ``state`` is pale."""
    lanes, now = history(log), state.step
    window = Window.of(lanes, *steps_of(log), now, LEFT, WIDTH - LEFT - MARGIN - 40)
    tall = TOP + len(window.lanes) * window.row
    body = [
        text(MARGIN, 26, f"{counted(len(lanes), 'request')} over {counted(log.last_step - log.first_step, 'step')}", theme.ink, 16, weight=600),
        text(WIDTH - MARGIN, 26, f"step {now}", theme.ink, 16, "end", 600), text(MARGIN, 46, counts(state), theme.muted, 12),
    ]
    for i, lane in enumerate(window.lanes):
        body += _lane(lane, window, TOP + i * window.row, theme)
    body += _load(lanes, window, tall + 10, theme)
    body += _axis(window, tall + 10 + BARS, theme)
    edge = window.x(now + 1)
    if edge < window.x(window.last + 1):
        body.append(rect(edge, TOP - 4, WIDTH - edge, tall + BARS + 16 - TOP, theme.ground, extra='fill-opacity=".7"'))
    body += [_end(lane, window, TOP + i * window.row, now, theme) for i, lane in enumerate(window.lanes)]
    body.append(f'<path d="M{num(edge)} {num(TOP - 8)}V{num(tall + 10 + BARS)}" stroke="{theme.ink}" stroke-width="1.5"/>')
    body.append(f'<path d="M{num(edge - 5)} {num(TOP - 14)}h10l-5 7z" fill="{theme.ink}"/>')
    body += _legend(lanes, window, tall + BARS + 48, theme)
    hidden = len(lanes) - len(window.lanes)
    note = f"the lanes of {len(window.lanes)} of {len(lanes)} requests" if hidden else ""
    kinds = shown_kinds(lanes)
    height = tall + BARS + 48 + 20 * (-(-(len(kinds) + 1) // 2)) + (18 if note else 4)
    if note:
        body.append(text(MARGIN, height - 8, note, theme.muted, 11))
    return document(WIDTH, height, f"Timeline at step {now}: {summary(lanes, now)}; {counts(state)}", theme, body)


def shown_kinds(lanes: list[Lane]) -> list[str]:
    """The kinds for the legend: the three that every run has, and of the others those that this one has."""
    there = {span.kind for lane in lanes for span in lane.spans} | {"waiting", "prefill", "decode"}
    return [kind for kind in KINDS if kind in there]


def summary(lanes: list[Lane], step: int) -> str:
    """What the requests do in a step, e.g. "A decodes; B, C prefill"."""
    doing: dict[str, list[str]] = {}
    for lane in lanes:
        if (at := lane.at(step)) is not None:
            doing.setdefault(at[0], []).append(look(lane.arrival).letter)
    return "; ".join(f"{', '.join(names)} {kind}" for kind, names in sorted(doing.items())) or "nobody is there"


def told(lane: Lane, step: int) -> str:
    """What the tooltip says of a lane's step."""
    name = f"{look(lane.arrival).letter} (request {lane.request_id})"
    at = lane.at(step)
    if at is None:
        gone = lane.ended is not None and step > lane.ended
        return f"{name}, step {step}: " + (f"ended in step {lane.ended} ({lane.reason or 'ended'})" if gone else "not there")
    kind, tokens = at
    lines = [f"{name}, step {step}: {kind}" + (f", {counted(tokens, 'token')}" if tokens else "")]
    lines += [f"admitted with {counted(total, 'token')}, {cached} of them from the prefix cache" for when, total, cached in lane.cached
              if when == step and cached]
    lines.append(f"{counted(lane.num_prompt_tokens, 'prompt token')}, at most {lane.max_tokens} new")
    if lane.ended == step:
        lines.append(f"ended: {reason_words(lane.reason)}")
    return "\n".join(lines)


def reason_words(reason: str) -> str:
    """How the end of a request is called."""
    return {"kv_pool": "length, it filled the pool alone", "": "ended"}.get(reason, reason)


def _lane(lane: Lane, window: Window, y: float, theme: Theme) -> list[str]:
    owner, row = look(lane.arrival), window.row
    high = row - (2 if row < 14 else 4)
    wide = max(high, 6 + 0.62 * high * len(owner.letter))
    size = 0.76 * high
    parts = [f"<g><title>{clean(told(lane, lane.arrived + 1))}</title>", rect(MARGIN, y, wide, high, owner.hue, 3),
             text(MARGIN + wide / 2, y + 0.79 * high, owner.letter, owner.on_hue, size, "middle", 700)]
    if row >= 12:
        parts.append(text(LEFT - 10, y + high / 2 + 4, f"{lane.num_prompt_tokens} + {lane.max_tokens}", theme.muted, min(11, row - 3), "end"))
    for span in lane.spans:
        if span.last < window.first or span.first > window.last:
            continue
        if span.kind in ("prefill", "decode"):
            steps = range(max(span.first, window.first), min(span.last, window.last) + 1)
            if span.kind == "decode" and len(set(span.tokens)) == 1:
                parts.append(mark(span.kind, window.x(span.first), y, window.x(span.last + 1) - window.x(span.first), high, owner.hue, theme))
                continue
            for step in steps:
                parts.append(_worked(span.kind, span.tokens[step - span.first], window, step, y, high, lane, theme))
        else:
            parts.append(mark(span.kind, window.x(span.first), y, window.x(span.last + 1) - window.x(span.first), high, owner.hue, theme))
    return [*parts, "</g>"]


def _end(lane: Lane, window: Window, y: float, now: int, theme: Theme) -> str:
    """Where a lane ends, and why."""
    end = lane.spans[-1].last + 1 if lane.spans else lane.arrived + 1
    if lane.ended is None or not window.first <= end <= window.last + 1:
        return ""
    x, high = window.x(end), window.row - (2 if window.row < 14 else 4)
    parts = rect(x - 1, y, 2.5, high, theme.ink)
    if window.row >= 12 and lane.reason:
        parts += text(x + 5, y + high / 2 + 4, "length" if lane.reason == "kv_pool" else lane.reason, theme.muted, 10)
    return f'<g opacity=".35">{parts}</g>' if lane.ended > now else parts


def _worked(kind: str, tokens: int, window: Window, step: int, y: float, high: float, lane: Lane, theme: Theme) -> str:
    """One step in which something was computed, with the number of tokens if there is room."""
    x, owner, label = window.x(step), look(lane.arrival), str(tokens)
    gap = 1 if window.pitch >= 4 else 0
    parts = mark(kind, x, y, window.pitch - gap, high, owner.hue, theme)
    size = min(11, high - 3, (window.pitch - gap - 2) / (0.62 * len(label)))
    wide = 0.62 * size * len(label) + 2
    if tokens > 1 and size >= 7.5:
        middle = x + (window.pitch - gap) / 2
        parts += rect(middle - wide / 2, y + 1, wide, high - 2, owner.hue, 2) if kind == "prefill" else ""
        parts += text(middle, y + high / 2 + 0.36 * size, label, owner.on_hue, size, "middle", 600)
    return f"<g><title>{clean(told(lane, step))}</title>{parts}</g>"


def mark(kind: str, x: float, y: float, width: float, high: float, hue: str, theme: Theme) -> str:
    """A stretch of one kind: told by height, filling and line, not by colour alone."""
    low, thin = y + 0.22 * high, 0.56 * high
    if kind == "prefill":
        lines = hatch(x, y, width, high, "rising", 5) if width >= 3 else ""
        drawn = f'<path d="{lines}" stroke="{theme.ground}" stroke-width="1.3" stroke-opacity=".75"/>' if lines else ""
        return rect(x, y, width, high, hue, 2) + drawn
    if kind == "decode":
        return rect(x, low, width, thin, hue, 2)
    if kind == "stalled":
        return (rect(x, low, width, thin, hue, 2, 'fill-opacity=".25"')
                + f'<path d="{dots(x, low, width, thin, 4)}" stroke="{theme.ink}" stroke-width="1.4" stroke-linecap="round"/>')
    if kind in ("preempted", "swapped"):
        dash = ' stroke-dasharray="4 3"' if kind == "swapped" else ""
        return rect(x + 0.75, low, max(0.5, width - 1.5), thin, "none", 2, f'stroke="{hue}" stroke-width="1.8"{dash}')
    return f'<path d="M{num(x)} {num(y + high / 2)}h{num(width)}" stroke="{theme.muted}" stroke-width="1.5" stroke-dasharray="1.5 3.5"/>'


def loads(lanes: list[Lane]) -> dict[int, tuple[int, int]]:
    """Step -> (tokens of prompts, tokens of decodes) that it computed."""
    found: dict[int, tuple[int, int]] = {}
    for lane in lanes:
        for span in lane.spans:
            for i, tokens in enumerate(span.tokens):
                prompt, decode = found.get(span.first + i, (0, 0))
                found[span.first + i] = (prompt + tokens, decode) if span.kind == "prefill" else (prompt, decode + tokens)
    return found


def _load(lanes: list[Lane], window: Window, y: float, theme: Theme) -> list[str]:
    """Tokens a step, as bars: prompts hatched, decodes solid."""
    found = loads(lanes)
    most = max((sum(pair) for pair in found.values()), default=0)
    body = [text(MARGIN, y + 12, "tokens", theme.muted, 11), text(MARGIN, y + 25, "a step", theme.muted, 11),
            text(LEFT - 10, y + 9, str(most), theme.muted, 10, "end"), text(LEFT - 10, y + BARS, "0", theme.muted, 10, "end")]
    gap = 1 if window.pitch >= 4 else 0
    for step, (prompt, decode) in sorted(found.items()):
        if not window.first <= step <= window.last or not prompt + decode:
            continue
        x, width, scale = window.x(step), window.pitch - gap, (BARS - 2) / most
        base, split = y + BARS, y + BARS - decode * scale
        parts = rect(x, split, width, base - split, OUTLINE)
        if prompt:
            top = split - prompt * scale
            lines = hatch(x, top, width, split - top, "rising", 5) if width >= 3 else ""
            parts += rect(x, top, width, split - top, OUTLINE, extra='fill-opacity=".3"')
            parts += f'<path d="{lines}" stroke="{OUTLINE}" stroke-width="1.2"/>' if lines else ""
        tip = f"step {step}: {counted(prompt + decode, 'token')}, {prompt} of prompts and {decode} decoded"
        body.append(f"<g><title>{tip}</title>{parts}</g>")
    return body


def _axis(window: Window, y: float, theme: Theme) -> list[str]:
    """Steps, labelled where there is room; their numbers stand in the middle of a step."""
    body = [f'<path d="M{num(window.left)} {num(y)}H{num(window.x(window.last + 1))}" stroke="{OUTLINE}"/>',
            text(MARGIN, y + 15, "step", theme.muted, 11)]
    every = next(n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000) if n * window.pitch >= 26 or n == 10000)
    for step in range(window.first, window.last + 1):
        if step % every == 0 or every == 1:
            middle = window.x(step) + window.pitch / 2
            body.append(f'<path d="M{num(middle)} {num(y)}v4" stroke="{OUTLINE}"/>')
            body.append(text(middle, y + 15, str(step), theme.muted, 10, "middle"))
    return body


def _legend(lanes: list[Lane], window: Window, y: float, theme: Theme) -> list[str]:
    """What each mark means, in two columns."""
    hue = look(window.lanes[0].arrival).hue if window.lanes else look(0).hue
    entries = [(kind, KINDS[kind]) for kind in shown_kinds(lanes)]
    entries.append(("end", "its end, and why. Left: prompt + most new tokens; in the bars: tokens of a step"))
    body = []
    for i, (kind, words) in enumerate(entries):
        x, top = MARGIN + (i % 2) * 396, y + 20 * (i // 2)
        body.append(rect(x + 14, top, 2.5, 14, theme.ink) if kind == "end" else mark(kind, x, top, 30, 14, hue, theme))
        body.append(text(x + 38, top + 11, words, theme.muted, 11.5))
    return body


def timeline_text(log: EventLog, state: TraceState, most: int = 100) -> str:
    """A lane a line, a letter a step, up to the step of ``state``; of a long run the last ``most`` steps."""
    lanes, now = history(log), state.step
    start = max(steps_of(log)[0], now - most + 1)
    used = sorted({span.kind for lane in lanes for span in lane.spans}, key=list(KINDS).index)
    key = ", ".join(f"{LETTERS[kind]} {kind}" for kind in used)
    lines = [f"step {now}: {counts(state)}", f"steps {start} to {now}" + (f" ({key})" if key else "")]
    wide = max((len(look(lane.arrival).letter) for lane in lanes), default=1)
    for lane in lanes[-MOST_LANES:]:
        marks = "".join(LETTERS[at[0]] if (at := lane.at(step)) else " " for step in range(start, now + 1)).rstrip()
        gone = f" {lane.reason or 'ended'}" if lane.ended is not None and lane.ended <= now else ""
        lines.append(f"{look(lane.arrival).letter.rjust(wide)} {marks}{gone}".rstrip())
    return "\n".join(lines)
