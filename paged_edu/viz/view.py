"""View: everything that plays an `EventLog`, whatever it draws. Forwards through the engine, backwards through the log, gone when it is closed.

A subclass says what it looks like: ``module`` (its drawing in ``viz/js/``, for a page that is alive), `svg`, `plain` and `figure` (for a page
that is not). The rest is here: steps, playing, one view a name, and what Jupyter is given. ``viz/js/README.md`` tells how to add one.
"""
from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self
from weakref import WeakValueDictionary

from ..checks import number
from ..trace import EventLog, TraceState
from .sentence import step_sentence
from .track import Decode, Steppable, Track

if TYPE_CHECKING:
    from .live import Live

NO_WIDGETS = "This is a still picture: for buttons, install the notebook extra, pip install 'paged-edu[lab]', and restart the kernel."
PLOTLY_MIME = "application/vnd.plotly.v1+json"
_open: WeakValueDictionary[str, View] = WeakValueDictionary()


class View:
    """Shows one step of ``log``; with an ``engine`` it can also make the next one.

    ``name``: a new view closes the one that had its name before, so running a cell again does not leave a second one behind. ``speed``:
    steps a second while playing, above 0 and at most 10. ``decode``: token ids to text, for the tooltips.
    """

    module: ClassVar[str] = ""
    """Name of the module in ``viz/js/`` that draws it."""
    title: ClassVar[str] = "view"
    """What it shows, in a few words: its default name."""
    plays_logs: ClassVar[bool] = True
    """Whether it draws a state of an `EventLog`, so that `Views` can make it."""
    takes_a_row: ClassVar[bool] = False
    """Whether several tracks are compared one above the other: what is drawn over steps wants the whole width."""
    kinds: ClassVar[dict[str, type[View]]] = {}
    """Every view of a log that can be named, by its module."""
    tracks: list[Track]

    def __init_subclass__(cls) -> None:
        if cls.module and cls.plays_logs:
            View.kinds.setdefault(cls.module, cls)

    def __init__(
        self, log: EventLog, engine: Steppable | None = None, *, name: str | None = None, speed: float = 2.0, decode: Decode | None = None,
    ) -> None:
        self._begin([Track(log, engine, decode=decode)], name, speed)

    def _begin(self, tracks: list[Track], name: str | None, speed: float) -> None:
        number("speed", speed, 0, 10, low_open=True)
        self.tracks = tracks
        self.name = name if name is not None else self.title
        self.speed = float(speed)
        self.shown = self.last_step
        """The step in the picture."""
        self.notice = ""
        """What is said in place of the step's own sentence, until the next move: an error, or why there is no next step."""
        self._live: Live | None = None
        self._task: asyncio.Task[None] | None = None
        if (predecessor := _open.get(self.name)) is not None:
            predecessor.close()
        _open[self.name] = self

    @classmethod
    def of(cls, source: Any, **options: Any) -> Self:
        """A view of an engine, or of an `LLM`, from its present state on; it keeps the events itself and stops listening when closed."""
        track = Track.of(source)
        view = cls(track.log, track.engine, **{"decode": track.decode, **options})
        view.tracks[0].listen()
        return view

    # -- what a subclass supplies ----------------------------------------------------------------------------------------------------
    def svg(self, state: TraceState | None = None) -> str:
        """The picture of a state, the shown one by default, as an SVG document."""
        raise NotImplementedError

    def plain(self, state: TraceState | None = None) -> str:
        """The same in letters, for a terminal and for whoever cannot see pictures."""
        raise NotImplementedError

    def figure(self) -> dict[str, Any] | None:
        """A plotly figure with a frame a step (see `animated`), for pages without a kernel; None if the view has none."""
        return None

    def options(self) -> dict[str, Any]:
        """What the JavaScript module is given beside states: anything that JSON can hold."""
        return {}

    # -- where it is -----------------------------------------------------------------------------------------------------------------
    @property
    def log(self) -> EventLog | None:
        """The first track's log; None once the view is closed."""
        return self.tracks[0].log if self.tracks else None

    @property
    def engine(self) -> Any:
        """The first track's engine; None for a recording, and once the view is closed."""
        return self.tracks[0].engine if self.tracks else None

    @property
    def decode(self) -> Decode | None:
        """Token ids to text, if somebody knows how."""
        return self.tracks[0].decode if self.tracks else None

    @property
    def first_step(self) -> int:
        """The oldest step that can be shown."""
        return min(track.log.first_step for track in self._there())

    @property
    def last_step(self) -> int:
        """The newest step."""
        return max(track.log.last_step for track in self._there())

    @property
    def state(self) -> TraceState:
        """What the picture shows, of the first track."""
        return self.state_of(self._there()[0])

    def state_of(self, track: Track) -> TraceState:
        """What the picture shows of one track: one that ended before the shown step stays at its end."""
        return track.log.replay(self._step_of(track))

    def _step_of(self, track: Track) -> int:
        return min(max(self.shown, track.log.first_step), track.log.last_step)

    @property
    def sentence(self) -> str:
        """What happened in the shown step, a line a track."""
        if self.notice or not self.tracks:
            return self.notice
        said = []
        for track in self.tracks:
            over = self.shown > track.log.last_step
            words = f"done after step {track.log.last_step}" if over else step_sentence(track.log, self._step_of(track))
            said.append(f"{track.label}: {words}" if track.label else words)
        return "\n".join(said)

    @property
    def live(self) -> str:
        """"none" for a recording; of an engine, "unfinished" while a request is, else "idle"."""
        if all(track.engine is None for track in self.tracks):
            return "none"
        return "unfinished" if any(track.unfinished for track in self.tracks) else "idle"

    # -- moving --------------------------------------------------------------------------------------------------------------------
    def step(self) -> str:
        """One step forwards: the next recorded one or, at the newest, the engine's next. Returns the sentence about it."""
        if self.shown < (last := self.last_step):
            return self.seek(self.shown + 1)
        if self.live != "unfinished":
            self._pause()
            return self._say("this is the newest step" if self.live == "none" else "nothing left to run: no request is unfinished")
        for track in self.tracks:
            if track.unfinished:
                track.advance()
        return self.seek(max(last, self.last_step))

    def back(self) -> str:
        """One step backwards. The engine stays where it is."""
        self._pause()
        return self.seek(self.shown - 1)

    def home(self) -> str:
        """The oldest recorded step."""
        self._pause()
        return self.seek(self.first_step)

    def end(self) -> str:
        """The newest recorded step."""
        self._pause()
        return self.seek(self.last_step)

    def seek(self, step: int) -> str:
        """Show a recorded step, the nearest one if the log does not hold ``step``."""
        step = operator.index(step)                         # a broken number must not become the step in the picture
        self.shown = min(max(step, self.first_step), self.last_step)
        return self._say("")

    # -- playing -------------------------------------------------------------------------------------------------------------------
    @property
    def playing(self) -> bool:
        """Whether the kernel plays. A page that plays recorded steps does so by itself."""
        return self._task is not None

    def play(self) -> None:
        """Step by itself until nothing is left: a task of the notebook's event loop, so no cell is left running and none is blocked."""
        self._there()
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
        while self._task is task and self.tracks:
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

    # -- the page --------------------------------------------------------------------------------------------------------------------
    def asked(self, message: Mapping[str, Any]) -> None:
        """A page asks: "step", "play" or "pause". What goes wrong is said in the sentence."""
        action = {"step": self.step, "play": self.play, "pause": self.pause}.get(str(message.get("kind")))
        if action is not None:
            self.attempt(action)

    def moved(self, step: int) -> None:
        """A page shows another recorded step."""
        if self.tracks:
            self.shown = min(max(step, self.first_step), self.last_step)
            self.notice = ""

    def panes(self) -> list[dict[str, Any]]:
        """Which modules draw which track."""
        return [{"track": 0, "module": self.module, "title": "", "options": self.options()}]

    def page_data(self) -> dict[str, Any]:
        """Everything that a page needs to begin: see ``viz/js/widget.js``."""
        words: dict[int, str] = {}
        for track in self.tracks:
            words |= track.all_words()
        return {"tracks": [track.whole() for track in self.tracks], "panes": self.panes(), "words": words, "controls": self.controls(),
                "name": self.name}

    def controls(self) -> dict[str, Any] | None:
        """What the controls of an engine offer; None: there are none."""
        return None

    def _say(self, notice: str) -> str:
        """``notice`` in place of the step's sentence; "" for the sentence itself. Returns what is said now."""
        self.notice = notice
        self._refresh()
        return self.sentence

    def _refresh(self) -> None:
        if self._live is not None and self.tracks:
            self._live.flush()

    def __repr__(self) -> str:
        if not self.tracks:
            return f"{type(self).__name__} {self.name!r}, closed"
        return f"{type(self).__name__} {self.name!r}, step {self.shown} of {self.last_step}: {self.sentence}"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Mapping[str, object]:
        """Jupyter shows the widget; whoever has no kernel gets the plotly figure (a book), the picture (GitHub) or the letters."""
        if not self.tracks:
            return {"text/plain": repr(self)}
        svg = self.svg()
        bundle: dict[str, object] = {"text/plain": f"{self.plain()}\n{self.sentence}", "image/svg+xml": svg}
        try:
            if self._live is None:
                from .live import Live

                self._live = Live(self)
        except ImportError:
            return bundle | {"text/html": f"{svg}<p>{NO_WIDGETS}</p>"}
        self._refresh()
        if (figure := self.figure()) is not None:
            bundle[PLOTLY_MIME] = figure
        return bundle | self._live.mimebundle()

    # -- the end -------------------------------------------------------------------------------------------------------------------
    def close(self) -> None:
        """Stop playing and listening, take the widget out of the page and forget log and engine. Twice is as good as once."""
        self._pause()
        for track in self.tracks:
            track.close()
        if self._live is not None:
            self._live.close()
        self.tracks, self._live = [], None
        if _open.get(self.name) is self:
            del _open[self.name]

    def _there(self) -> list[Track]:
        if not self.tracks:
            raise RuntimeError(f"the view {self.name!r} is closed; a newer one with the same name may have taken its place")
        return self.tracks
