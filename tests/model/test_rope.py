"""Rotary positions: every spelling of their settings, the numbers of every scaling, and what is refused by name."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from llamas import BASE, DEFAULT, LLAMA3, random_llama
from logits import difference, expected, prompts, run
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from paged_edu.model.loader import ModelLoadError, load_model
from paged_edu.model.rope import KINDS, Rope, read_rope


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


@pytest.mark.parametrize("name", ["llama3", "qwen3"])
def test_frequencies_are_real_float32_numbers_in_every_dtype(tmp_path: Path, name: str) -> None:
    random_llama(tmp_path, name)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        model, _ = load_model(tmp_path, dtype, "cpu")
        assert {b.device.type for b in model.buffers()} == {"cpu"}
        assert model.rotary_emb.inv_freq.dtype == torch.float32
        assert {p.dtype for p in model.parameters()} == {dtype}
        assert not any("inv_freq" in key for key in model.state_dict())
