"""Lesson 00 in a real JupyterLab in headless Chromium: run all, press Step and Back, see the picture change, no error anywhere.

``PAGED_EDU_SHOTS=FOLDER`` keeps screenshots of it, in both themes. Everything runs on 127.0.0.1; the browser reaches nothing else.
"""
from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import CHROMIUM, lab_server, open_lab

pytestmark = [pytest.mark.browser, pytest.mark.slow]

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "00_one_minute_tour.ipynb"
PICTURE = ".jp-OutputArea-output .pe .pe-over"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a copy of the notebook in a JupyterLab of our own."""
    pytest.importorskip("jupyterlab")
    pytest.importorskip("playwright")
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium)")
    work = tmp_path_factory.mktemp("lab")
    shutil.copy(NOTEBOOK, work)
    with lab_server(work, NOTEBOOK.name) as address:
        yield address


def shot(page, name: str) -> None:
    if folder := os.environ.get("PAGED_EDU_SHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(Path(folder) / f"{name}.png"))


def shots_of_all_cells(page, name: str) -> None:
    """Every second cell in turn, for people who look at the lesson."""
    if os.environ.get("PAGED_EDU_SHOTS"):
        for index in range(0, page.locator(".jp-Notebook .jp-Cell").count(), 2):
            page.locator(".jp-Notebook .jp-Cell").nth(index).evaluate("e => e.scrollIntoView({block: 'start'})")
            page.wait_for_timeout(400)
            shot(page, f"{name}-{index:02d}")


@pytest.fixture
def page(lab: str):
    with open_lab(lab) as page:
        yield page


def test_the_tour_in_jupyterlab(page):
    from playwright.sync_api import expect

    idle = page.locator("#jp-main-statusbar").get_by_text(re.compile(r"\| Idle"))
    idle.wait_for()                                         # "Run All" before that is dropped without a word
    shots_of_all_cells(page, "stored")
    stored = tour_cell(page, 0).locator(".jp-RenderedPlotly")      # what is there before anything has run
    expect(stored).to_be_visible()
    expect(stored).to_contain_text("58 of 60 blocks")       # both memories, not only the first
    expect(stored).to_contain_text("48 of 60 blocks")
    page.locator("#jp-MainMenu").get_by_text("Run", exact=True).click()
    page.locator('li[data-command="runmenu:run-all"]').click()
    # A windowed notebook builds cells as they come into view; End goes to the last one, whose view waits at step 4.
    last = page.locator(PICTURE).last
    page.locator(".jp-Notebook").first.click(position={"x": 5, "y": 5})
    for _ in range(60):
        page.keyboard.press("Escape")
        page.keyboard.press("Control+End")
        page.wait_for_timeout(1000)
        if page.get_by_text("step 19: C finished, 3 blocks freed; 1 token computed").count() and last.count():
            break
    expect(last).to_have_attribute("aria-label", re.compile("Block pool at step 4: 3 of 5 blocks"))
    idle.wait_for()
    errors = page.locator('.jp-RenderedText[data-mime-type="application/vnd.jupyter.error"], [data-mime-type="application/vnd.jupyter.stderr"]')
    assert errors.all_inner_texts() == []

    output = page.locator(".jp-OutputArea-output:has(.pe)").last
    output.scroll_into_view_if_needed()
    shot(page, "view-light")
    status = output.locator('[role="status"]')
    expect(status).to_have_text("step 4: 1 token computed")
    before = pixels(output)
    output.get_by_role("button", name="Back").click()
    expect(last).to_have_attribute("aria-label", re.compile("Block pool at step 3"))
    expect(status).to_have_text("step 3: C and B preempted, 3 blocks freed; 1 block taken; 1 token computed")
    assert pixels(output) != before
    output.get_by_role("button", name="Step").focus()
    page.keyboard.press("Enter")                            # the buttons work without a mouse
    expect(last).to_have_attribute("aria-label", re.compile("Block pool at step 4"))
    assert pixels(output) == before
    output.get_by_role("button", name="Home").click()
    expect(last).to_have_attribute("aria-label", re.compile("Block pool at step 0"))
    output.get_by_label("speed, steps a second").fill("1")  # a slow machine must find Pause before the view is at its end
    output.get_by_role("button", name="Play").click()
    expect(last).to_have_attribute("aria-label", re.compile("Block pool at step 3"))
    output.get_by_role("button", name="Pause").click()
    idle.wait_for()                                         # playing back runs nothing in the kernel
    output.get_by_role("button", name="End").click()
    expect(last).to_have_attribute("aria-label", re.compile("Block pool at step 19: 0 of 5 blocks"))

    page.evaluate("window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})")
    output.get_by_role("button", name="Home").click()
    output.get_by_role("button", name="Step").click()
    expect(last).to_have_attribute("aria-label", re.compile("Block pool at step 1"))
    expect(page.locator("body")).to_have_attribute("data-jp-theme-light", "false")
    ink = output.locator(".pe-headline").first.evaluate("e => getComputedStyle(e).color")
    assert sum(map(int, re.findall(r"\d+", ink)[:3])) > 450, f"dark text on the dark theme: {ink}"
    shot(page, "view-dark")
    shots_of_all_cells(page, "dark")
    assert page.problems == []
    assert page.outside == []


def test_restart_and_run_all_leaves_the_tour_at_the_step_it_ran_to(page):
    """After a restart the page still has the old kernel's slider: nothing that it sends may move the new view."""
    from playwright.sync_api import expect

    idle = page.locator("#jp-main-statusbar").get_by_text(re.compile(r"\| Idle"))
    idle.wait_for()
    page.locator("#jp-MainMenu").get_by_text("Run", exact=True).click()
    page.locator('li[data-command="runmenu:run-all"]').click()
    at_step_13(page)
    wait_for_all_cells(page)
    output = tour(page, 0)
    output.get_by_role("button", name="Back").click()       # the old page stands somewhere else when the kernel goes
    expect(output.locator('[role="status"]')).to_have_text(re.compile("paged: step 12:"), timeout=30_000)
    for index in (0, 1):                                    # what is of the old kernel
        tour(page, index).locator(".pe").evaluate("e => { e.dataset.old = '1' }")
    page.locator("#jp-MainMenu").get_by_text("Run", exact=True).click()
    page.locator('li[data-command="runmenu:restart-and-run-all"]').click()
    page.locator(".jp-Dialog .jp-mod-accept").click()
    at_step_13(page)
    wait_for_all_cells(page)
    page.wait_for_timeout(1500)                             # a message that is late has arrived by now
    at_step_13(page)
    output = tour(page, 1)
    output.get_by_role("button", name="Step").click()
    expect(output.locator('[role="status"]')).to_have_text(re.compile("paged: step 14:"), timeout=30_000)
    expect(output.locator(".pe-readout").first).to_have_text(re.compile("^14 /"))
    # A restart may cut off a message that the old kernel is sending; JupyterLab says so and drops it.
    assert [problem for problem in page.problems if not problem.startswith("Kernel message validation error")] == []
    assert page.outside == []


def pixels(output) -> str:
    """What is on the canvas of a block pool."""
    return output.locator(".pe-canvas").first.evaluate("e => e.toDataURL()")


def tour(page, index: int):
    """The output in which the tour's view is shown for the first time or the second."""
    return tour_cell(page, index).locator(".jp-OutputArea-output:has(.pe)").last


def tour_cell(page, index: int):
    """The cell that shows the tour's view for the first time or the second; scrolled to, since only what is near is built."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    where = [i for i, cell in enumerate(cells) if cell["cell_type"] == "code" and cell["source"][-1] == "view"][index]
    page.evaluate("i => { const book = window.jupyterapp.shell.currentWidget.content; book.activeCellIndex = i; return book.scrollToItem(i) }", where)
    return page.locator(f'.jp-Cell[data-windowed-list-index="{where}"]')


def wait_for_all_cells(page) -> None:
    """Run All takes the numbers from all cells at once and gives each its own when it is done."""
    page.wait_for_function("window.jupyterapp.shell.currentWidget.content.widgets.every(c => c.model.type !== 'code' || c.model.executionCount)")
    page.locator("#jp-main-statusbar").get_by_text(re.compile(r"\| Idle")).wait_for()


def at_step_13(page) -> None:
    """Both places of the tour's view show step 13, in picture, sentence and slider, and nothing there is of an older kernel."""
    from playwright.sync_api import expect

    for index in (0, 1):
        output = tour(page, index)
        expect(output.locator("[data-old]")).to_have_count(0, timeout=240_000)
        expect(output.locator('[role="status"]')).to_have_text(
            re.compile("slabs: step 13: 3 tokens computed.*paged: step 13: X preempted, 1 block freed; 1 block taken; 19 tokens computed", re.DOTALL),
            timeout=240_000)
        for pane in (0, 1):
            expect(output.locator(".pe-over").nth(pane)).to_have_attribute("aria-label", re.compile("^Block pool at step 13:"))
        expect(output.locator(".pe-readout").first).to_have_text(re.compile("^13 /"))


def test_the_stored_notebook_needs_no_kernel():
    """What GitHub shows: pictures and text, no widget that is not there, no path of the machine that stored it, under 500 kB."""
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert len(text) < 500_000
    assert "widget-view" not in text
    assert not re.search(r"/(home|root|tmp|work|Users)/", text)
    outputs = [o for cell in json.loads(text)["cells"] if cell["cell_type"] == "code" for o in cell["outputs"]]
    assert sum("image/svg+xml" in o.get("data", {}) for o in outputs) == 3
    assert not [o for o in outputs if o["output_type"] == "error" or o.get("name") == "stderr"]
