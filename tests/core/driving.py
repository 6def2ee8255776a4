"""Helpers of the scheduler tests: build one, drive it with the fake runner that moves bytes, check every step."""
from __future__ import annotations

from paged_edu.core.contiguous import ContiguousKVManager
from paged_edu.core.paged import PagedKVManager
from paged_edu.core.scheduler import Scheduler, SchedulerConfig
from paged_edu.core.sequence import Request, Status
from paged_edu.engine.fake_runner import FakeRunner, expected_tokens
from paged_edu.trace import TraceState, memory_report

VOCAB = 1000


def make(
    num_blocks=8, block_size=4, max_model_len=64, budget=64, seqs=16, policy=None, watermark=0.0, prefix_caching=False, cpu_blocks=0,
    reservation=None, **options,
):
    """``reservation``: of a contiguous manager; None: the paged one."""
    if reservation is None:
        manager = PagedKVManager(num_blocks, block_size, watermark, prefix_caching=prefix_caching, num_cpu_blocks=cpu_blocks)
    else:
        manager = ContiguousKVManager(num_blocks, block_size, reservation, max_model_len)
    config = SchedulerConfig(max_model_len, min(seqs, budget), budget, **options)
    return Scheduler(config, manager, policy), FakeRunner(num_blocks, block_size, VOCAB, cpu_blocks)


def request(name, prompt_len, max_tokens=5, **options):
    seed = sum(map(ord, name)) * 7919
    return Request(name, tuple((seed + 31 * k) % VOCAB for k in range(prompt_len)), max_tokens=max_tokens, **options)


def check(scheduler):
    """What must hold after every step."""
    scheduler.manager.check()
    queued = scheduler.waiting + scheduler.running
    assert len({r.request_id for r in queued}) == len(queued) == len(scheduler.requests), "a request is in exactly one queue"
    assert scheduler.num_running_seqs == sum(r.places for r in scheduler.running) <= scheduler.config.max_num_seqs
    manager = scheduler.manager
    tables, swapped, index = _books(manager)
    for r in scheduler.running:
        assert r.status is Status.RUNNING
        assert r.branching is None
        for s in r.live:
            assert (s.seq_id in tables) != (s in r.pending)
            assert s in r.pending or s.leader is None
    for r in scheduler.waiting:
        assert r.status in (Status.WAITING, Status.PREEMPTED, Status.SWAPPED)
        for s in r.live:
            assert s.seq_id not in tables, "who waits holds no block of the pool"
            assert (s.seq_id in swapped) == (r.status is Status.SWAPPED)
    for queue in (scheduler.waiting, scheduler.running):
        keys = [scheduler.policy.key(r) for r in queue]
        assert keys == sorted(keys)
    live = {s.seq_id for r in queued for s in r.live}
    assert set(tables) | set(swapped) <= live == set(scheduler.sequences)
    report = manager.report()
    assert report.token_states + report.reservation + report.internal + report.external == report.total == manager.num_blocks * manager.block_size
    assert min(report.token_states, report.reservation, report.internal, report.external) >= 0
    assert report.num_sequences == len(tables)
    if index is not None:               # every entry of the index stands for computed text
        assert not set(index) & set(manager.pool.free_blocks())


def _books(manager):
    """``(who holds blocks, who is swapped out, the prefix index)`` of any manager."""
    if isinstance(manager, ContiguousKVManager):
        return manager._held, {}, None
    return manager.tables, manager.swapped.tables, manager.index


def assert_empty(manager):
    """Nobody holds anything any more."""
    manager.check()
    if isinstance(manager, ContiguousKVManager):
        assert not manager._held
        assert manager.buddy.num_free == manager.num_blocks
        assert manager.buddy.free_runs() == type(manager.buddy)(manager.num_blocks).free_runs(), "every run has found its buddy again"
        return
    assert manager.pool.num_used == manager.swapped.num_used == 0
    assert not manager.tables
    assert not manager.swapped.tables
    assert not manager._sequences


def check_output(scheduler, output):
    assert output.num_tokens <= scheduler.config.max_num_batched_tokens
    ids = [s.seq_id for s in output.scheduled]
    assert len(set(ids)) == len(ids)
    assert not set(output.preempted) & {s.request_id for s in output.scheduled}
    assert not (output.swap_in and output.swap_out), "never both ways in one step"
    for copies in (output.copies, output.swap_in, output.swap_out):
        assert len({c.dst for c in copies}) == len(copies)
    assert not {c.src for c in output.copies} & {c.dst for c in output.copies}
    written = [slot for s in output.scheduled for slot in s.slots if slot >= 0]
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
    assert_empty(scheduler.manager)
    assert not scheduler.waiting
    assert not scheduler.running
    return outputs


def expected(r: Request, branch: int = 0) -> list[int]:
    """What the branch should have said, as far as it came."""
    seq = next(s for s in r.sequences if s.branch == branch)
    return expected_tokens(r.prompt_token_ids, len(seq.output_token_ids), VOCAB, branch)


def hypotheses(r: Request) -> list[tuple[list[int], str]]:
    """The ended hypotheses of a beam search, as `expected_beams` lists them."""
    return [(s.output_token_ids, s.finish_reason) for s in r.sequences if s.finish_reason in ("stop", "length")]


def snapshot_equal(state: TraceState, scheduler: Scheduler) -> None:
    """The fold of events and the live scheduler tell the same story."""
    live = TraceState.of(scheduler)
    assert state.sequences == live.sequences
    assert {k: (r.status, r.arrival, r.num_preemptions, r.num_prompt_tokens) for k, r in state.requests.items()} == {
        k: (r.status, r.arrival, r.num_preemptions, r.num_prompt_tokens) for k, r in live.requests.items()}
    assert state.step == scheduler.step
    manager = scheduler.manager
    if isinstance(manager, ContiguousKVManager):
        used = {block for start, order in manager.buddy.orders.items() for block in range(start, start + (1 << order))}
        owned = [block for seq in state.sequences.values() for block in (*seq.blocks, *seq.reserved)]
        assert len(owned) == len(set(owned)), "nothing is shared"
        assert set(owned) <= used
    else:
        assert state.ref_counts() == manager.pool.ref_counts
        assert state.entries == live.entries
        assert state.cached_blocks() == manager.pool.cached_blocks()
    assert memory_report(state) == memory_report(live) == manager.report()
