"""Beam search equals transformers' own, on random models whose beams end, compete and overtake each other."""
import itertools
from collections import Counter
from functools import cache

import pytest
import torch
from beam_driving import Search, random_table
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from paged_edu.sampling.beam import BeamSearchParams

PENALTIES = [-1, 0.0, 0.6, 1.0, 2.0]
MODELS = [("gpt2", 11), ("gpt2", 37), ("llama", 23), ("llama", 60)]


@cache
def their_model(kind, vocab, seed):
    """Float64; weights so large that attention and the next token are far from uniform."""
    if kind == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(vocab_size=vocab, n_embd=16, n_layer=1, n_head=2, n_positions=32, bos_token_id=None, eos_token_id=None))
    else:
        model = LlamaForCausalLM(LlamaConfig(
            vocab_size=vocab, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
            max_position_embeddings=32, rope_theta=50.0, bos_token_id=None, eos_token_id=None, tie_word_embeddings=True))
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.45 * torch.randn(p.shape, generator=g) + (p.dim() == 1))
    return model.double().eval()


def their_logprobs(model, prompt):
    def logprobs(histories):
        with torch.no_grad():
            return model(torch.tensor([prompt + tokens for tokens in histories]), use_cache=False).logits[:, -1].float().log_softmax(-1)
    return logprobs


def their_results(model, prompt, params, end_ids):
    """[(output tokens, score)]. Width 1 is greedy search in ``generate``, so their beam search is named."""
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), num_beams=params.beam_width, num_return_sequences=params.num_returned, do_sample=False,
        length_penalty=params.length_penalty, early_stopping=params.early_stopping, max_new_tokens=params.max_tokens,
        min_new_tokens=params.min_tokens or None, eos_token_id=list(end_ids) or None, pad_token_id=0, return_dict_in_generate=True,
        output_scores=True, custom_generate=type(model)._beam_search)
    lengths = (out.beam_indices >= 0).sum(-1).tolist()
    return [(tuple(row[len(prompt):][:n]), s) for row, n, s in zip(out.sequences.tolist(), lengths, out.sequences_scores.tolist())]


def is_near_tie(params, logprobs, end_ids):
    """Whether noise of the size of float32's rounding, which adds up in theirs and not in ours, changes the result."""
    def noisy(seed):
        def logprobs_and_noise(histories):
            exact = logprobs(histories).double()
            return exact + 1e-6 * random_table(seed, exact.shape[-1], 1.0)(histories).clamp(-3, 0)
        return logprobs_and_noise
    return len({tuple(r[0] for r in Search(params, noisy(seed), end_ids).results) for seed in range(10)}) > 1


@pytest.mark.slow
@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("width", range(1, 7))
def test_equal_to_transformers(width, early_stopping):
    seen = Counter()
    for case, (penalty, num_ends, (kind, vocab)) in enumerate(itertools.product(PENALTIES, [0, 1, 2], MODELS)):
        if case % 2 == width % 2:
            continue                                        # half of the grid for each width
        model = their_model(kind, vocab, case % 4 // 2)
        g = torch.Generator().manual_seed(1000 * case + width)
        prompt = tuple(torch.randint(vocab, (1 + case % 5,), generator=g).tolist())
        logprobs = their_logprobs(model, prompt)
        free = Search(BeamSearchParams(beam_width=max(width, 2), max_tokens=4), logprobs)
        common = Counter(token for tokens, *_ in free.finished for token in tokens).most_common(4)
        end_ids = [token for token, _ in common[case % 3 % 2 :][:num_ends]]            # tokens that a beam does reach
        params = BeamSearchParams(beam_width=width, max_tokens=4 + case % 7, length_penalty=penalty, early_stopping=early_stopping,
                                  min_tokens=max(case % 6 - 2, 0) if num_ends else 0, n=None if case % 3 else (width + 1) // 2)
        ours, theirs = Search(params, logprobs, end_ids), their_results(model, prompt, params, end_ids)
        seen["searches"] += 1
        if [r[0] for r in ours.results] != [r[0] for r in theirs] and is_near_tie(params, logprobs, end_ids):
            seen["near ties"] += 1
            continue
        assert [r[0] for r in ours.results] == [r[0] for r in theirs], (params, prompt, end_ids)
        assert [r[2] for r in ours.results] == pytest.approx([r[1] for r in theirs], abs=1e-5, rel=1e-6)
        seen["stop"] += sum(r[3] == "stop" for r in ours.results)
        seen["length"] += sum(r[3] == "length" for r in ours.results)
        seen["over early"] += len(ours.steps) < params.max_tokens
        seen["overtaken"] += len(ours.finished) > width
        seen["peaked"] += float(logprobs([()]).max().exp()) > 0.3
    print(width, early_stopping, dict(seen))
    assert seen["searches"] == 30
    assert seen["near ties"] <= 1
    assert min(seen["stop"], seen["length"]) > 6
    assert seen["peaked"] > 10
    assert seen["over early"] > 2
    assert seen["overtaken"] > 2 or (width == 1 and early_stopping != "never")
