"""BlockPoolView: the block pool of a running engine, stepped forwards by the engine itself and backwards by replaying its events.

The view is a player over an `EventLog`. Steps that the log holds are replayed; at its newest step, *Step* calls ``engine.step()``, so what one
sees is the real scheduler and the real memory manager at work. Without Jupyter it is a still picture, never an error.
"""
from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakValueDictionary

from ..checks import integer, number
from ..core.events import Event
from ..core.scheduler import Scheduler
from ..trace import EventLog, TraceState
from .palette import AUTO
from .sentence import step_sentence
from .svg import Decode, headline, plain_text, pool_svg

if TYPE_CHECKING:
    from .panel import Panel

NO_WIDGETS = "This is a still picture: for buttons, install the notebook extra, pip install 'paged-edu[lab]', and restart the kernel."
_open: WeakValueDictionary[str, BlockPoolView] = WeakValueDictionary()


class Steppable(Protocol):
    """What the view needs of an engine."""

    scheduler: Scheduler

    def step(self) -> object: ...

    def has_unfinished_requests(self) -> bool: ...

    def listen(self, listener: Callable[[Event], None]) -> Callable[[], None]: ...


class BlockPoolView:
    """Shows one step of ``log``; with an ``engine`` it can also make the next one.

    ``name``: a new view closes the one that had its name before, so running a cell again does not leave a second one behind. ``speed``:
    steps a second while playing, above 0 and at most 10. ``columns``: blocks in a row, 1 or more. ``decode``: token ids to text, for the tooltips.
    """

    def __init__(
        self, log: EventLog, engine: Steppable | None = None, *, name: str = "block pool", speed: float = 2.0, columns: int | None = None,
        decode: Decode | None = None,
    ) -> None:
        number("speed", speed, 0, 10, low_open=True)
        if columns is not None:
            integer("columns", columns, 1)
        self.log: EventLog | None = log
        self.engine = engine
        self.name = name
        self.speed = speed
        self.columns = columns
        self.decode = decode
        self.shown = log.last_step
        """The step in the picture."""
        self.sentence = step_sentence(log, self.shown)
        """What happened in it."""
        self._unlisten: Callable[[], None] | None = None
        self._panel: Panel | None = None
        self._task: asyncio.Task[None] | None = None
        if (predecessor := _open.get(name)) is not None:
            predecessor.close()
        _open[name] = self

    @classmethod
    def of(cls, engine: Any, **options: Any) -> BlockPoolView:
        """A view of an engine, or of an `LLM`, from its present state on; it keeps the events itself and stops listening when closed."""
        engine = getattr(engine, "engine", engine)
        log = EventLog.of(engine.scheduler)
        tokenizer = getattr(engine, "tokenizer", None)
        view = cls(log, engine, **{"decode": getattr(tokenizer, "decode", None), **options})
        view._unlisten = engine.listen(log)
        return view

    # -- moving --------------------------------------------------------------------------------------------------------------------
    def step(self) -> str:
        """One step forwards: the next recorded one or, at the newest, the engine's next. Returns the sentence about it."""
        log = self._live()
        if self.shown >= log.last_step and (self.engine is None or not self.engine.has_unfinished_requests()):
            self._pause()
            return self._say("nothing left to run: no request is unfinished" if self.engine is not None else "this is the newest step")
        if self.shown >= log.last_step and self.engine is not None:
            self._check_heard(log, self.engine)
            self.engine.step()
            self._check_heard(log, self.engine)
            return self.seek(log.last_step)
        return self.seek(self.shown + 1)

    def _check_heard(self, log: EventLog, engine: Steppable) -> None:
        """The log must be where the engine is: else the view would run an engine that nobody sees."""
        if log.last_step != engine.scheduler.step:
            raise RuntimeError(
                f"the log ends at step {log.last_step} and the engine is at step {engine.scheduler.step}: the log does not listen to it. "
                "BlockPoolView.of(engine) makes one that does; so does engine.listen(log) before the first step"
            )

    def back(self) -> str:
        """One step backwards. The engine stays where it is."""
        self._pause()
        return self.seek(self.shown - 1)

    def home(self) -> str:
        """The oldest recorded step."""
        self._pause()
        return self.seek(self._live().first_step)

    def end(self) -> str:
        """The newest recorded step."""
        self._pause()
        return self.seek(self._live().last_step)

    def seek(self, step: int) -> str:
        """Show a recorded step, the nearest one if the log does not hold ``step``."""
        log, step = self._live(), operator.index(step)      # a broken number must not become the step in the picture
        self.shown = min(max(step, log.first_step), log.last_step)
        return self._say(step_sentence(log, self.shown))

    @property
    def state(self) -> TraceState:
        """What the picture shows."""
        return self._live().replay(self.shown)

    # -- playing -------------------------------------------------------------------------------------------------------------------
    @property
    def playing(self) -> bool:
        return self._task is not None

    def play(self) -> None:
        """Step by itself until nothing is left: a task of the notebook's event loop, so no cell is left running and none is blocked."""
        self._live()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._say("playing needs Jupyter's event loop; call step() instead")
            return
        if self._task is None:
            self._task = loop.create_task(self._run())
            self._refresh()

    def pause(self) -> None:
        """Stop playing; the picture stays."""
        self._pause()
        self._refresh()

    def toggle(self) -> None:
        """Play or pause."""
        if self.playing:
            self.pause()
        else:
            self.play()

    async def _run(self) -> None:
        task = self._task
        while self._task is task and self.log is not None:
            self.attempt(self.step)
            await asyncio.sleep(1 / self.speed)

    def _pause(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def attempt(self, action: Callable[[], object]) -> None:
        """For buttons and the player: an error goes into the sentence, because what a callback raises is shown nowhere."""
        try:
            action()
        except Exception as error:
            self._pause()
            self._say(f"stopped, {type(error).__name__}: {error}")

    # -- showing -------------------------------------------------------------------------------------------------------------------
    def svg(self) -> str:
        """The picture."""
        return pool_svg(self.state, AUTO, self.columns, self.decode)

    def _say(self, sentence: str) -> str:
        self.sentence = sentence
        self._refresh()
        return sentence

    def _refresh(self) -> None:
        if self._panel is not None and self.log is not None:
            self._panel.show(self.svg(), self.sentence, (self.log.first_step, self.shown, self.log.last_step), self.playing)

    def __repr__(self) -> str:
        if self.log is None:
            return f"BlockPoolView {self.name!r}, closed"
        return f"BlockPoolView {self.name!r}: {headline(self.state)}; {self.sentence}"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Mapping[str, object]:
        """Jupyter shows the widget; whoever has no kernel (GitHub, a printed page, a screen reader) gets the picture or the letters."""
        if self.log is None:
            return {"text/plain": repr(self)}
        svg = self.svg()
        bundle: dict[str, object] = {"text/plain": f"{plain_text(self.state, self.columns)}\n{self.sentence}", "image/svg+xml": svg}
        try:
            if self._panel is None:
                from .panel import Panel

                self._panel = Panel(self)
        except ImportError:
            return bundle | {"text/html": f"{svg}<p>{NO_WIDGETS}</p>"}
        self._refresh()
        return bundle | self._panel.mimebundle()

    # -- the end -------------------------------------------------------------------------------------------------------------------
    def close(self) -> None:
        """Stop playing and listening, take the widgets out of the page and forget log and engine. Twice is as good as once."""
        self._pause()
        if self._unlisten is not None:
            self._unlisten()
        if self._panel is not None:
            self._panel.close()
        self._unlisten = self._panel = self.log = self.engine = self.decode = None
        if _open.get(self.name) is self:
            del _open[self.name]

    def _live(self) -> EventLog:
        if self.log is None:
            raise RuntimeError(f"the view {self.name!r} is closed; a newer one with the same name may have taken its place")
        return self.log
