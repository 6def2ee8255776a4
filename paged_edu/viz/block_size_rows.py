"""The rows of `BlockSizeView`: each a quantity at the nine block sizes, and where it is best."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..sim.block_sizes import SIZES, Workload, reusable, step_seconds, swap_seconds, token_share, waste
from ..sim.what_if import Held

CLOSE = 0.01
"""Simulated rates that differ by less than this share are equally good: other requests of the same kind would change their order."""


@dataclass(frozen=True, slots=True)
class Row:
    """A quantity over `SIZES`."""

    label: str
    how: str
    """Where its numbers come from, or what they are of."""
    values: tuple[float, ...]
    unit: str
    decimals: int = 0
    more_is_better: bool = False
    close: float = 0.0
    """Values within this share of the best are as good."""

    def best(self) -> list[int]:
        """The sizes with the best value; none where all are alike."""
        if len(set(self.values)) == 1:
            return []
        top = max(self.values) if self.more_is_better else min(self.values)
        return [size for size, value in zip(SIZES, self.values, strict=True) if abs(value - top) <= self.close * top]

    def told(self, size: int) -> str:
        """The value at one size, with its unit."""
        return f"{self.values[SIZES.index(size)]:,.{self.decimals}f} {self.unit}"

    def told_best(self) -> str:
        """Which sizes are best."""
        best = self.best()
        if len(best) < 2:
            return f"best: {best[0]}" if best else "the same for all"
        places = [SIZES.index(size) for size in best]
        in_a_row = places[-1] - places[0] == len(places) - 1
        return f"best: {best[0]} to {best[-1]}" if in_a_row and len(best) > 2 else "best: " + ", ".join(map(str, best))


def formula_rows(tokens: np.ndarray, prefix: int) -> list[Row]:
    """What needs no simulation. ``tokens``: of each sequence, a common ``prefix`` included; its full blocks are there once and count for nobody."""
    own = [tokens - reusable(prefix, size) for size in SIZES]
    rows = [
        Row("slots in use that hold tokens", "with every sequence at its end",
            tuple(100 * token_share(size, mine) for size, mine in zip(SIZES, own, strict=True)), "%", 1, more_is_better=True),
        Row("waste of a sequence", "in its last block, on average", tuple(waste(size, tokens) for size in SIZES), "slots", 1),
    ]
    if prefix:
        rows.append(Row("prefix found in the cache", f"of {prefix:,} common tokens: full blocks",
                        tuple(float(reusable(prefix, size)) for size in SIZES), "tokens", more_is_better=True))
    return [
        *rows,
        Row("block table of a sequence", "on average", tuple(float(-(-tokens // size).mean()) for size in SIZES), "entries", 1),
        Row("swapping 256 tokens", "of OPT-13B, out and in again", tuple(1e3 * swap_seconds(size) for size in SIZES), "ms", 1),
    ]


def simulated_rows(workload: Workload, held: Mapping[int, Held]) -> list[Row]:
    """What the cost model and the simulator say of a workload; ``held``: what the server holds, by size."""
    batch, rates = round(held[16].running), tuple(held[size].rate for size in SIZES)
    return [
        Row("time of a step", f"cost model: {batch} sequences, half written",
            tuple(1e3 * step_seconds(workload, size, batch) for size in SIZES), "ms", 1),
        Row("rate held", f"simulated: {workload.server().num_slots:,} slots, always a queue", rates, "requests/s", 2 if max(rates) < 10 else 1,
            more_is_better=True, close=CLOSE),
    ]
