"""The GGUF file format: what stands before the weights, and where each weight lies. Nothing here knows of models.

A file is a header (magic number, version, counts), key-value metadata, a table of tensors, and their data, each tensor padded to an
alignment. Quantised tensors are rows of blocks: 32 to 256 numbers with a common scale. The ``gguf`` package knows the blocks and undoes
them; its own reader makes an object of every token of the vocabulary, which takes seconds, so the header is read here.
"""
from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import ModelLoadError

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MOST_DIMENSIONS = 4
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True)
class TensorInfo:
    """One row of the tensor table."""

    name: str
    shape: tuple[int, ...]
    """In torch's order, the contiguous dimension last; numbers, not bytes."""
    type_name: str
    """ggml's name: F32, BF16, Q8_0, Q4_K, ..."""
    offset: int
    """Of the first byte, from the beginning of the file."""
    row_bytes: int
    num_bytes: int


class GGUFFile:
    """The metadata and the tensor table of a GGUF file, read and checked; the data stays on disk until `rows` is asked for it.

    ``metadata`` maps keys to int, float, bool, str or a list of them. Raises ModelLoadError for a file that is missing, of another format,
    big-endian, truncated or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._bytes = np.memmap(path, dtype=np.uint8, mode="r")
        except (OSError, ValueError) as error:      # ValueError: an empty file
            why = "is empty" if isinstance(error, ValueError) else f"cannot be read: {error.strerror}"
            raise ModelLoadError(f"{path} {why}") from error
        cursor = _Cursor(path, memoryview(self._bytes.data))
        num_tensors, num_keys = self._read_head(cursor)
        self.metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = cursor.string()
            if key in self.metadata:
                raise ModelLoadError(f"{path}: metadata key {key} is there twice")
            self.metadata[key] = cursor.value()
        self.tensors = self._read_tensors(cursor, num_tensors)

    def _read_head(self, cursor: _Cursor) -> tuple[int, int]:
        path, magic = self.path, cursor.take(4)
        if magic != MAGIC:
            lfs = bytes(self._bytes[:20]).startswith(b"version https://git")
            raise ModelLoadError(f"{path} is " + ("a Git LFS pointer, not the file (run: git lfs pull)" if lfs else "no GGUF file"))
        (version,) = cursor.numbers("I")
        if version & 0xFFFF == 0:
            raise ModelLoadError(f"{path} is big-endian; only little-endian GGUF files are supported")
        if version not in _VERSIONS:
            raise ModelLoadError(f"{path} has GGUF version {version}; supported are {' and '.join(map(str, _VERSIONS))}")
        num_tensors, num_keys = cursor.numbers("QQ")
        return num_tensors, num_keys

    def _read_tensors(self, cursor: _Cursor, count: int) -> dict[str, TensorInfo]:
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise ModelLoadError(f"{self.path}: general.alignment must be a power of two, not {alignment!r}")
        table = []
        for _ in range(count):
            name = cursor.string()
            (dimensions,) = cursor.numbers("I")
            if not 1 <= dimensions <= _MOST_DIMENSIONS:
                raise ModelLoadError(f"{self.path}: tensor {name} has {dimensions} dimensions, not 1 to {_MOST_DIMENSIONS}")
            shape = cursor.numbers(f"{dimensions}Q")[::-1]      # the file has the contiguous dimension first
            table.append((name, shape, *cursor.numbers("IQ")))
        start = -(-cursor.position // alignment) * alignment
        tensors: dict[str, TensorInfo] = {}
        for name, shape, kind, offset in table:
            if name in tensors:
                raise ModelLoadError(f"{self.path}: tensor {name} is there twice")
            tensors[name] = info = _tensor_info(self.path, name, shape, kind, start + offset)
            if (end := info.offset + info.num_bytes) > len(self._bytes):
                raise ModelLoadError(f"{self.path} is truncated: tensor {name} ends at byte {end}, the file at {len(self._bytes)}")
        return tensors

    def rows(self, info: TensorInfo) -> npt.NDArray[np.uint8]:
        """A tensor's data as it is stored: uint8 ``[..., bytes of a row]``, a view of the mapped file."""
        return self._bytes[info.offset : info.offset + info.num_bytes].reshape(*info.shape[:-1], info.row_bytes)


def _tensor_info(path: Path, name: str, shape: tuple[int, ...], kind: int, offset: int) -> TensorInfo:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        ggml_type = GGMLQuantizationType(kind)
        block, block_bytes = GGML_QUANT_SIZES[ggml_type]
    except (ValueError, KeyError) as error:
        raise ModelLoadError(f"{path}: tensor {name} has ggml type {kind}, which this version of the gguf package does not know") from error
    if 0 in shape or shape[-1] % block:
        raise ModelLoadError(f"{path}: tensor {name} has shape {shape}; rows of {ggml_type.name} are multiples of {block}")
    row_bytes = shape[-1] // block * block_bytes
    return TensorInfo(name, shape, ggml_type.name, offset, row_bytes, math.prod(shape[:-1]) * row_bytes)


class _Cursor:
    """Reads one thing after the other. Every length is compared with what is left, so a damaged one is an error and no long wait."""

    def __init__(self, path: Path, data: memoryview) -> None:
        self.path, self.data, self.position = path, data, 0

    def take(self, length: int) -> bytes:
        end = self.position + length
        if end > len(self.data):
            raise ModelLoadError(f"{self.path} is truncated or damaged: byte {end} is needed, the file has {len(self.data)}")
        taken = bytes(self.data[self.position : end])
        self.position = end
        return taken

    def numbers(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack(f"<{layout}", self.take(struct.calcsize(f"<{layout}")))

    def string(self) -> str:
        start = self.position
        (length,) = self.numbers("Q")
        try:
            return self.take(length).decode()
        except UnicodeDecodeError as error:
            raise ModelLoadError(f"{self.path} is damaged: the string at byte {start} is not UTF-8") from error

    def value(self) -> Any:
        (kind,) = self.numbers("I")
        if kind == _ARRAY:
            item, count = self.numbers("IQ")
            if item in _SCALARS:
                size = struct.calcsize(_SCALARS[item])
                if count * size > len(self.data):
                    self.take(count * size)
                return list(self.numbers(f"{count}{_SCALARS[item]}"))
            read: Callable[[], Any] = self._reader(item)
            return [read() for _ in range(count)]
        return self._reader(kind)()

    def _reader(self, kind: int) -> Callable[[], Any]:
        if kind == _STRING:
            return self.string
        if kind in _SCALARS:
            return lambda: self.numbers(_SCALARS[kind])[0]
        raise ModelLoadError(f"{self.path}: metadata of type {kind} at byte {self.position} is not supported")
