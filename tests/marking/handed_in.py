"""Notebooks for the tests of marking: cells of code, written as files."""
from __future__ import annotations

import json
from pathlib import Path

from paged_edu.marking.judge import Found
from paged_edu.marking.marks import Row, mark_all

ROOT = Path(__file__).parents[2]
SOLUTIONS = ROOT / "notebooks" / "solutions"
CHECK = "from paged_edu.viz.check import check"
SLOT = "def slot(table, pos, B):\n    return table[pos // B] * B + pos % B"
ALLOCATE = (
    "def allocate(free, num_blocks, n):\n    if n > num_blocks:\n        return 'never'\n    if n > len(free):\n        return 'later'\n"
    "    taken = free[:n]\n    del free[:n]\n    return taken"
)
CALL, CALL_B = 'passed_a = check("03.a", slot)', 'passed_b = check("03.b", allocate)'


def write(path: Path, *cells: str) -> Path:
    """A notebook of these code cells, with an output that lies."""
    output = {"output_type": "stream", "name": "stdout", "text": ["✓ 03.a · pass"]}
    content = {
        "nbformat": 4, "nbformat_minor": 5, "metadata": {},
        "cells": [{"cell_type": "code", "id": str(i), "metadata": {}, "source": cell.splitlines(True), "outputs": [output], "execution_count": 1}
                  for i, cell in enumerate(cells)],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def marked(path: Path, *lessons: str, seconds: float = 60) -> list[Row]:
    return mark_all([path], lessons, seconds)


def found(path: Path, name: str, seconds: float = 60) -> Found:
    """What comes out for one exercise of the only student."""
    (row,) = mark_all([path], [name[:2]], seconds)
    return row.marks[name].found
