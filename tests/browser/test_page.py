"""A saved page in headless Chromium: buttons, keys, tooltips, both themes, a phone, 1,000 blocks at 10 steps a second, nothing from elsewhere."""
from __future__ import annotations

import random
import re
from dataclasses import replace

import numpy as np
import pytest
from chromium import CHROMIUM, drawn, open_page, shot

from paged_edu.model.loader import load_spec, resolve
from paged_edu.trace import EventLog
from paged_edu.viz import AttentionWalk, EngineStepper, LayerStepper, save_html
from paged_edu.viz.fake_engine import FakeEngine, trace24
from paged_edu.viz.page import page_html

pytest.importorskip("playwright")
pytestmark = [
    pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine (Debian: apt-get install chromium)"),
]
SHOWN = "document.querySelector('.pe-mount').player.shown"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """TRACE24 with pool and table, words for the tooltips; a comparison; swap and prefix cache; a thousand blocks."""
    folder = tmp_path_factory.mktemp("pages")

    def run(engine: FakeEngine, name: str, views: list[str], **options) -> None:
        log = EventLog.of(engine.scheduler)
        engine.listen(log)
        while engine.has_unfinished_requests():
            engine.step()
        save_html(log, folder / f"{name}.html", views, **options)

    run(trace24().engine(), "trace24", ["pool", "table"], step=13, decode=lambda ids: f"w{ids[0]} ")
    swap = FakeEngine(12, 4, 64, num_cpu_blocks=20, prefix_caching=True, preemption_mode="swap")
    swap.add([(9, 20), (9, 20), (5, 30), (7, 12)])
    run(swap, "swap", ["pool", "table"])
    rng = random.Random(1)
    big = FakeEngine(1000, 16, 1024)
    big.add([(rng.randint(5, 300), rng.randint(20, 200)) for _ in range(180)])
    run(big, "big", ["pool"])
    trace = trace24()
    both = EngineStepper.compare({"contiguous": trace.engine("orca-max"), "paged": trace.engine()})
    while both.live == "unfinished":
        both.step()
    both.seek(13)
    (folder / "compare.html").write_text(page_html(both), encoding="utf-8")
    both.close()
    numbers = np.random.default_rng(0).standard_normal((2, 12, 16, 64))
    walk = AttentionWalk(-np.ones(64), *numbers, table=[7, 1, 3, 9], length=50)
    (folder / "walk.html").write_text(page_html(walk), encoding="utf-8")
    walk.close()
    spec = load_spec(resolve("tiny-shakespeare"))
    layer = LayerStepper({"a model": spec, "another": replace(spec, num_heads=3, num_kv_heads=3, head_dim=64)})
    (folder / "layer.html").write_text(page_html(layer), encoding="utf-8")
    layer.close()
    return folder


@pytest.fixture
def page():
    with open_page(viewport={"width": 900, "height": 900}) as page:
        yield page
        assert page.problems == []
        assert page.outside == []


def status(page):
    return page.locator('[role="status"]')


def test_buttons_and_keys(saved, page):
    from playwright.sync_api import expect

    page.goto(f"file://{saved}/trace24.html")
    expect(status(page)).to_have_text("step 13: X preempted, 1 block freed; 1 block taken; 19 tokens computed")
    before = page.locator(".pe-canvas").first.evaluate("e => e.toDataURL()")
    page.get_by_role("button", name="Back").click()
    expect(status(page)).to_have_text(re.compile("^step 12:"))
    page.get_by_role("button", name="Step").click()
    expect(status(page)).to_have_text(re.compile("^step 13:"))
    assert page.locator(".pe-canvas").first.evaluate("e => e.toDataURL()") == before, "there and back is the same picture"
    for key, step in (("Home", 0), ("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", 141), ("ArrowRight", 141), ("Home", 0)):
        page.keyboard.press(key)
        expect(page.locator(".pe-readout").first).to_have_text(f"{step} / 141")
    page.keyboard.press("ArrowLeft")                        # no step before the first one
    assert page.evaluate(SHOWN) == 0
    page.get_by_label("speed, steps a second").fill("10")
    page.locator(".pe-headline").first.click()
    page.keyboard.press("Space")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.wait_for_function(f"{SHOWN} > 3")
    page.keyboard.press("Space")
    step = page.evaluate(SHOWN)
    page.wait_for_timeout(400)
    assert page.evaluate(SHOWN) == step
    page.get_by_label("step", exact=True).fill("60")
    expect(status(page)).to_have_text(re.compile("^step 60:"))
    page.keyboard.press("End")
    page.get_by_role("button", name="Play").click()         # a recording starts over
    page.wait_for_function(f"{SHOWN} < 20")


def test_a_player_that_leaves_the_page_stops(saved, page):
    page.goto(f"file://{saved}/trace24.html")
    page.evaluate("() => { window.kept = document.querySelector('.pe-mount').player; kept.setSpeed(10); kept.seek(0); kept.play() }")
    page.wait_for_function("kept.shown > 2")
    page.evaluate("document.querySelector('.pe').remove()")
    page.wait_for_function("!kept.playing")
    step = page.evaluate("kept.shown")
    page.wait_for_timeout(300)
    assert page.evaluate("kept.shown") == step


def test_a_layer_line_by_line_for_two_models(saved, page):
    from playwright.sync_api import expect

    page.goto(f"file://{saved}/layer.html")
    picture, first, second = page.locator(".pe-wide svg"), *(page.get_by_role("button", name=name, exact=True) for name in ("a model", "another"))
    expect(status(page)).to_have_text("line 0: x = wte(ids) + wpe(positions): [5, 192] in the prefill, [1, 192] in the decode step")
    expect(first).to_have_attribute("aria-pressed", "true")
    for _ in range(4):
        page.get_by_role("button", name="Step").click()
    expect(status(page)).to_have_text("line 4: write(k, v, slots), into the pool: [5, 6, 32] in the prefill, [1, 6, 32] in the decode step")
    expect(picture).to_have_attribute("aria-label", re.compile("line 4: write.*The only write"))
    second.click()
    expect(second).to_have_attribute("aria-pressed", "true")
    expect(first).to_have_attribute("aria-pressed", "false")
    expect(status(page)).to_have_text(re.compile(r"^line 4: .* \[5, 3, 64\]"))
    expect(picture).to_contain_text("another: a layer, line by line")
    shot(page, "page-layer")
    first.focus()
    page.keyboard.press("Enter")                            # by the keyboard as well
    expect(status(page)).to_have_text(re.compile(r"^line 4: .* \[5, 6, 32\]"))
    page.set_viewport_size({"width": 360, "height": 800})
    page.wait_for_function("document.documentElement.scrollWidth <= 360")       # the picture scrolls in its own place


def test_a_query_walks_through_its_blocks(saved, page):
    from playwright.sync_api import expect

    page.goto(f"file://{saved}/walk.html")
    picture, toggle = page.locator(".pe-wide svg"), page.get_by_role("button", name="forget to rescale")
    expect(status(page)).to_have_text(re.compile("^step 1: block 7, positions 0 to 15: m becomes"))
    seen = set()
    for key, step, block in (("ArrowRight", 2, 1), ("ArrowRight", 3, 3), ("ArrowRight", 4, 9)):
        page.keyboard.press("Tab") if step == 2 else None
        page.keyboard.press(key)
        expect(status(page)).to_have_text(re.compile(f"^step {step}: block {block},"))
        expect(picture).to_have_attribute("aria-label", re.compile(f"step {step}: block {block},.*✓ acc / l equals dense attention"))
        seen.add(picture.inner_html())
    assert len(seen) == 3
    rescaled = status(page).inner_text()
    toggle.click()
    expect(toggle).to_have_attribute("aria-pressed", "true")
    expect(picture).to_contain_text("✗ acc / l is off by")
    expect(status(page)).not_to_have_text(rescaled)
    shot(page, "page-walk")
    toggle.focus()
    page.keyboard.press("Enter")                            # by the keyboard as well
    expect(status(page)).to_have_text(rescaled)
    page.keyboard.press("Home")
    expect(status(page)).to_have_text(re.compile("^step 0: nothing is read yet"))
    page.set_viewport_size({"width": 360, "height": 800})
    page.wait_for_function("document.documentElement.scrollWidth <= 360")       # the picture scrolls in its own place


def test_tooltips_selection_and_the_table(saved, page):
    from playwright.sync_api import expect

    page.goto(f"file://{saved}/trace24.html")
    over, tip = page.locator(".pe-over"), page.locator(".pe-pane-pool .pe-tip")
    over.hover(position={"x": 24, "y": 24})
    expect(tip).to_be_visible()
    expect(tip).to_have_text(re.compile('^block 0: A \\(request 0\\), logical block 0\\s+16 of 16 slots hold tokens\\s.*"w0 w7 w14', re.DOTALL))
    title = page.locator(".pe-pane-table .pe-headline")
    over.click(position={"x": 5 * 48 + 24, "y": 24})        # block 5 is E's
    expect(title).to_have_text("block table of E (request 4): 220 tokens in 14 blocks")
    expect(page.locator(".pe-entry")).to_have_count(14)
    assert page.locator(".pe-entry").nth(13).get_attribute("aria-label") == "logical block 13: physical block 58, 12 of 16 slots filled"
    expect(page.locator(".pe-pane-table .pe-note")).to_contain_text("slot 58 × 16 + 11 = 939")
    page.locator(".pe-entry").nth(2).focus()
    page.keyboard.press("Enter")
    expect(page.locator(".pe-entry").nth(2)).to_have_attribute("aria-pressed", "true")
    page.locator(".pe-chip").first.click()                  # A
    expect(title).to_have_text(re.compile("^block table of A"))
    page.keyboard.press("Escape")
    over.focus()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")                              # by the keyboard, so that the focus shows
    expect(tip).to_contain_text("block 0:")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    expect(tip).to_contain_text("block 17: E")
    assert page.evaluate(SHOWN) == 13, "arrows on the pool go from block to block"


def test_swapped_and_cached_blocks(saved, page):
    from playwright.sync_api import expect

    page.goto(f"file://{saved}/swap.html")
    trace = "document.querySelector('.pe-mount').player.tracks[0].trace"
    step = page.evaluate(f"(() => {{ for (let s = 0; s <= {trace}.lastStep; s++) if ({trace}.at(s).hostBlocks().length) return s; }})()")
    page.evaluate(f"document.querySelector('.pe-mount').player.seek({step})")
    expect(status(page)).to_contain_text("swapped out")
    over = page.locator(".pe-over")
    over.hover(position={"x": 20, "y": over.bounding_box()["height"] - 20})
    tip = page.locator(".pe-pane-pool .pe-tip")
    expect(tip).to_contain_text("host block")
    expect(tip).to_contain_text("swapped out: it comes back when there is room")
    shot(page, "page-swap")
    page.get_by_role("button", name="End").click()
    drawn(page)
    over.hover(position={"x": 20, "y": 20})
    expect(tip).to_contain_text("cached")
    shot(page, "page-cached")


def test_two_engines_side_by_side(saved, page):
    from playwright.sync_api import expect

    page.goto(f"file://{saved}/compare.html")
    expect(status(page)).to_contain_text(re.compile("^contiguous: step 13: 3 tokens computed"))
    boxes = [pane.bounding_box() for pane in page.locator(".pe-pane").all()]
    assert len(boxes) == 2
    assert boxes[0]["y"] == boxes[1]["y"]
    expect(page.locator(".pe-sub").first).to_have_text("3 running, 20 waiting, 1 finished")
    page.get_by_role("button", name="End").click()
    expect(status(page)).to_contain_text(re.compile("paged: done after step 141$"))
    shot(page, "page-compare")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 900])
@pytest.mark.parametrize("name", ["trace24", "compare", "big"])
def test_themes_and_widths(saved, name, width, scheme):
    with open_page(viewport={"width": width, "height": 800}, color_scheme=scheme, has_touch=width < 500) as page:
        page.goto(f"file://{saved}/{name}.html")
        page.evaluate("document.querySelector('.pe-mount').player.seek(20)")
        drawn(page)
        page.wait_for_timeout(300)                          # a width is watched, and drawn anew when it changed
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing sticks out"
        ink, ground = page.locator(".pe").evaluate("e => [getComputedStyle(e).color, getComputedStyle(e).backgroundColor]")
        light = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (ink, ground)]
        assert (light[0] < light[1]) == (scheme == "light")
        assert abs(light[0] - light[1]) > 500
        if width == 360:
            sizes = [box.bounding_box() for box in page.locator(".pe-controls .pe-button").all()]
            assert min(min(size["width"], size["height"]) for size in sizes) >= 44
        first = page.locator(".pe-over").first.bounding_box()
        assert first["height"] <= 520
        shot(page, f"page-{name}-{width}-{scheme}")
        assert page.problems == []
        assert page.outside == []


def test_a_thousand_blocks_at_ten_steps_a_second(saved, page):
    """By the processor time of the browser, since a busy machine stretches the clock: a step has 100 ms."""
    import psutil

    def spent() -> float:
        found = [child.cpu_times() for child in psutil.Process().children(recursive=True) if "chrom" in child.name()]
        return sum(times.user + times.system for times in found)

    page.goto(f"file://{saved}/big.html")
    page.wait_for_timeout(1000)
    page.evaluate("() => { const player = document.querySelector('.pe-mount').player; player.setSpeed(10); player.seek(0); player.play() }")
    page.wait_for_timeout(500)
    first, before = page.evaluate(SHOWN), spent()
    page.wait_for_function(f"{SHOWN} >= {first} + 40", timeout=60_000)
    steps, seconds = page.evaluate(SHOWN) - first, spent() - before
    print(f"{steps} steps, {1000 * seconds / steps:.0f} ms of processor time each")
    assert seconds / steps < 0.09
    page.evaluate("document.querySelector('.pe-mount').player.pause()")
    took = page.evaluate("""() => {
        const { trace } = document.querySelector('.pe-mount').player.tracks[0], start = performance.now();
        for (let step = trace.lastStep - 1; step > trace.lastStep - 101; step--) trace.at(step);
        return (performance.now() - start) / 100;
    }""")
    assert took < 50, "a step backwards folds at most 32 steps"
