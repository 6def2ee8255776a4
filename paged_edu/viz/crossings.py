"""What a threshold makes of latency curves: the rate at which each system crosses it, ours and the paper's, and one system's rate over the others'.

``js/crossings.js`` computes the same in a page; a test compares the two, number by number and word by word.
"""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..sim.points import Run, crossing

Curves = Mapping[str, Sequence[Sequence[float]]]
NONE = "–"


@dataclass(frozen=True, slots=True)
class Row:
    """One system at one threshold; None: its curve does not cross, or there is nothing to compare with."""

    system: str
    ours: float | None
    paper: float | None
    error: float | None
    """Ours over the paper's, minus 1."""
    ratio: float | None
    """The leading system's rate over this one's, ours."""
    paper_ratio: float | None


def leading(systems: Sequence[str]) -> str:
    """The system that the others are compared with: vLLM, or the last one."""
    return "vLLM" if "vLLM" in systems else systems[-1]


def compare(curves: Curves, paper: Curves, threshold: float) -> list[Row]:
    """A row a system, in the order of ``curves``; those that only the paper has come last."""
    systems = list(dict.fromkeys([*curves, *paper]))
    ours, theirs = ({name: crossing(of.get(name, ()), threshold) for name in systems} for of in (curves, paper))
    first = leading(systems)
    rows = []
    for name in systems:
        ratio, paper_ratio = (None if name == first else _over(of[first], of[name]) for of in (ours, theirs))
        over = _over(ours[name], theirs[name])
        rows.append(Row(name, ours[name], theirs[name], None if over is None else over - 1, ratio, paper_ratio))
    return rows


def _over(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


# -- in words ----------------------------------------------------------------------------------------------------------------------------
def fixed(value: float, digits: int) -> str:
    """``value`` with so many decimals, halves away from zero: as JavaScript can round too."""
    scale = 10**digits
    whole = math.floor(abs(value) * scale + 0.5)
    sign = "-" if value < 0 and whole else ""
    return f"{sign}{whole / scale:.{digits}f}"


def rate_words(rate: float | None) -> str:
    """A rate in requests/s."""
    return NONE if rate is None else fixed(rate, 3 if rate < 1 else 2 if rate < 10 else 1)


def error_words(error: float | None) -> str:
    if error is None:
        return NONE
    words = fixed(100 * error, 1)
    return f"{'' if words[0] == '-' else '+'}{words} %"


def ratio_words(ratio: float | None) -> str:
    return NONE if ratio is None else f"{fixed(ratio, 2)} ×"


def cells(row: Row) -> list[str]:
    """What stands in the table: system, ours, paper's, error, ratio, the paper's ratio."""
    return [row.system, rate_words(row.ours), rate_words(row.paper), error_words(row.error), ratio_words(row.ratio), ratio_words(row.paper_ratio)]


def told(rows: Sequence[Row], threshold: float) -> str:
    """The sentence about the main ratio: the leading system over the best of the others."""
    first = leading([row.system for row in rows])
    mine = next(row for row in rows if row.system == first)
    at = f"At {fixed(threshold, 2)} s/token"
    if mine.ours is None:
        return f"{at}: no rate of ours for {first}; its curve does not cross this line"
    said = f"{at}: {first} serves {rate_words(mine.ours)} requests/s"
    best = max((row for row in rows if row.ratio is not None and row.ours is not None), key=lambda row: row.ours or 0, default=None)
    if best is None or best.ratio is None:
        return f"{said}; no other curve of ours crosses this line"
    paper = "" if best.paper_ratio is None else f" (paper: {ratio_words(best.paper_ratio)})"
    return f"{said}, {ratio_words(best.ratio)} the best other, {best.system}{paper}"


def run_told(run: Run) -> str:
    """What a run did, in a sentence."""
    said = f"{run.system} at {rate_text(run.rate)} requests/s: {fixed(run.running, 1)} run, {fixed(run.waiting, 1)} wait on average"
    return f"{said}; {fixed(run.latency, 3)} s/token, {run.num_preemptions} preemptions in {run.num_requests} requests"


def rate_text(rate: float) -> str:
    """A rate as it was chosen, without zeros at the end."""
    return fixed(rate, 4).rstrip("0").rstrip(".")
