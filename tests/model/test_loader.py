"""Loading: every checkpoint variant gives the right tensors, whatever its name, shards and types."""
from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import Save, load, tensors

from paged_edu.model import loader
from paged_edu.model.gpt2 import GPT2
from paged_edu.model.layers import Conv1D
from paged_edu.model.loader import ModelLoadError, choose_dtype, load_spec, resolve

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
    full = load_spec(save(dtype="float32"))
    assert choose_dtype("auto", full, "cuda") == torch.float32
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert choose_dtype("auto", spec, "cuda") == choose_dtype("auto", full, "cuda") == torch.float16
    with pytest.raises(ValueError, match="dtype 'int8' is not one of auto, float32, float64, float16, bfloat16"):
        choose_dtype("int8", spec, "cpu")
