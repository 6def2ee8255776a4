"""The scheduler step by step: catching up, chunks, budget, admission, preemption, and the end of the pool."""
import pytest
from driving import VOCAB, make, request, run, step

from paged_edu.core.scheduler import SchedulerConfig
from paged_edu.core.sequence import Status
from paged_edu.engine.fake_runner import expected_tokens


def chunks(outputs, name):
    return [s.num_new for o in outputs for s in o.scheduled if s.request_id == name]


def test_one_request_from_prompt_to_end():
    scheduler, runner = make()
    r = request("a", 6, max_tokens=4)
    scheduler.add(r)
    outputs = run(scheduler, runner)
    assert chunks(outputs, "a") == [6, 1, 1, 1]
    assert r.sequences[0].output_token_ids == expected_tokens(r.prompt_token_ids, 4, VOCAB)
    assert (r.sequences[0].finish_reason, r.sequences[0].stop_reason, r.status) == ("length", None, Status.FINISHED)
    assert outputs[0].admitted == ("a",)


def test_the_last_sampled_token_is_never_written():
    """p prompt and L output tokens need ceil((p + L - 1) / B) blocks: 16 + 1 fit one block of 16."""
    scheduler, runner = make(num_blocks=1, block_size=16)
    r = request("a", 16, max_tokens=1)
    scheduler.add(r)
    run(scheduler, runner)
    assert r.sequences[0].finish_reason == "length"
    assert r.sequences[0].stop_reason is None


def test_prompt_over_the_budget_is_cut_into_chunks():
    """known fault B35"""
    scheduler, runner = make(num_blocks=16, budget=16)
    scheduler.add(request("a", 40, max_tokens=2))
    outputs = run(scheduler, runner)
    assert chunks(outputs, "a") == [16, 16, 8, 1]
    assert [s.num_samples for o in outputs for s in o.scheduled] == [0, 0, 1, 1]
    with pytest.raises(ValueError, match=r"max_num_batched_tokens \(16\) is below max_model_len \(64\)"):
        SchedulerConfig(64, 16, 16, enable_chunked_prefill=False)


def test_a_long_prompt_does_not_stop_running_decodes():
    """known fault B36"""
    scheduler, runner = make(num_blocks=64, budget=16, max_model_len=100)
    scheduler.add(request("decode", 3, max_tokens=8))
    step(scheduler, runner)
    scheduler.add(request("long", 64, max_tokens=1))
    outputs = [step(scheduler, runner)[0] for _ in range(5)]
    assert chunks(outputs, "decode") == [1, 1, 1, 1, 1]
    assert chunks(outputs, "long") == [15, 15, 15, 15, 4]
    assert [s.num_samples for s in outputs[-1].scheduled] == [1, 1]


def test_long_prefill_threshold_bounds_a_chunk():
    scheduler, runner = make(num_blocks=16, budget=64, long_prefill_token_threshold=10)
    scheduler.add(request("a", 25, max_tokens=2))
    scheduler.add(request("b", 12, max_tokens=1))
    outputs = run(scheduler, runner)
    assert chunks(outputs, "a") == [10, 10, 5, 1]
    assert chunks(outputs, "b") == [10, 2]


def test_without_chunks_a_prompt_runs_whole_or_waits():
    scheduler, runner = make(num_blocks=64, budget=64, max_model_len=64, enable_chunked_prefill=False)
    for name, length in (("a", 40), ("b", 30), ("c", 20)):
        scheduler.add(request(name, length, max_tokens=2))
    outputs = run(scheduler, runner)
    assert [chunks(outputs, n) for n in "abc"] == [[40, 1], [30, 1], [20, 1]]
    assert [o.admitted for o in outputs] == [("a",), ("b", "c"), ()]


def test_first_come_first_served_without_overtaking():
    scheduler, runner = make(num_blocks=4, block_size=4)
    scheduler.add(request("a", 8, max_tokens=3))
    scheduler.add(request("big", 12, max_tokens=1))
    scheduler.add(request("small", 1, max_tokens=1))
    outputs = run(scheduler, runner)
    order = [name for o in outputs for name in o.admitted]
    assert order == ["a", "big", "small"], "small would have fitted beside a, but big came first"


def test_the_victim_that_preempts_itself_is_not_scheduled():
    """known fault B26"""
    scheduler, runner = make(num_blocks=4, block_size=4)
    a, b = request("a", 6, max_tokens=9), request("b", 7, max_tokens=9)
    scheduler.add(a)
    scheduler.add(b)
    step(scheduler, runner)
    step(scheduler, runner)
    assert [s.num_computed_tokens for s in (*a.live, *b.live)] == [7, 8]
    output, _ = step(scheduler, runner)
    assert [s.request_id for s in output.scheduled] == ["a"]
    assert output.preempted == ("b",)
    assert [r.request_id for r in scheduler.waiting] == ["b"]
    assert [r.request_id for r in scheduler.running] == ["a"]
    assert scheduler.manager.pool.num_free == 2
    run(scheduler, runner)
    for r in (a, b):
        assert r.sequences[0].output_token_ids == expected_tokens(r.prompt_token_ids, 9, VOCAB)
    assert b.num_preemptions >= 1


def test_nobody_is_admitted_past_who_has_stepped_back():
    scheduler, runner = make(num_blocks=4, block_size=4)
    for name, length in (("a", 6), ("b", 7), ("c", 1)):
        scheduler.add(request(name, length, max_tokens=6))
    outputs = run(scheduler, runner)
    admitted = [name for o in outputs for name in o.admitted]
    assert any(o.preempted for o in outputs)
    assert admitted.index("c") > max(i for i, n in enumerate(admitted) if n == "b"), "c waits until b has resumed"
    assert all(not o.admitted for o in outputs if o.preempted)


def test_alone_in_a_full_pool_a_request_ends_with_length_and_kv_pool():
    """Lesson 00: 14 blocks of 16 hold 208 + 16 tokens; the 17th output token is sampled and never written."""
    scheduler, runner = make(num_blocks=14, block_size=16, max_model_len=256, budget=256)
    r = request("r", 208, max_tokens=43)
    scheduler.add(r)
    outputs = run(scheduler, runner)
    seq = r.sequences[0]
    assert (seq.num_output_tokens, seq.finish_reason, seq.stop_reason) == (17, "length", "kv_pool")
    assert outputs[-1].refused == ("r",)
    assert outputs[-1].scheduled == ()
    assert seq.output_token_ids == expected_tokens(r.prompt_token_ids, 17, VOCAB)


def test_a_preempted_request_that_has_outgrown_the_pool_ends_too():
    scheduler, runner = make(num_blocks=3, block_size=4)
    a, b = request("a", 4, max_tokens=4), request("b", 4, max_tokens=30)
    scheduler.add(a)
    scheduler.add(b)
    run(scheduler, runner)
    assert a.sequences[0].finish_reason == "length"
    assert a.sequences[0].stop_reason is None
    assert b.num_preemptions >= 1
    assert b.sequences[0].stop_reason == "kv_pool"
    assert b.sequences[0].num_output_tokens == 9, "12 slots: 4 prompt, 8 written outputs, and the ninth"
