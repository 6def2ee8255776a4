"""PrefixCacheView: what a newcomer found, who shares it, what is overwritten first; on examples that one can do by hand."""
import json
import xml.etree.ElementTree as ET

import pytest
from driving import make, step

from paged_edu.core.sequence import Request
from paged_edu.trace import EventLog, TraceState
from paged_edu.viz import PrefixCacheView
from paged_edu.viz import view as views
from paged_edu.viz.fake_engine import FakeEngine
from paged_edu.viz.prefix_svg import lost, sections


@pytest.fixture(autouse=True)
def close_all():
    yield
    for view in list(views._open.values()):
        view.close()


class Chat:
    """A scheduler with a prefix cache, its log, and requests one after the other."""

    def __init__(self, num_blocks: int = 30, block_size: int = 16) -> None:
        self.scheduler, self.runner = make(num_blocks, block_size, max_model_len=256, budget=256, prefix_caching=True)
        self.log = EventLog.of(self.scheduler)
        self.scheduler.emit = self.scheduler.manager.emit = self.log

    def ask(self, name: str, prompt, out: int = 4, salt: str | None = None, run: bool = True) -> None:
        self.scheduler.add(Request(name, tuple(prompt), max_tokens=out, cache_salt=salt))
        while run and self.scheduler.has_unfinished():
            step(self.scheduler, self.runner)


SYSTEM = list(range(100))


def test_a_system_prompt_of_100_tokens():
    """Lesson 07: the second request reuses 6 blocks, 96 tokens; with another salt nothing."""
    chat = Chat()
    chat.ask("a", SYSTEM + [200] * 40)
    chat.ask("b", SYSTEM + [300] * 40)
    chat.ask("c", SYSTEM + [200] * 40, salt="tenant 2")
    view = PrefixCacheView(chat.log)
    view.seek(5)
    assert "step 5: B found 96 of its 140 tokens in the cache (6 blocks)" in view.plain()
    assert "[0 1 2 3 4 5 6 7] 128 tokens, used by nobody" in view.plain()
    assert "[0 1 2 3 4 5 9 10] 128 tokens, used by B" in view.plain()
    view.end()
    text = view.plain()
    assert "C found none of its 140 tokens" in text
    assert text.count("salt 'tenant 2'") == 1
    svg = view.svg()
    ET.fromstring(svg)
    assert "salt &#x27;tenant 2&#x27;: found by" in svg or "salt 'tenant 2': found by" in svg
    assert svg.count("no salt") == 1


def test_the_last_block_of_a_text_goes_first():
    """Lesson 07.b: of a chain of three, one eviction leaves two hits."""
    chat = Chat(num_blocks=5, block_size=4)
    chat.ask("a", range(12), out=1)
    view = PrefixCacheView(chat.log)
    assert "[0 1 2] 12 tokens" in view.plain()
    assert view.plain().endswith("next to be taken: 2 free blocks, then the one not used for the longest time: 2 1 0")
    view.close()
    chat.ask("b", [90] * 9, out=1)                          # three blocks: two free ones, and one is overwritten
    view = PrefixCacheView(chat.log)
    assert "overwritten in this step: block 2" in view.plain()
    assert "[0 1] 8 tokens, used by nobody" in view.plain()
    view.close()
    chat.ask("c", range(13), out=1)
    view = PrefixCacheView(chat.log)
    assert "C found 8 of its 13 tokens in the cache (2 blocks)" in view.plain()


def test_blocks_whose_beginning_is_gone_are_told_apart():
    """The index is emptied under a running request: what it enters afterwards hangs on an entry that nobody can find."""
    chat = Chat(num_blocks=8, block_size=2)
    chat.ask("a", range(4), out=6, run=False)
    for _ in range(2):
        step(chat.scheduler, chat.runner)
    chat.scheduler.manager.reset_prefix_cache()
    for _ in range(3):
        step(chat.scheduler, chat.runner)
    state = chat.log.state
    assert lost(state)
    assert not sections(state)
    view = PrefixCacheView(chat.log)
    assert "kept but out of reach" in view.plain()
    ET.fromstring(view.svg())


def test_every_step_is_drawn_and_the_figure_is_small():
    chat = Chat(num_blocks=24)
    for i in range(12):
        chat.ask(f"r{i}", SYSTEM[: 20 * (1 + i % 5)] + [200 + 7 * i] * 40, out=20, salt=None if i % 4 else "s<&>", run=i % 3 == 2)
    view = PrefixCacheView(chat.log, decode=lambda ids: f"<{len(ids)}>")
    for shown in range(chat.log.last_step + 1):
        view.seek(shown)
        ET.fromstring(view.svg())
        view.plain()
    figure = view.figure()
    assert len(figure["frames"]) <= 60
    assert len(json.dumps(figure)) < 300_000


def test_an_empty_cache_a_thousand_blocks_and_live():
    view = PrefixCacheView(EventLog(TraceState(4, 4)))
    assert "the prefix cache is empty" in view.plain()
    ET.fromstring(view.svg())
    view.figure()
    view.close()
    engine = FakeEngine(1000, 4, 256, prefix_caching=True)
    view = PrefixCacheView.of(engine)
    engine.add([(1 + 5 * i % 97, 9) for i in range(60)])
    while engine.has_unfinished_requests():
        view.step()
    svg = view.svg()
    ET.fromstring(svg)
    assert "more texts" in svg
    assert len(svg) < 200_000
    assert "image/svg+xml" in view._repr_mimebundle_()
    view.close()
    assert not engine._listeners
