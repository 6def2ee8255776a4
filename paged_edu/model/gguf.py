"""A GGUF file as a checkpoint: its metadata becomes a config.json's content, its tensors those that Hugging Face would store.

Three things differ from a Hugging Face checkpoint. Tensors have other names. Numbers may be quantised; they are dequantised here, with
the ``gguf`` package, and run as any others. And files of architecture ``llama`` hold the rows of q and k in another order: their
RoPE turns neighbouring rows (0, 1), ours (0, head_dim / 2) as in `rope.py`. Files of ``qwen2`` are not reordered.

What a file asks for beyond that is refused by name: experts, other architectures and RoPE scalings, split files.
"""
from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .checkpoint import Checkpoint, StoredTensor
from .gguf_file import GGUFFile, TensorInfo
from .spec import LARGEST_INT, ModelLoadError

ARCHITECTURES = ("llama", "qwen2")
"""The values of general.architecture that are served. "llama" is also Mistral's, which has a window and is the same otherwise."""

_PLAIN = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_ROPE_FREQS = "rope_freqs.weight"
_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_IN_LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NAME = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<part>\w+)\.(?P<kind>weight|bias)")
_TURNED = re.compile(r"blk\.\d+\.attn_(?P<which>[qk])\.(weight|bias)")
_CONTROL = 3    # in tokenizer.ggml.token_type
_END_IDS = ("eos_token_id", "eot_token_id", "eom_token_id")
_ENDS = {
    "</s>", "<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|eot|>", "<|end_of_turn|>",
    "<end_of_turn>", "<|END_OF_TURN_TOKEN|>", "<EOT>", "< EOT >",
}
"""Control tokens that end a text or a turn whatever the model; files often name only one of those that they have."""


class GGUFCheckpoint(Checkpoint):
    """One GGUF file."""

    from_config_json = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = GGUFFile(path)
        self._config = read_config(self.file)
        _check_types(self.file)

    def read_config(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return self._config, {}

    def stored_dtype(self) -> torch.dtype:
        """The type of the first matrix; float16, which the scales of most quantised blocks have, where that is quantised."""
        first = next((info for info in self.file.tensors.values() if len(info.shape) > 1), None)
        return torch.float32 if first is None else _PLAIN.get(first.type_name, torch.float16)

    @property
    def slow(self) -> bool:     # type: ignore[override]
        return any(info.type_name not in _PLAIN for info in self.file.tensors.values())

    @property
    def num_tensors(self) -> int:
        return len(self.file.tensors)

    def tensors(self) -> Iterator[StoredTensor]:
        for info in self.file.tensors.values():
            if info.name != _ROPE_FREQS:    # a setting, which read_config has taken
                yield StoredTensor(hf_name(info.name), info.shape, self.path.name, partial(self._read, info))

    def _read(self, info: TensorInfo) -> Tensor:
        tensor = read_tensor(self.file, info)
        turned = _TURNED.fullmatch(info.name)
        if turned is None or self._config["model_type"] == "qwen2":
            return tensor
        heads = self._config["num_attention_heads" if turned["which"] == "q" else "num_key_value_heads"]
        return reorder_rows(tensor, heads)


def hf_name(name: str) -> str:
    """``blk.0.attn_q.weight`` -> ``model.layers.0.self_attn.q_proj.weight``; a name that has no counterpart stays as it is."""
    match = _NAME.fullmatch(name)
    if match is None:
        return name
    layer, part, kind = match["layer"], match["part"], match["kind"]
    if layer is None:
        return f"{_OUTSIDE[part]}.{kind}" if part in _OUTSIDE else name
    if part == "attn_rot_embd":     # stored frequencies of very old files; the model computes its own
        return f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"
    return f"model.layers.{layer}.{_IN_LAYER[part]}.{kind}" if part in _IN_LAYER else name


def reorder_rows(tensor: Tensor, num_heads: int) -> Tensor:
    """From GGUF's order of q's or k's rows to Hugging Face's; ``num_heads`` is that of the tensor: for k the number of KV heads.

    ``[num_heads * head_dim, ...]``, same shape. Within each head, rows 0, 1, 2, 3, ... hold rows 0, d, 1, d + 1, ... with d = head_dim / 2.
    """
    pairs = tensor.reshape(num_heads, -1, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)


def read_tensor(file: GGUFFile, info: TensorInfo) -> Tensor:
    """A tensor's numbers in its own type, or in float32 where that is quantised. Raises ModelLoadError for a type that can't be read."""
    rows = file.rows(info)
    if (dtype := _PLAIN.get(info.type_name)) is not None:
        return torch.from_numpy(np.array(rows)).view(dtype)
    return torch.from_numpy(_dequantise(file, info, rows))


def _check_types(file: GGUFFile) -> None:
    """Dequantise one row of each type, so that one that can't be read is refused before a minute has gone into the others."""
    for info in {info.type_name: info for info in file.tensors.values() if info.type_name not in _PLAIN}.values():
        _dequantise(file, info, np.zeros((1, info.row_bytes), dtype=np.uint8))


def _dequantise(file: GGUFFile, info: TensorInfo, rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    try:
        numbers: npt.NDArray[np.float32] = dequantize(rows, GGMLQuantizationType[info.type_name])
    except NotImplementedError as error:
        raise ModelLoadError(f"{file.path}: tensor {info.name} is {info.type_name}, which the gguf package cannot dequantise") from error
    return numbers


# -- metadata ----------------------------------------------------------------------------------------------------------------------
class _Keys:
    """The metadata below one prefix, checked on the way out."""

    def __init__(self, file: GGUFFile, prefix: str) -> None:
        self.path, self.prefix, self.metadata = file.path, prefix, file.metadata

    def get(self, key: str, default: Any = None) -> Any:
        """As it stands; of an array with a value a layer, the one that all of them share."""
        value = self.metadata.get(f"{self.prefix}.{key}", default)
        if isinstance(value, list):
            if len(set(map(repr, value))) != 1:
                raise ModelLoadError(f"{self.path}: {self.prefix}.{key} differs between layers, which is not supported: {value!r}")
            return value[0]
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= LARGEST_INT:
            raise ModelLoadError(f"{self.path}: {self.prefix}.{key} must be an integer from 1 to {LARGEST_INT}, not {value!r}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number, as the decimal that a person would have written: files hold float32, and 9.9999997e-06 was 1e-05."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise ModelLoadError(f"{self.path}: {self.prefix}.{key} must be a positive number, not {value!r}")
        return float(str(np.float32(value)))


def read_config(file: GGUFFile) -> dict[str, Any]:
    """What config.json would hold, with transformers' names. Raises ModelLoadError naming the key or tensor that can't be served."""
    path, kind = file.path, file.metadata.get("general.architecture")
    if (parts := file.metadata.get("split.count", 0)) not in (0, 1):
        raise ModelLoadError(f"{path} is one of {parts} parts; split GGUF files are not supported: join them first (llama-gguf-split --merge)")
    if kind not in ARCHITECTURES:
        raise ModelLoadError(f"{path}: architecture {kind!r} is not supported; supported in GGUF files are {', '.join(ARCHITECTURES)}")
    keys, names = _Keys(file, kind), file.tensors.keys()
    if (experts := keys.get("expert_count", 0)) or any("_exps." in name for name in names):
        raise ModelLoadError(f"{path}: a mixture of experts (expert_count {experts}) is not supported")
    heads, hidden = keys.integer("attention.head_count"), keys.integer("embedding_length")
    if keys.get("attention.key_length") is None and hidden % heads:
        raise ModelLoadError(f"{path}: embedding_length {hidden} is not a multiple of head_count {heads}, and key_length is not given")
    head_dim = keys.integer("attention.key_length", hidden // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if (other := keys.integer(key, head_dim)) != head_dim:
            raise ModelLoadError(f"{path}: {kind}.{key} {other} is not supported: the head size is {head_dim}")
    config = {
        "architectures": ["LlamaForCausalLM" if kind == "llama" else "Qwen2ForCausalLM"], "model_type": kind, "hidden_act": "silu",
        "hidden_size": hidden, "intermediate_size": keys.integer("feed_forward_length"), "num_hidden_layers": keys.integer("block_count"),
        "num_attention_heads": heads, "num_key_value_heads": keys.integer("attention.head_count_kv", heads), "head_dim": head_dim,
        "max_position_embeddings": keys.integer("context_length"), "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "vocab_size": _vocab_size(file, keys), "tie_word_embeddings": "output.weight" not in names,
        "rope_parameters": _read_rope(file, keys, head_dim),
    }
    if kind == "llama":
        config |= {"attention_bias": _has(names, "attn_q.bias"), "mlp_bias": _has(names, "ffn_gate.bias")}
    return config | _window(keys, kind) | _token_ids(file, config["vocab_size"])


def _has(names: Any, tensor: str) -> bool:
    return any(name.endswith(f".{tensor}") for name in names)


def _vocab_size(file: GGUFFile, keys: _Keys) -> int:
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    embedding = file.tensors.get("token_embd.weight")
    known = len(tokens) if isinstance(tokens, list) else embedding.shape[0] if embedding is not None else None
    return keys.integer("vocab_size", known)


def _read_rope(file: GGUFFile, keys: _Keys, head_dim: int) -> dict[str, Any]:
    """The RoPE settings in the spelling of `rope.read_rope`."""
    kind = keys.get("rope.scaling.type", "linear")      # without a type a factor is a linear one
    if kind not in ("none", "linear"):
        raise ModelLoadError(f"{file.path}: RoPE scaling {kind!r} is not supported; supported in GGUF files are none and linear, and {_ROPE_FREQS}")
    if long := [name for name in file.tensors if name.startswith("rope_factors_")]:
        raise ModelLoadError(f"{file.path}: {', '.join(long)}: RoPE scaling 'longrope' is not supported")
    if (attention := keys.get("rope.scaling.attn_factor", 1.0)) != 1.0:
        raise ModelLoadError(f"{file.path}: {keys.prefix}.rope.scaling.attn_factor {attention} is not supported")
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": keys.number("rope.freq_base", 10000.0)}
    old_name = "rope.scale_linear" if keys.get("rope.scaling.factor") is None else "rope.scaling.factor"
    if kind == "linear" and keys.get(old_name, 0.0) not in (0.0, 1.0):
        rope |= {"rope_type": "linear", "factor": keys.number(old_name)}
    if (factors := file.tensors.get(_ROPE_FREQS)) is not None:
        if factors.shape != (head_dim // 2,):
            raise ModelLoadError(f"{file.path}: {_ROPE_FREQS} has shape {factors.shape}, a head has {head_dim // 2} frequencies")
        rope["freq_factors"] = read_tensor(file, factors).double().tolist()
    return rope


def _window(keys: _Keys, kind: str) -> dict[str, Any]:
    """A sliding window makes a Llama a Mistral; 0, and one as long as the context, is none."""
    if keys.get("attention.sliding_window", 0) == 0:
        return {}
    window = keys.integer("attention.sliding_window")
    if window >= keys.integer("context_length"):
        return {}
    if kind != "llama":
        raise ModelLoadError(f"{keys.path}: {kind}.attention.sliding_window {window} is not supported: the file does not say which layers have it")
    return {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": window}


def _token_ids(file: GGUFFile, vocab_size: int) -> dict[str, Any]:
    """bos, eos and pad. Everything that ends a turn is an eos: what the metadata names, and the control tokens of `_ENDS`."""
    keys = _Keys(file, "tokenizer.ggml")
    named = {key: file.metadata.get(f"tokenizer.ggml.{key}") for key in ("bos_token_id", "padding_token_id", *_END_IDS)}
    for key, value in named.items():
        if value is not None and (not isinstance(value, int) or not 0 <= value < vocab_size):
            raise ModelLoadError(f"{file.path}: tokenizer.ggml.{key} must be a token id below {vocab_size}, not {value!r}")
    tokens, types = (keys.metadata.get(f"tokenizer.ggml.{key}") or [] for key in ("tokens", "token_type"))
    by_text = [i for i, (token, kind) in enumerate(zip(tokens, types)) if kind == _CONTROL and token in _ENDS]
    eos = list(dict.fromkeys([*(named[key] for key in _END_IDS if named[key] is not None), *by_text]))
    return {"bos_token_id": named["bos_token_id"], "eos_token_id": eos or None, "pad_token_id": named["padding_token_id"]}
