"""How long prompts and answers are: the ShareGPT and Alpaca histograms of Paper Fig. 11, and requests drawn from them (Paper §6.1).

The paper publishes the two distributions of a data set, not how they go together, so a request's prompt and answer are drawn independently. What
would not fit the model's 2048 positions is drawn again. For a model with fewer (or more) positions, lengths are scaled with them.
"""
from __future__ import annotations

import json
import math
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from . import checks

if TYPE_CHECKING:
    import numpy as np

DATASETS = ("sharegpt", "alpaca")
PAPER_MODEL_LEN = 2048
"""Positions of the paper's OPT models: the longest request, prompt and answer together."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Requests by length [tokens]: ``counts`` of equally wide bins from ``low`` to ``high`` (both included)."""

    low: int
    high: int
    counts: tuple[int, ...]

    @property
    def num_requests(self) -> int:
        return sum(self.counts)

    def edges(self) -> list[tuple[int, int]]:
        """First and last whole number of each bin; within a bin every length is taken to be equally frequent."""
        bins, span = len(self.counts), self.high - self.low
        first = [self.low - (-k * span // bins) for k in range(bins)]       # rounded up: a bin begins at its first whole number
        return list(zip(first, [*(start - 1 for start in first[1:]), self.high], strict=True))

    def mean(self) -> float:
        return sum(count * (a + b) / 2 for count, (a, b) in zip(self.counts, self.edges(), strict=True)) / self.num_requests

    def quantile(self, share: float) -> int:
        """The shortest length that at least ``share`` of the requests (0 to 1) do not exceed."""
        import numpy as np

        checks.number("share", share, 0, 1)
        return int(self.lengths_at(np.array([max(0, math.ceil(share * self.num_requests) - 1)]))[0])

    def lengths_at(self, places: np.ndarray) -> np.ndarray:
        """The lengths of the requests at ``places`` (0 is the shortest request, ``num_requests - 1`` the longest), int64 like them.

        Those of a bin are spread evenly over it; a single one is in its middle.
        """
        import numpy as np

        first, last = np.array(self.edges()).T
        ends = np.cumsum(self.counts)
        bins = np.searchsorted(ends, places, side="right")
        counts = np.array(self.counts)[bins]
        lengths: np.ndarray = first[bins] + (2 * (places - ends[bins] + counts) + 1) * (last - first + 1)[bins] // (2 * counts)
        return lengths

    def sample(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """``count`` lengths, int64[count]: one uniform number each (numpy may change how it chooses with weights, not what `random` gives)."""
        import numpy as np

        places: np.ndarray = (rng.random(count) * self.num_requests).astype(np.int64)
        return self.lengths_at(places)


@dataclass(frozen=True, slots=True)
class Lengths:
    """The two histograms of a data set."""

    name: str
    source: str
    input: Histogram
    output: Histogram

    def sample(self, count: int, rng: np.random.Generator, max_model_len: int = PAPER_MODEL_LEN) -> list[tuple[int, int]]:
        """``count`` requests as (prompt tokens, output tokens), together at most ``max_model_len``.

        Requests of more than 2048 tokens are drawn again. The others are scaled by ``max_model_len / 2048``: at least 1 token each,
        the sum rounded to the nearest.
        """
        checks.integer("count", count, 1)
        checks.integer("max_model_len", max_model_len, 2)
        pairs: list[tuple[int, int]] = []
        while len(pairs) < count:
            drawn = zip(self.input.sample(count, rng).tolist(), self.output.sample(count, rng).tolist(), strict=True)
            pairs += [(prompt, output) for prompt, output in drawn if prompt + output <= PAPER_MODEL_LEN]
        return [_scaled(prompt, output, max_model_len) for prompt, output in pairs[:count]]


    def matched(self, count: int, rng: np.random.Generator, max_model_len: int = PAPER_MODEL_LEN) -> list[tuple[int, int]]:
        """``count`` requests as (prompt tokens, output tokens), together at most 2048, with both distributions as they are; scaled as by `sample`.

        Drawing again (`sample`) loses long prompts and long answers, which together would be too long. Here such a request exchanges its answer
        with another's, chosen at random, where both fit then. The two sides have random numbers of their own: with more requests the first ones
        stay as they are, but for some of those exchanges.
        """
        checks.integer("count", count, 1)
        checks.integer("max_model_len", max_model_len, 2)
        one, other = rng.spawn(2)
        prompts, outputs = self.input.sample(count, one).tolist(), self.output.sample(count, other).tolist()
        for i in range(count):
            for _ in range(100):                            # a long prompt finds a short answer sooner than that, unless there are few requests
                if prompts[i] + outputs[i] <= PAPER_MODEL_LEN:
                    break
                j = int(rng.random() * count)
                if prompts[i] + outputs[j] <= PAPER_MODEL_LEN and prompts[j] + outputs[i] <= PAPER_MODEL_LEN:
                    outputs[i], outputs[j] = outputs[j], outputs[i]
        return [_scaled(p, min(o, PAPER_MODEL_LEN - p), max_model_len) for p, o in zip(prompts, outputs, strict=True)]


def _scaled(prompt: int, output: int, max_model_len: int) -> tuple[int, int]:
    total = max(2, _rounded((prompt + output) * max_model_len))
    short = min(max(1, _rounded(prompt * max_model_len)), total - 1)
    return short, total - short


def _rounded(tokens: int) -> int:
    """``tokens / 2048`` to the nearest, halves up: in whole numbers, so that every machine agrees."""
    return (2 * tokens + PAPER_MODEL_LEN) // (2 * PAPER_MODEL_LEN)


def load(name: str) -> Lengths:
    """A data set's histograms from the package's data: "sharegpt" or "alpaca"."""
    checks.one_of("dataset", name, DATASETS)
    stored: dict[str, Any] = json.loads(files("paged_edu.data").joinpath("paper", f"fig11_{name}.json").read_text(encoding="utf-8"))
    sides = {side: Histogram(stored[side]["low"], stored[side]["high"], tuple(stored[side]["counts"])) for side in ("input", "output")}
    return Lengths(stored["name"], stored["source"], **sides)
