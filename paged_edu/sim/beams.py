"""BeamSearch: which beams go on and from which parent, where no model runs (Paper §4.4, §6.3).

How much beams share depends on how often a beam has two children and another none. That is decided as in the real search: each beam offers its
likeliest next tokens, and the best of all candidates go on. What a beam is offered is drawn from a table of log-probabilities that a language
model gave along its answers (`data/sim/next_tokens.json`), for each beam and step anew; no figure of the paper went into it.
"""
from __future__ import annotations

import json
import random
from functools import cache
from heapq import nlargest
from importlib.resources import files

from ..core.plan import Branch


@cache
def next_tokens() -> list[list[float]]:
    """Log-probabilities of the likeliest next tokens, likeliest first, at some hundred positions: the largest width of a search is a row's length."""
    rows: list[list[float]] = json.loads(files("paged_edu.data").joinpath("sim", "next_tokens.json").read_text(encoding="utf-8"))["rows"]
    return rows


class BeamSearch:
    """The search of one request: ``width`` beams, ``length`` output tokens each. Raises ValueError for a width that the table does not reach."""

    def __init__(self, width: int, length: int, seed: int = 0) -> None:
        most = len(next_tokens()[0])
        if not 1 <= width <= most:
            raise ValueError(f"a beam width of {width}: the simulator knows searches of 1 to {most} beams")
        self.width = width
        self.left = length
        self.scores: list[float] = []
        """Cumulative log-probability of each beam, in the order in which they go on."""
        self._random = random.Random(seed)

    def step(self, parents: list[int]) -> tuple[Branch, ...]:
        """The children of the live beams ``parents`` (sequence ids), best first; all end with the last token."""
        scores = [0.0] * len(parents) if len(self.scores) != len(parents) else self.scores
        rows, width = next_tokens(), self.width
        candidates = [
            (score + logprob, -place, -rank)
            for place, score in enumerate(scores)
            for rank, logprob in enumerate(rows[int(self._random.random() * len(rows))][:width])
        ]
        best = nlargest(width, candidates)
        self.left -= 1
        reason = None if self.left else "length"
        self.scores = [score for score, _, _ in best]
        return tuple([Branch(parents[-place], (-rank,), finish_reason=reason) for _, place, rank in best])
