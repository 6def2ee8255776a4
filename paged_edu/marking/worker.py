"""The worker: a process of its own in which a student's code runs. It takes requests of the judge on what was its standard input.

``hello`` shows that it is there, ``load`` runs the statements that a function needs, ``new`` makes an object of a student's class, ``call`` calls the
function or a method. What the code returns or raises goes back as data; what cannot be caught (a loop, ``os._exit``, a fork) is the judge's business.
"""
from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import json
import os
import pickle
import sys
import types
from collections.abc import Sequence
from typing import IO, Any

from . import cells, wire

MOST_SAID = 300
"""Characters of an error's text."""
MEMORY = 12 * 2**30
"""Bytes of address space, where the system can limit it; torch alone maps several GB."""


def main() -> None:
    requests, answers = _own_streams()
    _limit(float(sys.argv[1]))
    worker = Worker()
    while True:
        try:
            request = pickle.loads(wire.receive(requests))
        except EOFError:                                    # the judge has gone
            os._exit(0)
        wire.send(answers, worker.answer(request))


def _own_streams() -> tuple[IO[bytes], IO[bytes]]:
    """The two pipes, moved away from 0 and 1; what the code reads and prints there is nothing."""
    pipes = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    return pipes


def _limit(seconds: float) -> None:
    """Limits that the code cannot raise again: memory, size of a file, seconds of computing."""
    try:
        import resource
    except ImportError:                                     # Windows
        return
    computing = int(min(seconds, 1e9)) + 60                 # a C long, wherever it has 32 bits
    for what, most in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_FSIZE, 2**30), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_CPU, computing)):
        try:
            _, hard = resource.getrlimit(what)
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(what, (most, most))
        except (ValueError, OSError):                       # macOS does not know them all
            continue


class Worker:
    """The notebook's names, and the objects made of the student's class."""

    def __init__(self) -> None:
        self.space = types.ModuleType("__main__")
        sys.modules["__main__"] = self.space
        self.space.__dict__["display"] = lambda *args, **options: None
        self.function: Any = None
        self.objects: list[Any] = []
        self.encoder = wire.Encoder()
        self.loop: Any = None
        self.flags = 0
        """Of the notebook's ``from __future__ import ...``, which hold for all later cells."""

    def answer(self, request: dict[str, Any]) -> bytes:
        do = request.pop("do")
        if do == "hello":
            return b""
        if do == "load":
            return json.dumps(self._load(**request)).encode()
        if do == "new":
            return self._said(lambda args: self._new(*args), request["args"])
        number, name = request["object"], request["method"]
        return self._said(lambda args: (self.function if number is None else getattr(self.objects[number], name))(*args), request["args"])

    # -- loading ---------------------------------------------------------------------------------------------------------------------------
    def _load(self, notebook: Sequence[tuple[int, str]], exercise: str, function: str, which: int, everything: bool) -> dict[str, Any]:
        """Run what candidate number ``which`` needs."""
        found, faults = cells.statements_of(notebook)
        tried = cells.candidates(found, exercise, function)
        broken = next((fault for number, fault in faults.items() if function in dict(notebook)[number]), None)
        if which >= len(tried):
            return {"state": "failed", "certain": True, "sentence": f"{broken}."} if broken and not which else {"state": "absent"}
        candidate = tried[which]
        chosen = (cells.whole if everything else cells.sliced)(found, candidate)
        self.flags = cells.future_flags(found[: candidate.end])
        for module in cells.imported_within(chosen.statements):
            with contextlib.suppress(BaseException):
                importlib.import_module(module)             # now, and not while a call is timed
        first = self._run_all(chosen.statements, until_an_error=not everything)
        known = {"count": len(tried), "cell": candidate.cell}
        try:
            if first and not everything:
                raise NameError(candidate.expression)
            code = compile(candidate.expression, f"cell {candidate.cell}", "eval", self.flags, dont_inherit=True)
            self.function = eval(code, self.space.__dict__)
        except BaseException as error:
            why = f"`{candidate.expression[:60]}` is not there when the cells are run from the top: {broken or first or _described(error)}."
            return known | {"state": "failed", "sentence": why, "certain": everything or not cells.is_bound(found, candidate)}
        kind = "class" if isinstance(self.function, type) else "function" if callable(self.function) else "value"
        name = type.__dict__["__name__"].__get__(self.function if kind == "class" else type(self.function))
        is_manager = kind == "class" and self._is_manager()
        return known | {"state": "ready", "certain": chosen.certain, "kind": kind, "type": wire.type_name(name), "is_manager": is_manager}

    def _run_all(self, statements: Sequence[cells.Statement], until_an_error: bool) -> str | None:
        """The first error, if there is one. As in a notebook, cells after it run all the same."""
        first = None
        for statement in statements:
            try:
                self._run(statement.node, statement.cell)
            except BaseException as error:                  # SystemExit as well
                first = first or f"cell {statement.cell} raises {_described(error)}"
                if until_an_error:
                    break
        return first

    def _is_manager(self) -> bool:
        home = sys.modules.get("paged_edu.engine.own_manager")
        return home is not None and issubclass(self.function, home.OwnManager)

    def _run(self, node: ast.stmt, cell: int) -> None:
        code = compile(ast.Module([node], []), f"cell {cell}", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | self.flags, dont_inherit=True)
        result = eval(code, self.space.__dict__)
        if code.co_flags & inspect.CO_COROUTINE:            # the cell awaits something
            import asyncio

            self.loop = self.loop or asyncio.new_event_loop()
            self.loop.run_until_complete(result)

    # -- calling ---------------------------------------------------------------------------------------------------------------------------
    def _new(self, *args: Any) -> tuple[Any, ...]:
        made = self.function(*args)
        self.objects.append(made)
        return len(self.objects) - 1, type(made).__name__, [name for name in dir(made) if callable(getattr(made, name, None))]

    def _said(self, call: Any, args: tuple[Any, ...]) -> bytes:
        given = wire.objects_in(args)
        try:
            return self.encoder.encode(["value", call(args), args], given)
        except BaseException as error:
            return self.encoder.encode(["raised", *_error(error)], [])


def _error(error: BaseException) -> tuple[str, str]:
    """The name of its type, or of what counts: a subclass of NotImplementedError is a hole, too."""
    name = str(type.__dict__["__name__"].__get__(type(error)))[:100]
    if isinstance(error, NotImplementedError | NameError):
        name = "NotImplementedError" if isinstance(error, NotImplementedError) else "NameError"
    try:
        return name, " ".join(str(error).split())[:MOST_SAID]
    except Exception:
        return name, ""


def _described(error: BaseException) -> str:
    name, text = _error(error)
    return f"{name}: {text}" if text else name


if __name__ == "__main__":
    main()
