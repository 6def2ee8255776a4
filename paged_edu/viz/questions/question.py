"""Question and Option: a knowledge check, in which every wrong option is a misconception that people have and says what is wrong with it."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from ..card import NEUTRAL, Card, Fold

RIGHT, WRONG = "✓ Right.", "✗ No."
LETTERS = "abcd"


@dataclass(frozen=True, slots=True)
class Option:
    """One answer and what there is to say about it."""

    text: str
    why: str
    right: bool = False
    cell: str = ""
    """The id of the cell that shows what ``why`` says, if it is not the question's."""


def right(text: str, why: str, cell: str = "") -> Option:
    return Option(text, why, True, cell)


def wrong(text: str, why: str, cell: str = "") -> Option:
    return Option(text, why, False, cell)


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its options; ``cell`` is the id of the lesson's cell that shows the answer."""

    name: str
    """"03.1": lesson and number."""
    text: str
    cell: str
    options: tuple[Option, ...]

    def shuffled(self) -> Sequence[Option]:
        """The options in an order that is drawn once, from the name: the right one must not always stand in the same place."""
        return Random(self.name).sample(self.options, len(self.options))

    def card(self, cells: Mapping[str, str]) -> Card:
        """``cells``: cell id -> the words under which a reader finds it."""
        folds = [
            Fold(f"{letter}. {option.text}", f"{RIGHT if option.right else WRONG} {option.why} You saw it under “{cells[option.cell or self.cell]}”.")
            for letter, option in zip(LETTERS, self.shuffled(), strict=False)
        ]
        return Card(f"{self.name} · {self.text}", folds, NEUTRAL)
