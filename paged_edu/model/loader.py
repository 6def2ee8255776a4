"""From a model's name to a model in memory: find the files, read the json, stream the tensors in.

Three steps, each usable alone: `resolve` (name -> directory), `load_spec` (config.json -> `ModelSpec`), `load_model` (safetensors ->
weights). The model is built on torch's meta device, which has shapes and no memory, and filled tensor by tensor, so loading
needs the weights once and never initialises a number that it then overwrites. Nothing is dropped silently: every tensor of the
checkpoint is loaded, or known to be unneeded, or an error.
"""
from __future__ import annotations

import importlib.resources
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

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
_FILE_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_HEAD = "lm_head.weight"
_SHOWN = 5  # tensor names in one message


def resolve(model: str | os.PathLike[str]) -> Path:
    """The directory of a model: a short name (`EMBEDDED`), a local directory, or a name on the Hugging Face hub (downloaded once).

    Raises ModelLoadError saying what was tried. A path starts with ``.``, ``/`` or ``~`` or names an existing directory.
    """
    name = os.fspath(model)
    if name in EMBEDDED:
        return _embedded(name)
    path = Path(name).expanduser()
    if name and path.is_dir():
        return path
    if name.endswith(".gguf"):
        raise ModelLoadError(f"{name}: GGUF files are not supported yet; give a Hugging Face directory with {_SINGLE}")
    if path.is_file():
        raise ModelLoadError(f"{name} is a file; give the directory that holds config.json")
    if not name or name.startswith((".", "/", "\\", "~")) or path.is_absolute():
        raise ModelLoadError(f"{name!r}: no such directory")
    return _download(name)


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
    tried = f"{name!r} is no short name ({', '.join(EMBEDDED)}) and no local directory"
    try:
        from huggingface_hub import snapshot_download
    except ImportError as e:
        raise ModelLoadError(f"{tried}; to get it from the Hugging Face hub, install huggingface_hub") from e
    try:
        # "*" matches slashes too: without ignore_patterns this would fetch other formats from subfolders.
        return Path(snapshot_download(name, allow_patterns=_HUB_FILES, ignore_patterns=["*/*"]))
    except Exception as e:  # the hub's client has a dozen error types, and its HTTP library more
        raise ModelLoadError(f"{tried}, and the Hugging Face hub did not give it ({type(e).__name__}: {e})") from e


def choose_dtype(dtype: str, spec: ModelSpec, device: torch.device | str) -> torch.dtype:
    """The type to load the weights in.

    "auto": float32 off CUDA (half types are slow there); on CUDA the checkpoint's own, except that bfloat16 becomes float16 on a GPU that
    lacks it (T4). Otherwise one of `DTYPES`, or vLLM's "half" and "float". Raises ValueError naming the choices.
    """
    if dtype == "auto":
        if torch.device(device).type != "cuda":
            return torch.float32
        no_bf16 = spec.dtype == torch.bfloat16 and torch.cuda.get_device_capability(device) < (8, 0)
        return torch.float16 if no_bf16 else spec.dtype
    if (chosen := DTYPES.get(_ALIASES.get(dtype, dtype))) is None:
        raise ValueError(f"dtype {dtype!r} is not one of auto, {', '.join([*DTYPES, *_ALIASES])}")
    return chosen


def load_spec(path: str | os.PathLike[str]) -> ModelSpec:
    """Read config.json and, if there is one, generation_config.json of a model directory.

    Raises ModelLoadError for a missing or broken file, an architecture that isn't supported, or a value that can't be used.
    """
    path = Path(path)
    config = _read_json(path / "config.json")
    names, kind = config.get("architectures") or [], config.get("model_type")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or not isinstance(kind, str | None):
        raise ModelLoadError(f"{path}: architectures must be a list of names and model_type a name, not {names!r} and {kind!r}")
    architecture = names[0] if names else _BY_MODEL_TYPE.get(kind or "", kind)
    if architecture not in ARCHITECTURES:
        raise ModelLoadError(f"{path}: architecture {architecture!r} is not supported; supported are {', '.join(ARCHITECTURES)}")
    if config.get("quantization_config"):
        raise ModelLoadError(f"{path}: quantization_config is not supported: quantised checkpoints can't be loaded yet")
    generation = _read_json(path / "generation_config.json") if (path / "generation_config.json").is_file() else {}
    eos = dict.fromkeys([*_token_ids(config, "eos_token_id"), *_token_ids(generation, "eos_token_id")])
    return ARCHITECTURES[architecture].spec_from(
        config, architecture=architecture, eos_token_ids=tuple(eos),
        bos_token_id=next(iter(_token_ids(config, "bos_token_id")), None), dtype=_checkpoint_dtype(path, config),
    )


def load_model(path: str | os.PathLike[str], dtype: torch.dtype, device: torch.device | str) -> tuple[CausalLM, ModelSpec]:
    """Build the model in ``path`` with its weights cast to ``dtype`` on ``device``, ready to run (no gradients), and its spec.

    Reads model.safetensors, or the shards that model.safetensors.index.json names, in float64, float32, float16 or bfloat16.
    Raises ModelLoadError, beyond `load_spec`'s reasons, for a missing or broken file and for tensors that are missing, unexpected or
    of a wrong shape.
    """
    path = Path(path)
    spec = load_spec(path)
    files = _weight_files(path)
    try:
        with torch.device("meta"):
            model = ARCHITECTURES[spec.architecture](spec)
    except RuntimeError as e:       # torch cannot even describe a tensor of that size
        raise ModelLoadError(f"{path}: config.json describes tensors that are too large: {str(e).splitlines()[0]}") from e
    _fill(model, spec, files, dtype, torch.device(device))
    model.tie_weights()
    # The weights are there already; this moves buffers, which are computed on the CPU and not in the file.
    return model.to(device).requires_grad_(False).eval(), spec


def _fill(model: CausalLM, spec: ModelSpec, files: Iterable[Path], dtype: torch.dtype, device: torch.device) -> None:
    """Stream every tensor of ``files`` into its parameter; account for every name on both sides."""
    wanted = dict(model.named_parameters())  # a tied head is listed once, as the embedding
    missing, unexpected = set(wanted), []
    for file in files:
        with _open(file) as tensors:
            for name in tensors.keys():  # noqa: SIM118 (a file handle, not a dict)
                ours = model.rename(name)
                if ours is None or (ours == _HEAD and spec.tie_word_embeddings):
                    continue  # a tied head is the embedding, whatever the file holds
                if ours not in wanted:
                    unexpected.append(f"{name} ({file.name})")
                    continue
                if ours not in missing:
                    raise ModelLoadError(f"{file.name}: tensor {name} is there twice under two names")
                view = tensors.get_slice(name)
                if (shape := tuple(view.get_shape())) != (expected := tuple(wanted[ours].shape)):
                    raise ModelLoadError(f"{file.name}: tensor {name} has shape {shape}, config.json makes it {expected}")
                if view.get_dtype() not in _FILE_DTYPES:
                    raise ModelLoadError(f"{file.name}: tensor {name} is {view.get_dtype()}; readable are {', '.join(_FILE_DTYPES)}")
                # copy=True: otherwise a tensor that needs no cast would stay a view of the mapped file.
                _set(model, ours, tensors.get_tensor(name).to(device=device, dtype=dtype, copy=True))
                missing.remove(ours)
    if missing:
        hint = " (config.json says tie_word_embeddings: false)" if _HEAD in missing else ""
        raise ModelLoadError(f"tensors missing from the checkpoint: {_listed(missing)}{hint}")
    if unexpected:
        raise ModelLoadError(f"tensors that {spec.architecture} does not have: {_listed(unexpected)}")


def _set(model: nn.Module, name: str, tensor: torch.Tensor) -> None:
    parent, _, leaf = name.rpartition(".")
    model.get_submodule(parent).register_parameter(leaf, nn.Parameter(tensor, requires_grad=False))


def _weight_files(path: Path) -> list[Path]:
    """The safetensors files of a model directory, checked to exist."""
    if (path / _SINGLE).is_file():
        return [path / _SINGLE]
    if (path / _INDEX).is_file():
        shards = _read_json(path / _INDEX).get("weight_map")
        if not isinstance(shards, Mapping) or not all(isinstance(f, str) and Path(f).name == f for f in shards.values()):
            raise ModelLoadError(f"{path / _INDEX}: weight_map must map tensor names to file names in the same directory")
        for tensor, file in shards.items():
            if not (path / file).is_file():
                raise ModelLoadError(f"{path / _INDEX} puts {tensor} into {file}, which is missing")
        return [path / file for file in dict.fromkeys(shards.values())]
    found = sorted(p.name for p in path.glob("*.safetensors")) + sorted(p.name for p in path.glob("*.bin"))
    message = f"{path}: no {_SINGLE} and no {_INDEX}; weights there: {_listed(found) if found else 'none'}"
    if (path / "pytorch_model.bin").is_file() or (path / "pytorch_model.bin.index.json").is_file():
        message += (
            ". To convert pytorch_model.bin (a pickle, which can run code): "
            "AutoModelForCausalLM.from_pretrained(directory).save_pretrained(new_directory) with transformers"
        )
    raise ModelLoadError(message)


@contextmanager
def _open(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="pt", device="cpu") as tensors:
            yield tensors
    except (SafetensorError, OSError) as e:
        pointer = file.is_file() and file.open("rb").read(20).startswith(b"version https://git")
        why = "it is a Git LFS pointer, not the file (run: git lfs pull)" if pointer else f"truncated or corrupt ({e})"
        raise ModelLoadError(f"{file}, {file.stat().st_size} bytes: {why}") from e


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as e:
        raise ModelLoadError(f"{file} is missing: not a Hugging Face model directory") from e
    except OSError as e:
        raise ModelLoadError(f"{file} cannot be read: {e.strerror}") from e
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as e:
        raise ModelLoadError(f"{file} is not valid JSON: {e}") from e
    if not isinstance(content, dict):
        raise ModelLoadError(f"{file} must hold a JSON object, not {type(content).__name__}")
    return content


def _token_ids(config: Mapping[str, Any], key: str) -> list[int]:
    value = config.get(key)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for i in ids:
        if not isinstance(i, int) or isinstance(i, bool) or i < 0:
            raise ModelLoadError(f"{key} must be a token id, a list of them or null, not {value!r}")
    return ids


def _checkpoint_dtype(path: Path, config: Mapping[str, Any]) -> torch.dtype:
    """What config.json says ("dtype", or "torch_dtype" before transformers 5), else the first tensor's type, else float32."""
    name = config.get("dtype") or config.get("torch_dtype")
    if name is not None:
        if (dtype := DTYPES.get(str(name).removeprefix("torch."))) is None:
            raise ModelLoadError(f"{path}: checkpoint dtype {name!r} is not one of {', '.join([*DTYPES, *_ALIASES])}")
        return dtype
    for file in sorted(path.glob("*.safetensors")):
        with _open(file) as tensors:
            for tensor in tensors.keys():  # noqa: SIM118
                return _FILE_DTYPES.get(tensors.get_slice(tensor).get_dtype(), torch.float32)
    return torch.float32


def _listed(names: Iterable[str]) -> str:
    names = sorted(names)
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
