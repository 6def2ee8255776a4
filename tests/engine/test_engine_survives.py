"""What must not wedge the engine: listeners that raise, abort or step; Ctrl-C at any line; warnings that are errors; threads; stale plans."""
import random
import sys
import threading

import pytest
from test_engine import PARAMS, VOCAB, empty, finish, make

from paged_edu import LLM, SamplingParams, UnsupportedError
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
        lines, done = 0, {}

        def trace(frame, kind, arg, at=at):
            nonlocal lines
            if "paged_edu" not in frame.f_code.co_filename or frame.f_code.co_name in ("recover", "_change", "reset", "__init__", "step"):
                return None
            if kind == "line" and "fake_runner" not in frame.f_code.co_filename and "/trace/" not in frame.f_code.co_filename:
                lines += 1
                if lines == at:
                    raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
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


@pytest.fixture(scope="module")
def llm():
    with LLM("tiny-shakespeare", num_gpu_blocks_override=64) as llm:
        yield llm


@pytest.mark.parametrize("options", [{"top_p": 1e-46}, {"top_k": 2**63}, {"temperature": 1e39, "min_tokens": 2}, {"temperature": 1e300, "top_k": 3},
                                     {"min_p": 1.0, "top_p": 1e-320}])
def test_extreme_parameters_sample_real_tokens(llm, options):
    """Values that underflow or overflow in float32 once passed the door and gave an id outside the vocabulary."""
    mate = SamplingParams(temperature=0, max_tokens=3)
    outputs = llm.generate(["ROMEO:"] * 2, [SamplingParams(max_tokens=4, ignore_eos=True, **options), mate], use_tqdm=False)
    assert len(outputs[0].outputs[0].token_ids) == 4
    assert all(0 <= token < 1024 for o in outputs for token in o.outputs[0].token_ids)
    assert outputs[1].outputs[0].token_ids == llm.generate("ROMEO:", mate, use_tqdm=False)[0].outputs[0].token_ids


def test_threads_take_turns(llm):
    results, errors = {}, []

    def work(i):
        try:
            results[i] = llm.generate(["ROMEO:"] * 2, SamplingParams(temperature=0, max_tokens=5 + i, ignore_eos=True), use_tqdm=False)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert {i: [len(o.outputs[0].token_ids) for o in r] for i, r in results.items()} == {i: [5 + i] * 2 for i in range(4)}


def test_a_refused_batch_leaves_no_trace_in_later_samples():
    texts = []
    for refuse in (False, True):
        with LLM("tiny-shakespeare", num_gpu_blocks_override=16) as llm:
            if refuse:
                with pytest.raises(ValueError, match="empty"):
                    llm.generate(["ROMEO:", "JULIET:", ""])
            texts.append(llm.generate("ROMEO:", SamplingParams(max_tokens=12, ignore_eos=True), use_tqdm=False)[0].outputs[0].text)
    assert texts[0] == texts[1]


def test_generate_never_touches_requests_of_others(llm):
    name = f"generate-{llm._num_calls}-0"
    llm.engine.add_request(name, "JULIET:", SamplingParams(max_tokens=2))
    with pytest.raises(ValueError, match="in use"):
        llm.generate("ROMEO:", use_tqdm=False)
    assert llm.engine.num_unfinished_requests == 1
    assert llm.generate("ROMEO:", SamplingParams(max_tokens=5, ignore_eos=True), use_tqdm=False)[0].finished
    assert [o.request_id for o in llm.engine.step()] == [name]


def test_prompts_that_are_no_text_or_beyond_the_model(llm, tmp_path):
    import numpy as np
    from parity import random_gpt2

    with pytest.raises(ValueError, match=r"lone surrogate '\\ud800' at position 2"):
        llm.generate("ab\ud800")
    with pytest.raises(TypeError, match="bytearray"):
        llm.generate(bytearray(b"abc"))
    assert llm.generate([np.int64(1), np.int64(2)], SamplingParams(max_tokens=1), use_tqdm=False)[0].prompt_token_ids == (1, 2)
    random_gpt2(tmp_path, vocab_size=90)
    with LLM(tmp_path, tokenizer="tiny-shakespeare", num_gpu_blocks_override=8) as small:
        with pytest.raises(ValueError, match=r"the tokenized prompt: the id .* is not in the vocabulary, 0 to 89"):
            small.generate("ROMEO: the tokenizer knows more words than the model")
        assert small.generate([1, 2], SamplingParams(max_tokens=2), use_tqdm=False)[0].finished


def test_what_is_no_model():
    for bad in (None, 5):
        with pytest.raises(TypeError, match="name or a directory"):
            LLM(bad)
    with pytest.raises(ValueError, match="tokenizer must be"):
        LLM("tiny-shakespeare", tokenizer=5)
    with pytest.raises(ValueError, match="num_gpu_blocks_override"):
        LLM("tiny-shakespeare", num_gpu_blocks_override=10**400)
    with pytest.raises(ValueError, match="temperature"):
        SamplingParams(temperature=10**400)
    closed = LLM("tiny-shakespeare", num_gpu_blocks_override=4)
    closed.close()
    with pytest.raises(RuntimeError, match="closed"), closed:
        pass
