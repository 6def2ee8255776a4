"""`quantization="int8"`: the weights of linear layers as 8-bit integers, multiplied as integers on a CPU.

A weight becomes a code from -127 to 127 and a scale, one for each output channel; an input becomes a code and a scale, one for each row, found
when the row comes: ``y[r, c] = row[r] * channel[c] * sum_k code(x)[r, k] * code(W)[c, k]``. The sum is of integers and therefore exact in
any order, and all that is not an integer belongs to one row and one channel. So a row's result has the same bits alone, in a batch and
in any chunk of its prompt. One scale for the whole input would be a little faster, and would let every request change all the others.

The products are those of torch's quantised x86 engine (FBGEMM). Embeddings and norms stay as they are, a tied embedding too.
"""
from __future__ import annotations

import platform
import warnings
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import UnsupportedError
from . import fused
from .joined import replace_linears
from .smoothing import smooth_model
from .spec import CausalLM

ENGINE = "x86"
CODES = 127
"""Inputs get codes from -127 to 127, stored with 128 added: the engine's are unsigned."""
_TINY = torch.finfo(torch.float32).tiny


class Int8Linear(nn.Module):
    """``y = x @ W.T + b`` with W, ``[out, in]``, held as int8 codes in the engine's own order; x and y are float32.

    ``pairs``: whether pairs of weights are bounded as well, see `quantise_rows`; None: if this processor needs it.
    """

    bias: Tensor | None
    fused = False

    def __init__(self, weight: Tensor, bias: Tensor | None = None, pairs: bool | None = None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        codes, scales = quantise_rows(weight.detach(), adds_pairs_in_16_bits() if pairs is None else pairs)
        self.packed = _pack(codes, scales)
        self.register_buffer("bias", None if bias is None else bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """``[T, in]`` -> ``[T, out]``. A row with a number that is not finite gives a row that is not finite."""
        if self.fused:
            scaled, largest = fused.scale_rows(x, _TINY)
        else:
            largest = x.abs().amax(-1, keepdim=True).clamp_min_(_TINY)
            scaled = x / largest
        # The bias is added here: inside, it might be fused with the scaling, or not.
        y = _multiply(scaled, self.packed).mul_(largest)
        return y if self.bias is None else y.add_(self.bias)

    @property
    def packed_bytes(self) -> int:
        """What the codes take, with a scale, a zero point and a sum of the codes (float32 and int32) for each channel."""
        return self.out_features * (self.in_features + 12)

    @property
    def packed_weights(self) -> int:
        """How many numbers the codes and the bias stand for."""
        return self.out_features * (self.in_features + (self.bias is not None))

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def quantise_rows(weight: Tensor, pairs: bool) -> tuple[Tensor, Tensor]:
    """Codes, int8 as ``weight`` is shaped, and scales ``[out]``: the largest weight of a row (an output channel) gets the code 127.

    With ``pairs`` the largest sum of two neighbours, columns 2i and 2i + 1, gets 127 where that is more: rounded, no two codes add up to
    more than 128. That makes the steps of a row a third wider or so, and at most twice as wide, which is what 7 bits for all would be.
    """
    largest = weight.abs().amax(1, keepdim=True)
    if pairs and weight.shape[1] > 1:
        even = weight.shape[1] // 2 * 2
        largest = torch.maximum(largest, (weight[:, :even:2] + weight[:, 1::2]).abs().amax(1, keepdim=True))
    scales = largest.div_(CODES).clamp_min_(_TINY)
    return (weight / scales).round_().to(torch.int8), scales[:, 0]


def _multiply(x: Tensor, packed: Any) -> Tensor:
    """``[T, in]`` of numbers from -1 to 1 -> ``[T, out]``: the engine rounds ``127 x`` to codes, row by row, multiplies, and scales each channel."""
    y: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(x, 1 / CODES, CODES + 1, packed)
    return y


def _pack(codes: Tensor, scales: Tensor) -> Any:
    """The engine's own object; what it multiplies with is fixed here, and torch's global choice of an engine left as it was."""
    before = torch.backends.quantized.engine
    try:
        torch.backends.quantized.engine = ENGINE
        with warnings.catch_warnings():         # torch 2.13 calls quantised tensors deprecated; this engine takes nothing else
            warnings.simplefilter("ignore", UserWarning)
            zeros = torch.zeros(len(scales), dtype=torch.int64)
            weight = torch._make_per_channel_quantized_tensor(codes, scales.double(), zeros, 0)
            return torch.ops.quantized.linear_prepack(weight, None)
    finally:
        torch.backends.quantized.engine = before


# -- what this machine can do ------------------------------------------------------------------------------------------------------
@cache
def adds_pairs_in_16_bits() -> bool:
    """Whether sums are exact only with pairs of weights bounded, as `quantise_rows` can: asked of the engine, not of a list of processors.

    Without VNNI instructions x86 processors add two neighbouring products, of an input's code, up to 255 as it is stored, and a weight's, in 16
    bits, and what is beyond 32767 is cut off without a word: 255 * (127 + 127) is, 255 * 128 is not, and products of two signs never are.
    Raises UnsupportedError where sums are not exact even so.
    """
    width = 256
    inputs = torch.full((5, width), float(CODES))
    inputs[1] = -CODES
    inputs[2, ::2] = -CODES
    inputs[3, 1::3] = 0
    inputs[4] = torch.arange(width) % CODES
    full = torch.full((64, width), CODES, dtype=torch.int8)
    full[::2] *= -1
    bounded = torch.full((64, width), 64, dtype=torch.int8)
    # Pairs that just meet the bound. Were others than 2i and 2i + 1 added, then the second kind would have 127 beside 127.
    for start, quad in ((1, (127, 1, 127, 1)), (2, (1, 127, 127, 1)), (3, (127, -127, -127, 127))):
        bounded[start::4] = torch.tensor(quad, dtype=torch.int8).repeat(width // 4)
    bounded[32:] *= -1
    for codes, pairs in ((full, False), (bounded, True)):
        found = _multiply(inputs / CODES, _pack(codes, torch.ones(len(codes)))) * CODES
        if torch.allclose(found, inputs @ codes.float().T, rtol=1e-6):
            return pairs
    raise UnsupportedError(f"quantization='int8' is not served on this processor: torch's {ENGINE} engine does not add its products exactly")


def check_served(device: torch.device, dtype: torch.dtype) -> None:
    """Raises UnsupportedError, naming what is in the way, where int8 weights can't be served."""
    if device.type != "cpu":
        raise UnsupportedError(f"quantization='int8' is served on a CPU only, not on {str(device)!r}: pass device='cpu', or leave it out")
    if dtype != torch.float32:
        raise UnsupportedError(f"quantization='int8' computes in float32, not {str(dtype).removeprefix('torch.')!r}: leave dtype out")
    engines = [engine for engine in torch.backends.quantized.supported_engines if engine != "none"]
    if ENGINE not in engines:
        raise UnsupportedError(
            f"quantization='int8' needs torch's quantised engine {ENGINE!r}; torch {torch.__version__} on this {platform.machine() or 'machine'} has "
            f"{', '.join(map(repr, engines)) or 'none'}: leave quantization out"
        )
    adds_pairs_in_16_bits()


# -- a whole model -----------------------------------------------------------------------------------------------------------------
def quantise_model(model: CausalLM) -> None:
    """Smooth the inputs (`smoothing`), then put an `Int8Linear` in the place of every linear layer and let go of each one's own weight at once.

    Layers that read the same input (a module's ``JOINED``) become one, which computes the input's codes once for all.
    """
    smooth_model(model)
    replace_linears(model, Int8Linear)
