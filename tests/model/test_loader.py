"""Loading: every checkpoint variant gives the right tensors, and everything else an error that names the trouble."""
from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from paged_edu.model import loader
from paged_edu.model.gpt2 import GPT2
from paged_edu.model.layers import ACTIVATIONS, Conv1D, activation
from paged_edu.model.loader import ModelLoadError, choose_dtype, load_model, load_spec, resolve

CONFIG: dict[str, Any] = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 11, "n_positions": 8, "n_embd": 6, "n_layer": 2, "n_head": 2,
    "eos_token_id": 3, "bos_token_id": 1, "dtype": "float32",
}


def tensors(seed: int = 0, head: bool = False) -> dict[str, Tensor]:
    """A checkpoint's tensors under transformers' names."""
    n, shapes = 6, {"wte.weight": (11, 6), "wpe.weight": (8, 6), "ln_f.weight": (6,), "ln_f.bias": (6,)}
    for i in range(2):
        for name, shape in {"attn.c_attn": (n, 3 * n), "attn.c_proj": (n, n), "mlp.c_fc": (n, 4 * n), "mlp.c_proj": (4 * n, n)}.items():
            shapes |= {f"h.{i}.{name}.weight": shape, f"h.{i}.{name}.bias": shape[1:]}
        for name in ("ln_1", "ln_2"):
            shapes |= {f"h.{i}.{name}.weight": (n,), f"h.{i}.{name}.bias": (n,)}
    g = torch.Generator().manual_seed(seed)
    out = {f"transformer.{name}": torch.randn(shape, generator=g) for name, shape in shapes.items()}
    return out | ({"lm_head.weight": torch.randn(11, 6, generator=g)} if head else {})


Save = Callable[..., Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    def write(weights: dict[str, Tensor] | None = None, generation: dict[str, Any] | None = None, **config: Any) -> Path:
        (tmp_path / "config.json").write_text(json.dumps(CONFIG | config))
        if generation is not None:
            (tmp_path / "generation_config.json").write_text(json.dumps(generation))
        save_file(tensors() if weights is None else weights, tmp_path / "model.safetensors")
        return tmp_path

    return write


def load(path: Path, dtype: torch.dtype = torch.float32) -> GPT2:
    model, _ = load_model(path, dtype, "cpu")
    assert isinstance(model, GPT2)
    return model


# --- the happy paths ---


def test_a_checkpoint_is_loaded_whole_without_gradients(save: Save) -> None:
    state = load(save()).state_dict()
    for name, want in tensors().items():
        assert torch.equal(state[name.removeprefix("transformer.")], want)
    assert not any(p.requires_grad or p.is_meta for p in load(save()).parameters())


@pytest.mark.parametrize("stored", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("asked", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_any_stored_type_in_any_asked_type(save: Save, stored: torch.dtype, asked: torch.dtype) -> None:
    weights = {k: v.to(stored) for k, v in tensors().items()}
    model = load(save(weights), asked)
    assert {p.dtype for p in model.parameters()} == {asked}
    assert torch.equal(model.wte.weight, weights["transformer.wte.weight"].to(asked))


def test_bfloat16_bits(save: Save) -> None:  # B95
    words = [0x3F80, 0xC000, 0x3FC0, 0x0000, 0x8000, 0x7F80, 0x3DCD]
    values = [1.0, -2.0, 1.5, 0.0, -0.0, float("inf"), 0.10009765625]
    weights = {k: v.bfloat16() for k, v in tensors().items()}
    flat = weights["transformer.wpe.weight"].view(-1)
    flat[:7] = torch.tensor([struct.unpack("h", struct.pack("H", w))[0] for w in words], dtype=torch.int16).view(torch.bfloat16)
    got = load(save(weights)).wpe.weight.view(-1)[:7]
    assert got.tolist() == values
    assert got.signbit().tolist() == [False, True, False, False, True, False, False]


def test_loaded_weights_do_not_hang_on_the_file(save: Save) -> None:
    path = save()
    model = load(path)
    file = path / "model.safetensors"
    size = file.stat().st_size
    with file.open("r+b") as f:
        f.seek(size // 2)
        f.write(b"\0" * (size // 2))
    assert all(torch.equal(model.state_dict()[k.removeprefix("transformer.")], v) for k, v in tensors().items())


def test_sharded_equals_single(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    hf = GPT2LMHeadModel(GPT2Config(vocab_size=101, n_positions=16, n_embd=32, n_layer=3, n_head=4))
    hf.save_pretrained(tmp_path / "one")
    hf.save_pretrained(tmp_path / "many", max_shard_size="30KB")
    assert len(list((tmp_path / "many").glob("model-*.safetensors"))) > 2
    one, many = load(tmp_path / "one").state_dict(), load(tmp_path / "many").state_dict()
    assert one.keys() == many.keys()
    assert all(torch.equal(one[k], many[k]) for k in one)


def test_key_variants_and_buffers(save: Save) -> None:  # B87
    weights = tensors() | {
        "h.0.attn.bias": torch.ones(1, 1, 8, 8), "h.0.attn.masked_bias": torch.tensor(-1e4),
        "transformer.h.1.attn.bias": torch.ones(1, 1, 8, 8),
    }
    for name in ("wte.weight", "h.0.attn.c_attn.bias", "h.1.mlp.c_fc.bias"):  # some with the prefix, some without
        weights[name] = weights.pop(f"transformer.{name}")
    state = load(save(weights)).state_dict()
    for name, want in tensors().items():
        assert torch.equal(state[name.removeprefix("transformer.")], want)
    assert GPT2.rename("h.0.attn.bias") is None
    assert GPT2.rename("transformer.h.12.attn.masked_bias") is None
    assert GPT2.rename("h.0.attn.c_attn.bias") == "h.0.attn.c_attn.bias"
    assert GPT2.rename("transformer.h.0.ln_1.weight") == "h.0.ln_1.weight"


@pytest.mark.parametrize("head_in_file", [False, True])
def test_a_tied_head_is_the_embedding_whatever_the_file_holds(save: Save, head_in_file: bool) -> None:  # B85
    for config in ({"tie_word_embeddings": True}, {}):  # tied is GPT-2's default
        model = load(save(tensors(head=head_in_file), **config))
        assert model.lm_head.weight.data_ptr() == model.wte.weight.data_ptr()
        assert torch.equal(model.logits(torch.eye(6)), tensors()["transformer.wte.weight"].T)


def test_an_untied_head_comes_from_the_file(save: Save) -> None:  # B85
    weights = tensors(head=True)
    model = load(save(weights, tie_word_embeddings=False))
    assert torch.equal(model.logits(torch.eye(6)), weights["lm_head.weight"].T)
    with pytest.raises(ModelLoadError, match=r"missing.*lm_head\.weight.*tie_word_embeddings: false"):
        load(save(tensors(), tie_word_embeddings=False))


def test_conv1d_is_stored_in_by_out() -> None:  # B86
    def apply(weight: list[list[float]], bias: list[float], x: list[float]) -> list[float]:
        layer = Conv1D(len(weight), len(bias))
        layer.load_state_dict({"weight": torch.tensor(weight), "bias": torch.tensor(bias)})
        with torch.no_grad():
            return layer(torch.tensor([x])).tolist()[0]

    assert apply([[1.0, 2, 3], [4, 5, 6]], [0.5, 0, 0], [1.0, 1]) == [5.5, 7, 9]
    assert apply([[1.0, 2], [3, 4]], [0.0, 0], [1.0, 0]) == [1, 2]


def test_all_four_projections_keep_the_layout(save: Save) -> None:  # B86
    block = load(save()).h[0]
    for layer in (block.attn.c_attn, block.attn.c_proj, block.mlp.c_fc, block.mlp.c_proj):
        assert isinstance(layer, Conv1D)
    w, n = tensors()["transformer.h.0.attn.c_attn.weight"], 6
    x, seen = torch.eye(n), []
    block.attn.c_attn.bias.zero_()
    block.attn(x, (), None, lambda q, k, v, *_: seen.extend([q, k, v]) or q)  # type: ignore[arg-type, func-returns-value]
    for i, part in enumerate(seen):
        assert torch.equal(part.flatten(1), w[:, i * n : (i + 1) * n])


# --- the spec ---


def test_spec(save: Save) -> None:
    spec = load_spec(save(generation={"eos_token_id": [3, 5]}))
    assert (spec.architecture, spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == ("GPT2LMHeadModel", 2, 2, 2, 3)
    assert (spec.hidden_size, spec.vocab_size, spec.max_positions, spec.bos_token_id) == (6, 11, 8, 1)
    assert spec.eos_token_ids == (3, 5)
    assert spec.dtype == torch.float32


def test_spec_without_the_optional_keys(save: Save) -> None:
    half = {k: v.half() for k, v in tensors().items()}
    spec = load_spec(save(half, architectures=None, eos_token_id=None, bos_token_id=None, dtype=None))
    assert (spec.architecture, spec.eos_token_ids, spec.bos_token_id) == ("GPT2LMHeadModel", (), None)
    assert spec.dtype == torch.float16  # from the file
    assert load_spec(save(dtype=None, torch_dtype="bfloat16")).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM.*supported are GPT2LMHeadModel"),
        ({"architectures": None, "model_type": "mamba"}, "mamba.*is not supported"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"n_head": 4}, "n_embd 6 is not a multiple of n_head 4"),
        ({"n_layer": None}, "n_layer must be an integer from 1 to 2147483647, not None"),
        ({"vocab_size": "11"}, "vocab_size must be an integer"),
        ({"n_inner": 0}, "n_inner"),
        ({"activation_function": "gleu"}, "unknown activation 'gleu'; known are gelu, gelu_fast, gelu_new"),
        ({"eos_token_id": "x"}, "eos_token_id.*'x'"),
        ({"dtype": "int8"}, "int8"),
        ({"architectures": {"a": 1}}, "architectures must be a list of names"),
        ({"architectures": "GPT2LMHeadModel"}, "architectures must be a list of names"),
        ({"architectures": None, "model_type": ["gpt2"]}, "model_type a name"),
        ({"activation_function": ["gelu"]}, "unknown activation"),
        ({"vocab_size": 10**30}, "vocab_size must be an integer from 1 to"),
        ({"n_embd": 2**31 - 4, "n_head": 4}, "too large|shape"),
        ({"layer_norm_epsilon": "x"}, "layer_norm_epsilon must be a positive number, not 'x'"),
        ({"layer_norm_epsilon": -1}, "layer_norm_epsilon must be a positive number, not -1"),
        ({"layer_norm_epsilon": float("nan")}, "layer_norm_epsilon must be a positive number, not nan"),
        ({"tie_word_embeddings": None}, "tie_word_embeddings must be true or false"),
        ({"scale_attn_weights": "no"}, "scale_attn_weights must be true or false"),
    ],
    ids=str,
)
def test_a_config_that_cannot_be_used_is_refused_by_name(save: Save, config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        load(save(**config))


def test_config_json_missing_broken_or_odd(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"config\.json is missing"):
        load_spec(tmp_path)
    (tmp_path / "config.json").write_text('{"n_layer": ')
    with pytest.raises(ModelLoadError, match=r"config\.json is not valid JSON"):
        load_spec(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ModelLoadError, match=r"config\.json must hold a JSON object, not list"):
        load_spec(tmp_path)


# --- files and tensors ---


def test_missing_unexpected_and_misshapen_tensors(save: Save) -> None:  # B97
    weights = tensors()
    del weights["transformer.h.1.mlp.c_fc.weight"]
    with pytest.raises(ModelLoadError, match=r"missing.*: h\.1\.mlp\.c_fc\.weight"):
        load(save(weights))
    with pytest.raises(ModelLoadError, match=r"does not have: transformer\.h\.0\.attn\.c_q\.weight \(model\.safetensors\)"):
        load(save(tensors() | {"transformer.h.0.attn.c_q.weight": torch.ones(2)}))
    wrong = tensors()
    wrong["transformer.h.0.mlp.c_fc.weight"] = wrong["transformer.h.0.mlp.c_fc.weight"].T.contiguous()
    with pytest.raises(ModelLoadError, match=r"model\.safetensors: tensor transformer\.h\.0\.mlp\.c_fc\.weight.*\(24, 6\).*\(6, 24\)"):
        load(save(wrong))
    twice = tensors()
    twice["wte.weight"] = twice["transformer.wte.weight"].clone()
    with pytest.raises(ModelLoadError, match=r"wte\.weight is there twice"):
        load(save(twice))
    with pytest.raises(ModelLoadError, match=r"ln_f\.bias is I8; readable are"):
        load(save(tensors() | {"transformer.ln_f.bias": torch.ones(6, dtype=torch.int8)}))
    with pytest.raises(ModelLoadError, match="and 7 more"):
        load(save({k: v for k, v in tensors().items() if ".h.1." not in k}))


@pytest.mark.parametrize("keep", [0, 4, 100, 0.5, -1])
def test_a_truncated_file(save: Save, keep: float) -> None:
    file = save() / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: int(keep * len(content)) if isinstance(keep, float) else keep])
    with pytest.raises(ModelLoadError, match=r"model\.safetensors, \d+ bytes: truncated or corrupt"):
        load(file.parent)


def test_a_corrupt_header_and_a_git_lfs_pointer(save: Save) -> None:
    file = save() / "model.safetensors"
    file.write_bytes(b"\xff" * 200)
    with pytest.raises(ModelLoadError, match=r"model\.safetensors, 200 bytes: truncated or corrupt"):
        load(file.parent)
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    with pytest.raises(ModelLoadError, match="Git LFS pointer"):
        load(file.parent)


def test_no_safetensors(save: Save) -> None:
    path = save()
    (path / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match="weights there: none"):
        load(path)
    (path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ModelLoadError, match=r"pytorch_model\.bin.*To convert.*save_pretrained"):
        load(path)


def test_shards(save: Save) -> None:
    path = save()
    weights = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    names = sorted(weights)
    parts = {"model-00001-of-00002.safetensors": names[:9], "model-00002-of-00002.safetensors": names[9:]}
    for file, part in parts.items():
        save_file({n: weights[n] for n in part}, path / file)
    index = path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {n: file for file, part in parts.items() for n in part}}))
    assert torch.equal(load(path).wte.weight, weights["transformer.wte.weight"])
    (path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=rf"puts {names[9]} into model-00002-of-00002\.safetensors, which is missing"):
        load(path)
    for weight_map in (None, {"wte.weight": "../model.safetensors"}, {"wte.weight": 1}):
        index.write_text(json.dumps({"weight_map": weight_map}))
        with pytest.raises(ModelLoadError, match="weight_map must map"):
            load(path)


# --- names and types ---


def test_resolve_a_directory_and_a_short_name(save: Save, tmp_path: Path) -> None:
    assert resolve(str(save())) == tmp_path
    assert resolve(tmp_path) == tmp_path
    embedded = resolve("tiny-shakespeare")
    assert embedded.is_dir()
    assert embedded.name == "tiny-shakespeare"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./nowhere", "no such directory"), ("/nowhere/at/all", "no such directory"), ("", "no such directory"),
        ("x.gguf", "'x.gguf': no such file"), ("org/model/x.GGUF", "no such file"),
    ],
)
def test_resolve_refuses_what_can_only_be_a_path(name: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "_download", lambda name: pytest.fail("asked the hub"))
    with pytest.raises(ModelLoadError, match=message):
        resolve(name)


def test_resolve_a_file_is_refused(save: Save) -> None:
    with pytest.raises(ModelLoadError, match="is a file and no GGUF; give a"):
        resolve(str(save() / "config.json"))


def test_resolve_asks_the_hub_and_says_what_was_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub

    asked: dict[str, Any] = {}

    def download(name: str, **kwargs: Any) -> str:
        asked.update(kwargs, name=name)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve("openai-community/gpt2") == tmp_path
    assert asked["name"] == "openai-community/gpt2"
    assert "*.safetensors" in asked["allow_patterns"]
    assert "*.bin" not in asked["allow_patterns"]

    def offline(name: str, **kwargs: Any) -> str:
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(ModelLoadError, match=r"'openai-community/gpt2' is no short name.*no local directory.*ConnectionError: no route"):
        resolve("openai-community/gpt2")


def test_choose_dtype(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = load_spec(save(dtype="bfloat16"))
    assert choose_dtype("auto", spec, "cpu") == torch.float32
    assert choose_dtype("float64", spec, "cpu") == torch.float64
    assert choose_dtype("half", spec, "cpu") == torch.float16
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert choose_dtype("auto", spec, "cuda") == torch.bfloat16
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert choose_dtype("auto", spec, "cuda") == torch.float16
    with pytest.raises(ValueError, match="dtype 'int8' is not one of auto, float32, float64, float16, bfloat16"):
        choose_dtype("int8", spec, "cpu")


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_activations_equal_transformers(name: str) -> None:
    from transformers.activations import ACT2FN

    x = torch.linspace(-6, 6, 101, dtype=torch.float64)
    torch.testing.assert_close(activation(name)(x), ACT2FN[name](x), rtol=0, atol=1e-9)
