"""Random models of the Llama family, saved by transformers: every variant that the parity tests run."""
from __future__ import annotations

import json

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

VOCAB = 97
CONFIGS = {"llama": LlamaConfig, "mistral": MistralConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
BASE = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 96, "bos_token_id": 0, "eos_token_id": 96,
}
# Small bases: a few dozen tokens then turn every pair of dimensions by a visible angle.
DEFAULT = {"rope_type": "default", "rope_theta": 100.0}
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 100.0}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 100.0}
# With heads of 16: pair 0 keeps its speed, pairs 1 and 2 are blended, the others are slowed. The prompts are longer than 32 tokens.
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
          "rope_theta": 100.0}

VARIANTS = {
    "llama 1, multi-head": ("llama", {"num_key_value_heads": 4, "rope_parameters": DEFAULT}),
    "grouped queries": ("llama", {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 48}),
    "multi-query, tied": ("llama", {"num_key_value_heads": 1, "tie_word_embeddings": True, "rope_parameters": DEFAULT}),
    "explicit head_dim": ("llama", {"head_dim": 20, "rms_norm_eps": 1e-2}),
    "attention and mlp biases, gelu": ("llama", {"attention_bias": True, "mlp_bias": True, "hidden_act": "gelu"}),
    "linear": ("llama", {"rope_parameters": LINEAR}),
    "dynamic": ("llama", {"rope_parameters": DYNAMIC}),
    "llama3": ("llama", {"rope_parameters": LLAMA3, "head_dim": 16, "tie_word_embeddings": True}),
    "mistral": ("mistral", {"sliding_window": 7, "rope_parameters": DEFAULT}),
    "mistral, window of one token": ("mistral", {"sliding_window": 1}),
    "mistral, no window": ("mistral", {"sliding_window": None, "head_dim": 12}),
    "qwen2": ("qwen2", {"rope_parameters": DEFAULT}),
    "qwen2, mixed windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1, "tie_word_embeddings": True}),
    "qwen2, layer_types": ("qwen2", {"use_sliding_window": True, "sliding_window": 5,
                                     "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
    "qwen2, window not used": ("qwen2", {"use_sliding_window": False, "sliding_window": 5, "max_window_layers": 0}),
    "qwen3": ("qwen3", {"head_dim": 24, "rope_parameters": DEFAULT, "tie_word_embeddings": True}),
    "qwen3, biases, windows, linear": ("qwen3", {"attention_bias": True, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 2,
                                                 "rope_parameters": LINEAR}),
}


def random_llama(folder, variant, *, seed=0, dtype=torch.float64, **changes):
    """Save a small random model in float32 and return transformers' in ``dtype``.

    Weights are large enough for attention to be far from uniform, norms are not 1 and biases not 0. "sdpa": transformers' eager
    attention takes its softmax in float32 even in a float64 model.
    """
    kind, options = VARIANTS[variant]
    config = CONFIGS[kind](**BASE | options | changes)
    model = AutoModelForCausalLM.from_config(config)
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            noise = torch.randn(p.shape, generator=g)
            p.copy_(0.3 * noise if p.dim() == 2 else 0.3 * noise + 1)
        for name, p in model.named_parameters():
            if name.endswith("bias"):
                p.sub_(1)
    model.save_pretrained(folder)
    return load_theirs(folder, dtype)


def load_theirs(folder, dtype=torch.float64):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").eval()


def rewrite_config(folder, change):
    """Pass config.json's content through ``change``."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def old_spelling(config):
    """As transformers 4 wrote it: ``rope_scaling`` with the kind under "type", and ``rope_theta`` outside."""
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else {"type": kind, **rope}
