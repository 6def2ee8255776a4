"""Settings: the limits of a server, checked in one place."""
from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..checks import flag, integer, number, one_of

LOG_LEVELS = ("debug", "info", "warning", "error")
MAX_LOGPROBS = 20
"""Of ``logprobs`` and ``top_logprobs``: what OpenAI allows."""
MAX_STOPS = 16
"""Stop strings of a request: each of them is looked for at every character."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Raises ValueError with the value and its limits. The fields are the server's options; see `options.SERVER`."""

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: tuple[str, ...] = field(default=(), repr=False)
    allowed_host: tuple[str, ...] = ()
    """Names in the Host header that a local server without a key answers, besides addresses and localhost."""
    served_model_name: tuple[str, ...] = ()
    """Names by which clients ask for the model; empty: the model's own."""
    chat_template: str | None = None
    """A file."""
    max_queue: int = 512
    """Requests that are accepted and do not run; one more is answered with 429."""
    max_body_bytes: int = 2**21
    max_prompt_tokens: int | None = None
    max_prompts: int = 64
    request_timeout: float = 600.0
    """Seconds from the acceptance of a request to the end of its answer."""
    drain_timeout: float = 60.0
    """Seconds that requests have to end after SIGTERM."""
    stream_interval: float = 0.02
    """Seconds between two events of a text, at least: faster than anybody reads, and what a fast model writes in between travels together. With more
    than 8 requests it grows with their number (`AsyncEngine.generate`)."""
    log_level: str = "info"
    log_prompts: bool = False
    no_page: bool = False

    def __post_init__(self) -> None:
        if not self.host:
            raise ValueError("--host is empty; 127.0.0.1 is this machine, 0.0.0.0 every network that it is in")
        integer("--port", self.port, 0, 65535)
        integer("--max-queue", self.max_queue, 1)
        integer("--max-body-bytes", self.max_body_bytes, 64)
        integer("--max-prompts", self.max_prompts, 1)
        if self.max_prompts > self.max_queue:
            raise ValueError(f"--max-prompts ({self.max_prompts}) must be at most --max-queue ({self.max_queue}): each prompt takes a place")
        if self.max_prompt_tokens is not None:
            integer("--max-prompt-tokens", self.max_prompt_tokens, 1)
        number("--request-timeout", self.request_timeout, 0, 86_400, low_open=True)
        number("--drain-timeout", self.drain_timeout, 0, 86_400)
        number("--stream-interval", self.stream_interval, 0, 10)
        one_of("--log-level", self.log_level, LOG_LEVELS)
        flag("--log-prompts", self.log_prompts)
        flag("--no-page", self.no_page)
        for key in self.api_key:
            if len(key) < 8 or not key.isascii() or not key.isprintable() or " " in key:
                raise ValueError("--api-key must have at least 8 characters, printable ASCII without spaces")   # never the key itself
        for name in self.served_model_name:
            if not name or not name.isprintable():
                raise ValueError(f"--served-model-name must be printable text, not {name!r}")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Settings:
        return cls(**{f.name: values[f.name] for f in fields(cls)})

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def may_ask(self, host: str) -> bool:
        """Whether a request with this Host header comes from somebody who knows where the server is.

        A page in a browser on this machine may have a name that its owner lets point to 127.0.0.1: to the browser the server is then a part of it.
        Where no key is asked, a local server therefore answers to addresses and localhost only, and to the names that its user allows.
        """
        if self.api_key or not self.is_local:
            return True
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        name = name.strip("[]").lower()
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in ("", "localhost", *(allowed.lower() for allowed in self.allowed_host)) or name.endswith(".localhost")
        return True

    def model_names(self, model: str) -> tuple[str, ...]:
        """What clients may call the model; the first is the one in the answers."""
        return self.served_model_name or (Path(model).resolve().name if Path(model).exists() else model,)

    def read_chat_template(self) -> str | None:
        """Raises OSError or ValueError for a file that is none."""
        if self.chat_template is None:
            return None
        text = Path(self.chat_template).read_text(encoding="utf-8")
        if not text.strip():
            raise ValueError(f"--chat-template {self.chat_template}: the file is empty")
        return text
