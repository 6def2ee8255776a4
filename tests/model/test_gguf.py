"""GGUF files: the same logits as transformers, for every type of numbers and every option that is served."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from ggufs import ALL_TYPES, permute, write_gguf
from llamas import VOCAB, random_llama
from logits import difference, expected, prompts, run
from parity import check, greedy, prompts_of
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from paged_edu import LLM
from paged_edu.model import gguf as ours
from paged_edu.model.gguf import ModelLoadError, hf_name, reorder_rows
from paged_edu.model.loader import load_model, load_spec, resolve

SMALL = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
CASES: dict[str, tuple[str, dict[str, Any], tuple[str, ...], dict[str, Any]]] = {
    "multi-head": ("llama 1, multi-head", {}, ("F32",), {}),
    "three KV heads": ("grouped queries", {**SMALL, "hidden_size": 96}, ("Q8_0", "Q4_0"), {}),
    "multi-query, tied": ("multi-query, tied", SMALL, ("Q4_1", "Q5_0", "Q5_1"), {}),
    "heads of another size": ("explicit head_dim", {"hidden_size": 64}, ("F16", "BF16", "Q8_0"), {}),
    "biases": ("attention and mlp biases, gelu", {"hidden_act": "silu"}, ("F32",), {}),
    "window": ("mistral", SMALL, ("Q8_0",), {"attention.sliding_window": 7}),
    "window beyond the context": ("llama 1, multi-head", {}, ("F32",), {"attention.sliding_window": 96}),
    "linear": ("linear", {}, ("F32",), LINEAR),
    "linear, old name": ("linear", {}, ("F32",), {"rope.scale_linear": 4.0}),
    "linear, without a type": ("linear", {}, ("F32",), {"rope.scaling.factor": 4.0}),
    "a factor that is none": ("llama 1, multi-head", {}, ("F32",), {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}),
    "values a layer": ("llama 1, multi-head", {}, ("F32",), {"attention.head_count_kv": [4, 4, 4], "feed_forward_length": [48] * 3}),
    "qwen2": ("qwen2", SMALL, ("Q8_0", "F16"), {}),
    "qwen2, multi-query, tied": ("qwen2", {**SMALL, "num_key_value_heads": 1, "tie_word_embeddings": True}, ("Q5_1", "BF16"), {}),
    "qwen2, linear": ("qwen2", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 100.0}}, ("F32",), LINEAR),
}


@pytest.mark.parametrize("name", CASES)
def test_the_logits_are_transformers(tmp_path: Path, name: str) -> None:
    variant, options, kinds, keys = CASES[name]
    hf = random_llama(tmp_path / "hf", variant, dtype=torch.float32, **options)
    held = write_gguf(tmp_path / "x.gguf", hf, kinds, keys=keys)
    model, spec = load_model(tmp_path / "x.gguf", torch.float64, "cpu")
    assert spec.tie_word_embeddings == hf.config.tie_word_embeddings
    assert difference(run(model, prompts(), [7, 64, 1], 3), expected(held.double(), prompts())) < 1e-9
    in_float32, _ = load_model(tmp_path / "x.gguf", torch.float32, "cpu")
    assert difference(run(in_float32, prompts(), [64, 64, 64], dtype=torch.float32), expected(held.float(), prompts())) < 1e-4


def test_every_type_that_gguf_dequantises_is_in_the_list() -> None:
    known = {kind.name for kind in gguf.GGMLQuantizationType if readable(kind)}
    assert known - {"NVFP4", "Q1_0"} == set(ALL_TYPES)      # NVFP4 and Q1_0 came to the gguf package later


def readable(kind: Any) -> bool:
    try:
        gguf.quants.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8), kind)
    except NotImplementedError:
        return False
    return True


@pytest.mark.parametrize(("variant", "kind"), [*(("grouped queries", kind) for kind in ALL_TYPES), ("qwen2", "Q4_K"), ("qwen2", "Q6_K")])
def test_every_type_of_numbers(tmp_path: Path, variant: str, kind: str) -> None:
    hf = random_llama(tmp_path / "hf", variant, dtype=torch.float32, hidden_size=256, intermediate_size=256, num_hidden_layers=1,
                      num_attention_heads=4, num_key_value_heads=2, head_dim=64)
    held = write_gguf(tmp_path / "x.gguf", hf, (kind,))
    assert {t.tensor_type.name for t in gguf.GGUFReader(tmp_path / "x.gguf").tensors if len(t.shape) == 2} == {kind}
    model, _ = load_model(tmp_path / "x.gguf", torch.float64, "cpu")
    assert difference(run(model, prompts([9, 3]), [64, 2]), expected(held.double(), prompts([9, 3]))) < 1e-9


@pytest.mark.parametrize(("variant", "options"), [
    ("three KV heads", {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3}), ("multi-query, tied", {}), ("qwen2", {}),
])
def test_transformers_reads_the_same_file_as_the_same_model(tmp_path: Path, variant: str, options: dict[str, Any]) -> None:
    name = "grouped queries" if variant == "three KV heads" else variant
    write_gguf(tmp_path / "x.gguf", random_llama(tmp_path / "hf", name, dtype=torch.float32, **SMALL | options), ("Q8_0", "Q4_1"))
    theirs = load_theirs(tmp_path / "x.gguf")
    model, _ = load_model(tmp_path / "x.gguf", torch.float64, "cpu")
    assert difference(run(model, prompts(), [64, 7, 1]), expected(theirs, prompts())) < 1e-9


def load_theirs(file: Path, dtype: torch.dtype = torch.float64) -> Any:
    """What ``from_pretrained(gguf_file=...)`` does, which itself insists on another package (accelerate)."""
    config = AutoConfig.for_model(**load_gguf_checkpoint(file)["config"])
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").to(dtype)
    tensors = load_gguf_checkpoint(file, return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    return model.eval()


# --- RoPE factors, as Llama 3's files have them ---


def plain_frequencies(hf: Any) -> torch.Tensor:
    d = hf.config.head_dim
    return 1.0 / hf.config.rope_parameters["rope_theta"] ** (torch.arange(0, d, 2, dtype=torch.float32) / d)


def test_rope_freqs_are_llama3_scaling(tmp_path: Path) -> None:  # B90
    hf = random_llama(tmp_path / "hf", "llama3", dtype=torch.float32)
    scaled = hf.model.rotary_emb.inv_freq
    factors = plain_frequencies(hf) / scaled
    assert factors.min() == 1
    assert factors.max() > 7.9
    write_gguf(tmp_path / "x.gguf", hf, rope_freqs=factors)
    model, spec = load_model(tmp_path / "x.gguf", torch.float32, "cpu")
    assert spec.config["rope_parameters"]["freq_factors"] == factors.double().tolist()
    torch.testing.assert_close(model.rotary_emb.inv_freq, scaled, rtol=2e-7, atol=0)
    assert difference(run(model, prompts(), [7, 64, 1], dtype=torch.float32), expected(hf, prompts())) < 1e-4


@pytest.mark.parametrize("linear", [False, True])
def test_rope_freqs_are_exact_and_divide_on_top_of_a_linear_factor(tmp_path: Path, linear: bool) -> None:
    hf = random_llama(tmp_path / "hf", "linear" if linear else "llama 1, multi-head", dtype=torch.float32)
    factors = torch.tensor([1.0, 1.5, 3.25, 8.0])
    held = write_gguf(tmp_path / "x.gguf", hf, rope_freqs=factors, keys=LINEAR if linear else {}).double()
    held.model.rotary_emb.inv_freq = plain_frequencies(hf) / factors / (4 if linear else 1)
    model, _ = load_model(tmp_path / "x.gguf", torch.float64, "cpu")
    assert difference(run(model, prompts(), [7, 64, 1]), expected(held, prompts())) < 1e-9


# --- without it the parity is gone ---


def test_each_step_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 8}
    hf = random_llama(tmp_path / "hf", "grouped queries", dtype=torch.float32, **options)
    factors = [1.0, 2.0, 4.0, 8.0]
    held = write_gguf(tmp_path / "x.gguf", hf, rope_freqs=factors).double()
    held.model.rotary_emb.inv_freq = plain_frequencies(hf) / torch.tensor(factors)
    want, right = expected(held, prompts()), reorder_rows

    def broken() -> float:
        model, _ = load_model(tmp_path / "x.gguf", torch.float64, "cpu")
        return difference(run(model, prompts(), [64, 64, 64]), want)

    assert broken() < 1e-9
    monkeypatch.setattr(ours, "reorder_rows", lambda tensor, heads: tensor)
    assert broken() > 1e-3, "rows as they are"
    monkeypatch.setattr(ours, "reorder_rows", lambda tensor, heads: right(tensor, 8))
    assert broken() > 1e-3, "k with the number of query heads"
    monkeypatch.setattr(ours, "reorder_rows", lambda tensor, heads: torch.from_numpy(permute(tensor.numpy(), heads)))
    assert broken() > 1e-3, "the other way round"
    monkeypatch.setattr(ours, "reorder_rows", right)
    monkeypatch.setattr(ours, "_ROPE_FREQS", "rope_freqs.bias")
    with pytest.raises(ModelLoadError, match=r"does not have: rope_freqs\.weight"):
        broken()
    monkeypatch.undo()
    write_gguf(tmp_path / "x.gguf", hf)
    assert broken() > 1e-3, "without the factors"
    qwen = random_llama(tmp_path / "hf", "qwen2", dtype=torch.float32)
    held = write_gguf(tmp_path / "x.gguf", qwen).double()
    want = expected(held, prompts())
    assert broken() < 1e-9
    monkeypatch.setattr(ours.GGUFCheckpoint, "_read", lambda self, info: right(ours.read_tensor(self.file, info), 2) if "attn_k" in info.name
                        else ours.read_tensor(self.file, info))
    assert broken() > 1e-3, "qwen2's rows are not reordered"


def test_rows_of_k_go_by_the_kv_heads() -> None:  # B93
    hf_rows = torch.arange(8.0)[:, None]
    in_gguf = permute(hf_rows.numpy(), 2)
    assert in_gguf[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert torch.equal(reorder_rows(torch.from_numpy(in_gguf), 2), hf_rows)
    assert reorder_rows(hf_rows, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    wide = torch.arange(6.0)        # a bias, one head of 6: the two orders differ from each other
    assert reorder_rows(wide, 1).tolist() == [0, 2, 4, 1, 3, 5]
    assert permute(wide.numpy(), 1).tolist() == [0, 3, 1, 4, 2, 5]


def test_names() -> None:
    assert hf_name("blk.12.attn_k.bias") == "model.layers.12.self_attn.k_proj.bias"
    assert hf_name("output.weight") == "lm_head.weight"
    assert hf_name("blk.0.attn_rot_embd.weight") == "model.layers.0.self_attn.rotary_emb.inv_freq"
    for name in ("blk.0.attn_qkv.weight", "nothing.weight", "blk.0.ffn_up.scale", "x"):
        assert hf_name(name) == name


def test_bfloat16_words(tmp_path: Path) -> None:  # B95
    words = np.array([0x3F80, 0xC000, 0x3FC0, 0x0000, 0x8000, 0x7F80, 0x3DCD, 0x3F80], dtype=np.uint16)
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tensor("words", words.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = ours.GGUFFile(tmp_path / "x.gguf")
    got = ours.read_tensor(file, file.tensors["words"])
    assert got.dtype == torch.bfloat16
    assert got.tolist() == [1.0, -2.0, 1.5, 0.0, -0.0, float("inf"), 0.10009765625, 1.0]
    assert got.signbit().tolist() == [False, True, False, False, True, False, False, False]


# --- the spec, and the whole engine ---


def test_spec(tmp_path: Path) -> None:
    hf = random_llama(tmp_path / "hf", "grouped queries", dtype=torch.float32, **SMALL | {"hidden_size": 96})
    file = tmp_path / "x.gguf"
    for kinds, dtype in ((("F32",), torch.float32), (("BF16",), torch.bfloat16), (("F16",), torch.float16), (("Q8_0",), torch.float16)):
        write_gguf(file, hf, kinds)
        assert load_spec(file).dtype == dtype
    assert resolve(file) == file
    spec = load_spec(file)
    assert (spec.architecture, spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == ("LlamaForCausalLM", 3, 6, 3, 16)
    assert (spec.hidden_size, spec.vocab_size, spec.max_positions, spec.eos_token_ids, spec.bos_token_id) == (96, VOCAB, 96, (), None)
    assert spec.config["rms_norm_eps"] == 1e-6
    other_name = tmp_path / "model.bin"
    file.rename(other_name)
    assert resolve(other_name) == other_name
    other_name.rename(tmp_path / "y.gguf")
    with pytest.raises(ModelLoadError, match=r"config\.json is missing, but there is a GGUF file: give its path, .*y\.gguf"):
        load_spec(tmp_path)


def test_everything_that_ends_a_turn_is_an_eos(tmp_path: Path) -> None:
    hf = random_llama(tmp_path / "hf", "llama 1, multi-head", dtype=torch.float32)
    tokens = [f"t{i}" for i in range(VOCAB)]
    tokens[3], tokens[4], tokens[5], tokens[6] = "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "</s>"
    types = [1] * VOCAB
    types[3] = types[4] = types[5] = 3      # "</s>" is an ordinary token here
    ids = {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 9, "tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.padding_token_id": 2}
    write_gguf(tmp_path / "x.gguf", hf, tokenizer={"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types, **ids})
    spec = load_spec(tmp_path / "x.gguf")
    assert spec.eos_token_ids == (9, 5, 3, 4)
    assert spec.bos_token_id == 1


@pytest.mark.parametrize("name", ["three KV heads", "qwen2"])
def test_through_the_engine_under_pressure(tmp_path: Path, name: str) -> None:
    variant, options, kinds, keys = CASES[name]
    held = write_gguf(tmp_path / "x.gguf", random_llama(tmp_path / "hf", variant, dtype=torch.float32, **options), kinds, keys=keys).double()
    with LLM(tmp_path / "x.gguf", dtype="float64", block_size=3, num_gpu_blocks_override=20, skip_tokenizer_init=True) as llm:
        outputs = check(llm, held, prompts_of((17, 1, 40, 5), VOCAB, 1), [greedy(n) for n in (12, 20, 7, 16)])
        assert sum(o.metrics.num_preemptions for o in outputs) > 0
