"""The replay on the first page: TRACE24 through the real scheduler with two memory managers, and the story told about it.

Both runs are made while the book is built. The sentences take every number from them, so what is said is what is shown.
"""
from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from paged_edu.core.sequence import Status
from paged_edu.trace import EventLog
from paged_edu.viz.fake_engine import Trace24, trace24
from paged_edu.viz.palette import letter
from paged_edu.viz.picture import readme_picture
from paged_edu.viz.track import Track


@dataclass(frozen=True)
class Moment:
    """One side at the end of a step."""

    running: int
    waiting: int
    finished: int
    held: int
    """Slots that hold a token."""
    written: int
    """Tokens generated so far."""
    preemptions: int
    stepped_back: tuple[str, ...]
    """Letters of the requests that were preempted in this step."""


@dataclass(frozen=True)
class Side:
    log: EventLog
    moments: list[Moment]

    @property
    def last_step(self) -> int:
        return len(self.moments) - 1

    def at(self, step: int) -> Moment:
        return self.moments[min(step, self.last_step)]


def served(trace: Trace24, kv_manager: str) -> Side:
    """All steps until every request has ended."""
    engine = trace.engine(kv_manager)
    log = EventLog.of(engine.scheduler)
    engine.listen(log)
    back: list[str] = []
    engine.listen(lambda event: back.append(event.request_id) if type(event).__name__ == "RequestPreempted" else None)
    moments, written = [_moment(log, 0, [])], 0
    while engine.has_unfinished_requests():
        back.clear()
        written += sum(item.num_samples for item in engine.step().scheduled)
        moments.append(_moment(log, written, back))
    return Side(log, moments)


def _moment(log: EventLog, written: int, back: list[str]) -> Moment:
    state = log.state
    letters = tuple(letter(state.requests[name].arrival) for name in back)
    counts = [len(state.with_status(*status)) for status in ((Status.RUNNING,), (Status.WAITING, Status.PREEMPTED))]
    return Moment(*counts, state.num_finished, state.token_states(), written, state.num_preemptions, letters)


def scenes(trace: Trace24, slabs: Side, paged: Side) -> list[dict[str, Any]]:
    """Six moments of the run, each with what is to be seen."""
    slots, count = trace.num_slots, len(trace.requests)
    prompt, answer = trace.requests[0]
    start, grows = 1, 10
    full = next(step for step, moment in enumerate(paged.moments) if moment.stepped_back)
    later, done = 60, paged.last_step
    victim = paged.at(full).stepped_back[0]
    rest = slots % trace.max_model_len
    many = paged.at(later).written / slabs.at(later).written

    def share(side: Side, step: int) -> str:
        return f"{100 * side.at(step).held / slots:.0f} %"

    return [
        {"step": start, "text":
            f"Two servers, the same memory ({slots} slots of KV cache), the same {count} requests. Contiguous: each reserves room for the longest "
            f"possible answer, and {slabs.at(start).running} may start. Paged: memory is given out in blocks of {trace.block_size} slots, and "
            f"{paged.at(start).running} start."},
        {"step": 6, "text":
            f"Look at the row of A. Solid: tokens that are there. Dotted: kept for tokens still to come. Hatched: kept for tokens that never will, "
            f"since A ends after {prompt + answer - 1}. The grey corner is free, but {rest} slots are too few for one more row of "
            f"{trace.max_model_len}."},
        {"step": grows, "text":
            f"Paged, whoever has filled its last block takes a free one, wherever that is. {share(paged, grows)} of the slots hold tokens; "
            f"contiguous, {share(slabs, grows)}."},
        {"step": full, "text":
            f"No block is free: {victim}, the latest to arrive, gives its own back and waits. Nothing is lost: its tokens are computed again when "
            f"there is room. The run has {paged.at(done).preemptions} such pauses."},
        {"step": later, "text":
            f"Contiguous, {slabs.at(later).finished} requests are done and {slabs.at(later).written} tokens written; paged, "
            f"{paged.at(later).finished} and {paged.at(later).written}: {many:.1f} times as many tokens in as many steps."},
        {"step": done, "text":
            f"Paged, all {count} are done. Contiguous, {slabs.at(done).finished} are and {slabs.at(done).waiting} still wait; the last one ends in "
            f"step {slabs.last_step}. Same model, same words, same memory: this is PagedAttention."},
    ]


def data() -> dict[str, Any]:
    """What ``_site/replay.js`` is given."""
    trace = trace24()
    slabs, paged = served(trace, "orca-max"), served(trace, "paged")
    blocks = trace.max_model_len // trace.block_size
    sides = (
        (slabs, "contiguous", f"{trace.max_model_len} slots for each", blocks), (paged, "paged", f"{trace.block_size} slots at a time", 0))
    tracks, panes = [], []
    for index, (side, label, how, slab) in enumerate(sides):
        tracks.append(Track(side.log, label=label).whole())
        written = [moment.written for moment in side.moments]
        panes.append({"track": index, "module": "memory", "title": f"{label.capitalize()}: {how}", "options": {"slab": slab, "written": written}})
    told = scenes(trace, slabs, paged)
    return {"tracks": tracks, "panes": panes, "words": {}, "controls": None, "name": "two memories, one run", "shown": 1, "speed": 1.6,
            "scenes": told, "until": told[3]["step"], "still": told[2]["step"]}


def html() -> str:
    """The place of the replay: without JavaScript it is the picture of one step, with its description."""
    made = data()
    text = json.dumps(made, separators=(",", ":")).replace("<", "\\u003c")
    told = "".join(f"<li>Step {scene['step']}: {scene['text']}</li>" for scene in made["scenes"])
    return (
        f'<div class="pe-replay"><noscript>{readme_picture()}<ol>{told}</ol></noscript>'
        f'<script type="application/json">{text}</script></div>'
    )
