"""Lesson 11 in a real JupyterLab: it runs to its end without an error, the threshold moves by keys. Sliders of lessons 11 and 12."""
from __future__ import annotations

import json
import shutil
from contextlib import contextmanager

import pytest
from chromium import CHROMIUM, lab_server, open_lab, shot
from test_lab_lessons import ERRORS, KERNEL, MODEL, NOTEBOOKS, UNFINISHED, find

pytestmark = [pytest.mark.browser, pytest.mark.slow]
NAME = "11_the_paper_replayed.ipynb"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    pytest.importorskip("jupyterlab")
    pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium)")
    work = tmp_path_factory.mktemp("lesson")
    shutil.copy(NOTEBOOKS / NAME, work)
    with lab_server(work, NAME) as address:
        yield address


def test_the_replay_answers(address):
    from playwright.sync_api import expect

    with open_lab(address) as page:
        page.wait_for_function(f"{KERNEL} === 'idle'")
        page.evaluate(f"() => {{ for (const c of {MODEL}) if (c.cell_type === 'code') c.execution_count = null }}")
        page.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells')")
        page.wait_for_function(f"{UNFINISHED} === 0 && {KERNEL} === 'idle'", timeout=240_000)
        assert page.evaluate(ERRORS) == []

        curves = page.locator(".jp-OutputArea-output .pe").first
        find(page, curves)
        curves.scroll_into_view_if_needed()
        table = curves.locator("table").first
        before = table.inner_text()
        line = curves.locator('input[type="range"]').first
        line.focus()
        for _ in range(5):
            page.keyboard.press("ArrowLeft")
        expect(table).not_to_have_text(before)
        shot(page, "lesson-11-curves")

        assert page.problems == []
        assert page.outside == []


@contextmanager
def shown(tmp_path, source):
    """A page with a notebook of one cell, which has been run."""
    pytest.importorskip("jupyterlab")
    pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium)")
    lesson = json.loads((NOTEBOOKS / NAME).read_text(encoding="utf-8"))
    lesson["cells"] = [{"cell_type": "code", "id": "sliders", "metadata": {}, "execution_count": None, "outputs": [], "source": source}]
    (tmp_path / "sliders.ipynb").write_text(json.dumps(lesson), encoding="utf-8")
    with lab_server(tmp_path, "sliders.ipynb") as address, open_lab(address) as page:
        page.wait_for_function(f"{KERNEL} === 'idle'")
        page.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells')")
        yield page
        assert page.evaluate(ERRORS) == []
        assert page.problems == []
        assert page.outside == []


def test_sliders_ask_the_simulator(tmp_path):
    """`WhatIf`: a single change is stored, two together are simulated."""
    from playwright.sync_api import expect

    with shown(tmp_path, "from paged_edu.viz.what_if_view import WhatIf\nWhatIf()") as page:
        said = page.locator('.widget-vbox [aria-live="polite"]').first
        expect(said).to_contain_text("as in the paper: vLLM holds", timeout=60_000)
        memory, bandwidth = (page.locator(".noUi-handle").nth(i) for i in (0, 1))
        bandwidth.focus()
        page.keyboard.press("ArrowRight")
        expect(said).to_contain_text("bandwidth of that memory × 2: vLLM holds", timeout=30_000)
        memory.focus()
        page.keyboard.press("ArrowLeft")
        expect(said).to_contain_text("memory for keys and values × ½, bandwidth of that memory × 2: vLLM holds", timeout=90_000)
        shot(page, "what-if")


def test_a_slider_over_block_sizes(tmp_path):
    """`BlockSizeView`, lesson 12: one size up, one size down, another workload."""
    from playwright.sync_api import expect

    with shown(tmp_path, "from paged_edu.viz.block_size_view import BlockSizeView\nBlockSizeView()") as page:
        said = page.locator('.widget-vbox [aria-live="polite"]').first
        expect(said).to_contain_text("Blocks of 16 slots, chat", timeout=60_000)
        page.locator(".noUi-handle").first.focus()
        page.keyboard.press("ArrowRight")
        expect(said).to_contain_text("Blocks of 32 slots, chat", timeout=30_000)
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowLeft")
        expect(said).to_contain_text("Blocks of 8 slots, chat", timeout=30_000)
        page.locator(".widget-dropdown select").select_option(label="labels for short texts, 20 tokens in all")
        expect(said).to_contain_text("Blocks of 8 slots, labels", timeout=30_000)
        shot(page, "block-sizes")
