"""Lessons 03 and 06 in a real JupyterLab: run all, no error in any output or in the console, and the views that are left there work."""
from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from chromium import CHROMIUM, lab_server, open_lab, shot

pytestmark = [pytest.mark.browser, pytest.mark.slow]
NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
MODEL = "window.jupyterapp.shell.currentWidget.content.model.sharedModel.cells"
UNFINISHED = f"{MODEL}.filter(c => c.cell_type === 'code' && c.source && !c.execution_count).length"
ERRORS = f"{MODEL}.flatMap(c => (c.outputs || []).filter(o => o.output_type === 'error' || o.name === 'stderr').map(o => o.evalue || o.text))"
KERNEL = "window.jupyterapp.shell.currentWidget.sessionContext.session?.kernel?.status"


@pytest.mark.parametrize("lesson", ["03", "06"])
def test_a_lesson_runs_and_its_views_play(lesson, tmp_path):
    pytest.importorskip("jupyterlab")
    sync_api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium)")
    [path] = NOTEBOOKS.glob(f"{lesson}_*.ipynb")
    shutil.copy(path, tmp_path)
    with lab_server(tmp_path, path.name) as address, open_lab(address) as page:
        page.wait_for_function(f"{KERNEL} === 'idle'")
        page.evaluate(f"() => {{ for (const c of {MODEL}) if (c.cell_type === 'code') c.execution_count = null }}")
        page.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells')")
        page.wait_for_function(f"{UNFINISHED} === 0 && {KERNEL} === 'idle'", timeout=180_000)
        assert page.evaluate(ERRORS) == []

        player = page.locator(".jp-OutputArea-output .pe").first
        find(page, player)
        player.scroll_into_view_if_needed()
        status = player.locator('[role="status"]')
        player.get_by_role("button", name="Home").click()
        first = status.inner_text()
        player.get_by_role("button", name="Step").click()
        sync_api.expect(status).not_to_have_text(first)
        sync_api.expect(status).to_have_text(re.compile("^(.*: )?step [0-9]+"))
        player.get_by_role("button", name="Back").click()
        sync_api.expect(status).to_have_text(first)
        shot(page, f"lesson-{lesson}")
        assert page.problems == []
        assert page.outside == []


def find(page, wanted) -> None:
    """A windowed notebook builds cells as they come into view: turn pages until there is a player."""
    page.locator(".jp-Notebook").first.click(position={"x": 5, "y": 5})
    page.keyboard.press("Escape")
    page.keyboard.press("Control+Home")
    for _ in range(80):
        if wanted.count():
            return
        page.mouse.move(640, 500)
        page.mouse.wheel(0, 600)
        page.wait_for_timeout(300)
    pytest.fail("no view in the notebook")
