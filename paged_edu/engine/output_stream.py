"""OutputStream: the outputs of one request in an event loop, handed over from the engine's thread; `RequestFailedError` if there will be no more.

Between the thread and the loop lies one place a request (`Reader`), not a queue. What a slow consumer has not taken yet is replaced by what is
newer, with the deltas of both. The loop is woken by one callback for all its requests (`Mailbox`), and by no second one before that has run.
"""
from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from .outputs import RequestOutput
from .prepared import PreparedRequest

if TYPE_CHECKING:
    from .engine_thread import EngineThread


class RequestFailedError(RuntimeError):
    """A request that will have no further output: a step failed (``__cause__`` says how), or the engine was closed."""


class Mailbox:
    """Wakes the readers of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.lock = threading.Lock()            # held for moments, never during a step
        self._ready: dict[Reader, None] = {}
        self._called = False

    def put(self, reader: Reader, output: RequestOutput | None, error: BaseException | None = None) -> None:
        """Called by the engine's thread; `wake` must follow."""
        with self.lock:
            if output is not None:
                reader.output = output if reader.output is None else merged(reader.output, output)
            reader.error = error
            if reader.waiter is not None:
                self._ready[reader] = None

    def wake(self) -> bool:
        """Have the loop look at what was put; False if the loop is closed: nobody will ever read it."""
        with self.lock:
            if self._called or not self._ready:
                return not self.loop.is_closed()
            self._called = True
        try:
            self.loop.call_soon_threadsafe(self._wake_readers)
        except RuntimeError:                    # closed
            return False
        return True

    def _wake_readers(self) -> None:
        with self.lock:
            ready, self._ready, self._called = self._ready, {}, False
        for reader in ready:
            if reader.waiter is not None and not reader.waiter.done():
                reader.waiter.set_result(None)


class Reader:
    """The place in which the newest output of a request waits for its consumer."""

    mailbox: Mailbox            # given by `EngineThread.reserve`, as is the id
    request_id = ""

    def __init__(self) -> None:
        self.output: RequestOutput | None = None
        self.error: BaseException | None = None         # raised once the output has been taken
        self.waiter: asyncio.Future[None] | None = None
        self.queued = False
        self.aborted = False
        self.interval = self.due = 0.0                  # seconds between two outputs, and when, on the thread's clock, the next may be made

    async def get(self) -> RequestOutput:
        if self.output is not None or self.error is not None:
            await asyncio.sleep(0)              # a consumer slower than the engine never waits: the loop's other tasks must run too
        while self.output is None and self.error is None:
            await self._wait()
        with self.mailbox.lock:
            output, self.output = self.output, None
        if output is None:
            assert self.error is not None
            raise self.error
        return output

    async def _wait(self) -> None:
        with self.mailbox.lock:                 # what is put from here on finds the waiter, what was put before is seen here
            if self.output is not None or self.error is not None:
                return
            self.waiter = waiter = self.mailbox.loop.create_future()
        try:
            await waiter
        finally:
            self.waiter = None


class OutputStream(AsyncIterator[RequestOutput]):
    """The outputs of one request, from `AsyncEngine.generate`: for one ``async for``, in one event loop.

    The request is checked and queued when the loop begins. It is dropped, and its blocks are freed after the step that runs, when the loop is left
    early: by an error, a cancellation, `aclose`, or when nothing refers to the stream any more (after ``break``).
    ``asyncio.wait_for(anext(stream), t)`` is a cancellation too when ``t`` is over: to look in between, wait for a task that reads the stream.
    """

    def __init__(
        self, thread: EngineThread, request_id: str | None, prepare: Callable[[str], PreparedRequest], quick: bool, interval: float = 0.0,
    ) -> None:
        self._thread, self._request_id = thread, request_id
        self._prepare, self._quick, self._interval = prepare, quick, interval
        self._reader: Reader | None = None
        self._awaited = self._over = False
        self.prepared: PreparedRequest | None = None
        """The request, once it has been checked: the engine keeps the times in its ``metrics``, whether or not an output is read."""
        if not interval >= 0:
            raise ValueError(f"interval must be at least 0 seconds, not {interval!r}")

    @property
    def request_id(self) -> str | None:
        """What `AsyncEngine.abort` knows the request by; None if none was given and the loop has not begun."""
        return self._request_id

    async def __anext__(self) -> RequestOutput:
        """Raises ValueError or TypeError for a bad request, RuntimeError if the engine takes none, `RequestFailedError` if it was lost."""
        if self._awaited:
            raise RuntimeError("this stream is already awaited by another task: one consumer reads a stream")
        if self._over:
            raise StopAsyncIteration
        reader = self._reader
        if reader is not None and reader.mailbox.loop is not asyncio.get_running_loop():
            raise RuntimeError("this stream began in another event loop: read it there")
        self._awaited = True
        try:
            if reader is None:
                reader = await self._begin()
            output = await reader.get()
        except BaseException:
            self.drop()
            raise
        finally:
            self._awaited = False
        self._over = output.finished
        return output

    async def start(self) -> None:
        """Check and queue the request now, before the first output is read. Raises what the first `anext` would; a second call does nothing."""
        if self._reader is None and not self._over:
            try:
                await self._begin()
            except BaseException:
                self.drop()
                raise

    async def _begin(self) -> Reader:
        reader = self._reader = Reader()                # known here before it is known elsewhere: Ctrl-C may come at any line
        reader.interval = self._interval
        if math.isinf(self._interval):
            reader.due = math.inf
        self._thread.reserve(reader, self._request_id, asyncio.get_running_loop())
        self._request_id = reader.request_id
        prepared = self._prepare(reader.request_id) if self._quick else await asyncio.to_thread(self._prepare, reader.request_id)
        self.prepared = prepared
        self._thread.add(reader, prepared)
        return reader

    def drop(self) -> None:
        """End the request, if it has not ended. Never waits, and may be called by the garbage collector in any thread."""
        if not self._over:
            if self._reader is not None:
                self._thread.drop(self._reader)
            self._over = True

    async def aclose(self) -> None:
        """Drop the request, if it has not ended; returns once its blocks are free."""
        if self._awaited:
            raise RuntimeError("this stream is awaited by a task: cancel that")
        self.drop()
        if self._reader is not None:
            await self._thread.processed()

    def __del__(self) -> None:
        self.drop()


def merged(waiting: RequestOutput, newer: RequestOutput) -> RequestOutput:
    """``newer``, whose deltas begin with those of ``waiting``, which nobody has read."""
    deltas = {completion.index: completion.delta for completion in waiting.outputs}
    return replace(newer, outputs=tuple(
        replace(completion, delta=deltas.get(completion.index, "") + completion.delta) for completion in newer.outputs
    ))
