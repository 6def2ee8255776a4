"""Rung 0: PagedAttention as the formula says it. One program per (sequence, query head), one cached token at a time (Paper §4.1).

A *program* is what a GPU runs many of at once: each sees its own `tl.program_id`, and runs this same function on other data. Here the
program of sequence b and head h computes one row of the result,

    out[b, h] = sum_t softmax(scale * q[b, h] . k[t]) v[t]        over the tokens t of sequence b, found through its block table.

It walks over the tokens once and keeps three things, the *online softmax*: the largest score so far ``m``, the sum of the weights
``exp(score - m)`` so far ``l``, and the weighted sum of values so far ``acc``. When a larger score comes, what was summed is scaled down to it.

    q, out        [B, num_heads, head_dim]: one query token a sequence, its last
    k, v          [num_blocks, num_kv_heads, block_size, head_dim]
    block_tables  int32 [B, max_blocks];  seq_lens  int32 [B]; 0: a row of padding, whose result is 0

Right, short and slow: it reads a token's key with head_dim-wide loads only, and every query head reads the keys of its KV head again.
"""
import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import Shapes, head_pad

FLOOR = tl.constexpr(-1e38)
"""Where the largest score starts: finite, so that nothing ever subtracts infinity from infinity."""


@triton.jit
def naive_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, block_tables_ptr, seq_lens_ptr, scale, block_size, group,
    stride_qb, stride_qh, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs, stride_ob, stride_oh, stride_tb,
    HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr,
):
    b = tl.program_id(0)
    h = tl.program_id(1)
    kv_head = h // group                                # grouped-query attention: `group` query heads read one KV head
    d = tl.arange(0, HEAD_PAD)                          # a power of two, which head_dim need not be
    real = d < HEAD_DIM
    q = tl.load(q_ptr + b * stride_qb + h * stride_qh + d, mask=real, other=0.0).to(tl.float32)
    seq_len = tl.load(seq_lens_ptr + b)
    m = FLOOR + 0.0
    l = 0.0
    acc = tl.zeros([HEAD_PAD], tl.float32)
    for t in range(seq_len):
        # Where is token t? In logical block t // block_size; the table says which physical block that is.
        block = tl.load(block_tables_ptr + b * stride_tb + t // block_size).to(tl.int64)      # 64 bits: a cache may hold over 2^31 numbers
        offset = t % block_size
        k = tl.load(k_ptr + block * stride_kb + kv_head * stride_kh + offset * stride_ks + d, mask=real, other=0.0).to(tl.float32)
        v = tl.load(v_ptr + block * stride_vb + kv_head * stride_vh + offset * stride_vs + d, mask=real, other=0.0).to(tl.float32)
        score = tl.sum(q * k) * scale
        m_new = tl.maximum(m, score)
        kept = tl.exp(m - m_new)                        # what was summed up to here counts this much less
        weight = tl.exp(score - m_new)
        l = l * kept + weight
        acc = acc * kept + weight * v
        m = m_new
    out = acc / tl.where(l > 0, l, 1.0)
    tl.store(out_ptr + b * stride_ob + h * stride_oh + d, out.to(out_ptr.dtype.element_ty), mask=real)


def naive_attention(q: Tensor, k: Tensor, v: Tensor, block_tables: Tensor, seq_lens: Tensor, scale: float) -> Tensor:
    """One query token a sequence; shapes as above. Raises ValueError for shapes that don't fit together."""
    shapes = Shapes.of(q, k, v)
    out = torch.empty_like(q)
    naive_kernel[(q.shape[0], q.shape[1])](
        q, k, v, out, block_tables, seq_lens, scale, shapes.block_size, shapes.group,
        *q.stride()[:2], *k.stride()[:3], *v.stride()[:3], *out.stride()[:2], block_tables.stride(0),
        HEAD_DIM=shapes.head_dim, HEAD_PAD=head_pad(shapes.head_dim),
    )
    return out
