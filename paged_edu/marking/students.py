"""Whose notebooks are there: from paths to students, from notebooks to the code of their cells. Everything is read before anything runs."""
from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .judge import Cells

LARGEST = 64 * 2**20
"""Bytes of a notebook: with all their pictures, the lessons have a hundredth of that."""
SKIPPED = ("solutions", ".ipynb_checkpoints")
"""Folders within a student's folder that are not theirs: ``paged-edu lab`` copies the solutions beside the lessons."""


@dataclass(frozen=True)
class Notebook:
    name: str
    """As its student's folder has it."""
    cells: Cells


@dataclass
class Student:
    name: str
    folder: Path
    notebooks: list[Notebook] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Notebooks that cannot be read, and why."""


def read_all(paths: Sequence[Path]) -> list[Student]:
    """The students of these notebooks and folders, in order. Raises ValueError for a path without any notebook, when no other one has any either."""
    found: dict[Path, tuple[str, list[Path]]] = {}
    for path in paths:
        if not path.exists():
            raise ValueError(f"{path}: no such file or directory")
        if path.is_dir():
            for folder, files in _folders(path):
                found.setdefault(folder.resolve(), (_name(folder), []))[1].extend(files)
        elif path.suffix == ".ipynb":
            found.setdefault(path.resolve().parent, (_name(path.parent), []))[1].append(path)
        else:
            raise ValueError(f"{path} is no notebook: its name must end with .ipynb")
    if not any(files for _, files in found.values()):
        raise ValueError(f"no notebook (.ipynb) in {', '.join(map(str, paths))}")
    names = [name for name, _ in found.values()]
    return [_read(name if names.count(name) == 1 else str(folder), folder, files) for folder, (name, files) in found.items()]


def _name(folder: Path) -> str:
    return folder.resolve().name or str(folder.resolve())


def _folders(folder: Path) -> list[tuple[Path, list[Path]]]:
    """A student's folder, or a folder of such folders: then each of those, empty ones included."""
    inside = [entry for entry in sorted(folder.iterdir()) if entry.is_dir() and entry.name not in SKIPPED and not entry.name.startswith(".")]
    if not inside or any(entry.suffix == ".ipynb" and entry.is_file() for entry in folder.iterdir()):
        return [(folder, _notebooks(folder))]
    return [(entry, _notebooks(entry)) for entry in inside]


def _notebooks(folder: Path) -> list[Path]:
    found: list[Path] = []
    for root, folders, files in os.walk(folder):            # links to folders are not followed
        folders[:] = sorted(name for name in folders if name not in SKIPPED and not name.startswith("."))
        found += [Path(root) / name for name in sorted(files) if name.endswith(".ipynb")]
    return found


def _read(name: str, folder: Path, files: Sequence[Path]) -> Student:
    student = Student(name, folder)
    for path in dict.fromkeys(_resolved(file) for file in files):
        try:
            below = str(path.relative_to(folder))
        except ValueError:                                  # a link to elsewhere
            below = path.name
        try:
            student.notebooks.append(Notebook(below, code_cells(path)))
        except (OSError, ValueError, RecursionError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
            student.problems.append(f"{below} cannot be read: {reason}")
    if not files:
        student.problems.append("there is no notebook in the folder")
    return student


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):                         # a link that leads to itself; opening it says so
        return path.absolute()


def code_cells(path: Path) -> Cells:
    """The code of a notebook. Raises ValueError, with a reason, for a file that is none."""
    if not path.is_file():
        raise ValueError("it is no ordinary file")
    if path.stat().st_size > LARGEST:
        raise ValueError(f"it has more than {LARGEST // 2**20} MiB")
    try:
        content: Any = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    cells = content.get("cells") if isinstance(content, dict) else None
    if not isinstance(cells, list):
        raise ValueError("it has no cells")
    found = []
    for number, cell in enumerate(cells, 1):
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            source = cell.get("source")
            lines = source if isinstance(source, list) else [source]
            if not all(isinstance(line, str) for line in lines):
                raise ValueError(f"cell {number} has no text")
            found.append((number, "".join(map(str, lines))))
    return found
