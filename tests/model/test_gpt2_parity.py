"""Our GPT-2 through the paged cache against transformers', with weights large enough for attention to be far from uniform."""
from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from batches import Pager
from logits import VOCAB, expected, prompts, run
from torch import Tensor

from paged_edu.attention.cache import KVCache
from paged_edu.attention.metadata import build_input
from paged_edu.attention.reference import attend
from paged_edu.model.gpt2 import GPT2
from paged_edu.model.loader import load_model

BASE = {"vocab_size": VOCAB, "n_positions": 64, "n_embd": 32, "n_layer": 3, "n_head": 4}
MUST_MATTER = {"activation_function", "scale_attn_by_inverse_layer_idx", "scale_attn_weights", "layer_norm_epsilon"}


def hf_model(seed: int = 0, **config: Any) -> Any:
    """transformers' model in float64, every parameter random: biases not 0, norms not 1, projections well above the usual 0.02."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(**{**BASE, **config}, attn_implementation="eager")).double().eval()
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=g, dtype=torch.float64)
            norm = ".ln_" in name and name.endswith("weight")
            p.copy_(1 + 0.3 * noise if norm else (0.4 if p.dim() == 2 else 0.3) * noise)
    return model


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[int]], list[Tensor]]:
    path = tmp_path_factory.mktemp("gpt2")
    model = hf_model()
    model.save_pretrained(path)
    sequences = prompts()
    return path, sequences, expected(model, sequences)


def agree(got: list[Tensor], want: list[Tensor], atol: float) -> None:
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=0, atol=atol)


@pytest.mark.parametrize("block_size", [1, 3, 16, 64, 256])
@pytest.mark.parametrize("sizes", [[1, 1, 1], [7, 7, 7], [64, 64, 64], [7, 64, 1]], ids=["decode", "chunks", "whole", "mixed"])
def test_logits_equal_transformers(reference: Any, block_size: int, sizes: list[int]) -> None:
    path, sequences, want = reference
    model, _ = load_model(path, torch.float64, "cpu")
    agree(run(model, sequences, sizes, block_size), want, 1e-9)


@pytest.mark.parametrize("sizes", [[64, 64, 64], [7, 64, 1]])
def test_float32_is_close(reference: Any, sizes: list[int]) -> None:
    path, sequences, want = reference
    model, _ = load_model(path, torch.float32, "cpu")
    agree(run(model, sequences, sizes, dtype=torch.float32), want, 1e-4)


@pytest.mark.parametrize(
    "config",
    [
        {"activation_function": "gelu"},
        {"activation_function": "gelu_pytorch_tanh"},
        {"activation_function": "relu"},
        {"n_inner": 50},
        {"scale_attn_by_inverse_layer_idx": True},
        {"scale_attn_weights": False},
        {"tie_word_embeddings": False},
        {"layer_norm_epsilon": 1e-2},
        {"n_head": 1},
        {"n_head": 32},
        {"n_layer": 1, "n_embd": 48, "n_head": 6},
    ],
    ids=str,
)
def test_every_option_of_the_config(tmp_path: Path, config: dict[str, Any]) -> None:
    hf = hf_model(seed=1, **config)
    hf.save_pretrained(tmp_path)
    model, spec = load_model(tmp_path, torch.float64, "cpu")
    sequences = prompts(seed=1)
    want = expected(hf, sequences)
    agree(run(model, sequences, [7, 64, 1], 3), want, 1e-9)
    if config.keys() & MUST_MATTER and config != {"activation_function": "gelu_pytorch_tanh"}:  # the default's other name
        # On these weights the option shows: a model that ignores it gives other logits.
        ignoring = GPT2(dataclasses.replace(spec, config={k: v for k, v in spec.config.items() if k not in config})).double()
        ignoring.load_state_dict(model.state_dict())
        with torch.no_grad():
            changed = run(ignoring, sequences, [64, 64, 64])
        assert max(float((a - b).abs().max()) for a, b in zip(changed, want)) > 1e-3


def test_placement_does_not_change_a_bit(reference: Any) -> None:
    path, sequences, _ = reference
    model, _ = load_model(path, torch.float32, "cpu")
    for sizes in ([1, 1, 1], [7, 64, 1]):
        in_order = run(model, sequences, sizes, 3, seed=None, dtype=torch.float32)
        shuffled = run(model, sequences, sizes, 3, seed=9, dtype=torch.float32)
        assert all(torch.equal(a, b) for a, b in zip(in_order, shuffled))


def test_greedy_tokens_equal_generate(reference: Any) -> None:
    path, sequences, _ = reference
    from transformers import GPT2LMHeadModel

    hf = GPT2LMHeadModel.from_pretrained(path, dtype=torch.float64)
    prompt = sequences[1]
    want = hf.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), max_new_tokens=30, do_sample=False,
        eos_token_id=None, pad_token_id=0,
    )[0, len(prompt):].tolist()
    model, spec = load_model(path, torch.float64, "cpu")
    cache = KVCache(spec.num_layers, 20, spec.num_kv_heads, 4, spec.head_dim, torch.float64, "cpu").fill_(float("nan"))
    pager, tokens, got = Pager(20, 4, seed=3), list(prompt), []
    while len(got) < 30:
        batch = build_input([pager.schedule(0, tokens, logits_from=None)], 4, "cpu")
        [row] = model.logits(model(batch.input_ids, batch.positions, cache, batch.meta, attend)[batch.logits_rows])
        tokens = [int(row.argmax())]
        got += tokens
    assert got == want


def test_attention_is_far_from_uniform(reference: Any) -> None:
    """The parity above is worth something: averaging the values instead of attending gives other logits."""
    path, sequences, want = reference
    model, _ = load_model(path, torch.float64, "cpu")
    for block in model.h:
        block.attn.scale = 0.0
    got = run(model, sequences, [64, 64, 64])
    assert min(float((a - b).abs().max()) for a, b in zip(got, want)) > 1.0


def test_a_position_past_the_table_is_an_error(reference: Any) -> None:
    model, _ = load_model(reference[0], torch.float64, "cpu")
    with pytest.raises(IndexError):
        run(model, prompts([65]), [65])
