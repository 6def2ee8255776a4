"""From notebooks to marks: every exercise of every student, and the points."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..viz import exercises
from ..viz.exercises.exercise import Exercise, cases_of
from ..words import counted
from . import judge
from .judge import ABSENT, PASS, Found
from .process import reaping
from .students import Notebook, Student, read_all

SECONDS = 120.0
"""For one exercise of one notebook."""
PARTS = {"a": "class", "b": "home", "c": "extra"}
"""What the letters are: ``a`` is solved in class, ``b`` at home, ``c`` by whoever wants more. A point each."""


@dataclass(frozen=True)
class Marked:
    """One exercise of one student."""

    found: Found
    notebook: str | None


@dataclass(frozen=True)
class Row:
    """One student."""

    student: Student
    marks: dict[str, Marked]
    """Exercise -> what came out, in the order of the course."""

    def points(self, part: str) -> int:
        return sum(marked.found.status == PASS for name, marked in self.marks.items() if part_of(name) == part)

    @property
    def race(self) -> str | None:
        """What of the final project (lesson 13) the property machines accept; None if there is nothing of it."""
        names = {"13.a": "policy", "13.b": "manager"}
        there = {what: self.marks[name].found.status for name, what in names.items() if name in self.marks}
        if {*there.values()} <= {ABSENT}:
            return None
        return " and ".join(what for what, status in there.items() if status == PASS) or "not yet"


def part_of(name: str) -> str:
    return PARTS[name.rpartition(".")[2]]


def course(lessons: Sequence[str]) -> list[Exercise]:
    """The exercises of these lessons, or of all. Raises ValueError for a lesson that has none."""
    wanted = {lesson.zfill(2) if lesson.isdigit() else lesson for lesson in lessons} or {*exercises.LESSONS}
    for lesson in sorted(wanted):
        exercises.of_lesson(lesson)
    return [exercise for lesson in exercises.LESSONS if lesson in wanted for exercise in exercises.of_lesson(lesson).values()]


def mark_all(
    paths: Sequence[Path], lessons: Sequence[str] = (), seconds: float = SECONDS, begin: Callable[[str, int], None] = lambda what, total: None,
    done: Callable[[], Any] = lambda: None,
) -> list[Row]:
    """Mark; ``begin`` hears what is next and how much there is in all, ``done`` is called after each exercise.

    All files are read and all exercises are answered by the engine before the first line of a student's code runs.
    """
    wanted = course(lessons)
    students = read_all(paths)
    notebooks = [notebook for student in students for notebook in student.notebooks]
    begin(f"reading {counted(len(notebooks), 'notebook')}", len(students) * len(wanted))
    for exercise in wanted:
        if any(judge.may_have(exercise, notebook.cells) for notebook in notebooks):
            cases_of(exercise)
    known: dict[tuple[Any, ...], Found] = {}                # a lesson that nobody touched is the same one for everybody
    rows = []
    with reaping():
        for student in students:
            marks = {}
            for exercise in wanted:
                begin(f"{student.name} {exercise.name}", len(students) * len(wanted))
                marks[exercise.name] = _marked(student, exercise, seconds, known)
                done()
            rows.append(Row(student, marks))
    return rows


def _marked(student: Student, exercise: Exercise, seconds: float, known: dict[tuple[Any, ...], Found]) -> Marked:
    """The best that a student's notebooks have for an exercise."""
    chosen: tuple[Found, Notebook] | None = None
    for notebook in student.notebooks:
        key = exercise.name, tuple(notebook.cells)
        if key not in known:
            known[key] = judge.mark(exercise, notebook.cells, seconds)
        found = known[key]
        if chosen is None or judge.best([chosen[0], found]) is not chosen[0]:
            chosen = found, notebook
        if found.status == PASS:
            break
    if chosen is None or chosen[0].status == ABSENT:
        return Marked(Found(ABSENT), None)
    return Marked(chosen[0], chosen[1].name)
