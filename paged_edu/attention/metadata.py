"""What a step tells the model: the flattened batch, and where each sequence's keys and values are (Paper §4.3).

The paper concatenates the input tokens of all scheduled sequences into one list and hands the workers a block table for each sequence.
`build_input` turns the scheduler's plan (`ScheduledSeq`, plain Python) into those tensors once a step; every layer reads the same ones.
There is no padding: prompts, chunks of prompts and single decode tokens lie one behind the other.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..core.plan import ScheduledSeq

PAD_BLOCK = 0
"""Fills the unused end of a block table row: a valid id, so that a kernel may load a whole row before it masks by ``seq_lens``."""


@dataclass(frozen=True, eq=False)
class AttentionMetadata:
    """The batch as attention sees it. B sequences, T tokens; sequence i owns rows ``query_start_loc[i]`` to ``query_start_loc[i + 1]``.

    The fields from ``host_query_start_loc`` on repeat on the Python side what a backend needs to launch its work, so that it never has to
    wait for the device to read a number back.
    """

    slot_mapping: Tensor
    """int64 ``[T]``: where each token's key and value go, block * block_size + offset; -1: they are there already."""
    query_start_loc: Tensor
    """int32 ``[B + 1]``: first row of each sequence, and T."""
    seq_lens: Tensor
    """int32 ``[B]``: tokens in the cache after this step's writes; the last ``query_len`` of them are queried."""
    block_tables: Tensor
    """int32 ``[B, max_blocks]``: physical block of each logical block, padded with `PAD_BLOCK`."""
    block_size: int
    host_query_start_loc: tuple[int, ...]
    host_seq_lens: tuple[int, ...]
    max_query_len: int
    max_seq_len: int
    all_written: bool
    """No slot is -1."""
    kept: dict[object, object] = field(default_factory=dict, repr=False)
    """What a backend computed of this step for one layer and keeps for the others."""

    @property
    def num_seqs(self) -> int:
        return len(self.host_seq_lens)

    @property
    def num_tokens(self) -> int:
        return self.host_query_start_loc[-1]


Attend = Callable[[Tensor, Tensor, Tensor, tuple[Tensor, ...], AttentionMetadata, int | None, float], Tensor]
"""``attend(q, k, v, cache, meta, window, scale)``: the one call through which a layer reaches its cache. See `reference.attend`."""


@dataclass(frozen=True, eq=False)
class ModelInput:
    """Everything that a model's forward pass takes, and which of its output rows the sampler wants."""

    input_ids: Tensor
    """int64 ``[T]``."""
    positions: Tensor
    """int64 ``[T]``: position of each token in its own sequence."""
    meta: AttentionMetadata
    logits_rows: Tensor
    """int64 ``[R]``: rows of the flattened batch whose logits are wanted, in the order of the scheduled sequences."""
    logits_counts: tuple[int, ...]
    """How many of the R rows belong to each scheduled sequence, ``[B]``; 0 for one that has not caught up."""


def build_input(scheduled: Sequence[ScheduledSeq], block_size: int, device: torch.device | str) -> ModelInput:
    """Flatten a step's sequences into one batch.

    A sequence with ``logits_from`` set wants the rows of its tokens ``logits_from`` to ``num_new - 1``; one that samples without saying
    where from wants its last row; any other wants none. An empty plan gives an empty batch.

    Raises ValueError naming the sequence if it schedules no token, its slots don't match its tokens, its block table doesn't cover
    ``seq_len`` tokens, or ``logits_from`` is not one of its tokens.
    """
    counts = [len(s.token_ids) for s in scheduled]
    lens = [s.start + n for s, n in zip(scheduled, counts, strict=True)]
    for s, n, seq_len in zip(scheduled, counts, lens, strict=True):
        first = s.logits_from
        if not n or len(s.slots) != n or len(s.block_table) * block_size < seq_len or (first is not None and not 0 <= first < n):
            _refuse(s, block_size)
    starts = np.cumsum([0, *counts])
    num_tokens = int(starts[-1])
    first_rows = [_first_logits_index(s, n) for s, n in zip(scheduled, counts, strict=True)]
    wanted = [n - first for first, n in zip(first_rows, counts, strict=True)]
    slots = np.fromiter(chain.from_iterable(s.slots for s in scheduled), np.int64, num_tokens)
    meta = AttentionMetadata(
        slot_mapping=torch.from_numpy(slots).to(device),
        query_start_loc=torch.from_numpy(starts.astype(np.int32)).to(device),
        seq_lens=torch.tensor(lens, dtype=torch.int32, device=device),
        block_tables=torch.from_numpy(_block_tables(scheduled, lens, block_size)).to(device),
        block_size=block_size,
        host_query_start_loc=tuple(starts.tolist()),
        host_seq_lens=tuple(lens),
        max_query_len=max(counts, default=0),
        max_seq_len=max(lens, default=0),
        all_written=bool((slots >= 0).all()),
    )
    ids = np.fromiter(chain.from_iterable(s.token_ids for s in scheduled), np.int64, num_tokens)
    return ModelInput(
        input_ids=torch.from_numpy(ids).to(device),
        positions=torch.from_numpy(_runs([s.start for s in scheduled], counts)).to(device),
        meta=meta,
        logits_rows=torch.from_numpy(_runs(starts[:-1] + np.asarray(first_rows, dtype=np.int64), wanted)).to(device),
        logits_counts=tuple(wanted),
    )


def _refuse(s: ScheduledSeq, block_size: int) -> None:
    who = f"sequence {s.seq_id} of request {s.request_id}"
    if not s.token_ids:
        raise ValueError(f"{who} is scheduled with no token")
    if len(s.slots) != s.num_new:
        raise ValueError(f"{who} has {s.num_new} tokens but {len(s.slots)} slots")
    if (room := len(s.block_table) * block_size) < s.seq_len:
        raise ValueError(f"{who} has {s.seq_len} tokens but its {len(s.block_table)} blocks of {block_size} hold {room}")
    if s.logits_from is not None and not 0 <= s.logits_from < s.num_new:
        raise ValueError(f"{who} wants logits from token {s.logits_from} but schedules {s.num_new} tokens")


def _first_logits_index(s: ScheduledSeq, num_new: int) -> int:
    """Index into ``token_ids`` of the first wanted row; ``num_new`` if none is."""
    if s.logits_from is not None:
        return s.logits_from
    return num_new - 1 if s.num_samples else num_new


def _block_tables(scheduled: Sequence[ScheduledSeq], lens: Sequence[int], block_size: int) -> npt.NDArray[np.int32]:
    # A table may be longer than its tokens (a contiguous manager reserves ahead): only the blocks that hold tokens are sent.
    used = [-(-seq_len // block_size) for seq_len in lens]
    tables = np.full((len(scheduled), max(used, default=0)), PAD_BLOCK, dtype=np.int32)
    for row, s, n in zip(tables, scheduled, used, strict=True):
        row[:n] = s.block_table[:n]
    return tables


def _runs(firsts: npt.ArrayLike, counts: Sequence[int]) -> npt.NDArray[np.int64]:
    """``first, first + 1, ...``, ``count`` numbers of each, one run behind the other."""
    counted = np.asarray(counts, dtype=np.int64)
    ends = np.cumsum(counted)
    shifts: npt.NDArray[np.int64] = np.repeat(np.asarray(firsts, dtype=np.int64) - (ends - counted), counted)
    return shifts + np.arange(len(shifts))
