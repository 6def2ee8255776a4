"""Property-based test of pool + tables + manager: whatever is asked in whatever order, the books balance (hypothesis).

The model beside the real manager is as plain as it gets: for each sequence the list of what each position should hold. A byte array plays
the cache; copies and writes are done as a runner would do them, and after every rule each sequence reads back its own history.
"""
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from paged_edu.core import events as ev
from paged_edu.core.kv_manager import AllocStatus
from paged_edu.core.paged import PagedKVManager
from paged_edu.core.sequence import Request, Sequence
from paged_edu.trace import TraceState


class Machine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.ready = False

    @precondition(lambda self: not self.ready)
    @rule(num_blocks=st.integers(1, 12), block_size=st.sampled_from([1, 2, 3, 4, 16, 256]))
    def build(self, num_blocks, block_size):
        self.manager = PagedKVManager(num_blocks, block_size)
        self.state = TraceState(num_blocks, block_size)
        self.manager.emit = self.state.apply
        self.cells = [None] * (num_blocks * block_size)
        self.seqs: dict[int, Sequence] = {}
        self.history: dict[int, list[int]] = {}
        self.next_id = 0
        self.next_value = 0
        self.copies = 0
        self.ready = True

    # -- rules -----------------------------------------------------------------------------------------------------------------------
    @precondition(lambda self: self.ready)
    @rule(tokens=st.integers(1, 40))
    def admit(self, tokens):
        request = Request(str(self.next_id), (0,) * tokens, max_tokens=5)
        seq = Sequence(self.next_id, request, 0, [0] * tokens)
        request.sequences = request.live = [seq]
        self.next_id += 1
        before = self._books()
        status = self.manager.status(request)
        self.state.apply(ev.RequestAdded(request.request_id, seq.seq_id, request.prompt_token_ids, 5))
        got = self.manager.admit(seq, tokens)
        assert (got is None) == (status is not AllocStatus.OK)
        blocks = -(-tokens // self.manager.block_size)
        assert (status is AllocStatus.NEVER) == (blocks > self.manager.num_blocks)
        if got is None:
            assert self._books() == before, "a failed admission leaves no trace"
            self._forget(seq)
        else:
            self.seqs[seq.seq_id] = seq
            self.history[seq.seq_id] = []
            self._write(seq, tokens)

    @precondition(lambda self: self.ready and self.seqs)
    @rule(data=st.data(), lookahead=st.integers(0, 3))
    def reserve(self, data, lookahead):
        chosen = [self.seqs[i] for i in data.draw(st.lists(st.sampled_from(sorted(self.seqs)), unique=True, min_size=1))]
        counts = [data.draw(st.integers(0, 6)) for _ in chosen]
        before = self._books()
        copies = self.manager.reserve(chosen, counts, lookahead)
        if copies is None:
            assert self._books() == before, "a failed reservation leaves no trace"
            return
        sources, targets = [c.src for c in copies], [c.dst for c in copies]
        assert len(set(targets)) == len(targets)
        assert not set(sources) & set(targets)
        size = self.manager.block_size
        for copy in copies:
            self.cells[copy.dst * size : (copy.dst + 1) * size] = self.cells[copy.src * size : (copy.src + 1) * size]
        self.copies += len(copies)
        for seq, count in zip(chosen, counts):
            self._write(seq, count)

    @precondition(lambda self: self.ready and self.seqs)
    @rule(data=st.data())
    def fork(self, data):
        parent = self.seqs[data.draw(st.sampled_from(sorted(self.seqs)))]
        child = Sequence(self.next_id, parent.request, 1, list(parent.token_ids), parent.num_computed_tokens)
        self.next_id += 1
        used = self.manager.pool.num_used
        self.state.apply(ev.SequenceForked(parent.request.request_id, parent.seq_id, child.seq_id))
        assert self.manager.fork(parent, child)
        assert self.manager.pool.num_used == used
        self.seqs[child.seq_id] = child
        self.history[child.seq_id] = list(self.history[parent.seq_id])

    @precondition(lambda self: self.ready and self.seqs)
    @rule(data=st.data())
    def truncate(self, data):
        seq = self.seqs[data.draw(st.sampled_from(sorted(self.seqs)))]
        keep = data.draw(st.integers(0, seq.num_computed_tokens))
        seq.num_computed_tokens = keep
        self.manager.commit(seq, keep)
        self.manager.truncate(seq, keep)
        del self.history[seq.seq_id][keep:]

    @precondition(lambda self: self.ready and self.seqs)
    @rule(data=st.data())
    def free(self, data):
        seq = self.seqs.pop(data.draw(st.sampled_from(sorted(self.seqs))))
        self.manager.free(seq)
        del self.history[seq.seq_id]
        self._forget(seq)
        with pytest.raises(KeyError):
            self.manager.free(seq)

    # -- invariants ------------------------------------------------------------------------------------------------------------------
    @invariant()
    def books_balance(self):
        if not self.ready:
            return
        manager, pool = self.manager, self.manager.pool
        manager.check()
        assert pool.num_free + pool.num_used + pool.num_cached == manager.num_blocks
        entries = [b for table in manager.tables.values() for b in table.blocks]
        assert sum(pool.ref_counts) == len(entries)
        assert set(entries) == {b for b, c in enumerate(pool.ref_counts) if c}
        assert not set(entries) & set(pool.free_blocks())
        report = manager.report()
        assert report.token_states + report.reservation + report.internal + report.external == report.total
        assert min(report.token_states, report.reservation, report.internal, report.external) >= 0
        assert report.shared_saved == len(entries) - len(set(entries))

    @invariant()
    def every_sequence_reads_its_own_history(self):
        if self.ready:
            for seq_id, seq in self.seqs.items():
                slots = self.manager.slots(seq, 0, seq.num_computed_tokens)
                assert [self.cells[s] for s in slots] == self.history[seq_id]

    @invariant()
    def the_fold_of_events_is_the_manager(self):
        if self.ready:
            assert {i: s.blocks for i, s in self.state.sequences.items()} == {i: t.blocks for i, t in self.manager.tables.items()}
            assert self.state.ref_counts() == self.manager.pool.ref_counts
            assert {i: s.num_computed for i, s in self.state.sequences.items()} == {i: s.num_computed_tokens for i, s in self.seqs.items()}

    @invariant()
    def the_next_slot_needs_neither_a_block_nor_a_copy(self):
        if self.ready:
            for seq in self.seqs.values():
                at, table, size = seq.num_computed_tokens, self.manager.table(seq), self.manager.block_size
                place = self.manager.next_slot(seq)
                assert (place is not None) == (at < len(table) * size and self.manager.pool.ref_counts[table[at // size]] == 1)
                assert place is None or place == (self.manager.slots(seq, at, at + 1)[0], tuple(table))

    # -- the runner's part -----------------------------------------------------------------------------------------------------------
    def _write(self, seq, count):
        start = seq.num_computed_tokens
        for slot in self.manager.slots(seq, start, start + count):
            self.cells[slot] = self.next_value
            self.history[seq.seq_id].append(self.next_value)
            self.next_value += 1
        seq.num_computed_tokens += count
        seq.token_ids += [0] * (seq.num_computed_tokens - len(seq.token_ids))
        self.manager.commit(seq, seq.num_computed_tokens)

    def _books(self):
        pool = self.manager.pool
        return pool.free_blocks(), list(pool.ref_counts), {i: list(t.blocks) for i, t in self.manager.tables.items()}

    def _forget(self, seq):
        self.state.apply(ev.SequenceFinished(seq.request.request_id, seq.seq_id, "stop", None))


Machine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
TestMachine = Machine.TestCase


def _gang(prompt_len: int, branches: int, manager: PagedKVManager):
    request = Request("r", (1,) * prompt_len)
    seqs = [Sequence(i, request, i, [1] * prompt_len) for i in range(branches)]
    request.live = seqs[:1]
    manager.admit(seqs[0], prompt_len)
    for seq in seqs:
        seq.num_computed_tokens = prompt_len
    for child in seqs[1:]:
        manager.fork(seqs[0], child)
    return seqs


def test_gang_copies_the_partly_filled_last_block_once_less_than_its_sharers():
    """known fault B05"""
    manager = PagedKVManager(8, 4)
    seqs = _gang(6, 2, manager)
    copies = manager.reserve(seqs, [1, 1])
    assert len(copies) == 1
    first, second = manager.table(seqs[0]), manager.table(seqs[1])
    assert first[0] == second[0]
    assert first[1] != second[1]
    manager = PagedKVManager(8, 4)
    seqs = _gang(8, 2, manager)
    used = manager.pool.num_used
    assert manager.reserve(seqs, [1, 1]) == []
    assert manager.pool.num_used == used + 2


@pytest.mark.parametrize("branches", [2, 4, 8])
@pytest.mark.parametrize("spare", [-1, 0])
def test_a_gang_gets_all_its_copies_or_none(branches, spare):
    manager = PagedKVManager(2 + branches - 1 + spare, 4)
    seqs = _gang(6, branches, manager)
    tables = [list(manager.table(s)) for s in seqs]
    copies = manager.reserve(seqs, [1] * branches)
    if spare < 0:
        assert copies is None
        assert [manager.table(s) for s in seqs] == tables
    else:
        assert len(copies) == branches - 1
    manager.check()


def test_only_some_of_the_sharers_write():
    manager = PagedKVManager(4, 4)
    seqs = _gang(6, 3, manager)
    assert len(manager.reserve(seqs, [1, 1, 0])) == 2, "the third one keeps the original, so both writers copy"
    assert manager.table(seqs[2]) == [0, 1]


def test_the_watermark_never_holds_back_the_only_request():
    """known fault B28"""
    manager = PagedKVManager(100, 4, watermark=0.01)
    assert manager.watermark_blocks == 1
    request = Request("big", (1,) * 399, max_tokens=1)
    seq = Sequence(0, request, 0, list(request.prompt_token_ids))
    request.live = [seq]
    assert manager.status(request) is AllocStatus.OK
    other = Request("o", (1,))
    other.live = [Sequence(1, other, 0, [1])]
    manager.admit(other.live[0], 1)
    assert manager.status(request) is AllocStatus.LATER
    small = Request("s", (1,) * 396)
    small.live = [Sequence(2, small, 0, [1] * 396)]
    assert manager.status(small) is AllocStatus.LATER, "99 of 100 are free and 99 are needed: the watermark holds"


@pytest.mark.parametrize(("kwargs", "message"), [
    ({"block_size": 0}, "between 1 and 256, not 0"), ({"block_size": 257}, "between 1 and 256, not 257"),
    ({"num_blocks": 0}, "at least 1, not 0"), ({"watermark": 1.0}, "below 1, not 1.0"), ({"watermark": float("nan")}, "nan"),
])
def test_bad_sizes_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        PagedKVManager(**({"num_blocks": 4, "block_size": 4} | kwargs))


def test_committing_more_than_the_table_holds_is_an_integrity_error():
    from paged_edu.core.block_pool import IntegrityError

    manager = PagedKVManager(2, 4)
    seq = Sequence(0, Request("r", (1,)), 0, [1])
    manager.admit(seq, 4)
    with pytest.raises(IntegrityError, match="computed 5 tokens but its table holds 4"):
        manager.commit(seq, 5)
    with pytest.raises(ValueError, match="already"):
        manager.admit(seq, 4)
    seq.num_computed_tokens = 9
    with pytest.raises(IntegrityError):
        manager.check()
    assert manager.swap_out([seq]) is None, "there is no CPU pool: full"
    with pytest.raises(ValueError, match="not swapped out"):
        manager.swap_in([seq])
