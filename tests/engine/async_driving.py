"""An `AsyncEngine` over the fake runner whose steps a test can hold, slow down and break, and what must be left when everybody has gone."""
from __future__ import annotations

import asyncio
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

from test_engine import VOCAB, empty, make

from paged_edu import AsyncEngine, SamplingParams
from paged_edu.engine import llm as llm_module
from paged_edu.engine.fake_runner import expected_tokens
from paged_edu.engine.memory import MemoryPlan

LONG = SamplingParams(max_tokens=50)


class Held:
    """The runner of ``engine``: ``hold`` stops the next step in its middle until ``release``; ``errors`` are for a step each (None: it works)."""

    def __init__(self, engine):
        self.engine, self.execute = engine, engine.runner.execute
        self.free, self.inside, self.errors, self.steps, self.pause = threading.Event(), threading.Event(), [], 0, 0.0
        self.free.set()
        engine.runner.execute = self

    def hold(self):
        self.inside.clear()
        self.free.clear()

    def release(self):
        self.free.set()

    async def reached(self):
        """Until a step is held. Looks from the loop, so that it stays free."""
        while not self.inside.is_set():
            await asyncio.sleep(0.001)

    def __call__(self, *args):
        self.steps += 1
        patience = time.monotonic() + 20
        while not self.free.wait(0.01):
            self.inside.set()
            assert time.monotonic() < patience, "nobody released the step: was the event loop blocked?"
        if self.pause:
            time.sleep(self.pause)
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        return self.execute(*args)


def fake(monkeypatch, core):
    """An `AsyncEngine` around ``core``."""
    monkeypatch.setattr(llm_module, "gc", SimpleNamespace(collect=int))        # half a second each time
    monkeypatch.setattr(llm_module, "build_engine", lambda config: (core, MemoryPlan(core.scheduler.manager.num_blocks, 1, 1, 1)))
    return AsyncEngine("fake")


@contextmanager
def serving(monkeypatch, core=None, **options):
    """``(AsyncEngine, Engine, Held)``, closed at the end; then nothing may be left: no block, no id, no thread."""
    core = core if core is not None else make(**options)
    engine, held = fake(monkeypatch, core), Held(core)
    try:
        yield engine, core, held
        held.release()
        if not engine._thread._closed:
            asyncio.run(settled(engine))
        check_nothing_left(engine, core)
    finally:
        held.release()
        engine.close()
    assert not engine._thread._thread.is_alive()


async def settled(engine):
    """Everything that was asked for has been done."""
    await asyncio.sleep(0)
    await engine.between_steps(lambda core: None)


def check_nothing_left(engine, core):
    assert empty(core)
    assert engine.num_unfinished_requests == 0
    assert not engine._thread._waiting
    assert not engine._thread._ids
    core.scheduler.manager.check()


async def read(stream):
    """All outputs of a stream."""
    return [output async for output in stream]


async def tokens_of(stream):
    last = None
    async for output in stream:
        last = output
    assert last is not None
    assert last.finished
    return list(last.outputs[0].token_ids)


def answer(prompt, n):
    return expected_tokens(prompt, n, VOCAB)
