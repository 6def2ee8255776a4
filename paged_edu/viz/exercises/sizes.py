"""Exercises 12.a and b: their cases, which a `PagedKVManager` and the simulator answer, and the typical wrong reckonings."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import numpy as np

from ... import lengths as histograms
from ...checks import integer
from ...core.paged import PagedKVManager
from ...core.sequence import Request
from ...core.sequence import Sequence as TokenSequence
from ...lengths import Histogram, Lengths
from ...sim.block_sizes import SIZES, WORKLOADS, Workload, step_seconds, stored
from ...sim.systems import MOST_SEQS
from .exercise import Case, Function, plain_call
from .guard import NoAnswerError
from .loads import mean
from .readers import Reader
from .readers import integer as integer_of


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


# -- b: a block size for a workload -------------------------------------------------------------------------------------------------------
ENOUGH = 0.95
"""Of the best size's requests/s. Another seed moves what two sizes have to do with each other by 1 or 2 % (see `block_sizes.FEWEST`), and the best of
nine is the luckiest as well: of the sizes that are as good, none may be refused."""

ODD_PREFIX = Workload(
    "odd prefix", "short answers after 248 tokens of instruction",
    Lengths("short answers", "made up", Histogram(4, 16, (13,)), Histogram(16, 32, (17,))), prefix=248, memory=1 / 4)
"""248 tokens fill 31 blocks of 8, and 15 of 16: whoever forgets that a prefix is shared, in full blocks, chooses 16. (80 tokens fill 5 of 16.)"""
ODD_PREFIX_RATES = {1: 34.73, 2: 35.97, 4: 36.14, 8: 36.47, 16: 34.17, 32: 29.56, 64: 21.68, 128: 13.75, 256: 7.53}
"""Requests/s by block size, by `block_sizes.held`."""
ALL = {**WORKLOADS, ODD_PREFIX.name: ODD_PREFIX}


@cache
def rates(name: str) -> dict[int, float]:
    """Simulated requests/s of a workload by block size."""
    return ODD_PREFIX_RATES if name == ODD_PREFIX.name else {size: found.rate for size, found in stored()[name].items()}


@cache
def _step(name: str, size: int, batch: int) -> float:
    return step_seconds(ALL[name], size, batch)


@dataclass(frozen=True, slots=True)
class Known:
    """What one knows of a workload and of its server before anything has run."""

    name: str
    lengths: tuple[int, ...]
    """Tokens of typical requests at their ends, with those that all begin with."""
    prefix: int
    """Tokens that all requests begin with."""
    slots: int
    max_num_seqs: int = MOST_SEQS

    def step(self, B: int, batch: int) -> float:
        """Seconds of a step of ``batch`` requests that decode in blocks of ``B`` slots. Raises ValueError for a batch that no step has."""
        batch = int(batch) if hasattr(batch, "__index__") else batch        # NumPy's integers as well
        integer("batch", batch, 1, self.max_num_seqs)
        return _step(self.name, B, batch)


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """A block size for a workload, and what it comes to."""

    workload: str
    size: int

    @property
    def rate(self) -> float:
        return rates(self.workload)[self.size]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Choice) and (self.workload, self.size) == (other.workload, other.size)

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return f"{self.size}, which holds {self.rate:.4g} requests/s, {100 * self.rate / max(rates(self.workload).values()):.1f} % of the best"


class Best(Choice):
    """What is wanted: the best size, and every other one that is nearly as good is equal to it."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Choice) and self.workload == other.workload and other.rate >= ENOUGH * self.rate

    __hash__ = None

    def __str__(self) -> str:
        return f"{self.size} holds the most, {self.rate:.4g} requests/s; {100 * ENOUGH:.0f} % of that is enough"


@cache
def choice_case(name: str) -> Case:
    workload, found = ALL[name], rates(name)
    lengths = sorted(one.prompt_tokens + one.output_tokens for one in workload.requests(count=1000))
    known = Known(name, tuple(lengths[5::10]), workload.prefix, workload.server().num_slots)
    return Case((known,), Best(name, max(found, key=found.__getitem__)))


def choice_fixed() -> Sequence[Case]:
    return [choice_case(name) for name in ALL]


def draw_choice(random: Random) -> Case:
    return choice_case(random.choice([*ALL]))


def told_choice(case: Case) -> str:
    (known,) = case.args
    begin = f", {known.prefix} of them everybody's" if known.prefix else ""
    return f"choose_block_size(workload): {ALL[known.name].label}; {mean(known.lengths):.0f} tokens a request{begin}; {known.slots:,} slots"


def choose(function: Function, args: tuple[Any, ...], read: Reader) -> Choice:
    """How a case calls the function: the size, with the workload that it is for."""
    return Choice(args[0].name, plain_call(function, args, read))


def one_of_the_sizes(value: Any) -> int:
    size = integer_of(value)
    if size not in SIZES:
        raise NoAnswerError(f"it returned {size}, and one of the sizes {', '.join(map(str, SIZES))} was wanted")
    return size


def batch(workload: Known, B: int) -> int:
    """Requests that fit."""
    shared = workload.prefix // B
    return max(1, int((workload.slots // B - shared) / mean([blocks(length, B) - shared for length in workload.lengths])))


def speed(workload: Known, B: int) -> float:
    """Tokens/s."""
    found = batch(workload, B)
    return found / workload.step(B, found)


def highest(value: Callable[[Known, int], float]) -> Function:
    """The size with the highest ``value``; of several, the smallest."""
    return lambda workload: max(SIZES, key=lambda B: value(workload, B))


def one_block(workload: Known) -> int:
    """The smallest block that holds an average request."""
    return min((B for B in SIZES if mean(workload.lengths) <= B), default=SIZES[-1])
