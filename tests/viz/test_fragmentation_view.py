"""FragmentationView: its parts are the manager's own report at every step, of every manager, alone and beside others."""
import json
import re
import xml.etree.ElementTree as ET

import pytest

from paged_edu.config import CONTIGUOUS
from paged_edu.core.contiguous import RESERVATIONS
from paged_edu.trace import EventLog, TraceState, memory_report
from paged_edu.viz import FragmentationView, Views
from paged_edu.viz import view as views
from paged_edu.viz.fake_engine import FakeEngine, trace24

TRACE = trace24()


@pytest.fixture(autouse=True)
def close_all():
    yield
    for view in list(views._open.values()):
        view.close()


def engine(reservation: str | None) -> FakeEngine:
    name = next((name for name, kind in CONTIGUOUS.items() if kind == reservation), "paged")
    return FakeEngine(TRACE.num_blocks, TRACE.block_size, TRACE.max_model_len, TRACE.max_num_batched_tokens, name)


def recorded(reservation: str | None, steps: int | None = None):
    one = engine(reservation)
    log = EventLog.of(one.scheduler)
    one.listen(log)
    one.add(TRACE.requests)
    reports = [one.scheduler.manager.report()]
    while one.has_unfinished_requests() and (steps is None or one.scheduler.step < steps):
        one.step()
        reports.append(one.scheduler.manager.report())
    return log, reports


@pytest.mark.parametrize("reservation", [None, *RESERVATIONS])
def test_the_parts_are_the_managers_report_at_every_step(reservation):
    """Random runs, with samples, beams, aborts and interruptions, are compared in tests/core/test_scheduler_machine.py."""
    log, reports = recorded(reservation)
    view = FragmentationView(log)
    for shown in range(log.last_step + 1):
        view.seek(shown)
        assert memory_report(view.state) == reports[shown]
    assert any(report.internal for report in reports)


def test_the_four_rows_of_lesson_02():
    """Step 31: Max holds 285 live tokens of 960, paged 889."""
    logs = {label: recorded(kind)[0] for label, kind in (("max", "max"), ("pow2", "pow2"), ("oracle", "oracle"), ("paged", None))}
    view = FragmentationView(logs)
    assert view.last_step == 300
    view.seek(31)
    assert "slots: token states 285, reservation 68, internal fragmentation 415, external or free 192" in view.plain()
    assert "slots: token states 889, reservation 59, internal fragmentation 12, external or free 0" in view.plain()
    svg = view.svg()
    root = ET.fromstring(svg)
    assert root.get("aria-label").startswith("Memory at step 31. max: 29.7 % of 960 slots hold tokens; slots: token states 285")
    for share in ("29.7 %", "43.2 %", "20.0 %", "92.6 %"):
        assert re.search(rf">[^<]*{re.escape(share)}</text>", svg), "percentages stand on the segments"
    assert "50 % = 480 slots" in svg
    assert [pane["track"] for pane in view.panes()] == [0, 1, 2, 3]
    assert [pane["options"]["rest"] for pane in view.panes()] == [False, False, False, True]
    figure = view.figure()
    assert len(figure["frames"]) <= 60
    assert len(json.dumps(figure)) < 300_000
    at_31 = next(frame for frame in figure["frames"] if frame["name"] == "31")
    assert [trace["x"][0] for trace in at_31["data"]] == [29.7, 7.1, 43.2, 20.0]
    view.seek(300)                                          # three of them ended long before
    assert "paged, step 141" in view.plain()


def test_several_engines_run_together():
    engines = {"contiguous": engine("max"), "paged": engine(None)}
    view = FragmentationView.of(engines)
    for one in engines.values():
        one.add(TRACE.requests)
    for _ in range(10):
        view.step()
    assert {one.scheduler.step for one in engines.values()} == {10}
    assert "contiguous, step 10: 6.1 %" in view.plain()
    assert "image/svg+xml" in view._repr_mimebundle_()
    view.close()
    assert [one._listeners for one in engines.values()] == [[], []]


def test_beside_other_views_and_what_is_refused():
    log, _ = recorded(None, steps=5)
    view = Views(log, ["pool", "fragmentation"])
    assert "hold tokens" in view.svg()
    assert "token states" in view.plain()
    with pytest.raises(ValueError, match="there is no log"):
        FragmentationView({})
    with pytest.raises(ValueError, match="no engine in common"):
        FragmentationView({"a": log}, engine(None))


def test_a_cache_and_an_empty_pool():
    one = FakeEngine(20, 4, 64, prefix_caching=True)
    log = EventLog.of(one.scheduler)
    one.listen(log)
    one.add([(17, 3)])
    while one.has_unfinished_requests():
        one.step()
    view = FragmentationView(log)
    assert "external or free 80 (16 of them in the prefix cache)" in view.plain()
    assert memory_report(view.state) == one.scheduler.manager.report()
    ET.fromstring(view.svg(TraceState(3, 1)))
