"""Timeline, memory parts, branches and prefix cache in headless Chromium: the page says what Python says, by mouse and keyboard, in both themes."""
from __future__ import annotations

import random
import re

import pytest
from chromium import CHROMIUM, drawn, open_page, shot

from paged_edu.core.sequence import Request
from paged_edu.sampling.params import SamplingParams
from paged_edu.trace import EventLog
from paged_edu.viz import FragmentationView, save_html
from paged_edu.viz.fake_engine import FakeEngine, trace24
from paged_edu.viz.page import page_html

pytest.importorskip("playwright")
pytestmark = [
    pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine (Debian: apt-get install chromium)"),
]
PLAYER = "document.querySelector('.pe-mount').player"


def finished(engine: FakeEngine) -> EventLog:
    log = EventLog.of(engine.scheduler)
    engine.listen(log)
    while engine.has_unfinished_requests():
        engine.step()
    return log


def samples() -> EventLog:
    engine = FakeEngine(30, 16, 64)
    log = EventLog.of(engine.scheduler)
    engine.listen(log)
    engine.queue(engine.prepare("x", list(range(23)), SamplingParams(max_tokens=12, n=4, ignore_eos=True)))
    while engine.has_unfinished_requests():
        engine.step()
    return log


def chat() -> EventLog:
    engine = FakeEngine(30, 16, 256, prefix_caching=True)
    log = EventLog.of(engine.scheduler)
    engine.listen(log)
    for name, tail, salt in (("a", 200, None), ("b", 300, None), ("c", 200, "tenant 2")):
        engine.scheduler.add(Request(name, tuple(range(100)) + (tail,) * 40, max_tokens=6, cache_salt=salt))
        for _ in range(3):
            engine.step()
    while engine.has_unfinished_requests():
        engine.step()
    return log


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    trace = trace24()
    names = {"max": "orca-max", "pow2": "orca-pow2", "oracle": "orca-oracle", "paged": "paged"}
    four = {label: finished(trace.engine(name)) for label, name in names.items()}
    save_html(four["paged"], folder / "timeline.html", ["timeline"], step=20)
    view = FragmentationView(four)
    view.seek(31)
    (folder / "fragmentation.html").write_text(page_html(view), encoding="utf-8")
    view.close()
    save_html(samples(), folder / "forks.html", ["forks"], step=1, decode=lambda ids: f"w{ids[0]} ")
    save_html(chat(), folder / "prefix.html", ["prefix"], step=5)
    rng = random.Random(1)
    big = FakeEngine(1000, 16, 1024, prefix_caching=True)
    big.add([(rng.randint(5, 300), rng.randint(20, 120)) for _ in range(180)])
    save_html(finished(big), folder / "big.html", ["timeline", "fragmentation", "forks", "prefix"])
    return folder


@pytest.fixture
def page():
    with open_page(viewport={"width": 900, "height": 900}) as page:
        yield page
        assert page.problems == []
        assert page.outside == []


def seek(page, step: int) -> None:
    page.evaluate(f"{PLAYER}.seek({step})")
    drawn(page)


def test_the_timeline(saved, page):
    from playwright.sync_api import expect

    page.goto(f"file://{saved}/timeline.html")
    picture, tip = page.locator(".pe-timeline"), page.locator(".pe-tip")
    expect(page.locator(".pe-headline")).to_have_text("24 requests over 141 steps")
    assert "T, U, V, X preempted" in picture.get_attribute("aria-label")
    rows = page.locator(".pe-timeline > g").count()
    bars = picture.evaluate("e => [...e.children].slice(0, 24).map(row => row.outerHTML).join('')")
    seek(page, 60)
    assert picture.evaluate("e => [...e.children].slice(0, 24).map(row => row.outerHTML).join('')") == bars, "a step moves the line only"
    assert page.locator(".pe-timeline > g").count() == rows
    seek(page, 20)
    box = picture.bounding_box()
    lane = picture.locator("text", has_text=re.compile("^E$")).bounding_box()
    picture.hover(position={"x": 89, "y": lane["y"] - box["y"] + 5})
    expect(tip).to_have_text("E (request 4), step 1: prefill, 208 tokens\n208 prompt tokens, at most 43 new")
    picture.click(position={"x": 89, "y": lane["y"] - box["y"] + 5})
    drawn(page)
    dim = picture.evaluate("e => [...e.children].slice(0, 24).filter(row => row.getAttribute('opacity') === '0.3').length")
    assert dim == 23, "one request is chosen, the others step back"
    page.mouse.move(5, 5)
    page.locator(".pe-speed").focus()
    page.keyboard.press("Tab")
    expect(tip).to_contain_text("A (request 0), step 20: decode, 1 token")
    for _ in range(23):
        page.keyboard.press("ArrowDown")
    expect(tip).to_contain_text("X (request 23), step 20: preempted")
    page.keyboard.press("ArrowRight")
    expect(tip).to_contain_text("step 21")
    assert page.evaluate(f"{PLAYER}.shown") == 20
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()


def test_four_memories_below_one_another(saved, page):
    from playwright.sync_api import expect

    page.goto(f"file://{saved}/fragmentation.html")
    expect(page.locator(".pe-headline")).to_have_text([
        f"{label} % of 960 slots hold tokens" for label in ("max: 29.7", "pow2: 40.2", "oracle: 54.3", "paged: 92.6")])
    boxes = [pane.bounding_box() for pane in page.locator(".pe-picture").all()]
    assert len({(box["x"], box["width"]) for box in boxes}) == 1, "the bars stand exactly below one another"
    said = page.locator(".pe-note").first.inner_text()
    assert "slots: token states 285, reservation 68, internal fragmentation 415, external or free 192; 3 running" in said
    parts = page.locator(".pe-picture").first.locator(".pe-entry")
    widths = [part.locator("rect").first.bounding_box()["width"] for part in parts.all()]
    assert [1000 * width / sum(widths) for width in widths] == pytest.approx([297, 71, 432, 200], abs=2)
    parts.nth(2).hover(position={"x": 4, "y": 30})
    expect(page.locator(".pe-tip").first).to_have_text("internal fragmentation: 415 slots, 43.2 %\nallocated and never to be used")
    page.locator(".pe-speed").focus()
    page.keyboard.press("Tab")
    expect(page.locator(".pe-tip").first).to_contain_text("token states: 285 slots")
    page.keyboard.press("Escape")
    expect(page.locator(".pe-tip").first).to_be_hidden()
    seek(page, 300)
    expect(page.locator(".pe-headline").last).to_have_text("paged: 0.0 % of 960 slots hold tokens")


def test_copies_flash_and_branches_say_where_they_come_from(saved, page):
    from playwright.sync_api import expect

    page.goto(f"file://{saved}/forks.html")
    expect(page.locator(".pe-headline")).to_have_text("A: 4 branches, 2 blocks instead of 8 without sharing (75.0 % saved)")
    expect(page.locator(".pe-sub")).to_have_text("new branches: 1 from 0, 2 from 0, 3 from 0")
    expect(page.locator(".pe-picture text", has_text="×4")).to_have_count(2)
    copies = page.locator(".pe-copies text")
    page.get_by_role("button", name="Step").click()
    expect(page.locator(".pe-sub")).to_have_text("copied before a write: block 1 to 2, 1 to 3, 1 to 4")
    expect(copies).to_have_count(3)
    expect(copies).to_have_count(0)                         # the flash is over
    expect(page.locator(".pe-headline")).to_have_text("A: 4 branches, 5 blocks instead of 8 without sharing (37.5 % saved)")
    seek(page, 1)
    page.evaluate(f"{PLAYER}.setSpeed(10); {PLAYER}.playing = true")
    seek(page, 2)
    expect(copies).to_have_count(3)
    page.wait_for_timeout(900)
    expect(copies).to_have_count(3)                         # from 5 steps a second on it stays until the next step
    page.evaluate(f"{PLAYER}.playing = false")
    block = page.locator('.pe-entry[data-block="0"]')
    block.hover()
    expect(page.locator(".pe-tip")).to_contain_text("block 0, logical block 0: 16 of 16 slots hold tokens\nof branch 0, 1, 2, 3\ntext: \"w0 w1")
    page.mouse.move(5, 5)
    page.locator(".pe-speed").focus()
    page.keyboard.press("Tab")
    expect(page.locator(".pe-tip")).to_contain_text("block 0, logical block 0")
    seek(page, 12)
    expect(page.locator(".pe-note").first).to_contain_text("ended: branch 0 (length, 12 tokens: \"w")


def test_no_flash_where_motion_is_unwelcome(saved):
    from playwright.sync_api import expect

    with open_page(viewport={"width": 900, "height": 900}, reduced_motion="reduce") as page:
        page.goto(f"file://{saved}/forks.html")
        page.get_by_role("button", name="Step").click()
        page.wait_for_timeout(900)
        expect(page.locator(".pe-copies text")).to_have_count(3)
        assert page.problems == []


def test_the_prefix_cache(saved, page):
    from playwright.sync_api import expect

    page.goto(f"file://{saved}/prefix.html")
    expect(page.get_by_text("step 4: B found 96 of its 140 tokens in the cache (6 blocks)")).to_be_visible()
    shared = page.locator('.pe-entry[data-block="0"]')
    assert shared.get_attribute("aria-label").startswith("block 0, computed by A. in use by A, B. tokens: 0 1 2 3")
    assert shared.locator("text").all_text_contents() == ["A", "B", "0"]
    shared.hover()
    expect(page.locator(".pe-tip")).to_contain_text("in use by A, B")
    page.get_by_role("button", name="End").click()
    expect(page.get_by_text('salt "tenant 2": found by requests with the same salt only')).to_be_visible()
    expect(page.locator(".pe-headline")).to_contain_text("0 in use")
    cached = page.evaluate(f"{PLAYER}.tracks[0].trace.newest.cachedBlocks()")
    strip = page.locator(".pe-picture > g:not(.pe-entry)")
    assert [int(group.locator("text").last.text_content()) for group in strip.all()] == cached[: strip.count()]
    assert strip.count() >= 15


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1240])
@pytest.mark.parametrize("name", ["timeline", "fragmentation", "forks", "prefix", "big"])
def test_themes_and_widths(saved, name, width, scheme):
    with open_page(viewport={"width": width, "height": 800}, color_scheme=scheme, has_touch=width < 500) as page:
        page.goto(f"file://{saved}/{name}.html")
        seek(page, {"forks": 2, "prefix": 9}.get(name, 31))
        page.wait_for_timeout(200)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing sticks out"
        ink, ground = page.locator(".pe").evaluate("e => [getComputedStyle(e).color, getComputedStyle(e).backgroundColor]")
        light = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (ink, ground)]
        assert (light[0] < light[1]) == (scheme == "light")
        # In one call: a picture drawn anew between two calls would leave a label without a style.
        fills = page.locator(".pe-picture text, .pe-timeline text").evaluate_all("all => all.slice(0, 6).map(e => getComputedStyle(e).fill)")
        assert fills
        assert all(re.match(r"rgb", fill) for fill in fills), "ink of the theme or of the hue"
        for picture in page.locator(".pe-picture, .pe-timeline").all():
            assert picture.bounding_box()["height"] <= 560
        shot(page, f"more-{name}-{width}-{scheme}")
        assert page.problems == []
        assert page.outside == []


def test_all_four_at_ten_steps_a_second_with_a_thousand_blocks(saved, page):
    """By the processor time of the browser: 100 ms a step for all four together, on a machine that has other things to do."""
    import psutil

    def spent() -> float:
        found = [child.cpu_times() for child in psutil.Process().children(recursive=True) if "chrom" in child.name()]
        return sum(times.user + times.system for times in found)

    page.goto(f"file://{saved}/big.html")
    page.wait_for_timeout(1000)
    page.evaluate(f"{PLAYER}.setSpeed(10); {PLAYER}.seek(20); {PLAYER}.play()")
    page.wait_for_timeout(500)
    first, before = page.evaluate(f"{PLAYER}.shown"), spent()
    page.wait_for_function(f"{PLAYER}.shown >= {first} + 40", timeout=60_000)
    steps, seconds = page.evaluate(f"{PLAYER}.shown") - first, spent() - before
    print(f"{steps} steps, {1000 * seconds / steps:.0f} ms of processor time each")
    assert seconds / steps < 0.25
    page.evaluate(f"{PLAYER}.pause()")


def test_a_view_that_is_taken_away_takes_its_observers_along(saved, page):
    page.goto(f"file://{saved}/forks.html")
    left = page.evaluate("""() => {
        const { player } = document.querySelector('.pe-mount'), before = player.listeners.size;
        player.destroy();
        document.querySelector('.pe').remove();
        return [before, player.listeners.size, document.querySelectorAll('.pe-picture, .pe-tip').length];
    }""")
    assert left == [1, 0, 0]
