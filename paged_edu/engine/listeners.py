"""Listeners: who watches an engine, event by event or step by step. None of them can hurt it: one that raises is dropped, with a note."""
from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..core.events import Emit, Event
from ..core.plan import SchedulerOutput
from ..core.scheduler import Scheduler

if TYPE_CHECKING:
    from .engine import Engine

StepWatcher = Callable[["Engine", SchedulerOutput], None]
logger = logging.getLogger(__name__)


class Listeners:
    """Hands each event of a scheduler and its manager to every listener. ``notes`` collects what went wrong."""

    def __init__(self, scheduler: Scheduler, notes: list[str]) -> None:
        self._scheduler, self._notes = scheduler, notes
        self._boxes: list[list[Emit]] = []      # boxes of one: the same listener may listen twice

    def __len__(self) -> int:
        return len(self._boxes)

    def add(self, listener: Emit) -> Callable[[], None]:
        """Returns the function that ends it; calling that twice does no harm."""
        if not callable(listener):
            raise TypeError(f"a listener is called with each event; {listener!r} cannot be called")
        box = [listener]
        self._boxes.append(box)
        self._wire()
        return lambda: self._drop(box)

    def _drop(self, box: list[Emit]) -> None:
        self._boxes = [other for other in self._boxes if other is not box]
        self._wire()

    def _wire(self) -> None:
        """With no listener the core pays one ``if`` an event."""
        boxes = tuple(self._boxes)

        def broadcast(event: Event) -> None:
            for box in boxes:
                try:
                    box[0](event)
                except Exception as error:
                    self._drop(box)
                    self._notes.append(f"a listener raised {error!r} at {type(event).__name__} and no longer listens")

        self._scheduler.emit = self._scheduler.manager.emit = broadcast if boxes else None


class StepWatchers:
    """Called with each step that is done. Cheaper than a listener: one call a step, not one an event."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._boxes: tuple[list[StepWatcher], ...] = ()

    def add(self, watcher: StepWatcher) -> Callable[[], None]:
        """From any thread. Returns the function that ends it; calling that twice does no harm."""
        box = [watcher]
        with self._lock:
            self._boxes = (*self._boxes, box)
        return lambda: self._drop(box)

    def _drop(self, box: list[StepWatcher]) -> None:
        with self._lock:
            self._boxes = tuple(other for other in self._boxes if other is not box)

    def tell(self, engine: Engine, plan: SchedulerOutput) -> None:
        for box in self._boxes:
            try:
                box[0](engine, plan)
            except Exception:
                self._drop(box)
                logger.exception("a watcher of the engine's steps raised, and no longer watches")
