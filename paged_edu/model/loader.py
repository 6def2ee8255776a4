"""From a model's name to a model in memory: find the files, read the configuration, stream the tensors in.

Three steps, each usable alone: `resolve` (name -> directory or .gguf file), `load_spec` (configuration -> `ModelSpec`), `load_model` (tensors
-> weights). What the files look like is `checkpoint.py`'s and `gguf.py`'s affair. The model is built on torch's meta device, which has shapes
and no memory, and filled tensor by tensor, so loading needs the weights once and never initialises a number that it then overwrites.
Nothing is dropped silently: every tensor of the checkpoint is loaded, or known to be unneeded, or an error.
"""
from __future__ import annotations

import importlib.resources
import os
from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import nn

from . import catalog
from .checkpoint import Checkpoint, SafetensorsFolder, listed, progress
from .gguf import GGUFCheckpoint
from .gguf_file import MAGIC
from .gpt2 import GPT2
from .llama import Llama, Mistral, Qwen2, Qwen3
from .spec import CausalLM, ModelLoadError, ModelSpec

__all__ = ["ARCHITECTURES", "ModelLoadError", "ModelSpec", "choose_dtype", "load_model", "load_spec", "resolve"]

ARCHITECTURES: dict[str, type[CausalLM]] = {
    "GPT2LMHeadModel": GPT2, "GPT2Model": GPT2,
    "LlamaForCausalLM": Llama, "MistralForCausalLM": Mistral, "Qwen2ForCausalLM": Qwen2, "Qwen3ForCausalLM": Qwen3,
}
"""Architecture name in config.json -> the class that runs it."""
_BY_MODEL_TYPE = {  # for a config.json without "architectures"
    "gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}

EMBEDDED = ("tiny-shakespeare",)
"""Short names of the models that come with the package."""
_HUB_FILES = ["*.json", "*.txt", "*.safetensors", "*.model", "*.jinja"]

DTYPES = {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16, "bfloat16": torch.bfloat16}
_ALIASES = {"float": "float32", "half": "float16"}
_HEAD = "lm_head.weight"


def resolve(model: str | os.PathLike[str]) -> Path:
    """Where a model lies: the directory of a short name (`EMBEDDED`, `catalog.PULLED`), a local directory or .gguf file, or the directory
    of a name on the Hugging Face hub (downloaded once).

    Raises ModelLoadError saying what was tried. A path starts with ``.``, ``/`` or ``~``, ends with .gguf, or names what exists.
    """
    name = os.fspath(model)
    if name in EMBEDDED:
        return _embedded(name)
    if name in catalog.PULLED:
        return catalog.pulled(name)
    path = Path(name).expanduser()
    if name and path.is_dir():
        return path
    if path.is_file():
        if path.suffix.lower() == ".gguf" or _begins_with(path, MAGIC):
            return path
        raise ModelLoadError(f"{name} is a file and no GGUF; give a .gguf file or the directory that holds config.json")
    if name.lower().endswith(".gguf"):
        raise ModelLoadError(f"{name!r}: no such file")
    if not name or name.startswith((".", "/", "\\", "~")) or path.is_absolute():
        raise ModelLoadError(f"{name!r}: no such directory")
    return _download(name)


def _begins_with(path: Path, magic: bytes) -> bool:
    with suppress(OSError), path.open("rb") as file:
        return file.read(len(magic)) == magic
    return False


def _embedded(name: str) -> Path:
    tried = []
    with suppress(ModuleNotFoundError):  # not installed: the package is run from its checkout, where the folder lies beside it
        tried.append(Path(str(importlib.resources.files("paged_edu.data"))) / name)
    tried.append(Path(__file__).resolve().parents[2] / "data" / name)
    for path in tried:
        if path.is_dir():
            return path
    raise ModelLoadError(f"the embedded model {name!r} is not in this installation; looked at {', '.join(map(str, tried))}")


def _download(name: str) -> Path:
    known = [*EMBEDDED, *catalog.PULLED]
    near = get_close_matches(name, known, 1)
    tried = f"{name!r} is no short name ({', '.join(known)}" + (f"; did you mean {near[0]}?" if near else "") + ") and no local directory"
    try:
        from huggingface_hub import snapshot_download
    except ImportError as e:
        raise ModelLoadError(f"{tried}; to get it from the Hugging Face hub, install huggingface_hub") from e
    try:
        # "*" matches slashes too: without ignore_patterns this would fetch other formats from subfolders.
        return Path(snapshot_download(name, allow_patterns=_HUB_FILES, ignore_patterns=["*/*"]))
    except Exception as e:  # the hub's client has a dozen error types, and its HTTP library more
        why = (str(e).splitlines() or [""])[0]
        raise ModelLoadError(f"{tried}, and the Hugging Face hub did not give it ({type(e).__name__}: {why[:160]})") from e


def choose_dtype(dtype: str, spec: ModelSpec, device: torch.device | str) -> torch.dtype:
    """The type to load the weights in.

    "auto": float32 off CUDA (half types are slow there); on CUDA the checkpoint's own, and float16 on GPUs before capability 8 (a T4),
    which have no bfloat16, and tensor cores for float16 only. Otherwise one of `DTYPES`, or vLLM's "half" and "float". Raises ValueError
    naming the choices.
    """
    if dtype == "auto":
        if torch.device(device).type != "cuda":
            return torch.float32
        return torch.float16 if torch.cuda.get_device_capability(device) < (8, 0) else spec.dtype
    if (chosen := DTYPES.get(_ALIASES.get(dtype, dtype))) is None:
        raise ValueError(f"dtype {dtype!r} is not one of auto, {', '.join([*DTYPES, *_ALIASES])}")
    return chosen


def load_spec(path: str | os.PathLike[str]) -> ModelSpec:
    """Read the configuration of a model directory (config.json and, if there is one, generation_config.json) or of a GGUF file.

    Raises ModelLoadError for a missing or broken file, an architecture that isn't supported, or a value that can't be used.
    """
    return _read_spec(_checkpoint(Path(path)))


def _checkpoint(path: Path) -> Checkpoint:
    return GGUFCheckpoint(path) if path.is_file() else SafetensorsFolder(path)


def _read_spec(checkpoint: Checkpoint) -> ModelSpec:
    path, (config, generation) = checkpoint.path, checkpoint.read_config()
    names, kind = config.get("architectures") or [], config.get("model_type")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or not isinstance(kind, str | None):
        raise ModelLoadError(f"{path}: architectures must be a list of names and model_type a name, not {names!r} and {kind!r}")
    architecture = names[0] if names else _BY_MODEL_TYPE.get(kind or "", kind)
    if architecture not in ARCHITECTURES:
        raise ModelLoadError(f"{path}: architecture {architecture!r} is not supported; supported are {', '.join(ARCHITECTURES)}")
    if config.get("quantization_config"):
        raise ModelLoadError(f"{path}: quantization_config is not supported: quantised checkpoints can't be loaded yet")
    eos = dict.fromkeys([*_token_ids(config, "eos_token_id"), *_token_ids(generation, "eos_token_id")])
    try:
        return ARCHITECTURES[architecture].spec_from(
            config, architecture=architecture, eos_token_ids=tuple(eos),
            bos_token_id=next(iter(_token_ids(config, "bos_token_id")), None), dtype=_stored_dtype(checkpoint, config),
        )
    except ModelLoadError as e:
        if checkpoint.from_config_json:
            raise
        raise ModelLoadError(f"{path}: {str(e).removeprefix('config.json: ')}") from e


def load_model(path: str | os.PathLike[str], dtype: torch.dtype, device: torch.device | str) -> tuple[CausalLM, ModelSpec]:
    """Build the model in ``path`` with its weights cast to ``dtype`` on ``device``, ready to run (no gradients), and its spec.

    Reads model.safetensors, or the shards that model.safetensors.index.json names, in float64, float32, float16 or bfloat16; from a
    GGUF file also every type that the gguf package can dequantise. Raises ModelLoadError, beyond `load_spec`'s reasons, for a missing
    or broken file and for tensors that are missing, unexpected or of a wrong shape.
    """
    checkpoint = _checkpoint(Path(path))
    spec = _read_spec(checkpoint)
    try:
        with torch.device("meta"):
            model = ARCHITECTURES[spec.architecture](spec)
    except RuntimeError as e:       # torch cannot even describe a tensor of that size
        raise ModelLoadError(f"{path}: config.json describes tensors that are too large: {str(e).splitlines()[0]}") from e
    _fill(model, spec, checkpoint, dtype, torch.device(device))
    model.tie_weights()
    # The weights are there already; this moves buffers, which are computed on the CPU and not in the file.
    return model.to(device).requires_grad_(False).eval(), spec


def _fill(model: CausalLM, spec: ModelSpec, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> None:
    """Stream every tensor of the checkpoint into its parameter; account for every name on both sides."""
    wanted = dict(model.named_parameters())  # a tied head is listed once, as the embedding
    missing, unexpected = set(wanted), []
    for stored in progress(checkpoint):
        ours = model.rename(stored.name)
        if ours is None or (ours == _HEAD and spec.tie_word_embeddings):
            continue  # a tied head is the embedding, whatever the file holds
        if ours not in wanted:
            unexpected.append(f"{stored.name} ({stored.file})")
            continue
        if ours not in missing:
            raise ModelLoadError(f"{stored.file}: tensor {stored.name} is there twice under two names")
        if stored.shape != (expected := tuple(wanted[ours].shape)):
            raise ModelLoadError(f"{stored.file}: tensor {stored.name} has shape {stored.shape}, the configuration makes it {expected}")
        # copy=True: otherwise a tensor that needs no cast would stay a view of the mapped file.
        _set(model, ours, stored.read().to(device=device, dtype=dtype, copy=True))
        missing.remove(ours)
    if missing:
        hint = " (config.json says tie_word_embeddings: false)" if _HEAD in missing else ""
        raise ModelLoadError(f"tensors missing from the checkpoint: {listed(missing)}{hint}")
    if unexpected:
        raise ModelLoadError(f"tensors that {spec.architecture} does not have: {listed(unexpected)}")


def _set(model: nn.Module, name: str, tensor: torch.Tensor) -> None:
    parent, _, leaf = name.rpartition(".")
    model.get_submodule(parent).register_parameter(leaf, nn.Parameter(tensor, requires_grad=False))


def _token_ids(config: Mapping[str, Any], key: str) -> list[int]:
    value = config.get(key)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for i in ids:
        if not isinstance(i, int) or isinstance(i, bool) or i < 0:
            raise ModelLoadError(f"{key} must be a token id, a list of them or null, not {value!r}")
    return ids


def _stored_dtype(checkpoint: Checkpoint, config: Mapping[str, Any]) -> torch.dtype:
    """What config.json says ("dtype", or "torch_dtype" before transformers 5), else what the checkpoint's tensors are."""
    name = config.get("dtype") or config.get("torch_dtype")
    if name is None:
        return checkpoint.stored_dtype()
    if (dtype := DTYPES.get(str(name).removeprefix("torch."))) is None:
        raise ModelLoadError(f"{checkpoint.path}: checkpoint dtype {name!r} is not one of {', '.join([*DTYPES, *_ALIASES])}")
    return dtype
