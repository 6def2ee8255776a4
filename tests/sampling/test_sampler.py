"""Filters against transformers' own, random numbers that depend on nothing else, bans, padding, and the limits of every parameter."""
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paged_edu import SamplingParams
from paged_edu.core.sequence import Request
from paged_edu.sampling.sampler import BrokenLogitsError, Sampler, SampleRow, SamplingState, UniformNumbers, filtered_probabilities, inverse_cdf


def probabilities(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, dtype=torch.float32):
    t = torch.tensor([logits], dtype=dtype)
    return filtered_probabilities(
        t, torch.tensor([temperature], dtype=dtype), torch.tensor([top_k]), torch.tensor([top_p], dtype=dtype), torch.tensor([min_p], dtype=dtype))[0]


def kept(probs):
    return probs.nonzero()[:, 0].tolist()


def row(params, seed=0, branch=0, position=5, prompt=5, stops=(), name="r"):
    return SampleRow(name, SamplingState(params, seed, Request(name, (0,) * prompt), stops), branch, position)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("temperature", [0.0, 1e-3, 1e-4, 1e-5, 1e-6, 1e-12, 5e-324])
def test_a_very_small_temperature_is_greedy(temperature, dtype):
    """known fault B47"""
    logits = torch.tensor([[11.0625, 2.96, 2.875, -2.45]], dtype=dtype)
    for seed in range(20):
        assert Sampler().sample(logits, [row(SamplingParams(temperature=temperature), seed=seed)]) == [0]
    if temperature:
        probs = probabilities(logits[0].float().tolist(), temperature)
        assert probs.isfinite().all()
        assert probs.sum() == pytest.approx(1)


@pytest.mark.parametrize(("top_k", "ids"), [
    (50, [0, 1, 2, 3, 4]), (5, [0, 1, 2, 3, 4]), (0, [0, 1, 2, 3, 4]), (-1, [0, 1, 2, 3, 4]), (1, [1]), (2, [1, 3]),
])
def test_top_k_edges(top_k, ids):
    """known fault B52"""
    assert kept(probabilities([0.1, 0.5, 0.2, 0.4, 0.3], top_k=top_k)) == ids


def test_temperature_comes_before_top_p():
    """known fault B53"""
    for temperature, after, ids in ((0.5, [0.866813, 0.11731, 0.015876], [0]), (1.0, [0.665241, 0.244728, 0.090031], [0, 1]),
                                    (2.0, [0.50648, 0.307196, 0.186324], [0, 1])):
        assert probabilities([3.0, 2.0, 1.0], temperature).tolist() == pytest.approx(after, abs=1e-6)
        assert kept(probabilities([3.0, 2.0, 1.0], temperature, top_p=0.8)) == ids
    assert kept(probabilities([math.log(p) for p in (0.6, 0.3, 0.06, 0.04)], min_p=0.15)) == [0, 1]


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 10_000), temperature=st.sampled_from([0.3, 0.8, 1.0, 2.0]), top_k=st.sampled_from([0, 1, 3, 17, 40, 100]),
       top_p=st.sampled_from([0.01, 0.5, 0.9, 0.999, 1.0]), min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]))
def test_filters_equal_transformers(seed, temperature, top_k, top_p, min_p):
    from transformers import LogitsProcessorList, MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits = torch.randn(1, 40, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    if min_p:
        warpers.append(MinPLogitsWarper(min_p))
    theirs = warpers(torch.zeros(1, 1, dtype=torch.int64), logits.clone()).softmax(-1)[0]
    ours = probabilities(logits[0].tolist(), temperature, top_k, top_p, min_p, torch.float64)
    assert torch.allclose(ours, theirs, atol=1e-12)


def test_each_row_has_its_own_parameters():
    logits = torch.randn(5, 30, generator=torch.Generator().manual_seed(1)) * 2
    settings_ = [{"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.7}, {"min_p": 0.3}, {}]
    columns = {k: [s.get(k, d) for s in settings_] for k, d in (("temperature", 1.0), ("top_k", 0), ("top_p", 1.0), ("min_p", 0.0))}
    together = filtered_probabilities(logits, *(torch.tensor(v) for v in columns.values()))
    for i, own in enumerate(settings_):
        assert torch.allclose(together[i], probabilities(logits[i].tolist(), **own), atol=1e-7)


def test_ties_with_the_kth_token_are_kept():
    assert kept(probabilities([2.0, 1.0, 1.0, 0.0], top_k=2)) == [0, 1, 2]


def test_the_token_is_where_the_distribution_passes_the_number():
    probs = torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]] * 5)
    numbers = torch.tensor([0.0, 0.24999, 0.25, 0.75, 1 - 2.0**-53], dtype=torch.float64)
    assert inverse_cdf(probs, numbers).tolist() == [1, 1, 3, 4, 4]


def test_rounding_never_picks_a_token_of_probability_zero():
    probs = torch.full((1, 1000), 1e-9)
    probs[0, 500:] = 0
    assert inverse_cdf(probs, torch.tensor([1.0], dtype=torch.float64)).tolist() == [499]


def test_sampled_frequencies_follow_the_distribution():
    logits = torch.tensor([[1.0, 0.0, -1.0, 2.0]]).repeat(4000, 1)
    rows = [row(SamplingParams(temperature=1.0), seed=7, position=p) for p in range(5, 4005)]
    counts = np.bincount(Sampler().sample(logits, rows), minlength=4) / 4000
    assert counts == pytest.approx(torch.softmax(logits[0], -1).tolist(), abs=0.03)


def test_numbers_depend_on_seed_branch_position_and_draw_only():
    uniform = UniformNumbers()
    point = (5, 1, 9, 0)
    reference = uniform.at(*point)
    for other in ((6, 1, 9, 0), (5, 2, 9, 0), (5, 1, 10, 0), (5, 1, 9, 1)):
        assert uniform.at(*other) != reference
    assert uniform.at(*point) == reference == UniformNumbers().at(*point)
    assert uniform.at(2**64 - 1, 0, 0) < 1
    key, counter = np.array([5, 1], dtype=np.uint64), np.array([9, 0, 0, 0], dtype=np.uint64)
    assert reference == (int(np.random.Philox(key=key, counter=counter).random_raw()) >> 11) * 2.0**-53


def test_numbers_are_the_same_in_another_process():
    code = "from paged_edu.sampling.sampler import UniformNumbers as U; print(U().at(123, 4, 56, 7))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert float(out) == UniformNumbers().at(123, 4, 56, 7)


def test_a_seeded_row_does_not_see_its_batch():
    """Order and neighbours change nothing (known fault B55 for what is served today)."""
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(3))
    rows = [row(SamplingParams(temperature=0)), row(SamplingParams(min_tokens=3), seed=1, stops=(4, 7)), row(SamplingParams(top_k=5), seed=2),
            row(SamplingParams(top_p=0.3), seed=3), row(SamplingParams(temperature=3.0), seed=4, branch=2), row(SamplingParams(min_p=0.4), seed=5)]
    alone = [Sampler().sample(logits[i : i + 1], [rows[i]])[0] for i in range(6)]
    for order in ([0, 1, 2, 3, 4, 5], [5, 3, 1, 0, 2, 4], [2, 4, 0, 5, 1, 3]):
        assert Sampler().sample(logits[order], [rows[i] for i in order]) == [alone[i] for i in order]


def test_min_tokens_bans_stop_tokens_for_greedy_too():
    logits = torch.tensor([[5.0, 4.0, 3.0]])
    params = SamplingParams(temperature=0, min_tokens=2, max_tokens=5)
    picks = [Sampler().sample(logits, [row(params, position=p, stops=(0, 1))])[0] for p in (5, 6, 7)]
    assert picks == [2, 2, 0]
    assert logits[0, 0] == 5, "the model's logits are not written to"
    assert Sampler().sample(logits, [row(params, stops=(0, 99))]) == [1], "a stop id beyond the head bans nothing"


def test_padding_of_the_head_is_never_sampled():
    """known fault B58"""
    logits = torch.zeros(1, 16)
    logits[0, 12] = 50.0
    logits[0, 3] = 1.0
    assert Sampler(vocab_limit=10).sample(logits, [row(SamplingParams(temperature=0))]) == [3]
    picks = {Sampler(vocab_limit=10).sample(logits, [row(SamplingParams(), seed=s)])[0] for s in range(200)}
    assert max(picks) < 10


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_name_the_request(value):
    logits = torch.zeros(2, 4)
    logits[1, 2] = value
    with pytest.raises(BrokenLogitsError, match="logits of bad are not finite"):
        Sampler().sample(logits, [row(SamplingParams(), name="good"), row(SamplingParams(), name="bad")])


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), "1", True, None])
def test_what_is_no_finite_number_is_refused(name, value):
    """known fault B50"""
    with pytest.raises(ValueError, match=name):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(("name", "value", "limit"), [
    ("temperature", -0.1, "at least 0"), ("top_p", 1.01, "at most 1"), ("top_p", -0.1, "above 0"), ("top_p", 0, "above 0"),
    ("min_p", 1.5, "at most 1"), ("repetition_penalty", 0, "above 0"), ("top_k", -2, "at least -1"), ("n", 0, "at least 1"),
    ("max_tokens", -5, "at least 1"), ("max_tokens", 0, "at least 1"), ("seed", "x", "integer"), ("seed", -1, "between 0"),
    ("seed", 2**64, "between 0"), ("min_tokens", -1, "at least 0"), ("min_tokens", 17, r"max_tokens \(16\)"), ("max_tokens", 2.5, "integer"),
    ("logprobs", -1, "at least 0"), ("logprobs", True, "integer"), ("prompt_logprobs", 1.0, "integer"), ("presence_penalty", 2.5, "at most 2"),
    ("frequency_penalty", -2.1, "at least -2"),
    ("ignore_eos", 1, "True or False"), ("stop_token_ids", "7", "list of token ids"), ("stop_token_ids", [-1], "at least 0"),
    ("stop_token_ids", [1.0], "integer"), ("top_k", float("nan"), "integer"), ("stop_token_ids", 7, "list of token ids"),
])
def test_values_out_of_range_name_value_and_limit(name, value, limit):
    with pytest.raises(ValueError, match=limit) as error:
        SamplingParams(**{name: value})
    assert name in str(error.value)
    assert str(value).strip("[]") in str(error.value)


@pytest.mark.parametrize(("bias", "message"), [
    ({"abc": 1}, "logit_bias: every token id must be an integer, not 'abc'"), ({-1: 1}, "at least 0, not -1"), ({"-1": 1}, "integer, not '-1'"),
    ({1.0: 1}, "integer, not 1.0"), ({True: 1}, "integer, not True"), ({3: math.nan}, "logit_bias of token 3 must be at least -100 and at most 100"),
    ({3: 100.5}, "not 100.5"), ({3: "1"}, "logit_bias of token 3 must be a number, not '1'"), ({3: 1, "3": 2}, "logit_bias has the token 3 twice"),
    ([1, 2], r"logit_bias must map token ids to numbers, not \[1, 2\]"), ("x", "map token ids"), ({"٣": 1}, "integer"), ({"9" * 30: 1}, "integer"),
])
def test_a_bias_that_cannot_be_is_refused(bias, message):
    with pytest.raises(ValueError, match=message):
        SamplingParams(logit_bias=bias)


def test_a_bias_is_kept_with_numbers_for_ids():
    given = {"7": -100, 3: 2.5}
    params = SamplingParams(logit_bias=given)
    given[1] = 9
    assert params.logit_bias == {7: -100, 3: 2.5}
    assert SamplingParams(logit_bias={}).logit_bias is None
    assert hash(params) == hash(SamplingParams(logit_bias={1: 1})), "parameters stay hashable"
    assert params != SamplingParams(logit_bias={1: 1})


def test_unknown_keywords_are_errors():
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(temprature=1)
