"""Which attention backend serves a model on a device, and what a backend is: two functions."""
from __future__ import annotations

import warnings
from functools import cache
from typing import NamedTuple

import torch

from . import cpu, reference, triton
from .cache import CopyPages, copy_by_index
from .metadata import Attend

BACKENDS = ("auto", "reference", "cpu", "triton")


class Backend(NamedTuple):
    """What changes between backends."""

    name: str
    attend: Attend
    copy_pages: CopyPages


REFERENCE = Backend("reference", reference.attend, copy_by_index)
CPU = Backend("cpu", cpu.attend, copy_by_index)
TRITON = Backend("triton", triton.attend, triton.copy_pages)


def choose(name: str, device: torch.device, dtype: torch.dtype, head_dim: int) -> Backend:
    """The backend ``name``; "auto" is Triton's on CUDA and the compiled one on a CPU, each where it can serve the model, and torch's elsewhere.

    Raises ValueError for "triton" and "cpu" where they can't run, saying why. "auto" warns where it has to go without, but not for a type
    that only torch serves on a CPU, and not for float64, which asks for exactness.
    """
    if name == "reference":
        return REFERENCE
    if name == "cpu" or (name == "auto" and device.type != "cuda"):
        return _on_cpu(name, device, dtype)
    reason = triton.why_not(device, dtype, head_dim)
    if reason is None:
        return TRITON
    if name == "triton":
        raise ValueError(f"attention_backend='triton' can't be used: {reason}")
    if dtype != torch.float64:
        warnings.warn(f"attention runs on torch's own operations, slower than the kernels would be: {reason}", stacklevel=2)
    return REFERENCE


def _on_cpu(name: str, device: torch.device, dtype: torch.dtype) -> Backend:
    reason = f"it runs on a CPU, not on {device}" if device.type != "cpu" else cpu.why_not_here() or cpu.why_not(dtype)
    if reason is None:
        return CPU
    if name == "cpu":
        raise ValueError(f"attention_backend='cpu' can't be used: {reason}")
    if (missing := cpu.why_not_here()) is not None:
        _warn_once(f"attention runs on torch's own operations, several times slower than compiled code would be: {missing}")
    return REFERENCE


@cache
def _warn_once(message: str) -> None:
    warnings.warn(message, stacklevel=4)
