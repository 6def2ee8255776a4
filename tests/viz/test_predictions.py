"""`predict` and `reveal`: what was said, what was measured, and the same output every time where nobody said anything."""
from __future__ import annotations

import gc
import weakref

import ipywidgets
import numpy as np
import pytest

from paged_edu.viz import predictions
from paged_edu.viz.check import close_predictions, predict, reveal
from paged_edu.viz.predictions import VIEW_MIME


@pytest.fixture(autouse=True)
def _fresh():
    yield
    close_predictions()
    predictions._asked.clear()


def box(prediction):
    """Show it, as a notebook does, and find the box."""
    assert VIEW_MIME in prediction._repr_mimebundle_()
    return prediction._box


def test_without_an_input_only_the_measured_value_is_shown():
    question = predict("03.p1", "How many blocks after 9 tokens, B = 4?", unit="blocks")
    bundle = question._repr_mimebundle_()
    assert bundle.keys() == {"text/html", "text/plain", VIEW_MIME}
    assert "How many blocks after 9 tokens, B = 4?" in bundle["text/plain"]
    assert str(reveal("03.p1", 3, "Ceil(9 / 4).")) == "Measured: 3 blocks.\n  Ceil(9 / 4)."
    assert str(reveal("03.p1", np.float64(0.5))) == "Measured: 0.5 blocks."


@pytest.mark.parametrize(("typed", "said"), [
    ("3", "You said 3 blocks: right."), ("3.0", "You said 3 blocks: right."), (" 2 ", "You said 2 blocks."), ("1,000", "You said 1,000 blocks."),
    ("-1", "You said -1 blocks."), ("12%", "You said 12 blocks."), ("2.5", "You said 2.5 blocks."),
    ("three", None), ("", None), ("nan", None), ("1e999", None),
])
def test_what_is_typed(typed, said):
    question = predict("p", "How many?", "blocks")
    box(question).value = typed
    text = str(reveal("p", 3))
    assert text.startswith("Measured: 3 blocks.")
    assert (said in text) if said else ("You said" not in text)


def test_a_choice():
    question = predict("c", "Who steps back?", choices=("the first", "the last"))
    assert "Choose: the first, the last." in str(question)
    assert str(reveal("c", "the last")) == "Measured: the last."
    assert str(reveal("c", "the last", how="Computed")) == "Computed: the last."
    box(question).value = "the first"
    assert "You said the first." in str(reveal("c", "the last"))
    box(question).value = "the last"
    assert "You said the last: right." in str(reveal("c", "the last", "First come, first served."))


def test_a_guess_in_code():
    predict("g", "How many?", "blocks", guess=3)
    assert "You said 3 blocks: right." in str(reveal("g", 3))
    with pytest.raises(ValueError, match="guess must be one of a, b, not 'x'"):
        predict("g", "Which?", choices=("a", "b"), guess="x")


def test_a_cell_that_runs_again_replaces_its_box():
    before = len(ipywidgets.widgets.widget._instances)
    counts = set()
    for _ in range(20):
        predict("again", "How many?")._repr_mimebundle_()
        counts.add(len(ipywidgets.widgets.widget._instances))
    assert len(counts) == 1, "nothing doubles"
    close_predictions()
    assert len(ipywidgets.widgets.widget._instances) <= before


def test_closing_frees_the_widgets_and_keeps_the_answer():
    question = predict("kept", "How many?")
    box(question).value = "7"
    gone = weakref.ref(question._box)
    close_predictions()
    gc.collect()
    assert gone() is None
    assert "You said 7: right." in str(reveal("kept", 7))


def test_errors_name_what_is_wrong():
    with pytest.raises(ValueError, match=r"nothing was predicted under 'q'.*run the cell with predict"):
        reveal("q", 1)
    predict("asked", "?")
    with pytest.raises(ValueError, match="asked so far: asked"):
        reveal("other", 1)
    for value in (None, True, [1], {}):
        with pytest.raises(TypeError, match="measured must be a number or a word"):
            reveal("asked", value)
