"""Put other layers in the place of a model's linear ones, those that read the same input as one: for weights in another form."""
from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from .layers import Conv1D
from .spec import CausalLM

Make = Callable[[Tensor, Tensor | None], nn.Module]
"""A layer from a weight ``[out, in]`` and a bias ``[out]``, or None."""


def replace_linears(model: CausalLM, make: Make, keep: Sequence[nn.Module] = ()) -> None:
    """Replace every linear layer but those in ``keep``, and let go of each one's own weight at once.

    Layers that read the same input (a module's ``JOINED``) become one: it is read, and prepared, once for all.
    """
    for module in list(model.modules()):
        for joined, names in getattr(module, "JOINED", {}).items():
            parts = [getattr(module, name) for name in names]
            setattr(module, joined, make(*_join(parts)))
            for name in names:
                setattr(module, name, None)
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear | Conv1D) and not any(child is kept for kept in keep):
                setattr(module, name, make(*_join([child])))


def _join(parts: Sequence[nn.Linear | Conv1D]) -> tuple[Tensor, Tensor | None]:
    """Weight ``[out, in]`` and bias of layers put side by side."""
    weights: list[Tensor] = [part.weight.T if isinstance(part, Conv1D) else part.weight for part in parts]
    biases: list[Tensor] = [part.bias for part in parts if part.bias is not None]
    if len(biases) not in (0, len(parts)):
        biases = [torch.zeros(len(w)) if part.bias is None else part.bias for part, w in zip(parts, weights, strict=True)]
    return torch.cat(weights), torch.cat(biases) if biases else None
