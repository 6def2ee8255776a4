"""Which attention backend serves a model on a device, and what a backend is: two functions."""
from __future__ import annotations

import warnings
from typing import NamedTuple

import torch

from . import reference, triton
from .cache import CopyPages, copy_by_index
from .metadata import Attend

BACKENDS = ("auto", "reference", "triton")


class Backend(NamedTuple):
    """What changes between backends."""

    name: str
    attend: Attend
    copy_pages: CopyPages


REFERENCE = Backend("reference", reference.attend, copy_by_index)
TRITON = Backend("triton", triton.attend, triton.copy_pages)


def choose(name: str, device: torch.device, dtype: torch.dtype, head_dim: int) -> Backend:
    """The backend ``name``; "auto" is Triton's on CUDA, where it can serve the model, and torch's anywhere else.

    Raises ValueError for "triton" where it can't run, saying why. "auto" warns where a GPU goes without it, unless float64 asks for exactness.
    """
    if name == "reference" or (name == "auto" and device.type != "cuda"):
        return REFERENCE
    reason = triton.why_not(device, dtype, head_dim)
    if reason is None:
        return TRITON
    if name == "triton":
        raise ValueError(f"attention_backend='triton' can't be used: {reason}")
    if dtype != torch.float64:
        warnings.warn(f"attention runs on torch's own operations, slower than the kernels would be: {reason}", stacklevel=2)
    return REFERENCE
