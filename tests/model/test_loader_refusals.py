"""What cannot be loaded is refused with an error that names the file, key or tensor, and what was expected of it."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import Save, load, tensors
from safetensors.torch import load_file, save_file

from paged_edu.model.loader import ModelLoadError, load_spec, resolve


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


def test_a_damaged_pulled_model_says_how_to_get_it_again(tmp_path, monkeypatch):
    from paged_edu import LLM
    from paged_edu.model.catalog import model_dir

    monkeypatch.setenv("PAGED_EDU_CACHE", str(tmp_path))
    model_dir("smollm2-135m-instruct").mkdir(parents=True)
    with pytest.raises(ModelLoadError, match=r"config.json is missing.*; to get it again: paged-edu pull smollm2-135m-instruct --force"):
        LLM("smollm2-135m-instruct")


def test_a_name_that_is_nearly_one_is_recognised():
    with pytest.raises(ModelLoadError, match=r"did you mean smollm2-135m-instruct\?"):
        resolve("smollm2-135m")
