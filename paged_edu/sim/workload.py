"""Requests that arrive over time: Poisson arrivals, lengths from the paper's histograms (Paper §6.1)."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .. import lengths
from ..checks import integer, number


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: when it comes [s], and its lengths [tokens]."""

    time: float
    prompt_tokens: int
    output_tokens: int
    prefix_tokens: int = 0
    """The first tokens of the prompt are the same in all requests that have a prefix."""


def poisson(dataset: str, rate: float, seconds: float, seed: int = 0, max_model_len: int = lengths.PAPER_MODEL_LEN) -> list[Arrival]:
    """``rate`` requests a second on average for ``seconds``, with lengths of ``dataset`` ("sharegpt" or "alpaca").

    The same seed gives the same lengths and the same arrivals, only closer together, at any rate: curves over the rate are then smooth.
    Raises ValueError for a rate or a time that is not above 0.
    """
    number("rate", rate, 0, low_open=True)
    number("seconds", seconds, 0, low_open=True)
    integer("seed", seed, 0)
    gaps, sizes = np.random.default_rng((seed, 0)), np.random.default_rng((seed, 1))
    times: list[float] = []
    now = 0.0
    while True:
        now += float(gaps.exponential()) / rate
        if now >= seconds:
            break
        times.append(now)
    if not times:
        return []
    drawn = lengths.load(dataset).matched(len(times), sizes)
    return [Arrival(t, p, o) for t, (p, o) in zip(times, drawn, strict=True)]
