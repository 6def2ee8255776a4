"""The prefix cache: exact keys, pinned hits, eviction tail first, only computed blocks; known faults B14-B19, B22."""
import pytest
from driving import expected, make, run, step

from paged_edu.core.block_pool import BlockPool
from paged_edu.core.prefix_index import ROOT, PrefixIndex
from paged_edu.core.sequence import Request

P13 = tuple(range(1, 14))


def cached(num_blocks=12, **options):
    return make(num_blocks, 4, prefix_caching=True, **options)


def serve(scheduler, runner, name, prompt, **options):
    made = Request(name, tuple(prompt), **({"max_tokens": 1} | options))
    scheduler.add(made)
    run(scheduler, runner)
    assert made.sequences[0].output_token_ids == expected(made)
    return made


def hits(scheduler, prompt):
    return [block for _, block in scheduler.manager.index.lookup(list(prompt), 4, None)]


def test_hits_are_pinned_before_new_blocks_are_taken():
    """B14: 3 blocks cached, 1 free; a prompt of 13 tokens hits 3 and takes the free one."""
    scheduler, runner = cached(4)
    serve(scheduler, runner, "a", P13[:12])
    assert (scheduler.manager.pool.num_cached, scheduler.manager.pool.num_free) == (3, 1)
    before = hits(scheduler, P13)
    made = Request("b", P13, max_tokens=1)
    scheduler.add(made)
    output = scheduler.schedule()
    assert list(output.scheduled[0].block_table[:3]) == before
    assert output.scheduled[0].block_table[3] not in before
    assert output.scheduled[0].token_ids == (13,)
    scheduler.update(output, runner.execute(output))
    assert made.num_cached_tokens == 12


def test_an_admission_counts_the_hits_that_it_would_pin():
    """B14, at the manager: 3 of 4 blocks are cached and available, and b hits them; pinned they leave none for its fourth."""
    scheduler, runner = cached(4)
    serve(scheduler, runner, "a", P13[:12])
    scheduler.add(Request("c", (70,), max_tokens=3))
    step(scheduler, runner)
    manager, made = scheduler.manager, Request("b", P13)
    assert (manager.pool.num_available, manager.pool.num_cached) == (3, 3)
    scheduler.add(made)
    assert manager.admit(made.live[0], 13) is None
    assert (manager.pool.num_used, len(manager.tables), len(hits(scheduler, P13))) == (1, 1, 3)
    manager.check()


def test_a_hit_that_is_the_oldest_of_all_is_not_overwritten_by_its_own_request():
    """B14, sharper: no block is free, and the two hits are what would be overwritten first."""
    scheduler, runner = cached(4)
    serve(scheduler, runner, "a", P13[:8])
    serve(scheduler, runner, "b", range(100, 108))
    assert scheduler.manager.pool.num_free == 0
    assert scheduler.manager.pool.cached_blocks()[:2] == hits(scheduler, P13)[::-1]
    made = serve(scheduler, runner, "c", (*P13[:8], 70, 71), max_tokens=2)
    assert made.num_cached_tokens == 8
    assert len(hits(scheduler, P13)) == 2
    assert len(hits(scheduler, range(100, 108))) == 1


@pytest.mark.parametrize(("others", "at_once"), [(0, True), (1, False)])
def test_what_others_hold_costs_a_newcomer_no_block(others, at_once):
    """Of 4 blocks "a" holds 3, two of them with b's own beginning: b, which fills 3, needs the last one only."""
    scheduler, runner = cached(4 + others)
    scheduler.add(Request("a", P13[:8], max_tokens=4))
    if others:
        scheduler.add(Request("c", range(100, 105), max_tokens=4))
    for _ in range(2):
        step(scheduler, runner)
    assert scheduler.manager.pool.num_available == 1 - others
    made = Request("b", (*P13[:8], 50), max_tokens=1)
    scheduler.add(made)
    step(scheduler, runner)
    assert made.finished == at_once
    run(scheduler, runner)
    assert made.num_cached_tokens == 8
    assert made.sequences[0].output_token_ids == expected(made)


def test_a_refused_admission_leaves_the_cache_as_it_was():
    """B14, second pool: all 3 blocks are cached and 4 would be needed."""
    scheduler, runner = cached(3)
    serve(scheduler, runner, "a", P13[:12])
    before = scheduler.manager.pool.cached_blocks()
    with pytest.raises(ValueError, match="needs 4 blocks of 4; the pool has 3"):
        scheduler.add(Request("b", P13))
    assert scheduler.manager.pool.cached_blocks() == before
    assert scheduler.manager.pool.ref_counts == [0, 0, 0]


def test_a_failed_admission_pins_nothing():
    scheduler, runner = cached(4)
    serve(scheduler, runner, "a", P13[:12])
    scheduler.add(Request("big", (70, 71), max_tokens=20))
    step(scheduler, runner)
    pool = scheduler.manager.pool
    books = pool.cached_blocks(), pool.free_blocks(), list(pool.ref_counts)
    scheduler.add(Request("b", P13, max_tokens=2))
    output = scheduler.schedule()
    assert "b" not in output.admitted
    assert (pool.cached_blocks(), pool.free_blocks(), list(pool.ref_counts)) == books


def test_eviction_takes_the_tail_of_a_chain_first():
    """B15"""
    scheduler, runner = cached(3)
    serve(scheduler, runner, "a", P13[:12])
    chain = hits(scheduler, P13)
    serve(scheduler, runner, "b", (50, 51))
    assert hits(scheduler, P13) == chain[:2]


def test_the_least_recently_used_chain_goes_first():
    scheduler, runner = cached(4)
    serve(scheduler, runner, "a", P13[:8])
    serve(scheduler, runner, "b", range(100, 108))
    serve(scheduler, runner, "a2", P13[:8])         # a hit: a is the younger chain now
    serve(scheduler, runner, "c", range(200, 208))
    assert len(hits(scheduler, P13)) == 2
    assert hits(scheduler, range(100, 108)) == []


def test_lookup_stops_at_the_first_hole():
    """B16"""
    index = PrefixIndex()
    first = index.register(7, ROOT, P13[:4], None)
    second = index.register(8, first, P13[4:8], None)
    index.register(9, second, P13[8:12], None)
    index.forget(8)
    assert [block for _, block in index.lookup(list(P13), 4, None)] == [7]
    again = index.register(8, first, P13[4:8], None)
    assert again != second, "entries are never used twice"
    assert [block for _, block in index.lookup(list(P13), 4, None)] == [7, 8], "block 9 belonged to the forgotten entry"


def test_keys_are_exact():
    index = PrefixIndex()
    first = index.register(1, ROOT, (1, 2, 3, 4), None)
    other = index.register(2, ROOT, (1, 2, 3, 5), None)
    index.register(3, first, (9, 9, 9, 9), None)
    assert index.lookup([1, 2, 3, 5, 9, 9, 9, 9], 4, None) == [(other, 2)], "the same block after another beginning is another entry"
    assert index.lookup([1, 2, 3, 4], 4, "salt") == []
    assert index.lookup([1, 2, 3], 4, None) == []


def test_the_same_text_twice_keeps_the_first_block():
    index = PrefixIndex()
    first = index.register(1, ROOT, (1, 2), None)
    assert index.register(2, ROOT, (1, 2), None) == first
    assert 2 not in index
    index.forget(2)
    assert index.block_of(first) == 1


def test_what_was_not_computed_is_not_served():
    """B17: aborted after the allocation and before any forward pass; and two equal prompts in one step both compute."""
    scheduler, runner = cached()
    scheduler.add(Request("a", P13[:9]))
    scheduler.schedule()
    scheduler.recover()
    scheduler.abort("a")
    assert serve(scheduler, runner, "b", P13[:9]).num_cached_tokens == 0
    scheduler, runner = cached()
    made = [Request(name, P13[:9], max_tokens=2) for name in "ab"]
    for r in made:
        scheduler.add(r)
    output, _ = step(scheduler, runner)
    assert [s.num_new for s in output.scheduled] == [9, 9]
    run(scheduler, runner)
    assert all(r.sequences[0].output_token_ids == expected(r) for r in made)


def test_an_abort_in_mid_step_registers_nothing_that_did_not_run():
    scheduler, runner = cached()
    scheduler.add(Request("a", P13[:9]))
    output = scheduler.schedule()
    scheduler.abort("a")
    scheduler.update(output, runner.execute(output))
    assert len(scheduler.manager.index) == 0


def test_chunks_enter_their_full_blocks_as_they_are_computed():
    """B18: budget 4, prompt 8: two chunks, sampled after the second; aborted after the first and sent again it finds 4 tokens."""
    scheduler, runner = cached(budget=4, seqs=4)
    scheduler.add(Request("a", P13[:8], max_tokens=2))
    chunks = [[s.num_new for s in step(scheduler, runner)[0].scheduled] for _ in range(2)]
    assert chunks == [[4], [4]]
    assert scheduler.manager.pool.num_used == 2
    step(scheduler, runner)
    scheduler, runner = cached(budget=4, seqs=4)
    scheduler.add(Request("a", P13[:8]))
    step(scheduler, runner)
    scheduler.abort("a")
    assert serve(scheduler, runner, "b", P13[:8]).num_cached_tokens == 4


def test_the_hit_is_looked_up_again_when_the_request_is_really_admitted():
    """B19: 8 tokens were cached when it came; others have overwritten them when there is room at last."""
    scheduler, runner = cached(4)
    serve(scheduler, runner, "a", P13[:8])
    scheduler.add(Request("big", range(300, 309), max_tokens=7))
    step(scheduler, runner)
    made = Request("b", P13[:9], max_tokens=1)
    scheduler.add(made)
    assert len(hits(scheduler, P13[:9])) == 1
    run(scheduler, runner)
    assert made.num_cached_tokens == 0
    assert made.sequences[0].output_token_ids == expected(made)


def test_a_prompt_that_is_cached_whole_queries_its_last_token_and_writes_nothing():
    scheduler, runner = cached()
    serve(scheduler, runner, "a", P13[:8])
    used = hits(scheduler, P13)
    made = Request("b", P13[:8], max_tokens=3)
    scheduler.add(made)
    output, _ = step(scheduler, runner)
    (item,) = output.scheduled
    assert (item.start, item.slots, item.logits_from, item.num_samples) == (7, (-1,), 0, 1)
    assert list(item.block_table) == used, "no block is copied and none is lost"
    assert not output.copies
    assert made.num_cached_tokens == 7
    run(scheduler, runner)
    assert made.sequences[0].output_token_ids == expected(made)


def test_the_next_slot_of_a_prompt_that_is_cached_whole_is_not_written():
    scheduler, runner = cached()
    serve(scheduler, runner, "a", P13[:8])
    manager, made = scheduler.manager, Request("b", P13[:8])
    scheduler.add(made)
    seq = made.live[0]
    assert manager.admit(seq, 8) == 8
    seq.num_computed_tokens = 7
    assert manager.next_slot(seq) is None
    assert manager.slots(seq, 7, 8) == (-1,)


def test_a_chat_finds_its_own_earlier_turns():
    """Generated tokens are cached like prompt tokens, up to the last one that was computed."""
    scheduler, runner = cached(30)
    first = serve(scheduler, runner, "t1", P13[:6], max_tokens=11)
    text = first.sequences[0].token_ids
    assert len(text) == 17, "16 of them have keys and values"
    second = serve(scheduler, runner, "t2", [*text, 900, 901, 902], max_tokens=5)
    assert second.num_cached_tokens == 16


def test_finding_ones_own_blocks_after_a_preemption_is_no_hit_for_the_user():
    """B22"""
    scheduler, runner = cached(6, preemption_mode="recompute")
    made = [Request(name, range(100 * i, 100 * i + 5), max_tokens=12) for i, name in enumerate("abc", 1)]
    for r in made:
        scheduler.add(r)
    run(scheduler, runner)
    assert sum(r.num_preemptions for r in made) > 0
    assert scheduler.prefix_stats.hits == 0
    assert scheduler.prefix_stats.returning_hits > 0
    assert scheduler.prefix_stats.queries == 15
    assert all(r.num_cached_tokens == 0 and r.sequences[0].output_token_ids == expected(r) for r in made)


def test_swapping_in_takes_what_is_still_here():
    scheduler, runner = cached(20, cpu_blocks=20)
    scheduler.add(Request("g", P13[:8], n=3, max_tokens=9))
    for _ in range(3):
        step(scheduler, runner)
    group = scheduler.running[0]
    out = scheduler.manager.swap_out(group.live)
    back = scheduler.manager.swap_in(group.live)
    runner._move(0, out, runner.cells, runner.cpu_cells)
    runner._move(0, back, runner.cpu_cells, runner.cells)
    assert len(out) == 2 + 3
    assert len(back) == 3, "the two full blocks of the prompt never left the index"
    scheduler.manager.check()
    run(scheduler, runner)
    for seq in group.sequences:
        assert seq.output_token_ids == expected(group, seq.branch)


def test_forgetting_everything_lets_the_running_run():
    scheduler, runner = cached()
    scheduler.add(Request("a", P13[:9], max_tokens=9))
    step(scheduler, runner)
    serve_later = Request("b", P13[:9], max_tokens=2)
    assert scheduler.manager.reset_prefix_cache() == 2
    scheduler.add(serve_later)
    run(scheduler, runner)
    assert serve_later.num_cached_tokens == 0
    assert scheduler.manager.pool.num_used == 0


def test_cutting_into_a_cached_block_takes_it_out_of_the_index():
    scheduler, runner = cached()
    scheduler.add(Request("a", P13[:8], max_tokens=9))
    step(scheduler, runner)
    seq = scheduler.running[0].live[0]
    scheduler.manager.truncate(seq, 6)
    seq.num_computed_tokens = 6
    assert len(hits(scheduler, P13)) == 1
    scheduler.manager.check()


def test_an_older_entry_stays_when_a_pool_overwrites():
    """Free blocks are taken before cached ones, whatever their age."""
    index = PrefixIndex()
    pool = BlockPool(3, index)
    a, b = pool.allocate(2)
    index.register(a, ROOT, (1,), None)
    pool.free([a])
    pool.free([b])
    assert (pool.cached_blocks(), pool.num_available) == ([a], 3)
    assert pool.allocate(2) == [2, b]
    assert a in index
    assert pool.allocate(1) == [a]
    assert a not in index
    pool.check()


def test_an_overflowing_vocabulary_is_no_key_collision():
    """Same hash, different tokens: Python's hash of -1 and -2 is the same."""
    assert hash((-1,)) == hash((-2,))
    index = PrefixIndex()
    index.register(0, ROOT, (-1,), None)
    assert index.lookup([-2], 1, None) == []



def test_the_report_counts_cached_and_swapped_slots_apart():
    scheduler, runner = cached(20, cpu_blocks=20)
    serve(scheduler, runner, "a", P13[:8])
    scheduler.add(Request("g", tuple(range(50, 58)), n=3, max_tokens=9))
    for _ in range(2):
        step(scheduler, runner)
    scheduler.manager.swap_out(scheduler.running[0].live)
    report = scheduler.manager.report()
    assert (report.cached, report.swapped) == (4 * 4, 5 * 4), "both texts' full blocks stay findable; two shared blocks and three of their own"
    assert report.external == report.total == 80
    assert str(report).endswith("external 100.0% (cached 20.0%); 20 more slots swapped out")
