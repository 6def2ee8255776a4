"""The cost model against what it was calibrated on: the paper's Fig. 1, 18a and 19a, public per-layer profiles, latencies at low load."""
from __future__ import annotations

import pytest

from paged_edu.sim.cost_model import STATIC, CostModel
from paged_edu.sim.panels import published
from paged_edu.sim.paper import fig1
from paged_edu.sim.presets import GPUS, MODELS, PAPER_SERVERS, server

OPT_13B = CostModel(MODELS["opt-13b"], GPUS["A100-40GB"])
CONTIGUOUS = CostModel(MODELS["opt-13b"], GPUS["A100-40GB"], paged=False, block_table=False)


def test_sizes_are_the_papers():
    """Table 1 and §3."""
    assert [MODELS[name].kv_bytes_per_token for name in ("opt-13b", "opt-66b", "opt-175b")] == [819_200, 2_359_296, 4_718_592]
    for name, gib in (("opt-13b", 12), ("opt-66b", 21), ("opt-175b", 264)):
        assert PAPER_SERVERS[name].num_slots == pytest.approx(gib * 2**30 / MODELS[name].kv_bytes_per_token, rel=0.02)
    assert MODELS["opt-13b"].weight_bytes == pytest.approx(26e9, rel=0.02)
    assert MODELS["llama-3-8b"].kv_bytes_per_token == 131_072


def test_fig_1_throughput_by_batch():
    """With ShareGPT's contexts; the paper does not say what it ran."""
    (job,) = fig1()
    ours = job.run(1.0, lambda: None)["fig1_throughput"]["Throughput"]
    paper = dict(map(tuple, published()["fig1_throughput"]["Throughput"]))
    assert [x for x, _ in ours] == list(range(4, 41, 4))
    for batch, tokens_per_s in ours:
        assert tokens_per_s == pytest.approx(paper[batch], rel=0.1)


@pytest.mark.parametrize(("batch", "context", "paged", "contiguous"), [
    (8, 64, 31.5, 21.9), (8, 128, 43.6, 34.9), (8, 256, 84.3, 62.3), (32, 64, 77.1, 61.4), (32, 128, 127.1, 106.7), (32, 256, 235.3, 194.5),
])
def test_fig_18a_attention_kernels(batch, context, paged, contiguous):
    """Microseconds of one layer, taken to be OPT-13B's."""
    ours, theirs = (model.attention(batch * context, context, batch) / 40 * 1e6 for model in (OPT_13B, CONTIGUOUS))
    assert ours == pytest.approx(paged, rel=0.08)
    assert theirs == pytest.approx(contiguous, rel=0.02)


@pytest.mark.parametrize(("block_size", "swapped_in", "swapped_out"), [
    (1, 82.0, 55.5), (2, 53.6, 35.6), (4, 35.1, 25.9), (8, 26.0, 21.1), (16, 21.6, 18.5), (32, 19.3, 17.3), (64, 18.2, 16.7), (128, 17.6, 16.3),
    (256, 17.3, 16.1),
])
def test_fig_19a_swapping_and_recomputing(block_size, swapped_in, swapped_out):
    """Milliseconds for a sequence of 256 tokens."""
    model = CostModel(MODELS["opt-13b"], GPUS["A100-40GB"], block_size=block_size)
    assert model.swap_in(256 // block_size) * 1e3 == pytest.approx(swapped_in, rel=0.15)
    assert model.swap_out(256 // block_size) * 1e3 == pytest.approx(swapped_out, rel=0.05)
    assert model.forward(256, 1) * 1e3 == pytest.approx(38.4, rel=0.06)


@pytest.mark.parametrize(("tokens", "milliseconds"), [(1, 17.5), (256, 31.9), (512, 66.9), (1024, 131.2), (2048, 238.0)])
def test_profiles_of_a_13b_models_layers(tokens, milliseconds):
    bare = OPT_13B.forward(tokens, 0) - OPT_13B.constants.pass_overhead * 40
    assert bare * 1e3 == pytest.approx(milliseconds, rel=0.08)


def test_low_load():
    """One request alone, seconds a token: between Fig. 12's leftmost points of OPT-13B and 66B; FasterTransformer's at 0.01 requests a second."""
    large = CostModel(MODELS["opt-66b"], GPUS["A100-40GB"], 4)
    assert 0.050 < large.forward(1, 1) + large.attention(450, 450, 1) < 0.057
    assert 0.026 < OPT_13B.forward(1, 1) + OPT_13B.attention(450, 450, 1) < 0.030
    for name, num_gpus, paper in (("opt-13b", 1, 0.0238), ("opt-66b", 4, 0.0378)):
        static = CostModel(MODELS[name], GPUS["A100-40GB"], num_gpus, paged=False, block_table=False, constants=STATIC)
        assert static.forward(1, 1) + static.attention(450, 450, 1) == pytest.approx(paper, rel=0.08)


def test_the_longest_context_holds_the_others_up():
    """All run side by side and share the bandwidth: as much to read, but one of them has most of it."""
    even, uneven = OPT_13B.attention(3200, 400, 8), OPT_13B.attention(3200, 1800, 8)
    assert uneven - even == pytest.approx(1400 * OPT_13B.constants.attention_longest * 40)


def test_small_blocks_take_as_many_turns():
    """A block of 4 tokens takes as long a turn as one of 16, so the longest context takes four times as many; from 16 on the size does not matter."""
    by_size = {size: CostModel(MODELS["opt-13b"], GPUS["A100-40GB"], block_size=size).attention(8192, 2048, 4) for size in (4, 16, 64)}
    assert by_size[4] - by_size[16] == pytest.approx(3 * 2048 * OPT_13B.constants.attention_longest * 40)
    assert by_size[16] == by_size[64]


def test_copying_runs_takes_a_launch_each():
    pages, runs = CostModel(MODELS["opt-13b"], GPUS["A100-40GB"]), CostModel(MODELS["opt-13b"], GPUS["A100-40GB"], paged=False)
    assert pages.copies(8, 8) == pages.copies(8, 1) == runs.copies(8, 1) < runs.copies(8, 2) / 1.5


def test_a_server_that_has_no_room_is_refused_with_the_numbers():
    assert server("opt-13b", "A100-40GB").num_slots == pytest.approx(15_728, rel=0.04)
    assert server("opt-66b", "A100-40GB", 4).num_slots == pytest.approx(9_700, rel=0.04)
    with pytest.raises(ValueError, match=r"opt-66b takes 122\.4 GiB; 0\.9 of 1 x A100-40GB are 36\.0 GiB"):
        server("opt-66b", "A100-40GB")
    with pytest.raises(ValueError, match="--gpu must be one of"):
        server("opt-13b", "A200")
