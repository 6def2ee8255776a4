"""BlockSizeView: rows are the formulas and what is stored, the slider and `change` do the same, nothing is left behind when it is closed."""
from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ET

import numpy as np
import plotly.graph_objects as go
import pytest
from ipywidgets.widgets.widget import _instances

from paged_edu.sim.block_sizes import SIZES, WORKLOADS, reusable, step_seconds, stored, swap_seconds, waste
from paged_edu.viz.block_size_rows import Row
from paged_edu.viz.block_size_view import YOURS, BlockSizeView
from paged_edu.viz.sliders import _open
from paged_edu.viz.view import PLOTLY_MIME


@pytest.fixture
def view():
    view = BlockSizeView()
    yield view
    view.close()


def controls(view):
    view._repr_mimebundle_()
    row, picture, status = view._widget.children
    return *row.children, picture, status


def row(view, label):
    return next(row for row in view.rows if row.label == label)


def test_rows_are_the_formulas_and_what_is_stored(view):
    assert len(view.rows) == 6
    view.change(workload="examples")
    workload, held = WORKLOADS["examples"], stored()["examples"]
    batch = round(held[16].running)
    for i, size in enumerate(SIZES):
        assert row(view, "waste of a sequence").values[i] == waste(size, workload.totals())
        assert row(view, "prefix found in the cache").values[i] == reusable(80, size)
        assert row(view, "block table of a sequence").values[i] == np.mean([-(-total // size) for total in workload.totals().tolist()])
        assert row(view, "swapping 256 tokens").values[i] == 1e3 * swap_seconds(size)
        assert row(view, "time of a step").values[i] == 1e3 * step_seconds(workload, size, batch)
        assert row(view, "rate held").values[i] == held[size].rate


def test_a_shared_prefix_is_there_once():
    """Two sequences of 40 tokens, 32 of them common: in blocks of 16 each has a block of its own, with 8 tokens; in blocks of 64 everything."""
    view = BlockSizeView(lengths=[40, 40], prefix=32)
    shares = dict(zip(SIZES, row(view, "slots in use that hold tokens").values, strict=True))
    assert (shares[1], shares[16], shares[32], shares[64]) == (100, 50, 25, 62.5)
    view.close()


def test_what_is_best():
    falling = Row("", "", tuple(range(9, 0, -1)), "ms")
    assert (falling.best(), falling.told_best()) == ([256], "best: 256")
    steps = Row("", "", (80.0,) * 5 + (64, 64, 0, 0), "tokens", more_is_better=True)
    assert (steps.best(), steps.told_best()) == ([1, 2, 4, 8, 16], "best: 1 to 16")
    assert steps.told(32) == "64 tokens"
    rates = Row("", "", (0.5, 1, 1.5, 1.2, 1.8, 1.6, 1.79, 1, 1), "requests/s", 2, more_is_better=True, close=0.01)
    assert (rates.best(), rates.told_best()) == ([16, 64], "best: 16, 64")
    assert rates.told(4) == "1.50 requests/s"
    assert Row("", "", (3.0,) * 9, "ms").best() == []
    assert Row("", "", (3.0,) * 9, "ms").told_best() == "the same for all"


def test_slider_and_menu_do_what_change_does(view):
    size, workload, picture, status = controls(view)
    before = picture.value
    size.value = 64
    assert view.size == 64
    assert picture.value != before
    assert "Blocks of 64 slots" in status.value
    assert "requests/s (best: 16)" in status.value
    workload.value = "labels"
    assert (view.workload, view.size) == ("labels", 64)
    view.change(size=1, workload="documents")
    assert (size.value, workload.value) == (1, "documents")
    assert "Blocks of 1 slot, documents" in status.value
    assert list(size.options) == list(SIZES)
    assert [name for _, name in workload.options] == list(WORKLOADS)


def test_lengths_of_your_own(view):
    mine = BlockSizeView(lengths=(length for length in (90, 300)), prefix=80, size=256)
    assert mine.workload == YOURS
    assert [row.label for row in mine.rows] == [
        "slots in use that hold tokens", "waste of a sequence", "prefix found in the cache", "block table of a sequence", "swapping 256 tokens"]
    assert row(mine, "waste of a sequence").values[8] == ((256 - 90) + (512 - 300)) / 2
    assert "no rate" in mine.sentence
    assert "no rate" in mine.svg()
    assert "your lengths, 115 tokens on average after 80 common ones" in str(mine)
    _, workload, _, status = controls(mine)
    assert [name for _, name in workload.options] == [YOURS, *WORKLOADS]
    workload.value = "chat"
    assert "rate held 1.57 requests/s" in status.value
    mine.close()
    array = BlockSizeView("chat", lengths=np.array([5, 6]))
    assert "rate held" in array.sentence
    assert array.change(workload=YOURS).sentence.startswith("Blocks of 16 slots, your lengths")
    array.close()


@pytest.mark.parametrize(("change", "message"), [
    ({"size": 3}, "size must be one of 1, 2, 4"), ({"size": 512}, "between 1 and 256"), ({"size": True}, "size must be an integer"),
    ({"size": "16"}, "size must be an integer"), ({"workload": "wiki"}, "workload must be one of 'chat'"), ({"workload": YOURS}, "workload must be"),
])
def test_refusals(view, change, message):
    with pytest.raises(ValueError, match=message):
        view.change(**change)
    assert (view.workload, view.size) == ("chat", 16)
    with pytest.raises(ValueError, match=message):
        BlockSizeView(**change)
    assert _open["block sizes"] is view


@pytest.mark.parametrize(("given", "message"), [
    ({"lengths": []}, "lengths must be of 1 sequence at least"), ({"lengths": [10, 0]}, "every one of lengths must be between 1"),
    ({"lengths": [2.5]}, "must be an integer, not 2.5"), ({"lengths": 7}, "lengths must be a list of lengths, not 7"),
    ({"lengths": [10, 20], "prefix": 10}, "prefix must be between 0 and 9, not 10"), ({"prefix": 80}, "prefix=80 belongs to lengths of your own"),
])
def test_refusals_of_your_own_lengths(given, message):
    with pytest.raises(ValueError, match=message):
        BlockSizeView(**given)


@pytest.mark.parametrize("name", [*WORKLOADS, YOURS])
def test_pages_without_a_kernel(name):
    view = BlockSizeView(name, 32, lengths=[200, 30])
    bundle = view._repr_mimebundle_()
    picture = ET.fromstring(bundle["image/svg+xml"])
    assert picture.get("aria-label") == view.sentence
    sizes = [float(element.get("font-size")) for element in picture.iter() if element.get("font-size")]
    assert min(sizes) >= 12
    assert float(picture.get("height")) <= 520
    assert len(json.dumps(bundle)) < 100_000
    go.Figure(bundle[PLOTLY_MIME])                          # raises for what plotly does not know
    assert "application/vnd.jupyter.widget-view+json" in bundle
    for row in view.rows:
        assert f"{row.label} [{row.unit}]" in bundle["text/plain"]
        assert row.told(32) in bundle["image/svg+xml"]
    assert ">slots of a block<" in bundle["image/svg+xml"]
    view.close()


def test_the_figure_has_nine_frames(view):
    figure = view.figure()
    (slider,) = figure["layout"]["sliders"]
    assert [step["label"] for step in slider["steps"]] == [str(size) for size in SIZES]
    assert slider["active"] == SIZES.index(16)
    for step, size in zip(slider["steps"], SIZES, strict=True):
        moved, layout, traces = step["args"]
        assert moved["x"] == [[str(size)]] * 6
        assert moved["y"] == [[round(row.values[SIZES.index(size)], 3)] for row in view.rows]
        assert [figure["data"][trace]["marker"]["size"] for trace in traces] == [10] * 6
        assert layout["title.text"].startswith(f"Blocks of {size} slot")
        assert all(any(row.told(size) in note["text"] for note in layout["annotations"]) for row in view.rows)


def test_words_stay_in_the_picture(view):
    """Generous guesses of how wide letters are: nothing reaches the curves' scale on the left, or the edge on the right."""
    for name in WORKLOADS:
        picture = ET.fromstring(view.change(256, name).svg())
        wide = float(picture.get("width"))
        for element in picture.iter("{http://www.w3.org/2000/svg}text"):
            x, letters = float(element.get("x")), 0.55 * float(element.get("font-size")) * len(element.text)
            if element.get("text-anchor") is None:
                assert x + letters <= wide
                if x == 12 and not re.match("Blocks|slots of a block", element.text):
                    assert x + letters < 330 - 50


def test_without_ipywidgets(view, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    bundle = view._repr_mimebundle_()
    assert "pip install" in bundle["text/html"]
    assert not any(kind.startswith("application/vnd.jupyter") for kind in bundle)


def test_nothing_is_left_when_a_cell_runs_again():
    first = BlockSizeView()
    first._repr_mimebundle_()
    before = len(_instances)
    for _ in range(5):
        BlockSizeView()._repr_mimebundle_()
    assert len(_instances) == before
    last = _open["block sizes"]
    last.close()
    last.close()
    assert len(_instances) < before
