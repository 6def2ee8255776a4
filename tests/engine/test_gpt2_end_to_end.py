"""GPT-2 through the whole engine equals transformers: whatever the block size, the chunks, the batch, and however often it was preempted."""
import pytest
import torch
from parity import check, generate, greedy, prompts_of, random_gpt2, smallest_pool, theirs

from paged_edu import LLM, SamplingParams

LENGTHS = (17, 1, 40, 5, 16, 23)
COUNTS = (12, 20, 7, 16, 1, 30)
VARIANTS = {
    "plain": {}, "exact gelu, wide mlp": {"activation_function": "gelu", "n_inner": 50}, "one head": {"n_head": 1, "n_layer": 1},
    "scaled by layer, untied": {"scale_attn_by_inverse_layer_idx": True, "tie_word_embeddings": False},
    "unscaled": {"scale_attn_weights": False, "initializer_range": 0.1, "n_embd": 48, "n_head": 3},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt2")
    return folder, random_gpt2(folder)


@pytest.mark.parametrize("chunk", [1, 7, 0])
@pytest.mark.parametrize("block_size", [1, 3, 16, 64, 256])
def test_exact_in_float64_in_mixed_batches_and_under_pressure(model, block_size, chunk):
    folder, hf = model
    prompts, params = prompts_of(LENGTHS, 97), [greedy(n) for n in COUNTS]
    common = {"dtype": "float64", "block_size": block_size, "long_prefill_token_threshold": chunk, "skip_tokenizer_init": True,
              "attention_backend": "reference"}
    with LLM(str(folder), num_gpu_blocks_override=256, **common) as llm:
        free = check(llm, hf, prompts, params)
        assert sum(o.metrics.num_preemptions for o in free) == 0
    pool = smallest_pool(prompts, params, block_size)
    with LLM(str(folder), num_gpu_blocks_override=pool, **common) as llm:
        llm.engine.runner.cache.fill_(float("nan"))
        tight = check(llm, hf, prompts, params)
        if pool > 1:
            assert sum(o.metrics.num_preemptions for o in tight) > 0, "the smallest pool must have preempted somebody"
    assert [o.outputs[0].token_ids for o in tight] == [o.outputs[0].token_ids for o in free]
    with LLM(str(folder), num_gpu_blocks_override=pool, **common) as llm:
        alone = [llm.generate(p, s, use_tqdm=False)[0] for p, s in zip(prompts, params)]
    assert [o.outputs[0].token_ids for o in alone] == [o.outputs[0].token_ids for o in free]


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant(tmp_path, name):
    hf = random_gpt2(tmp_path, seed=3, **VARIANTS[name])
    with LLM(str(tmp_path), dtype="float64", block_size=3, num_gpu_blocks_override=20, skip_tokenizer_init=True,
             long_prefill_token_threshold=7) as llm:
        outputs = check(llm, hf, prompts_of(LENGTHS[:4], 97, 1), [greedy(n) for n in COUNTS[:4]])
        assert sum(o.metrics.num_preemptions for o in outputs) > 0


def test_one_token_a_step(model):
    """The smallest budget of all: every chunk of every prompt is one token."""
    folder, hf = model
    with LLM(str(folder), dtype="float64", max_num_seqs=1, max_num_batched_tokens=1, num_gpu_blocks_override=8, skip_tokenizer_init=True) as llm:
        check(llm, hf, prompts_of((9, 3), 97), [greedy(4), greedy(3)])


def test_float32_stays_within_its_bound(model):
    folder, _ = model
    from transformers import GPT2LMHeadModel

    hf = GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32).eval()
    with LLM(str(folder), dtype="float32", num_gpu_blocks_override=4, skip_tokenizer_init=True) as llm:
        outputs, rows = generate(llm, prompts_of(LENGTHS, 97), [greedy(n) for n in COUNTS])
    assert sum(o.metrics.num_preemptions for o in outputs) > 0
    for output, logits in zip(outputs, rows):
        expected = theirs(hf, output)
        assert torch.allclose(logits, expected, atol=1e-4, rtol=0)
        gaps = expected.topk(2).values
        for token, row, (first, second) in zip(output.outputs[0].token_ids, expected, gaps.tolist()):
            assert token == int(row.argmax()) or first - second < 1e-3


def test_seeded_samples_survive_batch_mates_chunks_and_preemption(model):
    """Same seed, same tokens, in float64: alone, in company, in chunks, preempted."""
    folder, _ = model
    prompts = prompts_of(LENGTHS, 97)
    params = [SamplingParams(temperature=0.9, top_p=0.95, top_k=40, seed=s, max_tokens=n, ignore_eos=True) for s, n in enumerate(COUNTS)]
    runs, preemptions = [], []
    for options in ({"num_gpu_blocks_override": 200}, {"num_gpu_blocks_override": smallest_pool(prompts, params, 4)},
                    {"num_gpu_blocks_override": 60, "long_prefill_token_threshold": 3}):
        with LLM(str(folder), dtype="float64", block_size=4, skip_tokenizer_init=True, **options) as llm:
            outputs = llm.generate(prompts, params, use_tqdm=False)
            runs.append([o.outputs[0].token_ids for o in outputs])
            preemptions.append(sum(o.metrics.num_preemptions for o in outputs))
    with LLM(str(folder), dtype="float64", block_size=4, num_gpu_blocks_override=60, skip_tokenizer_init=True) as llm:
        runs.append([llm.generate(p, s, use_tqdm=False)[0].outputs[0].token_ids for p, s in zip(prompts, params)])
    assert runs[0] == runs[1] == runs[2] == runs[3]
    assert preemptions[0] == 0 < preemptions[1]


def test_unseeded_requests_follow_the_engine_seed(model):
    folder, _ = model

    def run(seed):
        with LLM(str(folder), seed=seed, num_gpu_blocks_override=60, skip_tokenizer_init=True) as llm:
            return [o.outputs[0].token_ids for o in llm.generate([[5, 6, 7]] * 3, SamplingParams(max_tokens=8, ignore_eos=True), use_tqdm=False)]

    first = run(0)
    assert first == run(0)
    assert first != run(1)
    assert len(set(first)) == 3, "requests of one call do not repeat each other"
