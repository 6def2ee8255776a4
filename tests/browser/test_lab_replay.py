"""Lesson 11 in a real JupyterLab: it runs to its end without an error, and the threshold moves by keys."""
from __future__ import annotations

import shutil

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
