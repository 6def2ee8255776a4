"""Track: one log and, if it is live, the engine that makes its events. A view plays one; a comparison plays two side by side."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..core.events import Event, RequestAdded, TokensSampled
from ..core.scheduler import Scheduler
from ..trace import EventLog
from ..trace.wire import wire_event, wire_log

Decode = Callable[[Sequence[int]], str]


class Steppable(Protocol):
    """What a view needs of an engine."""

    scheduler: Scheduler

    def step(self) -> object: ...

    def has_unfinished_requests(self) -> bool: ...

    def listen(self, listener: Callable[[Event], None]) -> Callable[[], None]: ...


def engine_of(source: Any) -> Any:
    """The engine of an `LLM`, or the engine itself."""
    return getattr(source, "engine", source)


class Track:
    """A log, perhaps an engine, and which events a page has been sent."""

    def __init__(self, log: EventLog, engine: Steppable | None = None, label: str = "", decode: Decode | None = None) -> None:
        self.log = log
        self.engine = engine
        self.label = label
        self.decode = decode
        self._unlisten: Callable[[], None] | None = None
        self._unwatch: Callable[[], None] | None = None
        self._told: Callable[[Event], None] | None = None
        self._new: list[Event] = []
        self.num_sent = 0
        """Events that the page has been sent, those it got at first included."""
        self._known: set[int] = set()                       # token ids whose text the page knows

    @classmethod
    def of(cls, source: Any, label: str = "") -> Track:
        """A track of an engine or an `LLM`, from its present state on. It hears nothing before `listen`."""
        engine = engine_of(source)
        return cls(EventLog.of(engine.scheduler), engine, label, getattr(getattr(engine, "tokenizer", None), "decode", None))

    def listen(self) -> None:
        """Let the log hear the engine, until `close`."""
        if self.engine is not None and self._unlisten is None:
            self._unlisten = self.engine.listen(self.log)

    def restart(self) -> None:
        """A new log from the engine's present state on, heard and watched like the one before."""
        told, heard = self._told, self._unlisten is not None
        for end in (self._unlisten, self._unwatch):
            if end is not None:
                end()
        self._unlisten = self._unwatch = None
        self._new = []
        if self.engine is not None:
            self.log = EventLog.of(self.engine.scheduler)
        if heard:
            self.listen()
        if told is not None:
            self.watch(told)

    @property
    def unfinished(self) -> bool:
        return self.engine is not None and self.engine.has_unfinished_requests()

    def advance(self) -> None:
        """The engine makes its next step. Raises RuntimeError when the log would not hear of it."""
        if self.engine is None:
            raise RuntimeError("a recording has no engine that could make a next step")
        self._check_heard(self.engine)
        self.engine.step()
        self._check_heard(self.engine)

    def _check_heard(self, engine: Steppable) -> None:
        """The log must be where the engine is: else the view would run an engine that nobody sees."""
        if self.log.last_step != engine.scheduler.step:
            raise RuntimeError(
                f"the log ends at step {self.log.last_step} and the engine is at step {engine.scheduler.step}: the log does not listen to it. "
                "BlockPoolView.of(engine) makes one that does; so does engine.listen(log) before the first step"
            )

    # -- what a page is sent ---------------------------------------------------------------------------------------------------------
    def watch(self, told: Callable[[Event], None]) -> None:
        """Keep new events for `take_new`, and call ``told`` with each, before it is kept."""
        def heard(event: Event) -> None:
            told(event)                                     # first: it may send the events of the step before
            self._new.append(event)

        if self._unwatch is None:
            self._told, self._unwatch, self.num_sent = told, self.log.watch(heard), self.log.num_events

    def whole(self) -> dict[str, Any]:
        """Everything that a page needs to begin; see `wire_log`. What is kept for `take_new` is in it as well."""
        return {"label": self.label, **wire_log(self.log)}

    def take_new(self) -> tuple[int, list[list[Any]], dict[int, str]]:
        """``(number of events before these, the new events, the text of tokens that they are the first to use)``."""
        new, self._new = self._new, []
        start, self.num_sent = self.num_sent, self.num_sent + len(new)
        return start, [wire_event(event) for event in new], self.words(new)

    def words(self, events: Sequence[Event]) -> dict[int, str]:
        """Token id -> text, for the ids in ``events`` that the page does not know yet."""
        ids: set[int] = set()
        for event in events:
            if isinstance(event, RequestAdded):
                ids.update(event.prompt_token_ids)
            elif isinstance(event, TokensSampled):
                ids.update(event.token_ids)
        return self._decoded(ids)

    def all_words(self) -> dict[int, str]:
        """The same for everything in the log."""
        self._known = set()
        begun = {token for seq in self.log.start.sequences.values() for token in seq.tokens}
        return self._decoded(begun) | self.words(list(self.log))

    def _decoded(self, ids: set[int]) -> dict[int, str]:
        if self.decode is None:
            return {}
        fresh = sorted(ids - self._known)
        self._known.update(fresh)
        return {token: self.decode([token]) for token in fresh}

    def close(self) -> None:
        """Stop listening and forget the engine."""
        for end in (self._unlisten, self._unwatch):
            if end is not None:
                end()
        self._unlisten = self._unwatch = self._told = self.engine = self.decode = None
        self._new = []


class WholeTrack(Track):
    """A recording that is whole from the start where a view expects a log: nothing is ever added, nobody makes a next step."""

    def __init__(self, log: Any) -> None:
        self.log = log
        self.engine, self.label, self.decode, self.num_sent = None, "", None, 0

    def watch(self, told: Callable[[Any], None]) -> None:
        """There is nothing to hear of."""

    def take_new(self) -> tuple[int, list[list[Any]], dict[int, str]]:
        return 0, [], {}

    def all_words(self) -> dict[int, str]:
        return {}

    def close(self) -> None:
        self.log: Any = None
