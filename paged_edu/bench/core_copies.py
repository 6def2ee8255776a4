"""Private copies of `paged_edu.core`: as it is, or with every event taken out, to measure what events cost while nobody listens.

A copy is a second, independent import of the same source files under another package name. `without_events` removes each
``if self.emit is not None:`` statement (also ``if new and self.emit is not None:``) from the syntax tree before it is compiled.
"""
from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType

from .. import core

CORE_DIR = Path(str(core.__file__)).parent


class EventRemover(ast.NodeTransformer):
    """Removes the statements that emit; ``removed`` counts them."""

    def __init__(self) -> None:
        self.removed = 0

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        if not _asks_for_emit(node.test):
            return node
        if node.orelse:
            raise ValueError(f"line {node.lineno}: an `if self.emit` with an else branch can't be taken out")
        self.removed += 1
        return ast.copy_location(ast.Pass(), node)  # compiles to nothing, and no body is left empty


def _asks_for_emit(test: ast.expr) -> bool:
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    return any(ast.unparse(part) == "self.emit is not None" for part in parts)


class _Loader(InspectLoader):
    """Compiles straight from the source: a cached .pyc would be the untransformed module."""

    def __init__(self, path: Path, remover: EventRemover | None) -> None:
        self.path = path
        self.remover = remover

    def get_source(self, fullname: str) -> str:
        return self.path.read_text(encoding="utf-8")

    def get_code(self, fullname: str) -> CodeType:
        tree = ast.parse(self.get_source(fullname))
        if self.remover is not None:
            tree = self.remover.visit(tree)
        return compile(ast.fix_missing_locations(tree), str(self.path), "exec")


class _Finder(MetaPathFinder):
    def __init__(self, package: str, remover: EventRemover | None) -> None:
        self.package = package
        self.remover = remover

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != self.package and not fullname.startswith(self.package + "."):
            return None
        name = fullname[len(self.package) + 1 :] or "__init__"
        loader = _Loader(CORE_DIR / f"{name}.py", self.remover)
        return spec_from_loader(fullname, loader, is_package=fullname == self.package)


@contextmanager
def _installed(finder: MetaPathFinder) -> Iterator[None]:
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def load_copy(name: str, without_events: bool = False) -> tuple[dict[str, ModuleType], int]:
    """Import ``paged_edu.core`` once more as ``_paged_edu_core_<name>``; ``(modules by name, removed statements)``."""
    package = f"_paged_edu_core_{name}"
    remover = EventRemover() if without_events else None
    for loaded in [m for m in sys.modules if m == package or m.startswith(package + ".")]:
        del sys.modules[loaded]
    with _installed(_Finder(package, remover)):
        names = sorted(path.stem for path in CORE_DIR.glob("*.py") if path.stem != "__init__")
        modules = {stem: importlib.import_module(f"{package}.{stem}") for stem in names}
    return modules, remover.removed if remover is not None else 0


def real_core() -> dict[str, ModuleType]:
    """The modules of ``paged_edu.core`` itself."""
    names = sorted(path.stem for path in CORE_DIR.glob("*.py") if path.stem != "__init__")
    return {stem: importlib.import_module(f"{core.__name__}.{stem}") for stem in names}
