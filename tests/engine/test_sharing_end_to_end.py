"""Samples, beams, cached prefixes, recomputation and swap through real models: the same tokens whatever memory does (DESIGN: equality).

Everything runs in float64 over caches poisoned with NaN, and each way in which memory can intervene is seen to have intervened.
"""
from functools import cache

import pytest
import torch
from llamas import random_llama
from parity import Spy, prompts_of, random_gpt2

from paged_edu import LLM, BeamSearchParams, SamplingParams
from paged_edu.sampling.sampler import UniformNumbers, filtered_probabilities, inverse_cdf

EOS = 96


@pytest.fixture(scope="module", params=["gpt2", "llama3"])
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return str(folder), (random_gpt2(folder) if request.param == "gpt2" else random_llama(folder, "llama3"))


def poisoned(folder, **options):
    llm = LLM(folder, **{"dtype": "float64", "skip_tokenizer_init": True} | options)
    llm.engine.runner.cache.fill_(float("nan"))
    if llm.engine.runner.cpu_cache is not None:
        llm.engine.runner.cpu_cache.fill_(float("nan"))
    return llm


@cache
@torch.inference_mode()
def sample_alone(hf, prompt, params, branch):
    """What a branch should say, from transformers' logits of its own tokens and the numbers that are its own."""
    ids = list(prompt)
    uniform = UniformNumbers()
    for _ in range(params.max_tokens):
        logits = hf(torch.tensor([ids])).logits[0, -1:].double()
        one = lambda value, dtype=torch.float64: torch.tensor([value], dtype=dtype)     # noqa: E731
        probs = filtered_probabilities(logits, one(params.temperature), one(params.top_k, torch.int64), one(params.top_p), one(params.min_p))
        ids.append(int(inverse_cdf(probs, one(uniform.at(params.seed, branch, len(ids))))))
    return tuple(ids[len(prompt):])


def counters(llm):
    scheduler = llm.engine.scheduler
    return scheduler.manager.pool.num_used + scheduler.manager.swapped.num_used, scheduler.prefix_stats


WAYS = {
    "roomy": {"num_gpu_blocks_override": 300, "enable_prefix_caching": False},
    "recompute": {"preemption_mode": "recompute", "enable_prefix_caching": False},
    "swap": {"preemption_mode": "swap", "swap_space": 0.01, "enable_prefix_caching": False},
    "auto, cached": {"preemption_mode": "auto", "swap_space": 0.01},
    "recompute, cached, chunks": {"preemption_mode": "recompute", "long_prefill_token_threshold": 5},
    "swap, a token a chunk": {"preemption_mode": "swap", "swap_space": 0.01, "enable_prefix_caching": False, "long_prefill_token_threshold": 1},
    "recompute, unchunked": {"preemption_mode": "recompute", "enable_prefix_caching": False, "enable_chunked_prefill": False},
    "host memory too small": {"preemption_mode": "swap", "swap_space": 1e-6, "enable_prefix_caching": False},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("block_size", [1, 3, 16, 256])
def test_every_sample_is_its_own_whatever_happens_to_its_blocks(model, way, block_size):
    """known fault B29, in a real model: three groups of samples in a pool that just fits the largest of them."""
    folder, hf = model
    prompts = prompts_of((9, 16, 12), 97, 4)
    params = [SamplingParams(n=n, temperature=1.3, top_k=50, seed=11 + n, max_tokens=8, ignore_eos=True) for n in (2, 4, 3)]
    pool = 16 // block_size + 4 * (8 // block_size + 2) if block_size < 256 else 5
    moves = {"out": 0, "copies": 0}
    with poisoned(folder, block_size=block_size, **{"num_gpu_blocks_override": pool} | WAYS[way]) as llm:
        execute = llm.engine.runner.execute

        def counted(output, sampling):
            moves["out"] += len(output.swap_out)
            moves["copies"] += len(output.copies)
            return execute(output, sampling)

        llm.engine.runner.execute = counted
        outputs = llm.generate(prompts, params, use_tqdm=False)
        again = llm.generate(prompts[1], params[1], use_tqdm=False)[0]
        used, stats = counters(llm)
        returning = stats.returning_hits
    preemptions = sum(o.metrics.num_preemptions for o in outputs)
    assert (preemptions > 0) == (way != "roomy")
    assert (moves["out"] > 0) == (way.startswith(("swap", "auto")))
    assert block_size == 1 or moves["copies"] > 0
    if "cached" in way and block_size < 256:
        assert stats.hits > 0
        assert "recompute" not in way or block_size == 16 or returning > 0
    assert used == 0
    for output, prompt, wanted in zip([*outputs, again], [*prompts, prompts[1]], [*params, params[1]]):
        assert [c.index for c in output.outputs] == list(range(wanted.n))
        for completion in output.outputs:
            assert completion.token_ids == sample_alone(hf, tuple(prompt), wanted, completion.index)
            assert completion.finish_reason == "length"


CONTIGUOUS = ["orca-max", "orca-pow2", "orca-oracle", "grow"]


@pytest.mark.parametrize("manager", CONTIGUOUS)
@pytest.mark.parametrize("block_size", [1, 3, 16, 256])
def test_contiguous_managers_say_the_same(model, manager, block_size):
    """Samples and beams in runs: copied at the fork, moved when they grow, recomputed when there is no room; every slot is poisoned before."""
    folder, hf = model
    prompts = prompts_of((9, 16, 12, 5), 97, 4)
    params = [SamplingParams(n=n, temperature=1.3, top_k=50, seed=11 + n, max_tokens=12, ignore_eos=True) for n in (2, 4, 3, 1)]
    beams = BeamSearchParams(beam_width=3, max_tokens=9, ignore_eos=True)
    pool = {1: 256, 3: 64, 16: 16, 256: 4}[block_size] if manager != "grow" else {1: 128, 3: 64, 16: 8, 256: 4}[block_size]
    copies = []
    with poisoned(folder, block_size=block_size, kv_manager=manager, max_model_len=40, num_gpu_blocks_override=pool) as llm:
        execute = llm.engine.runner.execute
        llm.engine.runner.execute = lambda output, sampling: copies.append(len(output.copies)) or execute(output, sampling)
        outputs = llm.generate(prompts, params, use_tqdm=False)
        sampled = sum(copies)
        found = llm.beam_search(prompts, beams, use_tqdm=False)
        report = llm.memory_report()
        llm.engine.scheduler.manager.check()
    assert report.external == report.total
    assert 0 < sampled < sum(copies)
    if manager == "grow" and block_size < 256:
        assert sum(o.metrics.num_preemptions for o in outputs) > 0
    for output, prompt, wanted in zip(outputs, prompts, params):
        for completion in output.outputs:
            assert completion.token_ids == sample_alone(hf, tuple(prompt), wanted, completion.index)
    for output, prompt in zip(found, prompts):
        expected = beams_of_transformers(hf, tuple(prompt), beams, ())
        assert [c.token_ids for c in output.outputs] == [tokens for tokens, _ in expected]


BEAMS = [
    {"length_penalty": 1.0, "early_stopping": False}, {"length_penalty": 0.0, "early_stopping": "never"},
    {"length_penalty": -0.5, "early_stopping": True}, {"length_penalty": 2.0, "early_stopping": "never"},
]


@cache
def beams_of_transformers(hf, prompt, params, ends):
    out = hf.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), do_sample=False,
        num_beams=params.beam_width, num_return_sequences=params.num_returned,
        max_new_tokens=params.max_tokens, length_penalty=params.length_penalty, early_stopping=params.early_stopping, eos_token_id=list(ends) or None,
        pad_token_id=0, return_dict_in_generate=True, output_scores=True,
    )
    results = []
    for row, score in zip(out.sequences, out.sequences_scores):
        ids = row[len(prompt):].tolist()
        end = next((i + 1 for i, token in enumerate(ids) if token in ends), len(ids))
        results.append((tuple(ids[:end]), float(score)))
    return results


@cache
def search_alone(folder, prompts, params):
    """Each prompt's search for itself in a roomy pool, and the blocks that one of them used at most."""
    outputs, most = [], 0
    with poisoned(folder, block_size=2, **WAYS["roomy"]) as llm:
        for prompt in prompts:
            llm.engine.add_request("a", prompt, params)
            while llm.engine.has_unfinished_requests():
                outputs += [o for o in llm.engine.step() if o.finished]
                most = max(most, llm.engine.scheduler.manager.pool.num_used)
    return outputs, most


@pytest.mark.parametrize("way", ["roomy", "recompute", "swap", "auto, cached", "recompute, cached, chunks"])
@pytest.mark.parametrize(("width", "options"), [(w, o) for w, o in zip((2, 4, 3, 6), BEAMS)])
def test_beams_are_those_of_transformers(model, way, width, options):
    folder, hf = model
    ends = (EOS, *range(40, 52))
    prompts = prompts_of((7, 13), 97, 9)
    params = BeamSearchParams(beam_width=width, max_tokens=9, stop_token_ids=ends, **options)
    alone, most = search_alone(folder, tuple(map(tuple, prompts)), params)
    settings = {"num_gpu_blocks_override": most + width} | WAYS[way]
    with poisoned(folder, block_size=2, **settings) as llm:
        outputs = llm.beam_search(prompts, params, use_tqdm=False)
        assert counters(llm)[0] == 0
    if way != "roomy" and width > 2:
        assert sum(o.metrics.num_preemptions for o in outputs) > 0
    for output, first, prompt in zip(outputs, alone, prompts):
        expected = beams_of_transformers(hf, tuple(prompt), params, ends)
        assert [c.token_ids for c in output.outputs] == [tokens for tokens, _ in expected] == [c.token_ids for c in first.outputs]
        for completion, (tokens, score) in zip(output.outputs, expected):
            assert completion.cumulative_logprob / len(tokens) ** params.length_penalty == pytest.approx(score, abs=2e-5)
            assert completion.finish_reason == ("stop" if tokens[-1] in ends else "length")


def test_warm_equals_cold(model):
    """A cached prefix, one that is cached whole (its last token is queried again), and a chat's next turn: the same logits."""
    folder, _ = model
    (base, other) = prompts_of((32, 21), 97, 2)
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    prompts = [base, base, base[:16], base[:17], base + other, [*base[:8], *other]]
    cached = []
    rows = []
    for caching in (False, True):
        with poisoned(folder, block_size=8, num_gpu_blocks_override=40, enable_prefix_caching=caching) as llm:
            spy = Spy(llm)
            outputs = [llm.generate(p, params, use_tqdm=False)[0] for p in prompts]
            history = [*prompts[-1], *outputs[-1].outputs[0].token_ids, 5, 6]
            outputs.append(llm.generate(history, params, use_tqdm=False)[0])
        cached.append([o.num_cached_tokens for o in outputs])
        rows.append([spy.logits[o.request_id, len(o.prompt_token_ids) + i] for o in outputs for i in range(6)])
    assert cached[0] == [0] * 7
    assert cached[1] == [0, 31, 15, 16, 32, 8, 32]
    worst = max(float((a - b).abs().max()) for a, b in zip(*rows))
    assert worst < 1e-9


def test_requests_with_different_salts_share_nothing(model):
    folder, _ = model
    (prompt,) = prompts_of((24,), 97)
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    with poisoned(folder, block_size=8, num_gpu_blocks_override=40) as llm:
        seen = []
        for salt in ("a", "b", "a", None):
            wanted = {"prompt_token_ids": prompt} | ({"cache_salt": salt} if salt else {})
            seen.append(llm.generate([wanted], params, use_tqdm=False)[0].num_cached_tokens)
        assert seen == [0, 0, 23, 0]
        assert llm.reset_prefix_cache() == 9
        assert llm.generate(prompt, params, use_tqdm=False)[0].num_cached_tokens == 0


def test_the_urgent_goes_first(model):
    folder, _ = model
    prompts = prompts_of((12, 12, 12), 97)
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    with poisoned(folder, block_size=4, num_gpu_blocks_override=5, scheduling_policy="priority") as llm:
        first = llm.generate(prompts, params, priority=[2, 0, 1], use_tqdm=False)
        times = [o.metrics.first_token_time for o in first]
        assert sorted(range(3), key=lambda i: times[i]) == [1, 2, 0]
        with pytest.raises(ValueError, match="2 priorities for 3 prompts"):
            llm.generate(prompts, params, priority=[1, 2])
    with poisoned(folder, num_gpu_blocks_override=5) as llm, pytest.raises(ValueError, match="priority=2 does nothing"):
        llm.generate(prompts, params, priority=[2, 0, 1])


def test_what_cannot_be_searched_is_refused_with_the_numbers(model):
    folder, _ = model
    with poisoned(folder, block_size=4, num_gpu_blocks_override=6, max_num_seqs=8) as llm:
        with pytest.raises(ValueError, match="its beams would be 9 sequences at once; max_num_seqs is 8"):
            llm.beam_search([1, 2, 3], BeamSearchParams(beam_width=9))
        with pytest.raises(ValueError, match="and each of the 8 branches a block of its own; the pool has 6"):
            llm.beam_search([1, 2, 3], BeamSearchParams(beam_width=8))
        with pytest.raises(TypeError, match="BeamSearchParams are for beam_search"):
            llm.generate([1, 2, 3], BeamSearchParams(beam_width=2))
        with pytest.raises(TypeError, match="must be BeamSearchParams, not SamplingParams"):
            llm.beam_search([1, 2, 3], SamplingParams())
        assert not llm.engine.has_unfinished_requests()


def test_a_beam_search_that_fills_the_pool_gives_what_it_found(model):
    folder, _ = model
    with (
        poisoned(folder, block_size=2, num_gpu_blocks_override=6) as llm,
        pytest.warns(RuntimeWarning, match="filled the pool of 6 blocks"),
    ):
        (output,) = llm.beam_search([1, 2, 3, 4], BeamSearchParams(beam_width=3, max_tokens=40, ignore_eos=True), use_tqdm=False)
    assert len(output.outputs) == 3
    assert {c.stop_reason for c in output.outputs} == {"kv_pool"}
    assert output.outputs[0].cumulative_logprob >= output.outputs[1].cumulative_logprob
