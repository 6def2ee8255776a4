"""EngineStepper: an engine at the end of a few buttons: add a request, step, play, go back, abort, start over. Views of it beside one another.

Given two engines it steps both together: the same requests under two managers, with one slider (lesson 00).
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self, TypeAlias

from ..checks import integer, one_line
from ..sampling.params import SamplingParams
from .palette import letter
from .track import Track
from .views import Part, Views

Fill: TypeAlias = Callable[[Any], object]


class EngineStepper(Views):
    """Drives ``source``, an engine or an `LLM`, or several by their labels (see `compare`), and shows ``views`` of it (see `Views`).

    ``fill``: a function of the engine that queues its first requests; it is called now, and again after `reset`. ``prompt`` and ``max_tokens``
    stand in the form at first. ``name`` and ``speed`` are those of `View`. Closing it gives back widget, listeners, tasks and engines.
    """

    title = "engine"

    def __init__(
        self, source: Any, views: Iterable[Part] = ("pool",), *, name: str | None = None, speed: float = 2.0, fill: Fill | None = None,
        prompt: str = "ROMEO:", max_tokens: int = 16,
    ) -> None:
        integer("max_tokens", max_tokens, 1)
        sources = dict(source) if isinstance(source, Mapping) else {"": source}
        if not sources:
            raise ValueError("there is no engine: give one, or several by their labels")
        tracks = [Track.of(engine, label) for label, engine in sources.items()]
        self._prompt, self._max_tokens, self._fill_engine = prompt, max_tokens, fill
        self._num_added = 0
        self._begin(tracks, name, speed)
        self._fill(views)
        for track in tracks:
            track.listen()
            if fill is not None:
                fill(track.engine)

    @classmethod
    def compare(cls, engines: Mapping[str, Any], views: Iterable[Part] = ("pool",), **options: Any) -> Self:
        """Engines side by side, by their labels: every request goes to each of them, and one step is a step of each that has work."""
        if not isinstance(engines, Mapping):
            raise TypeError(f"compare needs engines by their labels, as in {{'contiguous': a, 'paged': b}}, not {engines!r}")
        return cls(engines, views, **options)

    # -- what one can do with an engine ------------------------------------------------------------------------------------------------
    def add(self, prompt: str | int | Sequence[int], max_tokens: int = 16, n: int = 1) -> str:
        """Queue a request on every engine; returns its id. It writes exactly ``max_tokens`` tokens, ``n`` times.

        ``prompt``: text, token ids, or a number of tokens (which ones does not matter then). Nothing is queued if one engine refuses it:
        ValueError or TypeError with the value and the limit, RuntimeError where its `LLM` has been closed.
        """
        integer("max_tokens", max_tokens, 1)
        integer("n", n, 1)
        engines = self._engines()
        if any(getattr(getattr(engine, "runner", None), "model", engine) is None for engine in engines):
            raise RuntimeError("this engine's LLM is closed; run the cell that makes it again, and then the one with this view")
        while any((request_id := f"added {self._num_added}") in engine.scheduler.requests for engine in engines):
            self._num_added += 1
        if isinstance(prompt, int) and not isinstance(prompt, bool):
            integer("a number of prompt tokens", prompt, 1)
            vocab = min(getattr(engine, "vocab_size", 1000) for engine in engines)
            prompt = [(31 * self._num_added + 7 * k + 5) % vocab for k in range(prompt)]
        params = SamplingParams(max_tokens=max_tokens, n=n, temperature=0.0 if n == 1 else 1.0, ignore_eos=True)
        prepared = [engine.prepare(request_id, prompt, params) for engine in engines]
        for engine, request in zip(engines, prepared, strict=True):
            engine.queue(request)
        self._num_added += 1
        self.seek(self.last_step)
        return request_id

    def abort(self, request_id: str) -> None:
        """End a request on every engine that has it. Raises ValueError if none has."""
        engines = self._engines()
        known = [engine for engine in engines if request_id in engine.scheduler.requests]
        if not known:
            there = sorted({name for engine in engines for name in engine.scheduler.requests})
            raise ValueError(f"no unfinished request is called {request_id!r}; there are {', '.join(map(repr, there)) if there else 'none'}")
        for engine in known:
            engine.abort_request(request_id)
        self.seek(self.last_step)

    def reset(self) -> None:
        """Start over: every request ends, nothing is cached, steps and letters count from the beginning, and ``fill`` queues its requests again."""
        self._pause()
        for track in self._there():
            restart(track.engine)
            track.restart()
        for index, part in self.parts:
            part.tracks[0].log = self.tracks[index].log
        for track in self.tracks:
            if self._fill_engine is not None:
                self._fill_engine(track.engine)
        self._num_added = 0
        self.shown, self.notice = self.last_step, ""
        if self._live is not None:
            self._live.resend()

    def _engines(self) -> list[Any]:
        return [track.engine for track in self._there()]

    # -- the page ----------------------------------------------------------------------------------------------------------------------
    def controls(self) -> dict[str, Any]:
        text = all(getattr(track.engine, "tokenizer", None) is not None for track in self.tracks)
        return {"text": text, "prompt": self._prompt, "max_tokens": self._max_tokens, "reset": True}

    def asked(self, message: Mapping[str, Any]) -> None:
        """What a page asks for: "add", "abort" and "restart" besides what every view knows. What was typed is checked here."""
        kind = message.get("kind")
        if kind == "add":
            self._try("not added", lambda: self._add_typed(message))
        elif kind == "abort":
            self._try("not aborted", lambda: self._abort_typed(str(message.get("request_id"))))
        elif kind == "restart":
            self._try("not reset", self.reset)
        else:
            super().asked(message)

    def _try(self, what: str, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:          # a page's request: whatever is wrong is said where people look
            self._say(f"{what}: {one_line(error)}")

    def _add_typed(self, message: Mapping[str, Any]) -> None:
        typed = str(message.get("prompt", ""))
        prompt = typed if message.get("as") == "text" else _typed_integer("the number of prompt tokens", typed)
        max_tokens, n = (_typed_integer(name, message.get(name)) for name in ("max_tokens", "n"))
        self._say(f"{self._letter(self.add(prompt, max_tokens, n))} added: it waits for the next step")

    def _abort_typed(self, request_id: str) -> None:
        name = self._letter(request_id)
        self.abort(request_id)
        self._say(f"{name} aborted: its blocks are free")

    def _letter(self, request_id: str) -> str:
        for track in self.tracks:
            if request_id in track.log.state.requests:
                return letter(track.log.state.requests[request_id].arrival)
        return repr(request_id)

    def close(self) -> None:
        """Close views and widget, stop listening, forget the engines."""
        super().close()
        self._fill_engine = None


def restart(engine: Any) -> None:
    """End everything in an engine and let its scheduler count from 0: it may, because it is empty."""
    scheduler = engine.scheduler
    for request_id in list(scheduler.requests):
        engine.abort_request(request_id)
    if engine.has_unfinished_requests():                    # outputs that wait to be returned
        engine.step()
    scheduler.recover()                                     # an empty pool, in its first order
    scheduler.step = scheduler.num_arrived = 0


def _typed_integer(name: str, typed: object) -> int:
    try:
        return int(str(typed))
    except ValueError:
        raise ValueError(f"{name} must be an integer, not {str(typed)!r}") from None
