"""MemoryBudget: a card divided into weights, KV cache and the rest, for some models and cards (Paper Fig. 1, Table 1); lesson 01's calculator.

The division is the engine's own, `plan_blocks`, told what another card would say of itself. The picture is a plotly figure with a slider and
buttons that need no kernel, and an SVG beside it.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..attention.cache import bytes_per_block
from ..config import EngineConfig
from ..core.block_table import num_blocks_for
from ..engine.memory import plan_blocks
from ..words import counted
from .palette import AUTO, EXTERNAL, LIGHT, OUTLINE, RESERVED
from .shapes import FONT, document, dots, hatch, rect, text
from .view import PLOTLY_MIME

GIB = 2**30


@dataclass(frozen=True, slots=True)
class KnownModel:
    """What the memory of a published model depends on. ``dtype`` is that of weights and cache."""

    name: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    dtype: torch.dtype
    num_parameters: int

    @property
    def weight_bytes(self) -> int:
        return self.num_parameters * self.dtype.itemsize

    def kv_bytes(self, tokens: int = 1) -> int:
        """Bytes of KV cache for ``tokens`` tokens."""
        return bytes_per_block(self.num_layers, self.num_kv_heads, tokens, self.head_dim, self.dtype)

    def __str__(self) -> str:
        return f"{self.name} ({str(self.dtype).removeprefix('torch.').replace('bfloat', 'bf').replace('float', 'fp')})"


MODELS = (
    KnownModel("GPT-2", 12, 12, 12, 64, 768, torch.float32, 124_439_808),
    KnownModel("SmolLM2-135M", 30, 9, 3, 64, 576, torch.float32, 134_515_008),
    KnownModel("SmolLM2-135M", 30, 9, 3, 64, 576, torch.float16, 134_515_008),
    KnownModel("Qwen3-0.6B", 28, 16, 8, 128, 1024, torch.bfloat16, 596_049_920),
    KnownModel("Llama-3-8B", 32, 32, 8, 128, 4096, torch.bfloat16, 8_030_261_248),
    KnownModel("OPT-13B", 40, 40, 40, 128, 5120, torch.float16, 12_853_473_280),
)

CARDS = {
    "T4 16 GB": 15_360, "L4 24 GB": 23_034, "A100 40 GB": 40_960, "A100 80 GB": 81_920, "H100 80 GB": 81_559, "H200 141 GB": 143_771,
}
"""Name as sold -> memory in MiB, as ``nvidia-smi`` prints it."""

SHARES = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
SHOWN = (MODELS[0], MODELS[2], *MODELS[4:])
PARTS = (("weights", OUTLINE, ""), ("KV cache", RESERVED, "."), ("in the budget, never needed", LIGHT.ground, ""), ("left to others", EXTERNAL, "x"))
"""Part -> colour and plotly's pattern."""


@dataclass(frozen=True, slots=True)
class Division:
    """One model on one card; sizes in bytes."""

    total: int
    weights: int
    cache: int
    idle: int
    """Inside the budget, and more than ``max_num_seqs`` sequences of ``max_model_len`` tokens could ever use: the engine leaves it alone."""
    num_blocks: int
    num_sequences: int
    """How many sequences of ``max_model_len`` tokens the cache holds."""
    refusal: str = ""
    """What the engine says if there is no room for a single block."""

    @property
    def left(self) -> int:
        """Outside the budget: activations, the CUDA context, other programs."""
        return max(0, self.total - self.weights - self.cache - self.idle)

    def __str__(self) -> str:
        if self.refusal:
            return self.refusal
        idle = f", {self.idle / GIB:.1f} GiB in the budget, never needed" if self.idle else ""
        return (
            f"weights {self.weights / GIB:.1f} GiB, KV cache {self.cache / GIB:.1f} GiB = {counted(self.num_blocks, 'block')}, room for "
            f"{counted(self.num_sequences, 'full sequence')}{idle}, {self.left / GIB:.1f} GiB left to others"
        )


def divide(model: KnownModel, card: str, gpu_memory_utilization: float = 0.9, max_model_len: int = 2048, block_size: int = 16) -> Division:
    """What the engine would do with ``model`` on ``card``, a name of `CARDS`. Raises ValueError for options that the engine refuses."""
    if card not in CARDS:
        raise ValueError(f"there is no card {card!r} here; there are {', '.join(CARDS)}")
    config = EngineConfig(gpu_memory_utilization=gpu_memory_utilization, max_model_len=max_model_len, block_size=block_size, swap_space=0)
    total, weights, block = CARDS[card] * 2**20, model.weight_bytes, model.kv_bytes(block_size)
    try:
        plan = plan_blocks(config, max_model_len, block, weights, torch.device("cuda"), (total, max(0, total - weights)))
    except ValueError as error:
        return Division(total, weights, 0, 0, 0, 0, str(error))
    cache = plan.num_blocks * block
    idle = max(0, plan.budget - weights - cache - block)
    return Division(total, weights, cache, idle, plan.num_blocks, plan.num_blocks // num_blocks_for(max_model_len, block_size))


class MemoryBudget:
    """The division of a card among ``models``, at first of ``card`` with ``share`` as ``gpu_memory_utilization``. The value of a cell."""

    def __init__(self, models: Sequence[KnownModel] = SHOWN, card: str = "A100 40 GB", share: float = 0.9, max_model_len: int = 2048) -> None:
        self.models = tuple(models)
        self.card = card
        self.share = share
        self.max_model_len = max_model_len
        self.divisions(card, share)                         # a wrong name or share raises here and not when it is shown

    def divisions(self, card: str, share: float) -> list[Division]:
        """One a model."""
        return [divide(model, card, share, self.max_model_len) for model in self.models]

    # -- in letters ----------------------------------------------------------------------------------------------------------------
    def __str__(self) -> str:
        head = f"{self.card}, gpu_memory_utilization={self.share}, sequences of {self.max_model_len} tokens"
        width = max(len(str(model)) for model in self.models)
        rows = [f"  {model!s:{width}}  {division}" for model, division in zip(self.models, self.divisions(self.card, self.share))]
        return "\n".join([head, *rows])

    __repr__ = __str__

    def _words(self, division: Division) -> str:
        """What stands on a model's KV cache."""
        if division.refusal:
            return "no room for a block"
        return f"{division.cache / GIB:.1f} GiB: {division.num_sequences} × {self.max_model_len}"

    # -- plotly --------------------------------------------------------------------------------------------------------------------
    def _change(self, card: str, share: float) -> dict[str, list[Any]]:
        """What differs between two positions of slider and buttons, for the four traces."""
        found = self.divisions(card, share)
        heights = [[round(getattr(d, part) / GIB, 2) for d in found] for part in ("weights", "cache", "idle", "left")]
        words = [[self._words(d) for d in found] if i == 1 else [] for i in range(len(PARTS))]
        return {"y": heights, "text": words}

    def _slider(self, card: str) -> dict[str, Any]:
        steps = [
            {"label": f"{share:.2f}", "method": "update", "args": [self._change(card, share), {"title.text": self._title(card, share)}]}
            for share in SHARES
        ]
        active = min(range(len(SHARES)), key=lambda i: abs(SHARES[i] - self.share))
        return {"active": active, "steps": steps, "currentvalue": {"prefix": "gpu_memory_utilization = "}, "pad": {"t": 45}}

    def _title(self, card: str, share: float) -> str:
        return f"{card} ({CARDS[card] / 1024:.1f} GiB), gpu_memory_utilization = {share:.2f}"

    def figure(self) -> dict[str, Any]:
        """The plotly figure as a plain dict: buttons choose the card, the slider the share."""
        names = [str(model).replace(" (", "<br>(") for model in self.models]
        change = self._change(self.card, self.share)
        data = [
            {"type": "bar", "name": name, "x": names, "y": heights, "text": words, "textposition": "auto", "insidetextanchor": "middle",
             "marker": {"color": colour, "line": {"color": OUTLINE, "width": 1}, "pattern": {"shape": shape, "fgcolor": LIGHT.ink, "size": 7}},
             "textfont": {"color": LIGHT.ink}, "hovertemplate": f"%{{x}}<br>{name}: %{{y:.1f}} GiB<extra></extra>"}
            for (name, colour, shape), heights, words in zip(PARTS, change["y"], change["text"])
        ]
        buttons = [
            {"label": card, "method": "update", "args": [
                self._change(card, self.share),
                {"title.text": self._title(card, self.share), "sliders": [self._slider(card)], "yaxis.range": [0, CARDS[card] / 1024 * 1.02]},
            ]} for card in CARDS
        ]
        layout = {
            "barmode": "stack", "height": 500, "title": {"text": self._title(self.card, self.share), "x": 0.01, "font": {"size": 15}},
            "paper_bgcolor": LIGHT.ground, "plot_bgcolor": LIGHT.ground, "font": {"family": FONT, "color": LIGHT.ink, "size": 12},
            "yaxis": {"title": {"text": "memory of the card [GiB]"}, "range": [0, CARDS[self.card] / 1024 * 1.02], "gridcolor": "#E4E6EA"},
            "xaxis": {"fixedrange": True}, "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
            "margin": {"l": 60, "r": 20, "t": 120, "b": 20}, "sliders": [self._slider(self.card)],
            "updatemenus": [{"type": "buttons", "direction": "right", "x": 0, "xanchor": "left", "y": 1.24, "yanchor": "bottom", "buttons": buttons,
                             "active": list(CARDS).index(self.card), "showactive": True}],
        }
        return {"data": data, "layout": layout}

    # -- SVG -----------------------------------------------------------------------------------------------------------------------
    def svg(self) -> str:
        """The picture as it is first, one bar a model, lying on its side: for pages that run no plotly."""
        found, left, width, row = self.divisions(self.card, self.share), 150, 540, 46
        body = [text(12, 26, self._title(self.card, self.share), AUTO.ink, 15, weight=600)]
        for i, (model, division) in enumerate(zip(self.models, found)):
            y, x, scale = 46 + i * row, float(left), width / division.total
            body.append(text(left - 10, y + 20, str(model), AUTO.ink, 12.5, "end"))
            for part, size in zip(PARTS, (division.weights, division.cache, division.idle, division.left)):
                body.append(_segment(x, y, min(size * scale, left + width - x), 30, part))
                x = min(x + size * scale, left + width)
            body.append(text(left + width + 12, y + 20, self._words(division), AUTO.ink, 12.5))
        y, x = 46 + len(found) * row, float(left)
        for part in PARTS:
            body += [_segment(x, y, 26, 16, part), text(x + 33, y + 13, part[0], AUTO.ink, 12)]
            x += 60 + 7 * len(part[0])
        return document(left + width + 170, y + 30, str(self), AUTO, body)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Mapping[str, object]:
        return {"text/plain": str(self), "image/svg+xml": self.svg(), PLOTLY_MIME: self.figure()}


def _segment(x: float, y: float, width: float, height: float, part: tuple[str, str, str]) -> str:
    name, colour, shape = part
    if width <= 0:
        return ""
    body = rect(x, y, width, height, AUTO.ground if name == PARTS[2][0] else colour, extra=f'stroke="{OUTLINE}"')
    marks = dots(x, y, width, height) if shape == "." else hatch(x, y, width, height, "crossed", 8) if shape == "x" else ""
    return body + (f'<path d="{marks}" stroke="{LIGHT.ink}" stroke-width="1" stroke-linecap="round" fill="none" opacity=".55"/>' if marks else "")
