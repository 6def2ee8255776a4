"""Exercises of lesson 07: the key of a cached block, and who is evicted first. Judged by `PrefixIndex` and `BlockPool`."""
from __future__ import annotations

from collections.abc import Hashable, Sequence
from random import Random
from typing import Any

from ...core.block_pool import BlockPool
from ...core.prefix_index import ROOT, PrefixIndex
from .exercise import Case, Exercise, Function, Misconception
from .guard import NoAnswerError
from .readers import Reader, integer, kind_of, list_of

Text = tuple[str | None, list[tuple[int, ...]]]
"""Salt, and the tokens of each full block."""

A, B, C, X = (1, 2), (3, 4), (5, 6), (7, 8)
FORGED = ((0, 5), (2**61 - 1, 5))
"""Two different blocks for which Python's `hash` gives the same number."""


def _key_case(texts: Sequence[Text]) -> Case:
    """Send the texts one after the other; for each, which block (text, place) serves each of its hits."""
    index, found = PrefixIndex(), []
    origin: dict[int, tuple[int, int]] = {}
    for number, (salt, blocks) in enumerate(texts, 1):
        tokens = [token for block in blocks for token in block]
        hits = index.lookup(tokens, 2, salt)
        found.append([origin[block] for _, block in hits])
        parent = hits[-1][0] if hits else ROOT
        for place in range(len(hits) + 1, len(blocks) + 1):
            block = len(origin)
            origin[block] = number, place
            parent = index.register(block, parent, blocks[place - 1], salt)
    return Case((list(texts),), found)


def _key_fixed() -> Sequence[Case]:
    runs: tuple[list[Text], ...] = (
        [(None, [A]), (None, [A])],
        [(None, [A]), (None, [(2, 1)])],
        [(None, [FORGED[0]]), (None, [FORGED[1]])],
        [("us", [A]), ("them", [A]), ("us", [A])],
        [(None, [A, B]), (None, [B])],
        [(None, [A, B]), (None, [X, B]), (None, [X, B])],
        [(None, [A, B, C]), (None, [X, B, C]), (None, [X, B, C])],
    )
    return [_key_case(texts) for texts in runs]


def _draw_key(random: Random) -> Case:
    salt = random.choice((None, None, "us"))
    return _key_case([
        (salt if random.random() < 0.7 else "them", [random.choice((A, B, C, (2, 1))) for _ in range(random.randint(1, 4))])
        for _ in range(random.randint(2, 5))
    ])


def _key_drive(function: Function, args: tuple[Any, ...], read: Reader) -> Any:
    """A prefix index whose keys are the function's."""
    (texts,) = args
    known: dict[Hashable, tuple[int, int]] = {}
    found = []
    for number, (salt, blocks) in enumerate(texts, 1):
        parent: Hashable = None
        hits: list[tuple[int, int]] | None = []
        row = hits
        for place, tokens in enumerate(blocks, 1):
            parent = read(function(parent, tokens, salt))
            if hits is not None and parent in known:
                hits.append(known[parent])
            else:
                hits = None
                known.setdefault(parent, (number, place))
        found.append(row)
    return found


def _read_key(value: Any) -> Hashable:
    if value is None:
        raise NoAnswerError(f"it returned {kind_of(value)}")
    try:
        hash(value)
    except TypeError:
        raise NoAnswerError(f"it returned {kind_of(value)}, which cannot be a key of a dictionary; a tuple can") from None
    return value  # type: ignore[no-any-return]


def _letters(texts: Sequence[Text]) -> dict[tuple[int, ...], str]:
    names: dict[tuple[int, ...], str] = {}
    for _, blocks in texts:
        for block in blocks:
            names.setdefault(block, "ABCDEFGH"[len(names)])
    return names


def _tell_key(case: Case) -> str:
    names = _letters(case.args[0])
    texts = [" ".join(names[block] for block in blocks) + (f" (salt {salt!r})" if salt else "") for salt, blocks in case.args[0]]
    where = ", ".join(f"{name} = {list(block)}" for block, name in names.items())
    return f"texts, one after the other: {'; '.join(texts)}, where {where}"


def _say_key(value: Any) -> str:
    parts = [f"text {i} is served {', '.join(f'block {place} of text {text}' for text, place in hits)}" for i, hits in enumerate(value, 1) if hits]
    return "; ".join(parts) or "no text finds anything"


def _evict_case(chains: Sequence[Sequence[int]]) -> Case:
    """Sequences with these tables end in this order; the queue of cached blocks afterwards."""
    blocks = sorted({block for chain in chains for block in chain})
    index = PrefixIndex()
    pool = BlockPool(max(blocks) + 1, index)
    pool.allocate(pool.num_blocks)
    for block in blocks:
        index.register(block, ROOT, (block,), None)
    for block in blocks:
        for _ in range(sum(block in chain for chain in chains) - 1):
            pool.share([block])
    for chain in chains:
        pool.free(list(chain))
    return Case(([list(chain) for chain in chains],), pool.cached_blocks())


def _evict_fixed() -> Sequence[Case]:
    return [_evict_case(chains) for chains in (([4],), ([4, 5, 6],), ([5, 2, 9],), ([1, 2], [7, 3]), ([1, 2, 3], [1, 2, 4]), ([6, 1], [6], [2, 5]))]


def _draw_evict(random: Random) -> Case:
    ids = random.sample(range(12), 12)
    chains, shared = [], [ids.pop() for _ in range(random.randint(0, 2))]
    for _ in range(random.randint(1, 3)):
        own = [ids.pop() for _ in range(random.randint(1, 2))]
        chains.append((shared if random.random() < 0.5 else []) + own)
    return _evict_case(chains)


def _evict(newest_first: bool = False, tail_first: bool = True, last_end: bool = True, interleaved: bool = False) -> Any:
    """`evict_order` with a wrong idea in it."""

    def wrong(chains: list[list[int]]) -> list[int]:
        order: list[int] = []
        for i, chain in enumerate(chains):
            later = {block for other in chains[i + 1 :] for block in other} if last_end else set(order)
            order += [block for block in (chain[::-1] if tail_first else chain) if block not in later]
        if newest_first:
            return order[::-1]
        return sorted(order) if interleaved else order

    return wrong


EXERCISES = (
    Exercise(
        name="07.a",
        title="The key of a block",
        signature="block_key(parent, tokens, salt)",
        statement=(
            "Return the key under which a full block is found again: `tokens` are its token ids, `parent` is the key of the block before it (None "
            "for the first "
            "one), `salt` separates tenants. Two blocks may have the same key only if their keys and values are the same. After the text A B, the "
            "text X B "
            "must not be served the block of B that was computed after A."
        ),
        hints=(
            "Keys and values of a token depend on everything before it. What is the least that names everything before a block?",
            "`parent` already stands for all blocks before. A tuple compares what is in it, not only a number made of it.",
            "return (parent, tokens, salt)",
        ),
        judge="PrefixIndex",
        passed="Exact, and cheap in the engine: there a parent is a number that is never used twice, so a comparison costs one block of tokens.",
        read=_read_key,
        fixed=_key_fixed,
        draw=_draw_key,
        drive=_key_drive,
        tell=_tell_key,
        say=_say_key,
        misconceptions=(
            Misconception(
                "your key is made of the block's own tokens alone. B after X would be served what was computed for B after A: warm and cold outputs"
                " differ.",
                lambda parent, tokens, salt: tokens,
            ),
            Misconception(
                "your key is a hash of the block's own tokens alone. B after X would be served what was computed for B after A, and equal hashes "
                "are not equal texts.",
                lambda parent, tokens, salt: hash(tokens),
            ),
            Misconception(
                "your key is made of the block's own tokens and the salt. B after X would be served what was computed for B after A.",
                lambda parent, tokens, salt: (tokens, salt),
            ),
            Misconception(
                "you compare hashes only. Two different blocks can have the same hash, by accident or by somebody's design, and then one gets the "
                "other's text.",
                lambda parent, tokens, salt: hash((parent, tokens, salt)),
            ),
            Misconception("you left out the salt: tenants who should be separate share blocks.", lambda parent, tokens, salt: (parent, tokens)),
            Misconception(
                "your key knows the block before and nothing earlier. C after X B would be served C after A B.",
                lambda parent, tokens, salt: (parent[1] if parent else None, tokens, salt),
            ),
            Misconception(
                "the order of the tokens is lost in your key: [1, 2] and [2, 1] are different texts.",
                lambda parent, tokens, salt: (parent, tuple(sorted(tokens)), salt),
            ),
            Misconception("no two blocks ever have the same key, so nothing is ever found.", lambda parent, tokens, salt: object()),
        ),
    ),
    Exercise(
        name="07.b",
        title="Who is evicted first?",
        signature="evict_order(chains)",
        statement=(
            "Sequences end one after the other; `chains[i]` is the table of the i-th to end, all of its blocks full and cached. Return all block "
            "ids in the order in "
            "which the pool will overwrite them. Of a single chain [4, 5, 6] the last block goes first: after one eviction 2 hits are left."
        ),
        hints=(
            "A lookup starts at the first block and stops at the first that is missing. Which block of a chain can go with the least loss?",
            "A queue, oldest first: whose reference count reaches 0 joins its end. A block that a later sequence still holds is not in it yet.",
            "for each chain in order: its blocks from the last to the first, without those that a later chain has",
        ),
        judge="BlockPool.free",
        passed="Least recently used first, and within a chain the tail first: what is left of a chain can always be hit.",
        read=list_of(integer, "a list of block ids"),
        fixed=_evict_fixed,
        draw=_draw_evict,
        misconceptions=(
            Misconception(
                "the first block of a chain goes first in your answer. Nothing after it can be hit then: 0 hits, with 2 blocks still held.",
                _evict(tail_first=False),
            ),
            Misconception("the youngest goes first in your answer; the one that nobody used for the longest time should.", _evict(newest_first=True)),
            Misconception(
                "a shared block is released with the first sequence in your answer. It is held until the last one ends.", _evict(last_end=False),
            ),
            Misconception("you went by block number. A number says where a block lies, not when it was used.", _evict(interleaved=True)),
        ),
    ),
)
