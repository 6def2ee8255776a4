"""Helpers of the parity tests: random GPT-2 models saved by transformers, and an engine whose sampled logits are kept."""
from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from paged_edu import LLM, SamplingParams


def random_gpt2(folder, *, seed=0, dtype=torch.float64, **options):
    """A small GPT-2 with weights large enough for attention to be far from uniform; saved in float32, returned in ``dtype``."""
    config = GPT2Config(**({"vocab_size": 97, "n_positions": 96, "n_embd": 32, "n_layer": 3, "n_head": 4, "bos_token_id": 0, "eos_token_id": 96,
                            "initializer_range": 0.25} | options))
    torch.manual_seed(seed)
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or ".ln_" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    return GPT2LMHeadModel.from_pretrained(folder, dtype=dtype).eval()


class Spy:
    """Wraps the sampler of an LLM and keeps the logits of every sampled position: ``logits[request_id, position]`` ``[V]``."""

    def __init__(self, llm: LLM):
        self.logits: dict[tuple[str, int], torch.Tensor] = {}
        sampler = llm.engine.runner.sampler
        inner = sampler.sample

        def sample(logits, rows):
            for i, row in enumerate(rows):
                self.logits[row.request_id, row.position] = logits[i].clone()
            return inner(logits, rows)

        sampler.sample = sample


def smallest_pool(prompts, params, block_size):
    """Blocks of the request that needs most, alone: the smallest pool in which each of them can end by itself."""
    return max(-(-(len(p) + s.max_tokens - 1) // block_size) for p, s in zip(prompts, params))


def prompts_of(lengths, vocab, seed=0):
    g = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocab, (n,), generator=g).tolist() for n in lengths]


def generate(llm, prompts, params):
    """``(outputs, logits a request: [num outputs, V])``."""
    spy = Spy(llm)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    rows = [
        torch.stack([spy.logits[o.request_id, len(o.prompt_token_ids) + i] for i in range(len(o.outputs[0].token_ids))]) for o in outputs]
    return outputs, rows


@torch.inference_mode()
def theirs(model, output):
    """transformers' logits for the same tokens, in one forward pass over the whole sequence: ``[num outputs, V]``."""
    ids = [*output.prompt_token_ids, *output.outputs[0].token_ids]
    logits = model(torch.tensor([ids])).logits[0]
    return logits[len(output.prompt_token_ids) - 1 : len(ids) - 1]


def check(llm, hf, prompts, params, atol=1e-9):
    """Generate, and compare logits and (greedy) tokens with transformers'; nothing stays in the pool. Returns the outputs."""
    outputs, rows = generate(llm, prompts, params)
    for output, logits in zip(outputs, rows):
        expected = theirs(hf, output)
        assert torch.allclose(logits, expected, atol=atol, rtol=0), (logits - expected).abs().max()
        assert list(output.outputs[0].token_ids) == expected.argmax(-1).tolist()
        assert output.outputs[0].finish_reason == "length"
    assert llm.engine.scheduler.manager.pool.num_used == 0
    return outputs


def greedy(count, **options):
    return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, **options)
