"""What must not wedge the engine: listeners that raise, abort or step; Ctrl-C at any line; warnings that are errors; threads; stale plans."""
import random
import sys
import threading

import pytest
from interrupting import interrupt_at
from test_engine import PARAMS, VOCAB, empty, finish, make

from paged_edu import SamplingParams, UnsupportedError
from paged_edu.core import events as ev
from paged_edu.core.plan import StepResult
from paged_edu.core.policy import Priority
from paged_edu.engine.fake_runner import expected_tokens
from paged_edu.trace import EventLog, TraceState

EVENTS = (ev.StepStarted, ev.StepScheduled, ev.RequestAdded, ev.RequestAdmitted, ev.RequestPreempted, ev.SequenceFinished, ev.RequestFinished,
          ev.BlocksAllocated, ev.BlocksFreed, ev.TokensWritten, ev.TokensSampled)


def crowd(engine):
    """Five requests that cannot all run at once; some are preempted."""
    for i in range(5):
        engine.add_request(f"r{i}", [i + 1] * 5, SamplingParams(max_tokens=8))


def serve_crowd(engine):
    crowd(engine)
    return finish(engine)


def check_crowd(done, but=()):
    for i in range(5):
        if f"r{i}" not in but:
            assert list(done[f"r{i}"].outputs[0].token_ids) == expected_tokens([i + 1] * 5, 8, VOCAB)


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_a_listener_that_raises_is_dropped_and_nobody_suffers(kind):
    engine = make(num_blocks=7)
    log = EventLog.of(engine.scheduler)
    engine.listen(log)
    calls = []

    def broken(event):
        if isinstance(event, kind):
            calls.append(event)
            raise ZeroDivisionError("mine")

    engine.listen(broken)
    with pytest.warns(RuntimeWarning, match=f"ZeroDivisionError.*at {kind.__name__} and no longer listens"):
        check_crowd(serve_crowd(engine))
    assert len(calls) == 1
    assert empty(engine)
    assert log.state.num_finished == 5


@pytest.mark.parametrize("whom", ["r0", "r3", "r4"])
@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_a_listener_may_abort_any_request_at_any_event(kind, whom):
    engine = make(num_blocks=7)
    early = []

    def listener(event):
        if isinstance(event, kind) and not isinstance(event, ev.RequestAdded):
            output = engine.abort_request(whom)
            early.append(output)

    log = EventLog.of(engine.scheduler)
    engine.listen(log)
    crowd(engine)
    stop = engine.listen(listener)
    done = finish(engine)
    stop()
    assert set(done) == {f"r{i}" for i in range(5)}, "the aborted one's output comes with a step"
    assert all(output is None for output in early)
    check_crowd(done, but=(whom,))
    assert empty(engine)
    assert log.state.sequences == {}
    assert log.state.num_finished == 5


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_a_listener_may_add_a_more_urgent_request_at_any_event(kind):
    engine = make(num_blocks=7)
    engine.scheduler.policy = Priority()
    added = []

    def listener(event):
        if isinstance(event, kind) and len(added) < 2:
            added.append(f"urgent{len(added)}")
            engine.add_request(added[-1], [9] * 3, SamplingParams(max_tokens=4), priority=-1)

    engine.listen(listener)
    crowd(engine)
    done = finish(engine)
    assert len(added) == 2
    for name in added:
        assert list(done.pop(name).outputs[0].token_ids) == expected_tokens([9] * 3, 4, VOCAB)
    check_crowd(done)
    assert empty(engine)


def test_an_interruption_at_any_line_of_adding_leaves_it_in_or_out():
    at = 0
    while True:
        engine, at, seen = make(), at + 1, 0

        def tracer(frame, kind, arg, at=at):
            nonlocal seen
            if "paged_edu" not in frame.f_code.co_filename:
                return None
            seen += kind == "line"
            if seen == at and kind == "line":
                sys.settrace(None)
                raise KeyboardInterrupt
            return tracer

        sys.settrace(tracer)
        try:
            engine.add_request("r", [1, 2, 3], PARAMS)
        except KeyboardInterrupt:
            pass
        else:
            break
        finally:
            sys.settrace(None)
        finish(engine)
        assert empty(engine)
    assert at > 100


def test_a_listener_may_not_step_the_engine():
    engine = make()
    errors = []

    def listener(event):
        if isinstance(event, ev.TokensWritten):
            try:
                engine.step()
            except RuntimeError as error:
                errors.append(str(error))

    engine.listen(listener)
    engine.add_request("a", [1, 2], PARAMS)
    assert list(finish(engine)["a"].outputs[0].token_ids) == expected_tokens([1, 2], 6, VOCAB)
    assert "step() in the middle of a step" in errors[0]


def test_an_interruption_at_any_line_loses_nothing():
    """KeyboardInterrupt at hundreds of places inside a step; the requests go on and the record of events still fits."""
    chance, cut = random.Random(1), 0
    for at in [*range(1, 300), *(chance.randrange(300, 4200) for _ in range(300))]:
        engine = make(num_blocks=7)
        log = EventLog.of(engine.scheduler)
        engine.listen(log)
        crowd(engine)
        done = {}
        sys.settrace(interrupt_at(at, but=("fake_runner", "/trace/")))
        try:
            while engine.has_unfinished_requests():
                done |= {o.request_id: o for o in engine.step() if o.finished}
        except KeyboardInterrupt:
            cut += 1
        finally:
            sys.settrace(None)
        engine.scheduler.manager.check()
        done |= finish(engine)
        assert set(done) == {f"r{i}" for i in range(5)}, at
        check_crowd(done)
        assert empty(engine), at
        assert log.state.num_finished == 5, "the log was not dropped"
    assert cut > 500


def test_recovery_is_an_event_that_the_fold_understands():
    engine = make(num_blocks=7)
    log = EventLog.of(engine.scheduler)
    engine.listen(log)
    crowd(engine)
    for _ in range(4):
        engine.step()
    engine.scheduler.recover()
    live = TraceState.of(engine.scheduler)
    assert (log.state.requests, log.state.sequences) == (live.requests, live.sequences)
    check_crowd(finish(engine))
    assert log.state.num_preemptions >= 3


def test_recovery_survives_a_file(tmp_path):
    engine = make(num_blocks=7)
    log = EventLog.of(engine.scheduler)
    engine.listen(log)
    crowd(engine)
    engine.step()
    engine.scheduler.recover()
    finish(engine)
    log.save(tmp_path / "trace.jsonl")
    assert list(EventLog.load(tmp_path / "trace.jsonl")) == list(log)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_warnings_as_errors_come_after_everything_is_consistent():
    engine = make(num_blocks=3)
    engine.add_request("a", [1] * 5, SamplingParams(max_tokens=50))
    engine.add_request("b", [2], SamplingParams(max_tokens=3))
    with pytest.raises(RuntimeWarning, match="filled the pool"):
        finish(engine)
    done = finish(engine)
    assert done["a"].outputs[0].stop_reason == "kv_pool"
    assert empty(engine)


def test_aborting_while_the_runner_computes_from_another_thread():
    engine = make()
    engine.add_request("a", [1, 2], PARAMS)
    engine.add_request("b", [3], PARAMS)
    execute = engine.runner.execute

    def slow(*args):
        thread = threading.Thread(target=engine.abort_request, args=("b",))
        thread.start()
        thread.join()
        return execute(*args)

    engine.runner.execute = slow
    outputs = engine.step()
    assert {o.request_id: o.outputs[0].finish_reason for o in outputs} == {"a": None, "b": "abort"}
    engine.runner.execute = execute
    assert list(finish(engine)["a"].outputs[0].token_ids) == expected_tokens([1, 2], 6, VOCAB)
    assert empty(engine)


def test_plans_are_carried_out_once_and_in_order():
    engine = make()
    engine.add_request("a", [1, 2], PARAMS)
    scheduler = engine.scheduler
    output = scheduler.schedule()
    with pytest.raises(ValueError, match="step 1 is planned and not carried out"):
        scheduler.schedule()
    result = engine.runner.execute(output)
    scheduler.update(output, result)
    with pytest.raises(ValueError, match=r"update\(\) got step 1; no step is planned"):
        scheduler.update(output, result)
    again = scheduler.schedule()
    with pytest.raises(ValueError, match=r"update\(\) got step 1; step 2 is planned"):
        scheduler.update(output, StepResult())
    scheduler.update(again, engine.runner.execute(again))
    assert scheduler.requests["a"].live[0].output_token_ids == expected_tokens([1, 2], 2, VOCAB)


def test_small_things_at_the_door():
    engine = make()
    with pytest.raises(TypeError, match="cannot be called"):
        engine.listen(5)
    with pytest.raises(UnsupportedError, match="priority=3"):
        engine.add_request("a", [1], priority=3)
    with pytest.raises(ValueError, match="priority must be an integer"):
        engine.add_request("a", [1], priority="x")
    with pytest.raises(ValueError, match="min_tokens=2 bans every token"):
        engine.add_request("a", [1], SamplingParams(min_tokens=2, stop_token_ids=range(VOCAB)))
    calls = []
    one, two = engine.listen(calls.append), engine.listen(calls.append)
    one()
    one()
    engine.add_request("a", [1], PARAMS)
    assert len(calls) == 1, "the same listener may listen twice, and each end ends one"
    two()
    assert engine.scheduler.emit is None


def test_a_report_knows_max_model_len():
    engine = make(max_model_len=20, block_size=16, num_blocks=4)
    engine.add_request("a", [1] * 18, SamplingParams(max_tokens=1000))
    engine.step()
    report = engine.memory_report()
    assert (report.token_states, report.reservation, report.internal) == (18, 1, 13)


# -- the same, through LLM -----------------------------------------------------------------------------------------------------------
