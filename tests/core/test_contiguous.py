"""What came before paging: the buddy allocator against a brute-force model, reservations in numbers, runs that are copied, moved and joined."""
import pytest
from driving import VOCAB, assert_empty, expected, make, request, run, step
from hypothesis import given
from hypothesis import strategies as st

from paged_edu.core import events as ev
from paged_edu.core.buddy import BuddyAllocator
from paged_edu.core.contiguous import RESERVATIONS, ContiguousKVManager
from paged_edu.core.kv_manager import AllocStatus
from paged_edu.core.sequence import Request
from paged_edu.engine.fake_runner import FakeBeam, expected_beams, expected_tokens


# -- the allocator -----------------------------------------------------------------------------------------------------------------
@given(num_blocks=st.integers(1, 70), moves=st.lists(st.tuples(st.sampled_from("aaffse"), st.integers(0, 6)), max_size=60))
def test_buddy_allocator_against_a_map_of_blocks(num_blocks, moves):
    """The model: who has each block. A run is where it may be, nobody is overwritten, and nothing that would fit is refused."""
    buddy, owner, held = BuddyAllocator(num_blocks), [None] * num_blocks, []
    for number, (move, k) in enumerate(moves):
        if move == "a":
            size = 1 << k
            places = [s for s in range(0, num_blocks - size + 1, size) if not any(map(_is_taken, owner[s : s + size]))]
            places = [s for s in places if _in_one_region(num_blocks, s, size)]
            assert buddy.fits([k]) == bool(places)
            start = buddy.allocate(k)
            assert (start is not None) == bool(places), "a free, aligned run of that size is found, and only such a one"
            if start is not None:
                assert start in places
                owner[start : start + size] = [number] * size
                held.append(start)
        elif held and move == "f":
            start = held.pop(k % len(held))
            size = 1 << buddy.orders[start]
            buddy.free(start)
            if start not in held:
                owner[start : start + size] = [None] * size
        elif held and move == "s":
            held.append(held[k % len(held)])
            buddy.share(held[-1])
        elif held and move == "e":
            old = held[k % len(held)]
            size = 1 << buddy.orders[old]
            left, right = min(old, old ^ size), max(old, old ^ size)
            other = right if old == left else left
            free = owner[other : other + size] == [None] * size and other + size <= num_blocks and _in_one_region(num_blocks, left, 2 * size)
            start = buddy.extend(old)
            assert (start is not None) == (free and held.count(old) == 1)
            if start is not None:
                assert start == left
                owner[left : left + 2 * size] = [number] * (2 * size)
                held[held.index(old)] = start
        buddy.check()
        assert buddy.num_free == owner.count(None)
    while held:
        buddy.free(held.pop())
    buddy.check()
    assert buddy.free_runs() == BuddyAllocator(num_blocks).free_runs()


def _is_taken(owner):
    return owner is not None


def _in_one_region(num_blocks, start, size):
    """The pool is cut into falling powers of two; a run never crosses from one into the next."""
    begin = 0
    for order in reversed(range(num_blocks.bit_length())):
        if num_blocks >> order & 1:
            if begin <= start and start + size <= begin + (1 << order):
                return True
            begin += 1 << order
    return False


@given(num_blocks=st.integers(1, 60), orders=st.lists(st.integers(0, 5), min_size=1, max_size=6), taken=st.lists(st.integers(0, 4), max_size=5))
def test_fits_is_what_allocation_then_finds(num_blocks, orders, taken):
    buddy = BuddyAllocator(num_blocks)
    for order in taken:
        buddy.allocate(order)
    fits, before = buddy.fits(orders), buddy.copy()
    found = [buddy.allocate(order) for order in sorted(orders, reverse=True)]
    assert fits == (None not in found)
    assert before.fits(orders) == fits, "the copy is independent"
    assert BuddyAllocator(num_blocks).fits(orders) == before.fits(orders, empty=True)


def test_equal_runs_need_no_order():
    """What `admit` relies on: of equal sizes, as many as `fits` says are found one after the other."""
    for num_blocks in range(1, 40):
        for order in range(4):
            most = sum(size >> order for _, size in BuddyAllocator(num_blocks).free_runs())
            buddy = BuddyAllocator(num_blocks)
            assert buddy.fits([order] * most)
            assert not buddy.fits([order] * (most + 1))
            assert None not in [buddy.allocate(order) for _ in range(most)]


def test_the_papers_pool_has_seven_places_of_2048_tokens():
    """15,728 slots are 983 blocks of 16: seven runs of 128 blocks and a remainder of 8.85 %, which is Fig. 2's 8.9 % (PAPER: Orca (Max))."""
    manager = ContiguousKVManager(983, 16, "max", 2048)
    seqs = [_admit(manager, Request(str(i), (1,) * 161, max_tokens=338)) for i in range(7)]
    assert manager.status(Request("8", (1,) * 161, max_tokens=338)) is AllocStatus.LATER
    report = manager.report()
    assert round(report.external / report.total, 4) == 0.0885
    assert report.reservation == 7 * (161 + 338 - 1)
    assert report.internal == 7 * (2048 - 161 - 338 + 1)
    for seq in seqs:
        manager.free(seq)
    assert_empty(manager)


def _admit(manager, made):
    from paged_edu.core.sequence import Sequence

    _admit.ids += 1
    seq = Sequence(_admit.ids, made, 0, list(made.prompt_token_ids))
    made.live = made.sequences = [seq]
    assert manager.admit(seq, seq.num_tokens) == 0
    return seq


_admit.ids = 0


# -- reservations ------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("reservation", "prompt", "output", "tokens", "blocks"), [
    ("max", 10, 25, 128, 8), ("pow2", 10, 25, 42, 4), ("oracle", 10, 25, 35, 4), ("grow", 10, 25, 10, 1), ("pow2", 100, 25, 128, 8),
    ("oracle", 16, 16, 32, 2), ("oracle", 17, 16, 33, 4), ("pow2", 16, 16, 32, 2), ("pow2", 1, 1, 2, 1), ("oracle", 100, 28, 128, 8),
    ("grow", 17, 1, 17, 2),
])
def test_what_each_server_reserves(reservation, prompt, output, tokens, blocks):
    """The paper's example (§6.1): an output of 25 tokens reserves 32 under Pow2. Rounded to a run, a power of two of blocks."""
    manager = ContiguousKVManager(64, 16, reservation, 128)
    made = Request("r", (1,) * prompt, max_tokens=output)
    assert manager.reserved_tokens(made, prompt) == tokens
    seq = _admit(manager, made)
    assert len(manager.table(seq)) == blocks
    assert manager.table(seq) == list(range(manager.table(seq)[0], manager.table(seq)[0] + blocks))
    report = manager.report()
    capacity = 16 * blocks if reservation == "grow" else tokens
    longest = min(prompt + output - 1, capacity)
    assert (report.token_states, report.reservation, report.internal) == (0, longest, capacity - longest)
    seq.num_computed_tokens = prompt
    assert manager.report().token_states == prompt
    assert manager.report().reservation == max(0, longest - prompt)
    assert manager.report().num_used_blocks == blocks


def test_a_request_of_three_branches_reserves_three_runs():
    manager = ContiguousKVManager(16, 4, "oracle", 32)
    made = Request("r", (1,) * 5, max_tokens=8, n=3)
    seq = _admit(manager, made)
    report = manager.report()
    assert report.num_used_blocks == 12
    assert (report.token_states, report.reservation, report.internal) == (0, 3 * 12, 3 * 1), "nothing is written after the last token"
    assert report.external == 64 - 3 * 13, "a run has 16 slots: rounding belongs to the allocator"
    assert manager.status(Request("s", (1,), max_tokens=16)) is AllocStatus.LATER
    assert len(manager.spare_blocks(seq)) == 8
    manager.free(seq)
    assert_empty(manager)


@pytest.mark.parametrize("reservation", RESERVATIONS)
def test_bad_sizes_are_refused(reservation):
    for blocks, size, length in ((0, 4, 8), (4, 0, 8), (4, 257, 8), (4, 4, 0), (True, 4, 8), (4, 4, 8.0)):
        with pytest.raises(ValueError, match="must be an integer"):
            ContiguousKVManager(blocks, size, reservation, length)
    with pytest.raises(ValueError, match="one of max, pow2, oracle, grow, not 'orca'"):
        ContiguousKVManager(4, 4, "orca", 8)


# -- behind the scheduler ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("reservation", RESERVATIONS)
@pytest.mark.parametrize("block_size", [1, 3, 16, 256])
def test_same_tokens_as_ever(reservation, block_size):
    scheduler, runner = make(max(4, 512 // block_size), block_size, max_model_len=64, budget=40, reservation=reservation)
    made = [request(f"r{i}", 1 + 7 * i % 23, max_tokens=1 + 5 * i % 17, n=1 + i % 3) for i in range(12)]
    for r in made:
        scheduler.add(r)
    run(scheduler, runner)
    for r in made:
        assert len(r.sequences) == r.n
        for seq in r.sequences:
            assert seq.output_token_ids == expected_tokens(r.prompt_token_ids, r.max_tokens, VOCAB, seq.branch)


def test_grow_doubles_and_counts_what_it_copies():
    """1 + 30 tokens in blocks of 1. A buddy that is free is joined (0 copies); a neighbour in the way makes the run move."""
    scheduler, runner = make(64, 1, reservation="grow")
    seen = []
    scheduler.manager.emit = seen.append
    scheduler.add(request("a", 1, max_tokens=30))
    run(scheduler, runner)
    assert runner.num_copies == 0
    assert [len(e.blocks) for e in seen if isinstance(e, ev.RunMoved)] == [2, 4, 8, 16, 32]
    scheduler.add(request("b", 1, max_tokens=30))
    scheduler.add(request("c", 1, max_tokens=30))
    outputs = run(scheduler, runner)
    told = sum(isinstance(e, ev.BlockCopied) for e in seen)
    assert runner.num_copies == scheduler.manager.num_copied_blocks == sum(len(o.copies) for o in outputs) == told > 0


def test_a_run_that_joins_its_left_buddy_takes_its_tokens_along():
    scheduler, runner = make(4, 2, reservation="grow")
    scheduler.add(request("a", 1, max_tokens=2))            # block 0
    scheduler.add(late := request("b", 1, max_tokens=7))    # block 1; grows into 0 and 1 when a has gone
    outputs = run(scheduler, runner)
    assert late.sequences[0].output_token_ids == expected(late)
    copied = [c for o in outputs for c in o.copies]
    assert [(c.src, c.dst) for c in copied] in ([(1, 0)], [(1, 2)])


def test_alone_without_room_to_move_it_is_recomputed_in_a_larger_run():
    """Two branches in a pool of 16: their runs of 4 cannot both move to runs of 8 while the old ones are there. Recomputed, they fit."""
    scheduler, runner = make(16, 1, max_model_len=16, reservation="grow")
    scheduler.add(r := request("a", 3, max_tokens=6, n=2))
    outputs = run(scheduler, runner)
    assert r.num_preemptions == 1
    assert [o.preempted for o in outputs if o.preempted] == [("a",)]
    assert all(s.finish_reason == "length" and s.stop_reason is None for s in r.sequences)
    assert all(s.output_token_ids == expected_tokens(r.prompt_token_ids, 6, VOCAB, s.branch) for s in r.sequences)


def test_a_sequence_that_outgrows_the_largest_run_ends_as_in_a_full_pool():
    scheduler, runner = make(13, 1, max_model_len=40, reservation="grow")
    scheduler.add(r := request("a", 3, max_tokens=30))
    run(scheduler, runner)
    assert (r.sequences[0].finish_reason, r.sequences[0].stop_reason) == ("length", "kv_pool")
    assert r.sequences[0].num_tokens == 9, "eight in the largest run, and the last sampled one"


def test_a_beam_search_needs_no_run_beyond_its_own():
    """Every step prunes and forks; a pool of exactly `width` runs suffices, without a single recomputation."""
    scheduler, runner = make(16, 4, max_model_len=16, reservation="max")
    r = Request("beam", (3, 1, 4), max_tokens=9, n=4, beam=True)
    runner.beams["beam"] = FakeBeam(4, 3, 9)
    scheduler.add(r)
    outputs = run(scheduler, runner)
    assert r.num_preemptions == 0
    assert runner.num_copies > 0
    assert len(outputs) == 9
    ended = sorted((s.output_token_ids, s.finish_reason) for s in r.sequences if s.finish_reason in ("stop", "length"))
    assert ended == sorted(expected_beams(r.prompt_token_ids, runner.beams["beam"], VOCAB))


def test_a_parent_that_ends_before_its_copy_is_made_is_kept_until_then():
    """A stop string ends branch 0 between two steps; branch 1 still copies from its run, which nobody may overwrite meanwhile."""
    scheduler, runner = make(8, 2, max_model_len=8, budget=16, reservation="oracle")
    r = request("a", 3, max_tokens=4, n=2)
    scheduler.add(r)
    scheduler.add(other := request("b", 3, max_tokens=4, n=2))
    step(scheduler, runner)
    scheduler.finish(r.sequences[0].seq_id, "stop", "###")
    run(scheduler, runner)
    assert r.sequences[1].output_token_ids == expected_tokens(r.prompt_token_ids, 4, VOCAB, 1)
    for seq in other.sequences:
        assert seq.output_token_ids == expected_tokens(other.prompt_token_ids, 4, VOCAB, seq.branch)


# -- what is refused at the door ---------------------------------------------------------------------------------------------------
def test_what_can_never_fit_is_refused_with_the_numbers():
    scheduler, _ = make(7, 4, max_model_len=32, reservation="max")
    with pytest.raises(ValueError, match=r"needs a run of 8 blocks of 4 \('max' reserves 32 tokens in each\); the pool has 7, its largest run 4"):
        scheduler.add(request("a", 3))
    scheduler, _ = make(8, 4, max_model_len=32, reservation="oracle")
    with pytest.raises(ValueError, match=r"needs 3 runs of 4 blocks of 4 \('oracle' reserves 12 tokens in each\); the pool has 8"):
        scheduler.add(request("a", 4, max_tokens=8, n=3))


@pytest.mark.parametrize("reservation", ["pow2", "oracle"])
def test_an_unknown_length_is_refused_where_it_must_be_known(reservation):
    scheduler, _ = make(16, 4, reservation=reservation)
    for ends in ({"eos_token_ids": frozenset([5])}, {"stop_token_ids": frozenset([5])}):
        with pytest.raises(ValueError, match=r"may end before its max_tokens=5.*ignore_eos=True"):
            scheduler.add(request("a", 3, **ends))
    scheduler.add(request("a", 3))
    for known in ("max", "grow"):
        make(16, 4, reservation=known)[0].add(request("a", 3, eos_token_ids=frozenset([5])))
