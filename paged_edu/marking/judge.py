"""The judge: an exercise's own cases on a function that lives in a worker. Here runs the check, there the student's code.

`examine` cannot tell the difference: what it calls is a stand-in that sends the arguments to the worker and returns, or raises, what comes back. What
the function did to its arguments is done to the judge's as well. A policy and a manager (lesson 13) are stand-ins with methods, in the judge's own
scheduler.
"""
from __future__ import annotations

import builtins
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..engine.own_manager import OwnManager
from ..viz.exercises.exercise import Exercise, Verdict, cases_of, examine
from ..viz.exercises.guard import TIME_LIMIT
from ..viz.exercises.managers import drive_manager
from ..viz.exercises.policies import drive_policy
from . import wire
from .process import GoneError, LateError, Loaded, Process

PASS, NOT_YET, ABSENT, CRASHED, TOO_LONG = "pass", "not yet", "not there", "crashed", "took too long"
"""What may be said of an exercise."""

HOLE = "is yours to write."
"""How `check` ends its sentence about a function that is not begun."""
Cells = Sequence[tuple[int, str]]
"""(number in the notebook, source) of code cells."""


@dataclass(frozen=True, slots=True)
class Found:
    """What came out for one exercise of one notebook."""

    status: str
    sentence: str = ""
    """The check's own, or what happened instead."""
    details: tuple[str, ...] = ()
    cell: int | None = None
    """Where it was given to `check`."""

    @property
    def is_hole(self) -> bool:
        """Whether nobody has begun it."""
        return self.status == NOT_YET and self.sentence.endswith(HOLE)


CALL = re.compile(r"""\bcheck\(\s*(?:name\s*=\s*)?["'](\d\d)\.""")


def may_have(exercise: Exercise, cells: Cells) -> bool:
    """Whether it is worth a worker: the notebook names the exercise, or its function and no other lesson's exercise."""
    text = "\n".join(source for _, source in cells)
    lessons = {*CALL.findall(text)}
    return exercise.lesson in lessons if lessons else exercise.name in text or exercise.function_name in text


_RANK = (PASS, NOT_YET, TOO_LONG, CRASHED, ABSENT)


def best(found: Sequence[Found]) -> Found:
    """The best of several; of equals the first."""
    return min(found, key=lambda one: (_RANK.index(one.status), one.is_hole), default=Found(ABSENT))


def mark(exercise: Exercise, cells: Cells, seconds: float) -> Found:
    """Judge what these cells give to `check` for ``exercise``; each part, running cells and judging, may take so many seconds."""
    if not may_have(exercise, cells):
        return Found(ABSENT)
    tried: list[Found] = []
    count = 1
    while len(tried) < count:
        found, candidates, certain = _attempt(exercise, cells, seconds, len(tried), everything=False)
        if not certain and found.status != PASS:
            found = best([found, _attempt(exercise, cells, seconds, len(tried), everything=True)[0]])
        count = max(count, candidates)
        if found.status == PASS:
            return found
        tried.append(found)
    return tried[0]


def _attempt(exercise: Exercise, cells: Cells, seconds: float, which: int, everything: bool) -> tuple[Found, int, bool]:
    """(what came out, how many candidates there are, whether a run of the whole notebook could not say something else)."""
    process = Process(seconds)
    try:
        request = {"notebook": list(cells), "exercise": exercise.name, "function": exercise.function_name, "which": which, "everything": everything}
        loaded = process.load(request, _sample(exercise), seconds)
        if loaded.state == "absent":
            return Found(ABSENT), 1, True
        if loaded.state == "failed":
            return Found(CRASHED, loaded.sentence[:400], (), loaded.cell), loaded.count, loaded.certain
        stand_in = StandIn(process, loaded)
        verdict = _examined(exercise, stand_in)
        if process.lost is not None:
            raise process.lost
        status = PASS if verdict.passed else TOO_LONG if verdict.late else NOT_YET
        sentence = verdict.headline.removeprefix("not yet: ").removeprefix("pass: ")
        certain = status == TOO_LONG or (loaded.certain and not stand_in.lacked)
        return Found(status, sentence, verdict.details, loaded.cell), loaded.count, certain
    except LateError:
        where = "the whole notebook" if everything else "what the function needs"
        return Found(TOO_LONG, f"{where} had not run to the check after {seconds:g} seconds."), 1, True
    except GoneError as gone:
        return Found(CRASHED, f"{gone}."), 1, True
    finally:
        process.close()


@cache
def _sample(exercise: Exercise) -> tuple[Any, ...]:
    """The arguments of a first call."""
    given: list[tuple[Any, ...]] = []

    def remember(*args: Any) -> None:
        given.append(args)
        raise NotImplementedError

    exercise.outcome(remember, cases_of(exercise)[0])
    return given[0]


def _examined(exercise: Exercise, stand_in: StandIn) -> Verdict:
    function: Any = stand_in.function
    if stand_in.kind == "value":
        function = type(stand_in.type_name, (), {})()
    elif exercise.drive is drive_policy:
        function = stand_in.policy
    elif exercise.drive is drive_manager:
        function = stand_in.manager()
    try:
        return examine(exercise, function)
    except Exception as error:                              # as in `check`
        return Verdict(False, f"not yet: what it gives back cannot be examined ({type(error).__name__}).")


class StandIn:
    """The function, or the class, of a worker."""

    def __init__(self, process: Process, loaded: Loaded) -> None:
        self.process = process
        self.kind, self.type_name, self.is_manager = loaded.kind, wire.type_name(loaded.type), loaded.is_manager
        self.lacked = False
        """Whether it missed a name: then the whole notebook may know it."""

    def function(self, *args: Any) -> Any:
        return self._ask({"do": "call", "object": None, "method": None}, args)

    def method(self, number: int, name: str) -> Callable[..., Any]:
        return lambda *args: self._ask({"do": "call", "object": number, "method": name}, args)

    def _ask(self, request: dict[str, Any], args: tuple[Any, ...]) -> Any:
        given = wire.objects_in(args)
        answer = self.process.ask({**request, "args": args}, 2 * TIME_LIMIT)
        try:
            kind, value, after = wire.decode(answer, given)
            if kind == "value":
                for mine, theirs in zip(args, after, strict=True):
                    _become(mine, theirs)
                return value
            name, text = str(value), str(after)
        except (wire.WireError, ValueError, TypeError) as error:
            self.process.lost = GoneError(f"it sends {error}" if isinstance(error, wire.WireError) else "it sends no sense")
            raise self.process.lost from None
        self.lacked = self.lacked or name == "NameError"
        raise _error_type(name)(text)

    def new(self, *args: Any) -> tuple[int, str, list[str]]:
        """A new object of the class: its number, the name of its type, its methods."""
        number, name, methods = self._ask({"do": "new"}, args)
        return number, wire.type_name(name), methods

    def policy(self) -> Any:
        number, name, methods = self.new()
        body: dict[str, Any] = {method: staticmethod(self.method(number, method)) for method in ("order", "victim") if method in methods}
        return type(name, (), body)()

    def manager(self) -> Any:
        """A class of managers whose four own methods are the student's."""
        stand_in = self

        class Remote(OwnManager):
            def start(self) -> None:
                if not stand_in.is_manager:
                    raise TypeError(f"`{stand_in.type_name}` is no subclass of `OwnManager`")
                number, _, _ = stand_in.new(self.num_blocks, self.block_size, self.max_model_len)
                for name in ("take", "give", "num_free"):
                    setattr(self, name, stand_in.method(number, name))

        Remote.__name__ = stand_in.type_name
        return Remote


def _become(mine: Any, theirs: Any) -> None:
    """Do to an argument of ours what the function did to its copy."""
    if type(mine) is list and type(theirs) is list:
        mine[:] = theirs
    elif type(mine) is dict and type(theirs) is dict:
        mine.clear()
        mine.update(theirs)
    elif type(mine).__name__ == "ndarray" and getattr(theirs, "shape", None) == mine.shape:
        mine[...] = theirs


def _error_type(name: str) -> type[Exception]:
    known = getattr(builtins, name, None)
    if known is KeyError:                                   # which would quote a text that is quoted already
        return type(name, (KeyError,), {"__str__": Exception.__str__})
    if isinstance(known, type) and issubclass(known, Exception) and not issubclass(known, UnicodeError | OSError | ImportError | ExceptionGroup):
        return known
    return type(wire.type_name(name), (Exception,), {})
