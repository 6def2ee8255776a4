"""The JSON form of a log, in one piece, for whoever folds it elsewhere (`viz/js/trace.js` does): a header, the state it starts at, its events.

An event is a list, its type's name and then its fields, as in a saved trace. The start may be in the middle of a run, which a file of
`EventLog.save` cannot hold.
"""
from __future__ import annotations

from typing import Any

from ..core.events import Event
from .log import FORMAT, EventLog
from .state import TraceState


def wire_event(event: Event) -> list[Any]:
    """``[name, field, ...]``."""
    return [type(event).__name__, *event]


def wire_state(state: TraceState) -> dict[str, Any]:
    """A state, field by field; requests and sequences as lists, in their order."""
    return {
        "requests": [[name, r.arrival, r.num_prompt_tokens, r.max_tokens, str(r.status), r.num_preemptions] for name, r in state.requests.items()],
        "sequences": [
            [seq_id, s.request_id, s.tokens, s.num_computed, s.blocks, s.cpu_blocks, s.reserved, s.capacity] for seq_id, s in state.sequences.items()
        ],
        "scheduled": sorted(state.scheduled.items()), "entries": [[block, *entry] for block, entry in state.entries.items()],
        "released": list(state.released), "evicted": state.evicted, "entered_by": sorted(state.entered_by.items()),
        "num_finished": state.num_finished, "num_preemptions": state.num_preemptions, "num_copies": state.num_copies,
        "num_swapped_out": state.num_swapped_out,
    }


def wire_log(log: EventLog) -> dict[str, Any]:
    """``header`` (a saved trace's, and where it starts), ``events``, and ``count``: how many events the log has heard in all."""
    start = log.start
    header = {
        "format": FORMAT, "num_blocks": start.num_blocks, "block_size": start.block_size, "step": start.step, "num_arrived": start.num_arrived,
        "first_step": log.first_step, "max_steps": log.max_steps, "state": wire_state(start),
    }
    return {"header": header, "events": [wire_event(event) for event in log], "count": log.num_events}
