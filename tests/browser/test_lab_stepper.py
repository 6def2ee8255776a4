"""EngineStepper in a real JupyterLab: add, step, back, abort, reset by mouse and keys, and the cell run again leaves one of everything."""
from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from chromium import CHROMIUM, lab_server, open_lab, shot

pytestmark = [pytest.mark.browser, pytest.mark.slow]
CELLS = (
    'from paged_edu import LLM\nfrom paged_edu.viz import EngineStepper\n'
    'llm = LLM("tiny-shakespeare", num_gpu_blocks_override=24, block_size=4, max_model_len=64, enable_prefix_caching=False)',
    'stepper = EngineStepper(llm, ["pool", "table"], max_tokens=6)\nstepper',
    'from ipywidgets.widgets import widget\nlen(widget._instances), len(llm.engine._listeners)',
    'stepper.add("To be, or not", 5)\nfor _ in range(3):\n    stepper.step()\nstepper.shown',
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("jupyterlab")
    pytest.importorskip("playwright")
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium)")
    work = tmp_path_factory.mktemp("lab")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, work / "stepper.ipynb")
    with lab_server(work, "stepper.ipynb") as address:
        yield address


@pytest.fixture
def page(lab: str):
    with open_lab(lab) as page:
        yield page


def run_cell(page, index: int) -> None:
    """Run one cell and wait for its number."""
    before = page.evaluate("i => window.jupyterapp.shell.currentWidget.content.widgets[i].model.executionCount", index)
    page.evaluate("i => { const book = window.jupyterapp.shell.currentWidget.content; book.activeCellIndex = i; book.deselectAll() }", index)
    page.evaluate("window.jupyterapp.commands.execute('notebook:run-cell')")
    count = "window.jupyterapp.shell.currentWidget.content.widgets[i].model.executionCount"
    page.wait_for_function(f"([i, n]) => {{ const now = {count}; return now && now !== n }}", arg=[index, before])


def output(page, index: int):
    return page.locator(".jp-Cell").nth(index).locator(".jp-OutputArea-output").last


def pixels(page) -> str:
    return page.locator(".pe-canvas").first.evaluate("e => e.toDataURL()")


def test_add_step_back_abort(page):
    from playwright.sync_api import expect

    page.locator("#jp-main-statusbar").get_by_text(re.compile(r"\| Idle")).wait_for()
    for index in range(3):
        run_cell(page, index)
    counts = output(page, 2).inner_text()
    status = page.locator('.pe [role="status"]')
    expect(status).to_have_text(re.compile("^step 0: the recording starts here"))

    page.get_by_role("button", name="Add", exact=True).click()
    expect(status).to_have_text("A added: it waits for the next step")
    empty = pixels(page)
    page.get_by_role("button", name="Step").click()
    expect(status).to_have_text(re.compile("^step 1: A admitted"))
    assert pixels(page) != empty
    page.locator(".pe-over").hover(position={"x": 20, "y": 20})
    expect(page.locator(".pe-pane-pool .pe-tip")).to_contain_text('text: "ROMEO:')
    page.get_by_label("prompt", exact=True).fill("Now is the winter of our discontent")
    page.get_by_label("n, answers at once").fill("2")
    page.get_by_label("n, answers at once").press("Enter")
    expect(status).to_have_text("B added: it waits for the next step")
    page.get_by_role("button", name="Step").click()
    expect(status).to_have_text(re.compile("^step 2: B admitted"))
    page.get_by_role("button", name="Step").click()
    expect(status).to_have_text(re.compile("^step 3:"))
    shot(page, "stepper-light")
    after = pixels(page)
    page.get_by_role("button", name="Back").click()
    expect(status).to_have_text(re.compile("^step 2:"))
    assert pixels(page) != after

    page.get_by_label("max_tokens").fill("0")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(status).to_have_text("not added: max_tokens must be at least 1, not 0")
    page.get_by_label("max_tokens").fill("6")
    page.get_by_label("request to abort").select_option(index=1)
    page.get_by_role("button", name="Abort").click()
    expect(status).to_have_text("B aborted: its blocks are free")
    expect(page.locator(".pe-readout").first).to_have_text("3 / 3")

    # Keys: JupyterLab's own A (a cell above) and X (cut the cell) must not happen.
    cells = page.evaluate("window.jupyterapp.shell.currentWidget.content.widgets.length")
    page.locator(".pe-headline").first.click()
    page.keyboard.press("a")
    expect(status).to_have_text("C added: it waits for the next step")
    page.keyboard.press("ArrowRight")
    expect(status).to_have_text(re.compile("^step 4:"))
    page.keyboard.press("x")
    expect(status).to_have_text("A aborted: its blocks are free")
    page.keyboard.press("Home")
    expect(page.locator(".pe-readout").first).to_have_text("0 / 4")
    page.keyboard.press("Space")                            # recorded steps here, then the engine's in the kernel, to the end
    expect(status).to_have_text("nothing left to run: no request is unfinished", timeout=60_000)
    expect(page.get_by_role("button", name="Play")).to_be_visible()
    assert page.evaluate("window.jupyterapp.shell.currentWidget.content.widgets.length") == cells

    run_cell(page, 3)                                       # a cell drives the same engine
    assert output(page, 3).inner_text().strip() == page.locator(".pe-readout").first.inner_text().split(" / ")[0]
    page.get_by_role("button", name="Reset").click()
    expect(page.locator(".pe-readout").first).to_have_text("0 / 0")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(status).to_have_text("A added: it waits for the next step")

    for _ in range(3):
        run_cell(page, 1)
    run_cell(page, 2)
    assert output(page, 2).inner_text() == counts, "as many widgets and listeners as the first time"
    expect(page.locator(".pe")).to_have_count(1)
    expect(status).to_have_text(re.compile("^step 0: the recording starts here"))
    page.evaluate("window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})")
    page.get_by_role("button", name="Step").click()
    expect(status).to_have_text(re.compile("^step 1:"))
    expect(page.locator("body")).to_have_attribute("data-jp-theme-light", "false")
    page.wait_for_timeout(500)
    shot(page, "stepper-dark")
    assert page.problems == []
    assert page.outside == []
