"""Run a learner's function so that nothing it does can stop the notebook: errors, endless loops and prints all become an `Outcome`.

The function runs in a thread of its own, because only a thread can be given up on every platform and in every front end (signals reach the main
thread of Unix systems alone, and what is defined in a notebook cannot be sent to another process).
"""
from __future__ import annotations

import ctypes
import io
import sys
import threading
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

TIME_LIMIT = 3.0
"""Seconds that one call may take. Right answers need microseconds; the rest is for a machine that is busy with something else."""
PATIENCE = 3.0
"""Seconds that a call is asked to end, after its time is up; one that waits inside a C function cannot hear it and is left behind."""
MOST_PRINTED = 300
"""Characters of what a function prints that are kept."""


class OutOfTime(BaseException):
    """Raised inside the function when its time is up; not an Exception, so that ``except Exception`` does not swallow it."""


class NoAnswerError(Exception):
    """The function gave back something that cannot be an answer; the message is a sentence for the learner."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one call came to. Two outcomes are equal when they give the same value or fail in the same way."""

    kind: str
    """"value", "hole" (``NotImplementedError``), "raised", "complaint" or "time"."""
    value: Any = None
    """The answer, in plain built-in types; of "raised" the name of the error, of "complaint" the sentence."""
    detail: str = ""
    """Of "raised": what the error says."""
    printed: str = ""

    def same(self, other: Outcome) -> bool:
        return self.kind == other.kind and bool(self.value == other.value)


def one_line(text: str, most: int = 200) -> str:
    """``text`` in one line of at most ``most`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 3] + "..."


def _describe(error: BaseException) -> str:
    try:
        return one_line(str(error))
    except Exception:
        return ""


class _Call:
    """One call in one thread; ``outcome`` is set when it has ended by itself."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._lock = threading.Lock()
        self._ended = False
        self.outcome = Outcome("time")
        self.thread = threading.Thread(target=self._work, daemon=True, name="exercise")

    def _work(self) -> None:
        try:
            try:
                outcome = self._attempt()
            finally:
                with self._lock:
                    self._ended = True
            self.outcome = outcome
        except BaseException:           # OutOfTime that arrived a moment too late: the outcome says "time" already
            pass

    def _attempt(self) -> Outcome:
        try:
            return Outcome("value", self._call())
        except OutOfTime:
            return Outcome("time")
        except NotImplementedError as error:
            return Outcome("hole", None, _describe(error))
        except NoAnswerError as complaint:
            return Outcome("complaint", str(complaint))
        except BaseException as error:
            return Outcome("raised", str(type.__dict__["__name__"].__get__(type(error))), _describe(error))

    def give_up(self) -> None:
        """Ask the thread to end, again and again for a moment: a bare ``except`` in a loop swallows whatever arrives within its ``try``."""
        end, interval = time.monotonic() + PATIENCE, sys.getswitchinterval()
        sys.setswitchinterval(1e-5)                         # more tries: one of them arrives outside the `try`
        try:
            while time.monotonic() < end and self.thread.is_alive():
                with self._lock:
                    if self._ended or self.thread.ident is None:
                        break
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread.ident), ctypes.py_object(OutOfTime))
                self.thread.join(0.0005)
        finally:
            sys.setswitchinterval(interval)


def run(call: Callable[[], Any]) -> Outcome:
    """What ``call()`` comes to within `TIME_LIMIT` seconds. Raises nothing but the KeyboardInterrupt of a reader who stops the cell."""
    printed = io.StringIO()
    worker = _Call(call)
    with redirect_stdout(printed), redirect_stderr(printed):
        worker.thread.start()
        try:
            worker.thread.join(TIME_LIMIT)
        finally:
            if worker.thread.is_alive():
                worker.give_up()
    outcome = worker.outcome
    return Outcome(outcome.kind, outcome.value, outcome.detail, printed.getvalue()[:MOST_PRINTED])
