"""BlockPool: the physical blocks of the KV cache, their reference counts and the free queue (Paper §4.2, §4.3).

A physical block is an integer ``0 .. num_blocks - 1``: the index of its page in every layer's cache tensors. The pool knows nothing of
tokens or sequences; it counts how many block tables refer to each block. At zero the block goes to the tail of a queue: of the free
queue, or, where the prefix index knows its content, of the cached one, from which it can still be hit. New blocks come from the head of the
free queue; when that is empty, the cached block that has not been used for the longest time is overwritten.
"""
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from .prefix_index import PrefixIndex


class IntegrityError(RuntimeError):
    """An invariant of the memory manager does not hold: a fault in this project or in a reader's own manager, never bad input."""


class BlockPool:
    """``num_blocks`` blocks. Allocation and freeing cost O(1) a block, whatever the size of the pool."""

    def __init__(self, num_blocks: int, index: PrefixIndex | None = None) -> None:
        if type(num_blocks) is not int or num_blocks < 1:
            raise ValueError(f"num_blocks must be an integer of at least 1, not {num_blocks}")
        self.num_blocks = num_blocks
        self.ref_counts = [0] * num_blocks
        self.index = index
        # An OrderedDict is a doubly linked list with an index: pop the head, push the tail and take out of the middle, each in O(1).
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing of use."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks without a reference whose content is kept for a later hit."""
        return len(self._cached)

    @property
    def num_available(self) -> int:
        """Blocks that can be handed out now: the free ones, then the cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def num_used(self) -> int:
        """Blocks that at least one block table refers to."""
        return self.num_blocks - len(self._free) - len(self._cached)

    def free_blocks(self) -> list[int]:
        """Free block ids, in the order in which they will be handed out."""
        return list(self._free)

    def cached_blocks(self) -> list[int]:
        """Cached block ids, in the order in which they will be overwritten."""
        return list(self._cached)

    def allocate(self, count: int) -> list[int] | None:
        """``count`` blocks with one reference each, or None and nothing changed when fewer are available: all or nothing."""
        if count < 0:
            raise ValueError(f"cannot allocate {count} blocks")
        if count > len(self._free):
            if count > self.num_available:
                return None
            for _ in range(count - len(self._free)):
                self._evict()
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self.ref_counts[block] = 1
        return blocks

    def _evict(self) -> None:
        """The least recently used cached block becomes a free one."""
        block, _ = self._cached.popitem(last=False)
        if self.index is not None:
            self.index.forget(block)
        self._free[block] = None

    def share(self, blocks: Sequence[int]) -> None:
        """One more table refers to each of ``blocks`` (Paper §4.4). Raises ValueError if one of them is free and not cached."""
        for block in blocks:
            self._require_content(block)
        for block in blocks:
            if self.ref_counts[block] == 0:
                del self._cached[block]
            self.ref_counts[block] += 1

    def free(self, blocks: Sequence[int]) -> list[int]:
        """Drop one reference to each of ``blocks`` (a table's blocks, in logical order); returns those that nobody refers to any more.

        They join their queue last block first: the head of a chain, the most useful part of it, is overwritten last. A block that
        is already free raises ValueError and nothing is changed.
        """
        if len(blocks) > 1 and len(set(blocks)) != len(blocks):
            raise ValueError(f"a block is listed twice in {list(blocks)}")
        for block in blocks:
            self._require_content(block)
            if self.ref_counts[block] < 1:
                raise ValueError(f"block {block} has no reference to drop: it is cached")
        freed = []
        for block in reversed(blocks):
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                queue = self._cached if self.index is not None and block in self.index else self._free
                queue[block] = None
                freed.append(block)
        return freed

    def forget_cached(self) -> None:
        """Empty the prefix index; the cached blocks become free."""
        if self.index is not None:
            self.index.clear()
        while self._cached:
            self._evict()

    def _require_content(self, block: int) -> None:
        if not 0 <= block < self.num_blocks:
            raise ValueError(f"block {block} does not exist: the pool has blocks 0 to {self.num_blocks - 1}")
        if block in self._free:
            raise ValueError(f"block {block} is free: it has no reference to share or to drop")

    def check(self) -> None:
        """Raise `IntegrityError` unless free + used + cached = total and each block is where its references and the index say."""
        for block, count in enumerate(self.ref_counts):
            if count < 0:
                raise IntegrityError(f"block {block} has {count} references")
            known = self.index is not None and block in self.index
            for name, queue, right in (("free", self._free, count == 0 and not known), ("cached", self._cached, count == 0 and known)):
                if (block in queue) != right:
                    raise IntegrityError(f"block {block} has {count} references and is {'in' if block in queue else 'not in'} the {name} queue")
        used = sum(count > 0 for count in self.ref_counts)      # counted: `num_used` is what the queues leave
        if self.num_free + used + self.num_cached != self.num_blocks:
            raise IntegrityError(f"{self.num_free} free + {used} used + {self.num_cached} cached != {self.num_blocks} blocks")
