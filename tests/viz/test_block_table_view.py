"""BlockTableView: the table of the chosen request is the manager's, entry by entry, in picture, letters and frames."""
import json
import re
import xml.etree.ElementTree as ET

import pytest
from driving import make, request, step
from hypothesis import given
from viz_states import any_states, engine_states, run

from paged_edu.core import events as ev
from paged_edu.trace import EventLog, TraceState
from paged_edu.viz import BlockTableView
from paged_edu.viz import view as views
from paged_edu.viz.fake_engine import FakeEngine, trace24
from paged_edu.viz.table_svg import MOST_ROWS, chosen, rows_shown, table_svg, table_text, translation


@pytest.fixture(autouse=True)
def close_all():
    yield
    for view in list(views._open.values()):
        view.close()


def paper() -> TraceState:
    """The paper's own example (§4.3, Fig. 6): 7 prompt tokens in blocks 7 and 1 of 4 slots, then 2 more, the second in block 3."""
    state = TraceState(8, 4)
    for event in (
        ev.RequestAdded("four score", 0, tuple(range(7)), 8),
        ev.StepStarted(1), ev.BlocksAllocated(0, (7, 1)), ev.RequestAdmitted("four score", 7, 0), ev.StepScheduled(1, {0: 7}), ev.TokensWritten(0, 7),
        ev.TokensSampled(0, (1,)),
        ev.StepStarted(2), ev.StepScheduled(2, {0: 1}), ev.TokensWritten(0, 8), ev.TokensSampled(0, (2,)),
        ev.StepStarted(3), ev.BlocksAllocated(0, (3,)), ev.StepScheduled(3, {0: 1}), ev.TokensWritten(0, 9), ev.TokensSampled(0, (3,)),
    ):
        state.apply(event)
    return state


def test_the_papers_example():
    state = paper()
    assert table_text(state) == (
        "step 3: block table of A (request four score): 9 tokens in 3 blocks\n   0 -> 7     4/4\n   1 -> 1     4/4\n   2 -> 3     1/4")
    seq = state.sequences[0]
    slots = {}
    for position in (2, 6, 7, 8):
        seq.num_computed = position + 1
        slots[position] = int(translation(seq, 4).rsplit("= ", 1)[1])
    assert slots == {2: 30, 6: 6, 7: 7, 8: 12}
    seq.num_computed = 0
    assert translation(seq, 4) == ""


@given(state=engine_states())
def test_every_entry_is_there_with_an_arrow(state):
    root = ET.fromstring(table_svg(state))
    name = chosen(state)
    if name is None:
        assert "there is no block table" in root.get("aria-label")
        return
    table = next(seq.blocks for _, seq in sorted(state.sequences.items()) if seq.request_id == name)
    entries = re.findall(r"(\d+) to (\d+)", root.get("aria-label").rsplit(". ", 1)[-1])
    assert [(int(a), int(b)) for a, b in entries] == list(enumerate(table))
    arrows = len(root.findall("{http://www.w3.org/2000/svg}path"))
    assert arrows == (0 if not table else len(table) + 1 if len(table) <= MOST_ROWS else 2)


@given(state=any_states())
def test_any_state_is_well_formed(state):
    for wanted in (None, *state.requests):
        ET.fromstring(table_svg(state, wanted))
        assert chosen(state, wanted) in {*state.requests, None}
        assert table_text(state, wanted)


def test_long_tables_show_both_ends():
    assert rows_shown(MOST_ROWS) == list(range(MOST_ROWS))
    rows = rows_shown(100)
    assert len(rows) == MOST_ROWS
    assert rows[7:10] == [7, None, 85]
    assert rows[-1] == 99


def test_the_wanted_request_and_what_comes_after_it():
    engine, log = run(20, 4, [(9, 3), (5, 9)], 2)
    view = BlockTableView(log, engine, request="0")
    assert "table of A" in view.plain()
    while engine.has_unfinished_requests() and "0" in log.state.requests:
        engine.step()
    view.end()
    assert "table of B" in view.plain()
    with pytest.raises(TypeError, match="request must be the id"):
        BlockTableView(log, request=3)


def test_a_swapped_request_points_into_host_memory():
    scheduler, runner = make(num_blocks=4, block_size=2, cpu_blocks=8, preemption_mode="swap")
    log = EventLog.of(scheduler)
    scheduler.emit = scheduler.manager.emit = log
    for name in ("a", "b"):
        scheduler.add(request(name, 3, max_tokens=5))
    while not log.state.num_swapped_out:
        step(scheduler, runner)
    host = log.state.sequences[1].cpu_blocks
    assert host
    text = table_text(log.state, "b")
    assert all(f"{i} -> host {block}" in text for i, block in enumerate(host))
    assert "host memory until there is room again" in table_svg(log.state, "b")


def test_the_figure_has_at_most_60_frames_in_300_kb():
    engine = trace24().engine()
    view = BlockTableView.of(engine)
    while engine.has_unfinished_requests():
        engine.step()
    view.seek(60)
    figure = view.figure()
    assert len(figure["frames"]) <= 60
    assert len(json.dumps(figure)) < 300_000
    assert "60" in {frame["name"] for frame in figure["frames"]}
    big = FakeEngine(1000, 16, 1024)
    big.add([(400, 60)] * 25)
    view = BlockTableView.of(big)
    while big.has_unfinished_requests():
        big.step()
    assert len(json.dumps(view.figure())) < 300_000
    assert len(json.dumps(BlockTableView(view.log, name="one").figure())) < 300_000
