"""`paged-edu serve`: load the model, listen, serve until SIGTERM or Ctrl-C, let open requests end, give the memory back."""
from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import math
import os
import signal
import socket
import sys
import warnings
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING

from ..config import EngineConfig
from ..terminal import PROG, note
from ..words import counted
from . import options
from .settings import Settings

if TYPE_CHECKING:
    import uvicorn

    from ..engine.async_engine import AsyncEngine
    from .service import Service

LAST_WORDS = 15
"""Seconds, after the drain timeout, for the step that runs and for telling clients that they are cut off."""
EXTRA = "pip install 'paged-edu[serve]'"


def run(args: argparse.Namespace) -> int:
    """The command. What is wrong with an option is said before a model is loaded, and so is a port that is taken."""
    values = options.collect(vars(args), os.environ, args.config)
    settings, engine_options = Settings.of(values), options.engine_options(values)
    EngineConfig(**engine_options)
    settings.read_chat_template()
    check_extra()
    with bound(settings) as sock:
        _log_to_stderr(settings)
        warnings.simplefilter("always", RuntimeWarning)     # they name requests; Python would remember each text for ever
        if not settings.is_local and not settings.api_key:
            note(f"warning: {settings.host} can be reached by others, and there is no --api-key: anybody may use this server")
        note(f"loading {engine_options['model']} ...")
        from ..engine.async_engine import AsyncEngine
        from ..threads import one_thread_for_small_models

        engine = AsyncEngine(**engine_options)
        asyncio.run(engine.between_steps(lambda _: one_thread_for_small_models(engine.llm)))        # a thread has a count of its own
        return serve(engine, settings, sock)


def check_extra() -> None:
    """Raises ImportError that says what to install."""
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ImportError(f"{PROG} serve needs the package {error.name}: {EXTRA}") from None


def bound(settings: Settings) -> socket.socket:
    """A socket with the address, not listening yet. Raises OSError that names the address."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # With the protocol named: only then asyncio turns Nagle's algorithm off, which would hold each second packet back for 40 ms.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":                              # elsewhere it would let two servers have one port
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((settings.host, settings.port))
    except OSError as error:
        sock.close()
        raise OSError(f"--host {settings.host} --port {settings.port}: {error.strerror or error}") from None
    return sock


def _log_to_stderr(settings: Settings) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    ours = logging.getLogger("paged_edu")
    ours.handlers, ours.propagate = [handler], False
    ours.setLevel(settings.log_level.upper())
    uvicorn_log = logging.getLogger("uvicorn")
    uvicorn_log.handlers, uvicorn_log.propagate = [handler], False
    uvicorn_log.setLevel(logging.WARNING)


def serve(engine: AsyncEngine, settings: Settings, sock: socket.socket) -> int:
    """Serve until a signal comes; returns the exit code. The engine is closed at the end."""
    from .service import Service

    service = Service(engine, settings)
    address = sock.getsockname()
    url = f"http://{f'[{address[0]}]' if ':' in address[0] else address[0]}:{address[1]}"
    ready = (f"{service.names[0]} at {url}/v1, {counted(engine.memory_plan.num_blocks, 'block')} of {engine.config.block_size} tokens"
             + ("" if settings.no_page else f"; watch it at {url}/"))
    server = make_server(service, ready)

    def stop(*_: object) -> None:
        """Before uvicorn listens to signals, and after: it raises what it has caught once more at its end, when nothing is left to do."""
        server.should_exit = True

    # What is here now stays: a collection that looked at all of it (a sixth of a second) would stop every answer.
    gc.collect()
    gc.freeze()
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        asyncio.run(server.serve(sockets=[sock]))
    finally:
        gc.unfreeze()
        for number, handler in before.items():
            signal.signal(number, handler)
        service.close()
        engine.close()
    note(f"stopped; {counted(service.stats.finished, 'prompt')} answered, {service.stats.dropped} dropped, {service.stats.failed} failed")
    return 0


def make_server(service: Service, ready: str = "") -> uvicorn.Server:
    """uvicorn around the application. ``ready`` is said when it listens: whoever reads that may ask at once."""
    import uvicorn

    from .app import create_app
    from .connection import Connection
    from .sse import LAST_WORD

    app = create_app(service)

    class Draining(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started and ready:
                note(ready)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            late = asyncio.get_running_loop().call_later(service.settings.drain_timeout, service.cut_off)
            hanging_up = asyncio.ensure_future(self._hang_up())
            app.stop_reading()
            try:
                await super().shutdown(sockets)
            finally:
                late.cancel()
                hanging_up.cancel()

        async def _hang_up(self) -> None:
            """Once those who are cut off have had the time to be told: whoever reads nothing is not waited for."""
            while not service.engine.closed:
                await asyncio.sleep(0.1)
            await asyncio.sleep(LAST_WORD)
            for connection in tuple(self.server_state.connections):
                connection.transport.abort()

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            """At once: no new request is taken while uvicorn lets the others end. A second Ctrl-C ends them, a third does not even tell them."""
            if not service.draining:
                service.drain()
                open_ = f"; {counted(service.in_flight, 'prompt')} in flight may end, Ctrl-C cuts them off" if service.in_flight else ""
                with suppress(Exception):                   # nobody may read stderr any more, or the signal has interrupted who writes it
                    note(f"{signal.Signals(sig).name}: no new requests{open_}")
            elif sig == signal.SIGINT and not service.cut:
                service.cut_off()
                return
            super().handle_exit(sig, frame)

    config = uvicorn.Config(
        app, http=Connection, log_config=None, access_log=False, server_header=False, proxy_headers=False, lifespan="off", ws="none",
        timeout_graceful_shutdown=math.ceil(service.settings.drain_timeout) + LAST_WORDS,
    )
    return Draining(config)
