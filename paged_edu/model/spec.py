"""What the engine knows of a model without knowing its architecture, and the error that every loading problem raises.

The memory manager needs layers, KV heads and head size to say what a block costs (Paper §3); the scheduler needs the longest position;
the sampler needs the vocabulary and the tokens that end a text. All of that is a `ModelSpec`, read from the checkpoint's json files.
"""
from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..attention.cache import KVCache, LayerCache
from ..attention.metadata import Attend, AttentionMetadata
from .errors import ModelLoadError as ModelLoadError

LayerCaches = KVCache | Sequence[LayerCache]
"""``cache[layer]`` is a layer's ``(keys, values)``."""


@dataclass(frozen=True)
class ModelSpec:
    """The shape of a model and the ids that it reserves. Sizes are counts; nothing here is in bytes."""

    architecture: str
    """As in config.json, for example ``GPT2LMHeadModel``."""
    num_layers: int
    num_heads: int
    num_kv_heads: int
    """Equal to num_heads without grouped-query attention."""
    head_dim: int
    hidden_size: int
    vocab_size: int
    """Rows of the embedding: may be more than the tokenizer knows (padding)."""
    max_positions: int
    """The longest sequence, in tokens."""
    eos_token_ids: tuple[int, ...]
    """Ids that end a text: config.json's, then generation_config.json's."""
    bos_token_id: int | None
    dtype: torch.dtype
    """The checkpoint's own type; the model may be loaded in another (`loader.choose_dtype`)."""
    tie_word_embeddings: bool
    """The output head is the embedding matrix."""
    config: Mapping[str, Any] = field(repr=False, compare=False)
    """config.json as it is, for what only the architecture understands."""


class Smoothable(NamedTuple):
    """Channels that ``makers`` make, one a row (or an element), and that ``readers`` read, one a column (see `smoothing`)."""

    makers: Sequence[Tensor]
    readers: Sequence[Tensor]
    layer: nn.Module
    """One that reads them: its input is what the channels hold."""


class CausalLM(nn.Module, ABC):
    """What `loader` and the runners ask of an architecture. A subclass is built by ``cls(spec)`` and overrides every abstract method."""

    spec: ModelSpec
    lm_head: nn.Module
    """The output head, ``[vocab_size, hidden_size]``, without a bias."""

    @property
    @abstractmethod
    def embedding(self) -> nn.Embedding:
        """The token embedding, ``[vocab_size, hidden_size]``."""

    @staticmethod
    @abstractmethod
    def spec_from(config: Mapping[str, Any], **common: Any) -> ModelSpec:
        """Read the architecture's own keys; ``common`` holds the fields that are read alike for all. Raises ModelLoadError."""

    @staticmethod
    @abstractmethod
    def rename(name: str) -> str | None:
        """Our parameter's name for a checkpoint tensor's; None: a buffer that is known and not needed."""

    def smoothable(self) -> Iterator[Smoothable]:
        """Channels whose size may move from where they are made to the weights that read them; none, unless an architecture says so."""
        yield from ()

    def tie_weights(self) -> None:
        """Where the spec ties them, the output head *is* the embedding, one tensor; called again once the weights are in."""
        if self.spec.tie_word_embeddings:
            self.lm_head.weight = self.embedding.weight

    @abstractmethod
    def forward(
        self, input_ids: Tensor, positions: Tensor, cache: LayerCaches, meta: AttentionMetadata, attend: Attend,
    ) -> Tensor:
        """Hidden states ``[T, hidden_size]``, after the last norm and in the model's dtype, of a flattened batch of T tokens.

        input_ids, positions: int64 ``[T]``; cache: for each layer its ``(keys, values)``, to which those of the new tokens are written; meta:
        which token belongs to whom and where it goes; attend: the attention backend. Raises IndexError (on a CPU) for a token that the
        embedding does not have.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """``[R, hidden_size]`` -> ``[R, vocab_size]``, in the model's dtype."""
        logits: Tensor = self.lm_head(hidden)
        return logits

    def weight_bytes(self) -> int:
        """Memory of all weights; a tied head is one tensor under two names, and counts once."""
        storages = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in (*self.parameters(), *self.buffers())}
        return sum(storages.values()) + sum(int(getattr(module, "packed_bytes", 0)) for module in self.modules())

    def num_weights(self) -> int:
        """How many numbers the weights are, those that int8 layers hold as codes too."""
        packed = sum(int(getattr(module, "packed_weights", 0)) for module in self.modules())
        return sum(parameter.numel() for parameter in self.parameters()) + packed


LARGEST_INT = 2**31 - 1


def read_int(config: Mapping[str, Any], key: str, minimum: int = 1) -> int:
    """``config[key]`` as a checked integer. Raises ModelLoadError naming the key and the value."""
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= LARGEST_INT:
        raise ModelLoadError(f"config.json: {key} must be an integer from {minimum} to {LARGEST_INT}, not {value!r}")
    return value


def read_positive(config: Mapping[str, Any], key: str, default: float) -> float:
    """``config[key]``, or the default, as a checked positive number. Raises ModelLoadError naming the key and the value."""
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ModelLoadError(f"config.json: {key} must be a positive number, not {value!r}")
    return float(value)


def read_flag(config: Mapping[str, Any], key: str, default: bool) -> bool:
    """``config[key]``, or the default, as true or false. Raises ModelLoadError naming the key and the value."""
    value = config.get(key, default)
    if not isinstance(value, bool):
        raise ModelLoadError(f"config.json: {key} must be true or false, not {value!r}")
    return value
