"""The Llama family through the whole engine equals transformers: whatever the block size, the chunks and the preemptions."""
import pytest
import torch
from llamas import VARIANTS, VOCAB, load_theirs, random_llama
from parity import check, generate, greedy, prompts_of, smallest_pool, theirs

from paged_edu import LLM

# The second and third prompts are longer than every sliding window and than llama3's original 32 tokens, and each of their requests
# ends in its second block of 64: in a pool of two, both start and one must yield.
LENGTHS = (17, 40, 50, 1, 16, 23)
COUNTS = (12, 30, 22, 20, 1, 16)



@pytest.fixture(scope="module", params=["llama3", "qwen2, mixed windows"])
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    return folder, random_llama(folder, request.param)


@pytest.mark.parametrize("chunk", [1, 7, 0])
@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_exact_in_float64_under_pressure(model, block_size, chunk):
    folder, hf = model
    prompts, params = prompts_of(LENGTHS, VOCAB), [greedy(n) for n in COUNTS]
    pool = smallest_pool(prompts, params, block_size)
    with LLM(str(folder), dtype="float64", block_size=block_size, num_gpu_blocks_override=pool, long_prefill_token_threshold=chunk,
             skip_tokenizer_init=True, attention_backend="reference") as llm:
        llm.engine.runner.cache.fill_(float("nan"))
        outputs = check(llm, hf, prompts, params)
    assert sum(o.metrics.num_preemptions for o in outputs) > 0, "the smallest pool must have preempted somebody"


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant(tmp_path, name):
    hf = random_llama(tmp_path, name, seed=3)
    with LLM(str(tmp_path), dtype="float64", block_size=3, num_gpu_blocks_override=20, skip_tokenizer_init=True,
             long_prefill_token_threshold=7) as llm:
        outputs = check(llm, hf, prompts_of((17, 1, 40, 5), VOCAB, 1), [greedy(n) for n in (12, 20, 7, 16)])
        assert sum(o.metrics.num_preemptions for o in outputs) > 0


def test_float32_stays_within_its_bound(model):
    folder, _ = model
    hf = load_theirs(folder, torch.float32)
    with LLM(str(folder), dtype="float32", num_gpu_blocks_override=5, skip_tokenizer_init=True) as llm:
        outputs, rows = generate(llm, prompts_of(LENGTHS, VOCAB), [greedy(n) for n in COUNTS])
    assert sum(o.metrics.num_preemptions for o in outputs) > 0
    for output, logits in zip(outputs, rows):
        expected = theirs(hf, output)
        assert torch.allclose(logits, expected, atol=1e-4, rtol=0), (logits - expected).abs().max()
        gaps = expected.topk(2).values
        for token, row, (first, second) in zip(output.outputs[0].token_ids, expected, gaps.tolist()):
            assert token == int(row.argmax()) or first - second < 1e-3
