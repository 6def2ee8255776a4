"""Llama and its family: Llama 1 to 3.x, SmolLM, TinyLlama, Mistral, Qwen2, Qwen3. One model; the members differ in small options.

Next to GPT-2 (`gpt2.py`): positions are rotations instead of added vectors (`rope.py`), norms don't subtract the mean, the feed-forward
network is gated, and several query heads may share one KV head (grouped-query attention), so that a KV block is that much
smaller (Paper §3: what the cache costs is what limits the batch). As there, ``attend`` is the only thing that knows of blocks.

`Options` is what tells the members apart; each class at the end of the file reads its own from config.json.
"""
from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from ..attention.cache import LayerCache
from ..attention.metadata import Attend, AttentionMetadata
from . import fused
from .layers import Embedding, Linear, RMSNorm, activation
from .rope import RotaryEmbedding, Rotation, read_rope, rotate
from .spec import CausalLM, LayerCaches, ModelLoadError, ModelSpec, Smoothable, read_flag, read_int, read_positive

# Rotary frequencies that old checkpoints store, with each layer or once.
_ROPE_BUFFER = re.compile(r"(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")

_FULL, _SLIDING = "full_attention", "sliding_attention"
_NORM_EPS = 1e-6  # where config.json does not say

Windows = tuple[int | None, ...]
"""For each layer, how many tokens a query sees, its own included; None: all."""


@dataclass(frozen=True)
class Options:
    """What differs within the family."""

    windows: Windows
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """Queries and keys are normalised, each head for itself, before they are rotated."""


class Attention(nn.Module):
    """Grouped-query causal self-attention: query head h reads KV head ``h // (num_heads // num_kv_heads)``.

    One KV head for each query head is multi-head attention, one for all is multi-query attention; nothing here tells them apart.
    """

    JOINED: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({"qkv_proj": ("q_proj", "k_proj", "v_proj")})
    """Layers that read the same input, which may be one layer (`int8.quantise_model`)."""
    qkv_proj: nn.Module | None
    fused = False

    def __init__(self, spec: ModelSpec, options: Options, layer: int) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = spec.num_heads, spec.num_kv_heads, spec.head_dim
        self.scale = self.head_dim**-0.5
        self.window = options.windows[layer]
        self.q_proj = Linear(spec.hidden_size, self.num_heads * self.head_dim, bias=options.qkv_bias)
        self.k_proj = Linear(spec.hidden_size, self.num_kv_heads * self.head_dim, bias=options.qkv_bias)
        self.v_proj = Linear(spec.hidden_size, self.num_kv_heads * self.head_dim, bias=options.qkv_bias)
        self.o_proj = Linear(self.num_heads * self.head_dim, spec.hidden_size, bias=options.output_bias)
        self.qkv_proj = None
        self.normalised = options.qk_norm
        self.q_norm = RMSNorm(self.head_dim, _norm_eps(spec)) if options.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(self.head_dim, _norm_eps(spec)) if options.qk_norm else nn.Identity()

    def forward(self, x: Tensor, rotation: Rotation, cache: LayerCache, meta: AttentionMetadata, attend: Attend) -> Tensor:
        heads = self.num_heads, self.num_kv_heads, self.num_kv_heads
        # The cache holds rotated keys: a position never changes, so a key is turned once and not at every step that reads it.
        if self.qkv_proj is not None and not self.normalised:       # side by side: turned together
            rows = self.qkv_proj(x).unflatten(-1, (sum(heads), self.head_dim))
            if self.fused:
                fused.turn(rows, self.num_heads + self.num_kv_heads, *rotation)
                q, k, v = rows.split(heads, dim=1)
            else:
                q, k = rotate(rows[:, : -self.num_kv_heads], rotation).tensor_split((self.num_heads,), dim=1)
                v = rows[:, -self.num_kv_heads :]
        else:
            if self.qkv_proj is not None:
                parts = self.qkv_proj(x).split([n * self.head_dim for n in heads], dim=-1)
            else:
                parts = self.q_proj(x), self.k_proj(x), self.v_proj(x)
            q, k, v = (part.unflatten(-1, (n, self.head_dim)) for part, n in zip(parts, heads, strict=True))
            q, k = rotate(self.q_norm(q), rotation), rotate(self.k_norm(k), rotation)
        out: Tensor = self.o_proj(attend(q, k, v, cache, meta, self.window, self.scale).flatten(1))
        return out


class MLP(nn.Module):
    """The position-wise feed-forward network, gated: ``down(act(gate(x)) * up(x))`` (SwiGLU, Shazeer, arXiv:2002.05202)."""

    JOINED: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({"gate_up_proj": ("gate_proj", "up_proj")})
    gate_up_proj: nn.Module | None
    fused = False

    def __init__(self, spec: ModelSpec, options: Options) -> None:
        super().__init__()
        inner = read_int(spec.config, "intermediate_size")
        self.gate_proj = Linear(spec.hidden_size, inner, bias=options.mlp_bias)
        self.up_proj = Linear(spec.hidden_size, inner, bias=options.mlp_bias)
        self.down_proj = Linear(inner, spec.hidden_size, bias=options.mlp_bias)
        self.gate_up_proj = None
        self.act = activation(spec.config.get("hidden_act", "silu"))

    def forward(self, x: Tensor) -> Tensor:
        if self.fused and self.gate_up_proj is not None and self.act is F.silu:
            joined: Tensor = self.down_proj(fused.silu_gate(self.gate_up_proj(x)))
            return joined
        gate, up = (self.gate_proj(x), self.up_proj(x)) if self.gate_up_proj is None else self.gate_up_proj(x).chunk(2, dim=-1)
        # Some activations take other instructions for a strided input, with other last bits; half of one row is never strided.
        out: Tensor = self.down_proj(self.act(gate.contiguous()).mul_(up))
        return out


class Block(nn.Module):
    """One Transformer layer, normalised before each half ("pre-norm"). Not a KV block."""

    def __init__(self, spec: ModelSpec, options: Options, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(spec.hidden_size, _norm_eps(spec))
        self.self_attn = Attention(spec, options, layer)
        self.post_attention_layernorm = RMSNorm(spec.hidden_size, _norm_eps(spec))
        self.mlp = MLP(spec, options)

    def forward(
        self, x: Tensor, delta: Tensor | None, rotation: Rotation, cache: LayerCache, meta: AttentionMetadata, attend: Attend,
    ) -> tuple[Tensor, Tensor]:
        """The stream ``x`` with what the layer before adds to it, and what this one adds: adding is left to the next norm, which reads both."""
        x, y = self.input_layernorm.after(x, delta)
        x, y = self.post_attention_layernorm.after(x, self.self_attn(y, rotation, cache, meta, attend))
        return x, self.mlp(y)


class Llama(CausalLM):
    """Llama 1, 2, 3, 3.x, and what shares their architecture. Parameters carry the checkpoint's names, without ``model.``."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = MappingProxyType({"max_position_embeddings": 2048})
    """What transformers takes for a key that config.json lacks; for others it is an error or the same for the whole family."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        options = self.options(spec.config, spec.num_layers)
        self.embed_tokens = Embedding(spec.vocab_size, spec.hidden_size)
        self.rotary_emb = RotaryEmbedding(read_rope(spec.config), spec.head_dim)
        self.layers = nn.ModuleList(Block(spec, options, layer) for layer in range(spec.num_layers))
        self.norm = RMSNorm(spec.hidden_size, _norm_eps(spec))
        self.lm_head = Linear(spec.hidden_size, spec.vocab_size, bias=False)
        self.tie_weights()

    def forward(
        self, input_ids: Tensor, positions: Tensor, cache: LayerCaches, meta: AttentionMetadata, attend: Attend,
    ) -> Tensor:
        """See `CausalLM.forward`; any position has angles: that none goes past ``spec.max_positions`` is the engine's word, not checked here."""
        x: Tensor = self.embed_tokens(input_ids)
        delta: Tensor | None = None
        rotation = self.rotary_emb(positions, x.dtype)
        for layer, block in enumerate(self.layers):
            x, delta = block(x, delta, rotation, cache[layer], meta, attend)
        out: Tensor = self.norm.after(x, delta)[1]
        return out

    @property
    def embedding(self) -> Embedding:
        return self.embed_tokens

    def smoothable(self) -> Iterator[Smoothable]:
        """Between each norm and what reads it, and between `MLP`'s up and down: what gate gives is only a factor there."""
        block: Any      # torch types what a module holds as Tensor or Module
        for block in self.layers:
            attn, mlp = block.self_attn, block.mlp
            yield Smoothable([block.input_layernorm.weight], [attn.q_proj.weight, attn.k_proj.weight, attn.v_proj.weight], attn.q_proj)
            yield Smoothable([block.post_attention_layernorm.weight], [mlp.gate_proj.weight, mlp.up_proj.weight], mlp.gate_proj)
            up = [mlp.up_proj.weight] if mlp.up_proj.bias is None else [mlp.up_proj.weight, mlp.up_proj.bias]
            yield Smoothable(up, [mlp.down_proj.weight], mlp.down_proj)
        head: Any = self.lm_head
        yield Smoothable([self.norm.weight], [head.weight], head)

    @staticmethod
    def rename(name: str) -> str | None:
        """``model.layers.0.mlp.up_proj.weight`` -> ``layers.0.mlp.up_proj.weight``; None for stored rotary frequencies."""
        name = name.removeprefix("model.")
        return None if _ROPE_BUFFER.fullmatch(name) else name

    @classmethod
    def spec_from(cls, config: Mapping[str, Any], **common: Any) -> ModelSpec:
        """Read the family's names for the sizes; the spec's ``config`` has `DEFAULTS` filled in. Raises ModelLoadError for a bad value."""
        config = {**cls.DEFAULTS, **config}
        hidden, heads, layers = (read_int(config, key) for key in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
        kv_heads = heads if config.get("num_key_value_heads") is None else read_int(config, "num_key_value_heads")
        if heads % kv_heads:
            raise ModelLoadError(f"config.json: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}")
        if config.get("head_dim") is None and hidden % heads:
            raise ModelLoadError(f"config.json: hidden_size {hidden} is not a multiple of num_attention_heads {heads}, and head_dim is not given")
        head_dim = hidden // heads if config.get("head_dim") is None else read_int(config, "head_dim")
        if head_dim % 2:
            raise ModelLoadError(f"config.json: head_dim {head_dim} is odd; RoPE turns pairs of dimensions")
        # What only the layers read is read here as well, so that it is refused before any weight is.
        read_int(config, "intermediate_size")
        read_positive(config, "rms_norm_eps", _NORM_EPS)
        activation(config.get("hidden_act", "silu"))
        read_rope(config)
        cls.options(config, layers)
        return ModelSpec(
            num_layers=layers, num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim, hidden_size=hidden,
            vocab_size=read_int(config, "vocab_size"), max_positions=read_int(config, "max_position_embeddings"),
            tie_word_embeddings=read_flag(config, "tie_word_embeddings", False), config=config, **common,
        )

    @staticmethod
    def options(config: Mapping[str, Any], num_layers: int) -> Options:
        """What this member of the family does, from a config with `DEFAULTS` filled in. Raises ModelLoadError."""
        bias = read_flag(config, "attention_bias", False)
        return Options((None,) * num_layers, qkv_bias=bias, output_bias=bias, mlp_bias=read_flag(config, "mlp_bias", False))


class Mistral(Llama):
    """Llama with a sliding window in every layer, or in none where it is null."""

    DEFAULTS = MappingProxyType({"max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096})

    @staticmethod
    def options(config: Mapping[str, Any], num_layers: int) -> Options:
        window = None if config["sliding_window"] is None else read_int(config, "sliding_window")
        kind = _FULL if window is None else _SLIDING
        if any(other != kind for other in config.get("layer_types") or ()):
            raise ModelLoadError(f"config.json: layer_types must be {kind!r} throughout for Mistral with sliding_window {window}")
        return Options((window,) * num_layers)


class Qwen2(Llama):
    """Llama with biases on queries, keys and values, and a window in some of the layers if it is asked for."""

    DEFAULTS = MappingProxyType({"max_position_embeddings": 32768, "num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28})

    @staticmethod
    def options(config: Mapping[str, Any], num_layers: int) -> Options:
        return Options(_qwen_windows(config, num_layers), qkv_bias=True)


class Qwen3(Llama):
    """Qwen2 with normalised queries and keys in place of the biases, and a head size of its own."""

    DEFAULTS = MappingProxyType({**Qwen2.DEFAULTS, "head_dim": 128})

    @staticmethod
    def options(config: Mapping[str, Any], num_layers: int) -> Options:
        bias = read_flag(config, "attention_bias", False)
        return Options(_qwen_windows(config, num_layers), qkv_bias=bias, output_bias=bias, qk_norm=True)


def _qwen_windows(config: Mapping[str, Any], num_layers: int) -> Windows:
    """``layer_types`` names each layer's kind; without it the first ``max_window_layers`` layers see everything, and the rest a window."""
    window = None
    if read_flag(config, "use_sliding_window", False) and config["sliding_window"] is not None:
        window = read_int(config, "sliding_window")
    kinds = config.get("layer_types")
    if kinds is None:
        full = num_layers if window is None else read_int(config, "max_window_layers", 0)
        kinds = [_FULL if layer < full else _SLIDING for layer in range(num_layers)]
    if not isinstance(kinds, list) or len(kinds) != num_layers or any(kind not in (_FULL, _SLIDING) for kind in kinds):
        raise ModelLoadError(f"config.json: layer_types must be {num_layers} times {_FULL!r} or {_SLIDING!r}, not {kinds!r}")
    if window is None and _SLIDING in kinds:
        raise ModelLoadError(f"config.json: layer_types has {_SLIDING!r}, but use_sliding_window and sliding_window give no window")
    return tuple(window if kind == _SLIDING else None for kind in kinds)


def _norm_eps(spec: ModelSpec) -> float:
    return read_positive(spec.config, "rms_norm_eps", _NORM_EPS)
