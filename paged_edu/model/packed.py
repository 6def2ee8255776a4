"""Weights of linear layers in the order in which oneDNN multiplies: what a model in float32 on a CPU is served with.

torch's usual product for a few rows takes a weight as the checkpoint has it, and reorders it every time, or reads it badly. oneDNN, which torch
brings along, can be given a weight once in the blocked order that its loops read; for 1 to 64 rows that took from 0.5 to 0.8 of the time
here, for a wide output head less than half. The numbers stay float32 and so does the arithmetic; only the order of sums is another one.
"""
from __future__ import annotations

import logging
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import one_line
from .joined import replace_linears
from .spec import CausalLM

log = logging.getLogger(__name__)

TYPICAL_ROWS = 32
"""For how many rows oneDNN chooses the order; any number can be multiplied with it."""

WORTH_A_COPY = 4 << 20
"""Bytes from which on a tied output head gets a packed weight of its own, beside the embedding's: smaller ones stay in the processor's cache
anyhow, and the copy would only cost memory."""


class PackedLinear(nn.Module):
    """``y = x @ W.T + b`` in float32, with W, ``[out, in]``, held in oneDNN's order."""

    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self._packed: Any = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), TYPICAL_ROWS)
        self.register_buffer("bias", None if bias is None else bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """``[T, in]`` -> ``[T, out]``."""
        if not x.shape[0]:
            return x.new_empty(0, self.out_features)
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return y

    @property
    def packed_bytes(self) -> int:
        """What the weight takes (the bias is counted with the model's other tensors)."""
        return 4 * self.out_features * self.in_features

    @property
    def packed_weights(self) -> int:
        """How many numbers there are, those of the bias included."""
        return self.out_features * (self.in_features + (self.bias is not None))

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


@cache
def available() -> bool:
    """Whether this torch can do it, tried on a small product."""
    try:
        x, weight = torch.ones(2, 3), torch.ones(5, 3)
        y = PackedLinear(weight, torch.ones(5))(x)
    except (RuntimeError, AttributeError) as error:         # NotImplementedError is a RuntimeError; an operator that there is not, the other
        log.info("linear layers stay as they are: %s", one_line(error))
        return False
    return torch.equal(y, torch.full((2, 5), 4.0))


def pack_model(model: CausalLM, device: torch.device, dtype: torch.dtype) -> bool:
    """Pack every linear layer of a float32 model on a CPU; whether that was done. A model of another kind, or without oneDNN, stays as it is."""
    if device.type != "cpu" or dtype != torch.float32 or not available():
        return False
    head: Any = model.lm_head
    tied = model.spec.tie_word_embeddings and head.weight.untyped_storage().nbytes() < WORTH_A_COPY
    replace_linears(model, PackedLinear, [head] if tied else [])
    return True
