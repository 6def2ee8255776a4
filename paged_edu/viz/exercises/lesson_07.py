"""Exercises of lesson 07: the block keys of a prompt, and who is evicted first. Judged by `PrefixIndex` and `BlockPool`."""
from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import takewhile
from random import Random
from typing import Any

from ...core.block_pool import BlockPool
from ...core.prefix_index import ROOT, PrefixIndex
from .exercise import Case, Exercise, Function, Misconception, plain_call
from .guard import NoAnswerError
from .readers import Reader, integer, kind_of, list_of

Text = tuple[str | None, list[int]]
"""Salt and tokens."""

B = 2
FORGED = ((0, 5), (2**61 - 1, 5))
"""Two different blocks for which Python's `hash` gives the same number."""


def _key_case(texts: Sequence[Text], size: int = B) -> Case:
    """Send the texts one after the other; for each, which block (text, place) serves each of its hits."""
    index, found = PrefixIndex(), []
    origin: dict[int, tuple[int, int]] = {}
    for number, (salt, tokens) in enumerate(texts, 1):
        hits = index.lookup(tokens, size, salt)
        found.append([origin[block] for _, block in hits])
        parent = hits[-1][0] if hits else ROOT
        for place in range(len(hits), len(tokens) // size):
            block = len(origin)
            origin[block] = number, place + 1
            parent = index.register(block, parent, tuple(tokens[place * size : (place + 1) * size]), salt)
    return Case((list(texts), size), found)


def _key_fixed() -> Sequence[Case]:
    runs: tuple[list[Text], ...] = (
        [(None, [1, 2]), (None, [1, 2])],
        [(None, [1, 2]), (None, [2, 1])],
        [(None, [1, 2, 3]), (None, [1, 2, 3])],
        [(None, [*FORGED[0]]), (None, [*FORGED[1]])],
        [("us", [1, 2]), ("them", [1, 2]), ("us", [1, 2])],
        [(None, [1, 2, 3, 4]), (None, [3, 4])],
        [(None, [1, 2, 3, 4]), (None, [7, 8, 3, 4]), (None, [7, 8, 3, 4])],
        [(None, [1, 2, 3, 4, 5, 6]), (None, [7, 8, 3, 4, 5, 6]), (None, [7, 8, 3, 4, 5, 6])],
    )
    return [*(_key_case(texts) for texts in runs), _key_case([(None, [1, 2, 3, 4, 5, 6])] * 2, 4)]


def _draw_key(random: Random) -> Case:
    size, salt = random.choice((1, 2, 2, 3)), random.choice((None, None, "us"))
    texts: list[Text] = []
    for _ in range(random.randint(2, 5)):
        blocks = [random.choice((1, 4, 7, 4)) for _ in range(random.randint(1, 4))]
        tokens = [first + i for first in blocks for i in random.choice((range(size), range(size), range(size)[::-1]))]
        texts.append((salt if random.random() < 0.7 else "them", tokens[: random.randint(max(1, len(tokens) - size + 1), len(tokens))]))
    return _key_case(texts, size)


def _key_drive(function: Function, args: tuple[Any, ...], read: Reader) -> Any:
    """A prefix index whose block keys are the function's."""
    texts, size = args
    known: dict[Hashable, tuple[int, int]] = {}
    found = []
    for number, (salt, tokens) in enumerate(texts, 1):
        keys = plain_call(function, (tokens, size, salt), read)
        hits = [known[key] for key in takewhile(known.__contains__, keys)]
        for place in range(len(hits), len(keys)):
            known.setdefault(keys[place], (number, place + 1))
        found.append(hits)
    return found


def _read_key(value: Any) -> Hashable:
    try:
        hash(value)
    except TypeError:
        raise NoAnswerError(f"one of the block keys is {kind_of(value)}, which cannot be a key of a dictionary; a tuple can") from None
    return value  # type: ignore[no-any-return]


def _tell_key(case: Case) -> str:
    texts, size = case.args
    told = [f"{tokens}" + (f" (salt {salt!r})" if salt else "") for salt, tokens in texts]
    return f"B = {size}; prompts, one after the other: {'; '.join(told)}"


def _say_key(value: Any) -> str:
    parts = [
        f"prompt {i} is served {', '.join(f'block {place} of prompt {text}' for text, place in hits)}" for i, hits in enumerate(value, 1) if hits
    ]
    return "; ".join(parts) or "no prompt finds anything"


def _keys(part: Callable[[Hashable, tuple[int, ...], str | None, int], Hashable], partial: bool = False) -> Function:
    """`block_keys` with a wrong idea in it: a block's key is made of the key before it, its tokens, the salt and its place."""

    def wrong(tokens: list[int], size: int, salt: str | None) -> list[Hashable]:
        keys: list[Hashable] = []
        for start in range(0, len(tokens) if partial else len(tokens) - size + 1, size):
            keys.append(part(keys[-1] if keys else None, tuple(tokens[start : start + size]), salt, start))
        return keys

    return wrong


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
        title="Block keys",
        signature="block_keys(tokens, B, salt)",
        statement=(
            "Return the block keys of a prompt, a list: one for each of its blocks that can be cached, the first block first. `tokens` is the list "
            "of its token ids, a block has `B` slots, `salt` names a tenant (or is None). A block key may be anything that a dictionary takes as a "
            "key. Two blocks, of whatever prompts, must have the same block key exactly if one of them may be served the other's keys and values. "
            "With B = 2 and no salt, [1, 2, 3, 4, 5] has two block keys, [1, 2, 6] one, the first of those two, and [7, 8, 3, 4] has two others."
        ),
        hints=(
            "Which blocks are ever cached? And what must be the same for the keys and values of two blocks to be the same?",
            "Go through the prompt block by block and remember the block key before: it stands for all that came earlier. A tuple is compared by "
            "what is in it, a hash only by a number made of it.",
            "for each full block: key = (the block key before it, its tokens as a tuple, salt)",
        ),
        judge="PrefixIndex",
        passed="Exact. The engine has a number, never used twice, in place of the key before: so a comparison costs one block of tokens.",
        read=list_of(_read_key, "a list of block keys"),
        fixed=_key_fixed,
        draw=_draw_key,
        drive=_key_drive,
        tell=_tell_key,
        say=_say_key,
        misconceptions=(
            Misconception(
                "your block key is made of the block's own tokens alone. [3, 4] after [7, 8] would be served what was computed for [3, 4] after [1, "
                "2]: warm and cold answers differ.",
                _keys(lambda before, tokens, salt, start: tokens),
            ),
            Misconception(
                "your block key is a hash of the block's own tokens alone. It says nothing of what stands before, and equal hashes are not equal "
                "texts.",
                _keys(lambda before, tokens, salt, start: hash(tokens)),
            ),
            Misconception(
                "your block key is made of the block's own tokens and the salt. It says nothing of what stands before the block.",
                _keys(lambda before, tokens, salt, start: (tokens, salt)),
            ),
            Misconception(
                "your block key says where the block stands, not what stands before it. The same words at the same place have other keys and values "
                "after another beginning.",
                _keys(lambda before, tokens, salt, start: (start, tokens, salt)),
            ),
            Misconception(
                "you compare hashes only. Two different blocks can have the same hash, by accident or by somebody's design, and then one gets the "
                "other's text.",
                _keys(lambda before, tokens, salt, start: hash((before, tokens, salt))),
            ),
            Misconception(
                "you left out the salt: tenants who should be separate share blocks.",
                _keys(lambda before, tokens, salt, start: (before, tokens)),
            ),
            Misconception(
                "your block key knows the block before and nothing earlier.",
                _keys(lambda before, tokens, salt, start: (before[1] if before else None, tokens, salt)),  # type: ignore[index]
            ),
            Misconception(
                "the order of the tokens is lost in your block key: [1, 2] and [2, 1] are different texts.",
                _keys(lambda before, tokens, salt, start: (before, tuple(sorted(tokens)), salt)),
            ),
            Misconception(
                "you gave a block that is not full a block key. It is not cached: its next token is still to be written into it.",
                _keys(lambda before, tokens, salt, start: (before, tokens, salt), partial=True),
            ),
            Misconception(
                "no two blocks ever have the same block key, so nothing is ever found.",
                _keys(lambda before, tokens, salt, start: object()),
            ),
        ),
    ),
    Exercise(
        name="07.b",
        title="Who is evicted first?",
        signature="evict_order(chains)",
        statement=(
            "Requests end one after the other, and nothing else happens; `chains[i]` is the block table of the i-th to end. All their blocks are "
            "full, so each can be found; a block in several tables is shared by them. When all have ended, the pool needs room and evicts one block "
            "after the other. Return all block ids, the first to be evicted first. [[4, 5, 6]] gives [6, 5, 4]; [[1, 2, 3], [1, 2, 4]], where blocks "
            "1 and 2 are shared, gives [3, 4, 2, 1]."
        ),
        hints=(
            "A lookup starts at the first block and stops at the first that is missing. Which block of a chain can go with the least loss?",
            "A queue, the next to go in front: a block joins its end when its reference count reaches 0. What a later request still holds is not "
            "in it yet.",
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
                "a shared block is released with the first request in your answer. It is held until the last one ends.", _evict(last_end=False),
            ),
            Misconception("you went by block number. A number says where a block lies, not when it was used.", _evict(interleaved=True)),
        ),
    ),
)
