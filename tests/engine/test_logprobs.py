"""Log-probabilities through the engine, over a runner whose every number depends on all that it reads: chunks, preemption, cache, interruptions."""
import random
import sys

import pytest
from interrupting import interrupt_at
from scripted import ScriptedRunner
from telling import TellingRunner, entries_of
from test_engine import VOCAB, empty, finish
from tiny_tokenizers import byte_id, tiny

from paged_edu import BeamSearchParams, Engine, SamplingParams, UnsupportedError
from paged_edu.core.paged import PagedKVManager
from paged_edu.core.scheduler import Scheduler, SchedulerConfig, _Step
from paged_edu.engine.fake_runner import FakeRunner, expected_tokens
from paged_edu.sampling.sampler import BrokenLogitsError


def make(num_blocks=64, block_size=4, budget=64, caching=True, cpu_blocks=0, **options):
    manager = PagedKVManager(num_blocks, block_size, prefix_caching=caching, num_cpu_blocks=cpu_blocks)
    scheduler = Scheduler(SchedulerConfig(64, min(16, budget), budget, **options), manager)
    return Engine(scheduler, TellingRunner(num_blocks, block_size, VOCAB, cpu_blocks), vocab_size=VOCAB)


def prompt(i, length):
    return [(37 * i + 5 * k * k + k) % VOCAB for k in range(length)]


def check(output, params):
    """Every entry is about its own token, after those before it."""
    ids = list(output.prompt_token_ids)
    if params.prompt_logprobs is None:
        assert output.prompt_logprobs is None
    else:
        assert output.prompt_logprobs == (None, *entries_of(ids, 1))
    for done in output.outputs:
        if params.logprobs is None:
            assert (done.logprobs, done.cumulative_logprob) == (None, None)
            continue
        assert list(done.token_ids) == expected_tokens(ids, len(done.token_ids), VOCAB, done.index)
        assert list(done.logprobs) == entries_of(ids + list(done.token_ids), len(ids))
        assert done.cumulative_logprob == pytest.approx(sum(entry[t].logprob for entry, t in zip(done.logprobs, done.token_ids)))


@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
@pytest.mark.parametrize("length", [1, 2, 9, 12])
def test_every_chunk_size_gives_every_position_once(block_size, length):
    """known fault B41"""
    for chunk in range(1, length + 2):
        for caching in (False, True):
            engine = make(block_size=block_size, caching=caching, long_prefill_token_threshold=chunk)
            params = SamplingParams(max_tokens=3, prompt_logprobs=0, logprobs=0)
            engine.add_request("a", prompt(1, length), params)
            engine.add_request("mate", prompt(2, 7), SamplingParams(max_tokens=9))
            done = finish(engine)
            check(done["a"], params)
            check(done["mate"], SamplingParams())
            assert engine.runner.told == [("a", i) for i in range(1, length)]
            assert empty(engine)


def throw_out(engine, name):
    """Preempt a running request, here and now; the fake runner moves what is swapped."""
    step, runner = _Step(), engine.runner
    engine.scheduler._preempt(engine._records[name].request, step)
    runner._move(0, step.swap_out, runner.cells, runner.cpu_cells)
    return bool(step.swap_out)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("caching", [False, True])
def test_a_preemption_in_the_middle_of_a_prompt_loses_and_repeats_nothing(mode, caching):
    """known fault B41: a prompt of 12 in chunks of 4, thrown out after any step, and again two steps later."""
    params = SamplingParams(max_tokens=9, prompt_logprobs=0, logprobs=0)
    for at in range(1, 7):
        engine = make(12, budget=4, caching=caching, cpu_blocks=12 if mode == "swap" else 0, preemption_mode=mode)
        engine.add_request("a", prompt(1, 12), params)
        swapped = []
        for steps in (at, 2):
            for _ in range(steps):
                engine.step()
            swapped.append(throw_out(engine, "a"))
        done = finish(engine)["a"]
        check(done, params)
        assert done.metrics.num_preemptions == 2
        assert all(swapped) == any(swapped) == (mode == "swap")
        assert engine.runner.told == [("a", i) for i in range(1, 12)], "each position once, whatever was computed again"
        assert empty(engine)


def test_requests_that_push_each_other_out():
    """known fault B41, with several in a pool that holds two: who is preempted, when, is the scheduler's."""
    preempted = 0
    for block_size, chunk, caching in ((1, 3, True), (2, 5, False), (4, 1, True), (4, 64, False), (3, 2, True)):
        engine = make(30 // block_size, block_size, budget=16, caching=caching, long_prefill_token_threshold=chunk)
        asked = {}
        for i in range(6):
            asked[f"r{i}"] = SamplingParams(max_tokens=7, prompt_logprobs=0 if i % 3 else None, logprobs=0 if i % 2 else None, n=1 + (i == 3))
            engine.add_request(f"r{i}", prompt(i, 6 + i), asked[f"r{i}"])
        done = finish(engine)
        for name, params in asked.items():
            check(done[name], params)
        preempted += sum(output.metrics.num_preemptions for output in done.values())
        assert sorted(engine.runner.told) == [(name, i) for name, params in asked.items() if params.prompt_logprobs is not None
                                              for i in range(1, 6 + int(name[1:]))], "each position once"
        assert empty(engine)
    assert preempted > 5


def test_the_prefix_cache_is_not_read_but_written():
    """known fault B119"""
    engine = make()
    ids = prompt(1, 9)
    cached, lengths, outputs = [], [], []
    for i, asked in enumerate([1, 1, None, 0]):
        params = SamplingParams(prompt_logprobs=asked)
        engine.add_request(str(i), ids, params)
        outputs.append(finish(engine)[str(i)])
        cached.append(outputs[-1].num_cached_tokens)
        lengths.append(outputs[-1].prompt_logprobs and len(outputs[-1].prompt_logprobs))
        check(outputs[-1], params)
    assert cached == [0, 0, 8, 0]
    assert lengths == [9, 9, None, 9]
    assert outputs[0].prompt_logprobs == outputs[1].prompt_logprobs


def test_after_a_preemption_the_cache_is_read_as_far_as_the_logits_have_come():
    engine = make(12, budget=4)
    engine.add_request("a", prompt(1, 12), SamplingParams(prompt_logprobs=0, max_tokens=2))
    engine.step()
    engine.step()
    request = engine._records["a"].request
    assert request.num_prompt_logits == 8
    throw_out(engine, "a")
    engine.step()
    assert engine.scheduler.prefix_stats.returning_hits == 8
    assert engine.last_output.scheduled[0].start == 8
    assert request.num_prompt_logits is None
    check(finish(engine)["a"], SamplingParams(prompt_logprobs=0))
    assert engine.runner.told == [("a", i) for i in range(1, 12)]


@pytest.mark.parametrize("n", [1, 3])
def test_samples_of_a_fan_out_have_their_own(n):
    engine = make(24, 2)
    params = SamplingParams(n=n, max_tokens=6, logprobs=0, prompt_logprobs=0)
    engine.add_request("a", prompt(3, 5), params)
    seen = []
    while engine.has_unfinished_requests():
        seen += engine.step()
    for output in seen:         # at every step, not only at the end
        check(output, params)
    assert len(seen) == 6
    assert len({str(done.logprobs) for done in seen[-1].outputs}) == n
    assert empty(engine)


# -- interruptions ---------------------------------------------------------------------------------------------------------------------
def crowd(engine):
    asked = {"a": SamplingParams(max_tokens=8, logprobs=0, prompt_logprobs=0), "b": SamplingParams(n=3, max_tokens=6, logprobs=0, prompt_logprobs=0),
             "c": SamplingParams(max_tokens=5), "d": SamplingParams(max_tokens=6, prompt_logprobs=0)}
    for i, (name, params) in enumerate(asked.items()):
        engine.add_request(name, prompt(i, 5 + i), params)
    return asked


def served(tracer=None):
    """Serve the crowd; ``tracer`` may raise KeyboardInterrupt somewhere. Returns whether it did, and how often somebody was preempted."""
    engine = make(14, 3, budget=8)
    asked, done, cut = crowd(engine), {}, 0
    sys.settrace(tracer)
    try:
        while engine.has_unfinished_requests():
            done |= {o.request_id: o for o in engine.step() if o.finished}
    except KeyboardInterrupt:
        cut = 1
    finally:
        sys.settrace(None)
    done |= finish(engine)
    assert set(done) == set(asked)
    for name, params in asked.items():
        check(done[name], params)
    assert empty(engine)
    return cut, sum(output.metrics.num_preemptions for output in done.values())


def test_an_interruption_at_any_line_leaves_them_aligned():
    """Ctrl-C anywhere in plan, update, fork, output: every entry is still about its token, and none is missing."""
    assert served()[1] > 0
    chance = random.Random(5)
    lines = [*range(1, 100), *(chance.randrange(100, 4500) for _ in range(250))]
    cuts = [served(interrupt_at(at, but=("fake_runner", "/trace/")))[0] for at in lines]
    assert sum(cuts) > 300


def test_an_interruption_where_they_are_stored():
    """The same at every line of what stores entries and tokens, the first dozens of times that it runs."""
    places = ("update", "_branch_out", "branch_out", "apply", "got_prompt_logits", "keep_prompt_logprobs", "_of_tokens", "prompt_logprobs")

    def interrupt(at):
        seen = 0

        def trace(frame, kind, arg):
            nonlocal seen
            if frame.f_code.co_name not in places:
                return trace if "paged_edu" in frame.f_code.co_filename else None
            seen += kind == "line"
            if seen == at and kind == "line":
                raise KeyboardInterrupt
            return trace

        return trace

    assert all(served(interrupt(at))[0] for at in range(1, 400))


def test_a_runner_that_fails_half_way_loses_nothing():
    engine = make(budget=4)
    asked = crowd(engine)
    execute, steps = engine.runner.execute, iter(range(10_000))

    def flaky(*args):
        result = execute(*args)
        if next(steps) % 3 == 2:
            raise ZeroDivisionError
        return result

    engine.runner.execute = flaky
    done, errors = {}, 0
    while engine.has_unfinished_requests():
        try:
            done |= {o.request_id: o for o in engine.step() if o.finished}
        except ZeroDivisionError:
            errors += 1
            assert errors < 300
            if errors > 20:
                engine.runner.execute = execute
    assert errors > 5
    for name, params in asked.items():
        check(done[name], params)


def test_an_abort_in_the_middle_of_a_prompt_gives_what_there_is():
    engine = make(budget=4)
    engine.add_request("a", prompt(1, 12), SamplingParams(prompt_logprobs=0, logprobs=0))
    engine.step()
    engine.step()
    output = engine.abort_request("a")
    assert output.prompt_logprobs == (None, *entries_of(prompt(1, 12), 1)[:8])
    assert (output.outputs[0].logprobs, output.outputs[0].cumulative_logprob) == ((), 0.0)
    engine.add_request("b", prompt(1, 12), SamplingParams(prompt_logprobs=0))
    assert engine.abort_request("b").prompt_logprobs == (None,)
    assert empty(engine)


def test_broken_prompt_logits_end_their_request_only():
    engine = make()
    asked = crowd(engine)
    execute = engine.runner.execute

    def broken(output, sampling):
        if any(item.request_id == "d" for item in output.scheduled):
            raise BrokenLogitsError(["d"])
        return execute(output, sampling)

    engine.runner.execute = broken
    with pytest.warns(RuntimeWarning, match="the logits of d are not finite"):
        done = finish(engine)
    assert done["d"].outputs[0].finish_reason == "abort"
    for name in "abc":
        check(done[name], asked[name])


# -- at the door -----------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("params", "message"), [
    ({"logit_bias": {999_999: 1}}, "logit_bias: the id 999999 is not in the vocabulary, 0 to 499"),
    ({"logit_bias": {"500": 1}}, "the id 500 is not in the vocabulary, 0 to 499"),
    ({"logprobs": 501}, "logprobs must be at most 500, the size of the vocabulary, not 501"),
    ({"prompt_logprobs": 10**6}, "prompt_logprobs must be at most 500, the size of the vocabulary, not 1000000"),
    ({"stop_token_ids": [500]}, "stop_token_ids: the id 500 is not in the vocabulary"),
])
def test_what_the_vocabulary_does_not_have_is_refused(params, message):
    """known fault B57"""
    engine = make()
    with pytest.raises(ValueError, match=message):
        engine.add_request("bad", [1, 2], SamplingParams(**params))
    engine.add_request("good", [1, 2], SamplingParams(logprobs=500, logit_bias={499: 1}))
    check(finish(engine)["good"], SamplingParams(logprobs=500))
    assert empty(engine)


def test_a_runner_without_probabilities_refuses_them():
    engine = Engine(Scheduler(SchedulerConfig(64, 4, 64), PagedKVManager(8, 4)), FakeRunner(8, 4, VOCAB), vocab_size=VOCAB)
    for name in ("logprobs", "prompt_logprobs"):
        with pytest.raises(UnsupportedError, match=f"{name}=1: this engine's runner has no probabilities"):
            engine.add_request("a", [1], SamplingParams(**{name: 1}))
    assert empty(engine)


def test_padding_ids_are_no_choices():
    """known fault B58: a head of 600 rows for a tokenizer of fewer tokens; a ban of all that can be sampled is refused."""
    tokenizer = tiny("byte-level")
    size = len(tokenizer)
    engine = Engine(Scheduler(SchedulerConfig(64, 4, 64), PagedKVManager(8, 4)), TellingRunner(8, 4, size), tokenizer, vocab_size=600)
    for params, message in (({"logprobs": size + 1}, f"at most {size}"), ({"logit_bias": {size: 1}}, f"0 to {size - 1}"),
                            ({"min_tokens": 1, "stop_token_ids": range(size)}, f"whole vocabulary of {size}")):
        with pytest.raises(ValueError, match=message):
            engine.add_request("a", [1], SamplingParams(**params))
    engine.add_request("a", [1], SamplingParams(min_tokens=1, stop_token_ids=range(size - 1)))


def test_a_beam_search_has_none():
    with pytest.raises(TypeError):
        BeamSearchParams(beam_width=2, logprobs=1)


# -- with texts ------------------------------------------------------------------------------------------------------------------------
class TellingScript(ScriptedRunner, TellingRunner):
    """Says a script, and tells of it."""

    def execute(self, output, sampling=None):
        result = ScriptedRunner.execute(self, output, sampling)
        branches = {}
        for request_id, (branch,) in result.branches.items():
            params = sampling[request_id].params
            told = tuple(entries_of(list(branch.tokens), i)[0] for i in range(len(branch.tokens))) if params.logprobs is not None else None
            branches[request_id] = (branch._replace(logprobs=told),)
        return type(result)(branches, result.elapsed, result.prompt_logprobs)


def telling_script(width=1):
    tokenizer = tiny("byte-level")
    scheduler = Scheduler(SchedulerConfig(256, 16, 64), PagedKVManager(64, 4))
    return Engine(scheduler, TellingScript(64, 4, len(tokenizer), width=width), tokenizer, vocab_size=len(tokenizer))


@pytest.mark.parametrize("width", [1, 3])
def test_a_stop_string_cuts_them_to_the_tokens_shown(width):
    engine = telling_script(width)
    script = engine.tokenizer("the cat sat ### never")["input_ids"]
    engine.runner.scripts["a"] = script
    engine.add_request("a", [1, 2, 3], SamplingParams(max_tokens=30, stop=["##"], logprobs=0))
    done = finish(engine)["a"].outputs[0]
    assert done.finish_reason == "stop"
    assert len(done.logprobs) == len(done.token_ids) < len(script)
    assert [list(entry) for entry in done.logprobs] == [[token] for token in done.token_ids]
    assert done.cumulative_logprob == pytest.approx(sum(entry[t].logprob for entry, t in zip(done.logprobs, done.token_ids)))
    assert "".join(entry[token].decoded_token for entry, token in zip(done.logprobs, done.token_ids)).startswith("the cat sat #")


def test_characters_that_are_split_over_tokens_can_be_put_together():
    """known fault B108"""
    engine = telling_script()
    engine.runner.scripts["a"] = [byte_id("byte-level", byte) for byte in "🔥".encode()] + [5] * 9
    engine.add_request("a", [1, 2, 3], SamplingParams(max_tokens=4, logprobs=0))
    done = finish(engine)["a"].outputs[0]
    entries = [entry[token] for entry, token in zip(done.logprobs, done.token_ids)]
    assert [list(entry.bytes) for entry in entries] == [[240], [159], [148], [165]]
    assert b"".join(entry.bytes for entry in entries).decode() == done.text == "🔥"
    assert {entry.decoded_token for entry in entries} == {"\ufffd"}
