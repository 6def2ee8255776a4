"""The walk of one query through the blocks of its table: what online softmax holds after each block, in float64 (Paper §4.1).

A step visits one block. It carries three things on: the largest score so far ``m``, the sum of weights ``exp(score - m)`` so far ``l``, and the
weighted sum of values so far ``acc``. When m grows, l and acc were made with weights that are too large by ``exp(m - m_old)`` and are scaled down;
`WalkStep.forgetful` holds what comes out where somebody forgets that.
"""
from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]

MOST_BLOCKS = 8
"""Blocks that a picture has room for."""


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """``l`` and ``acc`` after a step, and how far ``acc / l`` is from dense softmax attention over the tokens visited so far."""

    l: float  # noqa: E741
    acc: Numbers
    error: float


@dataclass(frozen=True, slots=True, eq=False)
class WalkStep:
    """One block visited; step 0 is before the first: no block, m is minus infinity, all sums are 0."""

    step: int
    block: int | None
    positions: range
    scores: Numbers
    """``scale * q . k`` of the block's tokens ``[len(positions)]``."""
    m_before: float
    m: float
    kept: float
    """``exp(m_before - m)``: how much of what was summed before still counts."""
    right: Sums
    forgetful: Sums
    """The sums of somebody who raises m and does not scale down what was summed before."""

    before: tuple[Sums, Sums] | None = None
    """``right`` and ``forgetful`` of the step before."""

    def sums(self, forget: bool) -> Sums:
        return self.forgetful if forget else self.right

    def acc_before(self, forget: bool) -> Numbers:
        """``acc`` as the step found it."""
        return np.zeros_like(self.right.acc) if self.before is None else self.before[forget].acc


@dataclass(frozen=True, eq=False)
class Walk:
    """All steps, from 0 on. Stands in for an `EventLog` where a view plays it."""

    steps: tuple[WalkStep, ...]
    table: tuple[int, ...]
    length: int
    num_blocks: int
    block_size: int

    first_step = 0

    @property
    def last_step(self) -> int:
        return len(self.steps) - 1

    def replay(self, step: int) -> WalkStep:
        return self.steps[step]


def walk(q: Any, keys: Any, values: Any, table: Sequence[int], length: int, scale: float | None = None) -> Walk:
    """Let one query read ``length`` tokens through ``table``.

    q: ``[head_dim]``; keys, values: ``[num_blocks, block_size, head_dim]``, one head of a layer's cache; tensors or arrays of any floating point
    dtype. scale: 1 / sqrt(head_dim) by default. Slots from ``length`` on are never read. Raises ValueError for shapes that don't fit, a block
    that is not in the pool, a table too short, more than 8 blocks to visit, a slot that holds no finite numbers, or scores that are none.
    """
    query, k, v = (_numbers(name, x) for name, x in (("q", q), ("keys", keys), ("values", values)))
    table, length = [_whole("each entry of table", block) for block in _listed(table)], _whole("length", length)
    if scale is not None:
        scale = float(_numbers("scale", scale))
    if query.ndim != 1 or k.ndim != 3 or k.shape != v.shape or k.shape[2] != query.shape[0]:
        raise ValueError(f"q is [head_dim], keys and values are [num_blocks, block_size, head_dim]; not {query.shape}, {k.shape} and {v.shape}")
    num_blocks, size, head_dim = k.shape
    if not table:
        raise ValueError("table holds no block, and a walk needs at least one")
    if not 1 <= length <= len(table) * size:
        raise ValueError(f"length must be 1 to {len(table) * size}, the slots of a table of {len(table)}, not {length}")
    visited = table[: -(-length // size)]
    if outside := [block for block in visited if not 0 <= block < num_blocks]:
        raise ValueError(f"block {outside[0]} is outside the pool: it has blocks 0 to {num_blocks - 1}")
    if len(visited) > MOST_BLOCKS:
        raise ValueError(f"a walk shows at most {MOST_BLOCKS} blocks, not {len(visited)}")
    factor = 1 / math.sqrt(head_dim) if scale is None else scale
    nothing = Sums(0.0, np.zeros(head_dim), 0.0)
    steps = [WalkStep(0, None, range(0), np.zeros(0), -math.inf, -math.inf, 0.0, nothing, nothing)]
    for logical, block in enumerate(visited):
        positions = range(logical * size, min(length, (logical + 1) * size))
        here = slice(0, len(positions))
        if not (np.isfinite(k[block, here]).all() and np.isfinite(v[block, here]).all()):
            raise ValueError(f"block {block} holds numbers that are not finite: were its first {len(positions)} slots written?")
        scores = factor * (k[block, here] @ query)
        if not np.isfinite(scores).all():
            raise ValueError(f"the scores of block {block} are not finite: q, scale or keys are too large, or are no numbers")
        steps.append(_visit(steps, block, positions, scores, v[block, here], k, v, factor * query, visited))
    return Walk(tuple(steps), tuple(visited), length, num_blocks, size)


def _visit(
    steps: Sequence[WalkStep], block: int, positions: range, scores: Numbers, values: Numbers, k: Numbers, v: Numbers, query: Numbers,
    visited: Sequence[int],
) -> WalkStep:
    before = steps[-1]
    m = max(before.m, float(scores.max()))
    kept, weights = math.exp(before.m - m), np.exp(scores - m)
    dense = _dense(query, k, v, visited, positions.stop)

    def sums(old: Sums, kept: float) -> Sums:
        total, acc = old.l * kept + float(weights.sum()), old.acc * kept + weights @ values
        return Sums(total, acc, float(np.abs(acc / total - dense).max()))

    return WalkStep(len(steps), block, positions, scores, before.m, m, kept, sums(before.right, kept), sums(before.forgetful, 1.0),
                    (before.right, before.forgetful))


def _dense(query: Numbers, k: Numbers, v: Numbers, table: Sequence[int], length: int) -> Numbers:
    """Softmax attention over the first ``length`` tokens in one piece: what every step is compared with."""
    keys, values = (x[list(table)].reshape(-1, x.shape[2])[:length] for x in (k, v))
    scores = keys @ query
    weights = np.exp(scores - scores.max())
    result: Numbers = weights @ values / weights.sum()
    return result


def _numbers(name: str, x: Any) -> Numbers:
    try:
        there = np.asarray(x.detach().cpu().double().numpy() if hasattr(x, "detach") and not x.is_complex() else x)
        if there.dtype.kind not in "fiu":
            raise TypeError
        return there.astype(np.float64)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{name} must be real numbers in a tensor or an array, not {type(x).__name__} {str(x)[:60]!r}") from None


def _whole(name: str, value: Any) -> int:
    """Also of numpy and torch, whose lengths and tables these mostly are."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be a whole number, not {value!r}") from None


def _listed(table: Any) -> list[Any]:
    if isinstance(table, str | bytes) or not hasattr(table, "__iter__"):
        raise ValueError(f"table must be a list of block numbers, not {table!r}")
    return list(table)


def told(step: WalkStep, forget: bool = False) -> str:
    """What happened in a step, in one sentence with its numbers."""
    if step.block is None:
        return "step 0: nothing is read yet; m is minus infinity, l and acc are 0"
    sums, where = step.sums(forget), f"step {step.step}: block {step.block}, positions {step.positions.start} to {step.positions.stop - 1}"
    if math.isinf(step.m_before):
        return f"{where}: m becomes {step.m:.2f}, l is {sums.l:.2f}"
    if step.m == step.m_before:
        return f"{where}: no larger score, m stays {step.m:.2f}; l grows to {sums.l:.2f}"
    scaled = f"should be multiplied by {step.kept:.2f} and is not" if forget else f"is multiplied by {step.kept:.2f}"
    return f"{where}: m rises from {step.m_before:.2f} to {step.m:.2f}; what was summed before {scaled}; l is {sums.l:.2f}"


def compared(step: WalkStep, forget: bool = False) -> str:
    """How far the result so far is from dense attention over the same tokens."""
    error, count = step.sums(forget).error, step.positions.stop
    these = f"these {count} tokens" if count > 1 else "this token"
    if step.block is None:
        return "acc / l will be the result"
    if error < 1e-12:
        return f"✓ acc / l equals dense attention over {these} (to 12 digits)"
    return f"✗ acc / l is off by {error:.2f} from dense attention over {these}"
