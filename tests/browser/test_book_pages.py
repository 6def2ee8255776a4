"""The built book in headless Chromium: every page without an error or a request to elsewhere, the replay played, plots drawn, search, dark, a phone.

``tests/run.sh book`` builds it and runs this; elsewhere the tests are skipped where there is no book in ``book/_build/html`` ($PAGED_EDU_BOOK).
"""
from __future__ import annotations

import functools
import http.server
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from chromium import CHROMIUM, open_page, shot

ROOT = Path(__file__).parents[2]
SITE = Path(os.environ.get("PAGED_EDU_BOOK") or ROOT / "book" / "_build" / "html")
pytest.importorskip("playwright")
pytestmark = [
    pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine (Debian: apt-get install chromium)"),
    pytest.mark.skipif(not (SITE / "index.html").is_file(), reason=f"no book in {SITE} (bash tests/run.sh book builds it)"),
]
PAGES = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html")
               if path.relative_to(SITE).parts[0] not in ("source", "_static")) if SITE.is_dir() else []
LESSONS = [page for page in PAGES if page.startswith("notebooks/")]
PLAYER = "document.querySelector('.pe-replay').player"
WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 360, "height": 740}


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that leaves a page stops reading: nothing to tell."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The built site on a server of its own: a file's address would forbid module scripts."""
    server = Server(("127.0.0.1", 0), functools.partial(Quiet, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@contextmanager
def opened(address: str, **options: Any) -> Iterator[Any]:
    """A page of the book, which in the end has neither complained nor asked elsewhere, and found all that it asked for."""
    with open_page(**({"viewport": WIDE} | options)) as page:
        page.on("response", lambda answer: page.problems.append(f"{answer.status} {answer.url}") if answer.status >= 400 else None)
        page.goto(address)
        yield page
        assert page.problems == []
        assert page.outside == []


def too_wide(page: Any) -> float:
    """Pixels by which the page is wider than its window."""
    return float(page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_without_an_error(site, name):
    with opened(f"{site}/{name}") as page:
        assert page.locator("h1").count() >= 1
        assert page.locator("img:not([alt])").count() == 0
        for heading in ("Traceback", "nothing could be generated"):
            assert page.get_by_text(heading, exact=False).count() == 0 or name.startswith("notebooks/")


@pytest.mark.parametrize("name", LESSONS)
def test_the_plots_of_a_lesson_are_live(site, name):
    with opened(f"{site}/{name}") as page:
        plots, players = page.locator(".pe-figure"), page.locator(".pe-mount")
        assert plots.count() + players.count() >= 1
        for player in players.all():
            player.locator(".pe-pane").first.wait_for()
            assert player.evaluate("e => { const before = e.player.shown; e.player.seek(before > 20 ? 20 : 30); return e.player.shown !== before; }")
        for plot in plots.all():
            plot.scroll_into_view_if_needed()
            plot.locator(".plotly .main-svg").first.wait_for(timeout=20_000)
        page.wait_for_function("document.querySelectorAll('.pe-figure').length === document.querySelectorAll('.pe-figure.pe-ready').length")
        changed = page.evaluate("""async () => {
            const found = [];
            for (const plot of document.querySelectorAll('.pe-plotly')) {
                const names = (plot._transitionData?._frames ?? []).map((frame) => frame.name);
                if (names.length < 3) continue;
                const pictures = new Set();
                for (const name of [names[0], names[names.length >> 1], names.at(-1)]) {
                    await Plotly.animate(plot, [name], {mode: 'immediate', frame: {duration: 0, redraw: true}, transition: {duration: 0}});
                    pictures.add(plot.querySelector('.main-svg').innerHTML);
                }
                found.push(pictures.size);
            }
            return found;
        }""")
        assert all(count >= 2 for count in changed), "a slider that changes nothing"
        shot(page, f"book_{Path(name).stem}")


def test_questions_answer_and_solutions_open(site):
    with opened(f"{site}/{next(name for name in LESSONS if '/02' in name)}") as page:
        option = page.locator("details summary", has_text=re.compile("^a. ")).first
        option.click()
        assert page.locator("details[open]").count() >= 1
        solution = page.locator("details.sd-dropdown", has_text="A solution of 02.a").first
        assert not solution.locator("pre").first.is_visible()
        solution.locator("summary").click()
        assert solution.locator("pre").first.is_visible()


# -- the first page ------------------------------------------------------------------------------------------------------------------------
def test_the_replay_plays_by_itself_within_the_first_screen_and_stops(site):
    with opened(f"{site}/index.html") as page:
        page.wait_for_selector(".pm-picture svg")
        assert page.evaluate(f"{PLAYER}.shown") == 1
        box = page.locator(".pe-replay .pe-panes").bounding_box()
        assert box["y"] + box["height"] <= WIDE["height"], "both memories are on the first screen"
        before = page.locator(".pm-picture").nth(1).inner_html()
        page.wait_for_function(f"{PLAYER}.playing")
        page.wait_for_function(f"{PLAYER}.shown >= 4")
        assert page.locator(".pm-picture").nth(1).inner_html() != before
        page.wait_for_function(f"!{PLAYER}.playing", timeout=15_000)
        assert 10 <= page.evaluate(f"{PLAYER}.shown") <= 20
        assert "gives its own back" in page.locator(".pr-said").inner_text()
        shot(page, "book_landing")


def test_play_pause_scrub_and_scenes(site):
    from playwright.sync_api import expect

    with opened(f"{site}/index.html") as page:
        page.wait_for_selector(".pm-picture svg")
        said = page.locator(".pr-said")
        page.get_by_role("button", name=re.compile("^Scene 5")).click()
        assert page.evaluate(f"{PLAYER}.shown") == 60
        expect(said).to_contain_text("times as many tokens")
        told = re.search(r"Contiguous, (\d+) requests are done and (\d+) tokens written; paged, (\d+) and (\d+)", said.inner_text())
        for side, (finished, written) in enumerate((told.groups()[:2], told.groups()[2:])):      # the pictures follow with the next frame
            expect(page.locator(".pm-counts").nth(side)).to_have_text(re.compile(f" {finished} finished · {written} tokens written$"))
        page.get_by_label("step", exact=True).fill("141")
        expect(said).to_contain_text("Paged, all 24 are done")
        page.get_by_label("step", exact=True).fill("20")
        page.get_by_role("button", name="Play", exact=True).click()
        page.wait_for_function(f"{PLAYER}.shown > 22")
        page.get_by_role("button", name="Pause", exact=True).click()
        step = page.evaluate(f"{PLAYER}.shown")
        page.wait_for_timeout(900)
        assert page.evaluate(f"{PLAYER}.shown") == step
        page.keyboard.press("ArrowLeft")
        assert page.evaluate(f"{PLAYER}.shown") == step - 1


def test_with_reduced_motion_nothing_moves(site):
    with opened(f"{site}/index.html", reduced_motion="reduce") as page:
        page.wait_for_selector(".pm-picture svg")
        page.wait_for_timeout(2500)
        assert page.evaluate(f"{PLAYER}.shown") == 10
        assert not page.evaluate(f"{PLAYER}.playing")


def test_without_javascript_there_is_a_picture_and_its_words(site):
    with opened(f"{site}/index.html", java_script_enabled=False) as page:
        assert page.locator(".pe-replay svg[role=img]").count() == 1
        assert page.locator(".pe-replay li").count() == 6


def test_a_phone_has_both_memories_on_its_first_screen(site):
    with opened(f"{site}/index.html", viewport=PHONE, has_touch=True, is_mobile=True) as page:
        page.wait_for_selector(".pm-picture svg")
        box = page.locator(".pm-picture").nth(1).bounding_box()
        assert box["y"] + box["height"] <= PHONE["height"]


# -- the site ------------------------------------------------------------------------------------------------------------------------------
def test_search_finds_a_word_of_a_lesson(site):
    with opened(f"{site}/search.html?q=copy-on-write") as page:
        page.wait_for_selector("#search-results li a", timeout=15_000)
        assert page.locator("#search-results li a").count() >= 3


@pytest.mark.parametrize("name", ["index.html", "engine.html", "figures.html", "notebooks/02_three_ways_to_waste_a_gigabyte.html"])
def test_dark(site, name):
    """Dark ground under everything: also under plots that were drawn in the light."""
    with opened(f"{site}/{name}", color_scheme="dark") as page:
        assert page.locator("html").get_attribute("data-theme") == "dark"
        if page.locator(".pe-figure").count():
            page.locator(".pe-figure").first.scroll_into_view_if_needed()
            page.locator(".pe-figure.pe-ready").first.wait_for(timeout=20_000)
            ground = "e => getComputedStyle(e).background"
            assert "rgb(22, 24, 29)" in page.locator(".pe-figure .main-svg").first.evaluate(ground)
            page.evaluate("document.documentElement.dataset.theme = 'light'")
            page.wait_for_function("getComputedStyle(document.querySelector('.pe-figure .main-svg')).background.includes('rgb(255, 255, 255)')")
        shot(page, f"book_dark_{Path(name).stem}")


@pytest.mark.parametrize("name", PAGES)
def test_a_phone_has_no_page_that_is_too_wide(site, name):
    with opened(f"{site}/{name}", viewport=PHONE, has_touch=True, is_mobile=True) as page:
        assert too_wide(page) <= 1
        if name in ("index.html", "paper_map.html", "performance.html"):
            shot(page, f"book_phone_{Path(name).stem}")


def test_the_curves_are_dragged_on_the_figures_page(site):
    from playwright.sync_api import expect

    with opened(f"{site}/figures.html") as page:
        slider = page.get_by_label("threshold, seconds a token")
        slider.scroll_into_view_if_needed()
        told = page.locator(".pe-told").first
        before = told.inner_text()
        slider.fill("0.2")
        expect(told).not_to_have_text(before)               # drawn with the next frame
