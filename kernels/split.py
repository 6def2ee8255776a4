"""Rung 2: a long context read by many programs, and a second kernel that merges what they found (Paper §5.1; the idea is Flash-Decoding's).

In `tiled.py` one program reads a whole context. A single long request then keeps num_kv_heads programs busy on a card that could run
hundreds. Here the tokens of a sequence are cut into `splits` ranges, one program each. Softmax can be put together again afterwards: a part's
result is its weighted mean of values and the logarithm of its sum of weights (lse, in base 2),

    out = sum_s 2^(lse_s - max lse) out_s / sum_s 2^(lse_s - max lse)

It also takes a few query tokens a sequence (up to 8: chunks' ends, speculation), since packing them into the rows of the tile reads the
context once for all of them. Row r of the packed queries is query token r // group and query head r % group.

    q, out           [T, num_heads, head_dim], flattened: sequence b has rows query_start_loc[b] to query_start_loc[b + 1]
    query_start_loc  int32 [B + 1];  seq_lens int32 [B] tokens in the cache, the queried ones included; 0 for a row of padding, whose result is 0
    parts            float32 [T, num_heads, splits, head_dim];  lse  float32 [T, num_heads, splits]: only if splits > 1
"""
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import LOG2_E, MAX_SPLITS, Shapes, capability_of, choose_splits, fast_block, head_pad, multiprocessors, power_of_two, scales, split_tile
from .naive import FLOOR
from .visit import visit


# What changes from step to step must not make a variant of its own, which would be compiled while somebody waits.
@triton.jit(do_not_specialize=["splits", "row_tiles", "stride_tb"])
def split_kernel(
    q_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, out_ptr, parts_ptr, lse_ptr, block_tables_ptr, query_start_ptr, seq_lens_ptr,
    scale_log2, block_size, group, window, splits, row_tiles, num_heads,
    stride_qt, stride_qh, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
    stride_kcb, stride_kch, stride_kcs, stride_vcb, stride_vch, stride_vcs, stride_ot, stride_oh, stride_tb,
    HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, FAST_BLOCK: tl.constexpr,
    WINDOWED: tl.constexpr, QUANTISED: tl.constexpr, SPLIT: tl.constexpr,
):
    b = tl.program_id(0) // row_tiles
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    q_first = tl.load(query_start_ptr + b)
    q_len = tl.load(query_start_ptr + b + 1) - q_first
    seq_len = tl.load(seq_lens_ptr + b)

    r = tl.program_id(0) % row_tiles * ROWS + tl.arange(0, ROWS)
    real_row = r < q_len * group
    token, head = q_first + r // group, kv_head * group + r % group
    position = tl.where(real_row, seq_len - q_len + r // group, -1)
    d = tl.arange(0, HEAD_PAD)
    real = real_row[:, None] & (d < HEAD_DIM)[None, :]
    q = tl.load(q_ptr + (token.to(tl.int64) * stride_qt + head * stride_qh)[:, None] + d[None, :], mask=real, other=0.0)

    # This program's share of the tiles. What no row sees any more, before the window, is nobody's.
    first_tile = tl.maximum(0, seq_len - q_len - window + 1) // TILE if WINDOWED else 0
    share = tl.cdiv(tl.cdiv(seq_len, TILE) - first_tile, splits)
    first = (first_tile + split * share) * TILE
    stop = tl.minimum(first + share * TILE, seq_len)
    m = tl.full([ROWS], FLOOR, tl.float32)
    l = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD_PAD], tl.float32)
    m, l, acc = visit(
        q, m, l, acc, position, first, stop, seq_len, window, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, block_tables_ptr + b * stride_tb,
        kv_head, scale_log2, block_size, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
        stride_kcb, stride_kch, stride_kcs, stride_vcb, stride_vch, stride_vcs,
        HEAD_DIM, HEAD_PAD, TILE, FAST_BLOCK, WINDOWED, QUANTISED, True,
    )
    acc = acc / tl.where(l > 0, l, 1.0)[:, None]
    if SPLIT:
        part = (token.to(tl.int64) * num_heads + head) * splits + split
        tl.store(parts_ptr + part[:, None] * HEAD_DIM + d[None, :], acc, mask=real)
        # A part that saw nothing says FLOOR, and weighs nothing beside any other.
        tl.store(lse_ptr + part, tl.where(l > 0, m + tl.log2(tl.where(l > 0, l, 1.0)), FLOOR), mask=real_row)
    else:
        out = out_ptr + (token.to(tl.int64) * stride_ot + head * stride_oh)[:, None] + d[None, :]
        tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=real)


@triton.jit(do_not_specialize=["splits"])
def merge_kernel(
    parts_ptr, lse_ptr, out_ptr, splits, num_heads, stride_ot, stride_oh,
    HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, SPLITS_PAD: tl.constexpr,
):
    """One program for each query token and head: the parts' mean, weighted by 2^lse."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    row = token * num_heads + head
    s = tl.arange(0, SPLITS_PAD)
    lse = tl.load(lse_ptr + row * splits + s, mask=s < splits, other=FLOOR)
    largest = tl.max(lse, 0)
    total = tl.sum(tl.where(s < splits, tl.exp2(lse - largest), 0.0), 0)
    d = tl.arange(0, HEAD_PAD)
    acc = tl.zeros([HEAD_PAD], tl.float32)
    for i in range(splits):
        weight = tl.exp2(tl.load(lse_ptr + row * splits + i) - largest)
        acc += weight * tl.load(parts_ptr + (row * splits + i) * HEAD_DIM + d, mask=d < HEAD_DIM, other=0.0)
    out = acc / total
    tl.store(out_ptr + token * stride_ot + head * stride_oh + d, out.to(out_ptr.dtype.element_ty), mask=d < HEAD_DIM)


def split_attention(
    q: Tensor, cache: Sequence[Tensor], block_tables: Tensor, query_start_loc: Tensor, seq_lens: Tensor, scale: float,
    max_query_len: int, max_seq_len: int, window: int | None = None, splits: int | None = None,
) -> Tensor:
    """A batch of sequences with few query tokens each; shapes as above, cache ``(k, v)`` or ``(k, v, k scales, v scales)``.

    ``max_query_len`` and ``max_seq_len`` bound the batch: they shape the launch, never the result. ``splits``: None lets `choose_splits` choose.
    Raises ValueError for shapes that don't fit together.
    """
    k, v = cache[:2]
    shapes = Shapes.of(q, k, v)
    num_seqs, num_kv_heads, num_heads = len(seq_lens), k.shape[1], q.shape[1]
    scale_tensors, scale_strides, quantised = scales(cache)
    tile = split_tile(shapes.head_dim, q.dtype, capability_of(q.device), max_query_len * shapes.group, quantised)
    row_tiles = -(-max_query_len * shapes.group // tile.rows)
    if splits is None:
        length = max_seq_len if window is None else min(max_seq_len, window + max_query_len)
        splits = choose_splits(num_seqs * row_tiles * num_kv_heads, -(-length // tile.tokens), multiprocessors(q.device))
    out = torch.empty_like(q)
    parts = lse = out
    if splits > 1:
        parts = torch.empty(q.shape[0], num_heads, splits, shapes.head_dim, dtype=torch.float32, device=q.device)
        lse = torch.empty(q.shape[0], num_heads, splits, dtype=torch.float32, device=q.device)
    split_kernel[(num_seqs * row_tiles, num_kv_heads, splits)](
        q, k, v, *scale_tensors, out, parts, lse, block_tables, query_start_loc, seq_lens,
        scale * LOG2_E, shapes.block_size, shapes.group, window or 0, splits, row_tiles, num_heads,
        *q.stride()[:2], *k.stride()[:3], *v.stride()[:3], *scale_strides, *out.stride()[:2], block_tables.stride(0),
        HEAD_DIM=shapes.head_dim, HEAD_PAD=head_pad(shapes.head_dim), ROWS=tile.rows, TILE=tile.tokens, FAST_BLOCK=fast_block(shapes.block_size),
        WINDOWED=window is not None, QUANTISED=quantised, SPLIT=splits > 1, num_warps=tile.warps, num_stages=2,
    )
    if splits > 1:
        merge_kernel[(q.shape[0], num_heads)](
            parts, lse, out, splits, num_heads, *out.stride()[:2],
            HEAD_DIM=shapes.head_dim, HEAD_PAD=head_pad(shapes.head_dim), SPLITS_PAD=max(MAX_SPLITS, power_of_two(splits)), num_warps=1,
        )
    return out
