"""Compiled operations between the products: torch's numbers, whatever the shapes; rows that know nothing of each other; who gets them."""
from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from engine.llamas import random_llama

from paged_edu import LLM, SamplingParams
from paged_edu.attention import cpu
from paged_edu.model import fused
from paged_edu.model.fused import fuse_model
from paged_edu.model.int8 import _TINY, Int8Linear
from paged_edu.model.loader import load_model
from paged_edu.model.rope import rotate

pytest.importorskip("numba")
CPU = torch.device("cpu")
ROWS = [0, 1, 7, 8, 9, 33, 400]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("width", [1, 3, 64, 575, 576])
@pytest.mark.parametrize("rows", ROWS)
def test_add_and_norm(rows, width):
    x, delta, weight = random(rows, width), random(rows, width, seed=1), random(width, seed=2)
    for added in (None, delta, random(rows, 2 * width, seed=1)[:, :width]):
        total = x if added is None else x + added
        want = F.rms_norm(total.double(), (width,), weight.double(), 1e-5)
        mine = x.clone()
        stream, y = fused.add_norm(mine, added, weight, 1e-5)
        assert stream.data_ptr() == mine.data_ptr()
        assert torch.equal(stream, total)
        assert torch.allclose(y.double(), want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dim", [2, 6, 64, 80])
@pytest.mark.parametrize("rows", ROWS)
def test_heads_are_turned(rows, dim):
    angles = random(rows, 1, dim // 2, seed=1)
    x = random(rows, 5, dim)
    want = torch.cat((rotate(x[:, :4], (angles.cos(), angles.sin())), x[:, 4:]), dim=1)
    fused.turn(x, 4, angles.cos(), angles.sin())
    assert torch.allclose(x, want, atol=1e-6)
    assert torch.equal(x[:, 4:], want[:, 4:]), "values stay as they are"


@pytest.mark.parametrize("inner", [1, 5, 1536])
@pytest.mark.parametrize("rows", ROWS)
def test_gate(rows, inner):
    x = random(rows, 2 * inner) * 30
    if rows:
        x[0, 0] = -200.0
    want = F.silu(x[:, :inner].double()) * x[:, inner:].double()
    assert torch.allclose(fused.silu_gate(x).double(), want, rtol=2e-6, atol=1e-30)


@pytest.mark.parametrize("width", [1, 17, 576])
@pytest.mark.parametrize("rows", ROWS)
def test_scales_have_torch_s_bits(rows, width):
    x = random(rows, width) * 10.0 ** torch.arange(rows)[:, None].remainder(9)
    if rows > 1:
        x[1] = 0
    want = x.abs().amax(-1, keepdim=True).clamp_min(_TINY)
    y, scale = fused.scale_rows(x, _TINY)
    assert torch.equal(scale, want)
    assert torch.equal(y, x / want)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_spoils_no_other(bad):
    x = random(20, 64)
    x[5, 9] = bad
    layer = Int8Linear(random(48, 64, seed=1))
    plain = layer(x)
    layer.fused = True
    y = layer(x)
    assert torch.equal(torch.cat((y[:5], y[6:])), torch.cat((plain[:5], plain[6:])))
    assert not y[5].isfinite().any()
    for result in (fused.add_norm(x.clone(), None, torch.ones(64), 1e-5)[1], fused.silu_gate(x)):
        assert result[[i for i in range(20) if i != 5]].isfinite().all()
        assert not result[5].isfinite().all()


def test_a_row_has_the_same_bits_alone_and_on_any_number_of_threads():
    x, gates, weight = random(300, 576), random(300, 3072, seed=1), random(576, seed=2)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append((fused.add_norm(x.clone(), x, weight, 1e-5)[1], fused.silu_gate(gates)))
    finally:
        torch.set_num_threads(before)
    for norm, gate in found[1:]:
        assert torch.equal(norm, found[0][0])
        assert torch.equal(gate, found[0][1])
    for row in (0, 13, 299):
        alone = x[row : row + 1]
        assert torch.equal(fused.add_norm(alone.clone(), alone, weight, 1e-5)[1][0], found[0][0][row])
        assert torch.equal(fused.silu_gate(gates[row : row + 1])[0], found[0][1][row])


@pytest.mark.parametrize(("device", "dtype"), [("meta", torch.float32), ("cpu", torch.float64), ("cpu", torch.bfloat16)])
def test_other_models_keep_torch_s_operations(tmp_path, device, dtype):
    random_llama(tmp_path, "grouped queries")
    model = load_model(tmp_path, torch.float32, CPU)[0]
    assert not fuse_model(model, torch.device(device), dtype)
    assert not any(getattr(module, "fused", False) for module in model.modules())


def test_without_numba_torch_s_operations_serve(tmp_path, monkeypatch):
    random_llama(tmp_path, "grouped queries")
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    prompts = [[1, 2, 3], [4] * 20]

    def tokens(served: bool) -> list[list[int]]:
        with LLM(str(tmp_path), skip_tokenizer_init=True, attention_backend="reference") as llm:
            modules = [module for module in llm.engine.runner.model.modules() if hasattr(module, "fused")]
            assert modules
            assert all(module.fused == served for module in modules)
            return [output.outputs[0].token_ids for output in llm.generate(prompts, params)]

    want = tokens(True)
    monkeypatch.setattr(cpu, "why_not_here", lambda: "numba is not there")
    assert tokens(False) == want
