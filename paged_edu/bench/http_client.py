"""A small HTTP client for load: a connection for each request, events as they come. A general one takes as long for an event as a small model."""
from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from .. import __version__

LIMIT = 2**20
"""Bytes of a line of headers, and of an error's body."""


class AnswerError(Exception):
    """An answer that is no success. ``status``: as HTTP has it; 0: the connection was lost, or it was no HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}" if status else message)
        self.status = status


@dataclass(frozen=True)
class Target:
    """A server: "http://host:port", with a path before "/v1" if it has one. Raises ValueError for what is no such address."""

    url: str
    api_key: str | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"--url must be an address such as http://127.0.0.1:8000, not {self.url!r}")
        if parts.username or parts.password:
            raise ValueError("--url has a user's name or password in it, which would not be sent: give a key with --api-key")    # nor repeated here

    @property
    def base(self) -> str:
        """The path before the endpoints."""
        path = urlsplit(self.url).path.rstrip("/")
        return path if path.endswith("/v1") else path + "/v1"

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(self.url)
        secure = parts.scheme == "https"
        try:
            return await asyncio.open_connection(
                parts.hostname, parts.port or (443 if secure else 80), ssl=ssl.create_default_context() if secure else None, limit=LIMIT,
            )
        except OSError as error:
            said = "refused" if isinstance(error, ConnectionRefusedError) else error.strerror or error
            raise AnswerError(0, f"no connection to {self.url}: {said}") from error

    def head(self, method: str, path: str, length: int) -> bytes:
        lines = [f"{method} {self.base}{path} HTTP/1.1", f"Host: {urlsplit(self.url).netloc.rpartition('@')[2]}", "Connection: close",
                 f"User-Agent: paged-edu/{__version__}", "Accept: text/event-stream, application/json"]
        lines += ["Content-Type: application/json", f"Content-Length: {length}"] if length else []
        lines += [f"Authorization: Bearer {self.api_key}"] if self.api_key else []
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    async def get(self, path: str) -> Any:
        """The JSON at a path. Raises AnswerError."""
        reader, writer = await self.connect()
        try:
            writer.write(self.head("GET", path, 0))
            _, body = await _answer(reader)
            text = b"".join([part async for part in body])
        except _LOST as error:
            raise _unread(error) from error
        finally:
            writer.close()
        try:
            return json.loads(text)
        except ValueError as error:
            raise AnswerError(0, f"{self.url}{path} is no JSON") from error

    async def events(self, path: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """The data of the events that a POST is answered with, up to ``[DONE]``. Raises AnswerError, for an error among the events too."""
        content = json.dumps(body).encode()
        reader, writer = await self.connect()
        try:
            writer.write(self.head("POST", path, len(content)) + content)
            _, chunks = await _answer(reader)
            rest = b""
            async for chunk in chunks:
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    data = line.removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
                    if data == b"[DONE]":
                        return
                    if data:
                        event = json.loads(data)
                        if "error" in event:
                            raise AnswerError(500, str(event["error"].get("message", event["error"])))
                        yield event
            raise AnswerError(0, "the stream ended without [DONE]")
        except _LOST as error:
            raise _unread(error) from error
        finally:
            writer.close()


_LOST = (OSError, EOFError, asyncio.LimitOverrunError, ValueError)


def _unread(error: Exception) -> AnswerError:
    what = "the connection was lost" if isinstance(error, OSError | EOFError) else "the answer cannot be read"
    return AnswerError(0, f"{what}: {type(error).__name__}")


async def _answer(reader: asyncio.StreamReader) -> tuple[dict[str, str], AsyncIterator[bytes]]:
    """Headers and body of an answer. Raises AnswerError where it is no success."""
    first = (await reader.readuntil(b"\r\n")).split(None, 2)
    if len(first) < 2 or not first[0].startswith(b"HTTP/") or not first[1].isdigit():
        raise AnswerError(0, "the answer is no HTTP")
    headers: dict[str, str] = {}
    while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    body, status = _body(reader, headers), int(first[1])
    if status != 200:
        text = b"".join([part async for part in body])[:LIMIT]
        try:
            said = str(json.loads(text)["error"]["message"])
        except (ValueError, KeyError, TypeError):
            said = text[:200].decode("utf-8", "replace")
        raise AnswerError(status, said)
    return headers, body


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            yield (await reader.readexactly(size + 2))[:-2]
    elif "content-length" in headers:
        yield await reader.readexactly(int(headers["content-length"]))
    else:
        while part := await reader.read(65536):
            yield part
