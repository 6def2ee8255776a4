"""Readers: from whatever a function returned to plain built-in values that can be compared and printed without surprises.

A number may come as a NumPy or torch scalar and a list as a tuple or an array; anything else is a `NoAnswerError` that says what was wanted.
Readers run inside the guard: an object whose ``__iter__`` never ends is the learner's endless loop, not ours.
"""
from __future__ import annotations

import math
import operator
from collections.abc import Callable
from itertools import islice
from typing import Any

from .guard import NoAnswerError, one_line

Reader = Callable[[Any], Any]

LONGEST = 10_000
"""Items of a list that are read: more is no answer to a small problem."""


def kind_of(value: Any) -> str:
    """How a sentence names a value's type."""
    return "nothing (None): is a `return` missing?" if value is None else f"a value of type `{type(value).__name__}`"


def integer(value: Any) -> int:
    """A whole number."""
    if isinstance(value, bool):
        raise NoAnswerError(f"it returned {value}, and a whole number was wanted")
    try:
        return int(operator.index(value))
    except TypeError:
        pass
    if isinstance(value, float) and value == int(value):
        raise NoAnswerError(f"it returned {value!r}, a float, and a whole number was wanted: `//` divides integers, `/` does not")
    if isinstance(value, float):
        raise NoAnswerError(f"it returned {value!r}, a float, and a whole number was wanted: what is to be done with the rest?")
    raise NoAnswerError(f"it returned {kind_of(value)}, and a whole number was wanted")


RELATIVE = 1e-6
"""How far two right numbers may be apart, as a share: the order of a sum does not matter, nor does float32."""


class Near(float):
    """A number that equals another when they are no further apart than `RELATIVE` of the larger one."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int | float) and math.isclose(self, other, rel_tol=RELATIVE, abs_tol=1e-12)

    __hash__ = None  # type: ignore[assignment]


def number(value: Any) -> Near:
    """A finite number, whole or not."""
    wanted = "and a number was wanted"
    if isinstance(value, str | bytes) or type(value).__name__ in ("bool", "bool_") or getattr(value, "ndim", None):
        raise NoAnswerError(f"it returned {kind_of(value)}, {wanted}")
    try:
        found = float(value)
    except (TypeError, ValueError):
        raise NoAnswerError(f"it returned {kind_of(value)}, {wanted}") from None
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise NoAnswerError(f"it returned {found}, {wanted} that is not infinite" if found == found else f"it returned nan, {wanted}")
    return Near(found)


def boolean(value: Any) -> bool:
    """True or False; 0 and 1 are no answers to a question of yes or no."""
    if isinstance(value, bool):
        return value
    if type(value).__name__ in ("bool_", "bool"):       # NumPy's, by either of its names
        return bool(value)
    raise NoAnswerError(f"it returned {kind_of(value)}, and True or False was wanted")


def list_of(item: Reader, what: str) -> Reader:
    """A list (or tuple, or array) of items; ``what`` names it in the complaint."""

    def read(value: Any) -> list[Any]:
        if isinstance(value, str | bytes | dict) or not hasattr(value, "__iter__"):
            raise NoAnswerError(f"it returned {kind_of(value)}, and {what} was wanted")
        items = list(islice(iter(value), LONGEST + 1))
        if len(items) > LONGEST:
            raise NoAnswerError(f"it returned more than {LONGEST} items, and {what} was wanted")
        return [item(one) for one in items]

    return read


def tuple_of(*items: Reader, what: str) -> Reader:
    """Exactly these parts, in this order."""
    read_list = list_of(lambda value: value, what)

    def read(value: Any) -> tuple[Any, ...]:
        parts = read_list(value)
        if len(parts) != len(items):
            raise NoAnswerError(f"it returned {len(parts)} values, and {what} was wanted")
        return tuple(item(part) for item, part in zip(items, parts, strict=True))

    return read


def word(*words: str) -> Reader:
    """One of some words (an enum of strings will do)."""

    def read(value: Any) -> str:
        text = str.__str__(value) if isinstance(value, str) else None
        if text not in words:
            shown = f"the word {one_line(text, 40)!r}" if text is not None else kind_of(value)
            raise NoAnswerError(f"it returned {shown}, and one of {', '.join(words)} was wanted")
        return text

    return read


def unless(word_reader: Reader, other: Reader) -> Reader:
    """A word where there is one, otherwise something else."""
    return lambda value: word_reader(value) if isinstance(value, str) else other(value)


def optional(item: Reader) -> Reader:
    return lambda value: None if value is None else item(value)
