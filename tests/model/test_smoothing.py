"""Smoothing: a float32 model stays the same model to the last bit, and its largest channels become smaller."""
from __future__ import annotations

import pytest
import torch
from engine.llamas import random_llama
from logits import prompts, run

from paged_edu.model.int8 import Int8Linear
from paged_edu.model.loader import load_model, resolve
from paged_edu.model.smoothing import _largest_inputs, smooth_model


@pytest.mark.parametrize("variant", ["tiny-shakespeare", "multi-query, tied", "attention and mlp biases, gelu", "qwen3", "mistral"])
def test_not_a_bit_of_a_result_changes(variant, tmp_path):
    folder = resolve(variant) if variant == "tiny-shakespeare" else tmp_path
    if folder is tmp_path:
        random_llama(folder, variant)
    model, _ = load_model(folder, torch.float32, "cpu")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    sequences = prompts([30, 9])
    want = run(model, sequences, [99, 4], dtype=torch.float32)
    embedding = model.embedding.weight.clone()
    smooth_model(model)
    for ours, theirs in zip(run(model, sequences, [99, 4], dtype=torch.float32), want):
        assert torch.equal(ours, theirs)
    assert torch.equal(model.embedding.weight, embedding), "a tied head has its own tensor"
    changed = [name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])]
    assert any("norm" in name or "ln_" in name for name in changed)


def test_a_channel_that_towers_over_the_others(tmp_path):
    random_llama(tmp_path, "grouped queries")
    model, _ = load_model(tmp_path, torch.float32, "cpu")
    block = model.layers[1]
    block.input_layernorm.weight[5] *= 64
    x = torch.randn(50, 48, generator=torch.Generator().manual_seed(0))
    x[:, 5] /= 4

    def error():
        layer = block.self_attn.q_proj
        seen = block.input_layernorm(x)
        want = seen @ layer.weight.T
        return float((Int8Linear(layer.weight)(seen) - want).norm() / want.norm())

    layers = [group.layer for group in model.smoothable()]
    place = layers.index(block.self_attn.q_proj)
    rough, before = error(), _largest_inputs(model, layers)[place]
    smooth_model(model)
    after = _largest_inputs(model, layers)[place]
    assert after.max() / after.median() < before.max() / before.median() / 3
    assert error() < 0.7 * rough
