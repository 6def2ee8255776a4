"""quantization="int8" through the engine: the same tokens whatever shares a batch, close to float32's, the memory that it takes, and refusals."""
from __future__ import annotations

import json
import math

import pytest
import torch
from parity import generate, greedy

from paged_edu import LLM, SamplingParams
from paged_edu.bench.perplexity import Options, measure
from paged_edu.checks import UnsupportedError
from paged_edu.cli import main
from paged_edu.model import int8

pytestmark = pytest.mark.skipif(int8.ENGINE not in torch.backends.quantized.supported_engines, reason="torch has no x86 engine here")
NAME = "tiny-shakespeare"
TEXTS = [
    "ROMEO:\nWhat light", "JULIET:\nO Romeo", "KING HENRY:\nOnce more unto the breach",
    "First Citizen:\nBefore we proceed any further, hear me speak.",
]
MORE = "\nMENENIUS:\nWhat work's, my countrymen, in hand? where go you\nWith bats and clubs? The matter? speak, I pray you.\n"


def quantised(**options):
    return LLM(NAME, quantization="int8", **({"num_gpu_blocks_override": 64} | options))


@pytest.fixture(scope="module")
def alone():
    """Tokens of each text on its own, whole, on an engine without a prefix cache."""
    with quantised(enable_prefix_caching=False) as llm:
        return [llm.generate(text, greedy(24), use_tqdm=False)[0].outputs[0].token_ids for text in TEXTS]


def tokens(outputs):
    return [output.outputs[0].token_ids for output in outputs]


def test_logits_have_the_same_bits_in_a_batch(alone):
    with quantised(enable_prefix_caching=False) as llm:
        _, together = generate(llm, TEXTS, [greedy(24)] * len(TEXTS))
        for text, rows in zip(TEXTS, together):
            assert torch.equal(generate(llm, [text], [greedy(24)])[1][0], rows)


def test_batches_chunks_hits_and_preemption_give_the_same_tokens(alone):
    with quantised(enable_prefix_caching=False) as llm:
        assert tokens(llm.generate(TEXTS, greedy(24), use_tqdm=False)) == alone
    with quantised(max_num_seqs=4, max_num_batched_tokens=7, enable_prefix_caching=False) as llm:
        assert tokens(llm.generate(TEXTS, greedy(24), use_tqdm=False)) == alone
    with quantised(block_size=4) as llm:
        llm.generate(TEXTS, greedy(1), use_tqdm=False)
        outputs = llm.generate(TEXTS, greedy(24), use_tqdm=False)
        assert tokens(outputs) == alone
        assert all(output.num_cached_tokens for output in outputs)
    for mode in ("recompute", "swap"):
        with quantised(block_size=4, num_gpu_blocks_override=24, preemption_mode=mode, enable_prefix_caching=False) as llm:
            outputs = llm.generate(TEXTS, greedy(24), use_tqdm=False)
            assert tokens(outputs) == alone
            assert sum(output.metrics.num_preemptions for output in outputs) > 0


def test_the_plan_counts_the_codes_and_float32_is_gone():
    with LLM(NAME, num_gpu_blocks_override=8) as plain, quantised(num_gpu_blocks_override=8) as llm:
        assert llm.memory_plan.weight_bytes < 0.4 * plain.memory_plan.weight_bytes
        model = llm.engine.runner.model
        assert sum(p.numel() for p in model.parameters()) < 0.11 * plain.engine.runner.model.num_weights()
        assert model.weight_bytes() == llm.memory_plan.weight_bytes


def test_perplexity_is_at_most_4_percent_higher(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(TEXTS) + MORE * 8, encoding="utf-8")
    plain, small = measure(Options(path, NAME, ("auto",), window=128, windows=3, quantizations=("none", "int8")))["rows"]
    assert (plain["quantization"], small["quantization"]) == (None, "int8")
    assert plain["perplexity"] != small["perplexity"]
    assert small["ratio"] <= 1.04
    assert small["weight_bytes"] < 0.4 * plain["weight_bytes"]
    assert math.isfinite(small["perplexity"])


def test_it_goes_with_an_int8_cache_beams_and_seeds():
    with quantised(kv_cache_dtype="int8") as llm:
        params = SamplingParams(n=2, seed=3, max_tokens=8, logprobs=2)
        first, second = (llm.generate(batch, params, use_tqdm=False)[0] for batch in (TEXTS[0], TEXTS))
        assert [o.token_ids for o in first.outputs] == [o.token_ids for o in second.outputs]


@pytest.mark.parametrize(("options", "message"), [
    ({"dtype": "float64"}, "computes in float32, not 'float64'"), ({"dtype": "bfloat16"}, "computes in float32, not 'bfloat16'"),
])
def test_what_is_refused(options, message):
    with pytest.raises(UnsupportedError, match=f"quantization='int8' {message}"):
        quantised(**options)


def test_a_machine_without_the_engine_is_refused_before_anything_is_loaded(monkeypatch):
    monkeypatch.setattr(int8, "ENGINE", "vax")
    monkeypatch.setattr("paged_edu.engine.build.load_model", lambda *_: pytest.fail("loaded"))
    with pytest.raises(UnsupportedError, match="needs torch's quantised engine 'vax'"):
        quantised()


def test_the_commands_take_it(capsys):
    common = ["generate", "ROMEO:", "--max-tokens", "4", "--temperature", "0", "--json"]
    assert main([*common, "--quantization", "int8"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])
    assert main([*common, "--quantization", "int3"]) == 2
    assert "quantization must be one of None, 'int8', not 'int3'" in capsys.readouterr().err
    assert main([*common, "--quantization", "int8", "--dtype", "float64"]) == 2
    assert "quantization='int8' computes in float32" in capsys.readouterr().err
