"""Beam search against brute force and against its definition, word for word; what it refuses."""
import itertools
import math

import pytest
import torch
from beam_driving import Search, random_table
from hypothesis import given, settings
from hypothesis import strategies as st

from paged_edu.core.plan import Branch
from paged_edu.sampling.beam import Beam, BeamSearchParams, Hypothesis, check_vocab, choose, rank, score

NONE = frozenset()


def test_the_history_of_a_beam_is_its_parents():
    """known fault B66"""
    table = {(): [0.5, 0.4, 0.1], 0: [0.34, 0.33, 0.33], 1: [0.05, 0.05, 0.9], 2: [0.6, 0.3, 0.1]}
    search = Search(BeamSearchParams(beam_width=2, max_tokens=3, length_penalty=0.0),
                    lambda histories: torch.tensor([table[tokens[-1] if tokens else ()] for tokens in histories]).log())
    assert search.steps[1] == [[1, 2], [0, 0]]
    assert [list(tokens) for tokens, *_ in search.results] == [[1, 2, 0], [1, 2, 1]]
    assert [total for _, total, *_ in search.results] == pytest.approx([-1.532477, -2.225624], abs=1e-6)
    assert [reason for *_, reason in search.results] == ["length", "length"]
    parents = choose(BeamSearchParams(beam_width=2), [Beam(7, math.log(0.4 * 0.9)), Beam(3, math.log(0.5 * 0.34))], [],
                     torch.tensor([table[2], table[0]]).log(), end_ids=NONE, num_output=3, max_output=16)
    assert [(b.parent, b.tokens) for b in parents] == [(7, (0,)), (7, (1,))]         # nobody continues 3: it is freed


# -- brute force ----------------------------------------------------------------------------------------------------------------------
def all_outputs(vocab, end_ids, length, min_tokens=0):
    """Every output that exists: ends with its first end token, none of which comes before ``min_tokens`` others, or at ``length``."""
    for n in range(1, length + 1):
        for tokens in itertools.product(range(vocab), repeat=n):
            if any(t in end_ids for t in tokens[:-1]) or (tokens[-1] in end_ids and n <= min_tokens):
                continue
            if tokens[-1] in end_ids or n == length:
                yield tokens


def brute_force(logprobs, vocab, end_ids, length, params):
    def total(tokens):
        return sum(float(logprobs([tokens[:i]])[0, t]) for i, t in enumerate(tokens))
    outputs = [(tokens, total(tokens)) for tokens in all_outputs(vocab, end_ids, length, params.min_tokens)]
    scored = [(tokens, total, total / len(tokens) ** params.length_penalty) for tokens, total in outputs]
    return sorted(scored, key=lambda r: -r[2])


@pytest.mark.parametrize("min_tokens", [0, 2])
@pytest.mark.parametrize("end_ids", [{}, {1}, {0, 3}])
@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("penalty", [-1.5, 0, 0.7, 1, 3])
def test_a_beam_as_wide_as_the_tree_finds_everything(penalty, early_stopping, end_ids, min_tokens):
    vocab, length = 4, 4
    width = len(list(all_outputs(vocab, end_ids, length, min_tokens)))
    params = BeamSearchParams(beam_width=width, max_tokens=9, length_penalty=penalty, early_stopping=early_stopping, min_tokens=min_tokens)
    logprobs = random_table(3, vocab)
    expected = brute_force(logprobs, vocab, end_ids, length, params)
    found = Search(params, logprobs, end_ids, max_output=length).results
    assert [r[0] for r in found] == [r[0] for r in expected]
    assert [r[1:3] for r in found] == [pytest.approx(r[1:], abs=1e-13) for r in expected]
    assert {r[3] for r in found} == ({"stop", "length"} if end_ids else {"length"})


@pytest.mark.parametrize("seed", range(8))
def test_canonical_search_finds_the_best_if_nothing_is_pruned(seed):
    """No length penalty, "never": a branch only gets worse, so the search may stop before every branch has ended, and the result is still exact."""
    vocab, length, end_ids = 4, 4, {2, 3}
    width = 2**3 * vocab                                # all candidates of the last step
    params = BeamSearchParams(beam_width=width, max_tokens=length, length_penalty=0, early_stopping="never", n=width // 2)
    logprobs = random_table(seed, vocab, 3.0)
    expected = brute_force(logprobs, vocab, end_ids, length, params)
    assert len(expected) > width
    assert [r[0] for r in Search(params, logprobs, end_ids).results] == [r[0] for r in expected][: width // 2]


# -- the definition, word for word ----------------------------------------------------------------------------------------------------
def by_definition(params, live, finished, rows, end_ids, num_output, max_output):
    """Everything in Python lists: sort all candidates, cut, compare."""
    width, power = params.beam_width, params.length_penalty
    every = sorted((-(total + lp), i, t) for i, (_, total) in enumerate(live) for t, lp in enumerate(rows[i])
                   if lp > -math.inf and not (t in end_ids and num_output <= params.min_tokens))
    ends = [c for c in every[:width] if c[2] in end_ids or num_output == max_output]
    going = [c for c in every if c[2] not in end_ids and num_output < max_output][:width]
    scores = sorted([lp / n**power for lp, n in finished] + [-c[0] / num_output**power for c in ends])[::-1]
    if len(scores) >= width and going:
        reach = max_output if params.early_stopping == "never" and power > 0 else num_output
        if params.early_stopping is True or -going[0][0] / reach**power <= scores[width - 1]:
            going = []
    return tuple(Branch(live[i].seq_id, (t,), None, rows[i][t], reason if reason is None or t not in end_ids else "stop")
                 for part, reason in ((going, None), (ends, "length")) for _, i, t in part)


@st.composite
def situations(draw):
    """One step, with log-probabilities that are multiples of 1/4: ties everywhere, sums exact; some are -inf."""
    width, vocab = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    quarters = st.integers(0, 8).map(lambda k: -k / 4)
    ids = draw(st.permutations(range(20, 30)))
    live = sorted((Beam(ids[i], draw(quarters)) for i in range(draw(st.integers(1, width)))), key=lambda b: -b.logprob)
    rows = draw(st.lists(st.lists(quarters | st.just(-math.inf), min_size=vocab, max_size=vocab), min_size=len(live), max_size=len(live)))
    max_output = draw(st.integers(1, 5))
    num_output = draw(st.integers(1, max_output))
    hypotheses = st.builds(Hypothesis, quarters, st.integers(1, max(num_output - 1, 1)))
    finished = draw(st.lists(hypotheses, min_size=draw(st.sampled_from([0, width - 1, width])), max_size=width + 2))    # whether to stop is open
    end_ids = draw(st.frozensets(st.integers(0, vocab), max_size=3))
    params = BeamSearchParams(
        beam_width=width, max_tokens=6, min_tokens=draw(st.sampled_from([0, 0, 1, 3])), length_penalty=draw(st.sampled_from([-1, 0, 0.5, 1, 2])),
        early_stopping=draw(st.sampled_from([False, True, "never"])))
    return params, live, finished, rows, end_ids, num_output, max_output


@settings(max_examples=400, deadline=None)
@given(situations(), st.sampled_from([torch.float32, torch.float64]))
def test_choose_is_its_definition(situation, dtype):
    params, live, finished, rows, end_ids, num_output, max_output = situation
    branches = choose(params, live, finished, torch.tensor(rows, dtype=dtype), end_ids=end_ids, num_output=num_output, max_output=max_output)
    assert branches == by_definition(*situation)


@pytest.mark.parametrize(("options", "finished", "step", "goes_on"), [
    ({}, [(-1.0, 2)], -0.5, False),                         # -1.5 / 3 against -1 / 2: no better
    ({}, [(-1.0, 2)], -0.25, True),
    ({"early_stopping": True}, [(-1.0, 2)], -0.25, False),
    ({"early_stopping": True, "beam_width": 2}, [(-1.0, 2)], -0.25, True),
    ({"early_stopping": "never"}, [(-1.0, 2)], -0.5, True),
    ({"early_stopping": "never"}, [(-1.0, 2)], -1.75, True),        # -2.75 / 6: better only at its greatest length
    ({"early_stopping": "never"}, [(-1.0, 2)], -2.0, False),        # -3 / 6
    ({"early_stopping": "never", "length_penalty": 0}, [(-1.5, 2)], -0.5, False),
    ({"early_stopping": "never", "length_penalty": -1}, [(-2.0, 2)], -0.25, True),       # -1.25 * 3 against -2 * 2; at 6 it would be worse
    ({"beam_width": 2}, [(-1.0, 2), (-10.0, 2)], -0.5, True),       # against the worst of two
    ({"beam_width": 2}, [(-10.0, 2), (-1.0, 2), (-2.0, 2)], -2.0, False),       # the third does not count
])
def test_when_a_search_stops(options, finished, step, goes_on):
    params = BeamSearchParams(**{"beam_width": 1} | options)
    branches = choose(params, [Beam(0, -1.0)], [Hypothesis(*h) for h in finished], torch.tensor([[-math.inf, step]]), end_ids=frozenset({0}),
                      num_output=3, max_output=6)
    assert branches == ((Branch(0, (1,), logprob=step),) if goes_on else ())


def test_what_ends_in_this_step_counts_at_its_length():
    def ends_with(**options):
        return [b.finish_reason for b in choose(
            BeamSearchParams(beam_width=1, **options), [Beam(0, -1.0)], [], torch.tensor([[-0.5, -0.75]]), end_ids=frozenset({0}),
            num_output=3, max_output=6)]
    assert ends_with() == ["stop"]                          # -1.75 / 3 against -1.5 / 3
    assert ends_with(early_stopping="never") == [None, "stop"]
    assert ends_with(min_tokens=2) == ["stop"]
    assert ends_with(min_tokens=3) == [None]


def test_equals_in_live_order_then_in_order_of_ids():
    params = BeamSearchParams(beam_width=4)
    live = [Beam(9, -1.0), Beam(2, -1.0), Beam(5, -1.5)]
    rows = torch.full((3, 50_000), -2.0)
    rows[1] += 0.5
    branches = choose(params, live, [], rows, end_ids=frozenset({1}), num_output=2, max_output=8)
    assert [(b.parent, b.tokens[0]) for b in branches] == [(2, 0), (2, 2), (2, 3), (2, 4), (2, 1)]
    assert [b.finish_reason for b in branches] == [None] * 4 + ["stop"]
    assert rank([Hypothesis(-2, 2), Hypothesis(-1, 1), Hypothesis(-3, 4), Hypothesis(-4, 4)], params) == (2, 0, 1, 3)


def test_what_is_banned_never_survives():
    logprobs = torch.log_softmax(torch.tensor([1.0, 0.5, -math.inf, -math.inf]), -1)
    search = Search(BeamSearchParams(beam_width=3, max_tokens=3), lambda histories: logprobs.expand(len(histories), -1), {3})
    assert [len(step) for step in search.steps] == [2, 3, 0]             # fewer branches than the width, while there are no more
    assert len(search.results) == 3
    assert {t for tokens, *_ in search.results for t in tokens} == {0, 1}
    nothing = torch.full((1, 4), -math.inf)
    assert choose(BeamSearchParams(beam_width=2), [Beam(0, 0.0)], [], nothing, end_ids=NONE, num_output=1, max_output=4) == ()


# -- the door -------------------------------------------------------------------------------------------------------------------------
@settings(max_examples=150, deadline=None)
@given(vocab=st.integers(1, 4), num_ends=st.integers(0, 4), length=st.integers(1, 4), min_tokens=st.integers(0, 5), width=st.integers(1, 40),
       early_stopping=st.sampled_from([False, True, "never"]), penalty=st.sampled_from([-1, 0, 2]))
def test_a_beam_is_refused_only_if_it_is_wider_than_there_are_outputs(vocab, num_ends, length, min_tokens, width, early_stopping, penalty):
    end_ids = frozenset(range(0, 2 * num_ends, 2))                       # those beyond the vocabulary end nothing
    params = BeamSearchParams(beam_width=width, max_tokens=6, min_tokens=min_tokens, early_stopping=early_stopping, length_penalty=penalty)
    outputs = len(list(all_outputs(vocab, end_ids, length, min_tokens)))
    if outputs < width:
        with pytest.raises(ValueError, match=rf"beam_width must be at most {outputs}, not {width}: a vocabulary of {vocab}, "):
            check_vocab(params, vocab, end_ids, length)
    else:
        check_vocab(params, vocab, end_ids, length)
        assert len(Search(params, random_table(width, vocab), end_ids, length).results) == width


def test_the_door_counts_without_walking():
    endless = BeamSearchParams(beam_width=2, max_tokens=10**15, min_tokens=10**14)
    check_vocab(endless, 2, frozenset({0}))
    check_vocab(endless, 2, NONE)
    check_vocab(BeamSearchParams(beam_width=500, max_tokens=10**15), 50_257, frozenset({0}))
    with pytest.raises(ValueError, match="must be at most 1, not 2"):
        check_vocab(endless, 1, NONE)


@pytest.mark.parametrize(("options", "message"), [
    ({"beam_width": 0}, "beam_width must be at least 1, not 0"),
    ({"beam_width": 2.0}, "beam_width must be an integer, not 2.0"),
    ({"max_tokens": 0}, "max_tokens must be at least 1, not 0"),
    ({"n": 5}, r"n \(outputs of a beam search, at most beam_width\) must be between 1 and 4, not 5"),
    ({"n": 0}, "must be between 1 and 4, not 0"),
    ({"min_tokens": 17}, r"min_tokens \(17\) must be at most max_tokens \(16\)"),
    ({"min_tokens": -1}, "min_tokens must be at least 0, not -1"),
    ({"length_penalty": math.nan}, "length_penalty with max_tokens=16 must be at least -83.0482 and at most 83.0482, not nan"),
    ({"length_penalty": math.inf}, "not inf"),
    ({"length_penalty": -84}, "not -84"),
    ({"length_penalty": 30, "max_tokens": 4096}, "length_penalty with max_tokens=4096 must be at least -27.6827 and at most 27.6827, not 30"),
    ({"length_penalty": "1"}, "length_penalty with max_tokens=16 must be a number, not '1'"),
    ({"early_stopping": "always"}, "early_stopping must be True, False or 'never', not 'always'"),
    ({"early_stopping": 1}, "early_stopping must be True, False or 'never', not 1"),
    ({"early_stopping": None}, "not None"),
    ({"ignore_eos": "no"}, "ignore_eos must be True or False, not 'no'"),
    ({"skip_special_tokens": 0}, "skip_special_tokens must be True or False, not 0"),
    ({"stop_token_ids": "12"}, "stop_token_ids must be a list of token ids, not '12'"),
    ({"stop_token_ids": [3, -1]}, "every one of stop_token_ids must be at least 0, not -1"),
])
def test_what_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        BeamSearchParams(**{"beam_width": 4} | options)


def test_defaults_and_the_extremes_of_the_penalty():
    params = BeamSearchParams(beam_width=4, stop_token_ids=[7])
    assert (params.num_returned, params.stop_token_ids, params.early_stopping) == (4, (7,), False)
    with pytest.raises(TypeError, match="temperature"):
        BeamSearchParams(beam_width=4, temperature=1.0)
    for penalty, order in ((83, (1, 0)), (-83, (0, 1))):
        params = BeamSearchParams(beam_width=2, length_penalty=penalty)
        assert rank([Hypothesis(-2.0, 15), Hypothesis(-9.0, 16)], params) == order
        assert math.isfinite(score(Hypothesis(-1e9, 16), params))
        assert score(Hypothesis(-1e-9, 16), params) < 0
    with pytest.raises(ValueError, match=r"logprobs of shape \[1, 5\] for 2 live branches"):
        choose(params, [Beam(0, 0.0), Beam(1, 0.0)], [], torch.zeros(1, 5), end_ids=NONE, num_output=1, max_output=4)
