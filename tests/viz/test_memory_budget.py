"""MemoryBudget: published models against transformers, divisions against plain arithmetic, and a figure that is right in every position."""
import json
import xml.etree.ElementTree as ET

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, OPTConfig, Qwen3Config

from paged_edu.viz.memory_budget import CARDS, GIB, MODELS, SHARES, MemoryBudget, divide
from paged_edu.viz.view import PLOTLY_MIME

CONFIGS = {
    "GPT-2": GPT2Config(),
    "SmolLM2-135M": LlamaConfig(vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
                                num_key_value_heads=3, tie_word_embeddings=True),
    "Qwen3-0.6B": Qwen3Config(vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
                              num_key_value_heads=8, head_dim=128, tie_word_embeddings=True),
    "Llama-3-8B": LlamaConfig(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
                              num_key_value_heads=8),
    "OPT-13B": OPTConfig(vocab_size=50272, hidden_size=5120, ffn_dim=20480, num_hidden_layers=40, num_attention_heads=40, word_embed_proj_dim=5120),
}
models = st.sampled_from(MODELS)
cards = st.sampled_from(sorted(CARDS))
shares = st.floats(0.01, 1.0)
lengths = st.sampled_from([17, 256, 2048, 8192])


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_the_models_are_what_transformers_builds(model):
    config = CONFIGS[model.name]
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(config)
    assert model.num_parameters == sum(p.numel() for p in built.parameters())
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    theirs = (config.num_hidden_layers, heads, getattr(config, "num_key_value_heads", None) or heads, head_dim, config.hidden_size)
    assert (model.num_layers, model.num_heads, model.num_kv_heads, model.head_dim, model.hidden_size) == theirs


def test_the_numbers_of_the_paper():
    """Paper §3, Table 1: 800 KB a token; 26 GB, 12 GB and 15.7K slots on an A100 with 40 GB; 7 requests of 2048."""
    opt = divide(MODELS[5], "A100 40 GB", 0.9)
    assert MODELS[5].kv_bytes(1) == 800 * 1024
    assert round(opt.weights / 1e9) == 26
    assert round(opt.cache / GIB) == 12
    assert abs(opt.num_blocks * 16 - 15_700) < 150
    assert opt.num_sequences == 7


@given(models, cards, shares, lengths)
def test_a_division_adds_up(model, card, share, length):
    found = divide(model, card, share, length)
    total, block = CARDS[card] * 2**20, model.kv_bytes(16)
    assert found.cache == found.num_blocks * block
    if found.refusal:
        assert found.num_blocks == 0
        assert "leaves no room" in found.refusal
        return
    assert found.weights + found.cache + found.idle + found.left == total
    assert found.weights + found.cache + found.idle <= share * total + 1
    needed = 256 * -(-length // 16)
    assert found.num_blocks <= needed
    if found.num_blocks < needed:                           # as much as there is: not one block more would have fitted
        limit = min(share * total - found.weights, 0.9 * (total - found.weights))
        assert found.cache <= limit < found.cache + 2 * block


@given(models, cards, shares, shares)
def test_a_larger_share_goes_to_the_cache_and_to_nothing_else(model, card, one, two):
    small, large = (divide(model, card, share) for share in sorted((one, two)))
    assert small.weights == large.weights
    assert small.num_blocks <= large.num_blocks


def test_wrong_names_and_shares_are_refused():
    with pytest.raises(ValueError, match="no card 'A1000'"):
        divide(MODELS[0], "A1000")
    with pytest.raises(ValueError, match="no card 'A1000'"):
        MemoryBudget(card="A1000")
    with pytest.raises(ValueError, match="gpu_memory_utilization"):
        MemoryBudget(share=1.5)


def positions(figure):
    """(card, share, heights, words) of every position of buttons and sliders."""
    for button in figure["layout"]["updatemenus"][0]["buttons"]:
        change, layout = button["args"]
        yield button["label"], 0.9, change
        for step in layout["sliders"][0]["steps"]:
            yield button["label"], float(step["label"]), step["args"][0]


def test_every_position_of_the_figure_is_the_engines_division():
    budget = MemoryBudget()
    figure = budget.figure()
    seen = 0
    for card, share, change in positions(figure):
        found = [divide(model, card, share) for model in budget.models]
        for part, heights in zip(("weights", "cache", "idle", "left"), change["y"], strict=True):
            assert heights == [round(getattr(d, part) / GIB, 2) for d in found]
        for division, words in zip(found, change["text"][1], strict=True):
            assert words == ("no room for a block" if division.refusal else f"{division.cache / GIB:.1f} GiB: {division.num_sequences} × 2048")
        seen += 1
    assert seen == len(CARDS) * (1 + len(SHARES))
    first = [trace["y"] for trace in figure["data"]]
    assert first == budget._change("A100 40 GB", 0.9)["y"]
    assert len(json.dumps(figure)) < 300_000


def test_it_is_a_plotly_figure():
    go = pytest.importorskip("plotly.graph_objects")
    go.Figure(MemoryBudget().figure())                      # raises for an unknown property


@pytest.mark.parametrize("card", CARDS)
def test_svg_and_letters(card):
    budget = MemoryBudget(card=card, share=0.5)
    bundle = budget._repr_mimebundle_()
    ET.fromstring(bundle["image/svg+xml"])
    assert set(bundle) == {"text/plain", "image/svg+xml", PLOTLY_MIME}
    assert card in bundle["text/plain"]
    for model in budget.models:
        assert str(model) in bundle["text/plain"]
    for bar in ET.fromstring(bundle["image/svg+xml"]).iter("{http://www.w3.org/2000/svg}rect"):
        assert float(bar.get("width")) >= 0
