"""int8 layers: exact sums, rows that don't depend on their neighbours, the error that 8 bits make, and where they are refused."""
from __future__ import annotations

import copy
import math

import pytest
import torch
from engine.llamas import random_llama
from logits import prompts, run

from paged_edu.checks import UnsupportedError
from paged_edu.model import int8
from paged_edu.model.int8 import CODES, Int8Linear, adds_pairs_in_16_bits, quantise_model, quantise_rows
from paged_edu.model.layers import Conv1D
from paged_edu.model.loader import load_model, resolve

pytestmark = pytest.mark.skipif(int8.ENGINE not in torch.backends.quantized.supported_engines, reason="torch has no x86 engine here")
SHAPES = [(576, 960), (192, 576), (1536, 576), (37, 29), (1, 3), (64, 1)]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("inside", "outside"), SHAPES)
def test_a_rows_bits_do_not_depend_on_the_batch(inside, outside):
    layer = Int8Linear(random(outside, inside), random(outside, seed=1))
    x = random(70, inside, seed=2) * torch.logspace(-6, 6, 70)[:, None]
    whole = layer(x)
    for parts in (1, 7, 32, 69):
        assert torch.equal(torch.cat([layer(part) for part in x.split(parts)]), whole), parts
    order = torch.randperm(70, generator=torch.Generator().manual_seed(3))
    assert torch.equal(layer(x[order]), whole[order])
    threads = torch.get_num_threads()
    try:
        for number in (2, 3):
            torch.set_num_threads(number)
            assert torch.equal(layer(x), whole), f"{number} threads"
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(("inside", "outside"), SHAPES)
def test_the_sums_are_exact(inside, outside):
    """The largest codes everywhere: where products are added in 16 bits, this is what would be cut off."""
    for sign in (1, -1):
        weight = torch.full((outside, inside), 0.5)
        weight[::2] *= -1
        x = torch.full((5, inside), 3.0 * sign)
        x[1, ::2] *= -1
        codes, scales = quantise_rows(weight, adds_pairs_in_16_bits())
        want = x.double() @ (codes * scales[:, None]).double().T
        assert Int8Linear(weight)(x).double().sub(want).abs().max() <= 1e-5 * want.abs().max()


def test_the_error_is_that_of_the_codes():
    """Of a weight and of an input at most half a step, so the square root of the sums of squares, and no more, of an output."""
    weight, x = random(300, 400), random(50, 400, seed=1)
    steps = 1 / math.sqrt(12) * torch.tensor([quantise_rows(weight, adds_pairs_in_16_bits())[1].mean(), x.abs().amax(1).mean() / CODES])
    expected = float(steps.norm()) * math.sqrt(400)
    found = float((Int8Linear(weight)(x) - x @ weight.T).pow(2).mean().sqrt())
    assert found == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("pairs", [False, True])
def test_each_channel_has_its_own_scale(pairs):
    weight = random(4, 61) * torch.tensor([[1e-8], [1.0], [1e8], [0.0]])
    codes, scales = quantise_rows(weight, pairs)
    assert codes.abs().amax(1).tolist() == [127, 127, 127, 0] or pairs
    assert (codes * scales[:, None] - weight).abs().amax(1).le(scales * 0.5001).all()
    assert not Int8Linear(weight, pairs=pairs)(random(3, 61))[:, 3].any()


def test_no_pair_of_bounded_weights_leaves_16_bits():
    weight = random(2000, 64)
    weight[:500] = weight[:500].sign()
    weight[500:1000] = weight[500:1000].abs()
    full, bounded = (quantise_rows(weight, pairs) for pairs in (False, True))
    products = [255 * (codes.int().clamp_min(0)[:, ::2] + codes.int().clamp_min(0)[:, 1::2]) for codes, _ in (full, bounded)]
    assert products[0].max() == 255 * 254
    assert 255 * 127 <= products[1].max() <= 255 * 128 <= 2**15 - 1
    assert 1.1 < (bounded[1] / full[1])[1000:].mean() < 1.6
    assert (bounded[1] / full[1]).max() == 2


def test_rows_of_nothing_and_rows_that_are_not_finite():
    layer = Int8Linear(random(8, 16), torch.arange(8.0))
    x = random(4, 16, seed=1)
    x[0], x[1, 3], x[2, 3] = 0, math.nan, math.inf
    y = layer(x)
    assert y[0].tolist() == list(range(8))
    assert not y[1:3].isfinite().any()
    assert torch.equal(y[3], layer(x[3:])[0])
    assert layer(x[:0]).shape == (0, 8)
    assert layer(torch.full((1, 16), 1e-42)).isfinite().all()


def test_torchs_own_choice_of_an_engine_stays():
    before = torch.backends.quantized.engine
    other = next(engine for engine in torch.backends.quantized.supported_engines if engine not in ("none", before))
    try:
        torch.backends.quantized.engine = other
        Int8Linear(random(8, 16))(random(1, 16))
        assert torch.backends.quantized.engine == other
    finally:
        torch.backends.quantized.engine = before


@pytest.mark.parametrize("variant", ["attention and mlp biases, gelu", "multi-query, tied", "qwen2", "qwen3"])
def test_joined_layers_are_the_same_layers_side_by_side(variant, tmp_path):
    random_llama(tmp_path, variant)
    model, _ = load_model(tmp_path, torch.float32, "cpu")
    apart = copy.deepcopy(model)
    for module in apart.modules():
        if hasattr(module, "JOINED"):
            module.JOINED = {}
    quantise_model(model)
    quantise_model(apart)
    assert isinstance(model.layers[0].self_attn.qkv_proj, Int8Linear)
    assert isinstance(apart.layers[0].self_attn.q_proj, Int8Linear)
    x = random(5, model.spec.hidden_size)
    for block, other in zip(model.layers, apart.layers):
        ours, theirs = block.self_attn, other.self_attn
        assert torch.equal(ours.qkv_proj(x), torch.cat([theirs.q_proj(x), theirs.k_proj(x), theirs.v_proj(x)], 1))
        assert torch.equal(block.mlp(x), other.mlp(x))


@pytest.mark.parametrize("variant", ["gpt2", "grouped queries"])
def test_a_model_of_int8_layers_is_nearly_the_same_model(variant, tmp_path):
    folder = resolve("tiny-shakespeare")
    if variant != "gpt2":
        random_llama(folder := tmp_path, variant)
    model, _ = load_model(folder, torch.float32, "cpu")
    embedding, size, number = model.embedding.weight.clone(), model.weight_bytes(), model.num_weights()
    sequences = prompts([40, 9])
    want = run(model, sequences, [99] * 2, dtype=torch.float32)
    quantise_model(model)
    assert not [m for m in model.modules() if isinstance(m, torch.nn.Linear | Conv1D)]
    assert torch.equal(model.embedding.weight, embedding)
    assert model.weight_bytes() < 0.6 * size
    assert model.num_weights() == number + (embedding.numel() if variant == "gpt2" else 0)      # a tied head is codes beside the embedding
    got, want = torch.cat(run(model, sequences, [99] * 2, dtype=torch.float32)), torch.cat(want)
    assert 0 < (got - want).norm() < 0.1 * want.norm()


@pytest.mark.parametrize("variant", ["tiny-shakespeare", "attention and mlp biases, gelu", "grouped queries", "qwen3"])
def test_a_sequences_bits_do_not_depend_on_the_batch(variant, tmp_path):
    """Logits of three sequences side by side and one by one, whole and token by token."""
    folder = resolve(variant) if variant == "tiny-shakespeare" else tmp_path
    if folder is tmp_path:
        random_llama(folder, variant)
    model, _ = load_model(folder, torch.float32, "cpu")
    quantise_model(model)
    sequences = prompts()
    for size in (99, 1):
        together = run(model, sequences, [size] * 3, dtype=torch.float32)
        for tokens, rows in zip(sequences, together):
            assert torch.equal(run(model, [tokens], [size], dtype=torch.float32)[0], rows)


# -- where it is refused -----------------------------------------------------------------------------------------------------------
def test_devices_and_types_that_are_not_served():
    with pytest.raises(UnsupportedError, match="quantization='int8' is served on a CPU only, not on 'cuda:1'"):
        int8.check_served(torch.device("cuda:1"), torch.float32)
    with pytest.raises(UnsupportedError, match="quantization='int8' computes in float32, not 'bfloat16'"):
        int8.check_served(torch.device("cpu"), torch.bfloat16)
    int8.check_served(torch.device("cpu"), torch.float32)


def test_a_machine_without_the_engine(monkeypatch):
    monkeypatch.setattr(int8, "ENGINE", "vax")
    monkeypatch.setattr(int8.platform, "machine", lambda: "aarch64")
    with pytest.raises(UnsupportedError, match=r"needs torch's quantised engine 'vax'; torch \S+ on this aarch64 has .*: leave quantization out"):
        int8.check_served(torch.device("cpu"), torch.float32)


@pytest.mark.parametrize(("beyond", "expected"), [(1e9, False), (2**15 - 1, True), (2**14, None)])
def test_what_the_processor_cuts_off_decides_about_pairs(monkeypatch, beyond, expected):
    """A processor that cuts the sum of two products off beyond a size; inputs are stored with 128 added, which is taken off afterwards."""
    def multiply(x, packed):
        products = ((x * CODES).round() + 128)[:, None] * packed
        return ((products[:, :, ::2] + products[:, :, 1::2]).clamp(-beyond, beyond).sum(2) - 128 * packed.sum(1)) / CODES

    monkeypatch.setattr(int8, "_pack", lambda codes, scales: codes.float())
    monkeypatch.setattr(int8, "_multiply", multiply)
    if expected is not None:
        assert adds_pairs_in_16_bits.__wrapped__() is expected
        return
    with pytest.raises(UnsupportedError, match="does not add its products exactly"):
        adds_pairs_in_16_bits.__wrapped__()
