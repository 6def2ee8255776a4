"""Exercises and knowledge checks of the lessons: `task`, `check`, `hint`, `drill`, `predict` and `reveal`, `ask` and `quiz`.

`check` tries a learner's function against the engine's own classes and says *pass* or *not yet* and why; it returns a bool and never raises, so
"Run All" goes through an unfinished exercise. All others give back a `Card`, the value of a cell. Nothing here needs Jupyter: in a terminal
everything is text.

A cell of a lesson: ``passed = check("03.a", slot)``. (As a bare last line it would show the bool as well; a semicolon hides that in JupyterLab, not
from nbval.)
"""
from __future__ import annotations

from random import Random
from typing import Any

from . import exercises, questions
from .card import GOOD, NEUTRAL, OPEN, Card, Cards, Fold, show
from .exercises.drills import DRILLS
from .exercises.exercise import Verdict, examine
from .predictions import Prediction, close_predictions, predict, reveal

__all__ = ["Prediction", "ask", "check", "close_predictions", "drill", "hint", "predict", "quiz", "reveal", "task"]

RUNGS = ("the idea", "where to look", "in pseudo-code")


def check(name: str, function: Any) -> bool:
    """Whether ``function`` solves exercise ``name`` ("03.a"); shows *pass*, or *not yet* with the idea behind the answer and a counterexample.

    Never raises, whatever the function does: an unfinished one, an error, a wrong type and an endless loop (given up after some seconds) are *not
    yet*. Only Ctrl-C stops it, as it stops any cell.
    """
    try:
        verdict = examine(exercises.find(name), function)
    except ValueError as error:                             # there is no such exercise
        verdict = Verdict(False, f"not yet: {error}.")
    except Exception as error:                              # what it gave back cannot even be looked at
        verdict = Verdict(False, f"not yet: what it gives back cannot be examined ({type(error).__name__}).")
    sign, edge = ("✓", GOOD) if verdict.passed else ("✗", OPEN)
    show(Card(f"{sign} {name} · {verdict.headline}", verdict.details, edge))
    return verdict.passed


def task(name: str) -> Card:
    """What exercise ``name`` asks for. Raises ValueError for an unknown one."""
    exercise = exercises.find(name)
    return Card(f"{name} · {exercise.title}", (f"`{exercise.signature}`", exercise.statement), NEUTRAL)


def hint(name: str, level: int | None = None) -> Card:
    """Help with exercise ``name``: level 1 is the idea, 2 the data structure to look at, 3 pseudo-code; without a level all three, folded.

    Raises ValueError for an unknown exercise or level.
    """
    exercise = exercises.find(name)
    if level is None:
        folds = [Fold(f"Hint {i}: {rung}", text) for i, (rung, text) in enumerate(zip(RUNGS, exercise.hints), 1)]
        return Card(f"{name} · {exercise.title}: three hints", folds, NEUTRAL)
    if type(level) is not int or not 1 <= level <= len(RUNGS):
        raise ValueError(f"level must be 1, 2 or 3, not {level!r}")
    return Card(f"{name} · hint {level}: {RUNGS[level - 1]}", (exercise.hints[level - 1],), NEUTRAL)


def drill(name: str, seed: int = 0, answer: bool = False) -> Card:
    """A small problem to solve by hand, the same one for the same seed; ``answer=True`` shows what the engine gives.

    ``name`` is an exercise or one of the drills of `DRILLS` ("03.blocks"). Raises ValueError for an unknown name or a seed that is no integer.
    """
    if type(seed) is not int:
        raise ValueError(f"seed must be an integer, not {seed!r}")
    random = Random(f"{name} {seed}")
    if name in DRILLS:
        problem, solution = DRILLS[name](random)
    else:
        try:
            exercise = exercises.find(name)
        except ValueError as error:
            raise ValueError(f"{error}, and the drills {', '.join(DRILLS)}") from None
        case = exercise.draw(random)
        problem, solution = f"{exercise.title}\n{exercise.told(case)}", exercise.say(case.want)
    end = f"Answer: {solution}" if answer else f'Then compare: `drill("{name}", {seed}, answer=True)`. Another one: `drill("{name}", {seed + 1})`.'
    return Card(f"Drill {name}, seed {seed}", (problem, end), NEUTRAL)


def ask(name: str) -> Card:
    """One knowledge check ("03.1"): its options open and say at once what is right or wrong with them. Raises ValueError for an unknown one."""
    found, cells = questions.of_lesson(str(name).partition(".")[0])
    if name not in found:
        raise ValueError(f"there is no question {name!r}; this lesson has {', '.join(found)}")
    return found[name].card(cells)


def quiz(lesson: str) -> Cards:
    """All knowledge checks of a lesson ("03"). Raises ValueError for a lesson without any."""
    found, cells = questions.of_lesson(lesson)
    return Cards(tuple(question.card(cells) for question in found.values()))
