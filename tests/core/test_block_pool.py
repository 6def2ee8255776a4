"""BlockPool and BlockTable: allocation without a trace, reference counts, slots, copy-on-write."""
import pytest

from paged_edu.core.block_pool import BlockPool, IntegrityError
from paged_edu.core.block_table import BlockTable, block_fills, num_blocks_for
from paged_edu.core.plan import Copy


def test_failed_allocation_leaves_no_trace():
    """known fault B07"""
    pool = BlockPool(4)
    held = pool.allocate(2)
    before = (pool.free_blocks(), list(pool.ref_counts))
    assert pool.allocate(3) is None
    assert (pool.free_blocks(), list(pool.ref_counts)) == before
    assert pool.num_free == 2
    more = pool.allocate(2)
    assert more is not None
    assert sorted(held + more) == [0, 1, 2, 3]


def test_the_block_that_was_free_longest_goes_first():
    pool = BlockPool(4)
    a = pool.allocate(3)
    pool.free(a)
    assert pool.free_blocks() == [3, 2, 1, 0], "of one table the last block is reused first, the head of the chain last"


def test_free_twice_is_refused_and_changes_nothing():
    pool = BlockPool(3)
    blocks = pool.allocate(2)
    pool.free(blocks[:1])
    before = (pool.free_blocks(), list(pool.ref_counts))
    with pytest.raises(ValueError, match="block 0 is free"):
        pool.free(blocks)
    with pytest.raises(ValueError, match="listed twice"):
        pool.free([1, 1])
    with pytest.raises(ValueError, match="block 7 does not exist"):
        pool.free([7])
    with pytest.raises(ValueError, match="block 0 is free"):
        pool.share([1, 0])
    assert (pool.free_blocks(), list(pool.ref_counts)) == before
    with pytest.raises(ValueError, match="-1"):
        pool.allocate(-1)
    with pytest.raises(ValueError, match="at least 1"):
        BlockPool(0)


def test_check_finds_a_forgotten_count_and_a_free_block_in_use():
    pool = BlockPool(2)
    pool.allocate(1)
    pool.ref_counts[0] = 0
    with pytest.raises(IntegrityError, match="block 0 has 0 references and is not in the free queue"):
        pool.check()
    pool.ref_counts[0], pool.ref_counts[1] = 1, 1
    with pytest.raises(IntegrityError, match="block 1 has 1 references and is in the free queue"):
        pool.check()
    pool.ref_counts[1] = -1
    with pytest.raises(IntegrityError):
        pool.check()


def test_last_block_fill():
    """known fault B02"""
    tokens = list(range(10, 18))
    lengths = (0, 1, 3, 4, 5, 8)
    fills = [([0, *block_fills(n, 4, num_blocks_for(n, 4))])[-1] for n in lengths]
    assert fills == [0, 1, 3, 4, 1, 4]
    last = [tokens[:n][n - fill :] for n, fill in zip(lengths, fills)]
    assert last == [[], [10], [10, 11, 12], [10, 11, 12, 13], [14], [14, 15, 16, 17]]
    assert list(block_fills(9, 4, 4)) == [4, 4, 1, 0]
    assert [num_blocks_for(n, 4) for n in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]


def test_the_papers_example_of_translation():
    """Paper Fig. 6: a table [7, 1, 3] with blocks of 4."""
    table = BlockTable(BlockPool(8), 4, [7, 1, 3])
    assert [table.slot(p) for p in (2, 6, 7, 8)] == [30, 6, 7, 12]
    assert table.slots(2, 9) == (30, 31, 4, 5, 6, 7, 12)
    with pytest.raises(IndexError, match="position 12 is in logical block 3; the table has 3 blocks of 4"):
        table.slot(12)
    with pytest.raises(IndexError):
        table.slot(-1)


def test_grow_takes_blocks_only_when_they_are_written():
    table = BlockTable(BlockPool(3), 4)
    assert len(table.grow(7)) == 2
    assert table.grow(8) == []
    assert len(table.grow(9)) == 1
    assert table.grow(13) is None
    assert len(table) == 3


@pytest.mark.parametrize("block_size", [1, 2, 4, 16, 256])
def test_truncate_keeps_exactly_what_the_tokens_need(block_size):
    pool = BlockPool(40)
    table = BlockTable(pool, block_size)
    table.grow(min(37, 40 * block_size))
    for tokens in (36, block_size, 1, 0):
        table.truncate(tokens)
        assert len(table) == num_blocks_for(tokens, block_size)
        pool.check()
    assert pool.num_used == 0


def test_copy_on_write_of_a_shared_block():
    """known fault B05, the table's part: k sharers that write make k - 1 copies and the last one writes in place."""
    pool = BlockPool(8)
    parent = BlockTable(pool, 4)
    parent.grow(6)
    children = [parent.fork() for _ in range(3)]
    assert [pool.ref_counts[b] for b in parent.blocks] == [4, 4]
    assert parent.shared_indexes(6, 7) == [1]
    copies = [t.copy_on_write(1) for t in (parent, *children)]
    assert copies == [Copy(1, 2), Copy(1, 3), Copy(1, 4), None]
    assert [t.blocks for t in (parent, *children)] == [[0, 2], [0, 3], [0, 4], [0, 1]]
    assert [pool.ref_counts[b] for b in range(5)] == [4, 1, 1, 1, 1]


def test_copy_on_write_without_a_free_block_says_so():
    pool = BlockPool(1)
    table = BlockTable(pool, 4)
    table.grow(2)
    table.fork()
    with pytest.raises(ValueError, match="no free block to copy block 0"):
        table.copy_on_write(0)
