"""The engine with `attention_backend="triton"` says what it says with "reference", whatever memory does; and memory is seen to do it.

The model is small and the kernels are the shipped ones: under the interpreter where there is no GPU. Every cache is poisoned with NaN.
"""
from __future__ import annotations

from collections import Counter
from typing import Any

import ladder  # noqa: F401  (skips this file where there is no Triton)
import paged_edu.kernels.cache
import paged_edu.kernels.split
import paged_edu.kernels.unified
import pytest
import torch
from ladder import DEVICE
from llamas import VOCAB, random_llama
from parity import Spy, prompts_of, random_gpt2

from paged_edu import LLM, BeamSearchParams, SamplingParams

KERNELS = {
    paged_edu.kernels.cache: ("write_cache", "copy_blocks"), paged_edu.kernels.split: ("split_attention",),
    paged_edu.kernels.unified: ("unified_attention",),
}
PROMPTS = prompts_of((9, 3, 12), VOCAB, 1)
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
SHORT = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
BY_CHANCE = SamplingParams(temperature=1.2, top_k=20, seed=5, max_tokens=4, ignore_eos=True)
MODELS = {"llama": "grouped queries", "mistral": "mistral", "odd heads": "explicit head_dim"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    made = {}
    for name in ("llama", "mistral", "odd heads", "gpt2"):
        folder = tmp_path_factory.mktemp(name.replace(" ", "_"))
        if name == "gpt2":
            random_gpt2(folder, n_layer=2)
        else:
            random_llama(folder, MODELS[name], num_hidden_layers=2 if name == "mistral" else 1)
        made[name] = str(folder)
    return made


class Run:
    """What one engine said, and what it did on the way."""

    def __init__(self, folder: str, backend: str, work: Any, **options: Any) -> None:
        self.did: Counter[str] = Counter()
        with LLM(folder, skip_tokenizer_init=True, device=DEVICE, attention_backend=backend, **{"dtype": "float32"} | options) as llm:
            runner = llm.engine.runner
            assert runner.backend == backend
            for cache in (runner.cache, runner.cpu_cache):
                if cache is not None:
                    cache.fill_(float("nan"))
            spy, execute = Spy(llm), runner.execute

            def counted(output, sampling):
                self.did["copies"] += len(output.copies)
                self.did["swapped out"] += len(output.swap_out)
                self.did["swapped in"] += len(output.swap_in)
                self.did["steps with two or more"] += len(output.scheduled) > 1
                for s in output.scheduled:
                    self.did["queried again"] += -1 in s.slots
                    self.did["chunks"] += not s.num_samples
                    self.did["beyond the window"] += s.seq_len > 7
                return execute(output, sampling)

            runner.execute = counted
            outputs = work(llm)
            self.logits = spy.logits
            self.did["preemptions"] = sum(o.metrics.num_preemptions for o in outputs)
            self.cached = [o.num_cached_tokens for o in outputs]
            pool = llm.engine.scheduler.manager.pool
            assert pool.num_used == 0
        self.tokens = [tuple(c.token_ids for c in o.outputs) for o in outputs]


@pytest.fixture
def both(folders: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    """Run the same work on both backends, hold them to the same tokens and nearly the same logits; returns Triton's `Run`, its kernels counted."""
    calls: Counter[str] = Counter()

    def watch(module, name):
        kernel = getattr(module, name)

        def wrapper(*args, **named):
            calls[name] += 1
            return kernel(*args, **named)

        monkeypatch.setattr(module, name, wrapper)

    def run(model: str, work: Any, atol: float = 2e-4, **options: Any) -> Run:
        reference = Run(folders[model], "reference", work, **options)
        assert not calls
        found = Run(folders[model], "triton", work, **options)
        assert found.tokens == reference.tokens
        assert found.did == reference.did
        assert found.cached == reference.cached
        assert found.logits.keys() == reference.logits.keys()
        for key, logits in found.logits.items():
            torch.testing.assert_close(logits, reference.logits[key], rtol=0, atol=atol)
        assert calls["write_cache"] > 0
        assert calls["write_cache"] == calls["split_attention"] + calls["unified_attention"]
        found.did.update(calls)
        return found

    for module, names in KERNELS.items():
        for name in names:
            watch(module, name)
    return run


def three(llm: LLM) -> Any:
    return llm.generate(PROMPTS, GREEDY, use_tqdm=False)


def three_short(llm: LLM) -> Any:
    return llm.generate(PROMPTS, SHORT, use_tqdm=False)


def test_three_requests(both) -> None:
    """Prompts go to rung 3 and decode to rung 2."""
    run = both("llama", three_short, block_size=16, num_gpu_blocks_override=9)
    assert run.did["split_attention"] == 2
    assert run.did["unified_attention"] == 1
    assert run.did["copy_blocks"] == 0


def test_a_prompt_that_is_cached_whole(both) -> None:
    """Its last token is queried again, with slot -1."""
    prompt = prompts_of((8,), VOCAB, 2)[0]
    run = both("llama", lambda llm: [llm.generate(prompt, SHORT, use_tqdm=False)[0] for _ in range(2)], block_size=4, num_gpu_blocks_override=9)
    assert run.cached == [0, 7]
    assert run.did["queried again"] == 1
    assert run.tokens[0] == run.tokens[1]


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_samples_of_one_prompt_copy_the_block_that_they_share(both, kv_cache_dtype: str) -> None:
    """Two of three copy before they write, both at once, by the copy kernel: a launch a stack."""
    params = SamplingParams(n=3, temperature=1.2, top_k=20, seed=5, max_tokens=3, ignore_eos=True)
    run = both("llama", lambda llm: llm.generate(PROMPTS[0], params, use_tqdm=False), block_size=4, num_gpu_blocks_override=40,
               kv_cache_dtype=kv_cache_dtype)
    assert run.did["copies"] == 2
    assert run.did["copy_blocks"] == (2 if kv_cache_dtype == "auto" else 4)
    assert len(set(run.tokens[0])) == 3


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_preemption(both, mode: str) -> None:
    run = both("llama", three, block_size=4, num_gpu_blocks_override=7, enable_prefix_caching=False, preemption_mode=mode, swap_space=0.01)
    assert run.did["preemptions"] > 0
    assert (run.did["swapped out"] > 0) == (run.did["swapped in"] > 0) == (mode == "swap")


def test_chunks_beside_decode(both) -> None:
    run = both("odd heads", lambda llm: llm.generate([*PROMPTS, prompts_of((30,), VOCAB, 3)[0]], SHORT, use_tqdm=False),
               block_size=3, num_gpu_blocks_override=40, max_num_batched_tokens=12, max_num_seqs=4)
    assert run.did["chunks"] >= 3
    assert run.did["steps with two or more"] >= 4
    assert min(run.did["split_attention"], run.did["unified_attention"]) >= 2


def test_a_sliding_window(both) -> None:
    """Of 7 tokens, in a model of two layers."""
    run = both("mistral", three_short, block_size=2, num_gpu_blocks_override=20, long_prefill_token_threshold=5)
    assert run.did["beyond the window"] >= 6


def test_beam_search(both) -> None:
    params = BeamSearchParams(beam_width=3, max_tokens=4, ignore_eos=True)
    run = both("llama", lambda llm: llm.beam_search(PROMPTS[:2], params, use_tqdm=False), block_size=4, num_gpu_blocks_override=40)
    assert run.did["copies"] > 0
    assert run.did["copy_blocks"] > 0
    assert [len(tokens) for tokens in run.tokens] == [3, 3]


def test_gpt2(both) -> None:
    run = both("gpt2", lambda llm: llm.generate(PROMPTS, BY_CHANCE, use_tqdm=False), block_size=16, num_gpu_blocks_override=9)
    assert run.did["split_attention"] == 6


def test_int8_under_pressure(both) -> None:
    """Codes and scales are written by the kernel, swapped and read."""
    run = both("llama", three, block_size=4, num_gpu_blocks_override=7, enable_prefix_caching=False, preemption_mode="swap", swap_space=0.01,
               kv_cache_dtype="int8")
    assert run.did["swapped in"] > 0


def test_int8_is_in_use(folders) -> None:
    options = {"block_size": 16, "num_gpu_blocks_override": 9}
    exact, coded = (Run(folders["llama"], "triton", three_short, **options, kv_cache_dtype=kind) for kind in ("auto", "int8"))
    common = exact.logits.keys() & coded.logits.keys()
    assert max((exact.logits[key] - coded.logits[key]).abs().max() for key in common) > 1e-2


def test_fp16(both) -> None:
    """The same tokens here, though products of weights are rounded to 11 bits on both."""
    run = both("llama", three_short, atol=0.25, block_size=16, num_gpu_blocks_override=9, dtype="float16")
    assert run.did["unified_attention"] == 1


def test_a_refusal_reaches_the_user(folders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match=r"attention_backend='triton' can't be used: device cpu has no Triton; .*TRITON_INTERPRET=1"):
        LLM(folders["llama"], skip_tokenizer_init=True, device="cpu", attention_backend="triton", num_gpu_blocks_override=4)
