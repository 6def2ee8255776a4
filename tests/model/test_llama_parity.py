"""The Llama family through the paged cache against transformers', and that each of its mechanisms shows: without it, the parity is gone."""
from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from llamas import VARIANTS, load_theirs, old_spelling, random_llama, rewrite_config
from logits import difference, expected, prompts, run
from torch import Tensor, nn

from paged_edu.attention import reference
from paged_edu.model import llama
from paged_edu.model.llama import Llama, Mistral, Qwen2, Qwen3
from paged_edu.model.loader import load_model
from paged_edu.model.rope import Rope


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


def test_bfloat16_follows_transformers(tmp_path: Path) -> None:
    random_llama(tmp_path, "qwen3")
    model, _ = load_model(tmp_path, torch.bfloat16, "cpu")
    got, want = run(model, prompts(), [64, 64, 64], dtype=torch.bfloat16), expected(load_theirs(tmp_path, torch.bfloat16), prompts())
    in_float32 = expected(load_theirs(tmp_path, torch.float32), prompts())
    assert difference(got, in_float32) < 2 * difference(want, in_float32)
