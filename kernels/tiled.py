"""Rung 1: a tile of tokens at a time, and the query heads of one KV head together (Paper §4.1, §5.1).

Two things change from `naive.py`. One program now belongs to a (sequence, *KV* head) and computes the rows of all `group` query heads that
share it, so a key is read once for all of them. And it takes TILE tokens a turn, so that scores and weighted values are products of
matrices, which is what a GPU's tensor cores do:

    scores [ROWS, TILE] = q [ROWS, head_dim] @ k^T [head_dim, TILE]         acc [ROWS, head_dim] += weights [ROWS, TILE] @ v [TILE, head_dim]

`tl.dot` wants at least 16 rows: ROWS is `group` filled up to 16 with rows of zeros, which cost nothing, as memory is what decode waits for.

A tile has nothing to do with a block. Token t of the tile is in block t // block_size, each token looks its block up, so any block size
works; a block size of 16 or 32 is a constant of the kernel (FAST_BLOCK), for which the division is a shift.

Shapes as in `naive.py`.
"""
import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import LOG2_E, Shapes, capability_of, fast_block, head_pad, row_pad, split_tile
from .naive import FLOOR


@triton.jit
def online_softmax(scores, m, l):
    """The weights of a tile's scores, and how much counts of what was summed before: ``(weights, kept, m, l)``.

    A score that must not count is -inf; m starts at FLOOR, so that a row without any visible token gets weights 0 and not NaN.
    """
    m_new = tl.maximum(m, tl.max(scores, 1))
    kept = tl.exp2(m - m_new)
    weights = tl.exp2(scores - m_new[:, None])
    return weights, kept, m_new, l * kept + tl.sum(weights, 1)


@triton.jit(do_not_specialize=["stride_tb"])
def tiled_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, block_tables_ptr, seq_lens_ptr, scale_log2, block_size, group,
    stride_qb, stride_qh, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs, stride_ob, stride_oh, stride_tb,
    HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, FAST_BLOCK: tl.constexpr,
):
    b = tl.program_id(0)
    kv_head = tl.program_id(1)
    B = FAST_BLOCK if FAST_BLOCK else block_size
    rows = tl.arange(0, ROWS)
    heads = kv_head * group + rows
    d = tl.arange(0, HEAD_PAD)
    real = (rows < group)[:, None] & (d < HEAD_DIM)[None, :]
    q = tl.load(q_ptr + b * stride_qb + heads[:, None] * stride_qh + d[None, :], mask=real, other=0.0)
    seq_len = tl.load(seq_lens_ptr + b)
    m = tl.full([ROWS], FLOOR, tl.float32)
    l = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD_PAD], tl.float32)
    for start in range(0, seq_len, TILE):
        t = start + tl.arange(0, TILE)
        there = t < seq_len
        block = tl.load(block_tables_ptr + b * stride_tb + t // B, mask=there, other=0).to(tl.int64)
        # What is not there is masked for k *and* v: a slot that was never written may hold NaN, and 0 * NaN is NaN.
        readable = there[:, None] & (d < HEAD_DIM)[None, :]
        k = tl.load(k_ptr + (block * stride_kb + kv_head * stride_kh + t % B * stride_ks)[:, None] + d[None, :], mask=readable, other=0.0)
        v = tl.load(v_ptr + (block * stride_vb + kv_head * stride_vh + t % B * stride_vs)[:, None] + d[None, :], mask=readable, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
        weights, kept, m, l = online_softmax(tl.where(there[None, :], scores, float("-inf")), m, l)
        acc = acc * kept[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    out = acc / tl.where(l > 0, l, 1.0)[:, None]
    tl.store(out_ptr + b * stride_ob + heads[:, None] * stride_oh + d[None, :], out.to(out_ptr.dtype.element_ty), mask=real)


def tiled_attention(q: Tensor, k: Tensor, v: Tensor, block_tables: Tensor, seq_lens: Tensor, scale: float) -> Tensor:
    """One query token a sequence; shapes as in `naive.py`. Raises ValueError for shapes that don't fit together."""
    shapes = Shapes.of(q, k, v)
    tile = split_tile(shapes.head_dim, q.dtype, capability_of(q.device), shapes.group)
    out = torch.empty_like(q)
    tiled_kernel[(q.shape[0], k.shape[1])](
        # exp2 is the instruction that there is; scores times log2(e) make it exp.
        q, k, v, out, block_tables, seq_lens, scale * LOG2_E, shapes.block_size, shapes.group,
        *q.stride()[:2], *k.stride()[:3], *v.stride()[:3], *out.stride()[:2], block_tables.stride(0),
        HEAD_DIM=shapes.head_dim, HEAD_PAD=head_pad(shapes.head_dim), ROWS=row_pad(shapes.group), TILE=tile.tokens,
        FAST_BLOCK=fast_block(shapes.block_size), num_warps=tile.warps, num_stages=2,
    )
    return out
