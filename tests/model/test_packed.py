"""Packed layers: the same numbers as a plain product's, in a model as alone; what stays as it is, and what memory is counted."""
from __future__ import annotations

import platform
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from engine.llamas import random_llama
from logits import prompts, run

from paged_edu import LLM, SamplingParams
from paged_edu.engine import build
from paged_edu.model import packed
from paged_edu.model.layers import Conv1D
from paged_edu.model.loader import load_model, resolve
from paged_edu.model.packed import PackedLinear, pack_model

CPU = torch.device("cpu")
# Asked of torch and not of `packed.available`: a layer that is wrong must not be a reason to skip its tests.
pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available() or platform.machine() != "x86_64", reason="torch has no oneDNN here")


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_it_is_served_here():
    assert packed.available()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("inside", "outside"), [(576, 960), (192, 576), (1536, 576), (37, 29), (1, 3), (64, 1)])
def test_products_are_the_plain_ones(inside, outside, bias):
    weight, b = random(outside, inside), random(outside, seed=1) if bias else None
    layer = PackedLinear(weight, b)
    exact = torch.nn.functional.linear
    for rows in (0, 1, 2, 7, 8, 33, 257):
        x = random(rows, inside, seed=2)
        want = exact(x.double(), weight.double(), None if b is None else b.double())
        assert torch.allclose(layer(x).double(), want, rtol=1e-5, atol=1e-5 * inside**0.5)
        assert layer(x).shape == (rows, outside)
    wide = random(9, 2 * inside, seed=3)
    assert torch.allclose(layer(wide[:, ::2]), exact(wide[:, ::2], weight, b), atol=1e-5 * inside), "an input with gaps"
    assert torch.allclose(layer(wide.T[:inside].T), exact(wide[:, :inside], weight, b), atol=1e-5 * inside), "a part of wider rows"


def test_a_row_that_is_not_finite_spoils_no_other():
    layer, x = PackedLinear(random(50, 70)), random(6, 70, seed=1)
    want = layer(x)
    x[2], x[4, 3] = torch.nan, torch.inf
    got = layer(x)
    assert torch.equal(got[[0, 1, 3, 5]], want[[0, 1, 3, 5]])
    assert not got[[2, 4]].isfinite().any()


def test_several_python_threads_share_a_layer():
    layer = PackedLinear(random(300, 200), random(300, seed=1))
    inputs = [random(1 + i % 40, 200, seed=i) for i in range(60)]
    want = [layer(x) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            assert all(map(torch.equal, pool.map(layer, inputs), want))


@pytest.mark.parametrize("variant", ["attention and mlp biases, gelu", "multi-query, tied", "qwen2", "qwen3", "tiny-shakespeare"])
def test_a_packed_model_is_the_same_model(variant, tmp_path, monkeypatch):
    monkeypatch.setattr(packed, "WORTH_A_COPY", 0)
    path = resolve(variant) if variant == "tiny-shakespeare" else tmp_path
    if path is tmp_path:
        random_llama(path, variant)
    (plain, _), (model, _) = (load_model(path, torch.float32, "cpu") for _ in range(2))
    before = plain.weight_bytes()
    assert pack_model(model, CPU, torch.float32)
    assert not [m for m in model.modules() if isinstance(m, torch.nn.Linear | Conv1D)]
    # A tied head has a copy of its own now; else nothing is there twice.
    tied = plain.spec.tie_word_embeddings
    assert model.weight_bytes() == before + tied * plain.embedding.weight.nbytes
    sequences = prompts()
    for size in (99, 1):
        for ours, theirs in zip(*(run(m, sequences, [size] * 3, dtype=torch.float32) for m in (model, plain))):
            assert torch.allclose(ours, theirs, atol=1e-4)


def test_a_small_tied_head_stays_the_embedding():
    model, _ = load_model(resolve("tiny-shakespeare"), torch.float32, "cpu")
    before = model.weight_bytes()
    pack_model(model, CPU, torch.float32)
    assert model.lm_head.weight is model.embedding.weight
    assert model.weight_bytes() == before


@pytest.mark.parametrize(("device", "dtype"), [("cpu", torch.float64), ("cpu", torch.bfloat16), ("meta", torch.float32)])
def test_other_types_and_devices_are_left_alone(device, dtype):
    model, _ = load_model(resolve("tiny-shakespeare"), dtype if device == "cpu" else torch.float32, "cpu")
    layers = [type(module) for module in model.modules()]
    assert not pack_model(model, torch.device(device), dtype)
    assert [type(module) for module in model.modules()] == layers


def test_without_the_operator_the_engine_serves_all_the_same(monkeypatch):
    def tokens():
        with LLM("tiny-shakespeare", num_gpu_blocks_override=16, max_model_len=64) as llm:
            packs = any(isinstance(module, PackedLinear) for module in llm.engine.runner.model.modules())
            return packs, llm.generate("ROMEO:", SamplingParams(temperature=0, max_tokens=12), use_tqdm=False)[0].outputs[0].token_ids

    packs, want = tokens()
    assert packs

    def missing(*args):
        raise NotImplementedError("Could not run 'mkldnn::_reorder_linear_weight'\nand a page more")

    monkeypatch.setattr(packed.PackedLinear, "__init__", missing)
    packed.available.cache_clear()
    try:
        assert tokens() == (False, want)
    finally:
        packed.available.cache_clear()
    assert build.pack_model is pack_model
