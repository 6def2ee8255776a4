"""Connection: uvicorn's HTTP/1.1 over httptools, with what a server for strangers needs besides.

It refuses a head that does not end, says what is no HTTP in OpenAI's error object, notices that a client goes while another of its requests waits on
the same connection, reads the body of a request that offers another protocol (``Upgrade: h2c``, as Java's client does), and ends a stream to an
HTTP/1.0 client, which knows no chunks, by closing.
"""
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .errors import ApiError

MAX_HEAD = 2**16
"""Bytes of a request line and its headers; what comes in one piece with their end may be more."""
HEAD_SECONDS = 30.0
"""Until they have come, from when a connection is made or something of the next head has come."""
MAX_PIPELINED = 8
"""Requests that wait on a connection for the one before them; with more the connection is not read, and its end not seen."""


class Connection(HttpToolsProtocol):
    """One client's connection. It overrides what uvicorn does not promise to keep: pyproject.toml names the versions that were tried."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._in_head, self._head, self._turns = True, 0, 0
        """Whether a head has not ended, how many bytes it has, and how many heads and bodies have ended."""
        self._cycles: list[Any] = []                        # not answered yet
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:            # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def _expect_head(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(HEAD_SECONDS, self._head_is_late)

    def _head_is_late(self) -> None:
        self._late = None
        if self._pending():                                 # it will not be read before those have been answered
            self._expect_head()
        else:
            self._refuse(ApiError(408, f"request line and headers did not arrive within {HEAD_SECONDS:g} seconds", code="headers_timeout"))

    def _pending(self) -> list[Any]:
        return [cycle for cycle in self._cycles if not cycle.response_complete]

    def _head_came(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        turns = self._turns
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self.logger.warning("a request that is no HTTP")
            self.send_400_response("this is no HTTP/1.1 request that this server can read")
            return
        if self._in_head and self._turns == turns:          # nothing but head in it
            self._head += len(data)
            if self._head > MAX_HEAD:
                self._refuse(ApiError(431, f"request line and headers have more than {MAX_HEAD} bytes", code="headers_too_large"))

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            # Nothing but HTTP/1.1 is spoken here, so the offer is declined: the request is read again without it, and its body as well.
            method, version = self.parser.get_method(), self.parser.get_http_version().encode()
            if method == b"CONNECT":
                raise httptools.HttpParserError("CONNECT is for proxies") from None
            head = [method, b" ", self.url, b" HTTP/", version, b"\r\n"]
            for name, value in self.headers:
                if name != b"upgrade":
                    head += [name, b": ", value, b"\r\n"]
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self._feed(b"".join([*head, b"\r\n", data[offer.args[0] :]]))

    def on_message_begin(self) -> None:
        self._expect_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head, self._turns = False, self._turns + 1
        self._head_came()
        if self.parser.should_upgrade():
            return
        super().on_headers_complete()
        self._cycles = [*self._pending(), self.cycle]
        if self.scope["http_version"] == "1.0":
            setattr(self.cycle, "send", _unchunked(self.cycle))         # noqa: B010  what it calls is looked up there
        if 0 < len(self.pipeline) < MAX_PIPELINED:
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        if not self.parser.should_upgrade():
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_head, self._head, self._turns = True, 0, self._turns + 1
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._head_came()
        for cycle in self._pending():                       # uvicorn tells the last one only
            cycle.disconnected = True
            cycle.message_event.set()
        self._cycles.clear()

    def send_400_response(self, msg: str) -> None:
        self._refuse(ApiError(400, msg, code="invalid_http"))

    def _refuse(self, error: ApiError) -> None:
        """The last words on this connection, unless they would be taken for a part of another answer."""
        pending = self._pending()
        if not pending or (len(pending) == 1 and not self._in_head and not pending[0].response_started):        # of its body something is wrong
            body = error.encoded()
            head = (f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\ncontent-type: application/json\r\n"
                    f"content-length: {len(body)}\r\nconnection: close\r\n\r\n")
            self.transport.write(head.encode() + body)
        self.transport.close()


def _unchunked(cycle: Any) -> Callable[[dict[str, Any]], Awaitable[None]]:
    """``cycle.send`` for a client of HTTP/1.0: an answer without a length ends where the connection does."""
    send, sized = cycle.send, True

    async def to_the_end(message: dict[str, Any]) -> None:
        nonlocal sized
        if message["type"] == "http.response.start":
            sized = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
            if not sized:
                cycle.chunked_encoding = False
        elif not sized:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    return to_the_end
