"""The engine on a CUDA device gives the CPU's tokens (float64, so that rounding cannot decide)."""
import pytest
import torch

from paged_edu import LLM, BeamSearchParams, SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_cuda_equals_cpu(block_size):
    prompts = ["ROMEO:", "First Citizen:\nWe are accounted poor", "O"]
    params = [SamplingParams(temperature=t, seed=3, max_tokens=24, ignore_eos=True) for t in (0, 0.8, 1.0)]
    texts = []
    for device in ("cpu", "cuda"):
        with LLM("tiny-shakespeare", device=device, dtype="float64", block_size=block_size, num_gpu_blocks_override=-(-60 // block_size)) as llm:
            outputs = llm.generate(prompts, params, use_tqdm=False)
            texts.append([o.outputs[0].token_ids for o in outputs])
    assert texts[0] == texts[1]


@pytest.mark.parametrize("dtype", ["float16", "auto"])
def test_half_precision_runs_and_memory_comes_back(dtype):
    before = torch.cuda.memory_allocated()
    with LLM("tiny-shakespeare", device="cuda", dtype=dtype) as llm:
        assert llm.memory_plan.num_blocks > 0
        assert llm.generate("ROMEO:", SamplingParams(max_tokens=8), use_tqdm=False)[0].finished
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before + (1 << 20)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_samples_and_beams_equal_the_cpus_through_swap_and_cached_prefixes(mode):
    """The pool holds little more than one of the groups, so that some step back; the swap goes over the bus."""
    prompts = ["ROMEO:", "ROMEO:\nWhat", "First Citizen:"]
    sampled = SamplingParams(n=4, temperature=0.8, seed=5, max_tokens=24, ignore_eos=True)
    beams = BeamSearchParams(beam_width=4, max_tokens=16)
    told = []
    for device in ("cpu", "cuda"):
        with LLM("tiny-shakespeare", device=device, dtype="float64", block_size=4, num_gpu_blocks_override=36, preemption_mode=mode) as llm:
            outputs = llm.generate(prompts, sampled, use_tqdm=False)
            assert sum(o.metrics.num_preemptions for o in outputs) > 0
            found = llm.beam_search(prompts, beams, use_tqdm=False)
        told.append([[c.token_ids for c in o.outputs] for o in (*outputs, *found)])
    assert told[0] == told[1]


def test_penalties_and_logprobs_equal_the_cpus():
    """Mixed with requests that ask for nothing, in chunks, in a pool that makes some step back."""
    prompts = ["ROMEO:\nWhat light through yonder window breaks?", "First Citizen:\nWe are accounted poor", "O", "JULIET:"]
    params = [
        SamplingParams(temperature=0, max_tokens=20, repetition_penalty=1.3, logprobs=5, prompt_logprobs=3),
        SamplingParams(n=2, seed=1, max_tokens=20, ignore_eos=True, frequency_penalty=0.7, presence_penalty=0.3, logprobs=0),
        SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, min_tokens=3, logit_bias={199: -100, 12: 5}, prompt_logprobs=1024),
        SamplingParams(temperature=0, max_tokens=20, ignore_eos=True),
    ]
    told = []
    for device in ("cpu", "cuda"):
        with LLM("tiny-shakespeare", device=device, dtype="float64", block_size=4, num_gpu_blocks_override=18, long_prefill_token_threshold=3) as llm:
            outputs = llm.generate(prompts, params, use_tqdm=False)
        assert sum(o.metrics.num_preemptions for o in outputs) > 0
        told.append(outputs)
    for ours, theirs in zip(*told):
        assert [c.token_ids for c in ours.outputs] == [c.token_ids for c in theirs.outputs]
        for mine, other in zip(_entries(ours), _entries(theirs), strict=True):
            assert list(mine) == list(other)
            assert [(e.rank, e.decoded_token) for e in mine.values()] == [(e.rank, e.decoded_token) for e in other.values()]
            assert [e.logprob for e in mine.values()] == pytest.approx([e.logprob for e in other.values()], abs=1e-9)


def _entries(output):
    return [*(output.prompt_logprobs or ())[1:], *(entry for c in output.outputs for entry in c.logprobs or ())]
