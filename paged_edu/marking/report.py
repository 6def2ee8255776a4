"""What ``paged-edu mark`` shows and writes: a table of students and exercises, a sentence for each that is not solved, JSON and CSV.

Names of folders and what students' functions return are other people's text: control characters are shown, nothing is taken for markup or a formula.
"""
from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from tqdm.auto import tqdm

from .. import __version__, checks
from ..terminal import visible
from ..viz.exercises import find
from ..words import counted
from .judge import ABSENT, CRASHED, NOT_YET, PASS, TOO_LONG
from .marks import PARTS, Row, mark_all, part_of

SIGNS = {PASS: ("✓", "green"), NOT_YET: ("✗", "yellow"), ABSENT: ("·", "dim"), CRASHED: ("!", "red"), TOO_LONG: ("∞", "red")}


def run(paths: Sequence[Path], lessons: Sequence[str], seconds: float, json_file: Path | None, csv_file: Path | None) -> int:
    """Mark with a progress bar, print, write files."""
    checks.number("--timeout", seconds, 0, low_open=True)
    for name, file in (("--json", json_file), ("--csv", csv_file)):
        if file is not None:
            checks.writable_file(name, file)
    if json_file is not None and csv_file is not None and json_file.resolve() == csv_file.resolve():
        raise ValueError(f"--json and --csv both write {json_file}")
    with tqdm(unit="exercise", dynamic_ncols=True, disable=None, leave=False) as bar:
        def begin(what: str, total: int) -> None:
            bar.total = total
            bar.set_description(visible(what))

        rows = mark_all(paths, lessons, seconds, begin, bar.update)
    show(Console(), rows)
    if json_file is not None:
        json_file.write_text(json.dumps(as_json(rows), indent=1, ensure_ascii=False) + "\n", encoding="utf-8", errors="replace")
    if csv_file is not None:
        csv_file.write_text(as_csv(rows), encoding="utf-8", errors="replace")
    return 0


def _clean(text: str) -> str:
    return visible(text.encode("utf-8", "replace").decode("utf-8"))


def totals(rows: Sequence[Row]) -> dict[str, int]:
    """Part of the course -> how many exercises of it are marked."""
    names = list(rows[0].marks)
    return {part: count for part in PARTS.values() if (count := sum(part_of(name) == part for name in names))}


# -- the terminal --------------------------------------------------------------------------------------------------------------------------
def show(console: Console, rows: Sequence[Row]) -> None:
    lessons: dict[str, list[str]] = {}
    for name in rows[0].marks:
        lessons.setdefault(name.partition(".")[0], []).append(name)
    most = totals(rows)
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", collapse_padding=True)
    table.add_column("\nstudent", overflow="fold", min_width=8)
    for lesson, names in lessons.items():
        table.add_column(Text(f"{lesson}\n{''.join(name[-1] for name in names)}"), no_wrap=True)
    for part, count in most.items():
        table.add_column(Text(f"{part}\nof {count}"), justify="right", no_wrap=True)
    for row in rows:
        cells: list[Text] = [Text(_clean(row.student.name))]
        for names in lessons.values():
            cells.append(Text.assemble(*(SIGNS[row.marks[name].found.status] for name in names)))
        table.add_row(*cells, *(Text(str(row.points(part))) for part in most))
    console.print(table)
    used = {marked.found.status for row in rows for marked in row.marks.values()}
    legend = ", ".join(f"{sign} {status}" for status, (sign, _) in SIGNS.items() if status in used)
    console.print(Text(f"{legend}; a in class, b at home, c for more: a point each"), style="dim")
    for row in rows:
        for line, style in _lines(row):
            console.print(Text(line, style=style), soft_wrap=True)


def _lines(row: Row) -> list[tuple[str, str]]:
    """A student's sentences: what a teacher wants to talk about. What was not begun is only counted."""
    said: list[tuple[str, str]] = [(_clean(problem), "red") for problem in row.student.problems]
    untouched = 0
    for name, marked in row.marks.items():
        found = marked.found
        if found.is_hole:
            untouched += 1
        elif found.status not in (PASS, ABSENT):
            said.append((f"{name} {find(name).title}: {found.status}", "bold"))
            said.append((f"  {_clean(found.sentence)} ({_clean(marked.notebook or '')})", ""))
            said += [(f"    {line}", "dim") for text in found.details for line in _clean(text).splitlines()]
    if untouched:
        said.append((f"{counted(untouched, 'exercise')} not begun", "dim"))
    if row.race is not None:
        said.append((f"the race of lesson 13, accepted by the property machine: {row.race}", "dim"))
    return [("", ""), (_clean(row.student.name), "bold underline"), *said] if said else []


# -- files ---------------------------------------------------------------------------------------------------------------------------------
def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    """Everything that was found."""
    return {
        "paged_edu": __version__,
        "exercises": {name: {"title": find(name).title, "part": part_of(name)} for name in rows[0].marks},
        "most": totals(rows),
        "students": [
            {
                "name": row.student.name, "points": {part: row.points(part) for part in totals(rows)}, "race": row.race,
                "problems": row.student.problems,
                "marks": {
                    name: {
                        "status": marked.found.status, "sentence": marked.found.sentence, "details": list(marked.found.details),
                        "notebook": marked.notebook, "cell": marked.found.cell,
                    } for name, marked in row.marks.items()
                },
            } for row in rows
        ],
    }


def as_csv(rows: Sequence[Row]) -> str:
    """A line a student: points, then a word an exercise. For a spreadsheet."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    most = totals(rows)
    writer.writerow(["student", *(f"{part} (of {count})" for part, count in most.items()), *rows[0].marks])
    for row in rows:
        name = _clean(row.student.name)
        plain = "'" + name if name.startswith(("=", "+", "-", "@")) else name           # a spreadsheet would compute it
        writer.writerow([plain, *(row.points(part) for part in most), *(marked.found.status for marked in row.marks.values())])
    return out.getvalue()
