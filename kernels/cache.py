"""Kernels that fill and move KV blocks: write new tokens into their slots, quantised if asked, and copy blocks (Paper §5.1).

    k, v          [T, num_kv_heads, head_dim], the new tokens' keys and values
    slot_mapping  int64 [T]: block * block_size + offset; -1: the token is in the cache already, nothing is written
    keys, values  [num_blocks, num_kv_heads, block_size, head_dim], in the model's dtype or int8
    their scales  float32 [num_blocks, num_kv_heads, block_size], with int8: a number is scale * code, scale = largest absolute value / 127

PyTorch would need a kernel each for the division, the mask, the cast and two scatters; one kernel reads each number once and writes it once.
"""
from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from .launch import head_pad, scales


@triton.jit
def write_one(
    x_ptr, cache_ptr, scale_ptr, heads, block, offset, num_kv_heads, stride_xh, stride_cb, stride_ch, stride_cs, stride_sb, stride_sh, stride_ss,
    HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, QUANTISED: tl.constexpr,
):
    """Some heads of one token's keys, or values."""
    d = tl.arange(0, HEAD_PAD)
    real = (heads < num_kv_heads)[:, None] & (d < HEAD_DIM)[None, :]
    x = tl.load(x_ptr + (heads * stride_xh)[:, None] + d[None, :], mask=real, other=0.0)
    to = cache_ptr + block * stride_cb + (heads * stride_ch)[:, None] + offset * stride_cs + d[None, :]
    if QUANTISED:
        x = x.to(tl.float32)
        scale = tl.div_rn(tl.max(tl.abs(x), 1), tl.full([1], 127.0, tl.float32))
        # div_rn: the division that rounds as the CPU's does, so that every backend stores the same codes.
        code = tl.floor(tl.div_rn(x, tl.where(scale > 0, scale, 1.0)[:, None] + tl.zeros_like(x)) + 0.5)
        tl.store(to, code.to(tl.int8), mask=real)
        tl.store(scale_ptr + block * stride_sb + heads * stride_sh + offset * stride_ss, scale, mask=heads < num_kv_heads)
    else:
        tl.store(to, x.to(cache_ptr.dtype.element_ty), mask=real)


@triton.jit
def write_kernel(
    k_ptr, v_ptr, keys_ptr, values_ptr, k_scale_ptr, v_scale_ptr, slots_ptr, num_kv_heads, block_size,
    stride_kt, stride_kh, stride_vt, stride_vh, stride_kcb, stride_kch, stride_kcs, stride_vcb, stride_vch, stride_vcs,
    stride_ksb, stride_ksh, stride_kss, stride_vsb, stride_vsh, stride_vss,
    HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, HEADS: tl.constexpr, QUANTISED: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token)
    if slot < 0:                                        # not block -1 // block_size: that would be the last block's last slot
        return
    block, offset = slot // block_size, slot % block_size
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    write_one(k_ptr + token * stride_kt, keys_ptr, k_scale_ptr, heads, block, offset, num_kv_heads, stride_kh, stride_kcb, stride_kch, stride_kcs,
              stride_ksb, stride_ksh, stride_kss, HEAD_DIM, HEAD_PAD, QUANTISED)
    write_one(v_ptr + token * stride_vt, values_ptr, v_scale_ptr, heads, block, offset, num_kv_heads, stride_vh, stride_vcb, stride_vch, stride_vcs,
              stride_vsb, stride_vsh, stride_vss, HEAD_DIM, HEAD_PAD, QUANTISED)


def write_cache(k: Tensor, v: Tensor, cache: Sequence[Tensor], slot_mapping: Tensor) -> None:
    """Put new keys and values into their slots; shapes as above. cache: ``(keys, values)`` or ``(keys, values, key scales, value scales)``.

    Raises ValueError for shapes that don't fit together, or numbers of a head that don't lie side by side.
    """
    keys, values = cache[:2]
    num_tokens, num_kv_heads, head_dim = k.shape
    if k.shape != v.shape or (num_kv_heads, head_dim) != (keys.shape[1], keys.shape[3]) or len(slot_mapping) != num_tokens:
        new = f"new keys {tuple(k.shape)}, new values {tuple(v.shape)} and {len(slot_mapping)} slots"
        raise ValueError(f"{new} don't fit a cache of {tuple(keys.shape)}")
    if head_dim > 1 and any(t.stride(-1) != 1 for t in (k, v, keys, values)):
        raise ValueError("the numbers of one head must lie side by side, in new keys and values and in the cache")
    scale_tensors, scale_strides, quantised = scales(cache)
    heads = max(1, min(1 << (num_kv_heads - 1).bit_length(), 2048 // head_pad(head_dim)))
    write_kernel[(num_tokens, -(-num_kv_heads // heads))](
        k, v, keys, values, *scale_tensors, slot_mapping, num_kv_heads, keys.shape[2],
        *k.stride()[:2], *v.stride()[:2], *keys.stride()[:3], *values.stride()[:3], *scale_strides,
        HEAD_DIM=head_dim, HEAD_PAD=head_pad(head_dim), HEADS=heads, QUANTISED=quantised,
    )


@triton.jit
def copy_kernel(src_ptr, dst_ptr, src_ids_ptr, dst_ids_ptr, page, stride_sl, stride_sb, stride_dl, stride_db, CHUNK: tl.constexpr):
    """A chunk of one layer's part of one block."""
    copy = tl.program_id(0)
    layer = tl.program_id(1).to(tl.int64)
    i = tl.program_id(2) * CHUNK + tl.arange(0, CHUNK)
    src = tl.load(src_ids_ptr + copy)
    dst = tl.load(dst_ids_ptr + copy)
    x = tl.load(src_ptr + layer * stride_sl + src * stride_sb + i, mask=i < page)
    tl.store(dst_ptr + layer * stride_dl + dst * stride_db + i, x, mask=i < page)


def copy_blocks(src: Tensor, dst: Tensor, src_ids: Tensor, dst_ids: Tensor, page: int) -> None:
    """Copy blocks ``src_ids[i]`` of ``src`` to ``dst_ids[i]`` of ``dst``, in all layers, in one launch (Paper §5.1, "block copy").

    src, dst: ``[num_layers, num_blocks, page]``, a block's page contiguous, any other strides; the same tensor for copy-on-write, where no
    block may be both source and destination: all copies run at once, in no order. ids: int64 ``[n]``. page: numbers in one block of a layer.
    """
    chunk = min(4096, 1 << (page - 1).bit_length())
    copy_kernel[(len(src_ids), src.shape[0], -(-page // chunk))](
        src, dst, src_ids, dst_ids, page, *src.stride()[:2], *dst.stride()[:2], CHUNK=chunk, num_warps=8 if chunk >= 2048 else 4,
    )


