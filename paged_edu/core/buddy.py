"""BuddyAllocator: runs of consecutive blocks, as the servers before PagedAttention had to find them (Paper §6.1: Orca with a buddy allocator).

A run has a power of two of blocks, ``1 << order``, and begins at a multiple of its size. A larger free run is halved until it is just large
enough; a freed run joins its *buddy*, the other half, as soon as that is free too. Both look at one list of free runs an order. The price is
rounding: a request for 17 blocks gets 32.
"""
from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from .block_pool import IntegrityError


def order_for(num_blocks: int) -> int:
    """The smallest order whose runs have ``num_blocks`` blocks (at least 1)."""
    return (num_blocks - 1).bit_length()


class BuddyAllocator:
    """``num_blocks`` blocks, cut from block 0 on into the largest possible powers of two. Runs are named by their first block and counted:
    a run is free again when as many `free` as `allocate` and `share` have named it."""

    def __init__(self, num_blocks: int) -> None:
        if type(num_blocks) is not int or num_blocks < 1:
            raise ValueError(f"num_blocks must be an integer of at least 1, not {num_blocks}")
        self.num_blocks = num_blocks
        self.orders: dict[int, int] = {}
        """Order of each run that is in use."""
        self.ref_counts: dict[int, int] = {}
        self._free: list[list[int]] = [[] for _ in range(num_blocks.bit_length())]      # by order: first blocks, ascending
        start = 0
        for order in reversed(range(num_blocks.bit_length())):
            if (num_blocks >> order) & 1:
                self._free[order].append(start)
                start += 1 << order

    @property
    def num_free(self) -> int:
        """Blocks in free runs; the largest run may be much shorter."""
        return sum(len(starts) << order for order, starts in enumerate(self._free))

    def free_runs(self) -> list[tuple[int, int]]:
        """``(first block, blocks)`` of every free run, ascending."""
        return sorted((start, 1 << order) for order, starts in enumerate(self._free) for start in starts)

    def largest(self) -> int:
        """Blocks of the largest run that an empty pool has."""
        return 1 << (len(self._free) - 1)

    def fits(self, orders: Iterable[int], empty: bool = False) -> bool:
        """Whether runs of all these orders could be allocated together: now, or in an empty pool."""
        counts = [(self.num_blocks >> order) & 1 if empty else len(starts) for order, starts in enumerate(self._free)]
        for order in sorted(orders, reverse=True):          # a larger run only ever leaves smaller ones: the largest first
            source = next((larger for larger in range(order, len(counts)) if counts[larger]), None)
            if source is None:
                return False
            counts[source] -= 1
            for half in range(order, source):
                counts[half] += 1
        return True

    def allocate(self, order: int) -> int | None:
        """First block of a run of ``1 << order`` blocks, from the smallest free run that has them; None: there is none."""
        source = next((larger for larger in range(order, len(self._free)) if self._free[larger]), None)
        if source is None:
            return None
        start = self._free[source].pop(0)
        for half in reversed(range(order, source)):
            insort(self._free[half], start + (1 << half))
        self.orders[start], self.ref_counts[start] = order, 1
        return start

    def share(self, start: int) -> None:
        """One more holder of a run. Raises KeyError if it is not in use."""
        self.ref_counts[start] += 1

    def free(self, start: int) -> None:
        """One holder fewer; the last one's run joins its buddy. Raises KeyError if it is not in use."""
        self.ref_counts[start] -= 1
        if self.ref_counts[start]:
            return
        order = self.orders.pop(start)
        del self.ref_counts[start]
        while self._take(start ^ (1 << order), order):
            start &= ~(1 << order)
            order += 1
        insort(self._free[order], start)

    def extend(self, start: int) -> int | None:
        """Double a run in its place: it joins its buddy if that is free and nobody else holds the run. Its first block then, or None.

        The larger run begins with the buddy if that is the left half.
        """
        order = self.orders[start]
        if self.ref_counts[start] > 1 or not self._take(start ^ (1 << order), order):
            return None
        del self.orders[start], self.ref_counts[start]
        start &= ~(1 << order)
        self.orders[start], self.ref_counts[start] = order + 1, 1
        return start

    def copy(self) -> BuddyAllocator:
        """An independent allocator in the same state: to try something, and to go back where it does not succeed."""
        other = BuddyAllocator(self.num_blocks)
        other.orders, other.ref_counts, other._free = dict(self.orders), dict(self.ref_counts), [list(starts) for starts in self._free]
        return other

    def _take(self, start: int, order: int) -> bool:
        """Take the free run at ``start`` out of its list; False if there is no free run of this order there."""
        starts = self._free[order]
        index = bisect_left(starts, start)
        if index == len(starts) or starts[index] != start:
            return False
        del starts[index]
        return True

    def check(self) -> None:
        """Raise `IntegrityError` unless free runs and runs in use cover every block once, and no free run lies beside its free buddy."""
        runs = sorted([*self.free_runs(), *((start, 1 << order) for start, order in self.orders.items())])
        end = 0
        for start, size in runs:
            if start != end or start % size:
                raise IntegrityError(f"a run of {size} blocks begins at block {start}; the runs before it end at {end}")
            end = start + size
        if end != self.num_blocks or min(self.ref_counts.values(), default=1) < 1 or self.ref_counts.keys() != self.orders.keys():
            raise IntegrityError(f"the runs cover {end} of {self.num_blocks} blocks; holders: {self.ref_counts}")
        for start, size in self.free_runs():
            if (start ^ size, size) in runs and start ^ size not in self.orders:
                raise IntegrityError(f"the free runs of {size} blocks at {min(start, start ^ size)} and {max(start, start ^ size)} are not one")
