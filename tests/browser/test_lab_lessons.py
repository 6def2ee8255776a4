"""Lessons in a real JupyterLab: run all, no error in any output or in the console, and the views that are left there work."""
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
SESSION = "window.jupyterapp.shell.currentWidget.sessionContext"
KERNEL = f"{SESSION}.session?.kernel?.status"


PICTURE = "e => [...e.querySelectorAll('canvas')].map(c => c.toDataURL()).join() + [...e.querySelectorAll('svg')].map(s => s.outerHTML).join()"
LESSONS = {path.name[:2]: path for path in sorted(NOTEBOOKS.glob("[0-9]*.ipynb")) if "03" <= path.name[:2] <= "10"}

STILL_OPEN = ("06",)
"""Lessons whose first view has an engine that no later cell closes, and one request."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Lesson -> its address, in one JupyterLab for all of them."""
    pytest.importorskip("jupyterlab")
    pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium)")
    work = tmp_path_factory.mktemp("lessons")
    names = [Path(shutil.copy(path, work)).name for path in LESSONS.values()]
    with lab_server(work, *names) as address:
        yield {lesson: address.replace(names[0], path.name) for lesson, path in LESSONS.items()}


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_runs_and_its_views_play(lesson, lab):
    from playwright.sync_api import expect

    with open_lab(lab[lesson]) as page:
        page.wait_for_function(f"{KERNEL} === 'idle'")
        page.evaluate(f"() => {{ for (const c of {MODEL}) if (c.cell_type === 'code') c.execution_count = null }}")
        page.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells')")
        page.wait_for_function(f"{UNFINISHED} === 0 && {KERNEL} === 'idle'", timeout=180_000)
        assert page.evaluate(ERRORS) == []

        player = page.locator(".jp-OutputArea-output .pe").first
        find(page, player)
        player.scroll_into_view_if_needed()
        status = player.locator('[role="status"]')
        home = player.get_by_role("button", name="Home")
        if home.get_attribute("aria-disabled") == "false":     # some views begin there
            home.click()
        expect(status).to_have_text(re.compile("[0-9]"))
        # Its text whether or not the lab draws that cell just now: inner_text is empty for one that is out of sight.
        first, picture = status.text_content() or "", player.evaluate(PICTURE)
        player.get_by_role("button", name="Step").click()
        expect(status).not_to_have_text(first)
        expect(status).to_have_text(re.compile("^(.*: )?(step|line) [0-9]+"))
        picture = changed(page, player, picture)
        player.get_by_role("button", name="Back").click()
        expect(status).to_have_text(first)
        changed(page, player, picture)
        if lesson in STILL_OPEN:                            # its form drives the engine of the cells above
            player.get_by_role("button", name="End").click()
            player.get_by_role("button", name="Add", exact=True).click()
            expect(status).to_have_text("B added: it waits for the next step")
            picture = player.evaluate(PICTURE)
            player.get_by_role("button", name="Step").click()
            expect(status).to_have_text(re.compile("^step [0-9]+: .*B admitted"))
            picture = changed(page, player, picture)
            player.get_by_label("request to abort").select_option(index=1)
            player.get_by_role("button", name="Abort").click()
            expect(status).to_have_text("B aborted: its blocks are free")
            changed(page, player, picture)
        shot(page, f"lesson-{lesson}")
        page.evaluate(f"{SESSION}.shutdown()")              # kernels with a model each are too many
        assert page.problems == []
        assert page.outside == []


def changed(page, player, picture) -> str:
    """The player's new picture, as soon as it differs from ``picture``."""
    page.wait_for_function(f"([e, before]) => ({PICTURE})(e) !== before", arg=[player.element_handle(), picture])
    return player.evaluate(PICTURE)


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
