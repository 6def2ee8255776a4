"""The block grid: well-formed for every state, right numbers, everything escaped, legible at every size."""
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from viz_states import any_states, engine_states, run

from paged_edu.core.sequence import Status
from paged_edu.trace import EventLog, TraceState
from paged_edu.trace.state import RequestState, SequenceState
from paged_edu.viz import AUTO, DARK, LIGHT, pool_svg
from paged_edu.viz.fake_engine import FakeEngine
from paged_edu.viz.svg import CELL_SIZES, fit, headline, host_blocks, just_written, plain_text

SVG = "{http://www.w3.org/2000/svg}"


def parse(svg: str) -> ET.Element:
    root = ET.fromstring(svg)
    assert root.tag == f"{SVG}svg"
    assert root.get("role") == "img"
    return root


def shared_state(request_id: str = "x") -> TraceState:
    """Block 2 belongs to three requests, block 0 to one, block 3 is free."""
    state = TraceState(4, 4, step=5)
    for seq_id, name in enumerate(("one", request_id, "three")):
        state.requests[name] = RequestState(seq_id, 4, 8, Status.RUNNING)
        state.sequences[seq_id] = SequenceState(name, [5, 6, 7, 8, 9], 5, [2, seq_id if seq_id < 2 else 0])
    state.sequences[2].blocks = [2]
    state.sequences[2].num_computed = 4
    return state


@settings(max_examples=60, deadline=None)
@given(engine_states())
def test_every_engine_state_gives_a_well_formed_picture(state):
    root = parse(pool_svg(state))
    used = sum(bool(b.owners) for b in state.blocks())
    share = 100 * state.token_states() / (state.num_blocks * state.block_size)
    blocks = "1 block" if state.num_blocks == 1 else f"{state.num_blocks} blocks"
    assert f"{used} of {blocks}, {share:.0f} % of slots hold tokens" in root.get("aria-label")
    titles = [t.text for t in root.iter(f"{SVG}title") if t.text.startswith("block ")]
    assert len(titles) == state.num_blocks
    assert sum(t.endswith("free") for t in titles) == state.num_blocks - used


@settings(max_examples=100, deadline=None)
@given(any_states())
def test_no_state_breaks_the_picture(state):
    for theme in (AUTO, LIGHT, DARK):
        parse(pool_svg(state, theme, decode=lambda ids: "<&>\x00\ud800" * len(ids)))


def test_same_state_same_bytes():
    _, log = run(20, 16, [(20, 9), (3, 30)], 6)
    assert pool_svg(log.state) == pool_svg(log.replay(log.last_step))


def test_markup_in_ids_and_texts_is_shown_and_not_obeyed():
    evil = '"><script>alert(1)</script>&amp;\x1b]0;\x00'
    svg = pool_svg(shared_state(evil), decode=lambda ids: "</title><img src=x onerror=alert(1)>")
    root = parse(svg)
    assert "<script" not in svg
    assert "<img" not in svg
    assert "<script>alert(1)</script>&amp;" in "".join(t.text for t in root.iter(f"{SVG}title"))


def test_a_shared_block_shows_its_owners_its_count_and_two_outlines():
    root = parse(pool_svg(shared_state()))
    block = next(g for g in root.iter(f"{SVG}g") if (g.find(f"{SVG}title") is not None) and g.find(f"{SVG}title").text.startswith("block 2:"))
    assert {t.text for t in block.iter(f"{SVG}text")} == {"A", "B", "C", "×3", "2"}
    assert sum(r.get("stroke") is not None for r in block.iter(f"{SVG}rect")) == 2
    assert "3 block tables refer to it: A, B, C" in block.find(f"{SVG}title").text


def test_marks_the_slots_that_the_step_wrote():
    state = shared_state()
    state.scheduled = {0: 1, 1: 3, 2: 0, 99: 4}          # 99 finished in this step
    assert just_written(state) == {0: (0, 1), 2: (2, 4), 1: (0, 1)}


def test_tooltips_name_tokens_or_text():
    assert "tokens: 5 6 7 8" in pool_svg(shared_state())
    assert "text: '5-6-7-8'" in pool_svg(shared_state(), decode=lambda ids: "-".join(map(str, ids)))


def test_the_preempted_wait_hollow():
    _, log = run(5, 4, [(7, 9), (7, 9), (3, 9)], 3, max_model_len=32)
    assert log.state.with_status(Status.PREEMPTED) == ["1", "2"]
    svg = pool_svg(log.state)
    assert "1 running, 2 waiting (2 preempted), 0 finished" in svg
    assert re.search(r'B: request 1, preempted[^>]*></?', svg.replace("</title>", "></"))


SIZES = [(1, 1), (1, 16), (1, 256), (60, 16), (64, 1), (145, 16), (1000, 16), (1000, 256), (40_000, 16)]


@pytest.mark.parametrize(("num_blocks", "block_size"), SIZES)
def test_sizes(num_blocks, block_size):
    _, log = run(num_blocks, block_size, [(min(9, num_blocks * block_size), 4)], 1)
    svg = pool_svg(log.state)
    root = parse(svg)
    width, height = float(root.get("width")), float(root.get("height"))
    assert 500 <= width <= 860
    assert height <= 660
    assert len(svg) < 3_000_000
    assert plain_text(log.state).startswith(f"step 1: {headline(log.state)}")


def test_cells_are_as_large_as_the_screen_allows():
    assert [fit(n).cell for n in (1, 64, 160, 1000)] == [48, 48, 48, 20]
    assert (fit(60).columns, fit(60).rows) == (16, 4)
    assert (fit(1000).columns, fit(1000).rows) == (40, 25)
    assert fit(60, columns=8).columns == 8
    assert fit(100_000).shown == 16_000
    assert fit(100_000).cell == CELL_SIZES[-1]


def test_1000_used_blocks_fit_a_stored_notebook():
    _, log = run(1000, 16, [(240, 4)] * 60, 1)
    assert len(pool_svg(log.state)) < 450_000


def test_swapped_and_cached_blocks_are_drawn():
    engine = FakeEngine(12, 4, 64, num_cpu_blocks=20, prefix_caching=True, preemption_mode="swap")
    log = EventLog.of(engine.scheduler)
    engine.listen(log)
    engine.add([(9, 20), (9, 20), (5, 30), (7, 12)])
    while not log.state.num_swapped_out:
        engine.step()
    hosted = host_blocks(log.state)
    swapped = pool_svg(log.state)
    assert [view.block for view in hosted] == log.state.sequences[3].cpu_blocks
    assert sum(view.fill for view in hosted) == log.state.sequences[3].num_computed
    assert swapped.count("<title>host block") == len(hosted)
    assert f"host memory: {len(hosted)} swapped blocks" in swapped
    while engine.has_unfinished_requests():
        engine.step()
    assert not host_blocks(log.state)
    assert "host memory" not in pool_svg(log.state)
    cached = [view for view in log.state.blocks() if view.cached]
    assert cached
    assert pool_svg(log.state).count(": cached, text of ") == len(cached)
    assert {view.block for view in cached} == log.state.entered_by.keys()
