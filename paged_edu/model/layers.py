"""Pieces that several architectures share: activation functions and the linear layer in GPT-2's (in, out) layout."""
from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paged_edu.model.spec import ModelLoadError

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
    if name not in ACTIVATIONS:
        raise ModelLoadError(f"unknown activation {name!r}; known are {', '.join(sorted(ACTIVATIONS))}")
    return ACTIVATIONS[name]


class Conv1D(nn.Module):
    """``y = x @ W + b`` with W stored ``[in, out]``, as GPT-2's checkpoints do; torch's own Linear stores ``[out, in]``.

    Keeping the checkpoint's layout means that loading never transposes, and a square W can't be transposed twice unnoticed.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(in_features, out_features).normal_(std=0.02))
        self.bias = nn.Parameter(torch.zeros(out_features))

    def forward(self, x: Tensor) -> Tensor:
        """``[T, in]`` -> ``[T, out]``."""
        return torch.addmm(self.bias, x, self.weight)
