"""LatencyCurves in headless Chromium: a line that is dragged and moved by keys, ratios that follow, points that show their runs, themes, a phone."""
from __future__ import annotations

import re

import pytest
from chromium import CHROMIUM, open_page, shot

from paged_edu.sim.panels import published
from paged_edu.sim.watching import watched_curve
from paged_edu.viz import LatencyCurves
from paged_edu.viz.latency_curves import short
from paged_edu.viz.page import page_html

pytest.importorskip("playwright")
pytestmark = [
    pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine (Debian: apt-get install chromium)"),
]
RATES = {"FasterTransformer": (0.1, 0.4), "Orca (Max)": (0.3, 0.9, 2.0), "vLLM": (1.0, 2.6, 6.0)}


@pytest.fixture(scope="module")
def made():
    found = {system: watched_curve("opt-13b", "sharegpt", system, rates, 60) for system, rates in RATES.items()}
    curves, runs = ({system: pair[i] for system, pair in found.items()} for i in (0, 1))
    curves["vLLM"][-1][1] = 2.5                             # above the axis, for sure
    view = LatencyCurves("OPT-13B, ShareGPT", curves, published()["fig12a"], runs, name="in a browser")
    yield view
    view.close()


@pytest.fixture(scope="module")
def address(made, tmp_path_factory):
    path = tmp_path_factory.mktemp("curves") / "curves.html"
    path.write_text(page_html(made), encoding="utf-8")
    return f"file://{path}"


def told(page):
    return page.locator(".pe-told")


def drag_to(page, level: float) -> None:
    grip, plot = page.locator(".pe-threshold text").bounding_box(), page.locator(".pe-plot").bounding_box()
    x, y = grip["x"] + grip["width"] / 2, grip["y"] + grip["height"] / 2
    now = float(page.locator(".pe-threshold text").text_content().split()[0])
    height = (plot["height"] - 46 - 18) / 1.1               # pixels for a second a token
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x, y + (now - level) * height, steps=6)
    page.mouse.up()


def test_the_line_is_dragged_and_moved_by_keys(made, address):
    from playwright.sync_api import expect

    with open_page(viewport={"width": 900, "height": 850}) as page:
        page.goto(address)
        expect(told(page)).to_have_text(made.sentence)
        slider = page.get_by_label("threshold, seconds a token")
        rows = page.locator(".pe-crossings tbody tr")
        for level, move in ((0.2, lambda: drag_to(page, 0.2)), (0.21, lambda: page.keyboard.press("ArrowRight")), (0.8, lambda: slider.fill("0.8")),
                            (1.0, lambda: drag_to(page, 2)), (0.05, lambda: drag_to(page, -1)), (0.62, lambda: drag_to(page, 0.62))):
            move()
            made.seek(round(100 * level))
            expect(told(page)).to_have_text(made.sentence)
            expect(slider).to_have_value(f"{level:g}")
            expect(page.locator(".pe-threshold text")).to_have_text(re.compile(f"^{level:.2f}"))
            assert page.evaluate("document.querySelector('.pe-mount').player.shown") == round(100 * level)
            for number, row in enumerate(made.rows):
                assert rows.nth(number).locator("th").inner_text() == row.system
            plain = [line.split() for line in made.plain().splitlines()[2:]]
            assert [row.inner_text().split() for row in rows.all()] == plain
        made.seek(50)
        assert page.problems == page.outside == []


def test_a_point_shows_its_run(made, address):
    from playwright.sync_api import expect

    with open_page(viewport={"width": 900, "height": 850}) as page:
        page.goto(address)
        said, active = page.locator(".pe-run-told"), page.locator(".pe-active")
        expect(active).to_have_count(8)
        expect(said).to_have_text(re.compile("^vLLM at "))  # one is shown from the start
        expect(page.locator(".pe-chosen")).to_have_count(1)
        box = active.nth(3).locator("circle").last.bounding_box()
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)     # others are close by
        expect(said).to_have_text(short(made.runs["Orca (Max)"][1])["told"])
        expect(active.nth(3)).to_have_attribute("aria-pressed", "true")
        expect(page.get_by_label("requests over seconds", exact=True).locator("rect")).not_to_have_count(0)
        expect(page.get_by_label("memory parts over seconds")).to_contain_text("internal")
        page.keyboard.press("ArrowRight")
        expect(said).to_have_text(short(made.runs["Orca (Max)"][2])["told"])
        page.keyboard.press("ArrowUp")                      # the system before has two points only
        expect(said).to_have_text(short(made.runs["FasterTransformer"][1])["told"])
        expect(page.get_by_label("memory parts over seconds")).to_contain_text("keeps no account of its memory")
        page.keyboard.press("Home")
        expect(said).to_have_text(short(made.runs["FasterTransformer"][0])["told"])
        active.nth(7).focus()
        page.keyboard.press("Enter")
        expect(said).to_have_text(short(made.runs["vLLM"][2])["told"])
        assert page.locator('.pe-active[tabindex="0"]').count() == 1
        before = told(page).inner_text()
        page.keyboard.press("Space")
        page.wait_for_timeout(700)
        assert told(page).inner_text() == before, "nothing plays"
        page.set_viewport_size({"width": 700, "height": 850})
        page.wait_for_timeout(200)
        expect(said).to_have_text(short(made.runs["vLLM"][2])["told"])
        expect(page.locator(".pe-chosen")).to_have_count(1)
        assert page.problems == page.outside == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 860])
def test_themes_and_widths(address, width, scheme):
    with open_page(viewport={"width": width, "height": 850}, color_scheme=scheme, has_touch=width < 500) as page:
        page.goto(address)
        page.wait_for_timeout(200)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing sticks out"
        ink, ground = page.locator(".pe").evaluate("e => [getComputedStyle(e).color, getComputedStyle(e).backgroundColor]")
        light = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (ink, ground)]
        assert (light[0] < light[1]) == (scheme == "light")
        left, right = (page.locator(f".pe-{side}").bounding_box() for side in ("left", "right"))
        if width == 860:
            assert left["x"] + left["width"] <= right["x"], "plot and run share a screen"
        else:
            assert left["y"] + left["height"] <= right["y"]
        assert page.locator(".pe-plot").bounding_box()["height"] <= 520
        shot(page, f"curves-{width}-{scheme}")
        assert page.problems == page.outside == []
