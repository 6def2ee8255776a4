"""EngineThread: the one thread that owns an engine. It steps while somebody waits for a request, and sleeps in its inbox while nobody does.

Everything that others want of the engine, from any thread or event loop, is a message in the inbox; messages are carried out between two steps. So
nobody waits for a lock while a model computes, and a consumer that is gone leaves a message and goes.
"""
from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from .engine import Engine
from .listeners import StepWatchers
from .output_stream import Mailbox, Reader, RequestFailedError
from .outputs import RequestOutput
from .prepared import PreparedRequest, check_request_id

T = TypeVar("T")
UNHURRIED = 8
"""Requests up to which each gets its outputs at the interval that it asked for. With more the intervals grow, and the event loop's work does not: at
the server's 20 ms it makes 400 outputs a second, each of which holds the interpreter for up to 0.1 ms, while the engine waits."""
Item = tuple[Reader, RequestOutput | None, BaseException | None]
logger = logging.getLogger(__name__)

_RUNNING: set[EngineThread] = set()


class EngineThread:
    """Serves the requests of `OutputStream`s. ``build`` is called in the thread, by `start`; it returns an engine, and what is called, in the thread
    too, as the last thing it does.

    An engine is built where it is stepped: OpenMP has a team for each thread that has ever computed something, and as soon as these are more than
    the machine has processors, the threads of each team sleep between two operations instead of waiting awake, which costs a tenth of the speed.

    It is a daemon, so that a forgotten engine does not keep the interpreter from its end; Python stops daemons at any line, in the middle of a
    torch operation too, so at the end of the interpreter it is asked to stop, and joined, before that.
    """

    engine: Engine
    _release: Callable[[], None]

    def __init__(self, build: Callable[[], tuple[Engine, Callable[[], None]]]) -> None:
        self._pid = os.getpid()
        self._gate = threading.Lock()                       # nothing comes into the inbox after the last look into it
        self._closed = self._draining = self._stop = False
        self._names = count()
        self._ids: dict[str, Reader] = {}                   # from the first look at a request until its last output
        self._waiting: dict[str, Reader] = {}               # those that the engine has; touched by this thread only
        self._mailboxes: WeakValueDictionary[int, Mailbox] = WeakValueDictionary()
        self._drained: list[Future[None]] = []
        self.watchers = StepWatchers()
        self._promises: set[Future[Any]] = set()            # calls and drains that have no answer yet
        # Its `put` may be interrupted by a `put` of the same thread, so destructors may leave messages.
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._built: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(build,), name="paged-edu-engine", daemon=True)

    def start(self) -> None:
        """Returns when the engine is built, and raises what that raises. After Ctrl-C: `close`, and the thread ends when it has built."""
        _RUNNING.add(self)
        self._thread.start()
        try:
            self._built.result()
        except Exception:
            self._thread.join()
            raise

    # -- called by others ----------------------------------------------------------------------------------------------------------
    def check_open(self) -> None:
        """Raises RuntimeError where nobody would ever answer."""
        if os.getpid() != self._pid:
            raise RuntimeError(f"this AsyncEngine runs in process {self._pid}; its thread does not follow a fork: make one in each process")
        if self._closed:
            raise RuntimeError("this AsyncEngine is closed: its `async with` block has ended, or close() was called; make another one")

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def num_requests(self) -> int:
        return len(self._ids)

    def reserve(self, reader: Reader, request_id: str | None, loop: asyncio.AbstractEventLoop) -> None:
        """Give a new reader an id, which is taken from now on. Raises RuntimeError when no request is accepted, ValueError for the id."""
        self.check_open()
        if request_id is not None:
            check_request_id(request_id)
        with self._gate:
            if self._draining:
                raise RuntimeError("this AsyncEngine is draining: it finishes the requests that it has and takes no new ones")
            if request_id is None:
                request_id = next(name for i in self._names if (name := f"async-{i}") not in self._ids)
            if request_id in self._ids:
                raise ValueError(f"request id {request_id!r} is in use by a request that has not finished")
            mailbox = self._mailboxes.get(id(loop))
            if mailbox is None:
                mailbox = self._mailboxes[id(loop)] = Mailbox(loop)
            reader.request_id, reader.mailbox = request_id, mailbox
            self._ids[request_id] = reader

    def add(self, reader: Reader, prepared: PreparedRequest) -> None:
        self._post(partial(self._add, reader, prepared))

    def drop(self, reader: Reader) -> None:
        """Nobody waits for this request any more. Takes no lock: destructors come here. A second call does no harm."""
        if not reader.queued and self._ids.get(reader.request_id) is reader:
            self._ids.pop(reader.request_id, None)
        self._inbox.put(partial(self._drop, reader))

    def call(self, work: Callable[[], T]) -> Future[T]:
        """What ``work`` returns, or raises, between two steps."""
        future: Future[T] = Future()
        self._promise(future)
        self._post(partial(_answer, future, work))
        return future

    async def processed(self) -> None:
        """Returns when everything that was asked for before has been done."""
        with suppress(RuntimeError):                        # closed, so it has
            await asyncio.wrap_future(self.call(lambda: None))

    def abort(self, request_id: str) -> Future[bool]:
        return self.call(partial(self._abort, request_id))

    def drain(self) -> Future[None]:
        with self._gate:
            self._draining = True
        future: Future[None] = Future()
        self._promise(future)
        self._post(partial(self._drained.append, future))
        return future

    def close(self, *, wait: bool = True) -> None:
        """End every request with an error, and the thread. In a forked process: nothing. ``wait``: until that has happened, at most one step."""
        if os.getpid() != self._pid:
            return
        self._inbox.put(self._ask_to_stop)
        if wait and threading.current_thread() is not self._thread:
            self._thread.join()

    def _promise(self, future: Future[Any]) -> None:
        self._promises.add(future)
        future.add_done_callback(self._promises.discard)

    def _post(self, message: Callable[[], None]) -> None:
        self.check_open()
        with self._gate:
            self.check_open()
            self._inbox.put(message)

    # -- the thread ----------------------------------------------------------------------------------------------------------------
    def _run(self, build: Callable[[], tuple[Engine, Callable[[], None]]]) -> None:
        try:
            self.engine, self._release = build()
        except BaseException as error:
            _RUNNING.discard(self)
            self._built.set_exception(error)
            return
        self._built.set_result(None)
        try:
            while not self._stop:
                self._read_inbox()
                if self._waiting and not self._stop:
                    self._guarded(self._step)
                if self._drained and self._is_idle():
                    self._answer_drains()
        finally:
            try:
                self._end_all()
            finally:
                _RUNNING.discard(self)

    def _read_inbox(self) -> None:
        wait = not self._waiting and not (self._drained and self._is_idle())
        with suppress(Empty):
            while not self._stop:
                message = self._inbox.get(block=wait)
                wait = False
                self._guarded(message)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Whatever goes wrong reaches everybody who waits; the engine is consistent, and without requests, after it."""
        try:
            work()
        except BaseException as error:
            self._fail(error)

    def _is_idle(self) -> bool:
        return not self._ids and not self._waiting

    def _ask_to_stop(self) -> None:
        self._stop = True

    def _add(self, reader: Reader, prepared: PreparedRequest) -> None:
        if self._ids.get(reader.request_id) is not reader:
            return                                          # left meanwhile
        reader.queued = True
        self._waiting[reader.request_id] = reader
        try:
            self.engine.queue(prepared)
        except ValueError as error:                         # the id has been taken by hand
            self._end(reader)
            self._hand_over([(reader, None, error)])
            return
        if reader.aborted:
            self._abort(reader.request_id)

    def _drop(self, reader: Reader) -> None:
        if self._end(reader):
            self._discard(reader.request_id)

    def _abort(self, request_id: str) -> bool:
        reader = self._waiting.get(request_id)
        if reader is None:
            reader = self._ids.get(request_id)
            if reader is not None:
                reader.aborted = True                       # while its prompt is being read
            return reader is not None
        output = self.engine.abort_request(request_id)
        if output is not None:
            self._end(reader)
            self._hand_over([(reader, output, None)])
        return output is not None

    def _step(self) -> None:
        items: list[Item] = []
        now, pace = time.monotonic(), max(1.0, len(self._waiting) / UNHURRIED)
        due = {request_id for request_id, reader in self._waiting.items() if reader.due <= now}
        for output in self.engine.step(only=self._waiting, growing=due):
            reader = self._waiting[output.request_id]
            reader.due = now + pace * reader.interval
            if output.finished:
                self._end(reader)
            items.append((reader, output, None))
        for reader in [reader for request_id, reader in self._waiting.items() if not self.engine.knows(request_id)]:
            self._end(reader)
            items.append((reader, None, RequestFailedError(f"request {reader.request_id!r} was ended by hand, and its output taken")))
        if self.engine.last_output is not None:
            self.watchers.tell(self.engine, self.engine.last_output)
        self._hand_over(items)

    def _hand_over(self, items: Iterable[Item]) -> None:
        mailboxes = set()
        for reader, output, error in items:
            reader.mailbox.put(reader, output, error)
            mailboxes.add(reader.mailbox)
        for mailbox in mailboxes:
            if not mailbox.wake():
                for reader in [reader for reader in self._waiting.values() if reader.mailbox is mailbox]:
                    self._drop(reader)

    def _end(self, reader: Reader) -> bool:
        """The request needs nothing any more, and its id is free; whether the engine had it. The id may be another's already."""
        if self._ids.get(reader.request_id) is reader:
            self._ids.pop(reader.request_id, None)
        had = self._waiting.get(reader.request_id) is reader
        if had:
            del self._waiting[reader.request_id]
        return had

    def _discard(self, request_id: str) -> None:
        while True:
            try:
                self.engine.discard(request_id)
                return
            except Warning as warning:                      # a note that waited for its moment, and warnings are errors here
                logger.error("%s: %s", type(warning).__name__, warning)

    def _fail(self, error: BaseException) -> None:
        readers = list(self._waiting.values())
        if not readers:
            logger.error("an error that no request waits for", exc_info=error)
        for reader in readers:
            self._end(reader)
            with suppress(Exception):
                self._discard(reader.request_id)
        self._hand_over([(reader, None, _failed(reader, f"the engine failed: {error!r}", error)) for reader in readers])

    def _answer_drains(self) -> None:
        while self._drained:
            future = self._drained.pop()
            if future.set_running_or_notify_cancel():
                future.set_result(None)

    def _end_all(self) -> None:
        with self._gate:
            self._closed = True
        readers = list(dict.fromkeys((*self._ids.values(), *self._waiting.values())))
        for reader in readers:
            self._end(reader)
            with suppress(Exception):
                self.engine.discard(reader.request_id)
        self._hand_over([(reader, None, _failed(reader, "the engine was closed")) for reader in readers])
        for future in tuple(self._promises):
            if future.set_running_or_notify_cancel():
                future.set_exception(RuntimeError("this AsyncEngine was closed meanwhile"))
        self._release()


def _answer(future: Future[T], work: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except StopIteration as error:                          # no event loop can hand one on: whoever awaits would wait for ever
        reason = RuntimeError("the work raised StopIteration")
        reason.__cause__ = error
        future.set_exception(reason)
    except BaseException as error:
        future.set_exception(error)


def _failed(reader: Reader, what: str, cause: BaseException | None = None) -> RequestFailedError:
    """An error of its own for each request: two tasks that raise the same one would write into one traceback."""
    error = RequestFailedError(f"request {reader.request_id!r}: {what}")
    error.__cause__ = cause
    return error


@atexit.register
def _stop_all() -> None:
    for thread in tuple(_RUNNING):
        thread.close()
