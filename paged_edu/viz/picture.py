"""The README's picture: the same 24 requests in the same 960 slots, contiguous and paged, at the same step; every number is computed.

``python -m paged_edu.viz.picture PATH`` writes it. On both sides the real scheduler runs; left with the manager that reserves ``max_model_len`` slots
for each request ("orca-max"), right with the paged one. One row of sixteen blocks is one such slab, so the two sides compare by eye.
"""
from __future__ import annotations

import sys
from pathlib import Path

from ..core.sequence import Status
from ..trace import EventLog, TraceState
from ..trace.state import SequenceState
from .fake_engine import Trace24, trace24
from .palette import EXTERNAL, LIGHT, OUTLINE, look
from .shapes import document, num, part, rect, span, text

STEP = 12
"""The step that tells the story: the pool is full for the first time, everybody has started and nobody has had to step back."""
CELL, ROW, GAP = 28, 54, 3
LEFT, RIGHT, TOP, WIDTH = 28, 524, 128, 1000
INK, MUTED, GROUND = LIGHT.ink, LIGHT.muted, LIGHT.ground


def served(trace: Trace24, step: int, kv_manager: str) -> tuple[TraceState, int]:
    """The scheduler and one memory manager at the end of ``step``, and the output tokens so far."""
    engine = trace.engine(kv_manager)
    log = EventLog.of(engine.scheduler)
    engine.listen(log)
    sampled = 0
    for _ in range(step):
        sampled += sum(item.num_samples for item in engine.step().scheduled)
    return log.state, sampled


def readme_picture(step: int = STEP) -> str:
    """The picture as an SVG document on a light ground of its own."""
    trace = trace24()
    before, sampled_before = served(trace, step, "orca-max")
    after, sampled_after = served(trace, step, "paged")
    share_before, share_after = (100 * state.token_states() / trace.num_slots for state in (before, after))
    running_before, running_after = (len(state.with_status(Status.RUNNING)) for state in (before, after))
    waiting_before, waiting_after = (
        [state.requests[r].arrival for r in state.with_status(Status.WAITING, Status.PREEMPTED)] for state in (before, after)
    )
    count = len(trace.requests)
    label = (
        f"{count} requests share {trace.num_slots} slots of cache, step {step}. Contiguous: {running_before} run, {len(waiting_before)} wait, "
        f"{share_before:.0f} % of the slots hold tokens. Paged: {running_after} run, {len(waiting_after)} wait, {share_after:.0f} % hold tokens."
    )
    body = [
        text(LEFT, 42, f"The same memory, the same {count} requests, the same step", INK, 25, weight=700),
        text(LEFT, 67, f"{trace.num_slots} slots for keys and values, step {step} of serving; each letter is a request", MUTED, 15),
        *_heading(LEFT, "Contiguous", f"one slab of {trace.max_model_len} slots for each request"),
        *_heading(RIGHT, "Paged", f"{trace.block_size} slots at a time, wherever a block is free"),
        *_slabs(trace, before), *_blocks(after),
        *_result(LEFT, share_before, running_before, before.num_finished, sampled_before),
        *_result(RIGHT, share_after, running_after, after.num_finished, sampled_after),
        *_queue(LEFT, waiting_before), *_queue(RIGHT, waiting_after),
        *_legend(496),
    ]
    return document(WIDTH, 532, label, LIGHT, body, scales=True)


def _heading(x: float, name: str, what: str) -> list[str]:
    return [f'<text x="{num(x)}" y="{TOP - 14}">{span(name, INK, 19, 700)}{span(what, MUTED, 14, 400, 12)}</text>']


def _chip(x: float, y: float, arrival: int, width: float = 17, height: float = 17) -> str:
    owner = look(arrival)
    chip = rect(x, y, width, height, owner.hue, 3)
    return chip + text(x + width / 2, y + 0.79 * height, owner.letter, owner.on_hue, 0.8 * height, "middle", 700)


def _slabs(trace: Trace24, state: TraceState) -> list[str]:
    """One row a slab, at its place in memory, and what is left over and too small for another one."""
    blocks = trace.max_model_len // trace.block_size
    rows = trace.num_blocks // blocks
    owners = {seq.blocks[0] // blocks: seq for seq in state.sequences.values() if seq.blocks}
    body = []
    for row in range(rows):
        body += _slab(trace, TOP + row * ROW, state, owners.get(row))
    rest = trace.num_slots - rows * trace.max_model_len
    y, width = TOP + rows * ROW, CELL * rest / trace.block_size - GAP
    body.append(part(LEFT, y, width, ROW - GAP, "free", EXTERNAL))
    body.append(_pill(LEFT + width / 2, y + ROW / 2, f"{rest} slots: too few for one more slab"))
    body.append(rect(LEFT, y, width, ROW - GAP, "none", 4, f'stroke="{OUTLINE}"'))
    return body


def _slab(trace: Trace24, y: float, state: TraceState, owner: SequenceState | None) -> list[str]:
    width, height = 16 * CELL - GAP, ROW - GAP
    frame = rect(LEFT, y, width, height, "none", 4, f'stroke="{OUTLINE}" stroke-width="1.2"')
    if owner is None:
        return [frame]
    request, tokens = state.requests[owner.request_id], owner.num_computed
    longest = request.num_prompt_tokens + request.max_tokens - 1       # the last sampled token is never written
    slot, hue = width / trace.max_model_len, look(request.arrival).hue
    live, end, never = LEFT + tokens * slot, LEFT + longest * slot, trace.max_model_len - longest
    return [
        part(LEFT, y, live - LEFT, height, "token", hue), part(live, y, end - live, height, "reserved", hue),
        part(end, y, LEFT + width - end, height, "internal", hue), frame, _chip(LEFT, y, request.arrival),
        _pill(LEFT + 0.62 * width, y + height / 2, f"{tokens} tokens, {longest - tokens} to come, {never} never used"),
    ]


def _pill(x: float, y: float, words: str) -> str:
    width = 7.1 * len(words) + 18
    return rect(x - width / 2, y - 11, width, 22, GROUND, 11) + text(x, y + 4.5, words, INK, 13.5, "middle")


def _blocks(state: TraceState) -> list[str]:
    """The same pool, block by block. Patterns say what a slot is for, so who owns it is told by letter and hue alone, without hatches."""
    body = []
    final: dict[int, int] = {}
    for seq in state.sequences.values():
        request = state.requests[seq.request_id]
        end = request.num_prompt_tokens + request.max_tokens - 1
        for index, block in enumerate(seq.blocks):
            final[block] = min(state.block_size, end - index * state.block_size)
    for view in state.blocks():
        row, column = divmod(view.block, 16)
        x, y, width, height = RIGHT + column * CELL, TOP + row * ROW, CELL - GAP, ROW - GAP
        if view.owners:
            owner = look(state.arrival(view.owners[0]))
            slot, end = width / state.block_size, final[view.block]
            for kind, start, stop in (("token", 0, view.fill), ("reserved", view.fill, end), ("internal", end, state.block_size)):
                body.append(part(x + start * slot, y, (stop - start) * slot, height, kind, owner.hue))
            body.append(_chip(x, y, state.arrival(view.owners[0])))
        body.append(rect(x, y, width, height, "none", 3, f'stroke="{OUTLINE}"'))
    return body


def _result(x: float, share: float, running: int, finished: int, sampled: int) -> list[str]:
    """The big number under a side, and what it means for the people who wait."""
    y = TOP + 4 * ROW + 42
    return [
        f'<text x="{num(x)}" y="{y}">{span(f"{share:.0f} %", INK, 42, 700)}{span("of the slots hold tokens", INK, 17, 600, 12)}</text>',
        text(x, y + 27, f"{running} running, {finished} finished, {sampled} tokens generated so far", MUTED, 14.5),
    ]


def _queue(x: float, arrivals: list[int]) -> list[str]:
    """Who still waits: hollow, since they hold nothing."""
    y = TOP + 4 * ROW + 84
    if not arrivals:
        return [f'<text x="{num(x)}" y="{y + 13}">{span("waiting", MUTED, 14.5)}{span("nobody", INK, 14.5, 600, 8)}</text>']
    body = [text(x, y + 13, "waiting", MUTED, 14.5)]
    for i, arrival in enumerate(arrivals):
        left = x + 62 + i * 19.2
        body.append(rect(left + 0.75, y + 0.75, 15.5, 16.5, "none", 3, f'stroke="{OUTLINE}" stroke-width="1.2"'))
        body.append(text(left + 8.5, y + 13.4, look(arrival).letter, INK, 12.5, "middle", 700))
    return body


def _legend(y: float) -> list[str]:
    """The four parts of Paper Fig. 2, each with its pattern."""
    entries = (("token", look(0).hue, "holds a token"), ("reserved", look(0).hue, "reserved, needed later"),
               ("internal", look(0).hue, "reserved, never needed"), ("free", EXTERNAL, "free, too few for a slab"))
    body = [f'<path d="M{LEFT} {num(y - 26)}H{WIDTH - LEFT}" stroke="{OUTLINE}" stroke-opacity=".4"/>']
    for (kind, hue, words), x in zip(entries, (LEFT, 230, 480, 742), strict=True):
        body += [part(x, y - 10, 34, 20, kind, hue), rect(x, y - 10, 34, 20, "none", 3, f'stroke="{OUTLINE}"')]
        body.append(text(x + 44, y + 5, words, INK, 14.5))
    return body


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m paged_edu.viz.picture PATH")
    Path(sys.argv[1]).write_bytes(readme_picture().encode())     # the same bytes on every system
