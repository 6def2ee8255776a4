"""Requests of several branches: fork, copy on write, prune; preemption, swap and return of whole groups (Paper §4.4, §4.5)."""
import pytest
from driving import VOCAB, expected, hypotheses, make, request, run, step
from hypothesis import given, settings
from hypothesis import strategies as st

from paged_edu.core.plan import Branch, StepResult
from paged_edu.core.sequence import Status
from paged_edu.engine.fake_runner import FakeBeam, expected_beams


def add(scheduler, runner, name, prompt_len, *, beam=False, **options):
    made = request(name, prompt_len, beam=beam, **options)
    if beam:
        runner.beams[name] = FakeBeam(made.n, prompt_len, made.max_tokens)
    scheduler.add(made)
    return made


def check_tokens(made):
    assert all(s.stop_reason is None for s in made.sequences)
    if made.beam:
        beam = FakeBeam(made.n, len(made.prompt_token_ids), made.max_tokens)
        assert sorted(hypotheses(made)) == sorted(expected_beams(made.prompt_token_ids, beam, VOCAB))
    else:
        assert [s.branch for s in made.sequences] == list(range(made.n))
        for seq in made.sequences:
            assert len(seq.output_token_ids) == made.max_tokens
            assert seq.output_token_ids == expected(made, seq.branch)


def test_the_prompt_is_computed_once_and_its_last_block_copied_for_all_but_one():
    """Paper Fig. 8: three samples of a prompt of 6 tokens in blocks of 4."""
    scheduler, runner = make(num_blocks=12)
    made = add(scheduler, runner, "r", 6, n=3, max_tokens=4)
    first, _ = step(scheduler, runner)
    assert [(len(s.token_ids), s.num_samples) for s in first.scheduled] == [(6, 3)]
    tables = [scheduler.manager.table(s) for s in made.live]
    assert tables[0] == tables[1] == tables[2], "forking shares every block"
    assert scheduler.manager.pool.num_used == 2
    assert scheduler.manager.report().shared_saved == 4
    second, _ = step(scheduler, runner)
    assert len(second.copies) == 2, "k sharers write, k - 1 copy, the last one writes in place"
    assert len({c.src for c in second.copies}) == 1
    assert {t[0] for t in map(scheduler.manager.table, made.live)} == {tables[0][0]}, "the full block stays shared"
    third, _ = step(scheduler, runner)
    assert not third.copies
    run(scheduler, runner)
    check_tokens(made)


def test_a_prompt_that_fills_its_blocks_needs_no_copy():
    scheduler, runner = make(num_blocks=12)
    made = add(scheduler, runner, "r", 8, n=3, max_tokens=3)
    outputs = run(scheduler, runner)
    assert not any(output.copies for output in outputs)
    check_tokens(made)


def test_references_fall_as_branches_end():
    scheduler, runner = make(num_blocks=12)
    made = add(scheduler, runner, "r", 8, n=3, max_tokens=9)
    step(scheduler, runner)
    step(scheduler, runner)
    counts = scheduler.manager.pool.ref_counts
    shared = scheduler.manager.table(made.live[0])[0]
    assert counts[shared] == 3
    scheduler.finish(made.live[1].seq_id, "stop", "###")
    assert counts[shared] == 2
    assert [s.branch for s in made.live] == [0, 2]
    scheduler.finish(made.live[0].seq_id, "stop", "###")
    assert counts[shared] == 1
    run(scheduler, runner)
    assert [s.finish_reason for s in made.sequences] == ["stop", "stop", "length"]


def test_abort_ends_every_branch_in_every_state():
    """known fault B43"""
    for steps in range(5):
        scheduler, runner = make(num_blocks=12, budget=4, seqs=4)
        made = add(scheduler, runner, "r", 6, n=2, max_tokens=20)
        for _ in range(steps):
            step(scheduler, runner)
        assert scheduler.abort("r")
        assert {s.finish_reason for s in made.sequences} == {"abort"}
        run(scheduler, runner)
        assert scheduler.manager.pool.num_free == 12


@pytest.mark.parametrize("n", [2, 4])
def test_branches_count_against_max_num_seqs(n):
    """known fault B32: a request keeps room for all its branches from the start."""
    scheduler, runner = make(num_blocks=60, seqs=4)
    made = [add(scheduler, runner, name, 5, n=n, max_tokens=6) for name in "abc"]
    seen = 0
    while scheduler.has_unfinished():
        step(scheduler, runner)
        seen = max(seen, sum(len(r.live) for r in scheduler.running))
    assert seen == 4
    for r in made:
        check_tokens(r)


def test_more_branches_than_a_limit_are_refused_at_the_door():
    scheduler, _ = make(seqs=3, budget=8)
    with pytest.raises(ValueError, match="n would be 4 sequences at once; max_num_seqs is 3"):
        scheduler.add(request("r", 5, n=4))
    with pytest.raises(ValueError, match="its beams would be 9 sequences at once; max_num_seqs is 3"):
        scheduler.add(request("r", 5, n=9, beam=True))
    scheduler, _ = make(num_blocks=3, block_size=4)
    with pytest.raises(ValueError, match="6 tokens and needs 2 blocks of 4, and each of the 3 branches a block of its own; the pool has 3"):
        scheduler.add(request("r", 6, n=3))
    scheduler.add(request("r", 6, n=2))
    assert not scheduler.running


def test_a_beam_that_nobody_continues_is_freed_at_once():
    """known fault B66, the memory half: both survivors share the parent's full blocks, the dropped beam's block is free."""
    scheduler, _ = make(num_blocks=12, block_size=2)
    made = request("r", 3, n=2, beam=True, max_tokens=9)
    scheduler.add(made)

    def answer(*branches):
        output = scheduler.schedule()
        scheduler.update(output, StepResult({"r": tuple(Branch(*b) for b in branches)}))
        scheduler.manager.check()
        return output

    root = made.live[0].seq_id
    answer((root, (10,)), (root, (11,)))
    a, b = made.live
    answer((b.seq_id, (20,)), (a.seq_id, (21,)))
    assert [s.token_ids[3:] for s in made.live] == [[11, 20], [10, 21]], "best first, each with its own history"
    kept, dropped = made.live
    used = set(scheduler.manager.table(dropped)) - set(scheduler.manager.table(kept))
    assert len(used) == 1
    answer((kept.seq_id, (30,)), (kept.seq_id, (31,)))
    assert [s.token_ids[3:] for s in made.live] == [[11, 20, 30], [11, 20, 31]]
    assert dropped.finish_reason == "pruned"
    assert not used & {block for s in made.live for block in scheduler.manager.table(s)}
    assert all(scheduler.manager.pool.ref_counts[block] == 0 for block in used)
    first, second = map(scheduler.manager.table, made.live)
    assert first == second


def test_a_hypothesis_that_ends_keeps_no_block():
    scheduler, _ = make(num_blocks=12, block_size=2)
    made = request("r", 3, n=2, beam=True, max_tokens=9)
    scheduler.add(made)
    root = made.live[0].seq_id
    scheduler.update(scheduler.schedule(), StepResult({"r": (Branch(root, (1,)), Branch(root, (2,)), Branch(root, (0,), finish_reason="stop"))}))
    assert [(s.output_token_ids, s.finish_reason) for s in made.sequences] == [([1], None), ([2], None), ([0], "stop")]
    assert len(scheduler.manager.tables) == 2
    output = scheduler.schedule()
    scheduler.update(output, StepResult({"r": (Branch(root, (5,), finish_reason="length"),)}))
    assert made.finished
    assert scheduler.manager.pool.num_used == 0


@pytest.mark.parametrize("branches", [
    [(99, (1,))], [(0, (1,))], [(0, (1,)), (0, (1,)), (0, (2,))], [(0, (1,)), (0, (2,), None, 0.0, "stop")], [],
])
def test_an_answer_that_does_not_fit_the_branches_is_named(branches):
    scheduler, _ = make()
    scheduler.add(request("r", 3, n=2))
    output = scheduler.schedule()
    with pytest.raises(ValueError, match="'r'"):
        scheduler.update(output, StepResult({"r": tuple(Branch(*b) for b in branches)}))


# -- coming back -------------------------------------------------------------------------------------------------------------------
def grow_alone(n, beam, prompt_len, max_tokens, block_size):
    """Blocks that the group uses at most, alone in a roomy pool."""
    scheduler, runner = make(num_blocks=400, block_size=block_size, max_model_len=200)
    add(scheduler, runner, "g", prompt_len, n=n, beam=beam, max_tokens=max_tokens)
    most = 0
    while scheduler.has_unfinished():
        output = scheduler.schedule()
        most = max(most, scheduler.manager.pool.num_used)
        scheduler.update(output, runner.execute(output))
    return most


@settings(max_examples=120, deadline=None)
@given(
    n=st.integers(2, 8), beam=st.booleans(), prompt_len=st.integers(1, 17), max_tokens=st.integers(2, 14), block_size=st.sampled_from([1, 2, 4, 8]),
    mode=st.sampled_from(["recompute", "swap", "auto"]), cpu=st.sampled_from([0, 3, 200]), caching=st.booleans(), budget=st.integers(8, 60),
    others=st.integers(1, 3),
)
def test_a_pool_of_exactly_the_groups_shared_size_is_enough(n, beam, prompt_len, max_tokens, block_size, mode, cpu, caching, budget, others):
    """However often it is preempted: a group that comes back needs no more blocks than the group that never left."""
    n = min(n, 6) if beam else n
    num_blocks = grow_alone(n, beam, prompt_len, max_tokens, block_size)
    scheduler, runner = make(
        num_blocks, block_size, max_model_len=200, budget=budget, cpu_blocks=cpu, preemption_mode=mode, prefix_caching=caching,
    )
    length = max(1, min(prompt_len, (num_blocks - 1) * block_size))
    made = [add(scheduler, runner, f"o{i}", length, max_tokens=max(1, min(max_tokens, num_blocks * block_size - length))) for i in range(others)]
    made.append(add(scheduler, runner, "g", prompt_len, n=n, beam=beam, max_tokens=max_tokens))
    run(scheduler, runner)
    for r in made:
        check_tokens(r)


@pytest.mark.parametrize("beam", [False, True])
@pytest.mark.parametrize(("mode", "cpu"), [("recompute", 0), ("auto", 0), ("swap", 40), ("auto", 40), ("swap", 2)])
def test_a_preempted_group_comes_back_whole(mode, cpu, beam):
    """known faults B29, B30: every branch keeps its own tokens; host memory that is too small means recomputation, not an end."""
    num_blocks = max(10, grow_alone(4, beam, 5, 8, 2))
    scheduler, runner = make(num_blocks, block_size=2, max_model_len=64, cpu_blocks=cpu, preemption_mode=mode)
    older = add(scheduler, runner, "old", 6, max_tokens=14)
    group = add(scheduler, runner, "g", 5, n=4, beam=beam, max_tokens=8)
    outputs = run(scheduler, runner)
    check_tokens(older)
    check_tokens(group)
    assert group.num_preemptions > 0
    swapped = [c for output in outputs for c in output.swap_out]
    if cpu == 40:
        assert len(swapped) == runner.num_swapped_in > 0
        assert len({c.src for o in outputs for c in o.swap_out if o.swap_out}) > 1
    else:
        assert not swapped
    assert scheduler.manager.swapped.num_used == 0


def test_a_shared_block_is_swapped_once_and_stays_shared():
    scheduler, runner = make(num_blocks=20, block_size=2, cpu_blocks=20)
    group = add(scheduler, runner, "g", 8, n=3, max_tokens=6)
    step(scheduler, runner)
    step(scheduler, runner)
    before = [list(scheduler.manager.table(s)) for s in group.live]
    content = [runner.cells.reshape(-1, 2)[t].copy() for t in before]
    copies = scheduler.manager.swap_out(group.live)
    assert len(copies) == len({c.src for c in copies}) == len({b for t in before for b in t}) == 4 + 3
    runner._move(0, copies, runner.cells, runner.cpu_cells)
    runner.cells[:] = 0
    back = scheduler.manager.swap_in(group.live)
    runner._move(0, back, runner.cpu_cells, runner.cells)
    after = [list(scheduler.manager.table(s)) for s in group.live]
    for old, new in zip(content, after):
        assert (runner.cells.reshape(-1, 2)[new] == old).all(), "byte for byte"
    assert {b for t in after for b in t[:4]} == set(after[0][:4]), "what was shared is shared"
    scheduler.manager.check()


def test_recomputation_computes_what_the_branches_share_once():
    scheduler, runner = make(num_blocks=40, block_size=4, preemption_mode="recompute", budget=64)
    group = add(scheduler, runner, "g", 16, n=3, max_tokens=9)
    for _ in range(4):
        step(scheduler, runner)
    scheduler.schedule()
    scheduler.recover()
    assert group.status is Status.PREEMPTED
    assert [s.num_led_tokens for s in group.live] == [0, 16, 16]
    computed = []
    while any(s.num_uncomputed > 1 for s in group.live) or group.status is not Status.RUNNING:
        output, _ = step(scheduler, runner)
        computed.append({s.branch: s.num_new for s in output.scheduled})
    assert computed[0].keys() == {0}, "the leader first"
    assert sum(sum(c.values()) for c in computed[:2]) <= 16 + 3 * 4 + 3
    run(scheduler, runner)
    check_tokens(group)


def test_nobody_is_admitted_while_a_group_before_it_comes_back():
    scheduler, runner = make(num_blocks=9, block_size=4, budget=4, seqs=4, preemption_mode="recompute")
    group = add(scheduler, runner, "g", 9, n=3, max_tokens=6)
    while not group.forked:
        step(scheduler, runner)
    step(scheduler, runner)
    scheduler.schedule()
    scheduler.recover()
    late = add(scheduler, runner, "late", 3, max_tokens=3)
    seen = False
    while late.status is Status.WAITING:
        step(scheduler, runner)
        if group.pending and group.status is Status.RUNNING:
            seen = True
            assert late.status is Status.WAITING
    assert seen
    run(scheduler, runner)
    check_tokens(group)
    check_tokens(late)


@pytest.mark.parametrize("num_blocks", range(4, 13))
def test_a_manager_without_room_to_fork_has_the_branches_computed(num_blocks):
    """`fork` may answer None: several running groups have pending branches then, and one of them may take the others' blocks."""
    scheduler, runner = make(num_blocks=num_blocks)
    manager = scheduler.manager
    manager.shares_blocks, manager.fork = False, lambda parent, child: None
    made = [add(scheduler, runner, name, 6, n=2, max_tokens=3) for name in "abc"]
    run(scheduler, runner)
    for one in made:
        check_tokens(one)


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("prompt_len", [3, 4, 5, 7, 8])
def test_branches_that_say_the_same_come_back_too(prompt_len, caching):
    """Greedy samples are equal: every branch could be led to its last token, and then nobody would query it."""
    scheduler, _ = make(num_blocks=30, block_size=4, prefix_caching=caching, preemption_mode="recompute")
    made = request("r", prompt_len, n=3, max_tokens=12)
    scheduler.add(made)
    steps = 0
    while scheduler.has_unfinished():
        output = scheduler.schedule()
        if steps % 5 == 4:
            scheduler.recover()
        else:
            items = [(item.seq_id, 7) for item in output.scheduled for _ in range(item.num_samples)]
            scheduler.update(output, StepResult({"r": tuple(Branch(seq_id, (token,)) for seq_id, token in items)} if items else {}))
        scheduler.manager.check()
        steps += 1
        assert steps < 100, "the group never comes back"
    assert [s.output_token_ids for s in made.sequences] == [[7] * 12] * 3
    assert made.num_preemptions > 1
