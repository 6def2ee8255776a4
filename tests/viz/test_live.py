"""What the kernel sends to the page: everything once, then only what is new; and what the page makes of it, lost messages included."""
import asyncio
import json
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from paged_edu.core.events import TokensSampled
from paged_edu.viz import BlockPoolView, EngineStepper
from paged_edu.viz import view as views
from paged_edu.viz.bundle import bundle
from paged_edu.viz.fake_engine import FakeEngine, trace24

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="no node on this machine to run the page's end outside a browser")
TRAITS = ("count", "shown", "speed", "live", "notice", "playing")


@pytest.fixture(autouse=True)
def close_all():
    yield
    for view in list(views._open.values()):
        view.close()


class Wire:
    """Writes down what a view's widget sends, in order, as the page would get it."""

    def __init__(self, view):
        view._repr_mimebundle_()
        self.widget = view._live.widget
        self.state = json.loads(json.dumps(self.widget.get_state()))
        self.messages = []
        self.widget.send = lambda content: self.messages.append(json.loads(json.dumps(content)))
        send_state = type(self.widget).send_state

        def traits(key=None):
            names = [key] if isinstance(key, str) else list(key or ())
            changed = {name: getattr(self.widget, name) for name in names if name in TRAITS}
            if changed:
                self.messages.append({"kind": "traits", "traits": changed})
            send_state(self.widget, key)

        self.widget.send_state = traits

    def events(self):
        return [event for message in self.messages if message["kind"] == "events" for event in message["events"]]


def page(*runs):
    """What the page shows at first and after each message, of each run."""
    asked = {"bundle": bundle(("pool", "table")), "runs": list(runs)}
    command = [NODE, str(Path(__file__).with_name("widget.mjs"))]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def small_engine():
    engine = FakeEngine(5, 4, 32)
    engine.add([(7, 9), (7, 9), (3, 9)])
    return engine


def test_everything_once_and_then_only_what_is_new():
    engine = small_engine()
    view = BlockPoolView.of(engine)
    view.step()
    wire = Wire(view)
    assert len(wire.state["data"]["tracks"][0]["events"]) == wire.state["count"] == view.log.num_events
    before = view.log.num_events
    view.step()
    first = next(message for message in wire.messages if message["kind"] == "events")
    assert (first["from"], len(first["events"])) == (before, view.log.num_events - before)
    assert first["events"][0][0] == "StepStarted"
    view.back()
    view.seek(2)
    assert sum(message["kind"] == "events" for message in wire.messages) == 1, "what the page has is not sent again"
    view.step()
    assert len(wire.events()) + before == view.log.num_events
    assert wire.widget.count == view.log.num_events


def test_what_a_cell_does_to_the_engine_is_sent_too():
    async def cell():
        engine = small_engine()
        view = BlockPoolView.of(engine)
        wire = Wire(view)
        for _ in range(5):
            engine.step()
        await asyncio.sleep(0.05)
        assert len(wire.events()) == view.log.num_events
        assert view.shown == 0
        thread = threading.Thread(target=engine.step)       # a server's engine runs in a thread of its own
        thread.start()
        thread.join()
        sent = len(wire.events())
        assert sent < view.log.num_events, "only the loop's thread sends"
        await asyncio.sleep(0.05)
        assert len(wire.events()) == view.log.num_events

    asyncio.run(cell())


def test_what_a_thread_of_its_own_samples_comes_whole_in_order_and_prints_nothing(capsys):
    """known fault B126: 20 tokens, while another cell writes to its output."""
    async def cells():
        engine = FakeEngine(16, 4, 64)
        engine.add([(5, 20)])
        view = BlockPoolView.of(engine)
        wire = Wire(view)

        def serve():
            while engine.has_unfinished_requests():
                engine.step()

        thread = threading.Thread(target=serve)
        thread.start()
        for _ in range(3):
            print("another cell")
            await asyncio.sleep(0.01)
        thread.join()
        await asyncio.sleep(0.05)
        recorded = [event for step in range(1, 21) for event in view.log.events(step) if isinstance(event, TokensSampled)]
        sent = [event for event in wire.events() if event[0] == "TokensSampled"]
        assert len(recorded) == len(sent) == 20
        assert len(wire.events()) == view.log.num_events
        assert view._live.widget.notice == ""

    asyncio.run(cells())
    assert capsys.readouterr() == ("another cell\n" * 3, "")


def test_a_long_cell_sends_now_and_then_and_not_at_every_step(monkeypatch):
    engine = trace24().engine()
    view = BlockPoolView.of(engine)
    wire = Wire(view)
    now = [0.0]
    monkeypatch.setattr("paged_edu.viz.live.time.monotonic", lambda: now[0])
    while engine.has_unfinished_requests():
        now[0] += 0.01
        engine.step()
    messages = [message for message in wire.messages if message["kind"] == "events"]
    assert 141 / 8 < len(messages) < 141 / 4
    view._live.flush()
    assert len(wire.events()) == view.log.num_events


@needs_node
def test_the_page_shows_what_the_view_shows():
    engine = small_engine()
    view = BlockPoolView.of(engine)
    view.step()
    wire = Wire(view)
    wanted = []
    acts = (view.step, view.step, view.back, view.home, view.end, view.step, lambda: view.seek(2), lambda: view.attempt(lambda: 1 / 0), view.step)
    for act in acts:
        act()
        wanted.append((len(wire.messages), view.shown, view.sentence, [b.ref_count for b in view.state.blocks()]))
    (answer,) = page({"state": wire.state, "messages": wire.messages})
    for count, shown, said, blocks in wanted:
        seen = answer["seen"][count]
        assert (seen["shown"], seen["said"], seen["blocks"][0]) == (shown, said, blocks)
    assert answer["sent"] == []
    assert answer["left"] == 0, "the page forgets a model that is gone"


@needs_node
def test_messages_that_are_lost_are_asked_for():
    engine = small_engine()
    view = BlockPoolView.of(engine)
    wire = Wire(view)
    for _ in range(4):
        view.step()
    steps = [i for i, message in enumerate(wire.messages) if message["kind"] == "events"]
    one, all_, last = page(
        {"state": wire.state, "messages": wire.messages, "lost": steps[:1]},
        {"state": wire.state, "messages": [m for m in wire.messages if m["kind"] == "traits"]},
        {"state": wire.state, "messages": wire.messages, "lost": steps[-1:]},
    )
    for answer in (one, all_, last):
        assert {"kind": "resend"} in answer["sent"]
        assert answer["seen"][-1]["last"] < 4
    view._live.resend()
    (answer,) = page({"state": wire.state, "messages": wire.messages, "lost": steps})
    assert (answer["seen"][-1]["shown"], answer["seen"][-1]["last"]) == (4, 4)
    assert answer["seen"][-1]["said"] == view.sentence


@needs_node
def test_a_page_that_opens_late_gets_it_all():
    engine = small_engine()
    view = BlockPoolView.of(engine)
    Wire(view)
    for _ in range(6):
        view.step()
    view.seek(3)
    late = json.loads(json.dumps(view._live.widget.get_state()))
    (answer,) = page({"state": late, "messages": []})
    assert (answer["seen"][0]["shown"], answer["seen"][0]["last"], answer["seen"][0]["said"]) == (3, 6, view.sentence)


@needs_node
def test_a_comparison_and_starting_over():
    trace = trace24()
    stepper = EngineStepper.compare({"contiguous": trace.engine("orca-max"), "paged": trace.engine()})
    wire = Wire(stepper)
    marks = []
    for _ in range(20):
        stepper.step()
    marks.append((len(wire.messages), stepper.shown, stepper.sentence))
    stepper.reset()
    marks.append((len(wire.messages), 0, stepper.sentence))
    stepper.add(30, 5, 2)
    stepper.step()
    marks.append((len(wire.messages), 1, stepper.sentence))
    (answer,) = page({"state": wire.state, "messages": wire.messages})
    for count, shown, said in marks:
        assert (answer["seen"][count]["shown"], answer["seen"][count]["said"]) == (shown, said)


def test_no_words_without_a_tokenizer_and_each_word_once():
    engine = small_engine()
    assert Wire(BlockPoolView.of(engine)).state["data"]["words"] == {}
    view = BlockPoolView.of(engine, name="words", decode=lambda ids: f"w{ids[0]}")
    wire = Wire(view)
    known = set(wire.state["data"]["words"])
    assert wire.state["data"]["words"]["7"] == "w7"
    for _ in range(5):
        view.step()
    told = [word for message in wire.messages if message["kind"] == "events" for word in message["words"]]
    assert len(told) == len(set(told))
    assert not set(told) & known
    assert {str(token) for seq in view.state.sequences.values() for token in seq.tokens} <= set(told) | known
