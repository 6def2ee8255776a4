"""AsyncEngine: the tokens of `LLM.generate` for many at once, merged deltas, ids, abort, errors in a step, draining, closing, loops."""
import asyncio
import gc
import threading
import time
import weakref
from itertools import pairwise

import psutil
import pytest
from async_driving import LONG, check_nothing_left, fake, read, serving, tokens_of
from async_driving import answer as expected
from test_engine import PARAMS, make
from test_stream_and_chat import TALK, TEMPLATE, greedy

from paged_edu import LLM, AsyncEngine, BeamSearchParams, RequestFailedError, SamplingParams, UnsupportedError
from paged_edu.core.events import RequestFinished
from paged_edu.sampling.sampler import BrokenLogitsError


@pytest.fixture
def served(monkeypatch):
    with serving(monkeypatch) as parts:
        yield parts


def test_64_at_once_in_a_tiny_pool_are_those_of_generate():
    prompts = [f"{name}:\n{word}" for name in ("ROMEO", "JULIET", "First Citizen", "KING") for word in "abcdefghijklmnop"]
    params = [SamplingParams(temperature=0.9, seed=i, max_tokens=6 + i % 9, n=1 + (i % 16 == 3)) for i in range(64)]
    options = {"num_gpu_blocks_override": 14, "block_size": 4}
    with LLM("tiny-shakespeare", **options) as llm:
        wanted = llm.generate(prompts, params, use_tqdm=False)

    async def main():
        engine = await AsyncEngine.create("tiny-shakespeare", **options)
        async with engine:
            async def client(i):
                texts = {}
                async for output in engine.generate(prompts[i], params[i]):
                    for done in output.outputs:
                        texts[done.index] = texts.get(done.index, "") + done.delta
                        assert texts[done.index] == done.text
                return output

            outputs = await asyncio.gather(*[client(i) for i in range(64)])
            assert (await engine.memory_report()).num_sequences == 0
        return outputs

    outputs = asyncio.run(main())
    assert [o.outputs for o in outputs] == [replaced(w, o) for w, o in zip(wanted, outputs)]
    assert sum(o.metrics.num_preemptions for o in outputs) > 0


def test_work_that_finds_nothing_left_does_not_hang(served):
    engine, _, _ = served

    async def main():
        with pytest.raises(RuntimeError, match="raised StopIteration") as raised:
            await asyncio.wait_for(engine.between_steps(lambda core: next(iter(core.scheduler.running))), 20)
        assert isinstance(raised.value.__cause__, StopIteration)

    asyncio.run(main())


def replaced(wanted, output):
    """The outputs of ``wanted`` with the deltas of ``output``: those depend on who read when."""
    from dataclasses import replace

    return tuple(replace(w, delta=o.delta) for w, o in zip(wanted.outputs, output.outputs))


def test_beams_and_chat():
    beams = BeamSearchParams(beam_width=3, max_tokens=8)

    async def main(engine):
        best = (await read(engine.beam_search("ROMEO:", beams)))[-1]
        chat = await read(engine.chat(TALK, greedy(12), chat_template=TEMPLATE))
        with pytest.raises(TypeError, match="BeamSearchParams are for beam_search"):
            await read(engine.generate("ROMEO:", beams))
        with pytest.raises(TypeError, match="params must be BeamSearchParams, not SamplingParams"):
            await read(engine.beam_search("ROMEO:", greedy(3)))
        with pytest.raises(ValueError, match="no chat template"):
            await read(engine.chat(TALK))
        with pytest.raises(UnsupportedError, match="tools are not served yet"):
            await read(engine.chat(TALK, tools=[{}]))
        with pytest.raises(ValueError, match="2 conversations"):
            await read(engine.chat([TALK, TALK], chat_template=TEMPLATE))
        return best, "".join(o.outputs[0].delta for o in chat)

    engine = AsyncEngine("tiny-shakespeare", num_gpu_blocks_override=24)
    best, chat = asyncio.run(main(engine))
    engine.close()
    with LLM("tiny-shakespeare", num_gpu_blocks_override=24) as llm:
        wanted = llm.beam_search("ROMEO:", beams, use_tqdm=False)[0].outputs
        assert [(o.text, o.cumulative_logprob, o.delta) for o in best.outputs] == [(o.text, o.cumulative_logprob, o.text) for o in wanted]
        assert chat == llm.chat(TALK, greedy(12), chat_template=TEMPLATE, use_tqdm=False)[0].outputs[0].text


@pytest.mark.parametrize("blocking", [False, True], ids=["a slow consumer", "a consumer that blocks the loop"])
def test_what_a_slow_consumer_has_not_read_is_merged(monkeypatch, blocking):
    from scripted import PROMPT, scripted
    from tiny_tokenizers import tiny

    core = scripted(tiny("byte-level"))
    text = "It was the nightingale, and not the lark. " * 3
    core.runner.scripts["a"] = core.tokenizer(text)["input_ids"]
    length = len(core.runner.scripts["a"])
    with serving(monkeypatch, core) as (engine, _, held):
        async def main():
            outputs = []
            async for output in engine.generate(PROMPT, SamplingParams(max_tokens=length), request_id="a"):
                outputs.append(output.outputs[0])
                steps = held.steps
                while held.steps < steps + 4 and engine.num_unfinished_requests:
                    time.sleep(0.001) if blocking else await asyncio.sleep(0.001)
            return outputs

        outputs = asyncio.run(main())
    assert "".join(o.delta for o in outputs) == outputs[-1].text == text
    assert len(outputs) < length / 2
    assert all(len(a.token_ids) < len(b.token_ids) for a, b in pairwise(outputs))


def test_the_loop_is_woken_once_a_step_and_not_again_while_it_is_busy(served):
    engine, _, held = served

    async def main():
        loop, calls = asyncio.get_running_loop(), []
        wake = loop.call_soon_threadsafe
        tasks = [asyncio.ensure_future(tokens_of(engine.generate([i + 1, 2], PARAMS))) for i in range(8)]
        await asyncio.sleep(0)
        loop.call_soon_threadsafe = lambda *args, **more: calls.append(args) or wake(*args, **more)
        time.sleep(0.3)                     # the loop is busy, the engine goes on
        while_busy, steps = len(calls), held.steps
        await asyncio.gather(*tasks)
        return while_busy, steps, len(calls)

    while_busy, steps, calls = asyncio.run(main())
    assert while_busy == 1
    assert steps > 1
    assert calls <= held.steps + 1


def test_a_consumer_that_never_waits_lets_the_loop_go_on(served):
    engine, _, held = served

    async def main():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        task, seen = asyncio.ensure_future(tick()), []
        stream = engine.generate([1, 2], SamplingParams(max_tokens=40))
        async for output in stream:
            seen.append(ticks)
            while stream._reader.output is None and not output.finished:    # the next output is there before it is asked for
                time.sleep(0.001)
        task.cancel()
        return seen

    held.pause = 0.004
    seen = asyncio.run(main())
    assert len(seen) > 10
    assert all(a < b for a, b in pairwise(seen))


def test_nothing_in_the_loop_waits_for_a_step(served):
    engine, _, held = served

    async def main():
        first = asyncio.ensure_future(tokens_of(engine.generate([1, 2], PARAMS)))
        held.hold()
        await held.reached()
        tasks = [asyncio.ensure_future(work) for work in (
            engine.memory_report(), engine.reset_prefix_cache(), engine.abort("x"), tokens_of(engine.generate([3], PARAMS)),
            tokens_of(engine.generate([4] * 2000, PARAMS)), engine.between_steps(lambda core: 7),
        )]
        left = engine.generate([5], PARAMS)
        leaving = asyncio.ensure_future(anext(left))
        await asyncio.sleep(0.05)
        leaving.cancel()
        await asyncio.wait([leaving])
        assert not any(task.done() for task in tasks if task is not tasks[4])
        held.release()                      # from the loop: had it been blocked, this would never come
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(done[4], ValueError)
        return await first, done

    first, done = asyncio.run(main())
    assert first == expected([1, 2], 6)
    assert (done[2], done[3], done[5]) == (False, expected([3], 6), 7)


# -- requests and ids ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("prompt", "params", "options", "error", "message"), [
    ("", None, {}, ValueError, "no tokenizer"), ([], None, {}, ValueError, "empty"), ([9999], None, {}, ValueError, "not in the vocabulary"),
    (None, None, {}, TypeError, "a prompt is text"), (print, None, {}, TypeError, "not builtin_function"),
    ([1] * 64, None, {}, ValueError, "64 tokens; max_model_len is 64"), ([1] * 5000, None, {}, ValueError, "5000 tokens"),
    ([1], {"max_tokens": 3}, {}, TypeError, "not dict"), ([1], [PARAMS], {}, TypeError, "not list"),
    ([1], None, {"request_id": ""}, ValueError, "request_id must be"), ([1], None, {"request_id": []}, ValueError, "request_id must be"),
    ([1], None, {"priority": 1}, UnsupportedError, "priority=1 does nothing"), ([1], None, {"priority": "a"}, ValueError, "priority must be"),
    ({"role": "user", "content": "x"}, None, {}, ValueError, "a message of a conversation"),
])
def test_a_bad_request_raises_in_its_own_loop_and_nothing_is_queued(served, prompt, params, options, error, message):
    engine, core, _ = served

    async def main():
        stream = engine.generate(prompt, params, **options)         # says nothing yet
        good = asyncio.ensure_future(tokens_of(engine.generate([1, 2], PARAMS)))
        with pytest.raises(error, match=message):
            await read(stream)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        await engine.between_steps(lambda core: None)
        assert core.num_unfinished_requests <= 1
        assert await good == expected([1, 2], 6)

    asyncio.run(main())


def test_ids_are_taken_until_the_last_output(served):
    engine, _, held = served

    async def main():
        held.hold()
        first = asyncio.ensure_future(tokens_of(engine.generate([1, 2], PARAMS, request_id="async-1")))
        await held.reached()
        for prompt in ([3], [3] * 2000):
            with pytest.raises(ValueError, match="'async-1' is in use"):
                await read(engine.generate(prompt, PARAMS, request_id="async-1"))
        with pytest.raises(ValueError, match="9999"):
            await read(engine.generate([9999], PARAMS, request_id="b"))
        better = asyncio.ensure_future(tokens_of(engine.generate([9], PARAMS, request_id="b")))     # free at once
        others = [engine.generate([i + 1], PARAMS) for i in range(3)]
        tasks = [asyncio.ensure_future(tokens_of(stream)) for stream in others]
        await asyncio.sleep(0)
        assert [stream.request_id for stream in others] == ["async-0", "async-2", "async-3"], "no name that somebody has"
        assert engine.num_unfinished_requests == 5
        held.release()
        assert await better == expected([9], 6)
        assert await first == expected([1, 2], 6)
        assert await asyncio.gather(*tasks) == [expected([i + 1], 6) for i in range(3)]
        again = engine.generate([1, 2], PARAMS, request_id="async-1")
        await anext(again)
        await again.aclose()
        assert await tokens_of(engine.generate([4], PARAMS, request_id="async-1")) == expected([4], 6), "free once aclose has returned"

    asyncio.run(main())


def test_an_id_that_a_listener_has_taken(served):
    engine, core, held = served

    async def main():
        await engine.between_steps(lambda core: core.add_request("mine", [1], PARAMS))
        with pytest.raises(ValueError, match="'mine' is in use"):
            await read(engine.generate([1], request_id="mine"))
        held.hold()
        task = asyncio.ensure_future(read(engine.generate([1], PARAMS)))
        await held.reached()
        late = asyncio.ensure_future(read(engine.generate([2], PARAMS, request_id="late")))     # prepared, and then somebody was faster
        await asyncio.sleep(0)
        core.add_request("late", [5], PARAMS)
        held.release()
        with pytest.raises(ValueError, match="'late' is in use"):
            await late
        await task
        for name in ("mine", "late"):
            await engine.between_steps(lambda core, name=name: core.discard(name))

    asyncio.run(main())


def test_abort(served):
    engine, core, held = served

    async def main():
        held.pause = 0.02
        stream = engine.generate([1, 2], LONG, request_id="a")
        first = await anext(stream)
        assert await engine.abort("a") is True
        assert await engine.abort("a") is False
        assert await engine.abort("never") is False
        assert core.scheduler.manager.pool.num_used == 0
        *_, last = await read(stream)
        assert (last.finished, last.outputs[0].finish_reason) == (True, "abort")
        assert list(last.outputs[0].token_ids) == expected([1, 2], len(last.outputs[0].token_ids))
        assert len(last.outputs[0].token_ids) >= len(first.outputs[0].token_ids)

    asyncio.run(main())


def test_abort_while_the_prompt_is_being_read(served, monkeypatch):
    engine, core, held = served
    monkeypatch.setattr("paged_edu.engine.async_engine.QUICK", 0)
    prepare, go = core.prepare, threading.Event()
    monkeypatch.setattr(core, "prepare", lambda *args, **options: (go.wait(10), prepare(*args, **options))[1])

    async def main():
        task = asyncio.ensure_future(read(engine.generate([1, 2], LONG, request_id="b")))
        await asyncio.sleep(0)
        assert await engine.abort("b") is True
        go.set()
        (last,) = await task
        assert (last.outputs[0].finish_reason, last.outputs[0].token_ids) == ("abort", ())

    asyncio.run(main())
    assert held.steps == 0


def test_one_consumer_in_one_loop(served):
    engine, _, held = served

    async def begin():
        held.pause = 0.02
        held.hold()
        stream = engine.generate([1, 2], LONG)
        task = asyncio.ensure_future(anext(stream))
        await held.reached()
        with pytest.raises(RuntimeError, match="already awaited by another task"):
            await anext(stream)
        with pytest.raises(RuntimeError, match="cancel that"):
            await stream.aclose()
        held.release()
        await task
        return stream

    async def go_on(stream):
        with pytest.raises(RuntimeError, match="another event loop"):
            await anext(stream)
        await stream.aclose()

    asyncio.run(go_on(asyncio.run(begin())))


# -- errors --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError("device lost"), MemoryError(), SystemExit(3), KeyboardInterrupt()])
def test_an_error_in_a_step_reaches_every_waiting_request(served, error):
    engine, _, held = served

    async def main():
        held.hold()
        tasks = [asyncio.ensure_future(read(engine.generate([i + 1, 2], LONG))) for i in range(5)]
        await held.reached()
        await asyncio.sleep(0.01)           # all of them have asked
        held.pause = 0.01
        held.release()
        while held.steps < 3:
            await asyncio.sleep(0)
        held.errors.append(error)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(r) for r in results] == [RequestFailedError] * 5
        assert all(r.__cause__ is error for r in results)
        assert len(set(map(id, results))) == 5
        assert {str(r).split("'")[1] for r in results} == {f"async-{i}" for i in range(5)}
        await engine.between_steps(lambda core: check_nothing_left(engine, core))
        assert await tokens_of(engine.generate([1, 2], PARAMS)) == expected([1, 2], 6)

    asyncio.run(main())


def test_what_came_before_an_error_is_read_before_it(served):
    engine, _, held = served

    async def main():
        held.pause = 0.01
        stream, outputs = engine.generate([1, 2], LONG), []
        outputs.append(await anext(stream))
        while held.steps < 6:
            time.sleep(0.001)
        held.errors.append(RuntimeError("device lost"))
        while engine.num_unfinished_requests:
            time.sleep(0.001)
        outputs.append(await anext(stream))
        assert len(outputs[1].outputs[0].token_ids) >= 5
        with pytest.raises(RequestFailedError, match="device lost"):
            await anext(stream)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    asyncio.run(main())


def test_broken_logits_end_one_request_and_the_others_go_on(served):
    engine, _, held = served

    async def main():
        held.hold()
        tasks = [asyncio.ensure_future(read(engine.generate([i + 1, 2], PARAMS))) for i in range(3)]
        await held.reached()
        held.errors += [None, BrokenLogitsError(["async-1"])]       # all three are there in the second step
        held.release()
        with pytest.warns(RuntimeWarning, match="async-1"):
            outputs = [o[-1].outputs[0] for o in await asyncio.gather(*tasks)]
        assert [o.finish_reason for o in outputs] == ["length", "abort", "length"]
        assert list(outputs[2].token_ids) == expected([3, 2], 6)

    asyncio.run(main())


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_warnings_that_are_errors_reach_those_who_wait(served):
    engine, _, held = served

    async def main():
        held.hold()
        tasks = [asyncio.ensure_future(read(engine.generate([i + 1, 2], PARAMS))) for i in range(3)]
        await held.reached()
        held.errors += [None, BrokenLogitsError(["async-1"])]       # all three are there in the second step
        held.release()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, RequestFailedError)
            assert isinstance(result.__cause__, RuntimeWarning)
        assert await tokens_of(engine.generate([1, 2], PARAMS)) == expected([1, 2], 6)

        def broken(event):
            raise ZeroDivisionError("mine")

        await engine.between_steps(lambda core: core.listen(broken))
        with pytest.raises(RequestFailedError, match="ZeroDivisionError"):
            await read(engine.generate([1, 2], PARAMS))
        await engine.between_steps(lambda core: core.listen(broken))
        assert await engine.abort("never") is False
        with pytest.raises(RequestFailedError, match="ZeroDivisionError"):
            await read(engine.generate([1, 2], PARAMS))
        assert await tokens_of(engine.generate([4, 2], PARAMS)) == expected([4, 2], 6)

    asyncio.run(main())


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_warning_about_a_request_that_nobody_waits_for_is_logged(served, caplog):
    engine, core, held = served

    def broken(event):
        if isinstance(event, RequestFinished):
            raise ZeroDivisionError("mine")

    async def main():
        held.pause = 0.01
        stream, other = engine.generate([1, 2], LONG), engine.generate([3], LONG)
        await anext(stream)
        await anext(other)
        await engine.between_steps(lambda core: core.listen(broken))
        await stream.aclose()
        assert "ZeroDivisionError" in caplog.text
        held.pause = 0
        assert (await tokens_of(other)) == expected([3], 50)

    asyncio.run(main())
    check_nothing_left(engine, core)


def test_a_request_that_was_ended_by_hand(served):
    engine, _, held = served

    async def main():
        held.pause = 0.02
        stream = engine.generate([1, 2], LONG, request_id="a")
        await anext(stream)
        held.pause = 0
        await engine.between_steps(lambda core: core.abort_request("a"))
        with pytest.raises(RequestFailedError, match="'a' was ended by hand"):
            await read(stream)
        with pytest.raises(ZeroDivisionError):
            await engine.between_steps(lambda core: 1 / 0)
        assert await tokens_of(engine.generate([1, 2], PARAMS)) == expected([1, 2], 6)

    asyncio.run(main())


# -- drain and close -----------------------------------------------------------------------------------------------------------------


def test_drain_finishes_what_was_accepted(served, monkeypatch):
    engine, core, held = served
    monkeypatch.setattr("paged_edu.engine.async_engine.QUICK", 1)
    prepare, go = core.prepare, threading.Event()

    def slowly(request_id, prompt, *args, **options):
        if len(prompt) > 1:
            go.wait(10)
        return prepare(request_id, prompt, *args, **options)

    monkeypatch.setattr(core, "prepare", slowly)

    async def main():
        held.hold()
        held.pause = 0.01
        running = engine.generate([1], LONG)
        first = asyncio.ensure_future(anext(running))
        accepted = asyncio.ensure_future(tokens_of(engine.generate([2, 3], PARAMS)))        # in its thread still
        refused = engine.generate([3], PARAMS)
        bad = asyncio.ensure_future(read(engine.generate([9999, 3], PARAMS)))
        await held.reached()
        drains = [asyncio.ensure_future(engine.drain()) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="is draining"):
            await read(refused)
        held.release()
        assert not (await first).finished
        assert not any(drain.done() for drain in drains)
        go.set()
        await asyncio.gather(*drains)
        assert engine.num_unfinished_requests == 0
        assert await accepted == expected([2, 3], 6)
        with pytest.raises(ValueError, match="9999"):
            await bad
        await engine.drain()
        await engine.aclose()
        assert (await read(running))[-1].finished, "the last output can be read after that too"

    asyncio.run(main())


@pytest.mark.parametrize("how", ["aclose", "close", "with", "forgotten", "in another thread"])
def test_closing_gives_each_waiting_consumer_an_error(monkeypatch, how):
    with serving(monkeypatch) as (engine, core, held):
        async def main(engine):
            held.hold()
            tasks = [asyncio.ensure_future(read(engine.generate([i + 1, 2], LONG))) for i in range(4)]
            await held.reached()
            pending = asyncio.ensure_future(engine.memory_report())
            draining = asyncio.ensure_future(engine.drain())
            await asyncio.sleep(0)
            asyncio.get_running_loop().call_later(0.02, held.release)
            if how == "aclose":
                await engine.aclose()
            elif how == "close":
                threading.Timer(0.01, held.release).start()
                engine.close()
            elif how == "in another thread":
                await asyncio.get_running_loop().run_in_executor(None, engine.close)
            elif how == "with":
                async with engine:
                    pass
            else:
                engine._thread.close(wait=False)
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(r) for r in results] == [RequestFailedError] * 4
            assert all("the engine was closed" in str(r) for r in results)
            with pytest.raises(RuntimeError, match="closed meanwhile"):
                await draining
            await asyncio.gather(pending, return_exceptions=True)
            assert isinstance(pending.exception(), RuntimeError | None)
            engine.close()
            await engine.aclose()
            for use in (read(engine.generate([1])), engine.memory_report(), engine.abort("a"), engine.drain(), engine.__aenter__()):
                with pytest.raises(RuntimeError, match="AsyncEngine is closed"):
                    await use
            with pytest.raises(RuntimeError, match="AsyncEngine is closed"):
                engine.tokenizer    # noqa: B018
            assert core.scheduler.manager.pool.num_used == 0

        asyncio.run(main(engine))


def test_a_forgotten_engine_ends_its_thread(monkeypatch):
    async def main(engine):
        async for _ in engine.generate([1, 2], PARAMS):
            break
        return engine.generate([1, 2], PARAMS)

    engine = fake(monkeypatch, make())
    stream, thread, forgotten = asyncio.run(main(engine)), engine._thread._thread, weakref.ref(engine)
    del engine
    gc.collect()
    assert forgotten() is not None, "a stream needs it"
    del stream
    gc.collect()
    assert forgotten() is None
    thread.join(10)
    assert not thread.is_alive()


def test_options_are_those_of_llm():
    for options, error, message in (
        ({"block_sise": 4}, TypeError, "did you mean 'block_size'"), ({"block_size": 0}, ValueError, "block_size"),
        ({"quantization": "fp8"}, UnsupportedError, "quantization"),
    ):
        with pytest.raises(error, match=message):
            AsyncEngine("tiny-shakespeare", **options)
        with pytest.raises(error, match=message):
            asyncio.run(AsyncEngine.create("tiny-shakespeare", **options))
    with pytest.raises(TypeError, match="model must be"):
        AsyncEngine(5)
    assert not [thread for thread in threading.enumerate() if thread.name == "paged-edu-engine"]
    engine = AsyncEngine("tiny-shakespeare", num_gpu_blocks_override=8)
    assert (engine.config.num_gpu_blocks_override, engine.memory_plan.num_blocks) == (8, 8)
    assert engine.tokenizer.decode(engine.tokenizer("ROMEO:")["input_ids"]) == "ROMEO:"
    engine.close()
    assert engine._llm._engine is None, "weights and cache are gone"


# -- loops and rest ------------------------------------------------------------------------------------------------------------------


def test_one_loop_after_the_other(served):
    engine, _, held = served

    async def leave():
        stream = engine.generate([1, 2], LONG)
        await anext(stream)
        return stream

    held.pause = 0.01
    for i in range(3):
        assert asyncio.run(tokens_of(engine.generate([i + 1, 2], PARAMS))) == expected([i + 1, 2], 6)
        stream = asyncio.run(leave())           # still there, and its loop is closed
        deadline = time.monotonic() + 10
        while engine.num_unfinished_requests and time.monotonic() < deadline:
            time.sleep(0.001)
        assert engine.num_unfinished_requests == 0
        assert held.steps < 40 * (i + 1), "dropped, not served to its end"
        del stream


def test_loops_in_threads(served):
    engine, _, _ = served
    results = {}

    def client(i):
        async def main():
            return await asyncio.gather(*[tokens_of(engine.generate([i + 1, j], PARAMS)) for j in range(5)])

        results[i] = [asyncio.run(main()) for _ in range(3)]

    threads = [threading.Thread(target=client, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {i: [[expected([i + 1, j], 6) for j in range(5)]] * 3 for i in range(4)}
    engine._thread.call(lambda: None).result(60)        # the engine's thread has put its last output down, not only handed it over
    gc.collect()
    assert len(engine._thread._mailboxes) == 0, "loops that have ended are forgotten"


def test_an_idle_engine_uses_no_processor(served):
    engine, _, held = served
    asyncio.run(tokens_of(engine.generate([1, 2], PARAMS)))
    native = engine._thread._thread.native_id

    def used():
        return next(t.user_time + t.system_time for t in psutil.Process().threads() if t.id == native)

    looks, look = [], engine._thread._read_inbox
    engine._thread._read_inbox = lambda: looks.append(1) or look()
    asyncio.run(tokens_of(engine.generate([1, 2], PARAMS)))
    time.sleep(0.1)
    before, steps, num_looks = used(), held.steps, len(looks)
    time.sleep(0.6)
    assert len(looks) == num_looks > 0, "it sleeps until somebody wants something"
    assert used() - before <= 0.01
    assert held.steps == steps
