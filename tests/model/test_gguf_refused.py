"""What a GGUF file asks for that can't be served, and what is wrong with it, is one error that names the file and the trouble."""
from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from ggufs import random_blocks, write_gguf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llamas import random_llama
from transformers import LlamaForCausalLM

from paged_edu import LLM
from paged_edu.model.gguf_file import GGUFFile
from paged_edu.model.loader import ModelLoadError, load_model, load_spec


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return random_llama(tmp_path_factory.mktemp("hf"), "llama 1, multi-head", dtype=torch.float32)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "x.gguf"


@pytest.mark.parametrize(("keys", "message"), [
    ({"expert_count": 8}, r"a mixture of experts \(expert_count 8\)"),
    ({"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}, "RoPE scaling 'yarn' is not supported; supported in GGUF files are none and linear"),
    ({"rope.scaling.type": "longrope"}, "'longrope' is not supported"),
    ({"rope.scaling.attn_factor": 1.5}, r"llama\.rope\.scaling\.attn_factor 1\.5"),
    ({"rope.dimension_count": 4}, r"llama\.rope\.dimension_count 4 is not supported: the head size is 8"),
    ({"attention.value_length": 16}, r"llama\.attention\.value_length 16 is not supported"),
    ({"attention.head_count_kv": [4, 2, 4]}, r"llama\.attention\.head_count_kv differs between layers.*\[4, 2, 4\]"),
    ({"attention.head_count_kv": 3}, "num_attention_heads 4 is not a multiple of num_key_value_heads 3"),
    ({"attention.head_count": 0}, r"llama\.attention\.head_count must be an integer from 1 to \d+, not 0"),
    ({"attention.head_count": None}, r"llama\.attention\.head_count must be an integer.*None"),
    ({"attention.head_count": 5}, "embedding_length 32 is not a multiple of head_count 5"),
    ({"block_count": "three"}, r"llama\.block_count must be an integer.*'three'"),
    ({"attention.layer_norm_rms_epsilon": None}, r"layer_norm_rms_epsilon must be a positive number, not None"),
    ({"rope.freq_base": -1.0}, r"llama\.rope\.freq_base must be a positive number, not -1\.0"),
    ({"split.count": 3}, "is one of 3 parts; split GGUF files are not supported"),
    ({"tokenizer.ggml.eos_token_id": 97}, r"tokenizer\.ggml\.eos_token_id must be a token id below 97, not 97"),
    ({"general.alignment": 24}, "alignment"),
    ({"attention.head_count_kv": 2}, r"tensor model\.layers\.0\.self_attn\.k_proj\.weight has shape \(32, 32\), .* makes it \(16, 32\)"),
    ({"vocab_size": 96}, r"model\.embed_tokens\.weight has shape \(97, 32\)"),
    ({"block_count": 2}, r"does not have: model\.layers\.2\.input_layernorm\.weight \(x\.gguf\)"),
    ({"block_count": 4}, r"missing from the checkpoint: layers\.3\."),
    ({"attention.sliding_window": -2}, r"llama\.attention\.sliding_window must be an integer from 1.*-2"),
], ids=str)
def test_keys(hf: Any, file: Path, keys: dict[str, Any], message: str) -> None:
    write_gguf(file, hf, keys=keys)
    with pytest.raises(ModelLoadError, match=message) as caught:
        load_model(file, torch.float32, "cpu")
    assert "\n" not in str(caught.value)
    assert "config.json" not in str(caught.value)


@pytest.mark.parametrize(("tensors", "drop", "message"), [
    ({"blk.0.attn_qkv.weight": (4, 4)}, (), r"does not have: blk\.0\.attn_qkv\.weight \(x\.gguf\)"),
    ({"blk.0.ffn_gate_exps.weight": (4, 4)}, (), "a mixture of experts"),
    ({"rope_factors_long.weight": (4,)}, (), r"rope_factors_long\.weight: RoPE scaling 'longrope'"),
    ({"rope_freqs.weight": (3,)}, (), r"rope_freqs\.weight has shape \(3,\), a head has 4 frequencies"),
    ({"rope_freqs.weight": (4,)}, (), "freq_factors must be a list of positive numbers"),
    ({}, ("blk.1.ffn_up.weight",), r"missing.*layers\.1\.mlp\.up_proj\.weight"),
    ({"blk.1.attn_q.bias": (32,)}, (), r"missing.*self_attn\.k_proj\.bias"),
], ids=str)
def test_tensors(hf: Any, file: Path, tensors: dict[str, tuple[int, ...]], drop: tuple[str, ...], message: str) -> None:  # B97
    write_gguf(file, hf, tensors={name: np.zeros(shape, np.float32) for name, shape in tensors.items()}, drop=drop)
    with pytest.raises(ModelLoadError, match=message):
        load_model(file, torch.float32, "cpu")


def test_qwen2_windows_and_other_architectures(file: Path, tmp_path: Path, hf: Any) -> None:
    qwen = random_llama(tmp_path / "qwen", "qwen2", dtype=torch.float32)
    write_gguf(file, qwen, keys={"attention.sliding_window": 7})
    with pytest.raises(ModelLoadError, match=r"qwen2\.attention\.sliding_window 7 is not supported"):
        load_spec(file)
    content = write_and_read(file, hf)
    file.write_bytes(content.replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0mamba", 1))
    with pytest.raises(ModelLoadError, match="architecture 'mamba' is not supported; supported in GGUF files are llama, qwen2"):
        load_spec(file)
    gguf.GGUFWriter(file, "llama").close()
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
    with pytest.raises(ModelLoadError, match="architecture None"):
        load_spec(file)


def test_a_type_that_cannot_be_dequantised_is_refused_before_any_weight_is_read(hf: Any, file: Path) -> None:
    write_gguf(file, hf, tensors={"zz.weight": np.zeros((2, 2), np.int32)})
    with pytest.raises(ModelLoadError, match=r"tensor zz\.weight is I32, which the gguf package cannot dequantise"):
        load_spec(file)


# --- broken files ---


def write_and_read(file: Path, hf: LlamaForCausalLM) -> bytes:
    write_gguf(file, hf, tokenizer={"tokenizer.ggml.tokens": [f"t{i}" for i in range(97)]})
    return file.read_bytes()


@pytest.mark.parametrize(("content", "message"), [
    (b"", "is empty"), (b"GG", "truncated or damaged"), (b"GGUF", "truncated or damaged"), (b"GGML" + bytes(100), "is no GGUF file"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git LFS pointer"),
    (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian; only little-endian"),
    (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "GGUF version 1; supported are 2 and 3"),
    (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "truncated or damaged"),
    (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "truncated or damaged"),
    (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**63) + bytes(100), "truncated or damaged"),
    (b"GGUF" + struct.pack("<IQQQcIIQ", 3, 0, 1, 1, b"k", 9, 4, 2**61) + bytes(100), "truncated or damaged"),
    (b"GGUF" + struct.pack("<IQQQcIIQ", 3, 0, 1, 1, b"k", 9, 8, 2**61) + bytes(100), "truncated or damaged"),
    (b"GGUF" + struct.pack("<IQQQcIIQ", 3, 0, 1, 1, b"k", 9, 9, 1) + bytes(100), "metadata of type 9"),
    (b"GGUF" + struct.pack("<IQQQcI", 3, 0, 1, 1, b"k", 13) + bytes(100), "metadata of type 13"),
    (b"GGUF" + struct.pack("<IQQQc", 3, 0, 1, 1, b"\xff") + bytes(100), "is not UTF-8"),
    (b"GGUF" + struct.pack("<IQQQcIBQcIB", 3, 0, 2, 1, b"k", 0, 1, 1, b"k", 0, 1), "metadata key k is there twice"),
    (b"GGUF" + struct.pack("<IQQQcI", 3, 1, 0, 1, b"t", 5) + bytes(100), "tensor t has 5 dimensions"),
    (b"GGUF" + struct.pack("<IQQQcIQIQ", 3, 1, 0, 1, b"t", 1, 7, 8, 0) + bytes(100), r"tensor t has shape \(7,\); rows of Q8_0 are multiples of 32"),
    (b"GGUF" + struct.pack("<IQQQcIQIQ", 3, 1, 0, 1, b"t", 1, 0, 0, 0) + bytes(100), r"tensor t has shape \(0,\)"),
    (b"GGUF" + struct.pack("<IQQQcIQIQ", 3, 1, 0, 1, b"t", 1, 8, 999, 0) + bytes(100), "tensor t has ggml type 999"),
    (b"GGUF" + struct.pack("<IQQQcIQIQ", 3, 1, 0, 1, b"t", 1, 8, 0, 2**62) + bytes(100), "is truncated: tensor t ends at byte"),
    (b"GGUF" + struct.pack("<IQQQcIQIQ", 3, 1, 0, 1, b"t", 1, 2**62, 0, 0) + bytes(100), "is truncated: tensor t ends at byte"),
    (b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + 2 * struct.pack("<QcIQIQ", 1, b"t", 1, 8, 0, 0) + bytes(100), "tensor t is there twice"),
])
def test_headers(file: Path, content: bytes, message: str) -> None:
    file.write_bytes(content)
    with pytest.raises(ModelLoadError, match=message):
        load_spec(file)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.floats(0, 0.999), flips=st.lists(st.tuples(st.floats(0, 1), st.integers(1, 255)), max_size=4), whole=st.booleans())
def test_any_damage_is_a_clear_error_or_another_model(
    hf: Any, tmp_path_factory: pytest.TempPathFactory, cut: float, flips: list[tuple[float, int]], whole: bool,
) -> None:
    folder = tmp_path_factory.getbasetemp() / "damage"
    folder.mkdir(exist_ok=True)
    if not (folder / "good").is_file():
        write_and_read(folder / "good", hf)
    content = bytearray((folder / "good").read_bytes())
    header = 4000       # most of what is interpreted
    for where, mask in flips:
        content[int(where * header)] ^= mask
    file = folder / "bad.gguf"
    file.unlink(missing_ok=True)
    file.write_bytes(content if whole else content[: int(cut * len(content))])
    start, message = time.perf_counter(), None
    try:
        load_model(file, torch.float32, "cpu")
    except ModelLoadError as error:
        message = str(error)
    assert whole or message is not None, "a truncated file was loaded"
    assert message is None or ("\n" not in message and len(message) < 2000)
    assert time.perf_counter() - start < 5


def test_a_missing_file_and_one_that_is_no_gguf(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"nowhere\.gguf': no such file"):
        LLM(tmp_path / "nowhere.gguf")
    (tmp_path / "x.gguf").write_text("hello, this is text")
    with pytest.raises(ModelLoadError, match=r"x\.gguf is no GGUF file"):
        LLM(tmp_path / "x.gguf")
    (tmp_path / "y.bin").write_text("hello")
    with pytest.raises(ModelLoadError, match="is a file and no GGUF"):
        LLM(tmp_path / "y.bin")


def test_the_rows_of_a_tensor_are_its_bytes(file: Path) -> None:
    rng = np.random.default_rng(0)
    writer, kept = gguf.GGUFWriter(file, "llama"), {}
    for i, kind in enumerate((gguf.GGMLQuantizationType.Q4_K, gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.IQ4_NL)):
        kept[f"t{i}"] = random_blocks((i + 3, 256), kind, rng)
        writer.add_tensor(f"t{i}", kept[f"t{i}"], raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    read = GGUFFile(file)
    assert list(read.tensors) == list(kept)
    for name, info in read.tensors.items():
        assert np.array_equal(read.rows(info), kept[name])
        assert info.shape[-1] == 256
