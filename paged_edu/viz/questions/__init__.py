"""The knowledge checks, one module a lesson: at least five questions each."""
from __future__ import annotations

from functools import cache
from importlib import import_module

from ..exercises import LESSONS
from .question import Question


@cache
def of_lesson(lesson: str) -> tuple[dict[str, Question], dict[str, str]]:
    """``(name -> question, cell id -> the words under which a reader finds the cell)``. Raises ValueError for a lesson without questions."""
    if lesson not in LESSONS:
        raise ValueError(f"there are no questions of lesson {lesson!r}; there are of {', '.join(LESSONS)}")
    module = import_module(f"{__name__}.lesson_{lesson}")
    questions: tuple[Question, ...] = module.QUESTIONS
    cells: dict[str, str] = module.CELLS
    return {question.name: question for question in questions}, cells
