"""EngineStepper: what its buttons do to an engine, two engines at once, and nothing left when it is closed."""
import asyncio
import gc
import json
import weakref

import pytest

from paged_edu import LLM
from paged_edu.core.block_table import num_blocks_for
from paged_edu.trace import TraceState
from paged_edu.viz import BlockPoolView, BlockTableView, EngineStepper
from paged_edu.viz import view as views
from paged_edu.viz.fake_engine import FakeEngine, trace24

VIEW, PLOTLY = "application/vnd.jupyter.widget-view+json", "application/vnd.plotly.v1+json"


@pytest.fixture(autouse=True)
def close_all():
    yield
    for view in list(views._open.values()):
        view.close()


def press(stepper: EngineStepper, kind: str, **content: object) -> str:
    """What the page sends; returns what its status line says then."""
    if stepper._live is None:
        stepper._repr_mimebundle_()
    stepper._live.widget._handle_custom_msg({"kind": kind, **content}, [])
    return stepper._live.widget.notice


def typed(stepper: EngineStepper, prompt: object = "9", max_tokens: object = "4", n: object = "1", form: str = "tokens") -> str:
    return press(stepper, "add", **{"as": form, "prompt": prompt, "max_tokens": max_tokens, "n": n})


def test_add_step_back_and_abort():
    engine = FakeEngine(8, 4, 32)
    stepper = EngineStepper(engine, ["pool", "table"])
    assert stepper.add(9, max_tokens=4) == "added 0"
    assert stepper.add([5, 6, 7], max_tokens=6, n=2) == "added 1"
    assert [r.num_prompt_tokens for r in stepper.state.requests.values()] == [9, 3]
    assert stepper.step() == "step 1: A and B admitted; 4 blocks taken; 12 tokens computed"
    stepper.step()
    assert len(stepper.state.sequences) == 3, "n=2 has branched"
    stepper.back()
    stepper.abort("added 0")
    assert stepper.shown == stepper.last_step == 2, "one sees what was done"
    assert list(stepper.state.requests) == ["added 1"]
    while stepper.live == "unfinished":
        stepper.step()
    assert stepper.state.num_finished == 2
    assert stepper.state.sequences == TraceState.of(engine.scheduler).sequences == {}
    with pytest.raises(ValueError, match="no unfinished request is called 'added 1'; there are none"):
        stepper.abort("added 1")


def test_the_same_by_the_page():
    stepper = EngineStepper(FakeEngine(8, 4, 32), "pool")
    assert stepper.controls() == {"text": False, "prompt": "ROMEO:", "max_tokens": 16, "reset": True}
    assert typed(stepper) == "A added: it waits for the next step"
    assert typed(stepper, "3", "5", "2") == "B added: it waits for the next step"
    assert stepper._live.widget.live == "unfinished"
    assert press(stepper, "step") == ""
    assert press(stepper, "abort", request_id="added 0") == "A aborted: its blocks are free"
    assert press(stepper, "abort", request_id="added 0").startswith("not aborted: no unfinished request is called 'added 0'; there are 'added 1'")
    assert stepper.engine.scheduler.step == 1


@pytest.mark.parametrize(("content", "said"), [
    ({"prompt": "abc"}, "the number of prompt tokens must be an integer, not 'abc'"),
    ({"prompt": ""}, "the number of prompt tokens must be an integer, not ''"),
    ({"prompt": "0"}, "a number of prompt tokens must be at least 1, not 0"),
    ({"prompt": "32"}, "the prompt has 32 tokens; max_model_len is 32"),
    ({"prompt": "10000000"}, "max_model_len is 32"),
    ({"max_tokens": "0"}, "max_tokens must be at least 1, not 0"),
    ({"max_tokens": "1e3"}, "max_tokens must be an integer, not '1e3'"),
    ({"max_tokens": None}, "max_tokens must be an integer"),
    ({"n": "-1"}, "n must be at least 1, not -1"),
    ({"n": "9999"}, "max_num_seqs is"),
    ({"prompt": "text", "form": "text"}, "this engine has no tokenizer"),
])
def test_what_is_typed_wrongly_is_said_and_changes_nothing(content, said):
    engine = FakeEngine(8, 4, 32)
    stepper = EngineStepper(engine)
    notice = typed(stepper, **content)
    assert notice.startswith("not added: ")
    assert said in notice
    assert "\n" not in notice
    assert not engine.scheduler.requests
    assert stepper.log.num_events == 0


def test_nothing_is_added_to_an_engine_whose_llm_is_closed():
    """A later cell has closed it: the step would fail, and the request would wait for ever."""
    with LLM("tiny-shakespeare", num_gpu_blocks_override=8, block_size=4, max_model_len=32) as llm:
        stepper = EngineStepper(llm, "pool")
        assert typed(stepper) == "A added: it waits for the next step"
        stepper.step()
    assert typed(stepper).startswith("not added: this engine's LLM is closed; run the cell")
    assert list(stepper.state.requests) == ["added 0"]
    stepper.back()
    assert stepper.shown == 0, "what was recorded can still be looked at"


def test_reset_begins_again_with_the_same_requests_and_blocks():
    engine = FakeEngine(8, 4, 32, prefix_caching=True)
    stepper = EngineStepper(engine, ["pool", "table"], fill=lambda e: e.add([(7, 5), (9, 9)]))
    first = [stepper.step() for _ in range(6)]
    blocks = [seq.blocks for seq in stepper.state.sequences.values()]
    stepper.add(3, 3)
    stepper.step()
    log = stepper.log
    press(stepper, "restart")
    assert stepper.log is not log
    assert (stepper.first_step, stepper.last_step, engine.scheduler.step) == (0, 0, 0)
    assert stepper.sentence == "step 0: the recording starts here; 0 requests running, 2 waiting"
    assert all(part.log is stepper.log for _, part in stepper.parts)
    assert len(engine._listeners) == 1
    assert not log._watchers
    assert [stepper.step() for _ in range(6)] == first
    assert [seq.blocks for seq in stepper.state.sequences.values()] == blocks
    assert [r.arrival for r in stepper.log.replay(0).requests.values()] == [0, 1]


def test_contiguous_beside_paged():
    """TRACE24: 3 run and 300 steps are needed, 24 run and 141 are enough."""
    trace = trace24()
    stepper = EngineStepper.compare({"contiguous": trace.engine("orca-max"), "paged": trace.engine()})
    stepper.step()
    assert [sum(bool(seq.blocks) for seq in track.log.replay(1).sequences.values()) for track in stepper.tracks] == [3, 24]
    assert stepper.sentence.splitlines()[0].startswith("contiguous: step 1: A, B and C admitted; 48 blocks taken")
    while stepper.live == "unfinished":
        stepper.step()
    assert [track.log.last_step for track in stepper.tracks] == [300, 141]
    assert stepper.last_step == 300
    assert stepper.sentence.endswith("paged: done after step 141")
    stepper.seek(13)
    assert [pane["title"] for pane in stepper.panes()] == ["contiguous", "paged"]
    assert [pane["track"] for pane in stepper.panes()] == [0, 1]
    assert "paged: step 13" in stepper.plain()
    assert stepper.svg().count("Block pool at step 13") >= 2
    figure = stepper.figure()
    assert len(figure["frames"]) <= 60
    assert len(json.dumps(figure)) < 300_000
    assert {trace["xaxis"] for trace in figure["data"]} == {"x", "x2"}
    last = figure["frames"][-1]
    assert (last["name"], len(last["data"])) == ("300", len(figure["data"]))
    assert [note["text"].split(": ")[0] for note in last["layout"]["annotations"]] == ["<b>contiguous</b>, step 300", "<b>paged</b>, step 141"]
    pytest.importorskip("plotly.graph_objects").Figure(figure)
    stepper.add(5, 3)
    assert all("added 0" in track.engine.scheduler.requests for track in stepper.tracks)


def test_one_engine_that_refuses_keeps_the_other_free():
    stepper = EngineStepper({"a": FakeEngine(8, 4, 32), "b": FakeEngine(2, 4, 32)})
    with pytest.raises(ValueError, match="needs 4 blocks of 4; the pool has 2"):
        stepper.add(15, 3)
    assert not any(track.engine.scheduler.requests for track in stepper.tracks)


def test_playing_runs_the_engine_in_a_task():
    async def play():
        stepper = EngineStepper(FakeEngine(8, 4, 32), speed=10)
        stepper.speed = 500
        typed(stepper, "7", "6")
        press(stepper, "play")
        for _ in range(300):
            await asyncio.sleep(0.01)
            if not stepper.playing:
                break
        assert stepper.state.num_finished == 1
        assert stepper._live.widget.notice == "nothing left to run: no request is unfinished"

    asyncio.run(play())


def test_20_runs_of_a_cell_leave_one_widget_one_listener_and_no_engine():
    from ipywidgets.widgets import widget as registry

    gc.collect()
    before = len(registry._instances)
    engines, refs = [], []
    keep = FakeEngine(8, 4, 32)
    for _ in range(20):
        engine = FakeEngine(8, 4, 32)
        stepper = EngineStepper.compare({"kept": keep, "new": engine}, ["pool", "table"])
        typed(stepper)
        press(stepper, "step")
        press(stepper, "restart")
        engines.append(weakref.ref(engine))
        refs.append(weakref.ref(stepper))
        assert len(keep._listeners) == 1
        assert len(registry._instances) == before + 2       # the widget and its layout
    assert len([name for name in views._open if "engine" in name]) == 5         # the stepper and its four parts
    stepper.close()
    stepper.close()
    assert len(registry._instances) == before
    assert len(keep._listeners) == 0
    del stepper, engine
    gc.collect()
    assert [ref for ref in engines + refs if ref() is not None] == []
    assert views._open == {}


def test_parts_by_name_class_and_made_already():
    engine = FakeEngine(8, 4, 32)
    stepper = EngineStepper(engine, ["pool", BlockTableView])
    assert [type(part) for _, part in stepper.parts] == [BlockPoolView, BlockTableView]
    bundle = stepper._repr_mimebundle_()
    assert set(bundle) == {VIEW, PLOTLY, "image/svg+xml", "text/plain"}
    assert stepper._live.widget._esm.count("const $pool = ") == 1


@pytest.mark.parametrize(("views", "error", "message"), [
    (["what"], ValueError, "no view is called 'what'; there are .*pool, .*table"), ([], ValueError, "views is empty"), ([3], TypeError, "not 3"),
    ([EngineStepper], TypeError, "a view is a name"),
])
def test_bad_views_are_refused_and_leave_no_listener(views, error, message):
    engine = FakeEngine(8, 4, 32)
    with pytest.raises(error, match=message):
        EngineStepper(engine, views)
    assert len(engine._listeners) == 0


def test_bad_engines_are_refused():
    with pytest.raises(ValueError, match="there is no engine"):
        EngineStepper({})
    with pytest.raises(TypeError, match="engines by their labels"):
        EngineStepper.compare([FakeEngine(8, 4, 32)])
    with pytest.raises(ValueError, match="max_tokens"):
        EngineStepper(FakeEngine(8, 4, 32), max_tokens=0)


def test_blocks_of_an_added_request_are_those_of_its_tokens():
    stepper = EngineStepper(FakeEngine(20, 4, 64))
    for tokens in (1, 4, 5, 17):
        stepper.add(tokens, 2)
    stepper.step()
    assert [len(seq.blocks) for seq in stepper.state.sequences.values()] == [num_blocks_for(tokens, 4) for tokens in (1, 4, 5, 17)]
