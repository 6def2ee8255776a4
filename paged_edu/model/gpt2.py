"""GPT-2: the decoder-only Transformer of the paper's background section, one layer after the other (Paper §2.1).

The file is the ordinary model. Only `Attention.forward` differs from a textbook's: it hands its new keys and values to ``attend``, which
writes them to the layer's KV cache and reads the whole context back through the block tables. ``attend`` is an argument, so the
same model runs on the reference backend and on the kernels.
"""
from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from ..attention.cache import LayerCache
from ..attention.metadata import Attend, AttentionMetadata
from .layers import Conv1D, Embedding, Linear, activation
from .spec import CausalLM, LayerCaches, ModelLoadError, ModelSpec, Smoothable, read_flag, read_int, read_positive

# The causal mask that old checkpoints store with each layer. "h.0.attn.c_attn.bias" is a real bias: match the whole name.
_MASK_BUFFER = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")


class Attention(nn.Module):
    """Multi-head causal self-attention; queries, keys and values come from one projection, a third of its columns each."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__()
        n = spec.hidden_size
        self.num_heads, self.head_dim = spec.num_heads, spec.head_dim
        self.scale = self.head_dim**-0.5 if read_flag(spec.config, "scale_attn_weights", True) else 1.0
        if read_flag(spec.config, "scale_attn_by_inverse_layer_idx", False):
            self.scale /= layer + 1
        self.c_attn = Conv1D(n, 3 * n)
        self.c_proj = Conv1D(n, n)

    def forward(self, x: Tensor, cache: LayerCache, meta: AttentionMetadata, attend: Attend) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.num_heads, self.head_dim)) for t in self.c_attn(x).chunk(3, dim=-1))
        out: Tensor = self.c_proj(attend(q, k, v, cache, meta, None, self.scale).flatten(1))
        return out


class MLP(nn.Module):
    """The position-wise feed-forward network."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        inner = 4 * spec.hidden_size if spec.config.get("n_inner") is None else read_int(spec.config, "n_inner")
        self.c_fc = Conv1D(spec.hidden_size, inner)
        self.c_proj = Conv1D(inner, spec.hidden_size)
        self.act = activation(spec.config.get("activation_function", "gelu_new"))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.c_proj(self.act(self.c_fc(x)))
        return out


class Block(nn.Module):
    """One Transformer layer, normalised before each half ("pre-norm"). Not a KV block."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__()
        eps = read_positive(spec.config, "layer_norm_epsilon", 1e-5)
        self.ln_1 = nn.LayerNorm(spec.hidden_size, eps=eps)
        self.attn = Attention(spec, layer)
        self.ln_2 = nn.LayerNorm(spec.hidden_size, eps=eps)
        self.mlp = MLP(spec)

    def forward(self, x: Tensor, cache: LayerCache, meta: AttentionMetadata, attend: Attend) -> Tensor:
        x = x + self.attn(self.ln_1(x), cache, meta, attend)
        x = x + self.mlp(self.ln_2(x))
        return x


class GPT2(CausalLM):
    """GPT-2 of any size. Parameters carry the checkpoint's names, without the ``transformer.`` prefix that some checkpoints have."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.wte = Embedding(spec.vocab_size, spec.hidden_size)
        self.wpe = Embedding(spec.max_positions, spec.hidden_size)
        self.h = nn.ModuleList(Block(spec, layer) for layer in range(spec.num_layers))
        self.ln_f = nn.LayerNorm(spec.hidden_size, eps=read_positive(spec.config, "layer_norm_epsilon", 1e-5))
        self.lm_head = Linear(spec.hidden_size, spec.vocab_size, bias=False)
        self.tie_weights()

    def forward(
        self, input_ids: Tensor, positions: Tensor, cache: LayerCaches, meta: AttentionMetadata, attend: Attend,
    ) -> Tensor:
        """See `CausalLM.forward`; positions are looked up too, so one beyond ``spec.max_positions`` raises IndexError (on a CPU)."""
        x: Tensor = self.wte(input_ids) + self.wpe(positions)
        for layer, block in enumerate(self.h):
            x = block(x, cache[layer], meta, attend)
        x = self.ln_f(x)
        return x

    @property
    def embedding(self) -> Embedding:
        return self.wte

    def smoothable(self) -> Iterator[Smoothable]:
        """Between each norm and what reads it."""
        block: Any      # torch types what a module holds as Tensor or Module
        for block in self.h:
            for norm, layer in ((block.ln_1, block.attn.c_attn), (block.ln_2, block.mlp.c_fc)):
                yield Smoothable([norm.weight, norm.bias], [layer.weight.T], layer)
        head: Any = self.lm_head
        yield Smoothable([self.ln_f.weight, self.ln_f.bias], [head.weight], head)

    @staticmethod
    def rename(name: str) -> str | None:
        """``transformer.h.0.ln_1.weight`` -> ``h.0.ln_1.weight``; None for the stored causal masks."""
        name = name.removeprefix("transformer.")
        return None if _MASK_BUFFER.fullmatch(name) else name

    @staticmethod
    def spec_from(config: Mapping[str, Any], **common: Any) -> ModelSpec:
        """Read GPT-2's names for the sizes. Raises ModelLoadError for a bad value and for cross-attention, which isn't served."""
        if config.get("add_cross_attention"):
            raise ModelLoadError("config.json: add_cross_attention is not supported: GPT-2 is served as a decoder only")
        n_embd, n_head = read_int(config, "n_embd"), read_int(config, "n_head")
        if n_embd % n_head:
            raise ModelLoadError(f"config.json: n_embd {n_embd} is not a multiple of n_head {n_head}")
        activation(config.get("activation_function", "gelu_new"))  # an unknown name is refused before any weight is read
        return ModelSpec(
            num_layers=read_int(config, "n_layer"), num_heads=n_head, num_kv_heads=n_head, head_dim=n_embd // n_head,
            hidden_size=n_embd, vocab_size=read_int(config, "vocab_size"), max_positions=read_int(config, "n_positions"),
            tie_word_embeddings=read_flag(config, "tie_word_embeddings", True), config=config, **common,
        )
