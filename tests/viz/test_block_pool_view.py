"""BlockPoolView: forwards through the engine, backwards through the log, and gone when it is closed."""
import asyncio
import gc
import subprocess
import sys
import weakref
import xml.etree.ElementTree as ET

import pytest
from viz_states import run

from paged_edu.core.events import StepStarted
from paged_edu.trace import EventLog, TraceState
from paged_edu.viz import BlockPoolView, pool_svg
from paged_edu.viz import view as views
from paged_edu.viz.fake_engine import FakeEngine, trace24

VIEW = "application/vnd.jupyter.widget-view+json"
PLOTLY = "application/vnd.plotly.v1+json"


def press(view: BlockPoolView, kind: str, **content: object) -> None:
    """What the page sends when somebody presses a button."""
    view._live.widget._handle_custom_msg({"kind": kind, **content}, [])


@pytest.fixture(autouse=True)
def close_all():
    yield
    for view in list(views._open.values()):
        view.close()


def small_engine() -> FakeEngine:
    engine = FakeEngine(5, 4, 32)
    engine.add([(7, 9), (7, 9), (3, 9)])
    return engine


def test_the_picture_is_the_engine_at_every_step_forwards_and_backwards():
    engine = trace24().engine()
    view = BlockPoolView.of(engine)
    live = [TraceState.of(engine.scheduler)]
    while engine.has_unfinished_requests():
        view.step()
        live.append(TraceState.of(engine.scheduler))
        shown = view.state
        assert (shown.requests, shown.sequences) == (live[-1].requests, live[-1].sequences)
    assert view.shown == engine.scheduler.step == 141
    for step in range(140, -1, -1):
        view.back()
        assert view.shown == step
        assert (view.state.requests, view.state.sequences) == (live[step].requests, live[step].sequences)
    assert engine.scheduler.step == 141


def test_step_replays_what_is_recorded_before_it_runs_the_engine():
    engine = small_engine()
    view = BlockPoolView.of(engine)
    sentences = [view.step() for _ in range(4)]
    assert view.home().startswith("step 0:")
    assert [view.step() for _ in range(4)] == sentences
    assert engine.scheduler.step == 4
    view.step()
    assert engine.scheduler.step == 5
    view.home()
    assert view.end().startswith("step 5:")
    view.home()
    view.back()                                             # no step before the first one
    assert view.shown == 0


def test_steps_taken_elsewhere_are_recorded_too():
    engine = small_engine()
    view = BlockPoolView.of(engine)
    for _ in range(3):
        engine.step()
    assert view.shown == 0
    assert view.step().startswith("step 1:")
    assert engine.scheduler.step == 3


def test_the_end_of_the_work_is_said():
    engine = FakeEngine(5, 4, 32)
    view = BlockPoolView.of(engine)
    assert "no request is unfinished" in view.step()
    assert engine.scheduler.step == 0


def test_a_recording_without_an_engine():
    _, log = run(5, 4, [(7, 9)], 4, max_model_len=32)
    view = BlockPoolView(log)
    assert view.shown == 4
    assert view.step() == "this is the newest step"
    assert view.back().startswith("step 3:")


def test_an_engine_that_fails_stops_the_player_and_is_quoted():
    engine = small_engine()
    view = BlockPoolView.of(engine)

    def fail():
        raise MemoryError("out of <memory>")

    engine.step = fail
    view._repr_mimebundle_()
    press(view, "step")
    assert view.sentence == view._live.widget.notice == "stopped, MemoryError: out of <memory>"
    with pytest.raises(MemoryError):
        view.step()


def test_what_the_page_asks_for_and_where_it_is():
    engine = small_engine()
    view = BlockPoolView.of(engine)
    bundle = view._repr_mimebundle_()
    assert set(bundle) == {VIEW, PLOTLY, "image/svg+xml", "text/plain"}
    ET.fromstring(bundle["image/svg+xml"])
    widget = view._live.widget
    assert bundle[VIEW]["model_id"] == widget.model_id
    for _ in range(3):
        press(view, "step")
    assert (widget.shown, widget.live, widget.notice) == (3, "unfinished", "")
    assert view.sentence == "step 3: C and B preempted, 3 blocks freed; 1 block taken; 1 token computed"
    view.back()
    assert widget.shown == view.shown == 2
    widget.set_state({"shown": 1})                          # the page's slider
    assert view.shown == 1
    widget.set_state({"shown": 99})
    assert view.shown == 3
    widget.set_state({"speed": 7})
    assert view.speed == 7
    press(view, "nonsense")
    press(view, "pause")
    assert engine.scheduler.step == 3


def test_playing_goes_on_by_itself_and_stops_at_the_end():
    async def play():
        engine = small_engine()
        view = BlockPoolView.of(engine, speed=10)
        view._repr_mimebundle_()
        view.speed = 500
        press(view, "play")
        assert view.playing
        assert view._live.widget.playing
        for _ in range(300):
            await asyncio.sleep(0.01)
            if not view.playing:
                break
        assert not view.playing
        assert not engine.has_unfinished_requests()
        assert not view._live.widget.playing
        assert view.sentence == view._live.widget.notice == "nothing left to run: no request is unfinished"
        assert view.shown == engine.scheduler.step == 19

    asyncio.run(play())


def test_pause_and_close_stop_the_player():
    async def play(stop: str):
        engine = small_engine()
        view = BlockPoolView.of(engine, speed=10)
        view.speed = 100
        view.play()
        view.play()                                         # twice is once
        await asyncio.sleep(0.015)
        getattr(view, stop)()
        step = engine.scheduler.step
        await asyncio.sleep(0.05)
        assert engine.scheduler.step == step > 0
        assert not view.playing

    for stop in ("pause", "toggle", "close", "back", "home"):
        asyncio.run(play(stop))


def test_without_an_event_loop_play_says_what_to_do():
    view = BlockPoolView.of(small_engine())
    view.play()
    assert "call step() instead" in view.sentence
    assert not view.playing


def test_a_second_view_of_the_same_name_closes_the_first():
    engine = small_engine()
    first = BlockPoolView.of(engine, name="x")
    other = BlockPoolView.of(engine, name="y")
    second = BlockPoolView.of(engine, name="x")
    assert first.log is None
    assert repr(first) == "BlockPoolView 'x', closed"
    assert first._repr_mimebundle_() == {"text/plain": repr(first)}
    with pytest.raises(RuntimeError, match="is closed"):
        first.step()
    assert len(engine._listeners) == 2
    assert second.step() == other.step()
    first.close()
    assert views._open["x"] is second


def test_closing_50_views_leaves_no_widget_no_listener_and_no_reference():
    """known fault B123."""
    from ipywidgets.widgets import widget as registry

    engine = small_engine()
    view = BlockPoolView.of(engine)
    view._repr_mimebundle_()
    view.close()
    gc.collect()
    before = len(registry._instances)
    kept = []
    for _ in range(50):
        view = BlockPoolView.of(engine)
        view._repr_mimebundle_()
        press(view, "step")
        kept.append(weakref.ref(view))
        view.close()
        view.close()
    assert len(registry._instances) == before
    assert len(engine._listeners) == 0
    dead_engine = weakref.ref(engine)
    del view, engine
    gc.collect()
    assert [ref for ref in kept if ref() is not None] == []
    assert dead_engine() is None


@pytest.mark.parametrize("missing", ["ipywidgets", "anywidget"])
def test_a_still_picture_where_there_are_no_widgets(monkeypatch, missing):
    """known fault B125."""
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "paged_edu.viz.live", raising=False)
    view = BlockPoolView.of(small_engine())
    view.step()
    bundle = view._repr_mimebundle_()
    assert set(bundle) == {"text/html", "image/svg+xml", "text/plain"}
    assert "pip install 'paged-edu[lab]'" in bundle["text/html"]
    assert "A A B B C" in bundle["text/plain"]
    view.close()


def test_importing_needs_no_jupyter():
    code = (
        "import sys, paged_edu, paged_edu.viz, paged_edu.viz.picture, paged_edu.lab; "
        "print([m for m in ('ipywidgets', 'IPython', 'plotly', 'anywidget', 'torch', 'jupyterlab') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_bad_options_are_refused():
    engine = small_engine()
    for speed in (0, -1, 11, float("nan"), "2", True, None):
        with pytest.raises(ValueError, match="speed"):
            BlockPoolView.of(engine, speed=speed)
    for columns in (0, -3, 2.5, "8", True):
        with pytest.raises(ValueError, match="columns"):
            BlockPoolView.of(engine, columns=columns)
        with pytest.raises(ValueError, match="columns"):
            pool_svg(TraceState(4, 4), columns=columns)
    assert len(engine._listeners) == 0


def test_a_log_that_does_not_listen_is_an_error_and_not_a_blind_step():
    engine = small_engine()
    view = BlockPoolView(EventLog.of(engine.scheduler), engine)
    with pytest.raises(RuntimeError, match=r"ends at step 0 .* at step 1: .* does not listen"):
        view.step()
    for _ in range(3):
        with pytest.raises(RuntimeError, match="does not listen"):
            view.step()
    assert engine.scheduler.step == 1                       # found out at the first step; after that nothing runs
    view.attempt(view.step)
    assert view.sentence.startswith("stopped, RuntimeError: the log ends at step 0")


def test_a_log_that_stopped_listening_is_noticed_before_the_next_step():
    engine = small_engine()
    log = EventLog.of(engine.scheduler)
    unlisten = engine.listen(log)
    view = BlockPoolView(log, engine)
    view.step()
    unlisten()
    engine.step()
    with pytest.raises(RuntimeError, match=r"ends at step 1 .* at step 2"):
        view.step()
    assert engine.scheduler.step == 2


def test_outputs_that_wait_in_the_engine_are_no_missed_step():
    """`has_unfinished_requests` is also true of outputs that were kept: returning them makes no step."""
    engine = small_engine()
    view = BlockPoolView.of(engine)
    engine.step = lambda: None
    assert view.step().startswith("step 0:")


def test_a_log_that_has_forgotten_its_first_steps():
    engine = FakeEngine(8, 4, 32)
    log = EventLog(TraceState.of(engine.scheduler), max_steps=4, snapshot_every=2)
    engine.listen(log)
    engine.add([(3, 20)])
    view = BlockPoolView(log, engine)
    for _ in range(15):
        view.step()
    assert log.first_step > 5
    view.home()
    assert view.shown == log.first_step
    view.seek(0)
    assert view.shown == log.first_step
    assert isinstance(log.events(view.shown)[0], StepStarted)
