"""The inner loop that rungs 2 and 3 share: rows of queries visit a range of cached tokens, a tile at a time (Paper §4.1, §5.1).

What it adds to the loop of `tiled.py`: each row has a position of its own and sees the tokens up to it (causal), or the last `window` of
those; tiles that every row sees whole need no mask (MASKED false); and keys and values may be stored in 8 bits (QUANTISED).

An int8 cache keeps one scale for each token and KV head, k ~ scale * code. The scale is the same for all numbers of a head, so it leaves
the product: q . k = scale * (q . code), one multiplication a score; for v it is multiplied onto the weights.
"""
import triton
import triton.language as tl

from .tiled import online_softmax


@triton.jit
def visit(
    q, m, l, acc, position, first, stop, seq_len, window, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, table_ptr, kv_head, scale_log2, block_size,
    stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs, stride_kcb, stride_kch, stride_kcs, stride_vcb, stride_vch, stride_vcs,
    HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, TILE: tl.constexpr, FAST_BLOCK: tl.constexpr,
    WINDOWED: tl.constexpr, QUANTISED: tl.constexpr, MASKED: tl.constexpr,
):
    """Tokens ``first`` (a multiple of TILE) to ``stop - 1``; returns ``(m, l, acc)``.

    q ``[ROWS, HEAD_PAD]``, position int32 ``[ROWS]``, -1 for a row that sees nothing; table_ptr: the first entry of the sequence's block table.
    """
    B = FAST_BLOCK if FAST_BLOCK else block_size
    d = tl.arange(0, HEAD_PAD)
    for start in range(first, stop, TILE):
        t = start + tl.arange(0, TILE)
        there = t < seq_len
        if MASKED:
            block = tl.load(table_ptr + t // B, mask=there, other=0).to(tl.int64)
            readable = there[:, None] & (d < HEAD_DIM)[None, :]
        else:
            block = tl.load(table_ptr + t // B).to(tl.int64)
            readable = (d < HEAD_DIM)[None, :] & (t >= 0)[:, None]
        k = tl.load(k_ptr + (block * stride_kb + kv_head * stride_kh + t % B * stride_ks)[:, None] + d[None, :], mask=readable, other=0.0)
        v = tl.load(v_ptr + (block * stride_vb + kv_head * stride_vh + t % B * stride_vs)[:, None] + d[None, :], mask=readable, other=0.0)
        scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee") * scale_log2
        if QUANTISED:
            k_scale = tl.load(k_scale_ptr + block * stride_kcb + kv_head * stride_kch + t % B * stride_kcs, mask=there, other=0.0)
            v_scale = tl.load(v_scale_ptr + block * stride_vcb + kv_head * stride_vch + t % B * stride_vcs, mask=there, other=0.0)
            scores = scores * k_scale[None, :]
        if MASKED:
            seen = t[None, :] <= position[:, None]
            if WINDOWED:
                seen = seen & (t[None, :] > position[:, None] - window)
            scores = tl.where(seen, scores, float("-inf"))
        weights, kept, m, l = online_softmax(scores, m, l)
        if QUANTISED:
            weights = weights * v_scale[None, :]
        acc = acc * kept[:, None] + tl.dot(weights.to(q.dtype), v.to(q.dtype), input_precision="ieee")
    return m, l, acc
