"""FakeRunner: a runner without a model, whose every answer depends on every byte of the cache that a real model would read.

Its "keys and values" are one 64-bit number a slot, made of token and position. The next token is a function of the sum of the numbers
that it reads *through the block table*. A block that was freed too early, a copy that was left out or a wrong slot changes the text,
and `expected_tokens` and `expected_beams` say what the text should have been. It drives tests, the scheduler benchmark and the pictures.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from ..core.plan import COMPUTED_SLOT, Branch, Copy, ScheduledSeq, SchedulerOutput, StepResult

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


@dataclass(frozen=True, slots=True)
class FakeBeam:
    """A beam search that `FakeRunner` acts out for a request: which branches go on depends on all that they read."""

    width: int
    prompt_len: int
    max_tokens: int


class FakeRunner:
    """Answers each step from a byte-exact model of the KV cache.

    ``vocab_size`` bounds the tokens that it "samples" (ids ``0 .. vocab_size - 1``); the branch is mixed in, so that branches differ.
    ``num_cpu_blocks`` is the size of host memory. ``beams`` says which request ids are beam searches; tests add to it.
    """

    gives_logprobs = False

    def __init__(self, num_blocks: int, block_size: int, vocab_size: int = 1000, num_cpu_blocks: int = 0) -> None:
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.cells = np.full(num_blocks * block_size, POISON, dtype=np.uint64)
        self.cpu_cells = np.full(num_cpu_blocks * block_size, POISON, dtype=np.uint64)
        self.beams: dict[str, FakeBeam] = {}
        self.num_copies = self.num_swapped_out = self.num_swapped_in = 0

    def execute(self, output: SchedulerOutput, sampling: Mapping[str, Any] | None = None) -> StepResult:
        if output.swap_out and output.swap_in:
            raise ValueError(f"step {output.step} swaps both ways")
        self._move(output.step, output.swap_out, self.cells, self.cpu_cells)
        self._move(output.step, output.swap_in, self.cpu_cells, self.cells)
        self._move(output.step, output.copies, self.cells, self.cells)
        self.num_copies += len(output.copies)
        self.num_swapped_out += len(output.swap_out)
        self.num_swapped_in += len(output.swap_in)
        rows: dict[str, list[tuple[ScheduledSeq, int]]] = {}
        for item, written in zip(output.scheduled, self._write(output.scheduled), strict=True):
            context = self._read(item)
            # What a query reads must have been written: at the moment of the step the new tokens are there as well.
            if not np.array_equal(context[item.start :], written):
                raise ValueError(f"{item.request_id}/{item.branch}: slots {item.slots} are not what its block table reads at {item.start}")
            if item.num_samples:
                rows.setdefault(item.request_id, []).append((item, int(context.sum(dtype=np.uint64))))
        return StepResult({request_id: tuple(self._branches(request_id, items)) for request_id, items in rows.items()})

    def _branches(self, request_id: str, rows: list[tuple[ScheduledSeq, int]]) -> Iterable[Branch]:
        """What the rows of a request, each with the digest of what it read, go on with."""
        beam = self.beams.get(request_id)
        if beam is not None:
            for row, token, reason in _beam_step([digest for _, digest in rows], rows[0][0].seq_len, beam, self.vocab_size):
                yield Branch(rows[row][0].seq_id, (token,), finish_reason=reason)
            return
        for item, digest in rows:
            for sample in range(item.num_samples):
                yield Branch(item.seq_id, (_token(digest, item.seq_len, item.branch + sample, self.vocab_size),))

    def _move(self, step: int, copies: Sequence[Copy], source: np.ndarray, target: np.ndarray) -> None:
        sources, targets = [c.src for c in copies], [c.dst for c in copies]
        if len(set(targets)) != len(targets) or (source is target and set(sources) & set(targets)):
            raise ValueError(f"step {step}: a block is a target twice, or both source and target: {copies}")
        if copies:
            target.reshape(-1, self.block_size)[targets] = source.reshape(-1, self.block_size)[sources].copy()

    def _write(self, scheduled: Sequence[ScheduledSeq]) -> list[np.ndarray]:
        """Write the new tokens of the step; what each sequence should find there afterwards. All at once: one call of numpy a step, not one a row."""
        if not scheduled:
            return []
        slots = np.array([slot for item in scheduled for slot in item.slots], dtype=np.int64)
        tokens = np.array([token for item in scheduled for token in item.token_ids])
        positions = np.array([position for item in scheduled for position in range(item.start, item.seq_len)])
        mixed = _mix(tokens, positions)
        keep = slots != COMPUTED_SLOT
        self.cells[slots[keep]] = mixed[keep]
        ends = list(accumulate(len(item.token_ids) for item in scheduled))
        return [mixed[start:end] for start, end in zip([0, *ends], ends)]

    def _read(self, item: ScheduledSeq) -> np.ndarray:
        """The cells of positions ``0 .. seq_len - 1``, through the block table."""
        pages = self.cells.reshape(-1, self.block_size)
        return pages[list(item.block_table)].reshape(-1)[: item.seq_len]


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


def _beam_step(digests: Sequence[int], length: int, beam: FakeBeam, vocab_size: int) -> list[tuple[int, int, str | None]]:
    """``(row, token, finish_reason)`` of each survivor, then of each hypothesis: a pure function of what the rows read."""
    mixed = sum((row + 1) * digest for row, digest in enumerate(digests)) & _MASK
    last = length + 1 >= beam.prompt_len + beam.max_tokens
    steps: list[tuple[int, int, str | None]] = []
    for rank in range(beam.width):
        row = _token(mixed, length, 2 * rank, len(digests))
        steps.append((row, _token(digests[row], length, rank, vocab_size), "length" if last else None))
    if not last and _token(mixed, length, 1, 3) == 0:       # now and then a hypothesis ends
        row = _token(mixed, length, 3, len(digests))
        steps.append((row, _token(digests[row], length, beam.width, vocab_size), "stop"))
    return steps


def expected_beams(prompt: Sequence[int], beam: FakeBeam, vocab_size: int = 1000) -> list[tuple[list[int], str]]:
    """``(output tokens, finish_reason)`` of every hypothesis that `FakeRunner`'s beam search ends, in the order of their ends."""
    rows = [list(prompt)]
    ended: list[tuple[list[int], str | None]] = []
    while rows:
        digests = [int(_mix(np.array(row), np.arange(len(row))).sum(dtype=np.uint64)) for row in rows]
        going_on: list[tuple[list[int], str | None]] = []
        for row, token, reason in _beam_step(digests, len(rows[0]), beam, vocab_size):
            (going_on if reason is None else ended).append((rows[row] + [token], reason))
        rows = [tokens for tokens, _ in going_on]
    return [(tokens[len(prompt) :], str(reason)) for tokens, reason in ended]
