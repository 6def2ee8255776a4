"""Log-probabilities and penalties of real models against transformers: whatever the chunks, blocks, preemptions, cached prefixes and batch mates.

float64 within 1e-9, float32 within 1e-4 (SmolLM2: test_smollm2.py).
"""
import itertools
import math
from dataclasses import replace

import pytest
import torch
from llamas import random_llama
from parity import greedy, prompts_of, random_gpt2, smallest_pool
from test_sharing_end_to_end import poisoned
from transformers import RepetitionPenaltyLogitsProcessor

from paged_edu import LLM, SamplingParams
from paged_edu.attention.cache import KVCache
from paged_edu.attention.reference import attend
from paged_edu.core.paged import PagedKVManager
from paged_edu.core.scheduler import Scheduler, SchedulerConfig
from paged_edu.engine.engine import Engine
from paged_edu.engine.runner import ModelRunner
from paged_edu.sampling.logprobs import ROWS_AT_ONCE
from paged_edu.sampling.sampler import Sampler


@pytest.fixture(scope="module", params=["gpt2", "qwen2, mixed windows"])
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    return str(folder), (random_gpt2(folder) if request.param == "gpt2" else random_llama(folder, request.param))


@torch.inference_mode()
def check(output, hf, params, atol=1e-9):
    """Every entry that was asked for equals transformers' log-softmax over the same tokens, in one forward pass of the whole sequence."""
    prompt = list(output.prompt_token_ids)
    assert (output.prompt_logprobs is None) == (params.prompt_logprobs is None)
    for done in output.outputs:
        ids = [*prompt, *done.token_ids]
        table = torch.log_softmax(hf(torch.tensor([ids])).logits[0].double(), -1)
        if params.prompt_logprobs is not None:
            assert output.prompt_logprobs[0] is None
            assert len(output.prompt_logprobs) == len(prompt)
            for i in range(1, len(prompt)):
                compare(output.prompt_logprobs[i], table[i - 1], ids[i], params.prompt_logprobs, atol)
        if params.logprobs is not None:
            assert len(done.logprobs) == len(done.token_ids)
            for i, entry in enumerate(done.logprobs, len(prompt)):
                compare(entry, table[i - 1], ids[i], params.logprobs, atol)
            assert done.cumulative_logprob == pytest.approx(sum(float(table[i - 1, ids[i]]) for i in range(len(prompt), len(ids))), abs=atol * 50)


def compare(entry, expected, token, k, atol):
    assert token in entry
    assert len(entry) in (k, k + 1)
    values = [one.logprob for one in entry.values()]
    assert values == sorted(values, reverse=True)
    assert values[:k] == pytest.approx(expected.topk(k).values.tolist(), abs=atol)
    for i, one in entry.items():
        assert one.logprob == pytest.approx(float(expected[i]), abs=atol)
        better = int((expected > expected[i] + 2 * atol).sum()), int((expected >= expected[i] - 2 * atol).sum())
        assert better[0] < one.rank <= better[1]


PARAMS = [greedy(6, logprobs=3, prompt_logprobs=2), SamplingParams(max_tokens=9, seed=1, ignore_eos=True, logprobs=0, temperature=1.5),
          SamplingParams(n=3, seed=5, max_tokens=5, ignore_eos=True, logprobs=1, prompt_logprobs=0, frequency_penalty=1.0, top_k=9),
          greedy(7), greedy(4, prompt_logprobs=97)]


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_every_chunk_size_of_a_prompt(model, block_size):
    """Alignment at the borders of chunks: every size from 1 to the prompt and beyond (known fault B41)."""
    folder, hf = model
    prompt, = prompts_of((9,), 97, 2)
    params = greedy(3, logprobs=2, prompt_logprobs=2)
    with poisoned(folder, block_size=block_size, num_gpu_blocks_override=20) as llm:
        scheduler = llm.engine.scheduler
        for chunk in range(1, 11):
            scheduler.config = replace(scheduler.config, long_prefill_token_threshold=chunk)
            check(llm.generate(prompt, params, use_tqdm=False)[0], hf, params)
            check(llm.generate(prompt[:1], params, use_tqdm=False)[0], hf, params)


@pytest.mark.parametrize("options", [
    {}, {"long_prefill_token_threshold": 5}, {"max_num_batched_tokens": 7, "max_num_seqs": 5},
    {"preemption_mode": "swap", "swap_space": 0.01, "long_prefill_token_threshold": 3}, {"enable_prefix_caching": False},
    {"enable_chunked_prefill": False},
])
def test_a_mixed_batch_in_a_tiny_pool(model, options):
    folder, hf = model
    prompts = prompts_of((17, 1, 14, 25, 16), 97, 3)
    pool = max(smallest_pool(prompts, PARAMS, 4), 4 + 3 * 3)
    with poisoned(folder, block_size=4, num_gpu_blocks_override=pool, **options) as llm:
        outputs = llm.generate(prompts, PARAMS, use_tqdm=False)
        assert llm.engine.scheduler.manager.pool.num_used == 0
    assert sum(output.metrics.num_preemptions for output in outputs) > 0
    for output, params in zip(outputs, PARAMS):
        check(output, hf, params)
    with poisoned(folder, block_size=4, num_gpu_blocks_override=200) as llm:
        alone = [llm.generate(prompt, params, use_tqdm=False)[0] for prompt, params in zip(prompts, PARAMS)]
    for one, two in zip(outputs, alone):
        assert [done.token_ids for done in one.outputs] == [done.token_ids for done in two.outputs]


@pytest.mark.parametrize("manager", ["orca-max", "orca-pow2", "orca-oracle", "grow"])
def test_a_mixed_batch_under_contiguous_managers(model, manager):
    """Chunks, samples and, where runs grow, preemptions: probabilities are transformers' own, and tokens those of paging."""
    folder, hf = model
    prompts = prompts_of((17, 1, 14, 25, 16), 97, 3)
    copies = 0
    with poisoned(folder, block_size=4, num_gpu_blocks_override=32 if manager == "grow" else 48, kv_manager=manager, max_model_len=48,
                  long_prefill_token_threshold=5) as llm:
        for i, (prompt, params) in enumerate(zip(prompts, PARAMS, strict=True)):
            llm.engine.add_request(str(i), prompt, params)
        done = {}
        while llm.engine.has_unfinished_requests():
            done |= {output.request_id: output for output in llm.engine.step() if output.finished}
            copies += len(llm.engine.last_output.copies)
        outputs = [done[str(i)] for i in range(len(prompts))]
    assert copies > 0
    assert (sum(output.metrics.num_preemptions for output in outputs) > 0) == (manager == "grow")
    for output, params in zip(outputs, PARAMS):
        check(output, hf, params)
    with poisoned(folder, block_size=4, num_gpu_blocks_override=200) as llm:
        paged = llm.generate(prompts, PARAMS, use_tqdm=False)
    for one, two in zip(outputs, paged):
        assert [done.token_ids for done in one.outputs] == [done.token_ids for done in two.outputs]


def test_a_warm_cache_changes_nothing(model):
    """known fault B119"""
    folder, hf = model
    prompt, = prompts_of((9,), 97, 5)
    with poisoned(folder, block_size=4, num_gpu_blocks_override=30) as llm:
        asked = [greedy(3, prompt_logprobs=1), greedy(3, prompt_logprobs=1, logprobs=2), greedy(3, logprobs=2), greedy(3, prompt_logprobs=0)]
        outputs = [llm.generate(prompt, params, use_tqdm=False)[0] for params in asked]
        assert [output.num_cached_tokens for output in outputs] == [0, 0, 8, 0]
    for output, params in zip(outputs, asked):
        check(output, hf, params)
    assert outputs[0].prompt_logprobs == outputs[1].prompt_logprobs


def test_float32_within_its_bound(tmp_path):
    from transformers import GPT2LMHeadModel

    random_gpt2(tmp_path)
    hf = GPT2LMHeadModel.from_pretrained(tmp_path, dtype=torch.float32).eval()
    prompts = prompts_of((17, 1, 14, 25, 16), 97, 3)
    with poisoned(str(tmp_path), dtype="float32", block_size=4, num_gpu_blocks_override=13, long_prefill_token_threshold=5) as llm:
        outputs = llm.generate(prompts, PARAMS, use_tqdm=False)
    assert sum(output.metrics.num_preemptions for output in outputs) > 0
    for output, params in zip(outputs, PARAMS):
        check(output, hf, params, 1e-4)


@pytest.mark.parametrize("strength", [0.7, 1.3, 3.0])
def test_greedy_with_a_repetition_penalty_is_transformers_own(model, strength):
    folder, hf = model
    prompts = prompts_of((12, 3, 20), 97, 6)
    params = greedy(15, repetition_penalty=strength)
    with poisoned(folder, block_size=4, num_gpu_blocks_override=10) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
    assert sum(output.metrics.num_preemptions for output in outputs) > 0
    penalty = RepetitionPenaltyLogitsProcessor(strength)
    for prompt, output in zip(prompts, outputs):
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            for _ in range(15):
                ids = torch.cat([ids, penalty(ids, hf(ids).logits[:, -1]).argmax(-1, keepdim=True)], -1)
        assert list(output.outputs[0].token_ids) == ids[0, len(prompt) :].tolist()


def test_penalties_follow_their_request(model):
    """known fault B55: p ends first, q and r go on; in any order, alone, and preempted."""
    folder, _ = model
    prompts = dict(zip("pqr", prompts_of((9, 9, 9), 97, 7)))
    params = {"p": greedy(2), "q": greedy(12, repetition_penalty=2.0),
              "r": SamplingParams(temperature=1.0, seed=3, frequency_penalty=1.0, max_tokens=12, ignore_eos=True)}
    alone, preempted = {}, 0
    with poisoned(folder, block_size=4, num_gpu_blocks_override=60) as llm:
        for name in "pqr":
            alone[name] = llm.generate(prompts[name], params[name], use_tqdm=False)[0].outputs[0].token_ids
    assert len(set(alone["q"])) > len(set(alone["p"]))
    for blocks in (60, 8):
        with poisoned(folder, block_size=4, num_gpu_blocks_override=blocks) as llm:
            for order in itertools.permutations("pqr"):
                outputs = llm.generate([prompts[name] for name in order], [params[name] for name in order], use_tqdm=False)
                assert {name: output.outputs[0].token_ids for name, output in zip(order, outputs)} == alone
                preempted += sum(output.metrics.num_preemptions for output in outputs)
    assert preempted > 0


# -- a model that is a table -----------------------------------------------------------------------------------------------------------
class Bigrams:
    """A "model" whose hidden state is the token and whose logits are a table: what comes next depends on the last token only."""

    def __init__(self, table):
        self.table, self.rows = table, []

    def __call__(self, input_ids, positions, cache, meta, attend):
        return input_ids

    def logits(self, hidden):
        self.rows.append(len(hidden))
        return self.table[hidden]


def bigrams(table, budget=2048, sampler=None):
    num_vocab = len(table)
    scheduler = Scheduler(SchedulerConfig(2048, 4, budget), PagedKVManager(300, 8))
    runner = ModelRunner(Bigrams(table), KVCache(1, 300, 1, 8, 1, torch.float32, "cpu"), attend, sampler or Sampler(), torch.device("cpu"))
    return Engine(scheduler, runner, vocab_size=num_vocab)


def run(engine, prompt, params):
    engine.add_request("a", prompt, params)
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                return output


def test_the_first_is_none_and_the_rest_aligned():
    """known fault B118"""
    table = torch.tensor([[0.1, 0.6, 0.3], [0.2, 0.2, 0.6], [0.5, 0.3, 0.2]]).log()
    for budget in (1, 2, 3, 64):
        output = run(bigrams(table, max(budget, 4)), [2, 0, 1], SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, logprobs=3))
        first, second, third = output.prompt_logprobs
        assert first is None
        assert {i: one.logprob for i, one in second.items()} == pytest.approx({0: -0.693147}, abs=1e-5)
        assert {i: one.logprob for i, one in third.items()} == pytest.approx({1: -0.510826}, abs=1e-5)
        assert [math.exp(output.outputs[0].logprobs[0][i].logprob) for i in range(3)] == pytest.approx([0.2, 0.2, 0.6])
        assert list(output.outputs[0].logprobs[0]) == [2, 0, 1], "ties in order of ids"


def test_a_long_prompt_never_has_all_its_logits_at_once():
    table = torch.randn(50, 50, generator=torch.Generator().manual_seed(1))
    engine = bigrams(table)
    prompt, = prompts_of((1000,), 50)
    output = run(engine, prompt, SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1))
    expected = table.log_softmax(-1)
    assert [entry[token].logprob for entry, token in zip(output.prompt_logprobs[1:], prompt[1:])] == pytest.approx(
        [float(expected[a, b]) for a, b in itertools.pairwise(prompt)], abs=1e-5)
    assert max(engine.runner.model.rows) == ROWS_AT_ONCE
    assert sum(engine.runner.model.rows) == 1000, "each row once"


def test_a_prompt_with_a_padding_id_is_told_so():
    """known fault B58"""
    output = run(bigrams(torch.zeros(16, 16), sampler=Sampler(vocab_limit=10)), [1, 12, 3], SamplingParams(max_tokens=1, prompt_logprobs=0))
    assert output.prompt_logprobs[1] == {12: (-9999.0, 11, None, None)}
    assert output.prompt_logprobs[2][3].logprob == pytest.approx(-math.log(10))


def test_broken_logits_of_a_prompt_end_their_request():
    table = torch.zeros(5, 5)
    table[1, 1] = math.nan
    with pytest.warns(RuntimeWarning, match="the logits of a are not finite"):
        output = run(bigrams(table), [1, 2, 3], SamplingParams(max_tokens=1, prompt_logprobs=0))
    assert output.outputs[0].finish_reason == "abort"
    assert run(bigrams(table), [1, 2, 3], SamplingParams(temperature=0, max_tokens=1)).outputs[0].token_ids == (0,)


def test_texts_come_with_the_embedded_model():
    with LLM("tiny-shakespeare", num_gpu_blocks_override=40) as llm:
        chunks = list(llm.stream("ROMEO: and so", greedy(5, logprobs=2, prompt_logprobs=1)))
        last = chunks[-1]
        prompt = [entry[token].decoded_token for entry, token in zip(last.prompt_logprobs[1:], last.prompt_token_ids[1:])]
        assert "".join(prompt) == llm.tokenizer.decode(last.prompt_token_ids[1:])
        done = last.outputs[0]
        texts = [entry[token].decoded_token for entry, token in zip(done.logprobs, done.token_ids)]
        assert "".join(texts) == llm.tokenizer.decode(done.token_ids)
        assert [len(output.outputs[0].logprobs) for output in chunks] == [1, 2, 3, 4, 5]
        assert [len(output.prompt_logprobs) for output in chunks] == [len(last.prompt_token_ids)] * 5
