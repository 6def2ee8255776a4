"""Ten thousand requests, a tenth of them aborted: every table is empty afterwards, and memory does not grow with the number served."""
import gc
import random
import sys
from functools import cache

from test_engine import VOCAB

from paged_edu import SamplingParams
from paged_edu.core.limits import SchedulerConfig
from paged_edu.core.paged import PagedKVManager
from paged_edu.core.scheduler import Scheduler
from paged_edu.engine.engine import Engine
from paged_edu.engine.fake_runner import FakeRunner, expected_tokens


@cache
def said(prompt, count, branch):
    return tuple(expected_tokens(prompt, count, VOCAB, branch))


def test_ten_thousand_requests_leave_nothing_behind():
    """known faults B08, B22: with samples, a prefix cache that is always full, swap and recomputation."""
    chance = random.Random(5)
    manager = PagedKVManager(48, 4, prefix_caching=True, num_cpu_blocks=30)
    engine = Engine(
        Scheduler(SchedulerConfig(64, 48, 256), manager), FakeRunner(48, 4, VOCAB, 30), vocab_size=VOCAB, clock=lambda: 0.0,
    )
    alive: dict[str, tuple[list[int], SamplingParams]] = {}
    finished = aborted = preempted = 0
    levels = []
    for number in range(10_000):
        prompt = [number % 7 * 11 + k for k in range(chance.randint(1, 14))]
        params = SamplingParams(n=chance.choice([1, 1, 1, 2, 4]), max_tokens=chance.randint(1, 8))
        engine.add_request(f"r{number}", prompt, params)
        alive[f"r{number}"] = prompt, params
        if chance.random() < 0.1:
            victim = chance.choice(sorted(alive))
            del alive[victim]
            assert engine.abort_request(victim).finished
            aborted += 1
        while len(alive) > 30 or (number == 9_999 and engine.has_unfinished_requests()):
            for output in engine.step(finished_only=True):
                prompt, params = alive.pop(output.request_id)
                finished += 1
                preempted += output.metrics.num_preemptions
                assert len(output.outputs) == params.n
                for done in output.outputs:
                    assert done.token_ids == said(tuple(prompt), 8, done.index)[: params.max_tokens]
        if number in (2_000, 9_998):        # the same number of requests is alive
            gc.collect()
            levels.append(sys.getallocatedblocks())
    assert finished + aborted == 10_000
    assert 800 < aborted < 1200
    assert preempted > 100
    scheduler = engine.scheduler
    assert scheduler.prefix_stats.hits > 0
    assert manager.pool.num_used == manager.swapped.num_used == scheduler.num_running_seqs == 0
    for table in (
        engine._records, engine._sampling, engine._kept, engine._aborts, engine.completions._texts, engine.completions.shown, scheduler.requests,
        scheduler.sequences, scheduler.waiting, scheduler.running, manager.tables, manager._sequences, manager.swapped.tables,
    ):
        assert not table
    assert len(manager.index) <= 48
    assert levels[1] - levels[0] < 4_000, f"{levels[1] - levels[0]} more pieces of memory after 8,000 further requests"
