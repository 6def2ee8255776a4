"""Before inputs get 8-bit codes: move what is large in a few of their channels into the weights (SmoothQuant, Xiao et al., arXiv:2211.10438).

A row of inputs has one scale, so one channel that is 50 times the others takes their precision away, and in language models the same few
channels always are. Dividing a channel by a factor where it is made, in the norm's weight, and multiplying the weights that read it
by the same factor, changes nothing but who has to represent what. Factors are powers of two: not even the last bit of a float32 result changes.

How large a channel gets is seen in one pass over random tokens, the same for every load: a model's large channels are large whatever it reads,
and no text has to come with the package.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention.cache import LayerCache
from ..attention.metadata import AttentionMetadata
from .spec import CausalLM

NUM_TOKENS = 256
_STRENGTH = 0.4
"""Of the differences between channels, in logarithms, the share that goes to the weights. At 0.5 both sides end as uneven as each other; a little
less was as good or better for SmolLM2."""
_LARGEST_FACTOR = 2.0**8
_TINY = 1e-5


@torch.inference_mode()
def smooth_model(model: CausalLM) -> None:
    """Fold factors into norms and weights, in place, for every `Smoothable` that ``model`` names; a tied head gets a tensor of its own first."""
    if model.spec.tie_word_embeddings:
        model.lm_head.weight = nn.Parameter(model.embedding.weight.clone(), requires_grad=False)
    groups = list(model.smoothable())
    largest = _largest_inputs(model, [group.layer for group in groups])
    for group, seen in zip(groups, largest, strict=True):
        weights = torch.stack([weight.abs().amax(0) for weight in group.readers]).amax(0)
        logs = _STRENGTH * seen.clamp_min(_TINY).log2() - (1 - _STRENGTH) * weights.clamp_min(_TINY).log2()
        factors = torch.exp2((logs - logs.mean()).round()).clamp(1 / _LARGEST_FACTOR, _LARGEST_FACTOR)
        for tensor in group.makers:
            tensor.div_(factors if tensor.dim() == 1 else factors[:, None])
        for tensor in group.readers:
            tensor.mul_(factors)


def _largest_inputs(model: CausalLM, layers: Sequence[nn.Module]) -> list[Tensor]:
    """For each layer the largest absolute value of each channel of its input."""
    seen: list[Tensor] = [torch.empty(0)] * len(layers)
    generator = torch.Generator().manual_seed(0)
    count = min(NUM_TOKENS, model.spec.max_positions)
    ids = torch.randint(model.spec.vocab_size, (count,), generator=generator)
    hooks = [layer.register_forward_pre_hook(_recorder(seen, i)) for i, layer in enumerate(layers)]
    try:
        no_cache: list[LayerCache] = [(torch.empty(0), torch.empty(0))] * model.spec.num_layers
        model.logits(model(ids, torch.arange(count), no_cache, _NOTHING, _attend)[:32])
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def _recorder(seen: list[Tensor], place: int) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    def record(layer: nn.Module, args: tuple[Tensor, ...]) -> None:
        seen[place] = args[0].abs().amax(0)

    return record


_NOTHING: AttentionMetadata = None  # type: ignore[assignment]  # `_attend` has no use for it


def _attend(q: Tensor, k: Tensor, v: Tensor, cache: LayerCache, meta: AttentionMetadata, window: int | None, scale: float) -> Tensor:
    """Causal attention of one sequence without a cache."""
    queries, keys, values = (t.transpose(0, 1)[None] for t in (q, k, v))
    out = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
    return out[0].transpose(0, 1)
