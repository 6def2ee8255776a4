"""LayerStepper: its shapes against a model that really runs, its cache lines against `attend`'s writes, and what the outputs say."""
import gc
import json
import weakref
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
import torch

from paged_edu.attention import reference
from paged_edu.attention.cache import KVCache
from paged_edu.attention.metadata import build_input
from paged_edu.core.plan import ScheduledSeq
from paged_edu.model.llama import Llama, Qwen3
from paged_edu.model.loader import load_model, load_spec, resolve
from paged_edu.model.spec import ModelSpec
from paged_edu.trace import EventLog
from paged_edu.viz import LayerStepper, Views
from paged_edu.viz.fake_engine import trace24
from paged_edu.viz.layer_walk import INTO, OUT_OF, TABLE, layer_walk, slot, told
from paged_edu.viz.page import page_html
from paged_edu.viz.view import PLOTLY_MIME

COMMON = {"eos_token_ids": (), "bos_token_id": None, "dtype": torch.float32}


def llama(kind=Llama, **changes) -> ModelSpec:
    config = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "vocab_size": 49152, "num_attention_heads": 9,
              "num_key_value_heads": 3, "max_position_embeddings": 8192, "tie_word_embeddings": True}
    return kind.spec_from({**config, **changes}, architecture=f"{kind.__name__}ForCausalLM", **COMMON)


@pytest.fixture(scope="module")
def tiny():
    return load_spec(resolve("tiny-shakespeare"))


@pytest.fixture
def view(tiny):
    view = LayerStepper({"SmolLM2-135M": llama(), "tiny-shakespeare": tiny}, name="test layer")
    yield view
    view.close()


def test_the_shapes_of_smollm2():
    lines = layer_walk("SmolLM2-135M", llama()).lines
    assert [(line.prefill, line.decode) for line in lines] == [
        ("[5, 576]", "[1, 576]"), ("[5, 576]", "[1, 576]"), ("[5, 9, 64], [5, 3, 64] ×2", "[1, 9, 64], [1, 3, 64] ×2"),
        ("[5, 9, 64], [5, 3, 64]", "[1, 9, 64], [1, 3, 64]"), ("[5, 3, 64]", "[1, 3, 64]"), ("[3, 5, 64]", "[3, 6, 64]"),
        ("[9, 5, 5]", "[9, 1, 6]"), ("[5, 9, 64]", "[1, 9, 64]"), ("[5, 576]", "[1, 576]"), ("[5, 576]", "[1, 576]"),
        ("[5, 1536]", "[1, 1536]"), ("[5, 576]", "[1, 576]"),
    ]
    assert [line.step for line in lines if line.pool] == [4, 5]
    assert (lines[4].pool, lines[5].pool) == (INTO, OUT_OF)
    assert "h // 3" in lines[6].why


def test_the_shapes_are_those_of_a_run_with_weights(tiny):
    """The same five tokens through the real model, with the real backend: what is written, read and given on."""
    model, spec = load_model(resolve("tiny-shakespeare"), torch.float32, "cpu")
    cache = KVCache(spec.num_layers, 8, spec.num_kv_heads, 4, spec.head_dim, torch.float32, "cpu").fill_(float("nan"))
    lines, given, before = layer_walk("tiny", tiny).lines, [], 0
    for start, count, which in ((0, 5, "prefill"), (5, 1, "decode")):
        shapes = {}
        hooks = [module.register_forward_hook(lambda module, args, out, name=name, into=shapes: into.update({name: list(out.shape)}))
                 for name, module in model.h[0].named_modules() if name]

        def attend(q, k, v, *rest):
            given.append((q, k, v))
            return reference.attend(q, k, v, *rest)

        item = ScheduledSeq("A", 0, 0, (7,) * count, start, tuple(map(slot, range(start, start + count))), TABLE)
        batch = build_input([item], 4, "cpu")
        with torch.inference_mode():
            model(batch.input_ids, batch.positions, cache, batch.meta, attend)
        for hook in hooks:
            hook.remove()
        q, k, _ = given[0]
        given.clear()
        said = [getattr(line, which) for line in lines]
        assert said[1:3] == [str(shapes["ln_1"]), str(shapes["attn.c_attn"])]
        assert said[4] == str(list(k.shape))
        assert said[7] == str(list(q.shape))
        assert said[8:] == [str(shapes[name]) for name in ("attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")]
        keys = reference.read(cache[0][0], reference.page_tables(batch.meta.block_tables, spec.num_kv_heads)[0], start + count)
        assert said[5] == str(list(keys.shape))
        assert not keys.isnan().any(), "all that is read has been written"
        written = int((~cache[0][0].isnan()).all(dim=(1, 3)).sum())
        assert written - before == k.shape[0]
        before = written


def test_other_members_of_the_family():
    qwen = llama(Qwen3, num_attention_heads=16, num_key_value_heads=8, head_dim=128, hidden_size=1024, intermediate_size=3072)
    lines = layer_walk("Qwen3-0.6B", qwen, 3).lines
    assert lines[2].prefill == "[3, 16, 128], [3, 8, 128] ×2"
    assert lines[8].decode == "[1, 1024]", "head_dim is the model's own"
    assert "h // 2" in lines[6].why
    alone = layer_walk("multi-head", llama(num_key_value_heads=9), 1).lines
    assert "Each query head has keys of its own" in alone[6].why
    assert alone[6].decode == "[9, 1, 2]"


def test_stepping(view):
    assert (view.first_step, view.shown, view.last_step, view.live) == (0, 0, 11, "none")
    assert view.seek(4) == "line 4: write(k, v, slots), into the pool: [5, 3, 64] in the prefill, [1, 3, 64] in the decode step"
    assert view.step().startswith("line 5: K, V = read(block_table), out of the pool")
    assert view.end().startswith("line 11")
    assert view.step() == "this is the newest step"


def test_svg_letters_and_plotly_have_twelve_frames(view):
    bundle = view._repr_mimebundle_()
    assert {"image/svg+xml", "text/plain", PLOTLY_MIME} <= set(bundle)
    words = [element.text for element in ET.fromstring(bundle["image/svg+xml"]).iter("{http://www.w3.org/2000/svg}text")]
    for line in view.walk.lines:
        assert {line.code, line.prefill, line.decode} <= {*words}
        assert told(line) in bundle["text/plain"]
    assert len(bundle["image/svg+xml"]) < 20_000
    figure = bundle[PLOTLY_MIME]
    assert [frame["name"] for frame in figure["frames"]] == [str(i) for i in range(12)]
    assert len(json.dumps(figure)) < 60_000
    pytest.importorskip("plotly.graph_objects").Figure(figure)


def test_the_pool_is_empty_until_the_write(view):
    def positions(line):
        squares = ET.fromstring(view.svg(view.walk.lines[line])).iter("{http://www.w3.org/2000/svg}text")
        return sorted(element.text for element in squares if element.get("font-weight") == "700" and element.get("fill") in ("#FFFFFF", "#111111"))

    assert positions(3) == []
    assert positions(4) == positions(11) == list("012345")


def test_the_page_has_a_button_for_each_model(view):
    data = view.page_data()
    assert data["panes"][0]["options"] == {"names": ["SmolLM2-135M", "tiny-shakespeare"]}
    frames = data["tracks"][0]["frames"]
    assert len(frames) == 12
    assert [variant["said"].split(": ")[1] for variant in frames[2]] == ["q, k, v = q_proj(h), k_proj(h), v_proj(h)", "c_attn(h)"]
    assert "[5, 192]" in frames[0][1]["picture"]
    html = page_html(view)
    assert "http" not in html.replace("http://www.w3.org/2000/svg", "")
    assert len(html) < 450_000


@pytest.mark.parametrize(("models", "options", "words"), [
    ({}, {}, "shows 1 to 4 models, not 0"),
    ({str(i): None for i in range(2)}, {}, "models must map names to ModelSpecs"), (None, {}, "models must map"),
    ({"a": "spec"}, {"num_tokens": 0}, "num_tokens must be between 1 and 7, not 0"), ({"a": "spec"}, {"num_tokens": 8}, "between 1 and 7"),
    ({"a": "spec"}, {"num_tokens": 2.0}, "num_tokens must be an integer"), ({"a": "spec"}, {"speed": 0}, "speed"),
    ({"a": "other"}, {}, "a is a OPTForCausalLM; there are walks through GPT2LMHeadModel"), (dict.fromkeys("abcde", "spec"), {}, "not 5"),
])
def test_what_cannot_be_shown_is_refused(tiny, models, options, words):
    known = {"spec": tiny, "other": replace(tiny, architecture="OPTForCausalLM")}
    if models is not None:
        models = {name: known.get(spec, spec) for name, spec in models.items()}
    with pytest.raises(ValueError, match=words):
        LayerStepper(models, **options)


def test_a_layer_is_no_view_of_a_log():
    with pytest.raises(ValueError, match="no view is called 'layer'"):
        Views(EventLog.of(trace24().engine().scheduler), ["layer"])


def test_close_frees_everything(view):
    view._repr_mimebundle_()
    kept = weakref.ref(view.walk)
    view.close()
    view.close()
    gc.collect()
    assert kept() is None
    with pytest.raises(RuntimeError, match="closed"):
        _ = view.walk


def test_gpt2_and_llama_have_the_same_lines_for_the_cache(tiny):
    """The two lines that know of blocks are in the same place, so that a page may switch from one model to the other."""
    assert tiny.architecture == "GPT2LMHeadModel"
    walks = [layer_walk("a", tiny), layer_walk("b", llama())]
    assert [line.pool for line in walks[0].lines] == [line.pool for line in walks[1].lines]
    assert [line.code for line in walks[0].lines[4:8]] == [line.code for line in walks[1].lines[4:8]]
