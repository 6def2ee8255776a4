"""EventLog: the events of a run, kept by step and bounded, with a snapshot now and then, so that any step can be replayed.

An `EventLog` is itself a listener: ``engine.listen(log)``. Replaying to a step takes the nearest snapshot before it and folds at most
``snapshot_every`` steps of events, so going backwards costs no more than going forwards.
"""
from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..core.events import EVENT_TYPES, Event, Recovered, StepStarted
from ..core.scheduler import Scheduler
from .state import TraceState

FORMAT = "paged_edu trace 1"


@dataclass(slots=True)
class _Chunk:
    """Up to ``snapshot_every`` steps after a snapshot. ``steps[0]`` of the first chunk is what happened before the first step."""

    snapshot: TraceState
    first: int
    steps: list[list[Event]] = field(default_factory=list)


class EventLog:
    """Records the events of one scheduler.

    ``start`` is the state at which listening begins (an empty engine by default). ``max_steps`` bounds the memory: the oldest steps fold
    into the first snapshot and can no longer be replayed.
    """

    def __init__(self, start: TraceState, max_steps: int = 10_000, snapshot_every: int = 64) -> None:
        if max_steps < 1 or snapshot_every < 1:
            raise ValueError(f"max_steps ({max_steps}) and snapshot_every ({snapshot_every}) must be at least 1")
        self.max_steps = max_steps
        self.snapshot_every = min(snapshot_every, max_steps)
        self.state = start.copy()
        """The newest state."""
        self.num_events = 0
        """Events heard so far, those that have been forgotten included."""
        self._chunks: deque[_Chunk] = deque([_Chunk(start.copy(), start.step, [[]])])
        self._watchers: list[Callable[[Event], object]] = []

    @classmethod
    def of(cls, scheduler: Scheduler, max_steps: int = 10_000, snapshot_every: int = 64) -> EventLog:
        """A log that starts at the present state of ``scheduler``; the caller makes it listen."""
        return cls(TraceState.of(scheduler), max_steps, snapshot_every)

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepStarted):
            if event.step != self.last_step + 1:
                raise ValueError(f"step {event.step} after step {self.last_step}: a log that has missed steps cannot go on; start a new one")
            self._next_step()
        elif isinstance(event, Recovered) and event.step > self.last_step:
            self._next_step()                               # the interruption came just before the step could say that it starts
        self._chunks[-1].steps[-1].append(event)
        self.state.apply(event)
        self.num_events += 1
        for watcher in tuple(self._watchers):
            watcher(event)

    def watch(self, watcher: Callable[[Event], object]) -> Callable[[], None]:
        """Call ``watcher`` with every event that the log has taken in; the function that comes back ends that, and may be called twice."""
        box = [watcher]                                     # the same watcher may watch twice
        self._watchers.append(call := lambda event: box[0](event))
        return lambda: self._watchers.remove(call) if call in self._watchers else None

    @property
    def start(self) -> TraceState:
        """The state into which the oldest recorded events are folded. Not a copy: read only."""
        return self._chunks[0].snapshot

    def _next_step(self) -> None:
        chunk = self._chunks[-1]
        if len(chunk.steps) >= self.snapshot_every:
            chunk = _Chunk(self.state.copy(), self.last_step + 1)
            self._chunks.append(chunk)
        chunk.steps.append([])
        while len(self._chunks) > 1 and self.last_step - self._chunks[1].first + 1 >= self.max_steps:      # enough without the oldest
            self._chunks.popleft()

    @property
    def first_step(self) -> int:
        """The oldest step that can be replayed."""
        return self._chunks[0].first

    @property
    def last_step(self) -> int:
        """The newest step."""
        chunk = self._chunks[-1]
        return chunk.first + len(chunk.steps) - 1

    def events(self, step: int) -> list[Event]:
        """The events from the start of ``step`` up to the start of the next one."""
        chunk = self._chunk(step)
        return list(chunk.steps[step - chunk.first])

    def replay(self, step: int) -> TraceState:
        """The state at the end of ``step``. Raises IndexError for a step that the log does not hold."""
        chunk = self._chunk(step)
        state = chunk.snapshot.copy()
        for events in chunk.steps[: step - chunk.first + 1]:
            for event in events:
                state.apply(event)
        return state

    def __iter__(self) -> Iterator[Event]:
        for chunk in self._chunks:
            for events in chunk.steps:
                yield from events

    def _chunk(self, step: int) -> _Chunk:
        if not self.first_step <= step <= self.last_step:
            raise IndexError(f"step {step} is not in the log: it holds steps {self.first_step} to {self.last_step}")
        return next(chunk for chunk in reversed(self._chunks) if chunk.first <= step)

    # -- files ---------------------------------------------------------------------------------------------------------------------
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the log as JSON lines: a header with the pool's size, then one event a line. Needs a log that starts empty and whole."""
        start = self._chunks[0].snapshot
        if start.requests or start.num_finished:
            raise ValueError(f"the log starts at step {start.step} with {len(start.requests)} unfinished requests; save one that started empty")
        header = {"format": FORMAT, "num_blocks": start.num_blocks, "block_size": start.block_size, "step": start.step,
                  "num_arrived": start.num_arrived}
        with Path(path).open("w", encoding="utf-8") as file:
            file.write(json.dumps(header) + "\n")
            for event in self:
                file.write(json.dumps([type(event).__name__, *event]) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> EventLog:
        """Read a saved log. A file of another kind, or a damaged line, raises ValueError that names the line."""
        try:
            lines = Path(path).read_text(encoding="utf-8").split("\n")
            header = json.loads(lines[0])
            if header.pop("format") != FORMAT:
                raise ValueError("unknown format")
            sizes = {name: header.pop(name) for name in ("num_blocks", "block_size", "step", "num_arrived")}
            if header or any(type(size) is not int or size < low for size, low in zip(sizes.values(), (1, 1, 0, 0), strict=True)):
                raise ValueError(f"sizes {sizes}, and unknown {sorted(header)}")
            log = cls(TraceState(**sizes), max_steps=max(10_000, len(lines)))
        except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise ValueError(f"{path} is not a trace of paged_edu ({error!r} in line 1)") from error
        for number, line in enumerate(lines[1:], 2):
            if not line:
                continue
            try:
                name, *values = json.loads(line)
                log(_decode(name, values))
            except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
                raise ValueError(f"{path}, line {number}: {error!r}") from error
        return log


def _decode(name: str, values: list[object]) -> Event:
    if name not in EVENT_TYPES:
        raise ValueError(f"unknown event {name!r}")
    event: Event = EVENT_TYPES[name](*map(_value, values))
    return event


def _value(value: object) -> object:
    """JSON has no tuples and no integer keys."""
    if isinstance(value, list):
        return tuple(map(_value, value))
    return {int(key): number for key, number in value.items()} if isinstance(value, dict) else value
