"""Rotary position embedding (RoPE): a token's position becomes a rotation of its queries and keys (Su et al., arXiv:2104.09864).

Dimension i and dimension i + head_dim / 2 of a head form a pair, and the pair of a token at position p turns by the angle
``p * inv_freq[i]``. The product of a rotated query and a rotated key then depends on how far apart they are, not on where.

A paged cache stores a key once, already rotated, and reads it for as long as the sequence lives: an angle may depend on the token's own
position and on nothing that changes later. Four ways of stretching a model over longer texts than it was first trained on obey that:

- ``linear`` divides every frequency by ``factor``;
- ``llama3`` divides the slow ones, leaves the fast ones, and blends in between;
- factors of their own for all frequencies, which divide them (``freq_factors``: that is how GGUF files say ``llama3``);
- ``dynamic`` (NTK-aware) leaves all of them alone up to ``max_position_embeddings`` tokens. Beyond, transformers computes another base
  from the longest sequence of each call, so keys stored by earlier calls keep angles that the newer queries don't match. Here the
  model ends at ``max_position_embeddings`` (`ModelSpec.max_positions`), where ``dynamic`` is plain RoPE.
"""
from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .spec import ModelLoadError, read_int, read_positive

KINDS = ("default", "linear", "dynamic", "llama3")
"""The values of ``rope_type`` that are served."""

_NEEDED = {"linear": ("factor",), "dynamic": ("factor",), "llama3": ("factor", "low_freq_factor", "high_freq_factor")}

Rotation = tuple[Tensor, Tensor]
"""Cosine and sine of every token's angles, each ``[T, 1, head_dim / 2]``: one for all heads, computed once a step."""


@dataclass(frozen=True)
class Rope:
    """A model's RoPE settings, checked. ``theta`` is the base of the frequencies; the rest is for scaling."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    """llama3: a pair that turns fewer times than this over the original context is slowed by the whole factor,"""
    high_freq_factor: float = 4.0
    """and one that turns more often than this keeps its speed."""
    original_context: int = 8192
    """llama3: tokens of the context before it was extended."""
    freq_factors: tuple[float, ...] = ()
    """What divides each pair's frequency, on top of the rest: one number a pair, or none at all."""

    def inverse_frequencies(self, head_dim: int) -> Tensor:
        """Radians a token, of each pair: float32 ``[head_dim / 2]``, fastest first, on the CPU."""
        # The device is named because models are built under torch.device("meta"), and this is a number and not a weight to come.
        plain = 1.0 / self.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32, device="cpu") / head_dim)
        if self.freq_factors:
            if len(self.freq_factors) != len(plain):
                raise ModelLoadError(f"config.json: freq_factors has {len(self.freq_factors)} numbers, a head has {len(plain)} frequencies")
            plain = plain / torch.tensor(self.freq_factors, dtype=torch.float32, device="cpu")
        if self.kind == "linear":
            return plain / self.factor
        if self.kind == "llama3":
            turns = self.original_context / (2 * math.pi / plain)
            keep = ((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)).clamp(0, 1)
            return (1 - keep) * plain / self.factor + keep * plain
        return plain


def read_rope(config: Mapping[str, Any]) -> Rope:
    """The settings in config.json, in any of their spellings.

    ``rope_scaling`` (before transformers 5) or ``rope_parameters`` holds them, the kind is called ``rope_type`` or ``type``, and ``rope_theta``
    is among them or outside. As in transformers, ``rope_scaling`` goes before ``rope_parameters`` and inside before outside.

    Raises ModelLoadError for a kind that isn't served (the message lists those that are), for settings that differ between layers or
    rotate a part of each head only, and for a missing or impossible number.
    """
    found: Any = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(found, Mapping):
        raise ModelLoadError(f"config.json: rope_scaling and rope_parameters must be objects or null, not {found!r}")
    if nested := [key for key, value in found.items() if isinstance(value, Mapping)]:
        raise ModelLoadError(f"config.json: RoPE settings for single kinds of layers ({', '.join(nested)}) are not supported")
    # The old "type" is still written next to the new name by some tools; an explicit null counts as absent.
    values = {"rope_theta": config.get("rope_theta"), "partial_rotary_factor": config.get("partial_rotary_factor"), **found}
    values = {key: value for key, value in values.items() if value is not None}
    kind = values.get("rope_type", values.get("type", "default"))
    if kind not in KINDS:
        raise ModelLoadError(f"config.json: RoPE scaling {kind!r} is not supported; supported are {', '.join(KINDS)}")
    if values.get("partial_rotary_factor", 1) != 1:
        raise ModelLoadError(f"config.json: partial_rotary_factor {values['partial_rotary_factor']!r} is not supported; heads are rotated whole")
    theta = read_positive(values, "rope_theta", 10000.0)
    factors = _read_factors(values, kind)
    if kind == "default":
        return Rope(theta, freq_factors=factors)
    if missing := [key for key in _NEEDED[kind] if key not in values]:
        raise ModelLoadError(f"config.json: RoPE scaling {kind!r} needs {', '.join(missing)}")
    factor = read_positive(values, "factor", 1.0)
    if kind != "llama3":
        return Rope(theta, kind, factor, freq_factors=factors)
    low, high = read_positive(values, "low_freq_factor", 1.0), read_positive(values, "high_freq_factor", 4.0)
    if not low < high:
        raise ModelLoadError(f"config.json: low_freq_factor {low} must be below high_freq_factor {high}")
    return Rope(theta, kind, factor, low, high, _original_context(config, values))


def _read_factors(values: Mapping[str, Any], kind: str) -> tuple[float, ...]:
    """``freq_factors``, this project's own key: GGUF files hold the numbers and not what they were computed from."""
    factors = values.get("freq_factors", [])
    if not isinstance(factors, list) or not all(isinstance(f, float) and 0 < f < math.inf for f in factors):
        raise ModelLoadError(f"config.json: freq_factors must be a list of positive numbers, not {factors!r}")
    if factors and kind not in ("default", "linear"):
        raise ModelLoadError(f"config.json: freq_factors with RoPE scaling {kind!r} are not supported")
    return tuple(factors)


def _original_context(config: Mapping[str, Any], values: Mapping[str, Any]) -> int:
    # transformers' order: outside the settings, inside them, and else the whole context.
    for place, key in ((config, "original_max_position_embeddings"), (values, "original_max_position_embeddings")):
        if place.get(key) is not None:
            return read_int(place, key)
    return read_int(config, "max_position_embeddings")


class RotaryEmbedding(nn.Module):
    """Turns positions into angles. The frequencies are a buffer that is computed, never loaded."""

    inv_freq: Tensor

    def __init__(self, rope: Rope, head_dim: int) -> None:
        super().__init__()
        self.register_buffer("inv_freq", rope.inverse_frequencies(head_dim), persistent=False)

    def forward(self, positions: Tensor, dtype: torch.dtype) -> Rotation:
        """int64 ``[T]`` -> cosines and sines in the model's dtype.

        The angles are float32 whatever the model's type (float64 too), as in transformers: at position 100,000 a half type could not
        tell one token from the next.
        """
        angles = positions[:, None, None].float() * self.inv_freq.float()
        return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Turn every pair of every head: ``[T, heads, head_dim]``, same shape."""
    cos, sin = rotation
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
