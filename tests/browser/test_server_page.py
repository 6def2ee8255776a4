"""The page of a running server in headless Chromium: it follows what is served, plays back, asks for the key, and asks nobody else for anything."""
from __future__ import annotations

import pytest
from chromium import CHROMIUM, open_page, shot
from serving import serving

from paged_edu import AsyncEngine

pytest.importorskip("playwright")
pytestmark = [
    pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine (Debian: apt-get install chromium)"),
]
ASK = {"model": "tiny-shakespeare", "prompt": ["ROMEO:", "JULIET:", "Nurse:"], "max_tokens": 40, "ignore_eos": True}
LAST = "(document.querySelector('main').player?.last ?? -1)"
SHOWN = "document.querySelector('main').player.shown"
LINE = "[role=status]"


def until(page, expression):
    """Playwright's own waiting evaluates text in the page, which its policy forbids."""
    for _ in range(600):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never true: {expression}")


def test_the_page_follows_what_is_served():
    with serving(AsyncEngine("tiny-shakespeare", num_gpu_blocks_override=12)) as served, open_page(viewport={"width": 1280, "height": 900}) as page:
        page.goto(served.url)
        until(page, "document.querySelector('main').player")
        before = page.evaluate(LAST)
        assert "0 running, 0 waiting" in page.text_content(LINE)
        assert served.post("/v1/completions", ASK).status_code == 200
        until(page, f"{LAST} >= {before} + 40 && {SHOWN} === {LAST}")
        until(page, "document.querySelector('[role=status]').textContent.includes('3 answered')")
        assert "of 12 blocks in use" in page.text_content(LINE)
        assert page.locator(".pe-pane-pool canvas").count() > 0
        assert page.locator(".pe-pane-timeline").count() == 1
        shot(page, "server")
        page.keyboard.press("Tab")
        page.click("text=Back")                             # somebody who looks back is left there
        shown = page.evaluate(SHOWN)
        assert served.post("/v1/completions", ASK).status_code == 200
        until(page, f"{LAST} >= {shown} + 40")
        assert page.evaluate(SHOWN) == shown
        assert (page.problems, page.outside) == ([], [])


def test_the_page_asks_for_the_key():
    with serving(AsyncEngine("tiny-shakespeare", num_gpu_blocks_override=12), api_key=("open-sesame",)) as served, \
            open_page("Failed to load resource: the server responded with a status of 401") as page:
        page.goto(served.url)
        page.fill("input[type=password]", "open-sesame")
        page.click("text=Show")
        until(page, "document.querySelector('main').player")
        assert (page.problems, page.outside) == ([], [])
