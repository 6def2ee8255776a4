"""AsyncEngine for servers: outputs at a pace, requests that are queued before they are read, and watchers of steps."""
import asyncio
import math
from types import SimpleNamespace

import pytest
from async_driving import answer, read, serving, settled
from test_engine import make

from paged_edu import SamplingParams
from paged_edu.engine import engine_thread

PARAMS = SamplingParams(max_tokens=12)


def tokens(output):
    return list(output.outputs[0].token_ids)


@pytest.mark.parametrize(("interval", "lengths"), [(0, range(1, 13)), (1, range(1, 13)), (4, [1, 5, 9, 12]), (100, [1, 12]), (math.inf, [12])])
def test_a_pace(monkeypatch, interval, lengths):
    with serving(monkeypatch) as (engine, core, steps):
        monkeypatch.setattr(engine_thread, "time", SimpleNamespace(monotonic=lambda: steps.steps))
        made = []
        monkeypatch.setattr(core, "_output", lambda record, make=core._output: made.append(record) or make(record))

        async def main():
            outputs = []
            async for output in engine.generate([1, 2, 3], PARAMS, interval=interval):
                outputs.append(output)
            return outputs

        outputs = asyncio.run(main())
    assert len(made) == len(lengths)                        # no text is made that nobody waits for
    assert tokens(outputs[-1]) == answer([1, 2, 3], 12)
    assert {len(tokens(output)) for output in outputs} <= set(lengths)


def test_the_pace_of_one_is_not_the_others(monkeypatch):
    with serving(monkeypatch, num_blocks=64) as (engine, _, _):
        async def main():
            return await asyncio.gather(read(engine.generate([1], PARAMS, interval=math.inf)), read(engine.generate([2], PARAMS)))

        slow, fast = asyncio.run(main())
    assert len(slow) == 1
    assert (tokens(slow[-1]), tokens(fast[-1])) == (answer([1], 12), answer([2], 12))
    with pytest.raises(ValueError, match="interval must be at least 0 seconds, not nan"):
        engine.generate([1], PARAMS, interval=math.nan)


def test_start_queues_before_anybody_reads_and_drop_ends_it(monkeypatch):
    with serving(monkeypatch) as (engine, core, steps):
        async def main():
            steps.hold()
            first, second = engine.generate([1, 2], PARAMS, request_id="a"), engine.generate([3], PARAMS)
            for stream in (first, first, second):           # a second call does nothing
                await stream.start()
            await steps.reached()
            assert engine.num_unfinished_requests == 2
            assert first.request_id in core.scheduler.requests
            for params, error in ((SamplingParams(max_tokens=1, stop="x"), "no tokenizer"), (None, "in use")):
                with pytest.raises(ValueError, match=error):
                    await engine.generate([1], params, request_id=None if params else "a").start()
            with pytest.raises(ValueError, match="in use"):
                await engine.generate([1], PARAMS, request_id="a").start()
            second.drop()
            steps.release()
            outputs = await read(first)
            await settled(engine)
            return outputs[-1]

        assert tokens(asyncio.run(main())) == answer([1, 2], 12)


def test_watchers_of_steps_see_each_plan_and_hurt_nobody(monkeypatch, caplog):
    with serving(monkeypatch) as (engine, core, _):
        seen = []

        def broken(core, plan):
            raise RuntimeError("a watcher's own mistake")

        end = engine.watch_steps(lambda core, plan: seen.append((core, plan.step)))
        engine.watch_steps(broken)
        last = asyncio.run(read(engine.generate([1, 2, 3], PARAMS)))[-1]
        assert tokens(last) == answer([1, 2, 3], 12)
        assert [step for _, step in seen] == list(range(1, 13))
        assert {id(its) for its, _ in seen} == {id(core)}
        assert caplog.text.count("no longer watches") == 1
        end()
        end()
        asyncio.run(read(engine.generate([1], PARAMS)))
        assert len(seen) == 12
        assert engine.num_running_requests == 0
        assert (engine.max_model_len, engine.vocab_size) == (64, 500)


def test_a_conversation_without_a_tokenizer(monkeypatch):
    with serving(monkeypatch, make()) as (engine, _, _), pytest.raises(ValueError, match="no tokenizer"):
        engine.render_chat([{"role": "user", "content": "x"}])
