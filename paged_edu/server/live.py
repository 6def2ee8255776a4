"""The live page at ``/``: block pool and timeline of the running server, drawn by the views' own JavaScript, from the events of the engine.

The engine has a listener only while somebody looks. Token ids, and so what people write, are zeros there unless ``--log-prompts`` was given.
"""
from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from ..core.events import BlocksEntered, Event, Recovered, RequestAdded, SequenceFinished, TokensSampled
from ..engine.engine import Engine
from ..trace import EventLog
from ..trace.wire import wire_event, wire_log
from ..viz.bundle import bundle, css
from .errors import retry
from .metrics import Snapshot
from .service import Service
from .sse import EventStream, Write

VIEWS = ("pool", "timeline")
PAUSE = 0.25
"""Seconds between two messages."""
MAX_STEPS = 400
"""Steps that can be played back."""
MAX_EVENTS = 100_000
"""Events that wait for a slow viewer; beyond that it is sent everything anew."""
MAX_VIEWERS = 8
PATIENCE = 30.0
"""Seconds that a message may take; a page that sleeps asks anew when it wakes."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'"
)
_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>paged-edu serve</title>
<link rel="icon" href="data:,">
<style>:root{{color-scheme:light dark}}body{{margin:0;background:light-dark(#FFFFFF,#16181D);font-family:system-ui,sans-serif}}
main>p{{padding:8px;margin:0}}
{css}</style></head>
<body><main><p>This page needs JavaScript; <a href="metrics">/metrics</a> has the numbers.</p></main>
<script type="module" src="live.js"></script></body></html>
"""


def _hidden(event: Event) -> Event:
    """The event with zeros for token ids."""
    if isinstance(event, RequestAdded):
        return event._replace(prompt_token_ids=(0,) * len(event.prompt_token_ids))
    if isinstance(event, TokensSampled):
        return event._replace(token_ids=(0,) * len(event.token_ids))
    if isinstance(event, BlocksEntered):
        return event._replace(cache_salt=None)
    if isinstance(event, Recovered):
        return event._replace(sequences=tuple((seq, request, (0,) * len(tokens)) for seq, request, tokens in event.sequences))
    if isinstance(event, SequenceFinished) and event.stop_reason != "kv_pool":      # a stop string is text as well
        return event._replace(stop_reason=None)
    return event


def _hide_state(track: dict[str, Any]) -> dict[str, Any]:
    state = track["header"]["state"]
    state["sequences"] = [[seq, request, [0] * len(tokens), *rest] for seq, request, tokens, *rest in state["sequences"]]
    state["entries"] = [[block, entry, parent, [0] * len(tokens), None] for block, entry, parent, tokens, _ in state["entries"]]
    return track


class Feed:
    """One log for all viewers, there while somebody looks. Its methods that take an engine run in the engine's thread."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._shows_text = service.settings.log_prompts
        self._log: EventLog | None = None
        self._unlisten: Callable[[], None] | None = None
        self.viewers = 0
        """Touched by the event loop only."""

    def begin(self, engine: Engine, new: list[Event]) -> tuple[Callable[[], None], dict[str, Any]]:
        """``new`` gets every event from now on; returns what ends that, and what the page begins with."""
        if self._log is None or self._log.last_step != engine.scheduler.step:
            self.end()
            self._log = EventLog.of(engine.scheduler, max_steps=MAX_STEPS)
            self._unlisten = engine.listen(self._log)
        track = wire_log(self._log)
        if not self._shows_text:
            hidden = [wire_event(_hidden(event)) for event in self._log]
            track = _hide_state(track | {"events": hidden})
        # A viewer that does not read gets a new beginning afterwards, so more would never be sent.
        return self._log.watch(lambda event: new.append(event) if len(new) <= MAX_EVENTS else None), {"label": "", **track}

    def end(self) -> None:
        if self._unlisten is not None:
            self._unlisten()
        self._log = self._unlisten = None

    async def serve(self, write: Write) -> None:
        """The messages for one viewer, until it goes or the server stops."""
        async def written(text: str) -> None:
            async with asyncio.timeout(PATIENCE):
                await write(text)

        new: list[Event] = []
        engine, unwatch = self._service.engine, _nothing

        async def begun() -> Callable[[], None]:
            new.clear()
            unwatch, track, snapshot = await engine.between_steps(lambda core: (*self.begin(core, new), Snapshot.of(core)))
            try:
                await written(self._reset(track, snapshot))
            except BaseException:
                unwatch()
                raise
            return unwatch

        try:
            unwatch = await begun()
            while not self._service.draining:
                await asyncio.sleep(PAUSE)
                if len(new) > MAX_EVENTS:
                    unwatch()
                    unwatch = await begun()
                    continue
                events, snapshot = await engine.between_steps(lambda core: (_take(new), Snapshot.of(core)))
                await written(self._news(events, snapshot))
        except (RuntimeError, TimeoutError):                # the engine is closed; a viewer that does not read
            pass
        finally:
            unwatch()

    def release(self) -> None:
        self.viewers -= 1
        if self.viewers == 0 and not self._service.engine.closed:
            asyncio.ensure_future(self._end_if_unwatched())     # noqa: RUF006  it waits for at most a step

    async def _end_if_unwatched(self) -> None:
        with suppress(RuntimeError):
            await self._service.engine.between_steps(lambda core: self.end() if self.viewers == 0 else None)

    def _numbers(self, snapshot: Snapshot) -> dict[str, float]:
        service = self._service
        return snapshot.numbers() | {"generated": service.engine_stats.generated, "finished": service.stats.finished}

    def _reset(self, track: dict[str, Any], snapshot: Snapshot) -> str:
        words = self._words(token for event in track["events"] for token in _tokens(event))
        panes = [{"track": 0, "module": name, "title": "", "options": {"columns": None} if name == "pool" else {}} for name in VIEWS]
        return _message("reset", snapshot=self._numbers(snapshot), tracks=[track], panes=panes, words=words)

    def _news(self, events: list[Event], snapshot: Snapshot) -> str:
        wired = [wire_event(event if self._shows_text else _hidden(event)) for event in events]
        return _message("events", snapshot=self._numbers(snapshot), events=wired, words=self._words(t for event in wired for t in _tokens(event)))

    def _words(self, tokens: Any) -> dict[int, str]:
        tokenizer = self._service.engine.tokenizer
        if not self._shows_text or tokenizer is None:
            return {}
        return {token: tokenizer.decode([token]) for token in set(tokens)}


def _nothing() -> None:
    """What there is to end before anything has begun."""


def _take(new: list[Event]) -> list[Event]:
    taken = new.copy()
    new.clear()
    return taken


def _tokens(event: list[Any]) -> tuple[int, ...]:
    """The token ids of an event as a page gets it."""
    place = {"RequestAdded": 3, "TokensSampled": 2}.get(event[0])
    return tuple(event[place]) if place is not None else ()


def _message(kind: str, *, snapshot: dict[str, float], **parts: Any) -> str:
    return f"data: {json.dumps({'kind': kind, 'numbers': snapshot, **parts}, separators=(',', ':'))}\n\n"


def add_routes(api: FastAPI, service: Service) -> None:
    """The page, its script and its data."""
    feed = Feed(service)
    page = _PAGE.format(css=css())
    script = bundle(VIEWS, "live")

    @api.get("/", include_in_schema=False)
    async def show() -> Response:
        headers = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
        return Response(page, headers=headers, media_type="text/html")

    @api.get("/live.js", include_in_schema=False)
    async def code() -> Response:
        return Response(script, media_type="text/javascript")

    @api.get("/live", include_in_schema=False)
    async def events(request: Request) -> Response:
        if feed.viewers >= MAX_VIEWERS:
            raise retry(429, f"{MAX_VIEWERS} pages look at this server already", 5, "too_many_viewers")
        feed.viewers += 1
        return EventStream(feed.serve, feed.release)
