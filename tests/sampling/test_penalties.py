"""Bias, penalties and bans against their definitions in plain Python, against transformers, in mixed batches, and at their extremes."""
import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paged_edu import SamplingParams
from paged_edu.core.sequence import Request
from paged_edu.sampling.penalties import adjusted
from paged_edu.sampling.sampler import Sampler, SampleRow, SamplingState


def row(params, prompt=(0,), output=(), stops=(), name="r", branch=0):
    state = SamplingState(params, params.seed or 0, Request(name, tuple(prompt)), stops)
    return SampleRow(name, state, branch, len(prompt) + len(output), tuple(output))


def by_definition(logits, row):
    """One row, one token at a time, in Python's floats."""
    params, out = row.state.params, list(row.output_ids)
    processed = []
    for token, value in enumerate(logits):
        value += (params.logit_bias or {}).get(token, 0.0)
        if token in out or token in row.state.request.prompt_token_ids:
            value = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
        value -= params.frequency_penalty * out.count(token)
        value -= params.presence_penalty * (token in out)
        processed.append(-math.inf if token in row.state.stop_ids and len(out) < params.min_tokens else value)
    return processed


VOCAB = 12
ids = st.lists(st.integers(0, VOCAB - 1), max_size=9)
penalty = st.sampled_from([0.0, 0.0, 0.5, -0.5, 2.0, -2.0, 1.7])


@st.composite
def any_row(draw):
    params = SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.7])), repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.3, 0.6, 5.0])),
        presence_penalty=draw(penalty), frequency_penalty=draw(penalty), seed=draw(st.integers(0, 99)), max_tokens=50,
        logit_bias=draw(st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-100, -1.5, 0, 3, 100]), max_size=3)),
        min_tokens=draw(st.sampled_from([0, 0, 3, 20])), logprobs=draw(st.sampled_from([None, 0, 2])),
    )
    prompt = draw(st.lists(st.integers(0, VOCAB + 3), min_size=1, max_size=9))      # a prompt may have tokens that the tokenizer does not know
    return row(params, prompt, draw(ids), draw(st.sampled_from([(), (2,), (1, 5, 99)])), draw(st.text("abc", min_size=1, max_size=2)))


@settings(max_examples=150, deadline=None)
@given(rows=st.lists(any_row(), min_size=1, max_size=6), seed=st.integers(0, 9999), order=st.randoms(use_true_random=False))
def test_every_row_is_what_its_definition_says_in_any_order(rows, seed, order):
    """known faults B54, B55: no row sees another one, wherever it stands."""
    logits = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3
    before = logits.clone()
    together = adjusted(logits, rows)
    assert torch.equal(logits, before), "the model's logits are not written to"
    for i, one in enumerate(rows):
        assert together[i].tolist() == pytest.approx(by_definition(before[i].tolist(), one), abs=1e-12)
        assert torch.equal(adjusted(logits[i : i + 1], [one])[0], together[i])
    places = list(range(len(rows)))
    order.shuffle(places)
    assert torch.equal(adjusted(logits[places], [rows[i] for i in places]), together[places])
    assert Sampler().sample(logits[places], [rows[i] for i in places]) == [Sampler().sample(logits[i : i + 1], [rows[i]])[0] for i in places]


@pytest.mark.parametrize(("params", "processed"), [
    ({"repetition_penalty": 2.0}, [1.0, -4.0, 0.5, 0.5]), ({"presence_penalty": 0.5}, [2.0, -2.0, 0.5, 0.5]),
    ({"frequency_penalty": 0.5}, [2.0, -2.0, 0.0, 0.5]),
])
def test_which_tokens_feed_which_penalty(params, processed):
    """known fault B54"""
    logits = torch.tensor([[2.0, -2.0, 1.0, 0.5]])
    assert adjusted(logits, [row(SamplingParams(**params), [0, 1], [2, 2])])[0].tolist() == processed


def test_the_bias_comes_before_the_penalty():
    logits = torch.tensor([[-1.0, 3.0]])
    params = SamplingParams(repetition_penalty=2.0, logit_bias={0: 3.0}, presence_penalty=0.25)
    assert adjusted(logits, [row(params, [1], [0])])[0].tolist() == [0.75, 1.5]     # (-1 + 3) / 2 - 0.25


def test_greedy_honours_penalties_bias_and_bans():
    """known fault B49"""
    logits = torch.tensor([[2.0, 1.9, 0.0]])
    assert Sampler().sample(logits, [row(SamplingParams(temperature=0, presence_penalty=0.5), [1], [0])]) == [1]
    assert Sampler().sample(logits, [row(SamplingParams(temperature=0, logit_bias={"0": -100}))]) == [1]
    both = SamplingParams(temperature=0, logit_bias={"0": -100}, min_tokens=2)
    assert Sampler().sample(logits, [row(both, stops=(1,))]) == [2]


@pytest.mark.parametrize("strength", [0.3, 1.0, 1.7, 40.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_repetition_penalty_equals_transformers(strength, dtype):
    from transformers import RepetitionPenaltyLogitsProcessor

    chance = random.Random(1)
    logits = torch.randn(20, 30, generator=torch.Generator().manual_seed(2), dtype=dtype) * 4
    logits[:, 3] = 0.0
    logits[:, 4] = -math.inf
    for i in range(20):
        prompt, output = chance.choices(range(30), k=chance.randrange(1, 12)), chance.choices(range(30), k=chance.randrange(8))
        theirs = RepetitionPenaltyLogitsProcessor(strength)(torch.tensor([prompt + output]), logits[i : i + 1].clone())
        ours = adjusted(logits[i : i + 1], [row(SamplingParams(repetition_penalty=strength), prompt, output)])
        assert torch.allclose(ours, theirs, atol=0, rtol=1e-6 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("strength", [5e-324, 1e-300, 1e300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_penalty_is_so_strong_that_the_model_looks_broken(strength, dtype):
    logits = torch.tensor([[2.0, -2.0, 0.0, -math.inf]], dtype=dtype)
    one = row(SamplingParams(temperature=0, repetition_penalty=strength, presence_penalty=2.0), [0, 1, 2, 3], [0, 1, 2])
    values = adjusted(logits, [one])[0]
    assert values[:3].isfinite().all()
    assert values[3] == -math.inf, "what the model rules out stays ruled out"
    sampled = Sampler().sample(logits.repeat(50, 1), [row(SamplingParams(repetition_penalty=strength, seed=s), [0, 1, 2, 3]) for s in range(50)])
    assert set(sampled) <= {0, 1, 2}


def test_who_asks_for_nothing_pays_nothing():
    logits = torch.zeros(2, 4)
    assert adjusted(logits, [row(SamplingParams()), row(SamplingParams(min_tokens=3, repetition_penalty=1.0))]) is logits


def test_padding_of_the_head_takes_no_penalty_and_no_bias():
    """known fault B58: prompt tokens that the tokenizer does not know are no entries of the next row."""
    logits = torch.zeros(2, 16)
    rows = [row(SamplingParams(repetition_penalty=2.0, logit_bias={0: 1.0}), [12, 15, 10]), row(SamplingParams(temperature=0))]
    values = adjusted(logits[:, :10], rows)
    assert values[0].tolist() == [1.0] + [0.0] * 9
    assert values[1].tolist() == [0.0] * 10
