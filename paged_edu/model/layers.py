"""Pieces that several architectures share: activation functions, norms, and layers that take their weights from a checkpoint.

This package serves models and never trains one from random weights, so no layer here initialises its parameters: until the loader
fills them they hold nothing of meaning. (On torch's meta device the random initialisers would also import seconds' worth of compiler.)
"""
from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import fused
from .spec import ModelLoadError

Activation = Callable[[Tensor], Tensor]

_tanh_gelu = partial(F.gelu, approximate="tanh")
ACTIVATIONS: dict[str, Activation] = {
    # The tanh approximation under its names; gelu_fast is the same polynomial, factored.
    "gelu_new": _tanh_gelu,
    "gelu_pytorch_tanh": _tanh_gelu,
    "gelu_fast": _tanh_gelu,
    # The exact one, with erf.
    "gelu": F.gelu,
    "gelu_python": F.gelu,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
    "silu": F.silu,
    "swish": F.silu,
    "tanh": torch.tanh,
}


def activation(name: str) -> Activation:
    """The elementwise function that config.json calls ``name``. Raises ModelLoadError (a ValueError) listing the known names."""
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise ModelLoadError(f"unknown activation {name!r}; known are {', '.join(sorted(ACTIVATIONS))}")
    return ACTIVATIONS[name]


class Embedding(nn.Embedding):
    """``[rows, width]``, looked up by id; not initialised."""

    def reset_parameters(self) -> None:
        pass


class Linear(nn.Linear):
    """``y = x @ W.T + b`` with W stored ``[out, in]``; not initialised."""

    def reset_parameters(self) -> None:
        pass


class Conv1D(nn.Module):
    """``y = x @ W + b`` with W stored ``[in, out]``, as GPT-2's checkpoints do; torch's own Linear stores ``[out, in]``.

    Keeping the checkpoint's layout means that loading never transposes, and a square W can't be transposed twice unnoticed.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(in_features, out_features))
        self.bias = nn.Parameter(torch.empty(out_features))

    def forward(self, x: Tensor) -> Tensor:
        """``[T, in]`` -> ``[T, out]``."""
        return torch.addmm(self.bias, x, self.weight)


class RMSNorm(nn.Module):
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension: scaled, not centred (Zhang and Sennrich, arXiv:1910.07467)."""

    fused = False

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.eps = eps

    def after(self, x: Tensor, delta: Tensor | None) -> tuple[Tensor, Tensor]:
        """``x + delta``, which may take the place of ``x``, and its norm; ``[T, width]``."""
        if self.fused:
            return fused.add_norm(x, delta, self.weight, self.eps)
        x = x if delta is None else x + delta
        return x, self(x)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., width]``, same shape and dtype. The norm is taken in float32 whatever the dtype, float64 too, as in transformers."""
        if x.dtype == torch.float32:                        # one operation instead of seven, and the same bits
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * y.to(x.dtype)
