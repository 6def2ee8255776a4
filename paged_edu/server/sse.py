"""Answers that end when the client goes: `while_connected` for whole ones, `EventStream` for server-sent events."""
from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")
LAST_WORD = 5.0
"""Seconds for the last event, or the end, of a stream to be sent."""


class Write(Protocol):
    """Send events; ``last``: nothing comes after them, and the answer ends in the same packet."""

    async def __call__(self, text: str, *, last: bool = False) -> None: ...


class ClientGoneError(Exception):
    """Nobody waits for the answer any more."""


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which is cancelled when the client disconnects: then `ClientGoneError`. The body must have been read."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))


class EventStream(Response):
    """Server-sent events that ``produce(write)`` writes; it handles its own errors. ``release`` is called at the end, whatever happens."""

    media_type = "text/event-stream"

    def __init__(self, produce: Callable[[Write], Coroutine[Any, Any, None]], release: Callable[[], None]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._produce, self._release = produce, release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})

            ended = False

            async def write(text: str, *, last: bool = False) -> None:
                nonlocal ended
                if text or last:
                    ended = last
                    await send({"type": "http.response.body", "body": text.encode("ascii"), "more_body": not last})

            await while_connected(receive, self._produce(write))
        finally:
            self._release()
        if ended:
            return
        with suppress(TimeoutError):                        # a client that reads nothing is not waited for
            async with asyncio.timeout(LAST_WORD):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
