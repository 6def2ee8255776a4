"""The flattened batch: every tensor of a mixed step, written out by hand, and the plans that are refused."""
from __future__ import annotations

from typing import Any

import pytest
import torch
from batches import Pager

from paged_edu.attention.metadata import build_input
from paged_edu.core.plan import ScheduledSeq


def mixed() -> list[ScheduledSeq]:
    pager = Pager(num_blocks=10, block_size=4)
    pager.schedule(1, [1, 2, 3, 4, 5])  # blocks 0, 1
    return [
        pager.schedule(0, [10, 11, 12], logits_from=None, num_samples=0),  # a chunk, block 2
        pager.schedule(1, [6], logits_from=0),  # decode
        pager.schedule(2, [20, 21, 22, 23, 24, 25], logits_from=2),  # a prompt whose logits from token 2 on are wanted, blocks 3, 4
        pager.schedule(1, [6], logits_from=None, num_samples=2, requeried=1),  # queried again: samples without saying where from
    ]


def test_a_mixed_batch() -> None:
    batch = build_input(mixed(), 4, "cpu")
    meta = batch.meta
    assert batch.input_ids.tolist() == [10, 11, 12, 6, 20, 21, 22, 23, 24, 25, 6]
    assert batch.positions.tolist() == [0, 1, 2, 5, 0, 1, 2, 3, 4, 5, 5]
    assert meta.slot_mapping.tolist() == [8, 9, 10, 5, 12, 13, 14, 15, 16, 17, -1]
    assert meta.query_start_loc.tolist() == [0, 3, 4, 10, 11] == list(meta.host_query_start_loc)
    assert meta.seq_lens.tolist() == [3, 6, 6, 6] == list(meta.host_seq_lens)
    assert meta.block_tables.tolist() == [[2, 0], [0, 1], [3, 4], [0, 1]]
    assert batch.logits_rows.tolist() == [3, 6, 7, 8, 9, 10]
    assert batch.logits_counts == (0, 1, 4, 1)
    assert (meta.max_query_len, meta.max_seq_len, meta.num_seqs, meta.num_tokens) == (6, 6, 4, 11)
    assert not meta.all_written
    assert build_input(mixed()[:3], 4, "cpu").meta.all_written


def test_dtypes() -> None:
    batch = build_input(mixed(), 4, "cpu")
    for tensor in (batch.input_ids, batch.positions, batch.logits_rows, batch.meta.slot_mapping):
        assert tensor.dtype == torch.int64
    for tensor in (batch.meta.query_start_loc, batch.meta.seq_lens, batch.meta.block_tables):
        assert tensor.dtype == torch.int32


def test_reserved_blocks_past_the_tokens_are_not_sent() -> None:
    s = Pager(10, 4).schedule(0, [1, 2, 3])._replace(block_table=tuple(range(9)))
    assert build_input([s], 4, "cpu").meta.block_tables.tolist() == [[0]]


def test_an_empty_step_gives_an_empty_batch() -> None:
    batch = build_input([], 16, "cpu")
    assert batch.input_ids.shape == batch.positions.shape == batch.logits_rows.shape == batch.meta.slot_mapping.shape == (0,)
    assert batch.meta.query_start_loc.tolist() == [0]
    assert batch.meta.block_tables.shape == (0, 0)
    assert (batch.meta.num_seqs, batch.meta.num_tokens, batch.meta.max_query_len) == (0, 0, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"token_ids": (), "slots": ()}, "scheduled with no token"),
        ({"slots": (0,)}, "2 tokens but 1 slots"),
        ({"block_table": (), }, "has 2 tokens but its 0 blocks of 4 hold 0"),
        ({"logits_from": 2}, "logits from token 2 but schedules 2"),
        ({"logits_from": -1}, "logits from token -1"),
    ],
)
def test_inconsistent_plans_are_refused_by_name(change: dict[str, Any], message: str) -> None:
    s = Pager(10, 4).schedule(7, [1, 2])._replace(**change)
    with pytest.raises(ValueError, match=f"sequence 7 of request r7.*{message}"):
        build_input([s], 4, "cpu")
