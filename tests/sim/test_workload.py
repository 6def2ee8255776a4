"""The paper's workloads: what is known of them holds, seeds give the same lengths at any rate, what is assumed is what the constants say."""
from __future__ import annotations

import math
from statistics import NormalDist, correlation, fmean, median

import pytest

from paged_edu.sim import workload
from paged_edu.sim.workload import Arrival, chat, poisson, translation


def sizes(arrivals):
    return [(a.prompt_tokens, a.output_tokens) for a in arrivals]


def test_poissons_numbers_are_those_that_earlier_results_were_made_with():
    found = poisson("sharegpt", 1.0, 600)
    assert (len(found), found[0], found[-1]) == (558, Arrival(0.6799319039689096, 522, 60), Arrival(598.1835736573199, 21, 116))


@pytest.mark.parametrize("name", ["chat", "translation"])
def test_a_faster_or_longer_run_has_the_same_requests_closer_together(name):
    slow, fast = (workload.arrivals(name, rate, 300, seed=5) for rate in (1.0, 3.0))
    assert 2 * len(slow) < len(fast) < 4 * len(slow)
    assert sizes(slow) == sizes(fast)[:len(slow)]
    assert [a.time / 3 for a in slow] == pytest.approx([a.time for a in fast[:len(slow)]])
    assert [a.time for a in slow] == sorted(a.time for a in slow)
    assert slow[-1].time < 300
    assert sizes(workload.arrivals(name, 1.0, 300, seed=6)) != sizes(slow)
    assert workload.arrivals(name, 1e-9, 1.0) == []


def test_most_prompts_of_the_chatbot_are_cut_to_1024_tokens():
    """Paper §6.5: most have the full 1,024."""
    found = chat(10.0, 2000)
    prompts = [a.prompt_tokens for a in found]
    assert max(prompts) == 1024 == workload.CHAT_TOKENS
    assert 0.5 < sum(p == 1024 for p in prompts) / len(prompts) < 0.58
    assert min(prompts) >= 1
    assert max(a.output_tokens for a in found) == 1024
    assert fmean(a.output_tokens for a in found) == pytest.approx(330, rel=0.03)     # ShareGPT's 338, less what is above 1,024
    assert {a.prefix_tokens for a in found} == {0}


def test_the_rounds_of_a_conversation_are_as_described():
    longer = NormalDist(workload.ROUNDS_LOCATION, workload.ROUNDS_WIDTH)

    def more_than(rounds: int) -> float:
        return 1 - longer.cdf(math.log(rounds)) if rounds else 1.0

    assert sum(map(more_than, range(20_000))) == pytest.approx(workload.MEAN_ROUNDS, rel=0.002)
    assert 1 - more_than(1) == pytest.approx(0.47, abs=0.005)
    assert more_than(7) == pytest.approx(0.1, abs=0.01)
    assert more_than(29) == pytest.approx(0.01, abs=0.001)


def test_a_round_is_chosen_as_often_as_conversations_reach_it():
    import numpy as np

    before = workload._rounds_before(np.random.default_rng(1), 40_000)
    rng = np.random.default_rng(2)
    rounds = np.ceil(np.exp(rng.normal(workload.ROUNDS_LOCATION, workload.ROUNDS_WIDTH, 200_000)))
    for k in (0, 1, 3, 8):                          # brute force: of all rounds of all conversations, those with k before them
        expected = (rounds > k).sum() / rounds.sum()
        assert before.count(k) / len(before) == pytest.approx(expected, rel=0.06)


def test_sentences_and_translations():
    found = translation(10.0, 2000, seed=1)
    sentences = [a.prompt_tokens - a.prefix_tokens for a in found]
    outputs = [a.output_tokens for a in found]
    assert {a.prefix_tokens for a in found} == {80}
    assert fmean(sentences) == pytest.approx(workload.WORDS * workload.ENGLISH, rel=0.02)
    assert fmean(outputs) == pytest.approx(workload.WORDS * workload.GERMAN, rel=0.02)
    assert median(sentences) < 0.92 * fmean(sentences)                          # skewed
    assert 0.9 < correlation([math.log(s) for s in sentences], [math.log(o) for o in outputs]) < 0.99
    assert min(sentences) >= 1
    assert max(sentences) < 300


def test_a_pair_is_as_long_as_the_papers_examples():
    """Four more examples take 261 tokens."""
    found = translation(10.0, 1000)
    pair = fmean(a.prompt_tokens - a.prefix_tokens + a.output_tokens for a in found)
    assert pair == pytest.approx((workload.FIVE_EXAMPLES - workload.ONE_EXAMPLE) / 4, rel=0.08)


def test_prompts_share_their_prefix_and_nothing_else():
    a, b = (Arrival(0.0, 100, 5, 80).prompt(number) for number in (0, 1))
    assert len(a) == len(b) == 100
    assert a[:80] == b[:80]
    assert not set(a[80:]) & set(b[80:])
    assert not set(a[:80]) & set(a[80:])
    alone = Arrival(0.0, 7, 5).prompt(3)
    assert len(set(alone)) == 7
    assert not set(alone) & set(a)


def test_one_prefix_or_another_changes_only_the_prefix():
    one, five, none = (translation(2.0, 100, prefix_tokens=tokens) for tokens in (80, 341, 0))
    assert [a.prompt_tokens - 80 for a in one] == [a.prompt_tokens - 341 for a in five] == [a.prompt_tokens for a in none]
    assert [a.output_tokens for a in one] == [a.output_tokens for a in five]


@pytest.mark.parametrize("make", [chat, translation])
@pytest.mark.parametrize(("options", "message"), [
    ({"rate": 0, "seconds": 10}, "rate must be above 0"), ({"rate": 1, "seconds": float("nan")}, "seconds must be above 0"),
    ({"rate": 1, "seconds": 1, "seed": -1}, "seed must be at least 0, not -1"),
])
def test_bad_values_are_named(make, options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


@pytest.mark.parametrize("prefix", [-1, 1025, 1.5])
def test_a_prefix_leaves_room(prefix):
    with pytest.raises(ValueError, match="prefix_tokens must be"):
        translation(1.0, 10.0, prefix_tokens=prefix)
