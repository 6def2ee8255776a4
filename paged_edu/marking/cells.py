"""What a function needs of its notebook: the statements before the call of `check` that bind the names it uses, and the names those use.

Nothing is run here. A lesson's views, models and servers are left out this way, unless the function uses them. Where a slice may lack something (a
list that another cell fills), it says so, and the whole notebook is run instead, from the top to the call.
"""
from __future__ import annotations
import __future__

import ast
import io
import re
import symtable
import textwrap
import tokenize
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

MOST_TRIED = 4
"""Calls of `check` for one exercise that are judged: those of a function called as the task says first, then the latest."""


@dataclass(frozen=True)
class Statement:
    """One statement at the top level of a cell, with the names that it binds, changes (``name.x = ...``, ``name.add(...)``) and reads."""

    cell: int
    """Counted from 1, text cells included."""
    node: ast.stmt
    binds: frozenset[str]
    changes: frozenset[str]
    reads: frozenset[str]

    @property
    def is_definition(self) -> bool:
        return isinstance(self.node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom)

    @property
    def is_star(self) -> bool:
        return isinstance(self.node, ast.ImportFrom) and any(alias.name == "*" for alias in self.node.names)


@dataclass(frozen=True)
class Candidate:
    """Something that the notebook gives to `check`."""

    end: int
    """Statements before the call."""
    cell: int
    expression: str


@dataclass(frozen=True)
class Slice:
    """The statements that are to be run, in order."""

    statements: tuple[Statement, ...]
    certain: bool
    """Whether nothing that was left out can matter."""


def without_magic(source: str) -> str:
    """A cell as Python. Of IPython's own lines, ``%time f()`` is ``f()``, ``a = !ls`` is ``a = None``, and others (``!ls``, ``?name``) do nothing."""
    try:
        ast.parse(source)
        return source
    except SyntaxError:
        lines = textwrap.dedent(source).strip("\n").split("\n")
    if lines[0].startswith("%%"):
        if not lines[0].startswith(("%%time", "%%capture", "%%prun")):
            return ""                                       # a cell of another language
        lines[0] = ""
    skipped = source[: len(source) - len(source.lstrip("\n"))]            # so that lines keep their numbers
    kept: list[str] = []
    goes_on = False
    for line in lines:
        line = line.rstrip("\r")
        own = _OWN_LINE.match(line)
        if own is not None and not goes_on and _is_within("\n".join(kept)):
            own = None
        if goes_on:                                         # of a line that is left out
            kept.append("")
            goes_on = line.endswith("\\")
        elif own is None:
            kept.append(line)
        else:
            does = own["timed"] or (f"{own['target']} = None" if own["target"] else "pass" if own["indent"] else "")
            kept.append(own["indent"] + does)
            goes_on = line.endswith("\\") and not own["timed"]
    return skipped + "\n".join(kept)


_OWN_LINE = re.compile(
    r"(?P<indent>\s*)(?:%time\s+(?P<timed>[^-\s].*)|(?P<target>[A-Za-z_][\w.,\[\] ]*?)\s*=\s*(?:!|%[A-Za-z]).*|[%!?].*|%{0,2}[\w.*]+\?{1,2}\s*$)"
)


def _is_within(source: str) -> bool:
    """Whether a bracket or a text in three quotes is open at the end."""
    try:
        for _ in tokenize.generate_tokens(io.StringIO(source + "\n").readline):
            pass
    except (tokenize.TokenError, SyntaxError) as error:
        return "EOF in multi-line" in str(error) or "unterminated triple-quoted" in str(error)
    return False


def statements_of(cells: Sequence[tuple[int, str]]) -> tuple[list[Statement], dict[int, str]]:
    """The statements of (number, source) cells, and what is wrong with the cells that are no Python."""
    found: list[Statement] = []
    faults: dict[int, str] = {}
    for number, source in cells:
        try:
            body = ast.parse(without_magic(source)).body
            found += [_statement(number, node) for node in body]
        except SyntaxError as error:
            line = f" (line {error.lineno})" if error.lineno else ""
            faults[number] = f"cell {number} is no Python: {error.msg}{line}"
        except (ValueError, RecursionError, MemoryError) as error:
            faults[number] = f"cell {number} is no Python: {type(error).__name__}"
    return found, faults


def _statement(number: int, node: ast.stmt) -> Statement:
    changes = {name for inner in _at_top(node) for name in _changed(inner)} | {*_registered(node)}
    try:
        table = symtable.symtable(ast.unparse(node), f"cell {number}", "exec")
        binds = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}
        reads = {s.get_name() for s in table.get_symbols() if s.is_referenced()} | set(_globals(table))
    except SyntaxError:                                     # ``await`` at the top level
        names = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
        binds = {n.id for n in names if not isinstance(n.ctx, ast.Load)}
        reads = {n.id for n in names}
    return Statement(number, node, frozenset(binds), frozenset(changes), frozenset(reads))


def _globals(table: symtable.SymbolTable) -> Iterator[str]:
    """Names that functions, classes and comprehensions inside take from the notebook."""
    for child in table.get_children():
        yield from (s.get_name() for s in child.get_symbols() if s.is_global())
        yield from _globals(child)


def _at_top(node: ast.AST) -> Iterator[ast.AST]:
    """The node and those within, functions and classes left out: they run when they are called."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from _at_top(child)


def _changed(node: ast.AST) -> Iterator[str]:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
        targets = [node]
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        called = node.value.func
        if isinstance(called, ast.Attribute | ast.Call):    # of ``f.register(int)(g)`` it is f
            targets = [called]
        elif isinstance(called, ast.Name) and called.id in ("setattr", "delattr"):
            targets = node.value.args[:1]
    for target in targets:
        root: ast.expr = target
        while isinstance(root, ast.Attribute | ast.Subscript | ast.Call):
            root = root.func if isinstance(root, ast.Call) else root.value
        if isinstance(root, ast.Name):
            yield root.id


def _registered(node: ast.stmt) -> Iterator[str]:
    """``f`` of ``@f.register``: the function that comes below becomes a part of it."""
    for decorator in getattr(node, "decorator_list", []):
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if isinstance(called, ast.Attribute) and called.attr == "register" and isinstance(called.value, ast.Name):
            yield called.value.id


def future_flags(found: Sequence[Statement]) -> int:
    """What ``from __future__ import ...`` among the statements means to the compiler."""
    nodes = [s.node for s in found if isinstance(s.node, ast.ImportFrom) and s.node.module == "__future__"]
    features = {alias.name for node in nodes for alias in node.names if alias.name in __future__.all_feature_names}
    return sum({getattr(__future__, name).compiler_flag for name in features})


def candidates(found: Sequence[Statement], exercise: str, function: str) -> list[Candidate]:
    """What is given to `check` for ``exercise``, best first: that is ``function`` at the end, if it is written again below those calls.

    Without such a call, ``function`` as it is at the end, if it is there at all and the notebook is not one of another lesson.
    """
    imports = [s.node for s in found if isinstance(s.node, ast.ImportFrom)]
    known = {"check", *(alias.asname for node in imports for alias in node.names if alias.name == "check" and alias.asname)}
    checked = [(i, *pair) for i, statement in enumerate(found) for node in _at_top(statement.node) if (pair := _checked(node, known)) is not None]
    calls = [Candidate(i, found[i].cell, ast.unparse(argument)) for i, name, argument in checked if name == exercise]
    lessons = {name.partition(".")[0] for _, name, _ in checked}
    named = [call for call in calls if call.expression == function]
    if not named and lessons <= {exercise.partition(".")[0]} and (makers := [s for s in found if function in s.binds]):
        named = [Candidate(len(found), makers[-1].cell, function)]
    others = [call for call in calls if call.expression != function]
    best_first = [*named[::-1], *others[::-1]]
    bound = [i for i, s in enumerate(found) if function in s.binds]
    if calls and bound and bound[-1] > max(call.end for call in calls):     # whose call of `check` was run once more, above
        best_first.insert(0, Candidate(len(found), found[bound[-1]].cell, function))
    return best_first[:MOST_TRIED]


def _checked(call: ast.AST, known: Container[str]) -> tuple[str, ast.expr] | None:
    """("03.a", fn) of ``check("03.a", fn)``."""
    if not isinstance(call, ast.Call):
        return None
    called = call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id if isinstance(call.func, ast.Name) else ""
    given: dict[str | None, ast.expr] = {keyword.arg: keyword.value for keyword in call.keywords}
    given |= dict(zip(("name", "function"), call.args))
    name, function = given.get("name"), given.get("function")
    if called not in known or function is None or not isinstance(name, ast.Constant) or not isinstance(name.value, str):
        return None
    return name.value, function


def sliced(found: Sequence[Statement], candidate: Candidate) -> Slice:
    """The statements that ``candidate`` needs."""
    before = found[: candidate.end]
    needed = {node.id for node in ast.walk(ast.parse(candidate.expression)) if isinstance(node, ast.Name)}
    taken: set[int] = set()
    while True:
        more = {
            i for i, s in enumerate(before)
            if i not in taken and (s.is_star or not needed.isdisjoint(s.binds) or (s.changes and not needed.isdisjoint(s.changes)))
        }
        if not more:
            break
        taken |= more
        for i in more:
            needed |= before[i].reads
    data = {name for i in taken if not before[i].is_definition for name in before[i].binds} & needed
    certain = not any(i not in taken and not data.isdisjoint(s.reads) for i, s in enumerate(before))
    return Slice(tuple(before[i] for i in sorted(taken)), certain)


def whole(found: Sequence[Statement], candidate: Candidate) -> Slice:
    """Everything before the call."""
    return Slice(tuple(found[: candidate.end]), True)


def is_bound(found: Sequence[Statement], candidate: Candidate) -> bool:
    """Whether a run of the whole notebook could make the names of the call: a statement before it binds them, or there is no telling."""
    before = found[: candidate.end]
    names = {node.id for node in ast.walk(ast.parse(candidate.expression)) if isinstance(node, ast.Name)}
    untold = {"exec", "eval", "globals", "locals", "vars"}
    return all(any(name in s.binds for s in before) for name in names) or any(s.is_star or not untold.isdisjoint(s.reads) for s in before)


def imported_within(statements: Sequence[Statement]) -> list[str]:
    """Modules that functions and classes import when they are called."""
    inner = [node for s in statements if not isinstance(s.node, ast.Import | ast.ImportFrom) for node in ast.walk(s.node)]
    names = [alias.name for node in inner if isinstance(node, ast.Import) for alias in node.names]
    return names + [node.module for node in inner if isinstance(node, ast.ImportFrom) and node.module and not node.level]
