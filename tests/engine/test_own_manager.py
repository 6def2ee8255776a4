"""A KV manager of one's own: as good as the paged one where nothing is shared, and named at once when its books are wrong."""
from __future__ import annotations

import itertools

import pytest

from paged_edu import LLM, SamplingParams
from paged_edu.core.block_pool import IntegrityError
from paged_edu.core.sequence import Request
from paged_edu.engine.fake_runner import expected_tokens
from paged_edu.engine.own_manager import OwnManager
from paged_edu.trace import memory_report
from paged_edu.viz.fake_engine import FakeEngine, trace24


class OneList(OwnManager):
    def start(self):
        self.free_list = list(range(self.num_blocks))

    def take(self, count):
        return None if count > len(self.free_list) else [self.free_list.pop(0) for _ in range(count)]

    def give(self, blocks):
        self.free_list += blocks

    def num_free(self):
        return len(self.free_list)


def serve(engine):
    steps = 0
    while engine.has_unfinished_requests():
        engine.step()
        engine.scheduler.manager.check()
        steps += 1
        assert steps < 3000
    return steps


def serve_unchecked(engine, requests):
    """As the engine alone does, which never calls the manager's `check`."""
    engine.add(requests)
    for _ in range(3000):
        engine.step()


@pytest.mark.parametrize(("num_blocks", "block_size"), [(60, 16), (24, 16), (96, 4), (330, 1)])
def test_plans_like_the_paged_manager(num_blocks, block_size):
    """The same requests in the same steps; only the numbers of the blocks differ."""
    plans = []
    for kv_manager in ("paged", OneList):
        engine = FakeEngine(num_blocks, block_size, kv_manager=kv_manager)
        engine.add(trace24().requests)
        plan = []
        while engine.has_unfinished_requests():
            output = engine.step()
            plan.append((output.admitted, output.preempted, [(row.request_id, row.token_ids, row.start) for row in output.scheduled]))
        plans.append(plan)
    assert plans[0] == plans[1]


def test_events_and_report_tell_the_same_story():
    from paged_edu.trace import EventLog

    engine = FakeEngine(24, 16, kv_manager=OneList)
    log = EventLog.of(engine.scheduler)
    engine.listen(log)
    engine.add(trace24().requests)
    while engine.has_unfinished_requests():
        engine.step()
        report = engine.scheduler.manager.report()
        assert report == memory_report(log.state)
        assert report.token_states + report.reservation + report.internal + report.external == 384


def test_branches_are_computed_each_for_itself():
    engine = FakeEngine(40, 4, kv_manager=OneList, preemption_mode="recompute")
    made = [Request(name, tuple(range(9)), max_tokens=12, n=3) for name in "ab"]
    for request in made:
        engine.scheduler.add(request)
    serve(engine)
    for request in made:
        assert {seq.branch for seq in request.sequences} == {0, 1, 2}
        for seq in request.sequences:
            assert seq.output_token_ids == expected_tokens(request.prompt_token_ids, 12, 1000, seq.branch)
    assert engine.scheduler.manager.num_free() == 40


def test_doors_and_numbers():
    engine = FakeEngine(4, 4, kv_manager=OneList)
    with pytest.raises(ValueError, match="needs 5 blocks of 4 for its prompt and a first token; the pool has 4"):
        engine.add([(17, 2)])
    engine.add([(3, 40)])
    serve(engine)
    manager = engine.scheduler.manager
    seq = Request("x", (1,), max_tokens=2)
    told = manager.explain(Request("x", tuple(range(30)), n=2))
    assert told == "needs 8 blocks of 4 for its prompt and a first token, each of its 2 branches; the pool has 4"
    with pytest.raises(ValueError, match="this manager recomputes"):
        manager.swap_in([])
    engine.scheduler.add(seq)
    engine.step()
    sequence = seq.live[0]
    assert manager.slots(sequence, 0, 1) == (manager.table(sequence)[0] * 4,)
    with pytest.raises(ValueError, match="has a block table already"):
        manager.admit(sequence, 1)
    with pytest.raises(ValueError, match="cannot be cut to 9 tokens"):
        manager.truncate(sequence, 9)
    manager.truncate(sequence, 0)
    assert manager.num_free() == 4


WRONG = {
    "gave 5: a list of .* blocks was wanted": lambda self, count: 5,
    r"gave block \[0\]; there are": lambda self, count: [[block] for block in OneList.take(self, count)],
    "gave .*: 3 different blocks": lambda self, count: itertools.count(),
    "gave .*: 3 different blocks were wanted": lambda self, count: [0] * count,
    "gave block 99; there are 0 to 23": lambda self, count: [*OneList.take(self, count)[1:], 99],
    "gave block 0, which sequence": lambda self, count: list(range(count)),
    "kept .* of .* free blocks: all or nothing": lambda self, count: self.free_list.clear(),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_books_are_named(message):
    engine = FakeEngine(24, 16, kv_manager=type("Mine", (OneList,), {"take": WRONG[message]}))
    engine.add([(48, 30), (40, 30), (33, 3)])
    with pytest.raises(IntegrityError, match=rf"Mine\.take\(\d+\) .*{message}"):
        serve(engine)


@pytest.mark.parametrize("name", ["give", "num_free"])
def test_nobody_waits_for_blocks_that_are_lost(name):
    wrong = {"give": lambda self, blocks: self.free_list.extend(blocks[1:]), "num_free": lambda self: 0}
    engine = FakeEngine(24, 16, kv_manager=type("Mine", (OneList,), {name: wrong[name]}))
    with pytest.raises(IntegrityError, match=r"free blocks and \d+ in tables are not the 24 of the pool"):
        serve_unchecked(engine, [(48, 30)] * 40)


@pytest.mark.parametrize("said", [None, "24", 24.0])
def test_no_number_of_free_blocks_is_named(said):
    engine = FakeEngine(24, 16, kv_manager=type("Mine", (OneList,), {"num_free": lambda self: said}))
    with pytest.raises(IntegrityError, match=rf"Mine\.num_free\(\) gave {said!r}: a number of blocks"):
        serve_unchecked(engine, [(48, 30)])


def test_a_leak_is_found():
    engine = FakeEngine(24, 16, kv_manager=type("Mine", (OneList,), {"give": lambda self, blocks: None}))
    engine.add([(48, 3)])
    with pytest.raises(IntegrityError, match="0 in tables are not the 24 of the pool"):
        serve(engine)


def test_what_is_no_manager_is_refused_by_name():
    class Half:
        def __init__(self, num_blocks, block_size, max_model_len):
            self.num_blocks, self.block_size = num_blocks, block_size

        def admit(self, seq, num_tokens):
            return 0

    for make in (lambda: FakeEngine(24, 16, kv_manager=Half), lambda: LLM("tiny-shakespeare", kv_manager=Half)):
        with pytest.raises(TypeError, match=r"Half is no KV manager: it has no status\(\), explain\(\), .*shares_blocks"):
            make()
    for option in ({"swap_space": 1.0}, {"enable_prefix_caching": True}, {"watermark": 0.1}):
        with pytest.raises(ValueError, match="needs kv_manager='paged': OneList gives each sequence blocks of its own"):
            LLM("tiny-shakespeare", kv_manager=OneList, **option)
    with pytest.raises(ValueError, match="kv_manager must be one of"):
        LLM("tiny-shakespeare", kv_manager="mine")


def test_a_manager_in_the_real_engine():
    prompts = [list(range(i, i + n)) for i, n in enumerate((30, 3, 20, 5, 2))]
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    options = {"num_gpu_blocks_override": 24, "block_size": 4, "max_model_len": 64, "dtype": "float64"}
    words = []
    for kv_manager in ("paged", OneList):
        with LLM("tiny-shakespeare", kv_manager=kv_manager, **options) as llm:
            words.append([output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)])
            assert llm.memory_report().num_sequences == 0
    assert words[0] == words[1]
