"""Liveness and safety for any arrivals and any pool that fits one request (hypothesis), and the trace that must tell the same story."""
from driving import VOCAB, expected, make, request, snapshot_equal, step
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paged_edu.core import events as ev
from paged_edu.trace import EventLog, TraceState

requests = st.tuples(st.integers(1, 24), st.integers(1, 20), st.integers(0, 30), st.sampled_from([None, None, None, 3, 9]))


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    arrivals=st.lists(requests, min_size=1, max_size=12), block_size=st.sampled_from([1, 2, 3, 4, 16, 64]), extra=st.integers(0, 6),
    budget=st.integers(1, 40), seqs=st.integers(1, 8), threshold=st.sampled_from([0, 0, 1, 7]), watermark=st.sampled_from([0.0, 0.3]),
)
def test_every_admitted_request_ends_with_its_own_tokens(arrivals, block_size, extra, budget, seqs, threshold, watermark):
    """Smallest feasible pools upwards: each request ends, none loses or repeats a token, and the fold of events is the scheduler."""
    longest = max(prompt for prompt, *_ in arrivals)
    num_blocks = -(-longest // block_size) + extra
    scheduler, runner = make(
        num_blocks, block_size, max_model_len=40, budget=budget, seqs=seqs, long_prefill_token_threshold=threshold, watermark=watermark,
    )
    state = TraceState(num_blocks, block_size)
    log = EventLog(TraceState(num_blocks, block_size), max_steps=50, snapshot_every=7)

    states = {}

    def listen(event):
        if isinstance(event, ev.StepStarted):
            states[event.step - 1] = state.copy()
        state.apply(event)
        log(event)

    scheduler.emit = scheduler.manager.emit = listen
    todo = sorted(((at, i, prompt, out, abort) for i, (prompt, out, at, abort) in enumerate(arrivals)))
    made = []
    time = 0
    while todo or scheduler.has_unfinished():
        while todo and todo[0][0] <= time:
            _, i, prompt, out, abort = todo.pop(0)
            made.append((request(f"r{i}", prompt, max_tokens=out), abort))
            scheduler.add(made[-1][0])
        for r, abort in made:
            if abort is not None and not r.finished and r.live and r.live[0].num_output_tokens >= abort:
                scheduler.abort(r.request_id)
        step(scheduler, runner)
        snapshot_equal(state, scheduler)
        time += 1
        assert time < 3000, "somebody starves"
    slots = num_blocks * block_size
    for r, _ in made:
        seq = r.sequences[0]
        assert seq.output_token_ids == expected(r), "a token was lost, repeated or read from the wrong slot"
        if seq.finish_reason == "length":
            full = {r.max_tokens, 40 - len(r.prompt_token_ids)}
            if seq.stop_reason == "kv_pool":
                assert seq.num_tokens == slots + 1, "it ends only when it has filled every slot"
            else:
                assert seq.num_output_tokens == min(full)
    assert not scheduler.manager.tables
    assert scheduler.manager.pool.num_free == num_blocks
    for number in range(log.first_step, log.last_step):
        assert log.replay(number) == states[number]
    assert log.replay(log.last_step) == log.state == state
    assert log.last_step - log.first_step <= 50 + 7


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=2, max_size=8), block_size=st.integers(1, 5))
def test_preemption_happens_and_changes_no_token(lengths, block_size):
    """The tightest pool (one request at its longest) against a roomy one: same tokens."""
    def serve(num_blocks):
        scheduler, runner = make(num_blocks, block_size, max_model_len=64)
        made = [request(f"r{i}", p, max_tokens=n) for i, (p, n) in enumerate(lengths)]
        for r in made:
            scheduler.add(r)
        for _ in range(5000):
            if not scheduler.has_unfinished():
                break
            step(scheduler, runner)
        return [r.sequences[0].output_token_ids for r in made], sum(r.num_preemptions for r in made)

    tight = max(-(-(p + n - 1) // block_size) for p, n in lengths)
    roomy = sum(-(-(p + n) // block_size) for p, n in lengths)
    tokens, _ = serve(tight)
    expected_run, none = serve(roomy)
    assert tokens == expected_run
    assert none == 0


def test_the_tight_pool_does_preempt():
    scheduler, runner = make(num_blocks=6, block_size=2, max_model_len=64)
    made = [request(f"r{i}", 3, max_tokens=9) for i in range(5)]
    for r in made:
        scheduler.add(r)
    while scheduler.has_unfinished():
        step(scheduler, runner)
    assert sum(r.num_preemptions for r in made) > 0
    assert all(r.sequences[0].output_token_ids == expected(r) for r in made)
    assert runner.vocab_size == VOCAB
