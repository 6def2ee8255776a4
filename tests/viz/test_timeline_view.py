"""TimelineView and the history behind it: what each request did in every step, on examples that one can do by hand."""
import json
import xml.etree.ElementTree as ET

import pytest
from driving import make, request, step

from paged_edu.core import events as ev
from paged_edu.trace import EventLog, TraceState, history
from paged_edu.viz import TimelineView, save_html
from paged_edu.viz import view as views
from paged_edu.viz.fake_engine import FakeEngine, trace24
from paged_edu.viz.timeline_svg import MOST_LANES, Window, told


@pytest.fixture(autouse=True)
def close_all():
    yield
    for view in list(views._open.values()):
        view.close()


def recorded(engine: FakeEngine, *arrivals: tuple[int, list[tuple[int, int]]]) -> EventLog:
    """``arrivals``: (after which step, requests)."""
    log = EventLog.of(engine.scheduler)
    engine.listen(log)
    for when, lengths in arrivals:
        while engine.scheduler.step < when:
            engine.step()
        engine.add(lengths)
    while engine.has_unfinished_requests():
        engine.step()
    return log


def spans(lane):
    return [(span.kind, span.first, span.last) for span in lane.spans]


def test_chunked_prefill_beside_decodes():
    """Lesson 05: a prompt of 1,000 tokens, three decodes, a budget of 256."""
    log = recorded(FakeEngine(100, 16, 1100, 256), (0, [(12, 20), (8, 30), (5, 14)]), (3, [(1000, 6)]))
    long = history(log)[3]
    assert long.arrived == 3
    assert long.spans[0].tokens == [253, 253, 253, 241]
    assert spans(long) == [("prefill", 4, 7), ("decode", 8, 12)]
    assert (long.ended, long.reason) == (12, "length")
    text = TimelineView(log).plain()
    assert "D    PPPPddddd length" in text
    svg = TimelineView(log).svg()
    assert svg.count(">253</text>") == 3
    assert svg.count(">241</text>") == 1
    assert "D (request 3), step 7: prefill, 241 tokens" in svg


@pytest.mark.parametrize(("mode", "gone", "back"), [("recompute", "preempted", "prefill"), ("swap", "swapped", "decode")])
def test_a_request_that_steps_back(mode, gone, back):
    """Lesson 08: C gives way in step 4 with 8 tokens and is back in step 11; recomputing takes 9 tokens, swapping none."""
    log = recorded(FakeEngine(8, 4, 32, num_cpu_blocks=20, preemption_mode=mode), (0, [(6, 10)] * 3))
    lane = history(log)[2]
    assert spans(lane)[:4] == [("prefill", 1, 1), ("decode", 2, 3), (gone, 4, 10), (back, 11, 11 if mode == "recompute" else 17)]
    assert lane.at(11) == (back, 9 if mode == "recompute" else 1)
    assert lane.ended == 17
    svg = TimelineView(log).svg()
    assert ("stroke-dasharray=\"4 3\"" in svg) == (mode == "swap")


def test_who_waits_who_is_refused_a_place_and_who_gives_up():
    engine = FakeEngine(4, 4, 16)
    log = EventLog.of(engine.scheduler)
    engine.listen(log)
    engine.add([(4, 5), (4, 5), (4, 5), (4, 5)])
    for _ in range(2):
        engine.step()
    engine.scheduler.abort("1")
    engine.step()
    lanes = history(log)
    assert spans(lanes[0])[0] == ("prefill", 1, 1)
    assert (lanes[1].ended, lanes[1].reason) == (2, "abort")
    assert lanes[0].at(3) == ("decode", 1)
    assert lanes[0].at(4) is None
    assert "ended: abort" in told(lanes[1], 2)


def test_branches_and_beams_are_remembered():
    from paged_edu.engine.fake_runner import FakeBeam

    scheduler, runner = make(num_blocks=30, block_size=4)
    log = EventLog.of(scheduler)
    scheduler.emit = scheduler.manager.emit = log
    scheduler.add(request("a", 6, max_tokens=3, n=4))
    scheduler.add(request("b", 6, max_tokens=5, n=3, beam=True))
    runner.beams["b"] = FakeBeam(3, 6, 5)
    while scheduler.has_unfinished():
        step(scheduler, runner)
    samples, beams = history(log)
    assert [branch.parent for branch in samples.branches] == [None, 0, 0, 0]
    assert {(branch.ended, branch.reason, len(branch.output)) for branch in samples.branches} == {(3, "length", 3)}
    assert samples.at(2) == ("decode", 4)
    assert any(branch.reason == "pruned" for branch in beams.branches)
    assert beams.reason in ("stop", "length")
    assert all(branch.ended is not None for branch in beams.branches)


def test_an_interrupted_step_has_not_happened():
    scheduler, runner = make(num_blocks=8, block_size=4)
    log = EventLog.of(scheduler)
    scheduler.emit = scheduler.manager.emit = log
    scheduler.add(request("a", 5, max_tokens=4))
    step(scheduler, runner)
    scheduler.recover()                                     # between two steps: the first one has run
    step(scheduler, runner)
    scheduler.schedule()
    scheduler.recover()                                     # in the middle of the third
    while scheduler.has_unfinished():
        step(scheduler, runner)
    assert spans(history(log)[0]) == [("prefill", 1, 2), ("preempted", 3, 3), ("prefill", 4, 4), ("decode", 5, 5)]


def test_the_same_id_twice_is_two_lanes():
    engine = FakeEngine(8, 4, 32)
    log = EventLog.of(engine.scheduler)
    for event in (ev.RequestAdded("r", 0, (1, 2), 4), ev.SequenceFinished("r", 0, "abort", None), ev.RequestFinished("r"),
                  ev.RequestAdded("r", 1, (1, 2), 4)):
        log(event)
    assert [(lane.arrival, lane.ended) for lane in history(log)] == [(0, 0), (1, None)]
    ET.fromstring(TimelineView(log).svg())


def test_every_step_of_the_tour_can_be_drawn_and_the_figure_is_small():
    log = recorded(trace24().engine(), (0, []))
    view = TimelineView(log)
    for shown in (0, 1, 13, 60, 141):
        view.seek(shown)
        root = ET.fromstring(view.svg())
        assert root.get("aria-label").startswith(f"Timeline at step {shown}: ")
    assert "X preempted" in view.svg(log.replay(13))
    figure = view.figure()
    assert len(figure["frames"]) <= 60
    assert len(json.dumps(figure)) < 300_000
    assert figure["layout"]["showlegend"]
    assert [trace["name"] for trace in figure["data"][:-1]] == ["waiting", "prefill", "decode", "preempted"]
    assert [key for trace in figure["frames"][3]["data"] for key in trace if key != "type"] == ["x"], "only the line moves"
    ET.fromstring(TimelineView(EventLog(TraceState(4, 4))).svg())


def test_a_thousand_requests_and_steps_fit():
    engine = FakeEngine(300, 16, 64, 512)
    log = recorded(engine, (0, [(1 + i % 40, 1 + i % 23) for i in range(1000)]))
    view = TimelineView(log)
    lanes = history(log)
    for shown in (1, log.last_step // 2, log.last_step):
        view.seek(shown)
        svg = view.svg()
        ET.fromstring(svg)
        assert len(svg) < 600_000
        window = Window.of(lanes, 1, log.last_step, shown, 100, 600)
        assert len(window.lanes) == MOST_LANES
        assert window.first <= shown <= window.last
        assert any(lane.at(shown) for lane in window.lanes)
    assert len(json.dumps(view.figure())) < 300_000
    assert len(Window.of(lanes[:3], 1, 10_000, 9_999, 100, 600).lanes) == 3
    assert Window.of(lanes[:3], 1, 10_000, 9_999, 100, 600).last == 10_000
    assert Window.of(lanes[:3], 1, 10_000, 5_000, 100, 600).first <= 5_000


def test_live_saved_and_closed(tmp_path):
    engine = FakeEngine(8, 4, 32)
    view = TimelineView.of(engine)
    engine.add([(6, 4)])
    assert "step 1:" in view.step()
    bundle = view._repr_mimebundle_()
    assert {"image/svg+xml", "application/vnd.plotly.v1+json", "text/plain"} <= set(bundle)
    while engine.has_unfinished_requests():
        view.step()
    log = EventLog(TraceState(8, 4))
    for event in view.log:
        log(event)
    log.save(tmp_path / "t.jsonl")
    assert history(EventLog.load(tmp_path / "t.jsonl")) == history(log)
    save_html(log, tmp_path / "t.html", ["timeline"])
    assert "Timeline at step 0" in (tmp_path / "t.html").read_text()
    view.close()
    assert not engine._listeners
