"""AttentionWalk: each step against dense softmax and torch's attention, the forgetful sums against their own formula, and what the outputs say."""
import gc
import json
import math
import weakref
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from paged_edu.trace import EventLog
from paged_edu.viz import AttentionWalk, Views
from paged_edu.viz.fake_engine import trace24
from paged_edu.viz.page import page_html
from paged_edu.viz.view import PLOTLY_MIME
from paged_edu.viz.walk import compared, told, walk
from paged_edu.viz.walk_svg import pool_rows

TABLE = [7, 1, 3, 9]


def paged(length, table, size, head_dim=64, num_blocks=12, seed=0):
    """q, the pools with NaN where nothing was written, and the same keys and values in token order."""
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in (head_dim, (length, head_dim), (length, head_dim)))
    pools = np.full((2, num_blocks, size, head_dim), np.nan, np.float32)
    for position in range(length):
        pools[0, table[position // size], position % size] = k[position]
        pools[1, table[position // size], position % size] = v[position]
    return q, *pools, k, v


@pytest.fixture
def view():
    q, keys, values, *_ = paged(50, TABLE, 16)
    view = AttentionWalk(q, keys, values, TABLE, 50, name="test walk")
    yield view
    view.close()


@settings(deadline=None)
@given(st.data(), st.integers(1, 5), st.integers(1, 6), st.integers(0, 9))
def test_every_step_holds_the_softmax_of_what_was_visited(data, size, blocks, seed):
    length = data.draw(st.integers((blocks - 1) * size + 1, blocks * size))
    table = data.draw(st.permutations(range(8)))[:blocks]
    q, keys, values, k, v = paged(length, table, size, 8, 8, seed)
    found = walk(q, keys, values, [*table, 0], length)
    assert len(found.steps) == blocks + 1
    scores = k.astype(np.float64) @ q.astype(np.float64) / math.sqrt(8)
    for step in found.steps[1:]:
        seen = step.positions.stop
        weights = np.exp(scores[:seen] - scores[:seen].max())
        assert step.block == table[step.step - 1]
        np.testing.assert_allclose(step.scores, scores[step.positions.start : seen], rtol=1e-12)
        assert step.m == pytest.approx(scores[:seen].max(), rel=1e-12)
        assert step.right.l == pytest.approx(weights.sum(), rel=1e-12)
        np.testing.assert_allclose(step.right.acc, weights @ v[:seen], atol=1e-12)
        assert step.right.error < 1e-12
    last = found.steps[-1]
    theirs = F.scaled_dot_product_attention(*(torch.tensor(x, dtype=torch.float64)[None] for x in (q[None], k, v)))[0, 0]
    np.testing.assert_allclose(last.right.acc / last.right.l, theirs.numpy(), atol=1e-12)


@given(st.integers(1, 64), st.integers(0, 9))
def test_who_forgets_to_rescale_gets_the_wrong_formula(length, seed):
    q, keys, values, k, v = paged(length, TABLE, 16, seed=seed)
    last = walk(q, keys, values, TABLE, length).steps[-1].forgetful
    scores = k.astype(np.float64) @ q.astype(np.float64) / 8
    m = np.array([scores[: 16 * (p // 16) + 16].max() for p in range(length)])         # the largest when the block was visited
    weights = np.exp(scores - m)
    exact = np.exp(scores - scores.max())
    np.testing.assert_allclose(last.acc, weights @ v, atol=1e-12)
    assert last.l == pytest.approx(weights.sum(), rel=1e-12)
    assert last.error == pytest.approx(np.abs(weights @ v / weights.sum() - exact @ v / exact.sum()).max(), abs=1e-12)


def test_the_numbers_of_the_lesson(view):
    """LESSONS.md: no rescaling is off by 0.18 on these 50 tokens."""
    assert round(view.walk.steps[-1].forgetful.error, 2) == 0.18
    assert [round(step.kept, 2) for step in view.walk.steps[1:]] == [0.0, 0.51, 1.0, 1.0]


def test_stepping(view):
    assert (view.first_step, view.shown, view.last_step, view.live) == (0, 1, 4, "none")
    assert view.step().startswith("step 2: block 1, positions 16 to 31: m rises from 1.09 to 1.77; what was summed before is multiplied by 0.51")
    assert view.end().startswith("step 4: block 9, positions 48 to 49: no larger score, m stays 1.77")
    assert view.step() == "this is the newest step"
    assert view.home().startswith("step 0")
    assert view.back().startswith("step 0")


def test_svg_letters_and_plotly_say_the_numbers(view):
    bundle = view._repr_mimebundle_()
    assert {"image/svg+xml", "text/plain", PLOTLY_MIME} <= set(bundle)
    svg = bundle["image/svg+xml"]
    root = ET.fromstring(svg)
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    for step in view.walk.steps[1:]:
        assert f"{step.step - 1} → {step.block}" in words
        assert {f"{step.m:.2f}", f"{step.right.l:.2f}"} <= {*words}
        assert told(step) in bundle["text/plain"]
    assert "× 0.51" in words
    assert compared(view.walk.steps[-1]) in words
    assert root.get("aria-label").endswith(compared(view.walk.steps[-1]))
    assert len(svg) < 25_000
    figure = bundle[PLOTLY_MIME]
    assert [frame["name"] for frame in figure["frames"]] == ["0", "1", "2", "3", "4"]
    assert [len(frame["data"][0]["y"]) for frame in figure["frames"]] == [0, 16, 32, 48, 50]
    assert len(json.dumps(figure)) < 40_000
    pytest.importorskip("plotly.graph_objects").Figure(figure)


def test_forgetting_shows_in_every_output():
    q, keys, values, *_ = paged(50, TABLE, 16)
    view = AttentionWalk(torch.tensor(q), torch.tensor(keys), torch.tensor(values), TABLE, 50, forget=True, name="forgetful")
    bundle = view._repr_mimebundle_()
    for kind in ("image/svg+xml", "text/plain"):
        assert "✗ acc / l is off by 0.18" in bundle[kind]
    assert "should be multiplied by 0.51 and is not" in bundle["text/plain"]
    assert "is off by" in bundle[PLOTLY_MIME]["frames"][-1]["layout"]["title"]["text"]
    data = view.page_data()["tracks"][0]
    assert data["variant"] == 1
    assert "✓" in data["frames"][4][0]["compared"]
    assert "✗" in data["frames"][4][1]["picture"]
    view.close()


@pytest.mark.parametrize(("change", "words"), [
    ({"length": 65}, "length must be 1 to 64"), ({"length": 0}, "length must be 1 to 64"), ({"table": [7, 1, 12, 9]}, "block 12 is outside the pool"),
    ({"table": [7, -1, 3, 9]}, "block -1 is outside"), ({"table": [0, 1, 3, 9]}, "block 0 holds numbers that are not finite"),
    ({"q": np.zeros(32)}, r"q is \[head_dim\]"), ({"table": [7] * 9, "length": 144}, "at most 8 blocks, not 9"), ({"speed": 0}, "speed"),
])
def test_what_does_not_fit_is_refused(change, words):
    q, keys, values, *_ = paged(50, TABLE, 16)
    with pytest.raises(ValueError, match=words):
        AttentionWalk(**({"q": q, "keys": keys, "values": values, "table": TABLE, "length": 50} | change))


@pytest.mark.parametrize(("change", "words"), [
    ({"length": 2.5}, "length must be a whole number, not 2.5"), ({"length": True}, "length must be a whole number, not True"),
    ({"length": "2"}, "length must be a whole number"), ({"table": [0, 1.7]}, "each entry of table must be a whole number, not 1.7"),
    ({"table": "12"}, "table must be a list of block numbers, not '12'"), ({"table": None}, "table must be a list"),
    ({"table": []}, "table holds no block"), ({"q": "abc"}, "q must be real numbers"), ({"q": np.ones(4) * 1j}, "q must be real numbers"),
    ({"q": np.full(4, np.nan)}, "the scores of block 0 are not finite"), ({"scale": math.inf}, "the scores of block 0 are not finite"),
    ({"scale": "x"}, "scale must be real numbers"), ({"keys": [[[1.0], [1.0, 2.0]]]}, "keys must be real numbers"),
])
def test_arguments_that_are_no_numbers_are_refused_by_name(change, words):
    given_ones = {"q": np.ones(4), "keys": np.ones((2, 2, 4)), "values": np.ones((2, 2, 4)), "table": [0, 1], "length": 3} | change
    with pytest.raises(ValueError, match=words):
        walk(**given_ones)


@pytest.mark.parametrize("length", [np.int64(3), torch.tensor(3)])
def test_lengths_and_tables_of_a_step_are_taken_as_they_are(length):
    """What `seq_lens` and `block_tables` give; the figure must be JSON all the same."""
    view = AttentionWalk(torch.ones(4), torch.ones(2, 2, 4), torch.ones(2, 2, 4), torch.tensor([0, 1]), length, name="of a step")
    json.dumps(view.figure())
    assert view.plain().splitlines()[-1] == "✓ acc / l equals dense attention over these 3 tokens (to 12 digits)"
    view.close()


def test_a_walk_is_no_view_of_a_log():
    engine = trace24().engine()
    log = EventLog.of(engine.scheduler)
    with pytest.raises(ValueError, match="no view is called 'walk'"):
        Views(log, ["walk"])
    with pytest.raises(TypeError, match="a view is a name"):
        Views(log, [AttentionWalk])


def test_a_large_pool_shows_the_blocks_of_the_table():
    q, keys, values, *_ = paged(50, [70, 1, 71, 9], 16, num_blocks=100)
    found = walk(q, keys, values, [70, 1, 71, 9], 50)
    assert pool_rows(found) == [None, 1, None, 9, None, 70, 71, None]


def test_close_frees_everything(view):
    view._repr_mimebundle_()
    widget = view._live.widget
    kept = weakref.ref(view.walk)
    again = AttentionWalk(np.ones(4), np.ones((2, 2, 4)), np.ones((2, 2, 4)), [1], 2, name="test walk")
    assert view.tracks == [], "a view with the same name closes the one before"
    assert widget.comm is None or widget.comm._closed
    again.close()
    again.close()
    gc.collect()
    assert kept() is None
    with pytest.raises(RuntimeError, match="closed"):
        _ = again.walk


def test_the_page_stands_alone(view):
    html = page_html(view)
    assert "http" not in html.replace("http://www.w3.org/2000/svg", "")
    assert len(html) < 300_000
