"""One sentence that says what happened in a step, made of the step's events: the words beside the picture, read aloud where need be."""
from __future__ import annotations

from collections.abc import Iterable

from ..core import events as ev
from ..core.sequence import Status
from ..trace import EventLog
from ..words import counted
from .palette import letter


def step_sentence(log: EventLog, step: int) -> str:
    """What happened in ``step``, e.g. "step 4: C preempted, 2 blocks freed; 20 tokens computed". IndexError if the log does not hold it."""
    happened = log.events(step)
    if step == log.first_step:                              # what the log begins with: a snapshot, not a step
        here = log.replay(step)
        waiting = len(here.with_status(Status.WAITING, Status.PREEMPTED, Status.SWAPPED))
        running = len(here.requests) - waiting
        return f"step {step}: the recording starts here; {counted(running, 'request')} running, {waiting} waiting"
    before = log.replay(step - 1)
    letters = {request_id: letter(state.arrival) for request_id, state in before.requests.items()}
    owner = {seq_id: seq.request_id for seq_id, seq in before.sequences.items()}
    parts = [
        *_left(happened, letters, owner),
        *_swapped(happened, letters, owner),
        *_moved(happened, letters, owner),
        *_memory(happened),
        *_arrived(happened, before.num_arrived),
    ]
    return f"step {step}: " + ("; ".join(parts) if parts else "nothing ran")


def _left(happened: list[ev.Event], letters: dict[str, str], owner: dict[int, str]) -> list[str]:
    """Who gave blocks back, and why."""
    freed: dict[str, int] = {}
    for event in happened:
        if isinstance(event, ev.BlocksFreed) and event.seq_id in owner:
            freed[owner[event.seq_id]] = freed.get(owner[event.seq_id], 0) + len(event.blocks)
    parts = []
    preempted = [event.request_id for event in happened if isinstance(event, ev.RequestPreempted) and event.mode != "swap"]
    finished = [event.request_id for event in happened if isinstance(event, ev.RequestFinished)]
    for word, who in (("preempted", preempted), ("finished", finished)):
        ids = [request_id for request_id in who if request_id in letters]
        if ids:
            parts.append(f"{_names(letters[i] for i in ids)} {word}, {counted(sum(freed.get(i, 0) for i in ids), 'block')} freed")
    alone = [event.request_id for event in happened if isinstance(event, ev.PoolExhausted)]
    if alone:
        parts.append(f"{_names(letters.get(i, i) for i in alone)} filled the whole pool alone and had to end")
    return parts


def _swapped(happened: list[ev.Event], letters: dict[str, str], owner: dict[int, str]) -> list[str]:
    """Who went to host memory and who came back, with how many blocks; a block that several branches share goes once."""
    out = [event for event in happened if isinstance(event, ev.BlocksSwappedOut) and event.seq_id in owner]
    back = [event for event in happened if isinstance(event, ev.BlocksSwappedIn) and event.seq_id in owner]
    parts = []
    for words, where, ids, blocks in (
        ("swapped out", "to host memory", [owner[e.seq_id] for e in out], {block for e in out for block in e.cpu_blocks}),
        ("swapped in", "back from host memory", [owner[e.seq_id] for e in back], {block for e in back for block in e.copied}),
    ):
        if ids:
            parts.append(f"{_names(letters[i] for i in dict.fromkeys(ids))} {words}, {counted(len(blocks), 'block')} {where}")
    return parts


def _moved(happened: list[ev.Event], letters: dict[str, str], owner: dict[int, str]) -> list[str]:
    """Who got a place; those who came back from host memory have been named."""
    back = {owner.get(event.seq_id) for event in happened if isinstance(event, ev.BlocksSwappedIn)}
    admitted = [event.request_id for event in happened if isinstance(event, ev.RequestAdmitted)]
    names = [letters[request_id] for request_id in admitted if request_id in letters and request_id not in back]
    return [f"{_names(names)} admitted"] if names else []


def _memory(happened: list[ev.Event]) -> list[str]:
    """Blocks taken and copied, tokens computed."""
    taken = sum(len(event.blocks) for event in happened if isinstance(event, ev.BlocksAllocated))
    copied = sum(isinstance(event, ev.BlockCopied) for event in happened)
    computed = sum(sum(event.tokens.values()) for event in happened if isinstance(event, ev.StepScheduled))
    parts = [f"{counted(taken, 'block')} taken"] if taken else []
    parts += [f"{counted(copied, 'block')} copied before a write"] if copied else []
    return [*parts, f"{counted(computed, 'token')} computed"] if computed else parts


def _arrived(happened: list[ev.Event], num_arrived: int) -> list[str]:
    """Who joined the queue after the step had run."""
    new = sum(isinstance(event, ev.RequestAdded) for event in happened)
    return [f"{_names(letter(num_arrived + i) for i in range(new))} arrived"] if new else []


def _names(letters: Iterable[str]) -> str:
    """"A", "A and B", "A, B and C"; from five on "A, B, C and 4 others"."""
    names = list(letters)
    if len(names) > 4:
        return f"{', '.join(names[:3])} and {len(names) - 3} others"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
