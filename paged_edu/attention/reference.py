"""PagedAttention in plain torch: the oracle that the kernels are tested against, and the backend where there is no GPU (Paper §4.1).

The paper writes the attention of token i over its KV blocks, with block j holding the tokens ``(j - 1) B + 1`` to ``j B``, as

    A_ij = exp(q_i . K_j * scale) / sum_t exp(q_i . K_t * scale)        o_i = sum_j V_j A_ij

that is, ordinary softmax attention whose keys and values are fetched block by block through the block table. Here the fetch is one
gather into a contiguous copy, then torch's own attention runs on it; the kernels differ in not making that copy.
"""
from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from .cache import LayerCache, write
from .metadata import AttentionMetadata

KEYS, VALUES = 0, 1


def attend(
    q: Tensor, k: Tensor, v: Tensor, cache: LayerCache, meta: AttentionMetadata, window: int | None, scale: float,
) -> Tensor:
    """Causal attention of one layer for a mixed batch of prompts, chunks and decode tokens: ``[T, num_heads, head_dim]``, as ``q``.

    q: ``[T, num_heads, head_dim]``; k, v: ``[T, num_kv_heads, head_dim]`` of the same tokens. num_heads is a multiple of num_kv_heads and
    query head h reads KV head ``h // (num_heads // num_kv_heads)``. cache: the layer's `LayerCache`, in any floating point dtype or int8.
    window: None, or a number of tokens: position p then sees positions ``p - window + 1`` to p only. scale multiplies q . k before
    the softmax.

    It always writes the new keys and values first and then reads everything through the block table, the new ones too, so that a
    prompt gives the same result whole or in chunks, cold or from the prefix cache. What lies past ``seq_len`` never enters the softmax.

    Raises ValueError for head counts that don't divide or a window below 1.
    """
    check(q, cache, window)
    # Every write precedes every read: sequences of one step may share the blocks that one of them fills.
    write(cache, k, v, meta.slot_mapping, all_written=meta.all_written)
    out = torch.empty_like(q)
    attend_to(range(meta.num_seqs), q, out, cache, meta, window, scale)
    return out


def check(q: Tensor, cache: LayerCache, window: int | None) -> None:
    """Raises ValueError for head counts that don't divide or a window below 1."""
    num_heads, num_kv_heads = q.shape[1], cache[0].shape[1]
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} query heads can't share {num_kv_heads} KV heads evenly")
    if window is not None and window < 1:
        raise ValueError(f"a sliding window holds at least 1 token, not {window}")


def attend_to(
    sequences: Iterable[int], q: Tensor, out: Tensor, cache: LayerCache, meta: AttentionMetadata, window: int | None, scale: float,
) -> None:
    """Attention of some of the step's sequences, one after the other, into their rows of ``out``; everything has been written."""
    num_heads, num_kv_heads = q.shape[1], cache[0].shape[1]
    pages = page_tables(meta.block_tables, num_kv_heads)
    # torch's attention takes [batch, heads, tokens, head_dim]: the same memory seen another way, once for all sequences.
    queries, results = q.transpose(0, 1)[None], out.transpose(0, 1)[None]
    starts = meta.host_query_start_loc
    for i in sequences:
        rows, seq_len = slice(starts[i], starts[i + 1]), meta.host_seq_lens[i]
        # torch has the mask of a whole prompt built in: half the work. (It scales that mask too, and minus infinity times 0 is no number.)
        whole = starts[i + 1] - starts[i] == seq_len and window is None and scale != 0
        keys, values = (read_as(q.dtype, cache, which, pages[i], seq_len)[None] for which in (KEYS, VALUES))
        results[:, :, rows] = F.scaled_dot_product_attention(
            queries[:, :, rows], keys, values,
            attn_mask=None if whole else visible(starts[i + 1] - starts[i], seq_len, window, q.device), is_causal=whole,
            scale=scale, enable_gqa=num_heads != num_kv_heads,
        )


def page_tables(block_tables: Tensor, num_kv_heads: int) -> Tensor:
    """Pages of every sequence and KV head, int64 ``[B, num_kv_heads, max_blocks]``, from int32 ``[B, max_blocks]``.

    A page is the part of a block that one head owns. It is contiguous, and page ``block * num_kv_heads + head`` of the layer.
    """
    heads = torch.arange(num_kv_heads, device=block_tables.device)
    return block_tables[:, None].long() * num_kv_heads + heads[:, None]


def read_as(dtype: torch.dtype, cache: LayerCache, which: int, pages: Tensor, seq_len: int) -> Tensor:
    """`read` of a layer's keys (``which`` 0) or values (1), in ``dtype``; int8 codes are multiplied by their scales."""
    numbers = read(cache[which], pages, seq_len).to(dtype)
    if cache[which].dtype != torch.int8:
        return numbers
    return numbers * read(cache[2 + which].unsqueeze(-1), pages, seq_len).to(dtype)


def read(tensor: Tensor, pages: Tensor, seq_len: int) -> Tensor:
    """One sequence's keys (or values), in token order: ``[num_kv_heads, seq_len, head_dim]``, a copy.

    tensor: ``[num_blocks, num_kv_heads, block_size, head_dim]``; pages: the sequence's row of `page_tables`.
    """
    _, num_kv_heads, block_size, head_dim = tensor.shape
    used = pages[:, : -(-seq_len // block_size)].reshape(-1)
    gathered = tensor.view(-1, block_size, head_dim).index_select(0, used)
    return gathered.view(num_kv_heads, -1, head_dim)[:, :seq_len]


def visible(query_len: int, seq_len: int, window: int | None, device: torch.device) -> Tensor | None:
    """Which keys each of the last ``query_len`` tokens sees: bool ``[query_len, seq_len]``; None if it is one token that sees them all."""
    if query_len == 1 and (window is None or window >= seq_len):
        return None
    key = torch.arange(seq_len, device=device)
    query = key[seq_len - query_len:, None]
    seen = key <= query
    return seen if window is None else seen & (key > query - window)
