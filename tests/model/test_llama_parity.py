"""The Llama family through the paged cache against transformers', and that each of its mechanisms shows: without it, the parity is gone."""
from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from llamas import BASE, DEFAULT, LLAMA3, VARIANTS, VOCAB, load_theirs, old_spelling, random_llama, rewrite_config
from logits import difference, expected, prompts, run
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from paged_edu.attention import reference
from paged_edu.model import llama
from paged_edu.model.llama import Llama, Mistral, Qwen2, Qwen3
from paged_edu.model.loader import ModelLoadError, load_model, load_spec
from paged_edu.model.rope import KINDS, Rope, read_rope

# --- parity ---


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_equals_transformers(tmp_path: Path, name: str) -> None:
    hf = random_llama(tmp_path, name, seed=1)
    model, spec = load_model(tmp_path, torch.float64, "cpu")
    assert type(model) is {"llama": Llama, "mistral": Mistral, "qwen2": Qwen2, "qwen3": Qwen3}[VARIANTS[name][0]]
    assert spec.max_positions == 96
    want = expected(hf, prompts())
    for sizes, block_size in itertools.product(([1, 1, 1], [7, 64, 1], [64, 64, 64]), (3, 16)):
        assert difference(run(model, prompts(), sizes, block_size), want) < 1e-9
    in_float32, _ = load_model(tmp_path, torch.float32, "cpu")
    got, want = run(in_float32, prompts(), [7, 64, 1], dtype=torch.float32), expected(load_theirs(tmp_path, torch.float32), prompts())
    assert difference(got, want) < 1e-4


@pytest.mark.parametrize("name", ["llama 1, multi-head", "linear", "dynamic", "llama3", "qwen2"])
def test_the_old_spelling_of_rope_is_the_same_model(tmp_path: Path, name: str) -> None:
    want = expected(random_llama(tmp_path, name), prompts())
    rewrite_config(tmp_path, old_spelling)
    assert "rope_parameters" not in json.loads((tmp_path / "config.json").read_text())
    assert difference(expected(load_theirs(tmp_path), prompts()), want) == 0, "transformers reads the rewritten config as the same model"
    model, _ = load_model(tmp_path, torch.float64, "cpu")
    assert difference(run(model, prompts(), [64, 64, 64]), want) < 1e-9


# --- every mechanism shows ---


def wrong_groups(q: Tensor, k: Tensor, v: Tensor, cache: Any, meta: Any, window: int | None, scale: float) -> Tensor:
    """Query head h reads KV head h % num_kv_heads instead of h // group."""
    kv_heads = k.shape[1]
    order = sorted(range(q.shape[1]), key=lambda h: h % kv_heads)
    back = [order.index(h) for h in range(q.shape[1])]
    return reference.attend(q[:, order], k, v, cache, meta, window, scale)[:, back]


def without_window(q: Tensor, k: Tensor, v: Tensor, cache: Any, meta: Any, window: int | None, scale: float) -> Tensor:
    return reference.attend(q, k, v, cache, meta, None, scale)


def one_key_more(q: Tensor, k: Tensor, v: Tensor, cache: Any, meta: Any, window: int | None, scale: float) -> Tensor:
    return reference.attend(q, k, v, cache, meta, None if window is None else window + 1, scale)


def uniform(q: Tensor, k: Tensor, v: Tensor, cache: Any, meta: Any, window: int | None, scale: float) -> Tensor:
    return reference.attend(q, k, v, cache, meta, window, 0.0)


def _drop_norms(names: tuple[str, ...]) -> Any:
    def patch(monkeypatch: pytest.MonkeyPatch, model: nn.Module) -> None:
        for layer in model.layers:
            for name in names:
                monkeypatch.setattr(layer.self_attn, name, nn.Identity())
    return patch


def _drop_biases(names: tuple[str, ...]) -> Any:
    def patch(monkeypatch: pytest.MonkeyPatch, model: nn.Module) -> None:
        dropped = [m for name, m in model.named_modules() if name.rpartition(".")[2] in names]
        assert dropped
        for module in dropped:
            assert module.bias is not None
            monkeypatch.setattr(module, "bias", None)
    return patch


def _plain_rope(monkeypatch: pytest.MonkeyPatch, model: nn.Module) -> None:
    monkeypatch.setattr(model.rotary_emb, "inv_freq", Rope(100.0).inverse_frequencies(model.spec.head_dim))


def _interleaved(monkeypatch: pytest.MonkeyPatch, model: nn.Module) -> None:
    """Pairs (0, 1), (2, 3), ... as in Meta's own files, instead of (0, d / 2), ..."""
    def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        (cos, sin), a, b = rotation, x[..., ::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    monkeypatch.setattr(llama, "rotate", rotate)


def _unrotated(monkeypatch: pytest.MonkeyPatch, model: nn.Module) -> None:
    monkeypatch.setattr(llama, "rotate", lambda x, rotation: x)


BREAKS = {
    "linear scaling": ("linear", _plain_rope), "llama3 scaling": ("llama3", _plain_rope), "rotation": ("llama 1, multi-head", _unrotated),
    "pairs": ("llama 1, multi-head", _interleaved), "groups": ("grouped queries", wrong_groups), "groups of two": ("qwen2", wrong_groups),
    "window": ("mistral", without_window), "window of some layers": ("qwen2, mixed windows", without_window),
    "window's width": ("mistral", one_key_more), "layer_types": ("qwen2, layer_types", without_window),
    "q norm": ("qwen3", _drop_norms(("q_norm",))), "k norm": ("qwen3", _drop_norms(("k_norm",))),
    "q bias": ("qwen2", _drop_biases(("q_proj",))), "k bias": ("qwen2", _drop_biases(("k_proj",))), "v bias": ("qwen2", _drop_biases(("v_proj",))),
    "output bias": ("attention and mlp biases, gelu", _drop_biases(("o_proj",))),
    "mlp biases": ("attention and mlp biases, gelu", _drop_biases(("gate_proj", "up_proj", "down_proj"))),
    "qwen3's biases": ("qwen3, biases, windows, linear", _drop_biases(("q_proj", "k_proj", "v_proj", "o_proj"))),
    "attention": ("llama 1, multi-head", uniform),
}
ATTENDS = {wrong_groups, without_window, one_key_more, uniform}


@pytest.mark.parametrize("what", BREAKS)
def test_without_it_the_parity_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    name, how = BREAKS[what]
    want = expected(random_llama(tmp_path, name, seed=2), prompts())
    model, _ = load_model(tmp_path, torch.float64, "cpu")
    assert difference(run(model, prompts(), [64, 64, 64]), want) < 1e-9
    if how not in ATTENDS:
        how(monkeypatch, model)
    broken = run(model, prompts(), [64, 64, 64], attend=how if how in ATTENDS else None)
    assert difference(broken, want) > 1e-3


# --- RoPE's settings ---


@pytest.mark.parametrize(
    ("head_dim", "factor", "indices", "ratios"),
    [
        (128, 8.0, [0, 28, 29, 32, 34, 35, 63], [1.0, 1.0, 0.828168, 0.371122, 0.190211, 0.125, 0.125]),
        (64, 32.0, [0, 14, 15, 16, 17, 18, 31], [1.0, 1.0, 0.605573, 0.303743, 0.103448, 0.03125, 0.03125]),
    ],
)
def test_llama3_scaling(head_dim: int, factor: float, indices: list[int], ratios: list[float]) -> None:  # B90
    scaling = {"factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    scaled = read_rope({"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", **scaling}}).inverse_frequencies(head_dim)
    plain = read_rope({"rope_theta": 500000.0}).inverse_frequencies(head_dim)
    torch.testing.assert_close((scaled / plain)[indices], torch.tensor(ratios), rtol=1e-5, atol=0)
    if head_dim == 128:
        want = [1.0, 0.003211446, 0.002166571, 0.0005248462, 0.0001785078, 9.556212e-05, 3.068926e-07]
        torch.testing.assert_close(scaled[indices], torch.tensor(want), rtol=1e-5, atol=0)
    config = LlamaConfig(hidden_size=head_dim, num_attention_heads=1, max_position_embeddings=131072,
                         rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, **scaling})
    assert torch.equal(scaled, LlamaRotaryEmbedding(config).inv_freq)


@pytest.mark.parametrize(
    ("config", "rope"),
    [
        ({}, Rope(10000.0)),
        ({"rope_theta": 5e5, "rope_scaling": None}, Rope(5e5)),
        ({"rope_theta": 5, "rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}, Rope(7.0)),
        ({"rope_theta": 5, "rope_parameters": {"type": "linear", "factor": 2}}, Rope(5.0, "linear", 2.0)),
        ({"rope_scaling": {"type": "linear", "rope_type": "dynamic", "factor": 2}}, Rope(10000.0, "dynamic", 2.0)),
        ({"rope_scaling": {"type": "linear", "factor": 3.0}, "rope_parameters": DEFAULT}, Rope(10000.0, "linear", 3.0)),
        ({"rope_parameters": LLAMA3}, Rope(100.0, "llama3", 8.0, 1.0, 4.0, 32)),
        ({"rope_parameters": LLAMA3, "original_max_position_embeddings": 48}, Rope(100.0, "llama3", 8.0, 1.0, 4.0, 48)),
        ({"rope_parameters": {k: v for k, v in LLAMA3.items() if k[0] != "o"}, "max_position_embeddings": 64},
         Rope(100.0, "llama3", 8.0, 1.0, 4.0, 64)),
    ],
    ids=str,
)
def test_spellings(config: dict[str, Any], rope: Rope) -> None:
    before = json.dumps(config)
    assert read_rope(config) == rope
    assert json.dumps(config) == before
    theirs = LlamaConfig(**BASE | {"head_dim": 16} | json.loads(before))
    assert torch.equal(rope.inverse_frequencies(16), LlamaRotaryEmbedding(theirs).inv_freq)


@pytest.mark.parametrize("kind", ["yarn", "longrope", "su", "mrope", "proportional", 3])
def test_other_scalings_are_refused_by_name(kind: Any) -> None:
    with pytest.raises(ModelLoadError, match=f"{kind!r} is not supported; supported are {', '.join(KINDS)}"):
        read_rope({"rope_scaling": {"rope_type": kind, "factor": 2.0}})


def test_dynamic_ends_where_it_would_start_to_rescale(tmp_path: Path) -> None:
    """Up to max_position_embeddings it is plain RoPE, token by token as well; that is all the positions the model has."""
    hf = random_llama(tmp_path, "dynamic")
    model, spec = load_model(tmp_path, torch.float64, "cpu")
    assert spec.max_positions == 96
    sequences = prompts([96])
    assert difference(run(model, sequences, [17]), expected(hf, sequences)) < 1e-9
    beyond = prompts([97])
    assert difference(run(model, beyond, [17]), expected(hf, beyond)) > 1e-3, "one token more, and transformers turns every key anew"


# --- loading ---


@pytest.mark.parametrize("name", ["llama3", "qwen3"])
def test_frequencies_are_real_float32_numbers_in_every_dtype(tmp_path: Path, name: str) -> None:
    random_llama(tmp_path, name)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        model, _ = load_model(tmp_path, dtype, "cpu")
        assert {b.device.type for b in model.buffers()} == {"cpu"}
        assert model.rotary_emb.inv_freq.dtype == torch.float32
        assert {p.dtype for p in model.parameters()} == {dtype}
        assert not any("inv_freq" in key for key in model.state_dict())


def test_bfloat16_follows_transformers(tmp_path: Path) -> None:
    random_llama(tmp_path, "qwen3")
    model, _ = load_model(tmp_path, torch.bfloat16, "cpu")
    got, want = run(model, prompts(), [64, 64, 64], dtype=torch.bfloat16), expected(load_theirs(tmp_path, torch.bfloat16), prompts())
    in_float32 = expected(load_theirs(tmp_path, torch.float32), prompts())
    assert difference(got, in_float32) < 2 * difference(want, in_float32)


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
