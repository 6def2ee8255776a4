"""Building an `AsyncEngine`: in the thread that will step it, with errors where it was asked for, and nothing left behind by an interrupt."""
import asyncio
import signal
import threading
import time

import pytest
from async_driving import fake
from test_engine import make

from paged_edu import AsyncEngine, SamplingParams
from paged_edu.engine import llm as llm_module
from paged_edu.engine.memory import MemoryPlan


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "paged-edu-engine"]


def test_the_thread_that_builds_is_the_one_that_steps(monkeypatch):
    """OpenMP has a team for each thread that computes: with two of them on few processors every operation is slower."""
    seen = []
    core = make()
    execute = core.runner.execute
    core.runner.execute = lambda *args: seen.append(threading.current_thread()) or execute(*args)
    fake(monkeypatch, core).close()

    def build(config):
        seen.append(threading.current_thread())
        return core, MemoryPlan(core.scheduler.manager.num_blocks, 1, 1, 1)

    monkeypatch.setattr(llm_module, "build_engine", build)
    engine = AsyncEngine("fake")

    async def main():
        async for _ in engine.generate([1, 2, 3], SamplingParams(max_tokens=4)):
            pass

    asyncio.run(main())
    engine.close()
    assert len(seen) > 2
    assert set(seen) == {engine._thread._thread}


def test_an_error_is_raised_where_it_was_asked_for(monkeypatch):
    before = len(threads())
    with pytest.raises(TypeError, match="no_such_option"):
        AsyncEngine("tiny-shakespeare", no_such_option=1)
    with pytest.raises(ValueError, match="block_size"):
        asyncio.run(AsyncEngine.create("tiny-shakespeare", block_size=0))
    while len(threads()) > before:
        time.sleep(0.01)


@pytest.mark.parametrize("late", [False, True])
def test_ctrl_c_while_it_loads_leaves_nothing(monkeypatch, late):
    before, released = len(threads()), threading.Event()

    def build(config):
        core = make()
        if late:                                            # the main thread learns of it when it has stopped waiting
            signal.raise_signal(signal.SIGINT)
        else:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.3)
        monkeypatch.setattr(llm_module.LLM, "close", lambda self: released.set())
        return core, MemoryPlan(core.scheduler.manager.num_blocks, 1, 1, 1)

    monkeypatch.setattr(llm_module, "build_engine", build)
    with pytest.raises(KeyboardInterrupt):
        AsyncEngine("fake")
    assert released.wait(20)
    while len(threads()) > before:
        time.sleep(0.01)
