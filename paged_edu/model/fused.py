"""What a Llama layer does between its matrix products, compiled: one pass over the numbers in the place of three to six operations of torch.

At a few dozen rows an operation of torch takes longer to start than to compute, and a layer has about fifteen of them beside four matrix products.
`fuse_model` lets a float32 model on a CPU run `fused_kernels.py` instead; the modules that can say so with an attribute ``fused``. Arithmetic
is float32 as before, with sums in another order. On other devices, in other types and without numba torch's operations stay.

Every function takes float32 on the CPU, the last dimension without gaps, and overwrites what its docstring says: it is for serving, not for training.
"""
from __future__ import annotations

import ctypes
import logging
import struct
from typing import Any

import torch
from torch import Tensor

from ..attention import cpu, cpu_threads
from ..checks import one_line
from .spec import CausalLM

log = logging.getLogger(__name__)

GRAIN = 1 << 16
"""Up to so many numbers take less time than waking other threads."""

_ARGUMENTS = ctypes.c_int64 * 11
"""See `fused_kernels.Arguments`."""


def fuse_model(model: CausalLM, device: torch.device, dtype: torch.dtype) -> bool:
    """Have a model use the functions below where they can serve it; whether they can."""
    if device.type != "cpu" or dtype != torch.float32 or cpu.why_not_here() is not None:
        return False
    try:
        from . import fused_kernels  # noqa: F401  compiled now, and not in the first step
    except Exception as error:          # of numba's and LLVM's many types; torch's operations will do
        log.warning("layers run on torch's operations: numba could not compile the others: %s", one_line(error))
        return False
    module: Any         # torch types what a module holds as Tensor or Module
    for module in model.modules():
        if hasattr(module, "fused"):
            module.fused = True
    return True


def add_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """``x + delta``, in the place of ``x``, and its RMS norm; all ``[T, hidden]``. The residual stream is read once for both."""
    from .fused_kernels import ADD_NORM

    rows, width = x.shape
    y = torch.empty_like(x)
    there = (0, 0) if delta is None else (delta.data_ptr(), delta.stride(0))
    _run(ADD_NORM, rows, width, x, y, weight.data_ptr(), *there, _bits(eps))
    return x, y


def turn(rows: Tensor, heads: int, cos: Tensor, sin: Tensor) -> None:
    """`rope.rotate` of the first ``heads`` heads of ``[T, all heads, head_dim]``, in place; ``cos`` and ``sin`` are ``[T, 1, head_dim / 2]``."""
    from .fused_kernels import ROTATE

    _run(ROTATE, rows.shape[0], rows.shape[2], rows, rows, cos.data_ptr(), sin.data_ptr(), 0, heads)


def silu_gate(gate_up: Tensor) -> Tensor:
    """``[T, 2 * inner]``, gate and then up -> ``silu(gate) * up``, ``[T, inner]``."""
    from .fused_kernels import SILU

    rows, both = gate_up.shape
    y = gate_up.new_empty(rows, both // 2)
    _run(SILU, rows, both // 2, gate_up, y, 0, 0, 0, 0)
    return y


def scale_rows(x: Tensor, least: float) -> tuple[Tensor, Tensor]:
    """``x / scale``, ``[T, n]``, and ``scale``, ``[T, 1]``: the largest absolute number of each row, or ``least``; NaN and infinity show."""
    from .fused_kernels import SCALE

    rows, width = x.shape
    y, scale = x.new_empty(rows, width), x.new_empty(rows, 1)
    _run(SCALE, rows, width, x, y, scale.data_ptr(), 0, 0, _bits(least))
    return y, scale


def _run(function: int, rows: int, width: int, x: Tensor, y: Tensor, a: int, b: int, b_row: int, number: int) -> None:
    arguments = _ARGUMENTS(0, rows, width, x.data_ptr(), x.stride(0), y.data_ptr(), y.stride(0), a, b, b_row, number)
    threads = cpu_threads.available() if x.numel() > GRAIN else 1
    cpu_threads.run(function, ctypes.addressof(arguments), threads)


def _bits(x: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", x))[0])
