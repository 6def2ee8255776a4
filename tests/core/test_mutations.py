"""The tests can fail: faults planted in the memory manager, each of which a test must notice: the scheduler's state machine, or one made for it.

What is planted are the classic ones of paged memory. Hypothesis searches with a fixed seed and stops at the first failure.
"""
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from test_prefix_cache import test_a_hit_that_is_the_oldest_of_all_is_not_overwritten_by_its_own_request as oldest_hit
from test_scheduler_machine import GrowMachine, SchedulerMachine

from paged_edu.core import scheduler as scheduler_module
from paged_edu.core.block_pool import BlockPool
from paged_edu.core.block_table import BlockTable
from paged_edu.core.buddy import BuddyAllocator
from paged_edu.core.contiguous import ContiguousKVManager
from paged_edu.core.groups import branch_out
from paged_edu.core.paged import PagedKVManager
from paged_edu.core.swap import SwapSpace


def leak_a_block(patch):
    free = BlockPool.free
    patch.setattr(BlockPool, "free", lambda self, blocks: free(self, blocks[:-1] if len(blocks) > 2 else blocks))


def skip_a_copy_on_write(patch):
    patch.setattr(BlockTable, "copy_on_write", lambda self, index: None)


def copy_without_saying_so(patch):
    copy_on_write = BlockTable.copy_on_write
    patch.setattr(BlockTable, "copy_on_write", lambda self, index: copy_on_write(self, index) and None)


def evict_before_pinning(patch):
    """New blocks are taken first; a hit may be among them by then."""
    def admit(self, seq, num_tokens, leader=None, num_led=0):
        shared = num_led // self.block_size if leader is not None else 0
        hits = self._lookup(seq, num_tokens)[shared:]
        table = BlockTable(self.pool, self.block_size) if leader is None else self.tables[leader.seq_id].fork(num_led)
        new = self.pool.allocate(-(-num_tokens // self.block_size) - shared - len(hits))
        if new is None:
            table.release()
            return None
        for _, block in hits:
            self.pool._free.pop(block, None)
            self.pool._cached.pop(block, None)
            self.pool.ref_counts[block] += 1
        table.blocks += [block for _, block in hits] + new
        table.entries += [entry for entry, _ in hits]
        self._register(seq, table)
        if self.emit is not None:
            from paged_edu.core import events

            if shared + len(hits):
                self.emit(events.BlocksShared(seq.seq_id, tuple(table.blocks[: shared + len(hits)])))
            self.emit(events.BlocksAllocated(seq.seq_id, tuple(new)))
        return (shared + len(hits)) * self.block_size

    patch.setattr(PagedKVManager, "admit", admit)


def fork_from_the_wrong_parent(patch):
    fork = PagedKVManager.fork
    patch.setattr(PagedKVManager, "fork", lambda self, parent, child: fork(self, parent.request.live[0], child))


def continue_the_wrong_history(patch):
    def wrong(request, branches, seq_ids):
        turned = [branch._replace(parent=request.live[-1].seq_id) for branch in branches] if request.beam else branches
        return branch_out(request, turned, seq_ids)

    patch.setattr(scheduler_module, "branch_out", wrong)


def register_before_computing(patch):
    admit = PagedKVManager.admit

    def eager(self, seq, num_tokens, *rest):
        cached = admit(self, seq, num_tokens, *rest)
        if cached is not None and self.index is not None:
            self._enter(self.index, seq, self.tables[seq.seq_id], num_tokens)
        return cached

    patch.setattr(PagedKVManager, "admit", eager)


def swap_a_shared_block_for_one_sharer_only(patch):
    put = SwapSpace.put

    def lossy(self, blocks, entries):
        moved = put(self, blocks, entries)
        return None if moved is None else dict(list(moved.items())[:-1])

    patch.setattr(SwapSpace, "put", lossy)


def hand_out_a_run_that_is_still_read(patch):
    """A moved or ended parent's run is free at once, although a copy from it is still to come."""
    free = BuddyAllocator.free

    def all_holders(self, start):
        while self.ref_counts.get(start):
            free(self, start)

    patch.setattr(BuddyAllocator, "free", all_holders)


def move_a_run_without_its_tokens(patch):
    patch.setattr(ContiguousKVManager, "_copy", lambda self, held, source: [])


def lose_the_spare_runs(patch):
    free = ContiguousKVManager.free

    def forgetful(self, seq):
        self._held[seq.seq_id].spares = []
        free(self, seq)

    patch.setattr(ContiguousKVManager, "free", forgetful)


def join_a_buddy_and_keep_the_old_start(patch):
    extend = BuddyAllocator.extend

    def stays(self, start):
        extended = extend(self, start)
        if extended is not None and extended != start:
            self.orders[start], self.ref_counts[start] = self.orders.pop(extended), self.ref_counts.pop(extended)
            return start
        return extended

    patch.setattr(BuddyAllocator, "extend", stays)


SEARCH = settings(max_examples=400, stateful_step_count=25, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
                  suppress_health_check=list(HealthCheck))


def search(examples=400, machine=SchedulerMachine):
    run_state_machine_as_test(machine, settings=settings(SEARCH, max_examples=examples))


def search_contiguous(examples=400):
    search(examples, GrowMachine)


FAULTS = {
    leak_a_block: search, skip_a_copy_on_write: search, copy_without_saying_so: search, evict_before_pinning: oldest_hit,
    fork_from_the_wrong_parent: search, continue_the_wrong_history: search, register_before_computing: search,
    swap_a_shared_block_for_one_sharer_only: search, hand_out_a_run_that_is_still_read: search_contiguous,
    move_a_run_without_its_tokens: search_contiguous, lose_the_spare_runs: search_contiguous, join_a_buddy_and_keep_the_old_start: search_contiguous,
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_found(fault, monkeypatch):
    fault(monkeypatch)
    with pytest.raises(Exception):       # noqa: B017, PT011  whatever it breaks: books, tokens, a reservation
        FAULTS[fault]()


def test_without_a_fault_the_same_search_finds_nothing():
    search(40)
    search_contiguous(40)
    oldest_hit()
