"""FakeRunner: a runner without a model, whose every answer depends on every byte of the cache that a real model would read.

Its "keys and values" are one 64-bit number a slot, made of token and position. The next token is a function of the sum of the numbers
that it reads *through the block table*. A block that was freed too early, a copy that was left out or a wrong slot changes the text,
and `expected_tokens` says what the text should have been. It drives tests, the scheduler benchmark and the pictures.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..core.plan import COMPUTED_SLOT, Branch, ScheduledSeq, SchedulerOutput, StepResult

_MASK = (1 << 64) - 1
POISON = np.uint64(0xDEAD_DEAD_DEAD_DEAD)


def _mix(tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """One 64-bit number for each (token, position): splitmix64's finaliser, so that no two contexts have the same sum by accident."""
    x = tokens.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + positions.astype(np.uint64) * np.uint64(0xD1B54A32D192ED03)
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = x ^ (x >> np.uint64(31))
    return mixed


class FakeRunner:
    """Answers each step from a byte-exact model of the KV cache.

    ``vocab_size`` bounds the tokens that it "samples" (ids ``0 .. vocab_size - 1``); ``branch`` is mixed in, so that branches differ.
    """

    def __init__(self, num_blocks: int, block_size: int, vocab_size: int = 1000) -> None:
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.cells = np.full(num_blocks * block_size, POISON, dtype=np.uint64)
        self.num_copies = 0

    def execute(self, output: SchedulerOutput, sampling: Mapping[str, Any] | None = None) -> StepResult:
        self._copy(output)
        for item in output.scheduled:
            self._write(item)
        branches: dict[str, tuple[Branch, ...]] = {}
        for item in output.scheduled:
            self._check_context(item)
            if item.num_samples:
                token = self._next_token(self._read(item), item.seq_len, item.branch)
                branches[item.request_id] = (*branches.get(item.request_id, ()), Branch(item.seq_id, (token,)))
        return StepResult(branches)

    def _copy(self, output: SchedulerOutput) -> None:
        sources, targets = {c.src for c in output.copies}, [c.dst for c in output.copies]
        if sources & set(targets) or len(set(targets)) != len(targets):
            raise ValueError(f"step {output.step}: a block is a target twice, or both source and target: {output.copies}")
        pages = self.cells.reshape(-1, self.block_size)
        if output.copies:
            pages[targets] = pages[[c.src for c in output.copies]].copy()
        self.num_copies += len(output.copies)

    def _write(self, item: ScheduledSeq) -> None:
        slots = np.array(item.slots, dtype=np.int64)
        positions = np.arange(item.start, item.seq_len)
        keep = slots != COMPUTED_SLOT
        self.cells[slots[keep]] = _mix(np.array(item.token_ids), positions)[keep]

    def _read(self, item: ScheduledSeq) -> np.ndarray:
        """The cells of positions ``0 .. seq_len - 1``, through the block table."""
        pages = self.cells.reshape(-1, self.block_size)
        return pages[list(item.block_table)].reshape(-1)[: item.seq_len]

    def _check_context(self, item: ScheduledSeq) -> None:
        """What a query reads must have been written: at the moment of the step the new tokens are there as well."""
        own = self._read(item)[item.start :]
        expected = _mix(np.array(item.token_ids), np.arange(item.start, item.seq_len))
        if not np.array_equal(own, expected):
            raise ValueError(f"{item.request_id}/{item.branch}: slots {item.slots} are not what its block table reads at {item.start}")

    def _next_token(self, cells: np.ndarray, length: int, branch: int) -> int:
        return _token(int(cells.sum(dtype=np.uint64)), length, branch, self.vocab_size)


def _token(digest: int, length: int, branch: int, vocab_size: int) -> int:
    x = (digest ^ (length * 0x9E3779B97F4A7C15) ^ (branch * 0xC2B2AE3D27D4EB4F)) & _MASK
    x = ((x ^ (x >> 33)) * 0xFF51AFD7ED558CCD) & _MASK
    return (x ^ (x >> 33)) % vocab_size


def expected_tokens(prompt: Sequence[int], count: int, vocab_size: int = 1000, branch: int = 0) -> list[int]:
    """The ``count`` tokens that `FakeRunner` gives after ``prompt`` if no byte is ever lost: computed from the tokens alone."""
    tokens = list(prompt)
    for _ in range(count):
        cells = _mix(np.array(tokens), np.arange(len(tokens)))
        tokens.append(_token(int(cells.sum(dtype=np.uint64)), len(tokens), branch, vocab_size))
    return tokens[len(prompt) :]
