"""Requests at the scheduler: what is refused, how they end, aborts in every state, failed steps, and plans that do not fit."""
import pytest
from driving import VOCAB, expected, make, request, run, step

from paged_edu.core.kv_manager import AllocStatus
from paged_edu.core.plan import Branch, ScheduledSeq, SchedulerOutput, StepResult
from paged_edu.core.scheduler import SchedulerConfig
from paged_edu.core.sequence import Request, Status
from paged_edu.engine.fake_runner import expected_tokens


def test_what_can_never_fit_is_refused_with_both_numbers():
    scheduler, runner = make(num_blocks=12, block_size=16, max_model_len=256, budget=256)
    with pytest.raises(ValueError, match=r"208 tokens and needs 13 blocks of 16; the pool has 12"):
        scheduler.add(request("r", 208))
    assert not scheduler.has_unfinished()
    scheduler.add(request("r", 12))
    run(scheduler, runner)


@pytest.mark.parametrize(("length", "outputs"), [(15, 1), (16, None), (17, None)])
def test_prompts_around_max_model_len(length, outputs):
    """known fault B34"""
    scheduler, runner = make(num_blocks=8, block_size=4, max_model_len=16)
    r = request("r", length, max_tokens=5)
    if outputs is None:
        with pytest.raises(ValueError, match=rf"{length} tokens; max_model_len is 16"):
            scheduler.add(r)
    else:
        scheduler.add(r)
        run(scheduler, runner)
        assert (r.sequences[0].num_output_tokens, r.sequences[0].finish_reason) == (outputs, "length")
    normal = request("n", 4, max_tokens=3)
    scheduler.add(normal)
    run(scheduler, runner)
    assert normal.sequences[0].num_output_tokens == 3


def test_the_only_request_passes_the_watermark():
    """known fault B28"""
    scheduler, runner = make(num_blocks=100, block_size=4, max_model_len=500, budget=500, watermark=0.01)
    scheduler.add(request("big", 399, max_tokens=1))
    assert step(scheduler, runner)[0].admitted == ("big",)


def test_a_live_id_cannot_be_used_twice():
    """known fault B33"""
    scheduler, runner = make()
    first = request("x", 5, max_tokens=4)
    scheduler.add(first)
    step(scheduler, runner)
    with pytest.raises(ValueError, match="'x' is in use"):
        scheduler.add(request("x", 3))
    run(scheduler, runner)
    assert first.sequences[0].output_token_ids == expected(first)
    again = request("x", 3, max_tokens=2)
    scheduler.add(again)
    run(scheduler, runner)
    assert again.sequences[0].num_output_tokens == 2


def test_a_request_that_ends_on_its_first_token_frees_everything():
    """known fault B39"""
    scheduler, runner = make()
    one, eos = request("one", 5, max_tokens=1), request("eos", 5, max_tokens=8)
    eos.eos_token_ids = frozenset(expected_tokens(eos.prompt_token_ids, 1, VOCAB))
    scheduler.add(one)
    scheduler.add(eos)
    outputs = run(scheduler, runner)
    assert len(outputs) == 1
    assert [(r.sequences[0].finish_reason, r.sequences[0].num_output_tokens) for r in (one, eos)] == [("length", 1), ("stop", 1)]


def test_abort_in_every_state_empties_every_table():
    """known fault B08"""
    scheduler, runner = make(num_blocks=12, budget=16, seqs=4)
    stages = ("waiting", "after a chunk", "after two tokens", "preempted")
    for i in range(48):
        scheduler.add(request(f"r{i}", 20 + i % 7, max_tokens=6))
    aborted = dict.fromkeys(stages, 0)
    while scheduler.has_unfinished():
        for r in list(scheduler.requests.values()):
            seq = r.live[0]
            stage = {
                Status.WAITING: "waiting", Status.PREEMPTED: "preempted",
                Status.RUNNING: "after a chunk" if 0 < seq.num_computed_tokens < len(r.prompt_token_ids) else
                "after two tokens" if seq.num_output_tokens == 2 else "",
            }[r.status]
            if stage and aborted[stage] < 3 and hash((r.arrival_index, scheduler.step)) % 3 == 0:
                assert scheduler.abort(r.request_id)
                assert r.sequences[0].finish_reason == "abort"
                aborted[stage] += 1
                assert not scheduler.abort(r.request_id), "a second abort finds nothing"
        if scheduler.has_unfinished():
            step(scheduler, runner)
    assert all(aborted.values()), aborted
    assert not scheduler.requests
    assert not scheduler.manager.tables
    assert not scheduler.manager._sequences
    assert scheduler.manager.pool.num_free == 12


def test_abort_while_the_step_runs_and_reuse_of_the_id():
    scheduler, runner = make()
    scheduler.add(request("x", 5))
    scheduler.add(request("y", 5))
    output = scheduler.schedule()
    result = runner.execute(output)
    scheduler.abort("x")
    fresh = request("x", 7, max_tokens=3)
    scheduler.add(fresh)
    grown = scheduler.update(output, result)
    assert [s.request.request_id for s in grown] == ["y"]
    assert fresh.live[0].num_tokens == 7
    run(scheduler, runner)
    assert fresh.sequences[0].output_token_ids == expected(fresh)


def test_a_step_that_failed_is_computed_again():
    scheduler, runner = make()
    a, b = request("a", 6, max_tokens=5), request("b", 3, max_tokens=5)
    scheduler.add(a)
    scheduler.add(b)
    step(scheduler, runner)
    output = scheduler.schedule()
    assert output.scheduled
    scheduler.recover()
    assert scheduler.manager.pool.num_used == 0
    assert [r.status for r in (a, b)] == [Status.PREEMPTED] * 2
    run(scheduler, runner)
    for r in (a, b):
        assert r.sequences[0].output_token_ids == expected_tokens(r.prompt_token_ids, 5, VOCAB)


def test_finish_from_outside():
    scheduler, runner = make()
    r = request("r", 5, max_tokens=9)
    scheduler.add(r)
    _, grown = step(scheduler, runner)
    scheduler.finish(grown[0].seq_id, "stop", "END")
    assert (grown[0].finish_reason, grown[0].stop_reason) == ("stop", "END")
    assert not scheduler.has_unfinished()
    with pytest.raises(ValueError, match="no live sequence has the id 0"):
        scheduler.finish(0, "stop")


def test_max_num_seqs_counts_sequences():
    scheduler, runner = make(num_blocks=64, seqs=2)
    for i in range(5):
        scheduler.add(request(f"r{i}", 3, max_tokens=4))
    outputs = run(scheduler, runner)
    assert max(len(o.scheduled) for o in outputs) == 2


def test_ignore_eos_and_stop_tokens_are_separate_sets():
    """known fault B61, the scheduler's part: the tokens 7 5 7 1 7 8 7 with end tokens 1 and 5."""
    script = [7, 5, 7, 1, 7, 8, 7]
    for eos, stop, length, reason in (((), (), 7, ("length", None)), ((), (8,), 6, ("stop", 8)), ((1, 5), (), 2, ("stop", None))):
        scheduler, _ = make()
        r = request("r", 2, max_tokens=7, eos_token_ids=frozenset(eos), stop_token_ids=frozenset(stop))
        scheduler.add(r)
        for token in script:
            if not scheduler.has_unfinished():
                break
            output = scheduler.schedule()
            scheduler.update(output, StepResult({"r": (Branch(r.sequences[0].seq_id, (token,)),)}))
        assert r.sequences[0].num_output_tokens == length
        assert (r.sequences[0].finish_reason, r.sequences[0].stop_reason) == reason


def test_min_tokens_outlasts_a_stop_token():
    r = request("r", 2, max_tokens=5, min_tokens=3, stop_token_ids=frozenset([7]))
    scheduler, _ = make()
    scheduler.add(r)
    for _ in range(3):
        output = scheduler.schedule()
        scheduler.update(output, StepResult({"r": (Branch(r.sequences[0].seq_id, (7,)),)}))
    assert r.sequences[0].num_output_tokens == 3
    assert r.sequences[0].stop_reason == 7


@pytest.mark.parametrize("branches", [(Branch(0, (1,)), Branch(9, (1,))), (Branch(9, (1,)),)])
def test_a_runner_that_answers_for_others_is_refused(branches):
    scheduler, _ = make()
    scheduler.add(request("r", 2))
    output = scheduler.schedule()
    with pytest.raises(ValueError, match="answer sequences"):
        scheduler.update(output, StepResult({"r": branches}))


def test_a_runner_that_forgets_a_request_is_named():
    scheduler, _ = make()
    scheduler.add(request("r", 2))
    with pytest.raises(ValueError, match="step 1: 'r' was to be sampled and the runner gave no token"):
        scheduler.update(scheduler.schedule(), StepResult())


def test_the_plan_prints_the_mechanism():
    scheduler, runner = make(budget=8)
    scheduler.add(request("a", 10, max_tokens=2))
    text = str(step(scheduler, runner)[0])
    assert "step 1: 1 sequence, 8 tokens" in text
    assert "admitted: a" in text
    assert "a/0: positions 0-7 into slots 0..7 through [0, 1, 2], catching up" in text
    assert "a/0: positions 8-9 into slots 8..9" in str(step(scheduler, runner)[0])
    assert "position 10 into slot 10 through [0, 1, 2], samples" in str(step(scheduler, runner)[0])


def test_the_plan_prints_scattered_slots_in_runs():
    item = ScheduledSeq("a", 0, 0, tuple(range(9)), 0, (20, 21, 22, 23, 24, 25, 26, 27, 4), (5, 6, 1))
    assert "a/0: positions 0-8 into slots 20..27, 4 through [5, 6, 1]" in str(SchedulerOutput(1, (item,)))


def test_an_empty_scheduler_plans_an_empty_step():
    scheduler, _ = make()
    output = scheduler.schedule()
    assert output == SchedulerOutput(1)
    assert scheduler.update(output, StepResult()) == []


@pytest.mark.parametrize(("options", "message"), [
    ({"max_model_len": 1}, "max_model_len must be at least 2"), ({"max_num_seqs": 0}, "max_num_seqs must be at least 1, not 0"),
    ({"max_num_seqs": 9, "max_num_batched_tokens": 8}, r"max_num_batched_tokens \(8\) must be at least max_num_seqs \(9\)"),
    ({"long_prefill_token_threshold": -1}, "at least 0, not -1"),
])
def test_bad_limits_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SchedulerConfig(**({"max_model_len": 16} | options))


@pytest.mark.parametrize(("options", "message"), [
    ({"prompt_token_ids": ()}, "the prompt is empty"), ({"max_tokens": 0}, "max_tokens is 0"), ({"n": 0}, "n is 0"),
])
def test_bad_requests_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Request(**({"request_id": "r", "prompt_token_ids": (1,)} | options))


def test_a_policy_whose_keys_change_is_named():
    class Moody:
        order = {"a": 0, "b": 1, "c": 2}

        def key(self, r):
            return (self.order[r.request_id],)

    policy = Moody()
    scheduler, _ = make(policy=policy)
    for name in "abc":
        scheduler.add(request(name, 5))
    policy.order = {"a": 5, "b": 1, "c": 2}
    with pytest.raises(RuntimeError, match=r"Moody.key of 'a' is not unique or changed"):
        scheduler.abort("a")


def test_status_of_a_request_that_waits():
    scheduler, _ = make(num_blocks=4, block_size=4)
    a, b = request("a", 9), request("b", 9)
    scheduler.add(a)
    scheduler.add(b)
    scheduler.schedule()
    assert scheduler.manager.status(b) is AllocStatus.LATER
