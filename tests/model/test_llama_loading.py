"""Llama checkpoints: tied heads, tensors too few and too many, the defaults of absent keys, and what is refused before any weight is read."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from llamas import BASE, DEFAULT, LLAMA3, VOCAB, random_llama, rewrite_config
from logits import difference, expected, prompts, run
from safetensors.torch import load_file, save_file

from paged_edu.model.llama import Mistral, Qwen2, Qwen3
from paged_edu.model.loader import ModelLoadError, load_model, load_spec


def test_tied_and_untied_heads(tmp_path: Path) -> None:  # B85
    random_llama(tmp_path, "multi-query, tied")
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    assert "lm_head.weight" not in weights
    model, _ = load_model(tmp_path, torch.float32, "cpu")
    assert model.lm_head.weight.data_ptr() == model.embed_tokens.weight.data_ptr()
    save_file({**weights, "lm_head.weight": torch.zeros(VOCAB, 32)}, file, {"format": "pt"})
    model, _ = load_model(tmp_path, torch.float32, "cpu")
    assert torch.equal(model.lm_head.weight, weights["model.embed_tokens.weight"])
    rewrite_config(tmp_path, lambda config: config.update(tie_word_embeddings=False))
    model, _ = load_model(tmp_path, torch.float32, "cpu")
    assert not model.lm_head.weight.any()
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"missing from the checkpoint: lm_head\.weight.*tie_word_embeddings: false"):
        load_model(tmp_path, torch.float32, "cpu")


def test_missing_unexpected_and_unneeded_tensors(tmp_path: Path) -> None:  # B97
    want = expected(random_llama(tmp_path, "grouped queries"), prompts())
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    buffers = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4), "model.rotary_emb.inv_freq": torch.zeros(4)}
    save_file(weights | buffers, file, {"format": "pt"})
    model, _ = load_model(tmp_path, torch.float64, "cpu")
    assert difference(run(model, prompts(), [64, 64, 64]), want) < 1e-9, "stored frequencies are not what the model uses"
    for key in ("model.layers.0.self_attn.q_proj.bias", "model.layers.0.self_attn.q_norm.weight", "model.rotary_emb.inv_freq2"):
        save_file(weights | {key: torch.zeros(32)}, file, {"format": "pt"})
        with pytest.raises(ModelLoadError, match=f"LlamaForCausalLM does not have: {key}"):
            load_model(tmp_path, torch.float32, "cpu")
    save_file({k: v for k, v in weights.items() if k != "model.layers.1.mlp.up_proj.weight"}, file, {"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"layers\.1\.mlp\.up_proj\.weight"):
        load_model(tmp_path, torch.float32, "cpu")


def spec_of(path: Path, kind: str, **config: Any) -> Any:
    base = {k: v for k, v in BASE.items() if k != "head_dim"}
    merged = base | {"model_type": kind, "dtype": "float32"} | config
    (path / "config.json").write_text(json.dumps({k: v for k, v in merged.items() if v != "absent"}))
    return load_spec(path)


def test_specs_by_model_type_and_the_defaults_of_absent_keys(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "llama", num_key_value_heads="absent", max_position_embeddings="absent")
    assert (spec.architecture, spec.num_kv_heads, spec.head_dim, spec.max_positions) == ("LlamaForCausalLM", 4, 8, 2048)
    assert not spec.tie_word_embeddings
    spec = spec_of(tmp_path, "mistral", num_attention_heads=16, num_key_value_heads="absent", head_dim=None)
    assert (spec.architecture, spec.num_kv_heads, spec.head_dim) == ("MistralForCausalLM", 8, 2)
    assert Mistral.options(spec.config, 3).windows == (4096,) * 3
    spec = spec_of(tmp_path, "qwen2", use_sliding_window=True, num_hidden_layers=30)
    assert (spec.architecture, spec.head_dim) == ("Qwen2ForCausalLM", 8)
    assert Qwen2.options(spec.config, 30).windows == (None,) * 28 + (4096,) * 2
    spec = spec_of(tmp_path, "qwen3", head_dim="absent")
    assert (spec.architecture, spec.head_dim) == ("Qwen3ForCausalLM", 128)
    assert Qwen3.options(spec.config, 3).windows == (None,) * 3


@pytest.mark.parametrize(
    ("kind", "config", "message"),
    [
        ("llama", {"num_attention_heads": 5}, "num_attention_heads 5 is not a multiple of num_key_value_heads 2"),
        ("llama", {"hidden_size": 34}, "hidden_size 34 is not a multiple of num_attention_heads 4"),
        ("llama", {"head_dim": 7}, "head_dim 7 is odd"),
        ("llama", {"head_dim": 0}, "head_dim must be an integer from 1"),
        ("llama", {"hidden_act": "maxout"}, "unknown activation 'maxout'"),
        ("llama", {"attention_bias": "yes"}, "attention_bias must be true or false"),
        ("llama", {"intermediate_size": None}, "intermediate_size must be an integer"),
        ("llama", {"rms_norm_eps": -1.0}, "rms_norm_eps must be a positive number"),
        ("llama", {"rope_theta": "big"}, "rope_theta must be a positive number"),
        ("llama", {"rope_scaling": "linear"}, "rope_scaling and rope_parameters must be objects or null"),
        ("llama", {"rope_scaling": {"type": "linear"}}, "RoPE scaling 'linear' needs factor"),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 0}}, "factor must be a positive number"),
        ("llama", {"rope_scaling": {"type": "llama3", "factor": 8}}, "'llama3' needs low_freq_factor, high_freq_factor"),
        ("llama", {"rope_scaling": LLAMA3 | {"low_freq_factor": 4.0}}, "low_freq_factor 4.0 must be below high_freq_factor 4.0"),
        ("llama", {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 0.5}}, "original_max_position_embeddings must be an integer"),
        ("llama", {"rope_scaling": {"type": "yarn", "factor": 2}}, "'yarn' is not supported; supported are default, linear, dynamic, llama3"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
        ("qwen2", {"rope_parameters": {"full_attention": DEFAULT}}, r"single kinds of layers \(full_attention\) are not supported"),
        ("mistral", {"sliding_window": 0}, "sliding_window must be an integer from 1"),
        ("mistral", {"sliding_window": 4, "layer_types": ["full_attention"] * 3}, "must be 'sliding_attention' throughout for Mistral"),
        ("qwen2", {"layer_types": ["sliding_attention"] * 3}, "use_sliding_window and sliding_window give no window"),
        ("qwen2", {"layer_types": ["full_attention"] * 2}, "layer_types must be 3 times"),
        ("qwen3", {"layer_types": ["chunked_attention"] * 3}, "layer_types must be 3 times"),
        ("qwen3", {"use_sliding_window": True, "max_window_layers": -1}, "max_window_layers must be an integer from 0"),
    ],
    ids=lambda value: None if isinstance(value, str) else str(value),
)
def test_what_cannot_be_served_is_refused_before_any_weight_is_read(tmp_path: Path, kind: str, config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        spec_of(tmp_path, kind, **config)
