"""What `cpu.py` and the compiled `cpu_kernels.py` agree on: places in the list of arguments, columns of a piece of work, sizes."""
from __future__ import annotations

from typing import NamedTuple

F32, BF16, INT8 = range(3)
"""How numbers are stored: float32; bfloat16, which is the upper half of a float32; int8 codes times a scale."""

SPLIT = 256
"""Keys of a piece of work. Pieces begin at multiples of it, whatever else the step holds, so that what a sequence gets depends neither on its
batch nor on the number of threads; a few hundred rows take some ten microseconds, long enough to fetch a piece and short enough to share out."""

ROWS = 16
"""Query rows (tokens times heads of a group) of a piece at most, unless one token has more; and rows of the cache that are read at a time."""

UNLIMITED = 2**62
"""The window where there is none."""


class Arguments(NamedTuple):
    """Places in the arguments, int64 each: pointers, sizes, and strides, which count elements where they don't say bytes."""

    next_item: int
    """Pointer to a counter, as the next two."""
    next_write: int
    next_thread: int
    done: int
    """Pointer to the counters of finished pieces, for each group and KV head."""
    num_items: int
    """Pieces times KV heads."""
    num_tokens: int
    num_kv_heads: int
    group: int
    """Query heads of a KV head."""
    head_dim: int
    block_size: int
    window: int
    scale: int
    """The bits of a float64."""
    q_stored: int
    stored: int
    q: int
    q_token: int
    q_head: int
    out: int
    new_k: int
    new_k_token: int
    new_k_head: int
    new_v: int
    new_v_token: int
    new_v_head: int
    slots: int
    k: int
    k_block: int
    k_head_bytes: int
    k_slot: int
    v: int
    v_block: int
    v_head_bytes: int
    v_slot: int
    k_scale: int
    k_scale_block: int
    k_scale_head_bytes: int
    k_scale_slot: int
    v_scale: int
    v_scale_block: int
    v_scale_head_bytes: int
    v_scale_slot: int
    tables: int
    tables_row: int
    pieces: int
    rows: int
    """Query rows of a piece at most."""
    partial: int
    scratch: int
    scratch_size: int


class Piece(NamedTuple):
    """Columns of a piece of work, int64 each: query rows of one sequence against some of its keys, once for every KV head."""

    row: int
    """First row of the batch."""
    tokens: int
    position: int
    """Of the first token."""
    table: int
    """Row of the block tables."""
    low: int
    """First key, and the one after the last."""
    high: int
    group: int
    """The pieces with the same number are shares of one result."""
    pieces: int
    """How many there are of them."""
    first: int
    """Number of the first of them."""
    part: int
    """Number of this one."""


A = Arguments(*range(len(Arguments._fields)))
T = Piece(*range(len(Piece._fields)))
