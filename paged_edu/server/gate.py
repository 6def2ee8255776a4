"""Gate: what every HTTP request passes before anything reads it: a request id, the key, limits on the body; and the line in the log after it."""
from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import time
from collections import Counter
from contextlib import suppress
from typing import Any
from uuid import uuid4

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError, mistake, stopped, stopping
from .settings import Settings
from .sse import ClientGoneError

OPEN = ("/health", "/", "/live.js")
"""Paths that need no key: they show nothing of what is served."""
METHODS = ("GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE")
BODY_SECONDS = 30.0
"""A client that takes longer to send its body is told to come again."""
_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
logger = logging.getLogger(__name__)


class BodyError(HTTPException):
    """Raised where a body is read. FastAPI turns any other error there into one of its own."""

    def __init__(self, told: ApiError) -> None:
        super().__init__(told.status)
        self.told = told


class Gate:
    """ASGI middleware around the whole application. ``answered`` counts (method, path, status); unknown paths together."""

    def __init__(self, app: ASGIApp, settings: Settings, known_paths: tuple[str, ...]) -> None:
        self._app, self._settings, self._paths = app, settings, known_paths
        self._keys = [_digest(key.encode()) for key in settings.api_key]
        self.answered: Counter[tuple[str, str, int]] = Counter()
        self.reading: set[asyncio.Timeout] = set()
        """Of bodies that have not come: how long they may take."""
        self.stopping = False

    def stop_reading(self) -> None:
        """The server stops: whoever still sends a body is told so now, since nobody will read it."""
        self.stopping = True
        for waiting in self.reading:
            if not waiting.expired():
                waiting.reschedule(0.0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1000})
                return
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request = _Request(self, scope, receive, send, headers, self._settings.max_body_bytes)
        try:
            self._check(scope["path"], headers)
            request.check_length()
            asked = scope["method"]
            if asked == "HEAD" and scope["path"] != "/live":        # as GET; uvicorn leaves the body out. Events without a body would have no end
                asked = "GET"
            await self._app({**scope, "method": asked}, request.receive, request.send)
        except ApiError as error:
            await request.refuse(error)
        except ClientGoneError:
            request.status = 499
        except asyncio.CancelledError:                      # a third Ctrl-C, or nothing has helped for too long
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await request.refuse(stopped())
        except Exception as error:
            logger.error("%s failed", request.id, exc_info=error)
            await request.refuse(mistake(request.id))
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            method = scope["method"] if scope["method"] in METHODS else "other"
            self.answered[method, path, request.status] += 1
            request.log()

    def _check(self, path: str, headers: Headers) -> None:
        if not self._settings.may_ask(headers.get("host", "")):
            said = f"this server does not answer to the name {headers['host'][:100]!a}: use its address, --allowed-host or --api-key"
            raise ApiError(403, said, code="host_not_allowed")
        if not self._keys or path in OPEN:
            return
        kind, _, key = headers.get("authorization", "").partition(" ")
        given = _digest(key.strip().encode("latin-1")) if kind.lower() == "bearer" else b""
        # Digests of one length, and every key looked at: the time says nothing about a key.
        found = [hmac.compare_digest(given, known) for known in self._keys]
        if not any(found):
            said = "this API key is not known here" if given else "an API key is needed: Authorization: Bearer KEY"
            raise ApiError(401, said, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body has more than {limit} bytes, this server's limit", code="body_too_large", headers={"Connection": "close"})


class _Request:
    """One request on its way: counts its body, and gives the answer its id."""

    def __init__(self, gate: Gate, scope: Scope, receive: Receive, send: Send, headers: Headers, limit: int) -> None:
        asked = headers.get("x-request-id", "")
        self.id = asked if _ID.fullmatch(asked) else uuid4().hex
        self.notes: dict[str, Any] = {}
        scope.setdefault("state", {})["request_id"] = self.id
        scope["state"]["notes"] = self.notes
        self.status = 0
        self._scope, self._receive, self._send, self._headers, self._limit = scope, receive, send, headers, limit
        self._gate, self._begin = gate, time.monotonic()
        self._size, self._whole = 0, False

    def check_length(self) -> None:
        length = self._headers.get("content-length", "0")
        if not (length.isascii() and length.isdecimal()):
            raise ApiError(400, f"Content-Length must be a number of bytes, not {length[:80]!a}", headers={"Connection": "close"})
        if int(length[:20]) > self._limit:
            raise _too_large(self._limit)
        if self._scope["method"] == "POST":
            kind = self._headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":      # a page in somebody's browser may send other types here without asking
                raise ApiError(415, f"the body must be application/json, not {ascii(kind[:80]) if kind else 'without a content type'}")

    async def receive(self) -> Message:
        if self._whole:
            return await self._receive()
        waiting = asyncio.timeout(0.0 if self._gate.stopping else max(0.0, self._begin + BODY_SECONDS - time.monotonic()))
        try:
            async with waiting:
                self._gate.reading.add(waiting)
                message = await self._receive()
        except TimeoutError:
            if self._gate.stopping:
                raise BodyError(stopping({"Connection": "close"})) from None
            said = f"the body did not arrive within {BODY_SECONDS:g} seconds"
            raise BodyError(ApiError(408, said, code="body_timeout", headers={"Connection": "close"})) from None
        finally:
            self._gate.reading.discard(waiting)
        if message["type"] == "http.request":
            self._size += len(message.get("body", b""))
            self._whole = not message.get("more_body", False)
            if self._size > self._limit:
                raise BodyError(_too_large(self._limit))
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", self.id.encode())]
        await self._send(message)

    async def refuse(self, error: ApiError) -> None:
        """Send an error, unless an answer has begun."""
        if self.status:
            return
        body = error.encoded()
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **error.headers}
        await self.send({"type": "http.response.start", "status": error.status,
                         "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]})
        await self.send({"type": "http.response.body", "body": body, "more_body": False})

    def log(self) -> None:
        level = logging.DEBUG if self._scope["path"] in ("/health", "/metrics") and self.status == 200 else logging.INFO
        notes = "".join(f" {name}={value}" for name, value in self.notes.items())
        seconds = time.monotonic() - self._begin
        logger.log(level, "%s %s %s %d %.3fs%s", self.id, self._scope["method"], ascii(self._scope["path"][:500])[1:-1], self.status, seconds, notes)
