"""Helpers of the scheduler tests: build one, drive it with the fake runner that moves bytes, check every step."""
from __future__ import annotations

from paged_edu.core.kv_manager import PagedKVManager
from paged_edu.core.scheduler import Scheduler, SchedulerConfig
from paged_edu.core.sequence import Request, Status
from paged_edu.engine.fake_runner import FakeRunner, expected_tokens
from paged_edu.trace import TraceState

VOCAB = 1000


def make(num_blocks=8, block_size=4, max_model_len=64, budget=64, seqs=16, policy=None, watermark=0.0, **options):
    manager = PagedKVManager(num_blocks, block_size, watermark)
    config = SchedulerConfig(max_model_len, min(seqs, budget), budget, **options)
    return Scheduler(config, manager, policy), FakeRunner(num_blocks, block_size, VOCAB)


def request(name, prompt_len, max_tokens=5, **options):
    seed = sum(map(ord, name)) * 7919
    return Request(name, tuple((seed + 31 * k) % VOCAB for k in range(prompt_len)), max_tokens=max_tokens, **options)


def check(scheduler):
    """What must hold after every step."""
    scheduler.manager.check()
    queued = scheduler.waiting + scheduler.running
    assert len({r.request_id for r in queued}) == len(queued) == len(scheduler.requests), "a request is in exactly one queue"
    assert scheduler.num_running_seqs == sum(len(r.live) for r in scheduler.running) <= scheduler.config.max_num_seqs
    for r in scheduler.running:
        assert r.status is Status.RUNNING
        assert all(scheduler.manager.holds(s) for s in r.live)
    for r in scheduler.waiting:
        assert r.status in (Status.WAITING, Status.PREEMPTED)
        assert not any(scheduler.manager.holds(s) for s in r.live), "who waits holds nothing"
    for queue in (scheduler.waiting, scheduler.running):
        keys = [scheduler.policy.key(r) for r in queue]
        assert keys == sorted(keys)
    assert set(scheduler.manager.tables) == {s.seq_id for r in scheduler.running for s in r.live}


def check_output(scheduler, output):
    assert output.num_tokens <= scheduler.config.max_num_batched_tokens
    ids = [s.seq_id for s in output.scheduled]
    assert len(set(ids)) == len(ids)
    assert not set(output.preempted) & {s.request_id for s in output.scheduled}
    written = [slot for s in output.scheduled for slot in s.slots]
    assert len(set(written)) == len(written), "two tokens in one slot"


def step(scheduler, runner):
    output = scheduler.schedule()
    check_output(scheduler, output)
    grown = scheduler.update(output, runner.execute(output))
    check(scheduler)
    return output, grown


def run(scheduler, runner, limit=5000):
    """Drive to the end; returns the outputs of all steps."""
    outputs = []
    while scheduler.has_unfinished():
        outputs.append(step(scheduler, runner)[0])
        assert len(outputs) < limit, f"not finished after {limit} steps"
    assert scheduler.manager.pool.num_used == 0
    assert not scheduler.manager.tables
    assert not scheduler.manager._sequences
    assert not scheduler.waiting
    assert not scheduler.running
    return outputs


def expected(r: Request) -> list[int]:
    return expected_tokens(r.prompt_token_ids, len(r.sequences[0].output_token_ids), VOCAB)


def snapshot_equal(state: TraceState, scheduler: Scheduler) -> None:
    """The fold of events and the live scheduler tell the same story."""
    live = TraceState.of(scheduler)
    assert state.sequences == live.sequences
    assert {k: (r.status, r.arrival, r.num_preemptions, r.num_prompt_tokens) for k, r in state.requests.items()} == {
        k: (r.status, r.arrival, r.num_preemptions, r.num_prompt_tokens) for k, r in live.requests.items()}
    assert state.ref_counts() == scheduler.manager.pool.ref_counts
    assert state.step == scheduler.step
