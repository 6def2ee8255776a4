"""A tiny GPT-2 checkpoint, to write with and without faults, for the tests of loading. The fixture `save` writes it."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paged_edu.model.gpt2 import GPT2
from paged_edu.model.loader import load_model

CONFIG: dict[str, Any] = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 11, "n_positions": 8, "n_embd": 6, "n_layer": 2, "n_head": 2,
    "eos_token_id": 3, "bos_token_id": 1, "dtype": "float32",
}


def tensors(seed: int = 0, head: bool = False) -> dict[str, Tensor]:
    """A checkpoint's tensors under transformers' names."""
    n, shapes = 6, {"wte.weight": (11, 6), "wpe.weight": (8, 6), "ln_f.weight": (6,), "ln_f.bias": (6,)}
    for i in range(2):
        for name, shape in {"attn.c_attn": (n, 3 * n), "attn.c_proj": (n, n), "mlp.c_fc": (n, 4 * n), "mlp.c_proj": (4 * n, n)}.items():
            shapes |= {f"h.{i}.{name}.weight": shape, f"h.{i}.{name}.bias": shape[1:]}
        for name in ("ln_1", "ln_2"):
            shapes |= {f"h.{i}.{name}.weight": (n,), f"h.{i}.{name}.bias": (n,)}
    g = torch.Generator().manual_seed(seed)
    out = {f"transformer.{name}": torch.randn(shape, generator=g) for name, shape in shapes.items()}
    return out | ({"lm_head.weight": torch.randn(11, 6, generator=g)} if head else {})


Save = Callable[..., Path]
"""``save(weights=None, generation=None, **config)``: the folder, with these tensors and keys of config.json."""


def load(path: Path, dtype: torch.dtype = torch.float32) -> GPT2:
    model, _ = load_model(path, dtype, "cpu")
    assert isinstance(model, GPT2)
    return model
