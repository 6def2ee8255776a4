"""ForkTreeView: who shares what, what is copied and from whom a beam came, on the paper's examples; and the layout behind it."""
import json
import xml.etree.ElementTree as ET

import pytest
from driving import make, request, step
from hypothesis import given
from hypothesis import strategies as st

from paged_edu.engine.fake_runner import FakeBeam
from paged_edu.sampling.params import SamplingParams
from paged_edu.trace import EventLog, TraceState
from paged_edu.viz import ForkTreeView
from paged_edu.viz import view as views
from paged_edu.viz.fake_engine import FakeEngine
from paged_edu.viz.fork_svg import family
from paged_edu.viz.layout import lay_out


@pytest.fixture(autouse=True)
def close_all():
    yield
    for view in list(views._open.values()):
        view.close()


def recorded(*requests, **sizes) -> EventLog:
    scheduler, runner = make(**sizes)
    log = EventLog.of(scheduler)
    scheduler.emit = scheduler.manager.emit = log
    for one in requests:
        scheduler.add(one)
        if one.beam:
            runner.beams[one.request_id] = FakeBeam(one.n, len(one.prompt_token_ids), one.max_tokens)
    while scheduler.has_unfinished():
        step(scheduler, runner)
    return log


def test_four_samples_of_a_prompt_of_23_tokens():
    """Lesson 06: 2 blocks with counts 4, 4; the first written token makes three copies, the fourth writer finds count 1; 5 blocks instead of 8."""
    log = recorded(request("a", 23, max_tokens=20, n=4), num_blocks=30, block_size=16)
    view = ForkTreeView(log)
    view.seek(1)
    assert view.plain().splitlines()[2] == "branch 0: [0×4 1×4] 24 tokens"
    assert "new branches: 1 from 0, 2 from 0, 3 from 0" in view.plain()
    view.seek(2)
    assert view.plain().splitlines() == [
        "step 2: A: 4 branches, 5 blocks instead of 8 without sharing (37.5 % saved)", "copied before a write: block 1 to 2, 1 to 3, 1 to 4",
        "branch 0: [0×4 2] 25 tokens", "branch 1: [0×4 3] 25 tokens", "branch 2: [0×4 4] 25 tokens", "branch 3: [0×4 1] 25 tokens",
    ]
    svg = view.svg()
    ET.fromstring(svg)
    assert svg.count(">copy</text>") == 3
    assert svg.count(">×4</text>") == 1
    assert "prompt, 23 tokens" in svg
    assert "block 0, logical block 0: 16 of 16 slots hold tokens\nof branch 0, 1, 2, 3" in svg
    view.seek(3)
    assert ">copy</text>" not in view.svg()
    view.end()
    assert "ended: branch 0 (length, 20 tokens), 1 (length, 20 tokens)" in view.plain()


def test_no_copy_where_the_prompt_ends_with_a_block():
    log = recorded(request("a", 32, max_tokens=8, n=4), num_blocks=30, block_size=16)
    view = ForkTreeView(log)
    for shown in range(log.last_step + 1):
        view.seek(shown)
        assert ">copy</text>" not in view.svg()


def test_beams_move_between_parents_and_are_told_apart_from_answers():
    log = recorded(request("b", 10, max_tokens=14, n=4, beam=True), num_blocks=60, block_size=4)
    view = ForkTreeView(log)
    seen = ""
    for shown in range(log.last_step + 1):
        view.seek(shown)
        ET.fromstring(view.svg())
        found = family(log, view.state)
        assert len(found.live) <= 4
        assert all(branch.reason in ("stop", "length") for branch in found.ended(shown))
        seen += view.plain()
    assert "nobody went on from" in seen
    assert "(stop, 4 tokens)" in seen
    figure = view.figure()
    assert len(figure["frames"]) <= 60
    assert len(json.dumps(figure)) < 300_000


def test_the_saving_is_the_managers_own():
    log = recorded(request("a", 23, max_tokens=30, n=6), num_blocks=30, block_size=4)
    for shown in range(log.last_step + 1):
        state = log.replay(shown)
        found = family(log, state)
        used, entries = found.saved
        if found.live:
            counts = state.ref_counts()
            assert (used, entries) == (sum(map(bool, counts)), sum(counts))


def test_which_request_is_shown():
    log = recorded(request("a", 5, max_tokens=9, n=2), request("b", 5, max_tokens=12), num_blocks=30, block_size=4)
    assert family(log, log.replay(0)).lane.request_id == "b"
    assert family(log, log.replay(2)).lane.request_id == "a", "the one that has branches"
    assert family(log, log.replay(10)).lane.request_id == "b"
    assert family(log, log.replay(10), "a").lane.request_id == "a"
    assert family(log, log.replay(12)).lane.request_id == "a", "all have ended: the one that had branches"
    assert ForkTreeView(log, request="b").plain().startswith("step 12: B has ended")
    with pytest.raises(TypeError, match="request must be the id"):
        ForkTreeView(log, request=3)
    empty = EventLog(TraceState(4, 4))
    view = ForkTreeView(empty)
    assert view.plain() == "step 0: no request has arrived yet"
    ET.fromstring(view.svg())
    view.figure()


def test_swapped_and_contiguous_branches():
    log = recorded(request("a", 6, max_tokens=12, n=2), request("b", 6, max_tokens=12, n=2), num_blocks=8, block_size=4, cpu_blocks=20,
                   preemption_mode="swap")
    swapped = [s for s in range(log.last_step + 1) if any(seq.cpu_blocks for seq in log.replay(s).sequences.values())]
    view = ForkTreeView(log, request="b")
    view.seek(swapped[0])
    assert "stroke-dasharray=\"3 2\"" in view.svg()
    assert "host block" in view.svg()
    log = recorded(request("a", 6, max_tokens=5, n=2), num_blocks=32, block_size=4, reservation="max")
    view = ForkTreeView(log)
    view.seek(2)
    assert "instead of" not in view.plain(), "runs share nothing"
    ET.fromstring(view.svg())


def test_live():
    engine = FakeEngine(30, 16, 64)
    view = ForkTreeView.of(engine)
    engine.queue(engine.prepare("x", list(range(23)), SamplingParams(max_tokens=6, n=4, ignore_eos=True)))
    view.step()
    view.step()
    assert "5 blocks instead of 8" in view.plain()
    assert "image/svg+xml" in view._repr_mimebundle_()
    view.close()
    assert not engine._listeners


@given(st.dictionaries(st.integers(0, 30), st.lists(st.integers(0, 3), max_size=7), max_size=8), st.integers(1, 8))
def test_the_layout_of_any_tree(branches, most):
    """Paths whose blocks tell their whole past (as real ones do) are drawn once where they agree, in rows without holes, and nothing is lost."""
    names: dict[tuple[int, ...], int] = {}
    paths = {key: [names.setdefault(tuple(steps[: i + 1]), len(names)) for i in range(len(steps))] for key, steps in branches.items()}
    tree = lay_out(paths, most)
    assert sorted(tree.order) == sorted(paths)
    assert sum(max(1, left_out) for _, left_out in tree.columns) == max((len(path) for path in paths.values()), default=0)
    for cell in tree.cells:
        assert list(cell.rows) == list(range(cell.rows[0], cell.rows[-1] + 1)), "whoever shares a block stands together"
        assert all(paths[tree.order[row]][cell.logical] == cell.block for row in cell.rows)
    drawn = {logical for logical, left_out in tree.columns if not left_out}
    shown = {(cell.logical, cell.block) for cell in tree.cells}
    assert shown == {(i, block) for path in paths.values() for i, block in enumerate(path) if i in drawn}
    assert len(tree.cells) == len(shown)
    for a, b in tree.edges:
        assert set(tree.cells[b].rows) <= set(tree.cells[a].rows)
    roots = [cell for cell in tree.cells if cell.column == 0]
    assert len(tree.edges) == len(tree.cells) - len(roots)
    for key, end in zip(tree.order, tree.ends, strict=True):
        assert (end is None) == (not paths[key])
