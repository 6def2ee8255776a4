"""PrefixIndex: which block holds the keys and values of which beginning of a text (Paper §4.4, "shared prefix").

A key and value vector depends on its token and on every token before it, so a full block can serve any sequence that begins with the
same tokens. An entry's key is (the entry of the block before it, the block's own token ids, salt). Entries are named by numbers that are never
used twice, so a key stands for one history exactly; comparing two costs one block of tokens however long the history is, and a hash
collision cannot hand out somebody else's block.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count

ROOT = 0
"""The entry before a sequence's first block."""

Key = tuple[int, tuple[int, ...], str | None]


class PrefixIndex:
    """Entries of full, computed blocks. It holds no reference to a block: the pool says when one is overwritten."""

    def __init__(self) -> None:
        self._entries: dict[Key, tuple[int, int]] = {}      # key -> (entry, block)
        self._keys: dict[int, tuple[Key, int]] = {}         # block -> (key, entry)
        self._blocks: dict[int, int] = {}                   # entry -> block
        self._ids = count(ROOT + 1)

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, block: int) -> bool:
        return block in self._keys

    def __iter__(self) -> Iterator[int]:
        """The blocks that have an entry."""
        return iter(self._keys)

    def lookup(self, token_ids: Sequence[int], block_size: int, salt: str | None) -> list[tuple[int, int]]:
        """``(entry, block)`` of each full block of ``token_ids`` from the first one on; it stops at the first hole in the chain."""
        found: list[tuple[int, int]] = []
        parent = ROOT
        for start in range(0, len(token_ids) - block_size + 1, block_size):
            hit = self._entries.get((parent, tuple(token_ids[start : start + block_size]), salt))
            if hit is None:
                break
            found.append(hit)
            parent = hit[0]
        return found

    def items(self) -> Iterable[tuple[int, tuple[Key, int]]]:
        """``(block, (key, entry))`` of all of them."""
        return self._keys.items()

    def block_of(self, entry: int) -> int | None:
        """The block of an entry; None once it is forgotten."""
        return self._blocks.get(entry)

    def register(self, block: int, parent: int, token_ids: tuple[int, ...], salt: str | None) -> int:
        """Enter a full, computed block after the entry ``parent``; returns its entry.

        Where another block holds the same text already, that one stays and its entry is returned.
        """
        key = (parent, token_ids, salt)
        known = self._entries.get(key)
        if known is not None:
            return known[0]
        self.forget(block)
        entry = next(self._ids)
        self._entries[key] = entry, block
        self._keys[block] = key, entry
        self._blocks[entry] = block
        return entry

    def forget(self, block: int) -> None:
        """The block is about to hold something else. Entries after it can no longer be reached; they go when their blocks do."""
        known = self._keys.pop(block, None)
        if known is not None:
            del self._entries[known[0]]
            del self._blocks[known[1]]

    def clear(self) -> None:
        """Forget every block."""
        self._entries.clear()
        self._keys.clear()
        self._blocks.clear()
