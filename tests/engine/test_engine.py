"""The engine over the fake runner: bad input at the door, aborts, failures in mid-step, listeners, and registries that end empty."""
import random

import pytest

from paged_edu import Engine, SamplingParams
from paged_edu.core.paged import PagedKVManager
from paged_edu.core.scheduler import Scheduler, SchedulerConfig
from paged_edu.engine.fake_runner import FakeRunner, expected_tokens
from paged_edu.trace import EventLog, TraceState

VOCAB = 500


def make(num_blocks=16, block_size=4, max_model_len=64, eos=(), **options):
    scheduler = Scheduler(SchedulerConfig(max_model_len, 16, 64), PagedKVManager(num_blocks, block_size))
    return Engine(scheduler, FakeRunner(num_blocks, block_size, VOCAB), vocab_size=VOCAB, eos_token_ids=eos, **options)


def finish(engine):
    done = {}
    for _ in range(5000):
        if not engine.has_unfinished_requests():
            break
        done |= {o.request_id: o for o in engine.step() if o.finished}
    assert not engine.has_unfinished_requests()
    return done


def empty(engine):
    """Every table that knows requests (known fault B08)."""
    scheduler = engine.scheduler
    tables = (engine._records, engine._sampling, engine._kept, scheduler.requests, scheduler.waiting, scheduler.running, scheduler.manager.tables,
              scheduler.manager._sequences, engine.completions._texts, engine.completions._logprobs, engine.completions.shown, engine._aborts)
    return not any(tables) and scheduler.manager.pool.num_used == 0 and scheduler.num_running_seqs == 0


PARAMS = SamplingParams(max_tokens=6)


def test_a_request_from_door_to_end():
    engine = make(clock=iter(range(1000)).__next__)
    engine.add_request("a", [1, 2, 3], PARAMS)
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    assert [len(o.outputs[0].token_ids) for o in outputs] == [1, 2, 3, 4, 5, 6]
    assert [o.finished for o in outputs] == [False] * 5 + [True]
    last = outputs[-1]
    assert list(last.outputs[0].token_ids) == expected_tokens([1, 2, 3], 6, VOCAB)
    assert (last.outputs[0].finish_reason, last.prompt, last.prompt_token_ids, last.outputs[0].text) == ("length", None, (1, 2, 3), "")
    metrics = last.metrics
    assert metrics.arrival_time < metrics.first_scheduled_time < metrics.first_token_time < metrics.finished_time
    assert engine.step() == []
    assert empty(engine)


@pytest.mark.parametrize(("prompt", "message"), [
    ([], "empty"), ("", "no tokenizer"), ([999_999], "999999 is not in the vocabulary, 0 to 499"), ([-1], "-1 is not in the vocabulary"),
    ([1.5], r"token ids \(integers\), not 1.5"), ([True], "not True"), (["a"], "not 'a'"), ([1] * 64, "64 tokens; max_model_len is 64"),
    ([1] * 1000, "1000 tokens"), ({"prompt_token_ids": []}, "empty"), ({"text": "x"}, r"has the keys .*not \['text'\]"),
    ({}, "has the keys"), ({"prompt": "x", "prompt_token_ids": []}, "empty"), ({"prompt": "x", "prompt_token_ids": [500]}, "500 is not in"),
    ({"prompt_token_ids": [1], "cache_salt": ""}, "cache_salt must be a text that is not empty"), ({"cache_salt": "a"}, "has the keys"),
])
def test_bad_prompts_are_refused_and_the_others_served(prompt, message):
    """known faults B57, B34"""
    engine = make()
    engine.add_request("good", [1, 2], PARAMS)
    engine.step()
    with pytest.raises(ValueError, match=message):
        engine.add_request("bad", prompt, PARAMS)
    done = finish(engine)
    assert list(done) == ["good"]
    assert list(done["good"].outputs[0].token_ids) == expected_tokens([1, 2], 6, VOCAB)
    assert empty(engine)


@pytest.mark.parametrize("prompt", [5, None, b"x", {"prompt": [1]}, {"prompt_token_ids": "x"}, object()])
def test_prompts_of_another_type(prompt):
    with pytest.raises(TypeError):
        make().add_request("bad", prompt, PARAMS)


def test_a_prompt_with_ids_and_a_text_shows_the_text():
    engine = make()
    engine.add_request("a", {"prompt": "as it was typed", "prompt_token_ids": [1, 2]}, PARAMS)
    output = finish(engine)["a"]
    assert (output.prompt, output.prompt_token_ids) == ("as it was typed", (1, 2))


def test_bad_ids_params_and_stop_tokens():
    engine = make()
    for request_id in ("", 7, None):
        with pytest.raises(ValueError, match="request_id"):
            engine.add_request(request_id, [1])
    with pytest.raises(TypeError, match="SamplingParams or BeamSearchParams, not dict"):
        engine.add_request("a", [1], {"max_tokens": 3})
    with pytest.raises(ValueError, match="stop_token_ids: the id 500 is not in the vocabulary, 0 to 499"):
        engine.add_request("a", [1], SamplingParams(stop_token_ids=[500]))
    with pytest.raises(ValueError, match="arrival_time"):
        engine.add_request("a", [1], arrival_time=float("nan"))
    engine.add_request("a", [1])
    with pytest.raises(ValueError, match="'a' is in use"):
        engine.add_request("a", [2])
    assert list(finish(engine)) == ["a"]
    assert empty(engine)


def test_a_prompt_over_the_pool_is_refused_with_both_numbers():
    engine = make(num_blocks=3)
    with pytest.raises(ValueError, match="13 tokens and needs 4 blocks of 4; the pool has 3"):
        engine.add_request("a", [1] * 13)
    assert empty(engine)


def test_filling_the_pool_alone_ends_with_a_warning():
    engine = make(num_blocks=3)
    engine.add_request("a", [1] * 5, SamplingParams(max_tokens=50))
    with pytest.warns(RuntimeWarning, match="filled the pool of 3 blocks of 4 tokens"):
        done = finish(engine)
    output = done["a"].outputs[0]
    assert (output.finish_reason, output.stop_reason, len(output.token_ids)) == ("length", "kv_pool", 8)
    assert empty(engine)


def test_abort_gives_what_there_is():
    engine = make()
    engine.add_request("a", [1, 2], PARAMS)
    engine.add_request("b", [3], PARAMS)
    engine.step()
    output = engine.abort_request("a")
    assert (output.finished, output.outputs[0].finish_reason, len(output.outputs[0].token_ids)) == (True, "abort", 1)
    assert engine.abort_request("a") is None
    assert engine.abort_request("never") is None
    assert list(finish(engine)) == ["b"]
    assert empty(engine)


@pytest.mark.parametrize("error", [RuntimeError("device lost"), KeyboardInterrupt()])
def test_a_failure_in_mid_step_loses_nothing(error):
    engine = make()
    for name in "abc":
        engine.add_request(name, [ord(name) % 50, 2, 3], PARAMS)
    engine.step()
    execute, calls = engine.runner.execute, []

    def failing(*args):
        calls.append(args)
        if len(calls) == 2:
            raise error
        return execute(*args)

    engine.runner.execute = failing
    with pytest.raises(type(error)):
        finish(engine)
    done = finish(engine)
    for name in "abc":
        assert list(done[name].outputs[0].token_ids) == expected_tokens([ord(name) % 50, 2, 3], 6, VOCAB)
        assert done[name].metrics.num_preemptions == 1
    assert empty(engine)


def test_a_failure_keeps_the_requests_that_ended_in_the_same_step():
    """A request that the pool cannot hold ends while the step is planned: a failure later in that step must not swallow its output."""
    engine = make(num_blocks=3)
    engine.add_request("a", [1] * 5, SamplingParams(max_tokens=50))
    update = engine.scheduler.update

    def failing(output, result):
        if output.refused:
            engine.scheduler.update = update
            raise RuntimeError("in mid-step")
        return update(output, result)

    engine.scheduler.update = failing
    with pytest.raises(RuntimeError, match="in mid-step"):
        finish(engine)
    with pytest.raises(ValueError, match="in use"):
        engine.add_request("a", [1])
    with pytest.warns(RuntimeWarning, match="filled the pool"):
        outputs = engine.step()
    assert [(o.request_id, o.outputs[0].stop_reason) for o in outputs] == [("a", "kv_pool")]
    assert empty(engine)


def test_listeners_come_and_go():
    engine = make()
    assert engine.scheduler.emit is None
    logs = [EventLog.of(engine.scheduler) for _ in range(2)]
    stops = [engine.listen(log) for log in logs]
    engine.add_request("a", [1, 2], PARAMS)
    engine.step()
    stops[0]()
    stops[0]()
    finish(engine)
    assert logs[0].last_step == 1
    assert logs[1].last_step == 6
    assert logs[1].state.sequences == TraceState.of(engine.scheduler).sequences == {}
    stops[1]()
    assert engine.scheduler.emit is None
    assert engine.scheduler.manager.emit is None


def test_eos_stop_tokens_and_ignore_eos():
    """known fault B61, through the engine: the model's end tokens and the user's stop tokens are separate sets."""
    tokens = expected_tokens([9, 9], 6, VOCAB)
    for params, length, reason in (
        (SamplingParams(max_tokens=6), 2, ("stop", None)),
        (SamplingParams(max_tokens=6, ignore_eos=True), 6, ("length", None)),
        (SamplingParams(max_tokens=6, ignore_eos=True, stop_token_ids=[tokens[4]]), 5, ("stop", tokens[4])),
    ):
        engine = make(eos=(tokens[1], tokens[3]))
        engine.add_request("a", [9, 9], params)
        output = finish(engine)["a"].outputs[0]
        assert (len(output.token_ids), (output.finish_reason, output.stop_reason)) == (length, reason)


def test_many_requests_with_a_tenth_aborted_leave_nothing():
    engine, chance = make(num_blocks=12, block_size=4), random.Random(0)
    waiting, done, aborted = list(range(1000)), 0, 0
    while waiting or engine.has_unfinished_requests():
        while waiting and engine.num_unfinished_requests < 30:
            i = waiting.pop()
            engine.add_request(str(i), [i % VOCAB] * chance.randint(1, 20), SamplingParams(max_tokens=chance.randint(1, 12)))
        if chance.random() < 0.35:
            aborted += engine.abort_request(chance.choice(list(engine._records))) is not None
        done += sum(o.finished for o in engine.step())
    assert done + aborted == 1000
    assert aborted > 80
    assert empty(engine)


def test_memory_report_adds_up():
    engine = make()
    engine.add_request("a", [1] * 9, SamplingParams(max_tokens=4))
    engine.step()
    report = engine.memory_report()
    assert (report.total, report.token_states, report.reservation, report.internal, report.external) == (64, 9, 3, 0, 52)
    assert "1 sequence in 64 slots: token states 14.1%" in str(report)
