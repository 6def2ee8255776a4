"""Checkpoints: a model's configuration and its tensors, whatever the files are. `loader` fills models from what is described here.

`SafetensorsFolder` is a directory in Hugging Face layout; `gguf.GGUFCheckpoint` is the other kind.
"""
from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .spec import ModelLoadError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_FILE_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_SHOWN = 5  # tensor names in one message


class StoredTensor(NamedTuple):
    """A tensor of a checkpoint that has not been read yet."""

    name: str
    """As Hugging Face's checkpoints call it, ``model.layers.0.mlp.up_proj.weight`` for example."""
    shape: tuple[int, ...]
    file: str
    """The name of the file that holds it, for messages."""
    read: Callable[[], Tensor]
    """Gives the numbers, a floating-point tensor on the CPU that may be a view of the file. Raises ModelLoadError."""


class Checkpoint(ABC):
    """Where a model comes from. Raises ModelLoadError for everything that is missing or broken."""

    path: Path
    from_config_json = True
    """Whether the configuration is a config.json as it stands, which messages then name."""

    @abstractmethod
    def read_config(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The contents of config.json and of generation_config.json (empty where there is none)."""

    @abstractmethod
    def stored_dtype(self) -> torch.dtype:
        """The type of the weights, asked where the configuration does not say."""

    @abstractmethod
    def tensors(self) -> Iterator[StoredTensor]:
        """Every tensor, in the order of the files; each is read before the next one is asked for, or not at all."""

    slow = False
    """Whether reading a tensor takes so long that a progress bar is in place."""

    @property
    @abstractmethod
    def num_tensors(self) -> int | None:
        """How many there will be, if that is known before they are read."""


class SafetensorsFolder(Checkpoint):
    """A directory with config.json and model.safetensors, or the shards that model.safetensors.index.json names."""

    num_tensors = None

    def __init__(self, path: Path) -> None:
        self.path = path

    def read_config(self) -> tuple[dict[str, Any], dict[str, Any]]:
        file = self.path / "config.json"
        if not file.is_file() and (ggufs := sorted(self.path.glob("*.gguf"))):
            raise ModelLoadError(f"{file} is missing, but there is a GGUF file: give its path, {ggufs[0]}")
        generation = self.path / "generation_config.json"
        return read_json(file), read_json(generation) if generation.is_file() else {}

    def stored_dtype(self) -> torch.dtype:
        for file in sorted(self.path.glob("*.safetensors")):
            with _open(file) as tensors:
                for tensor in tensors.keys():  # noqa: SIM118 (a file handle, not a dict)
                    return _FILE_DTYPES.get(tensors.get_slice(tensor).get_dtype(), torch.float32)
        return torch.float32

    def tensors(self) -> Iterator[StoredTensor]:
        for file in self._files():
            with _open(file) as tensors:
                for name in tensors.keys():  # noqa: SIM118
                    yield StoredTensor(name, tuple(tensors.get_slice(name).get_shape()), file.name, partial(_read, tensors, name, file))

    def _files(self) -> list[Path]:
        """The safetensors files of a model directory, checked to exist."""
        if (self.path / SINGLE).is_file():
            return [self.path / SINGLE]
        if (self.path / INDEX).is_file():
            shards = read_json(self.path / INDEX).get("weight_map")
            if not isinstance(shards, Mapping) or not all(isinstance(f, str) and Path(f).name == f for f in shards.values()):
                raise ModelLoadError(f"{self.path / INDEX}: weight_map must map tensor names to file names in the same directory")
            for tensor, file in shards.items():
                if not (self.path / file).is_file():
                    raise ModelLoadError(f"{self.path / INDEX} puts {tensor} into {file}, which is missing")
            return [self.path / file for file in dict.fromkeys(shards.values())]
        found = sorted(p.name for p in self.path.glob("*.safetensors")) + sorted(p.name for p in self.path.glob("*.bin"))
        message = f"{self.path}: no {SINGLE} and no {INDEX}; weights there: {listed(found) if found else 'none'}"
        if (self.path / "pytorch_model.bin").is_file() or (self.path / "pytorch_model.bin.index.json").is_file():
            message += (
                ". To convert pytorch_model.bin (a pickle, which can run code): "
                "AutoModelForCausalLM.from_pretrained(directory).save_pretrained(new_directory) with transformers"
            )
        raise ModelLoadError(message)


def _read(tensors: Any, name: str, file: Path) -> Tensor:
    if (dtype := tensors.get_slice(name).get_dtype()) not in _FILE_DTYPES:
        raise ModelLoadError(f"{file.name}: tensor {name} is {dtype}; readable are {', '.join(_FILE_DTYPES)}")
    try:
        tensor: Tensor = tensors.get_tensor(name)
    except (SafetensorError, OSError) as e:
        raise _broken(file, e) from e
    return tensor


@contextmanager
def _open(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="pt", device="cpu") as tensors:
            yield tensors
    except (SafetensorError, OSError) as e:
        raise _broken(file, e) from e


def _broken(file: Path, e: Exception) -> ModelLoadError:
    pointer = file.is_file() and file.open("rb").read(20).startswith(b"version https://git")
    why = "it is a Git LFS pointer, not the file (run: git lfs pull)" if pointer else f"truncated or corrupt ({e})"
    return ModelLoadError(f"{file}, {file.stat().st_size} bytes: {why}")


def read_json(file: Path) -> dict[str, Any]:
    """The object in a json file. Raises ModelLoadError where there is none."""
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


def listed(names: Iterable[str]) -> str:
    """A few of the names, and how many more there are."""
    names = sorted(names)
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def progress(checkpoint: Checkpoint) -> Iterable[StoredTensor]:
    """The checkpoint's tensors, with a progress bar if it is slow to read and stderr is a terminal."""
    from tqdm.auto import tqdm

    bar: Iterable[StoredTensor] = tqdm(
        checkpoint.tensors(), total=checkpoint.num_tensors, desc=f"loading {checkpoint.path.name}", unit=" tensors", leave=False, delay=0.5,
        disable=None if checkpoint.slow else True,      # None: where stderr is no terminal
    )
    return bar
