"""WhatIf: the stored changes are what the simulator says, sliders and `change` do the same, nothing is left behind when it is closed."""
from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from ipywidgets.widgets.widget import _instances

from paged_edu.sim.what_if import DATASETS, FACTORS, SYSTEMS, Held, Setting, held, stored, sweep
from paged_edu.viz import what_if_view
from paged_edu.viz.sliders import _open
from paged_edu.viz.view import PLOTLY_MIME
from paged_edu.viz.what_if_view import WhatIf


@pytest.fixture
def simulated(monkeypatch):
    """What had to be simulated; a simulation takes no time here."""
    asked = []

    def quick(setting):
        asked.append(setting)
        return {system: Held(i + 1.0, 5.0, 0.04, {}) for i, system in enumerate(SYSTEMS)}

    monkeypatch.setattr(what_if_view, "all_held", quick)
    return asked


def controls(view):
    view._repr_mimebundle_()
    dataset, row, status = view._widget.children
    *sliders, reset = row.children[0].children
    return dataset, dict(zip(FACTORS, sliders, strict=True)), reset, row.children[1], status


def test_every_single_change_is_stored():
    assert list(stored()) == sweep()
    assert {setting.dataset for setting in sweep()} == {*DATASETS}


@pytest.mark.parametrize(("setting", "system"), [
    (Setting(), "Orca (Max)"), (Setting(dataset="alpaca"), "Orca (Oracle)"), (Setting(dataset="alpaca", answers=0.25), "vLLM"),
    (Setting(memory=0.5), "vLLM"),
])
def test_what_is_stored_is_what_the_simulator_says(setting, system):
    now, kept = held(setting, system), stored()[setting][system]
    assert (now.rate, now.running, now.step) == pytest.approx((kept.rate, kept.running, kept.step))
    assert now.parts == pytest.approx(kept.parts, abs=1e-4)


def test_a_stored_change_takes_no_simulation(simulated):
    view = WhatIf().change(memory=2)
    assert simulated == []
    assert "memory for keys and values × 2" in view.sentence
    assert view.results is stored_of(view, memory=2)
    view.change(answers=0.25)
    assert simulated == [Setting(memory=2, answers=0.25)]
    view.change(answers=1).change(answers=0.25)
    assert len(simulated) == 1
    view.close()


def stored_of(view, **factors):
    return view.known[replace(Setting(), **factors)]


def test_sliders_do_what_change_does(simulated):
    view = WhatIf()
    dataset, sliders, reset, picture, status = controls(view)
    before = picture.value
    sliders["bandwidth"].value = 2
    assert view.setting == Setting(bandwidth=2)
    assert picture.value != before
    assert "bandwidth of that memory × 2" in status.value
    dataset.value = "alpaca"
    assert view.setting == Setting(dataset="alpaca", bandwidth=2)
    view.change(bandwidth=1, prompts=2)
    assert (sliders["bandwidth"].value, sliders["prompts"].value) == (1, 2)
    assert simulated == []
    reset.click()
    assert view.setting == Setting(dataset="alpaca")
    assert [slider.value for slider in sliders.values()] == [1] * 6
    view.close()


def test_an_error_is_said_and_changes_nothing(monkeypatch):
    def failing(setting):
        raise ValueError("memory 0.5 leaves too little")

    monkeypatch.setattr(what_if_view, "all_held", failing)
    view = WhatIf()
    _, sliders, _, _, status = controls(view)
    sliders["memory"].value = 0.5
    sliders["answers"].value = 2
    assert "memory 0.5 leaves too little" in status.value
    assert view.setting == Setting(memory=0.5)
    assert sliders["answers"].value == 1
    with pytest.raises(ValueError, match="too little"):
        view.change(answers=2)
    view.close()


@pytest.mark.parametrize("factors", [{"speed": 2}, {"dataset": "wiki"}, {"memory": 0}, {"answers": "long"}, {"block_size": 8}])
def test_refusals(factors):
    view = WhatIf()
    with pytest.raises((ValueError, TypeError)):
        view.change(**factors)
    assert view.setting == Setting()
    view.close()
    with pytest.raises(ValueError, match="dataset"):
        WhatIf("wiki")


def test_pages_without_a_kernel():
    view = WhatIf("alpaca")
    bundle = view._repr_mimebundle_()
    ET.fromstring(bundle["image/svg+xml"])
    assert len(json.dumps(bundle)) < 100_000
    figure = bundle[PLOTLY_MIME]
    (slider,) = figure["layout"]["sliders"]
    assert len(slider["steps"]) == 19
    for step, (setting, results) in zip(slider["steps"], view._stored().items(), strict=True):
        assert step["args"][0]["x"] == [[round(results[system].rate, 4) for system in SYSTEMS]]
        assert step["label"] in str(view)
        assert setting.dataset == "alpaca"
    assert "application/vnd.jupyter.widget-view+json" in bundle
    view.close()


def test_nothing_is_left_when_a_cell_runs_again():
    first = WhatIf()
    first._repr_mimebundle_()
    before = len(_instances)
    for _ in range(5):
        WhatIf()._repr_mimebundle_()
    assert len(_instances) == before
    last = _open["what if"]
    last.close()
    last.close()
    assert len(_instances) < before
