"""Every way of leaving an `AsyncEngine`'s loop drops the request and frees its blocks; then random crowds that come, leave, abort and fail."""
import asyncio
import gc
import random
import sys
import threading
from contextlib import aclosing, suppress

import pytest
from async_driving import LONG, check_nothing_left, read, serving, settled
from async_driving import answer as expected
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from interrupting import interrupt_at
from test_engine import empty

from paged_edu import RequestFailedError, SamplingParams


@pytest.fixture
def served(monkeypatch):
    with serving(monkeypatch) as parts:
        yield parts


async def by_break(engine):
    async for _ in engine.generate([1, 2], LONG):
        break


async def by_error(engine):
    with suppress(ZeroDivisionError):
        async for _ in engine.generate([1, 2], LONG):
            raise ZeroDivisionError


async def by_return(engine):
    async for output in engine.generate([1, 2], LONG):
        return output


async def by_timeout(engine):
    with suppress(TimeoutError):
        async with asyncio.timeout(0.05) as limit:
            await read(engine.generate([1, 2], LONG))
    assert limit.expired()


async def by_wait_for(engine):
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(read(engine.generate([1, 2], LONG)), 0.05)


async def by_cancel(engine):
    task = asyncio.ensure_future(read(engine.generate([1, 2], LONG)))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def by_aclose(engine):
    stream = engine.generate([1, 2], LONG)
    await anext(stream)
    await stream.aclose()
    assert engine.num_unfinished_requests == 0, "when aclose returns it has happened"
    await stream.aclose()
    assert await read(stream) == []


async def by_aclosing(engine):
    async with aclosing(engine.generate([1, 2], LONG)) as stream:
        async for _ in stream:
            break
    assert engine.num_unfinished_requests == 0


async def by_garbage_collection(engine):
    stream = engine.generate([1, 2], LONG)
    await anext(stream)
    ring = [stream]
    ring.append(ring)
    del stream, ring
    gc.collect()


async def by_garbage_collection_in_the_engine_thread(engine):
    stream = engine.generate([1, 2], LONG)
    await anext(stream)
    ring = [stream]
    ring.append(ring)
    del stream, ring
    threads = []

    def listener(event):
        if not threads:
            threads.append(threading.current_thread().name)
            gc.collect()

    stop = await engine.between_steps(lambda core: core.listen(listener))
    await anext(engine.generate([3], SamplingParams(max_tokens=1)))
    stop()
    assert threads == ["paged-edu-engine"]


async def by_never_beginning(engine):
    await engine.generate([1, 2], LONG).aclose()
    engine.generate([1, 2], LONG)


async def by_a_task_group(engine):
    async def in_a_group():
        async with asyncio.TaskGroup() as group:
            group.create_task(read(engine.generate([1, 2], LONG)))
            group.create_task(by_raising_later())

    with pytest.raises(ExceptionGroup):
        await in_a_group()


async def by_raising_later():
    await asyncio.sleep(0.05)
    raise ZeroDivisionError


async def by_ending_the_loop(engine):
    by_ending_the_loop.task = asyncio.ensure_future(read(engine.generate([1, 2], LONG)))
    await asyncio.sleep(0.05)


WAYS = [by_break, by_error, by_return, by_timeout, by_wait_for, by_cancel, by_aclose, by_aclosing, by_garbage_collection,
        by_garbage_collection_in_the_engine_thread, by_never_beginning, by_a_task_group, by_ending_the_loop]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_leaving_frees_the_blocks_and_the_engine_serves_on(served, way):
    engine, core, held = served
    held.pause = 0.01           # 50 tokens take longer than any of the ways

    async def main():
        await way(engine)
        await settled(engine)
        if way is not by_ending_the_loop:
            check_nothing_left(engine, core)
            assert (await engine.memory_report()).num_sequences == 0
            assert held.steps < 40

    asyncio.run(main())
    asyncio.run(settled(engine))
    check_nothing_left(engine, core)
    assert held.steps < 40
    outputs = asyncio.run(read(engine.generate([7, 8], SamplingParams(max_tokens=3))))
    assert list(outputs[-1].outputs[0].token_ids) == expected([7, 8], 3)


@pytest.mark.parametrize("quick", [True, False], ids=["short prompt", "prompt read in a thread"])
def test_cancelled_after_any_number_of_turns_of_the_loop(served, monkeypatch, quick):
    """Between queueing and the first output, between prepare and queueing, before anything: nothing is left behind."""
    engine, core, _ = served
    if not quick:
        monkeypatch.setattr("paged_edu.engine.async_engine.QUICK", 0)
    running = 0

    async def main():
        nonlocal running
        for turns in range(30):
            for prompt in ([1, 2], [1] * 40):
                task = asyncio.ensure_future(read(engine.generate(prompt, SamplingParams(max_tokens=20), request_id="same")))
                for _ in range(turns):
                    await asyncio.sleep(0 if turns % 2 else 0.0005)
                running += engine.num_unfinished_requests
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                await settled(engine)
                check_nothing_left(engine, core)

    asyncio.run(main())
    assert running > 10


@pytest.mark.parametrize("quick", [True, False], ids=["short prompt", "prompt read in a thread"])
def test_ctrl_c_at_any_line_of_the_consumer(served, monkeypatch, request, quick):
    """In a loop that does not turn it into a cancellation."""
    engine, core, _ = served
    if not quick:
        monkeypatch.setattr("paged_edu.engine.async_engine.QUICK", 0)
    line, interrupted = 0, True
    gc.disable()            # no destructor of an earlier round while this one is traced
    request.addfinalizer(gc.enable)
    while interrupted:
        line, interrupted = line + 1, False
        loop, stream = asyncio.new_event_loop(), engine.generate([1, 2], SamplingParams(max_tokens=3), request_id="same")
        task = loop.create_task(read(stream))
        sys.settrace(interrupt_at(line))
        try:
            loop.run_until_complete(task)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            sys.settrace(None)
        task.cancel()
        while not task.done():          # asyncio never returns from a run for a task that KeyboardInterrupt has ended
            loop.run_until_complete(asyncio.sleep(0))
        if not task.cancelled():
            task.exception()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        del task, stream
        gc.collect(0)                   # the traceback of what ended the task refers to the task, and so to the stream
        asyncio.run(settled(engine))
        check_nothing_left(engine, core)
    assert line > 40
    assert asyncio.run(read(engine.generate([7, 8], SamplingParams(max_tokens=3))))[-1].finished


def test_leaving_in_the_middle_of_a_step_waits_for_nothing(served):
    engine, core, held = served

    async def main():
        held.pause = 0.02
        stream = engine.generate([1, 2], LONG)
        other = asyncio.ensure_future(read(engine.generate([3], SamplingParams(max_tokens=9))))
        await anext(stream)
        held.hold()
        held.pause = 0
        await held.reached()
        late = asyncio.ensure_future(read(engine.generate([4], LONG)))
        await asyncio.sleep(0)
        late.cancel()
        await asyncio.sleep(0)
        stream.drop()
        del stream
        assert core.scheduler.manager.pool.num_used > 0, "the step has it"
        held.release()
        assert list((await other)[-1].outputs[0].token_ids) == expected([3], 9)
        assert late.cancelled()
        assert core._num_added == 2, "the late one was never queued"
        check_nothing_left(engine, core)

    asyncio.run(main())


def test_a_dropped_id_may_come_again_at_once_or_is_refused(served):
    """Whoever takes the id of a request that has just been dropped never gets, or ends, the other one's."""
    engine, _, _ = served

    async def main():
        answered = 0
        for i in range(60):
            task = asyncio.ensure_future(read(engine.generate([i + 1, 2], LONG, request_id="a")))
            for _ in range(i % 4):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.sleep(0)
            again = engine.generate([i + 1, 3], SamplingParams(max_tokens=3), request_id="a")
            (result,) = await asyncio.gather(read(again), return_exceptions=True)
            if isinstance(result, ValueError) and "in use" in str(result):
                await settled(engine)
            else:
                assert list(result[-1].outputs[0].token_ids) == expected([i + 1, 3], 3)
                answered += 1
        return answered

    assert asyncio.run(main()) > 10


async def client(engine, held, chance, log):
    """One request, left in one of many ways, or read to its end and compared."""
    name = chance.choice(["a", "b", "c", None, None, None])
    prompt, n = [chance.randrange(1, 400) for _ in range(chance.randint(1, 20))], chance.randint(1, 12)
    params = SamplingParams(max_tokens=n, n=chance.choice([1, 1, 1, 3]))
    way = chance.choice(["read"] * 5 + ["break", "raise", "timeout", "aclose", "abort", "bad", "forget"])
    stream = engine.generate([10_000] if way == "bad" else prompt, params, request_id=name)
    leave_at, last = chance.randint(0, 6), None
    try:
        async with asyncio.timeout(chance.choice([0, 0.002, 0.01]) if way == "timeout" else None):
            async for output in stream:
                last, leave_at = output, leave_at - 1
                if chance.random() < 0.05:
                    held.errors.append(RuntimeError("injected"))
                if chance.random() < 0.2:
                    await asyncio.sleep(chance.choice([0, 0.002]))
                if leave_at < 0 and way == "break":
                    break
                if leave_at < 0 and way == "raise":
                    raise ZeroDivisionError
                if leave_at < 0 and way == "aclose":
                    await stream.aclose()
                if leave_at < 0 and way == "abort":
                    await engine.abort(stream.request_id)
                if leave_at < 0 and way == "forget":
                    return
    except (RequestFailedError, ZeroDivisionError, TimeoutError) as error:
        log.append(type(error).__name__)
    except ValueError as error:
        log.append("refused")
        if "in use" not in str(error) and way != "bad":
            raise
    else:
        log.append(way)
        if way == "read":
            assert last.finished
            for done in last.outputs:
                assert done.finish_reason == "abort" or done.stop_reason == "kv_pool" or len(done.token_ids) == n
            if params.n == 1:
                tokens = list(last.outputs[0].token_ids)
                assert tokens == expected(prompt, len(tokens))


async def crowd(engine, held, seed, size, log):
    chance, complaints = random.Random(seed), []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    tasks = []
    for i in range(size):
        tasks.append(asyncio.ensure_future(client(engine, held, random.Random(seed * 1000 + i), log)))
        if chance.random() < 0.4:
            await asyncio.sleep(chance.choice([0, 0.001, 0.004]))
        if chance.random() < 0.2:
            chance.choice(tasks).cancel()
        if chance.random() < 0.1:
            await engine.abort(chance.choice(["a", "b", "c", "async-1"]))
        if chance.random() < 0.1:
            await engine.memory_report()
        if chance.random() < 0.05:
            gc.collect(0)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    wrong = [r for r in results if r is not None and not isinstance(r, asyncio.CancelledError)]
    assert not wrong, wrong
    del tasks, results
    gc.collect(0)
    await settled(engine)
    assert len(asyncio.all_tasks()) == 1
    assert not complaints


SEEN: set[str] = set()


@pytest.mark.filterwarnings("ignore:request .* has filled the pool")
@hypothesis_settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), num_blocks=st.integers(8, 24), size=st.integers(1, 40), threads=st.integers(1, 3))
def test_random_crowds_leave_nothing(monkeypatch, seed, num_blocks, size, threads):
    log, errors = [], []
    with serving(monkeypatch, num_blocks=num_blocks) as (engine, core, held):
        def run(i):
            try:
                asyncio.run(crowd(engine, held, seed + i, size, log))
            except BaseException as error:
                errors.append(error)

        crowds = [threading.Thread(target=run, args=(i,)) for i in range(threads)]
        for thread in crowds:
            thread.start()
        for thread in crowds:
            thread.join(60)
            assert not thread.is_alive()
        assert not errors, errors
        held.errors.clear()
        assert empty(core)
    SEEN.update(log)


def test_the_crowds_did_all_of_it():
    assert {"read", "break", "aclose", "abort", "refused", "RequestFailedError", "ZeroDivisionError", "TimeoutError"} <= SEEN
