"""Checks of what users pass in: one wording, the value and the limit always named. Written so that NaN never slips through."""
from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

_LARGEST = 1e300
"""Integers beyond the range of a float are no numbers either."""


def one_line(error: BaseException) -> str:
    """What an error says, in one line; of an error of the file system, the file and the reason."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


class UnsupportedError(ValueError):
    """A value that is known but not served yet. The message names it."""


def number(name: str, value: Any, low: float, high: float = math.inf, *, low_open: bool = False, high_open: bool = False) -> None:
    """Refuse what is not a finite number within the limits; ``not (low <= value)`` also catches NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number, not {value!r}")
    inside = (low < value if low_open else low <= value) and (value < high if high_open else value <= high)
    if not inside or abs(value) > _LARGEST or not math.isfinite(value):
        limits = f"{'above' if low_open else 'at least'} {low:g}"
        if math.isfinite(high):
            limits += f" and {'below' if high_open else 'at most'} {high:g}"
        else:
            limits += f" and at most {_LARGEST:g}" if _LARGEST < abs(value) < math.inf else " and finite"
        raise ValueError(f"{name} must be {limits}, not {value!r}")


def integer(name: str, value: Any, low: int, high: int | None = None) -> None:
    """Refuse what is not an integer within the limits (both included)."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be an integer, not {value!r}")
    if value < low or (high is not None and value > high):
        limits = f"at least {low}" if high is None else f"between {low} and {high}"
        raise ValueError(f"{name} must be {limits}, not {value}")


def token_ids(name: str, value: Any) -> tuple[int, ...]:
    """Token ids as a tuple, None as an empty one; refuse what is no list of integers of at least 0. Which ids there are, the model says later."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence | frozenset | set | None):
        raise ValueError(f"{name} must be a list of token ids, not {value!r}")
    for token in value or ():
        integer(f"every one of {name}", token, 0)
    return tuple(value or ())


def flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, not {value!r}")


def one_of(name: str, value: Any, served: Iterable[object], known: Iterable[str] = ()) -> None:
    """Refuse a value that is neither served nor known; what is known but not served yet raises `UnsupportedError`."""
    served, known = list(served), list(known)
    if value in served:
        return
    choices = ", ".join(repr(choice) for choice in served)
    if value in known:
        raise UnsupportedError(f"{name}={value!r} is not served yet; today: {choices}")
    raise ValueError(f"{name} must be one of {choices}, not {value!r}")


def writable_file(name: str, path: Path) -> None:
    """Refuse a path that no file could be written to later on; a file that is there keeps its content, and none is left behind."""
    if path.is_dir():
        raise ValueError(f"{name} {path}: that is a directory, not a file")
    if path.exists():
        if not os.access(path, os.W_OK):
            raise ValueError(f"{name} {path}: no permission to write to it")
        return
    target = Path(os.path.realpath(path))   # a link may point to a file that is still to be made
    if not target.parent.is_dir():
        raise ValueError(f"{name} {path}: the directory {target.parent} does not exist")
    try:
        target.open("xb").close()           # asks the file system itself: names, permissions and read-only disks have their own rules
    except OSError as error:
        raise ValueError(f"{name} {path}: {error.strerror}") from error
    target.unlink()


def known_keywords(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse unknown keyword arguments by name, with the nearest known one."""
    known = list(known)
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, 1)
            raise TypeError(f"{what} has no option {name!r}" + (f"; did you mean {near[0]!r}?" if near else f"; it knows {', '.join(known)}"))


def own_class(what: str, value: Any, methods: Iterable[str], *, attributes: Iterable[str] = ()) -> None:
    """Refuse an object of a reader's own class that lacks methods, naming them; a class where an object was wanted."""
    if isinstance(value, type):
        raise TypeError(f"{what} must be an object, not the class {value.__name__}: write {value.__name__}()")
    missing = [f"{name}()" for name in methods if not callable(getattr(value, name, None))]
    missing += [name for name in attributes if not hasattr(value, name)]
    if missing:
        raise TypeError(f"{type(value).__name__} is no {what}: it has no {', '.join(missing)}")
