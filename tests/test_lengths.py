"""The length histograms are the paper's (Fig. 11, §6.1), and what is drawn from them has their shape."""
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paged_edu import lengths

# Mean as printed in the text (§6.1); median, p90, p99, range as interpolated in the figure's bins (15.8 and 11.5 tokens wide; Alpaca's inputs 3.9).
PAPER = {
    ("sharegpt", "input"): (161.31, 36, 508, 1465, 1, 2028), ("sharegpt", "output"): (337.99, 271, 754, 1279, 1, 2009),
    ("alpaca", "input"): (19.31, 16, 31, 74, 6, 508), ("alpaca", "output"): (58.45, 43, 125, 269, 1, 1470),
}


@pytest.mark.parametrize(("name", "side"), PAPER)
def test_a_histogram_has_the_papers_mean_and_percentiles(name, side):
    histogram = getattr(lengths.load(name), side)
    mean, p50, p90, p99, low, high = PAPER[name, side]
    assert histogram.mean() == pytest.approx(mean, rel=0.001)
    assert [histogram.quantile(q) for q in (0.5, 0.9, 0.99)] == pytest.approx([p50, p90, p99], abs=1.5)
    assert (histogram.low, histogram.high) == (low, high)
    assert low <= histogram.quantile(0) <= histogram.edges()[0][1]
    assert histogram.edges()[-1][0] <= histogram.quantile(1) <= high
    assert len(histogram.counts) == 128


@pytest.mark.parametrize(("name", "side"), PAPER)
def test_samples_follow_the_histogram(name, side):
    """200,000 draws: the mean within four standard errors, percentiles within 2 %, and every draw in a bin that is not empty."""
    histogram = getattr(lengths.load(name), side)
    drawn = histogram.sample(200_000, np.random.default_rng(3))
    assert abs(drawn.mean() - histogram.mean()) < 4 * drawn.std() / np.sqrt(len(drawn))
    for share in (0.25, 0.5, 0.9, 0.99):
        assert np.quantile(drawn, share) == pytest.approx(histogram.quantile(share), rel=0.02, abs=1)
    filled = [edge for edge, count in zip(histogram.edges(), histogram.counts, strict=True) if count]
    assert all(any(a <= length <= b for a, b in filled) for length in np.unique(drawn))


def test_every_whole_number_is_in_one_bin():
    for name in lengths.DATASETS:
        for histogram in (lengths.load(name).input, lengths.load(name).output):
            edges = histogram.edges()
            assert edges[0][0] == histogram.low
            assert edges[-1][1] == histogram.high
            assert all(a <= b for a, b in edges)
            assert all(b + 1 == c for (_, b), (c, _) in pairwise(edges))


def test_the_requests_in_order_are_the_histogram():
    """All of them together: each bin has its count, spread over its whole numbers as evenly as they divide."""
    histogram = lengths.Histogram(1, 10, (3, 0, 5))
    assert histogram.edges() == [(1, 3), (4, 6), (7, 10)]
    assert histogram.lengths_at(np.arange(8)).tolist() == [1, 2, 3, 7, 8, 9, 9, 10]
    assert histogram.quantile(3 / 8) == 3
    assert histogram.mean() == pytest.approx((3 * 2 + 5 * 8.5) / 8)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(lengths.DATASETS), st.integers(0, 1000), st.sampled_from([2, 3, 16, 100, 512, 2048, 4096, 8191]))
def test_every_request_fits_the_model(name, seed, max_model_len):
    requests = lengths.load(name).sample(300, np.random.default_rng(seed), max_model_len)
    assert len(requests) == 300
    assert all(prompt >= 1 and output >= 1 and prompt + output <= max_model_len for prompt, output in requests)


def test_scaled_lengths_are_the_papers_made_smaller():
    """The same seed draws the same requests; a quarter of the positions, a quarter of the tokens."""
    whole, quarter = (lengths.load("sharegpt").sample(2000, np.random.default_rng(1), n) for n in (2048, 512))
    for (prompt, output), (small_prompt, small_output) in zip(whole, quarter, strict=True):
        assert abs(prompt / 4 - small_prompt) < 1
        assert abs((prompt + output) / 4 - small_prompt - small_output) <= 2


def test_what_is_too_long_is_drawn_again():
    """Nothing is cut off: no pile-up at the limit, and prompts get shorter by a few percent, as PAPER's long ones fall out."""
    requests = np.array(lengths.load("sharegpt").sample(20_000, np.random.default_rng(2)))
    assert requests.sum(axis=1).max() <= 2048
    assert (requests.sum(axis=1) == 2048).sum() < 20
    assert 145 < requests[:, 0].mean() < 160
    assert 330 < requests[:, 1].mean() < 342


def test_bad_values_are_named():
    with pytest.raises(ValueError, match="dataset must be one of 'sharegpt', 'alpaca', not 'shakespeare'"):
        lengths.load("shakespeare")
    data, rng = lengths.load("alpaca"), np.random.default_rng(0)
    with pytest.raises(ValueError, match="count must be at least 1, not 0"):
        data.sample(0, rng)
    with pytest.raises(ValueError, match="max_model_len must be at least 2, not 1"):
        data.sample(1, rng, 1)
    with pytest.raises(ValueError, match="share"):
        data.input.quantile(1.1)
    assert "arXiv:2309.06180" in data.source


def test_matched_requests_keep_both_distributions():
    """What `sample` loses: long prompts and long answers."""
    data = lengths.load("sharegpt")
    pairs = np.array(data.matched(40_000, np.random.default_rng(5)))
    again = np.array(data.sample(40_000, np.random.default_rng(5)))
    assert (pairs.sum(1) <= 2048).all()
    assert (pairs >= 1).all()
    for side, histogram in ((0, data.input), (1, data.output)):
        assert pairs[:, side].mean() == pytest.approx(histogram.mean(), rel=0.015)
        drawn = histogram.sample(40_000, np.random.default_rng(5).spawn(2)[side])
        assert sorted(pairs[:, side]) == sorted(drawn)                      # exchanged, none cut
    assert again[:, 0].mean() < 0.97 * pairs[:, 0].mean()
    assert data.matched(1, np.random.default_rng(0))
    halves = np.array(data.matched(500, np.random.default_rng(5), 1024))
    assert halves.sum(1).max() <= 1024
    with pytest.raises(ValueError, match="count"):
        data.matched(0, np.random.default_rng(0))


def test_more_matched_requests_begin_with_the_same_ones():
    data = lengths.load("sharegpt")
    few, many = (data.matched(count, np.random.default_rng(5)) for count in (1000, 1500))
    assert [p for p, _ in few] == [p for p, _ in many[:1000]]
    assert sum(a == b for a, b in zip(few, many, strict=False)) > 900
