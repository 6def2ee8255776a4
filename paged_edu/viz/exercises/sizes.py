"""Exercises 12.a and b: their cases, which a `PagedKVManager` and the simulator answer, and the typical wrong reckonings."""
from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from ... import lengths as histograms
from ...core.paged import PagedKVManager
from ...core.sequence import Request
from ...core.sequence import Sequence as TokenSequence
from .exercise import Case


def blocks(tokens: int, B: int) -> int:
    """Blocks that hold so many tokens."""
    return -(-tokens // B)


# -- a: empty slots ---------------------------------------------------------------------------------------------------------------------
def waste_case(B: int, lengths: list[int]) -> Case:
    """Let sequences of these lengths into a pool that has just room for them, and read its report."""
    manager = PagedKVManager(sum(blocks(length, B) for length in lengths), B)
    for i, length in enumerate(lengths):
        request = Request(str(i), tuple(range(length)), max_tokens=1)       # nothing is to come, so whatever is empty stays empty
        manager.admit(TokenSequence(i, request, 0, list(request.prompt_token_ids), length), length)
    return Case((B, lengths), manager.report().internal / len(lengths))


def running(dataset: str, count: int) -> list[int]:
    """Tokens of ``count`` requests of a data set, each seen at some moment of its life, from short to long."""
    requests = histograms.load(dataset).sample(8000, np.random.default_rng(0))
    moments = np.sort(np.concatenate([prompt + np.arange(answer) for prompt, answer in requests]))
    chosen: list[int] = moments[(2 * np.arange(count) + 1) * len(moments) // (2 * count)].tolist()
    return chosen


def waste_fixed() -> Sequence[Case]:
    small: Sequence[tuple[int, list[int]]] = (
        (16, [16, 17, 40]), (16, [16]), (16, [1]), (1, [5, 9]), (8, [20, 3, 24]), (32, [40, 10, 7]), (16, [500, 20]),
    )
    return [*(waste_case(*args) for args in small), waste_case(16, running("sharegpt", 500)), waste_case(256, running("alpaca", 500))]


def draw_waste(random: Random) -> Case:
    B = random.choice((2, 4, 8, 16, 32))
    return waste_case(B, [random.randint(1, 3 * B + 2) for _ in range(random.randint(2, 6))])


def told_waste(case: Case) -> str:
    B, lengths = case.args
    shown = repr(lengths) if len(lengths) <= 12 else f"[{', '.join(map(str, lengths[:6]))}, ... {len(lengths):,} in all]"
    return f"expected_waste(B={B}, lengths={shown})"


def empty(B: int, lengths: Sequence[int]) -> list[int]:
    """Slots without a token in the last block of each."""
    return [blocks(length, B) * B - length for length in lengths]
