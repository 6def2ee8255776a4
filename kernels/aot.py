"""Compile kernels for a GPU that is not there, and read what the machine code needs: registers, shared memory, spills.

The kernels' own launch functions say what to compile: they are called on tensors of the "meta" device, which have shapes and no memory,
and the launches that they ask for are noted instead of run. So what is compiled is what would be launched, with the same constants and
the same specialisations (an integer that is 1, or a multiple of 16, makes a variant of its own).

Needs triton without its interpreter, and no GPU: the compiler, the assembler and `cuobjdump` are in triton's wheel.
"""
from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from .launch import assume_capability

TYPES = {
    torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.int8: "i8", torch.int32: "i32", torch.int64: "i64",
}
OPTIONS = ("num_warps", "num_stages")


@dataclass(frozen=True)
class Launch:
    """One launch that a function asked for."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    options: dict[str, int]

    @property
    def name(self) -> str:
        return str(self.kernel.fn.__name__)


@dataclass(frozen=True)
class Compiled:
    """What a kernel's machine code needs, for each thread or program."""

    name: str
    arch: int
    registers: int
    shared_bytes: int
    spill_bytes: int
    """Bytes of each thread's local memory: registers that did not fit were put there."""
    num_warps: int
    ptx: str


def launches(call: Callable[[], object], capability: int) -> list[Launch]:
    """The launches of triton kernels that ``call()``, on tensors of the meta device, would make on a GPU of that capability; none of them runs."""
    found: list[Launch] = []
    with _noting(found), assume_capability(capability):
        call()
    return found


@contextmanager
def _noting(found: list[Launch]) -> Iterator[None]:
    run = JITFunction.run

    def note(self: Any, *arguments: Any, grid: Any, warmup: bool = False, **named: Any) -> None:
        options = {name: named.pop(name) for name in OPTIONS if name in named}
        found.append(Launch(self, tuple(grid), arguments, named, options))

    JITFunction.run = note
    try:
        yield
    finally:
        JITFunction.run = run


def compile_launch(launch: Launch, arch: int) -> Compiled:
    """For compute capability ``arch`` (80 is 8.0). Raises what triton raises if it can't be compiled."""
    names = launch.kernel.arg_names
    positional = dict(zip(names, launch.arguments))
    signature: dict[str, str] = {}
    constants: dict[str, Any] = dict(launch.constants)
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for i, name in enumerate(names):
        if name in launch.constants:
            signature[name] = "constexpr"
            continue
        value = positional[name]
        if isinstance(value, Tensor):
            signature[name] = "*" + TYPES[value.dtype]
        elif isinstance(value, float):
            signature[name] = "fp32"
        elif value == 1:
            signature[name], constants[name] = "constexpr", 1
        else:
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
        if isinstance(value, Tensor) or (type(value) is int and value % 16 == 0):
            attributes[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=launch.kernel, signature=signature, constexprs=constants, attrs=attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=launch.options)
    usage = resources(compiled.asm["cubin"])
    return Compiled(
        launch.name, arch, usage["REG"], compiled.metadata.shared, usage["STACK"] + usage.get("LOCAL", 0), compiled.metadata.num_warps,
        compiled.asm["ptx"],
    )


def resources(cubin: bytes) -> dict[str, int]:
    """What `cuobjdump` reads out of a cubin: REG, STACK (spills are there), SHARED, LOCAL, ..."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True, timeout=60).stdout
    return {key: int(value) for key, value in re.findall(r"\b(REG|STACK|SHARED|LOCAL):(\d+)", said)}
