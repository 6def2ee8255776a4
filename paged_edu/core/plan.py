"""The step is data: what the scheduler decided for one iteration, and what a runner answers.

`Scheduler.schedule()` returns a `SchedulerOutput`; `Runner.execute()` carries it out and returns a `StepResult`; `Scheduler.update()`
takes that in. Printing a `SchedulerOutput` shows the whole mechanism: who runs which tokens into which slots through which
block table, and which blocks are copied or swapped before that (Paper §4.3-4.5).
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

COMPUTED_SLOT = -1
"""Slot of a token whose keys and values are in the cache already: it is queried, nothing is written."""


class Copy(NamedTuple):
    """Copy one physical block (all layers, keys and values) from ``src`` to ``dst``.

    Within a step every read precedes every write, and no block is both a source and a destination.
    """

    src: int
    dst: int


class ScheduledSeq(NamedTuple):
    """The tokens that one sequence runs in this step."""

    request_id: str
    seq_id: int
    branch: int
    """Index of the sequence within its request; keys its random numbers."""
    token_ids: tuple[int, ...]
    """The tokens whose queries run now, ``[num_new]``."""
    start: int
    """Position of ``token_ids[0]``: positions before it are in the cache."""
    slots: tuple[int, ...]
    """``slots[i] = block * block_size + offset`` of ``token_ids[i]``; `COMPUTED_SLOT`: queried only."""
    block_table: tuple[int, ...]
    """Physical block of each logical block, enough to cover ``start + num_new`` tokens."""
    logits_from: int | None = None
    """Index into ``token_ids`` of the first token whose logits are wanted: the last one's to sample, a prompt's for ``prompt_logprobs``; None: no
    logits are wanted."""
    num_samples: int = 0
    """0: nothing is sampled; n: the token after the last one is sampled n times and fans out into n branches."""

    @property
    def num_new(self) -> int:
        return len(self.token_ids)

    @property
    def seq_len(self) -> int:
        """Tokens in the cache once this step has run."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """One step. A runner carries it out in this order: swap out, swap in, copies, writes. It never swaps both ways."""

    step: int
    scheduled: tuple[ScheduledSeq, ...] = ()
    swap_out: tuple[Copy, ...] = ()
    """GPU block -> CPU block."""
    swap_in: tuple[Copy, ...] = ()
    """CPU block -> GPU block."""
    copies: tuple[Copy, ...] = ()
    """Copy-on-write (and, for contiguous managers, moved reservations)."""
    admitted: tuple[str, ...] = ()
    """Request ids that got their first blocks, or got them back after a preemption."""
    preempted: tuple[str, ...] = ()
    """Request ids that gave all their blocks back."""
    refused: tuple[str, ...] = ()
    """Request ids that ended here because even the empty pool cannot hold their next token (stop_reason "kv_pool")."""

    @property
    def num_tokens(self) -> int:
        """Tokens in the flattened batch."""
        return sum(len(s.token_ids) for s in self.scheduled)

    def __str__(self) -> str:
        sequences, tokens = len(self.scheduled), self.num_tokens
        lines = [f"step {self.step}: {sequences} sequence{'s' * (sequences != 1)}, {tokens} token{'s' * (tokens != 1)}"]
        for name in ("admitted", "preempted", "refused"):
            if ids := getattr(self, name):
                lines.append(f"  {name}: {', '.join(ids)}")
        for name in ("swap_out", "swap_in", "copies"):
            if pairs := getattr(self, name):
                lines.append(f"  {name}: " + ", ".join(f"{c.src}->{c.dst}" for c in pairs))
        for s in self.scheduled:
            span = f"position {s.start}" if s.num_new == 1 else f"positions {s.start}-{s.seq_len - 1}"
            slots = f"slot{'s' * (s.num_new > 1)} {_runs(s.slots)}"
            sampled = "samples" if s.num_samples == 1 else f"samples {s.num_samples}" if s.num_samples else "catching up"
            lines.append(f"  {s.request_id}/{s.branch}: {span} into {slots} through {list(s.block_table)}, {sampled}")
        return "\n".join(lines)


def _runs(slots: tuple[int, ...]) -> str:
    """Neighbours joined: "20..27, 4"."""
    ends: list[list[int]] = []
    for slot in slots:
        if ends and slot == ends[-1][-1] + 1:
            ends[-1][1:] = [slot]
        else:
            ends.append([slot])
    return ", ".join("..".join(map(str, run)) for run in ends)


class Branch(NamedTuple):
    """One way in which a sequence of a request goes on after a step."""

    parent: int
    """``seq_id`` of the sequence that this branch continues."""
    tokens: tuple[int, ...]
    """The sampled tokens: one; several once drafts can be accepted."""
    logprobs: tuple[Any, ...] | None = None
    """What the user asked to know of the distribution that each of ``tokens`` came from, one entry a token; the core only carries it along."""
    logprob: float = 0.0
    """Log-probability of ``tokens`` under the raw distribution: what the sequence's ``cumulative_logprob`` grows by."""
    finish_reason: str | None = None
    """"stop" or "length": this branch is a finished hypothesis of a beam search and needs no more blocks; None: it goes on."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a runner answers. ``branches`` holds *all* survivors of every request that sampled: one mechanism for n and beams."""

    branches: Mapping[str, tuple[Branch, ...]] = field(default_factory=dict)
    elapsed: float = 0.0
    """Seconds that the step took, by the runner's own clock: a runner that only predicts may say what it predicts."""
    prompt_logprobs: Mapping[str, tuple[int, tuple[Any, ...]]] = field(default_factory=dict)
    """For each request that had logits of its prompt computed: the position of the first token that they are about, and an entry a token."""
