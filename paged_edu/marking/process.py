"""A worker as the judge sees it: a process that is started, asked, and killed with everything that it has started.

On Linux the judge is a *subreaper* while it marks: a grandchild whose parent has gone becomes its child, so it is found and killed, too.
"""
from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pickle
import queue
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import paged_edu

from . import wire
from .cells import MOST_TRIED

KEPT = ("PATH", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LANG", "LC_ALL", "SYSTEMROOT", "COMSPEC", "PATHEXT")
"""Environment variables that a worker gets; tokens and passwords that others may hold stay here."""
SLICE = 0.05
"""Seconds after which whoever waits for a worker looks whether it is still there."""
STARTS = 60.0
"""Seconds that an interpreter may take to start and to import torch, on a busy machine."""


class GoneError(Exception):
    """The worker's process has ended, or speaks no sense any more; the message says which."""


class LateError(Exception):
    """No answer in time."""


@dataclass(frozen=True)
class Loaded:
    """What a worker says after it has run the cells. A student's code could have said it, so it decides nothing but what is asked next."""

    state: str
    """"ready", "failed" or "absent"."""
    sentence: str = ""
    """Of "failed": why."""
    kind: str = ""
    """"function", "class" or "value"."""
    type: str = ""
    cell: int | None = None
    count: int = 1
    """How many things the notebook gives to `check` for this exercise."""
    certain: bool = False
    """Whether a run of the whole notebook could not make a difference."""
    is_manager: bool = False

    def check(self) -> None:
        """Raise TypeError or ValueError unless these are values that a worker gives."""
        for name, kinds in (("sentence", str), ("type", str), ("cell", int | None), ("count", int), ("certain", bool), ("is_manager", bool)):
            if not isinstance(getattr(self, name), kinds):
                raise TypeError(name)
        known = self.state in ("ready", "failed", "absent") and self.kind in ("", "function", "class", "value")
        if not known or not 1 <= self.count <= MOST_TRIED:
            raise ValueError(self.state)


@contextlib.contextmanager
def reaping() -> Iterator[None]:
    """Inside, orphans among the descendants of this process become its children (Linux; elsewhere nothing)."""
    done = _subreaper(1)
    try:
        yield
    finally:
        if done:
            _subreaper(0)


def _subreaper(on: int) -> bool:
    if sys.platform != "linux":
        return False
    with contextlib.suppress(OSError, AttributeError):
        return bool(ctypes.CDLL(None).prctl(36, on, 0, 0, 0) == 0)          # PR_SET_CHILD_SUBREAPER
    return False


def _environment(folder: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    root = Path(paged_edu.__file__).resolve().parents[1]
    paths = [os.path.abspath(path) for path in kept.get("PYTHONPATH", "").split(os.pathsep) if path]
    if root.name not in ("site-packages", "dist-packages"):                 # run from a checkout, wherever the judge was started
        paths.append(str(root))
    return kept | {
        "PYTHONPATH": os.pathsep.join(paths), "PYTHONUSERBASE": site.getuserbase(), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": folder, "USERPROFILE": folder, "TMPDIR": folder, "TEMP": folder, "TMP": folder, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "MPLBACKEND": "Agg",
    }


class Process:
    """A running worker. ``seconds`` bounds what its processes may compute; how long to wait for an answer is said with each question.

    `close` kills whatever this process has started since: while a worker runs, start nothing else that is to live on.
    """

    def __init__(self, seconds: float) -> None:
        self._folder = tempfile.mkdtemp(prefix="paged-edu-mark-")
        self._others = {child.pid for child in _children()}
        command = [sys.executable, "-P", "-m", "paged_edu.marking.worker", str(seconds)]
        self._process = subprocess.Popen(
            command, cwd=self._folder, env=_environment(self._folder), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._inbox: queue.Queue[bytes | str] = queue.Queue(8)          # a worker that only writes has to wait
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.lost: GoneError | LateError | None = None
        """Why nothing more can be asked."""

    def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            while True:
                self._inbox.put(wire.receive(self._process.stdout))
        except wire.WireError as error:
            self._inbox.put(f"it sends {error}")
        except (EOFError, OSError, ValueError):
            self._inbox.put("")

    def ask(self, request: dict[str, Any], seconds: float) -> bytes:
        """The answer to a request. Raises GoneError or LateError, now and for every later request."""
        if self.lost is not None:
            raise self.lost
        assert self._process.stdin is not None
        try:
            wire.send(self._process.stdin, pickle.dumps(request))
            return self._wait(time.monotonic() + seconds)
        except (GoneError, LateError) as error:
            self.lost = error
            raise
        except (OSError, ValueError):                       # the pipe is closed at its other end
            self.lost = GoneError(self._how_it_ended())
            raise self.lost from None

    def _wait(self, end: float) -> bytes:
        while True:
            with contextlib.suppress(queue.Empty):
                answer = self._inbox.get(timeout=SLICE)     # a short one: whoever gives up on this thread can reach it in between
                if isinstance(answer, bytes):
                    return answer
                raise GoneError(answer or self._how_it_ended())
            if self._process.poll() is not None and self._inbox.empty():
                raise GoneError(self._how_it_ended())       # a child of its keeps the pipe open
            if time.monotonic() > end:
                raise LateError("no answer in time")

    def _how_it_ended(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(5)
            return f"its process ends with exit code {code}" if code >= 0 else f"its process is killed by signal {-code}"
        return "it closes the line to its judge"

    def load(self, request: dict[str, Any], sample: Any, seconds: float) -> Loaded:
        """Run what the function needs; what the worker says of it. ``sample`` brings the modules of its arguments, before the clock runs."""
        self.ask({"do": "hello", "sample": sample}, STARTS)
        try:
            loaded = Loaded(**json.loads(self.ask({"do": "load", **request}, seconds)))
            loaded.check()
        except (ValueError, TypeError, RecursionError):
            self.lost = GoneError("it sends no sense")
            raise self.lost from None
        return loaded

    def close(self) -> None:
        """Kill it and what it has started, and remove its folder."""
        end = time.monotonic() + 5
        while strays := [child for child in _children() if child.pid not in self._others]:
            _kill(strays)
            if time.monotonic() > end:                      # one who forks faster than anybody can look
                break
        self._process.kill()
        self._process.wait()
        for _ in range(20):                                 # it ends with the pipe, unless somebody who escaped holds the other end
            with contextlib.suppress(queue.Empty):
                while True:
                    self._inbox.get_nowait()
            self._reader.join(SLICE)
            if not self._reader.is_alive():
                break
        for pipe in (self._process.stdin, None if self._reader.is_alive() else self._process.stdout):
            with contextlib.suppress(OSError, ValueError):
                if pipe is not None:
                    pipe.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _kill(strays: list[psutil.Process]) -> None:
    """Kill them with their process groups: a group is hit at once, even one in which each process only starts the next and ends."""
    groups = set()
    for stray in strays:
        with contextlib.suppress(OSError, AttributeError):  # it has gone; Windows has no groups
            groups.add(os.getpgid(stray.pid))
    for group in groups - ({os.getpgrp()} if groups else set()):
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    for stray in strays:
        with contextlib.suppress(psutil.Error):
            stray.kill()
    psutil.wait_procs(strays, timeout=5)


def _children() -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        children: list[psutil.Process] = psutil.Process().children(recursive=True)
        return children
    return []
