"""Predictions: say a number, run the cell, compare (PRIMM's first step). A box where ipywidgets is there, a sentence everywhere.

Without an input, as in the test suite and in the book, `reveal` shows what was measured and nothing else, so that stored outputs stay the same.
"""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .card import NEUTRAL, Card

VIEW_MIME = "application/vnd.jupyter.widget-view+json"

Answer = float | str


def _number(value: Answer) -> str:
    """A number without a tail of zeros, or the word itself."""
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:,.4g}"


class Prediction:
    """One question and the reader's answer to it. Made by `predict`."""

    def __init__(self, name: str, question: str, unit: str = "", choices: Sequence[str] = (), guess: Answer | None = None) -> None:
        self.name = name
        self.question = question
        self.unit = unit
        self.choices = tuple(choices)
        self._guess = guess
        self._box: Any = None
        self._widgets: list[Any] = []

    def card(self) -> Card:
        how = f"Choose: {', '.join(self.choices)}." if self.choices else f"A number{f' ({self.unit})' if self.unit else ''}."
        return Card(f"Predict: {self.question}", (f"{how} Say it before you run the next cell.",), NEUTRAL)

    @property
    def value(self) -> Answer | None:
        """What the reader predicted; None: nothing yet, or nothing that can be read as a number."""
        text = self._guess if self._box is None or not self._box.value else self._box.value
        if text is None or text == "" or (self.choices and text in self.choices):
            return text or None
        if self.choices:
            return None
        try:
            number = float(str(text).strip().replace(",", "").removesuffix("%"))
        except ValueError:
            return None
        return number if math.isfinite(number) else None

    def _widget(self) -> Any:
        """The box; None without ipywidgets."""
        if self._widgets:
            return self._widgets[0]
        try:
            import ipywidgets as widgets
        except ImportError:
            return None
        layout = widgets.Layout(width="16em")
        if self.choices:
            self._box = widgets.Dropdown(options=[("your prediction", ""), *((c, c) for c in self.choices)], value="", layout=layout)
        else:
            self._box = widgets.Text(placeholder="your prediction", continuous_update=True, layout=layout)
        label, unit = widgets.HTML(self.card().html()), widgets.Label(self.unit)
        row = widgets.HBox([self._box, unit])
        self._widgets = [widgets.VBox([label, row]), row, label, unit, self._box]
        return self._widgets[0]

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Mapping[str, object]:
        bundle: dict[str, object] = dict(self.card()._repr_mimebundle_())
        widget = self._widget()
        if widget is not None:
            bundle[VIEW_MIME] = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
        return bundle

    def __repr__(self) -> str:
        return str(self.card())

    def close(self) -> None:
        """Keep what was typed and free the widgets."""
        if self._box is not None and self._box.value:
            self._guess = self._box.value
        for widget in self._widgets:
            for part in (getattr(widget, "style", None), getattr(widget, "layout", None), widget):
                if part is not None and hasattr(part, "close"):
                    part.close()
        self._widgets, self._box = [], None


_asked: dict[str, Prediction] = {}
"""The predictions of this session, by name: a cell that runs again replaces its own."""


def predict(name: str, question: str, unit: str = "", choices: Sequence[str] = (), guess: Answer | None = None) -> Prediction:
    """Ask for a prediction and keep it under ``name`` (such as "03.p1"). The value of a cell: it shows the question and a box.

    ``choices`` in place of a number: one of some words. ``guess`` answers in code, where there is no box.
    """
    if guess is not None and choices and guess not in choices:
        raise ValueError(f"guess must be one of {', '.join(choices)}, not {guess!r}")
    old = _asked.pop(name, None)
    if old is not None:
        old.close()
    _asked[name] = prediction = Prediction(name, question, unit, choices, guess)
    return prediction


def reveal(name: str, measured: Answer, because: str = "", how: str = "Measured") -> Card:
    """What the reader predicted under ``name``, what was measured, and one sentence why. The value of a cell.

    ``how`` the number came about, where nothing was measured: "Computed".

    Raises ValueError where no prediction has that name, and TypeError unless ``measured`` is a number or a word.
    """
    prediction = _asked.get(name)
    if prediction is None:
        known = f"; asked so far: {', '.join(_asked)}" if _asked else ""
        raise ValueError(f"nothing was predicted under {name!r}: run the cell with predict({name!r}, ...) first{known}")
    if not isinstance(measured, str) and (isinstance(measured, bool) or not hasattr(measured, "__float__")):
        raise TypeError(f"measured must be a number or a word, not {measured!r}")
    truth: Answer = measured if isinstance(measured, str) else float(measured)
    unit = f" {prediction.unit}" if prediction.unit else ""
    one = unit.removesuffix("s")                            # "1 block"
    said, lines = prediction.value, []
    if said is not None:
        exact = said == truth if isinstance(said, str) or isinstance(truth, str) else math.isclose(said, truth, rel_tol=1e-3)
        lines.append(f"You said {_number(said)}{one if said == 1 else unit}{': right' if exact else ''}.")
    return Card(f"{how}: {_number(truth)}{one if truth == 1 else unit}.", [*lines, *([because] if because else [])], NEUTRAL)


def close_predictions() -> None:
    """Free the boxes of all predictions; what was typed is kept."""
    for prediction in _asked.values():
        prediction.close()
