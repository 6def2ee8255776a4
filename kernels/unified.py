"""Rung 3: one kernel for whatever a step brings: prompts, chunks over paged context, single tokens, all in one batch (Paper §4.1, §4.5).

A prompt has many query tokens, and each sees the tokens up to its own position. A program takes TOKENS query tokens of one sequence
with the `group` query heads of one KV head, ROWS = TOKENS x group rows, and visits the context only as far as its last token sees,
and only from where the window of its first one begins: the causal half above the diagonal is never read. Tiles that lie wholly
below the diagonal are visited without a mask.

Sequences have different lengths and there is no padding, so which sequence does program p belong to? Give sequence b the programs
from query_start_loc[b] // TOKENS + b on: that is room for all its tiles whatever the lengths, and a binary search finds b.
At most one program a sequence finds nothing to do.

Shapes as in `split.py`.
"""
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import LOG2_E, Shapes, capability_of, fast_block, head_pad, row_pad, scales, unified_tile
from .naive import FLOOR
from .visit import visit


@triton.jit
def sequence_of(program, query_start_ptr, num_seqs, TOKENS: tl.constexpr):
    """The largest b with ``query_start_loc[b] // TOKENS + b <= program``."""
    low = 0
    high = num_seqs - 1
    while low < high:
        middle = (low + high + 1) // 2
        if tl.load(query_start_ptr + middle) // TOKENS + middle <= program:
            low = middle
        else:
            high = middle - 1
    return low


@triton.jit
def unified_kernel(
    q_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, out_ptr, block_tables_ptr, query_start_ptr, seq_lens_ptr,
    scale_log2, block_size, group, window, num_seqs,
    stride_qt, stride_qh, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
    stride_kcb, stride_kch, stride_kcs, stride_vcb, stride_vch, stride_vcs, stride_ot, stride_oh, stride_tb,
    HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr, TILE: tl.constexpr, FAST_BLOCK: tl.constexpr,
    WINDOWED: tl.constexpr, QUANTISED: tl.constexpr,
):
    program = tl.program_id(0)
    kv_head = tl.program_id(1)
    b = sequence_of(program, query_start_ptr, num_seqs, TOKENS)
    q_first = tl.load(query_start_ptr + b)
    q_len = tl.load(query_start_ptr + b + 1) - q_first
    i_first = (program - (q_first // TOKENS + b)) * TOKENS           # this program's first query token, counted within its sequence
    if i_first >= q_len:
        return
    seq_len = tl.load(seq_lens_ptr + b)

    r = tl.arange(0, ROWS)
    i = i_first + r // group
    real_row = (r < TOKENS * group) & (i < q_len)
    token, head = q_first + i, kv_head * group + r % group
    position = tl.where(real_row, seq_len - q_len + i, -1)
    d = tl.arange(0, HEAD_PAD)
    real = real_row[:, None] & (d < HEAD_DIM)[None, :]
    q = tl.load(q_ptr + (token.to(tl.int64) * stride_qt + head * stride_qh)[:, None] + d[None, :], mask=real, other=0.0)

    p_first = seq_len - q_len + i_first                              # the position of its first token, and one past that of its last
    p_stop = tl.minimum(p_first + TOKENS, seq_len)
    m = tl.full([ROWS], FLOOR, tl.float32)
    l = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD_PAD], tl.float32)
    table_ptr = block_tables_ptr + b * stride_tb
    if WINDOWED:
        masked_from = tl.maximum(0, p_first - window + 1) // TILE * TILE
    else:
        masked_from = (p_first + 1) // TILE * TILE
        m, l, acc = visit(
            q, m, l, acc, position, 0, masked_from, seq_len, window, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, table_ptr, kv_head,
            scale_log2, block_size, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
            stride_kcb, stride_kch, stride_kcs, stride_vcb, stride_vch, stride_vcs,
            HEAD_DIM, HEAD_PAD, TILE, FAST_BLOCK, WINDOWED, QUANTISED, False,
        )
    m, l, acc = visit(
        q, m, l, acc, position, masked_from, p_stop, seq_len, window, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, table_ptr, kv_head,
        scale_log2, block_size, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
        stride_kcb, stride_kch, stride_kcs, stride_vcb, stride_vch, stride_vcs,
        HEAD_DIM, HEAD_PAD, TILE, FAST_BLOCK, WINDOWED, QUANTISED, True,
    )
    acc = acc / tl.where(l > 0, l, 1.0)[:, None]
    out = out_ptr + (token.to(tl.int64) * stride_ot + head * stride_oh)[:, None] + d[None, :]
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=real)


def unified_attention(
    q: Tensor, cache: Sequence[Tensor], block_tables: Tensor, query_start_loc: Tensor, seq_lens: Tensor, scale: float, window: int | None = None,
) -> Tensor:
    """Any batch; shapes and cache as in `split.split_attention`. Raises ValueError for shapes that don't fit together."""
    k, v = cache[:2]
    shapes = Shapes.of(q, k, v)
    num_seqs = len(seq_lens)
    scale_tensors, scale_strides, quantised = scales(cache)
    tile = unified_tile(shapes.head_dim, q.dtype, quantised, capability_of(q.device))
    rows = max(tile.rows, row_pad(shapes.group))
    tokens = rows // shapes.group
    out = torch.empty_like(q)
    unified_kernel[(q.shape[0] // tokens + num_seqs, k.shape[1])](
        q, k, v, *scale_tensors, out, block_tables, query_start_loc, seq_lens,
        scale * LOG2_E, shapes.block_size, shapes.group, window or 0, num_seqs,
        *q.stride()[:2], *k.stride()[:3], *v.stride()[:3], *scale_strides, *out.stride()[:2], block_tables.stride(0),
        HEAD_DIM=shapes.head_dim, HEAD_PAD=head_pad(shapes.head_dim), ROWS=rows, TOKENS=tokens, TILE=tile.tokens,
        FAST_BLOCK=fast_block(shapes.block_size), WINDOWED=window is not None, QUANTISED=quantised, num_warps=tile.warps, num_stages=2,
    )
    return out
