"""A broken memory manager turns a lesson red; another model does not. Both through nbval, as in ``tests/run.sh notebooks``."""
from __future__ import annotations

import json

import pytest
from forked_kernels import Kernels
from planting import LESSONS, failing_cells

pytestmark = pytest.mark.slow

LEAK_A_BLOCK = """
from paged_edu.core.block_pool import BlockPool
honest = BlockPool.free
BlockPool.free = lambda self, blocks: honest(self, blocks[1:]) if len(blocks) > 1 else honest(self, blocks)
"""
FREE_IN_LOGICAL_ORDER = """
from paged_edu.core.block_pool import BlockPool
honest = BlockPool.free
BlockPool.free = lambda self, blocks: [block for one in blocks for block in honest(self, [one])]
"""
RESERVE_ONE_TOKEN_TOO_MANY = """
from paged_edu.core import block_table, paged
paged.num_blocks_for = block_table.num_blocks_for = lambda tokens, size: tokens // size + 1
"""
ANY_NEIGHBOUR_IS_A_BUDDY = """
from paged_edu.core.buddy import BuddyAllocator
honest = BuddyAllocator.allocate
def allocate(self, order):
    start = honest(self, order)
    if start is None and order:
        for low, size in self.free_runs():
            if size == 1 << order - 1 and (low + size, size) in self.free_runs():
                self._take(low, order - 1), self._take(low + size, order - 1)
                self.orders[low], self.ref_counts[low] = order, 1
                return low
    return start
BuddyAllocator.allocate = allocate
"""
COUNT_QUERY_HEADS = """
from paged_edu.attention import cache
from paged_edu.viz import memory_budget
honest = cache.bytes_per_block
memory_budget.bytes_per_block = lambda layers, heads, size, dim, dtype: honest(layers, 4 * heads, size, dim, dtype)
"""
SKIP_A_COPY_ON_WRITE = """
from paged_edu.core.block_table import BlockTable
BlockTable.copy_on_write = lambda self, index: None
"""
COPY_AND_SAY_NOTHING = """
from paged_edu.core.block_table import BlockTable
honest = BlockTable.copy_on_write
BlockTable.copy_on_write = lambda self, index: honest(self, index) and None
"""
REGISTER_BEFORE_COMPUTING = """
from paged_edu.core.paged import PagedKVManager
from paged_edu.core.prefix_index import ROOT
honest = PagedKVManager.admit
def admit(self, seq, num_tokens, *rest):
    cached, entry = honest(self, seq, num_tokens, *rest), ROOT
    if cached is not None and self.index is not None:
        for i, block in enumerate(self.table(seq)[: num_tokens // self.block_size]):
            entry = self.index.register(block, entry, tuple(seq.token_ids[i * self.block_size : (i + 1) * self.block_size]), None)
    return cached
PagedKVManager.admit = admit
"""
RETURN_WITHOUT_THE_LAST_SWAPPED_BLOCK = """
from paged_edu.core.swap import SwapSpace
honest = SwapSpace.put
def put(self, blocks, entries):
    moved = honest(self, blocks, entries)
    return None if moved is None else dict(list(moved.items())[:-1])
SwapSpace.put = put
"""
READ_BLOCKS_IN_THE_ORDER_OF_THE_POOL = """
from paged_edu.attention import reference
honest = reference.read
reference.read = lambda tensor, pages, seq_len: honest(tensor, pages.sort(-1).values, seq_len)
"""
RUNG_1_READS_WHOLE_BLOCKS = """
import os
os.environ["TRITON_INTERPRET"] = "1"
from paged_edu.kernels import tiled
honest = tiled.tiled_attention
tiled.tiled_attention = lambda q, k, v, tables, lengths, scale: honest(q, k, v, tables, (lengths + 15) // 16 * 16, scale)
"""
EVERY_CHUNK_BEGINS_AT_POSITION_0 = """
from dataclasses import replace
import torch
from paged_edu.attention import metadata
honest = metadata.build_input
def build_input(scheduled, *rest):
    return replace(honest(scheduled, *rest), positions=torch.cat([torch.arange(item.num_new) for item in scheduled]))
metadata.build_input = build_input
"""
DEAL_OUT_HEADS_LIKE_CARDS = """
from paged_edu.attention import reference
honest = reference.attend
def attend(q, k, *rest):
    order = sorted(range(q.shape[1]), key=lambda head: head % k.shape[1])
    return honest(q[:, order], k, *rest)[:, [order.index(head) for head in range(q.shape[1])]]
reference.attend = attend
"""
ADMIT_WHEN_ALL_HAVE_ENDED = """
from paged_edu.core.scheduler import Scheduler
honest = Scheduler._admit
Scheduler._admit = lambda self, step, budget: None if self.running else honest(self, step, budget)
"""
A_LEFT_STREAM_GOES_ON = """
from paged_edu.engine.engine_thread import EngineThread
EngineThread.drop = lambda self, reader: None
"""
SHOW_WHAT_MAY_BE_A_STOP_STRING = """
from paged_edu.sampling.stop import OutputText
honest = OutputText._take
def _take(self, new):
    honest(self, new)
    self.text, self._held = self.text + self._held, ""
OutputText._take = _take
"""
ASK_THE_POLICY_AND_NOT_OBEY = """
from paged_edu.core.scheduler import Scheduler
from paged_edu.engine.choosing import ChoosingScheduler
ChoosingScheduler._admit = Scheduler._admit
"""
ANOTHER_MODEL = """
import torch
from paged_edu.engine import build
honest = build.load_model
def load_model(*args):
    model, spec = honest(*args)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        PLANTED.touch()
        for parameter in model.parameters():
            parameter += 0.05 * parameter.std() * torch.randn(parameter.shape, generator=generator)
    return model, spec
build.load_model = load_model
"""
FAULTS = {
    ("00", "reserve_one_token_too_many"): RESERVE_ONE_TOKEN_TOO_MANY,
    ("01", "count_query_heads"): COUNT_QUERY_HEADS,
    ("02", "any_neighbour_is_a_buddy"): ANY_NEIGHBOUR_IS_A_BUDDY,
    ("03", "leak_a_block"): LEAK_A_BLOCK,
    ("03", "free_in_logical_order"): FREE_IN_LOGICAL_ORDER,
    ("04", "read_blocks_in_the_order_of_the_pool"): READ_BLOCKS_IN_THE_ORDER_OF_THE_POOL,
    ("04", "rung_1_reads_whole_blocks"): RUNG_1_READS_WHOLE_BLOCKS,
    ("06", "skip_a_copy_on_write"): SKIP_A_COPY_ON_WRITE,
    ("06", "copy_and_say_nothing"): COPY_AND_SAY_NOTHING,
    ("05", "admit_when_all_have_ended"): ADMIT_WHEN_ALL_HAVE_ENDED,
    ("07", "register_before_computing"): REGISTER_BEFORE_COMPUTING,
    ("08", "return_without_the_last_swapped_block"): RETURN_WITHOUT_THE_LAST_SWAPPED_BLOCK,
    ("09", "every_chunk_begins_at_position_0"): EVERY_CHUNK_BEGINS_AT_POSITION_0,
    ("09", "deal_out_heads_like_cards"): DEAL_OUT_HEADS_LIKE_CARDS,
    ("09", "read_blocks_in_the_order_of_the_pool"): READ_BLOCKS_IN_THE_ORDER_OF_THE_POOL,
    ("10", "a_left_stream_goes_on"): A_LEFT_STREAM_GOES_ON,
    ("10", "show_what_may_be_a_stop_string"): SHOW_WHAT_MAY_BE_A_STOP_STRING,
    ("11", "admit_when_all_have_ended"): ADMIT_WHEN_ALL_HAVE_ENDED,
    ("12", "reserve_one_token_too_many"): RESERVE_ONE_TOKEN_TOO_MANY,
    ("13", "ask_the_policy_and_not_obey"): ASK_THE_POLICY_AND_NOT_OBEY,
    ("13", "leak_a_block"): LEAK_A_BLOCK,
}

WITHOUT_MODEL = ("11",)
"""Lessons that simulate and load none."""


@pytest.fixture(scope="module")
def kernels():
    with Kernels() as kernels:
        yield kernels


@pytest.mark.parametrize(("lesson", "name"), FAULTS, ids=[f"{lesson}-{name}" for lesson, name in FAULTS])
def test_a_planted_fault_turns_the_lesson_red(lesson, name, tmp_path, kernels):
    [path] = [path for path in LESSONS if path.name.startswith(lesson)]
    assert failing_cells(path, FAULTS[lesson, name] + "PLANTED.touch()\n", tmp_path, kernels, first_only=True)


@pytest.mark.parametrize("path", [path for path in LESSONS if not path.stem.startswith(WITHOUT_MODEL)], ids=lambda path: path.stem)
def test_another_model_leaves_every_compared_output_alone(path, tmp_path, kernels):
    assert failing_cells(path, ANOTHER_MODEL, tmp_path, kernels) == []


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_stored_lesson_is_whole_and_small(path):
    """The install cell of lesson 00, outputs of a whole run from top to bottom, no error among them, no widget that is gone; under 500 kB."""
    code, tour = ([cell for cell in json.loads(lesson.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
                  for lesson in (path, LESSONS[0]))
    assert code[0]["source"] == tour[0]["source"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert "application/vnd.jupyter.widget-view+json" not in {kind for output in outputs for kind in output.get("data", {})}
    assert path.stat().st_size < 500_000
