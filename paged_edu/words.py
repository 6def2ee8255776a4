"""Numbers with their nouns, for everything that people read: "1 block", "2 blocks"."""
from __future__ import annotations


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """``number`` and ``noun`` in the form that goes with it; ``plural`` where an s at the end does not make it."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"
