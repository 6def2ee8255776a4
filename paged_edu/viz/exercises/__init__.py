"""The exercises, one module a lesson. `find` loads only the lesson that it is asked for: some need torch."""
from __future__ import annotations

from functools import cache
from importlib import import_module

from .exercise import Exercise

LESSONS = ("00", "01", "02", "03", "04", "05", "06", "07", "08", "09", "10", "11", "12", "13")
"""Lessons that have exercises and questions."""


@cache
def of_lesson(lesson: str) -> dict[str, Exercise]:
    """Name -> exercise. Raises ValueError for a lesson without exercises."""
    if lesson not in LESSONS:
        raise ValueError(f"there are no exercises of lesson {lesson!r}; there are of {', '.join(LESSONS)}")
    exercises: tuple[Exercise, ...] = import_module(f"{__name__}.lesson_{lesson}").EXERCISES
    return {exercise.name: exercise for exercise in exercises}


def find(name: str) -> Exercise:
    """The exercise called ``name``, such as "03.a". Raises ValueError that names those of its lesson."""
    exercises = of_lesson(str(name).partition(".")[0])
    if name not in exercises:
        raise ValueError(f"there is no exercise {name!r}; this lesson has {', '.join(exercises)}")
    return exercises[name]
