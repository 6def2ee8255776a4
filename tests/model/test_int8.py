"""int8 layers: exact sums, rows that don't depend on their neighbours, the error that 8 bits make, and where they are refused."""
from __future__ import annotations

import copy
import math

import pytest
import torch
from engine.llamas import random_llama
from logits import difference, prompts, run

from paged_edu.checks import UnsupportedError
from paged_edu.model import int8
from paged_edu.model.int8 import CODES, Int8Linear, largest_code, quantise_model, quantise_rows
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
        want = x.double() @ weight.double().T
        assert Int8Linear(weight)(x).double().sub(want).abs().max() <= 1e-5 * want.abs().max()


def test_the_error_is_that_of_the_codes():
    """Of a weight and of an input at most half a step, so the square root of the sums of squares, and no more, of an output."""
    weight, x = random(300, 400), random(50, 400, seed=1)
    steps = 1 / math.sqrt(12) * torch.tensor([weight.abs().amax(1).mean() / largest_code(), x.abs().amax(1).mean() / CODES])
    expected = float(steps.norm()) * math.sqrt(400)
    found = float((Int8Linear(weight)(x) - x @ weight.T).pow(2).mean().sqrt())
    assert found == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("largest", int8.WEIGHT_CODES)
def test_each_channel_has_its_own_scale(largest):
    weight = random(4, 60) * torch.tensor([[1e-8], [1.0], [1e8], [0.0]])
    codes, scales = quantise_rows(weight, largest)
    assert codes.abs().amax(1).tolist() == [largest, largest, largest, 0]
    assert (codes * scales[:, None] - weight).abs().amax(1).le(scales * 0.5001).all()
    assert not Int8Linear(weight, largest=64)(random(3, 60))[:, 3].any()


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
    sequences = prompts()
    for ours, theirs in zip(run(model, sequences, [99] * 3, dtype=torch.float32), run(apart, sequences, [99] * 3, dtype=torch.float32)):
        assert torch.equal(ours, theirs)


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
    got = run(model, sequences, [99] * 2, dtype=torch.float32)
    scale = max(float(rows.abs().max()) for rows in want)
    assert 0 < difference(got, want) < 0.15 * scale


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


@pytest.mark.parametrize(("beyond", "expected"), [(1e9, 127), (100, 64), (10, None)])
def test_what_the_processor_cuts_off_decides_how_large_codes_get(monkeypatch, beyond, expected):
    """A processor that cuts off products of codes beyond a size."""
    monkeypatch.setattr(int8, "_pack", lambda codes, scales: codes.float().clamp(-beyond, beyond).T)
    monkeypatch.setattr(int8, "_multiply", lambda x, packed: x @ packed)
    if expected is not None:
        assert largest_code.__wrapped__() == expected
        return
    with pytest.raises(UnsupportedError, match="does not add its products exactly"):
        largest_code.__wrapped__()
