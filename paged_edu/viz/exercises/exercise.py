"""Exercise: a function with a hole, the inputs it is tried on, what the engine answers to them, and the wrong answers that people give.

What is right is never said by a copy of the solution: each `Case` was answered by a class of `paged_edu.core`. A misconception is an implementation
of a wrong idea; it is tried on the same inputs as the learner's function, so that the verdict can name the idea behind a wrong answer.
"""
from __future__ import annotations

import reprlib
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

from .guard import NoAnswerError, Outcome, one_line, run
from .readers import Reader

Function = Callable[..., Any]

WHOLE_LIMIT = 8.0
"""Seconds for all inputs together."""


@dataclass(frozen=True, slots=True)
class Case:
    """One input and what the engine makes of it."""

    args: tuple[Any, ...]
    want: Any


@dataclass(frozen=True, slots=True)
class Misconception:
    """A wrong idea, as a sentence to the learner and as code."""

    idea: str
    function: Function


Drive = Callable[[Function, tuple[Any, ...], Reader], Any]


@dataclass(frozen=True)
class Exercise:
    """Everything about one exercise. The texts are for `paged_edu.viz.card.prose`."""

    name: str
    """"03.a": lesson and letter."""
    title: str
    signature: str
    """As the learner writes it: ``slot(table, pos, B)``."""
    statement: str
    hints: tuple[str, str, str]
    """The idea; the data structure to look at; pseudo-code."""
    judge: str
    """Whose answers the checks compare with."""
    passed: str
    """What a learner who has it right can say now."""
    read: Reader
    fixed: Callable[[], Sequence[Case]]
    """The worked inputs, smallest first."""
    draw: Callable[[Random], Case]
    """A seeded input: for more checks and for drills."""
    misconceptions: tuple[Misconception, ...]
    num_drawn: int = 40
    drive: Drive = field(default=lambda fn, args, read: plain_call(fn, args, read))
    """How a case calls the function: once (`plain_call`), or several times in a run."""
    tell: Callable[[Case], str] | None = None
    """How a case is told; by default as the call itself."""
    say: Callable[[Any], str] = field(default=lambda value: one_line(repr(value)))
    """How an answer is told."""

    @property
    def lesson(self) -> str:
        return self.name.split(".")[0]

    @property
    def function_name(self) -> str:
        return self.signature.partition("(")[0]

    def parameters(self) -> list[str]:
        return [name.strip() for name in self.signature.partition("(")[2].partition(")")[0].split(",") if name]

    def told(self, case: Case) -> str:
        """The case as the learner would type it."""
        if self.tell is not None:
            return self.tell(case)
        return f"{self.function_name}({', '.join(f'{name}={value!r}' for name, value in zip(self.parameters(), case.args))})"

    def outcome(self, function: Function, case: Case) -> Outcome:
        """What ``function`` makes of a case."""
        return run(lambda: self.drive(function, deepcopy(case.args), self.read))


@cache
def cases_of(exercise: Exercise) -> tuple[Case, ...]:
    """The worked inputs, then seeded ones from the shortest on: what fails first is small."""
    random = Random(exercise.name)
    drawn = [exercise.draw(random) for _ in range(exercise.num_drawn)]
    return (*exercise.fixed(), *sorted(drawn, key=lambda case: len(repr(case.args))))


def plain_call(function: Function, args: tuple[Any, ...], read: Reader) -> Any:
    """One call. The arguments are copies; a function that changes them is told so."""
    before = deepcopy(args)
    value = read(function(*args))
    for old, new in zip(before, args):
        if old != new:
            raise NoAnswerError(f"it changes its arguments: {_shown(old)} became {_shown(new)}")
    return value


class _Repr(reprlib.Repr):
    """``repr`` of what others made: a list whose items are one list, whose items are one list, and so on, has a ``repr`` without end."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxtuple = self.maxlist = self.maxarray = self.maxdict = self.maxset = self.maxfrozenset = self.maxdeque = 40
        self.maxstring = self.maxlong = self.maxother = 100


def _shown(value: Any) -> str:
    return one_line(_Repr().repr(value), 80)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check found."""

    passed: bool
    headline: str
    """"pass", or "not yet" and why."""
    details: tuple[str, ...] = ()
    idea: str | None = None
    """The misconception behind a wrong answer, if it is a known one."""
    late: bool = False
    """Whether it took too long."""


def examine(exercise: Exercise, function: Any) -> Verdict:
    """Try ``function`` on every case; never raises for what it does."""
    if not callable(function):
        return Verdict(False, f"not yet: `{exercise.function_name}` must be a function, and this is {type(function).__name__}.")
    cases = cases_of(exercise)
    outcomes: list[Outcome] = []
    start = time.monotonic()
    for case in cases:
        outcome = exercise.outcome(function, case)
        outcomes.append(outcome)
        if outcome.kind == "hole" and len(outcomes) == 1:
            return Verdict(False, f"not yet: `{exercise.signature}` is yours to write.", (f'Stuck? `hint("{exercise.name}")` helps step by step.',))
        if outcome.kind == "time":
            return Verdict(False, "not yet: it does not come to an end.", (f"Still running after some seconds: {exercise.told(case)}",), late=True)
        if time.monotonic() - start > WHOLE_LIMIT:
            headline = f"not yet: {len(outcomes)} of {len(cases)} inputs took {WHOLE_LIMIT:.0f} seconds, which is far too slow."
            return Verdict(False, headline, late=True)
    wrong = [i for i, (case, outcome) in enumerate(zip(cases, outcomes)) if not outcome.same(Outcome("value", case.want))]
    if not wrong:
        return Verdict(True, f"pass: {len(cases)} inputs, as {exercise.judge} answers them.", (exercise.passed,))
    first = wrong[0]
    details = _counterexample(exercise, cases[first], outcomes[first])
    idea = _idea_behind(exercise, cases, outcomes, wrong)
    headline = f"not yet: {idea}" if idea is not None else f"not yet: {len(wrong)} of {len(cases)} inputs come out differently."
    return Verdict(False, headline, details, idea)


def _idea_behind(exercise: Exercise, cases: Sequence[Case], outcomes: Sequence[Outcome], wrong: Sequence[int]) -> str | None:
    """The known wrong idea that gives the same answers: on all inputs, or else on all those that came out wrong (at least two)."""
    partly = None
    for misconception in exercise.misconceptions:
        if all(exercise.outcome(misconception.function, cases[i]).same(outcomes[i]) for i in wrong):
            right = (i for i in range(len(cases)) if i not in set(wrong))
            if all(exercise.outcome(misconception.function, cases[i]).same(outcomes[i]) for i in right):
                return misconception.idea
            partly = partly or (misconception.idea if len(wrong) > 1 else None)
    return partly


def _counterexample(exercise: Exercise, case: Case, outcome: Outcome) -> tuple[str, ...]:
    got = outcome.value                                     # of a complaint: its sentence
    if outcome.kind == "value":
        got = exercise.say(outcome.value)
    elif outcome.kind == "raised" and outcome.detail:
        got = f"{outcome.value}: {outcome.detail}"
    elif outcome.kind == "hole":
        got = "NotImplementedError"
    lines = [exercise.told(case), f"  you:    {got}", f"  engine: {exercise.say(case.want)}"]
    if outcome.printed.strip():
        lines.append("  printed: " + one_line(outcome.printed))
    return ("\n".join(lines),)
