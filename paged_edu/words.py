"""Numbers with their nouns, for everything that people read: "1 block", "2 blocks"."""
from __future__ import annotations


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """``number`` and ``noun`` in the form that goes with it; ``plural`` where an s at the end does not make it."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def percent(part: int, whole: int) -> str:
    """"31.3 %" of 5 and 16: one decimal, half a tenth rounded up, in integers, so that a page written in JavaScript says the same."""
    tenths = (2000 * part + whole) // (2 * whole)
    return f"{tenths // 10}.{tenths % 10} %"
