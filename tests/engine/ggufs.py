"""GGUF files written from random transformers models, and what transformers' model is after the same quantisation."""
from __future__ import annotations

import copy

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type

ALL_TYPES = tuple(kind for kind in (
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS",
    "IQ3_S", "IQ1_S", "IQ1_M", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4",
) if kind in Type.__members__)      # the oldest gguf package that is allowed lacks MXFP4
NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}


def gguf_name(name):
    stem, _, kind = name.rpartition(".")
    if stem in NAMES:
        return f"{NAMES[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.{kind}"


def permute(w, heads):
    """As llama.cpp's converter does it: each head's two halves are interleaved, row by row."""
    return np.ascontiguousarray(w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape))


def quantise(w, kind, rng):
    """``w`` in another type: ``(stored bytes, the numbers that they stand for)``. What gguf can't quantise is drawn at random instead."""
    if kind == "F32":
        return w, w
    if kind == "F16":
        return w.astype(np.float16), w.astype(np.float16).astype(np.float32)
    qtype = Type[kind]
    try:
        stored = gguf.quants.quantize(w, qtype)
    except NotImplementedError:
        stored = random_blocks(w.shape, qtype, rng)
    return stored, gguf.quants.dequantize(stored, qtype)


def random_blocks(shape, qtype, rng):
    """Random bytes, but only blocks whose numbers are of a usual size."""
    block, size = gguf.GGML_QUANT_SIZES[qtype]
    count, kept = int(np.prod(shape)) // block, []
    while sum(len(k) for k in kept) < count:
        drawn = rng.integers(0, 256, (4096, size), dtype=np.uint8)
        with np.errstate(all="ignore"):
            numbers = np.nan_to_num(np.abs(gguf.quants.dequantize(drawn, qtype)), nan=1e9, posinf=1e9).max(-1)
        kept.append(drawn[(numbers > 0.1) & (numbers < 1)])
    return np.concatenate(kept)[:count].reshape(*shape[:-1], -1)


def write_gguf(path, hf, kinds=("F32",), *, rope_freqs=None, keys=None, drop=(), tensors=None, tokenizer=None, permuted=True, seed=0):
    """Write a transformers Llama or Qwen2 model; its matrices take the types of ``kinds`` in turn, as long as their rows allow it.

    Returns a copy of the model with the numbers that the file holds. ``keys`` are added to the metadata (None: left out), ``drop`` are
    tensors left out and ``tensors`` more of them.
    """
    config, rng, held = hf.config, np.random.default_rng(seed), copy.deepcopy(hf)
    arch = "llama" if config.model_type == "mistral" else config.model_type
    metadata = {
        "block_count": config.num_hidden_layers, "context_length": config.max_position_embeddings, "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size, "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads, "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": config.rope_parameters["rope_theta"], "vocab_size": config.vocab_size,
    }
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if head_dim * config.num_attention_heads != config.hidden_size:
        metadata |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    if arch == "llama":
        metadata["rope.dimension_count"] = head_dim
    general = {"general.alignment": 32} | {k: v for k, v in (keys or {}).items() if k.split(".")[0] in ("general", "tokenizer", "split")}
    own = metadata | {k: v for k, v in (keys or {}).items() if k not in general}
    writer = gguf.GGUFWriter(path, arch)
    for key, value in {**{f"{arch}.{k}": v for k, v in own.items()}, **general, **(tokenizer or {})}.items():
        add(writer, key, value)
    state, number = dict(held.named_parameters()), 0
    for name, p in state.items():
        w, kind = p.detach().float().numpy(), "F32"
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
        if w.ndim == 2:
            kind, number = kinds[number % len(kinds)], number + 1
            if w.shape[-1] % gguf.GGML_QUANT_SIZES[Type[kind]][0]:
                kind = "F16"
        turned = heads is not None and arch == "llama" and permuted
        stored, numbers = quantise(permute(w, heads) if turned else w, kind, rng)
        if turned:      # rows: row i of the permuted matrix is row order[i] of the original one
            order = permute(np.arange(w.shape[0]), heads)
            back = np.empty_like(numbers)
            back[order] = numbers
            numbers = back
        with torch.no_grad():
            p.copy_(torch.from_numpy(np.array(numbers)))
        if gguf_name(name) not in drop:
            writer.add_tensor(gguf_name(name), stored, raw_dtype=Type[kind])
    if rope_freqs is not None:
        writer.add_tensor("rope_freqs.weight", np.asarray(rope_freqs, dtype=np.float32))
    for name, data in (tensors or {}).items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


def add(writer, key, value):
    """One metadata entry, of the type that llama.cpp's converter gives such a value; GGUFWriter has taken some of the keys already."""
    if value is None or key == "general.architecture":
        return
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        (writer.add_uint32 if value >= 0 else writer.add_int32)(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
