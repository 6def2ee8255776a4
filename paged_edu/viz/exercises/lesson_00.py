"""Exercise of lesson 00: the blocks that a prompt takes. Judged by `PagedKVManager.admit`."""
from __future__ import annotations

from collections.abc import Sequence
from random import Random

from ...core.paged import PagedKVManager
from ...core.sequence import Request
from ...core.sequence import Sequence as TokenSequence
from .exercise import Case, Exercise, Misconception
from .readers import integer


def _case(prompt_len: int, block_size: int) -> Case:
    """Admit a prompt of that length to a pool that is large enough, and count its table's entries."""
    manager = PagedKVManager(prompt_len + 1, block_size)
    request = Request("A", tuple(range(prompt_len)))
    seq = TokenSequence(0, request, 0, list(request.prompt_token_ids))
    manager.admit(seq, prompt_len)
    return Case((prompt_len, block_size), len(manager.table(seq)))


def _fixed() -> Sequence[Case]:
    return [_case(*args) for args in ((5, 16), (16, 16), (17, 16), (1, 16), (208, 16), (3, 1), (9, 4))]


def _draw(random: Random) -> Case:
    block_size = random.choice((1, 2, 4, 8, 16, 32))
    return _case(random.randint(1, 6 * block_size), block_size)


EXERCISES = (
    Exercise(
        name="00.a",
        title="How many blocks does a prompt take?",
        signature="first_blocks(prompt_len, block_size)",
        statement="Return how many blocks of `block_size` slots the tokens of a prompt take. A prompt of 5 tokens takes 1 block of 16.",
        hints=(
            "Blocks are not shared out in parts: a block that holds one token is taken whole.",
            "Write down 5, 16 and 17 tokens with blocks of 16. Where does the second block begin to be needed?",
            "divide and round *up*; with integers: -(-a // b), or (a + b - 1) // b",
        ),
        judge="PagedKVManager.admit",
        passed="A request never wastes more than the rest of its last block: fewer slots than one block has.",
        read=integer,
        fixed=_fixed,
        draw=_draw,
        misconceptions=(
            Misconception("you rounded down. 5 tokens would get no block at all, and 17 no place for the last one.", lambda n, B: n // B),
            Misconception("you always add a block, also where the last one is exactly full: 16 tokens fit one block of 16.", lambda n, B: n // B + 1),
            Misconception(
                "you rounded to the nearest: a prompt of 5 tokens still needs its block, however empty it stays.",
                lambda n, B: round(n / B),
            ),
            Misconception("you gave every token a block of its own. A block has `block_size` slots, one a token.", lambda n, B: n),
            Misconception("every prompt gets one block in your answer. Long prompts need more.", lambda n, B: 1),
        ),
    ),
)
