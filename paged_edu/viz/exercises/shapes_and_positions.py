"""Cases of exercises 09.a to c, which `reference.attend`, `build_input` and the modules of `GPT2` answer; torch is imported when a case is made."""
from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Any, NamedTuple

from ...core.paged import PagedKVManager
from ...core.scheduler import Scheduler, SchedulerConfig
from ...core.sequence import Request
from .exercise import Case, Function
from .guard import NoAnswerError
from .lesson_05 import advance
from .readers import Reader, kind_of


# -- a: which KV head --------------------------------------------------------------------------------------------------------------------
@cache
def heads_read(heads: int, kv_heads: int) -> tuple[int, ...]:
    """For each query head the KV head that it reads: the values say whose they are."""
    import torch

    from ...attention.cache import KVCache
    from ...attention.metadata import build_input
    from ...attention.reference import attend
    from ...core.plan import ScheduledSeq

    value = torch.arange(kv_heads, dtype=torch.float32)[None, :, None].expand(1, kv_heads, 8)
    cached = KVCache(1, 1, kv_heads, 4, 8, torch.float32, "cpu")
    batch = build_input([ScheduledSeq("A", 0, 0, (0,), 0, (0,), (0,))], 4, "cpu")
    out = attend(torch.zeros(1, heads, 8), torch.zeros_like(value), value, cached[0], batch.meta, None, 1.0)
    return tuple(int(head) for head in out[0, :, 0].round().tolist())


def head_case(q: int, heads: int, kv_heads: int) -> Case:
    return Case((q, heads, kv_heads), heads_read(heads, kv_heads)[q])


def head_fixed() -> Sequence[Case]:
    smollm = [head_case(q, 9, 3) for q in (0, 1, 4, 8)]
    return [*smollm, *(head_case(*args) for args in ((5, 6, 6), (3, 4, 1), (7, 32, 8), (31, 32, 8), (14, 15, 5), (13, 14, 2)))]


def draw_head(random: Random) -> Case:
    kv_heads = random.choice((1, 2, 3, 4, 5, 8))
    heads = kv_heads * random.choice((1, 2, 3, 4, 7))
    return head_case(random.randrange(heads), heads, kv_heads)


# -- b: positions of a chunk ---------------------------------------------------------------------------------------------------------------
class Running(NamedTuple):
    """A sequence before a step."""

    num_computed_tokens: int
    """Tokens whose keys and values are in the cache."""
    num_tokens: int
    """Tokens that it has, computed or not."""


def chunk_case(prompt: int, budget: int, step: int) -> Case:
    """Let a prompt of so many tokens run in chunks of ``budget``; what `build_input` makes of step ``step``, from 0."""
    from ...attention.metadata import build_input

    scheduler = Scheduler(SchedulerConfig(max_model_len=256, max_num_seqs=1, max_num_batched_tokens=budget), PagedKVManager(256, 1))
    scheduler.add(Request("A", tuple(range(prompt)), max_tokens=50))
    for _ in range(step):
        advance(scheduler)
    [request] = scheduler.requests.values()
    [seq] = request.live
    before = Running(seq.num_computed_tokens, seq.num_tokens)
    [item] = scheduler.schedule().scheduled
    return Case((before, item.num_new), build_input([item], 1, "cpu").positions.tolist())


def chunk_fixed() -> Sequence[Case]:
    return [chunk_case(*args) for args in ((5, 8, 0), (20, 8, 1), (20, 8, 0), (20, 8, 2), (5, 8, 1), (5, 8, 3), (9, 4, 2), (30, 16, 1), (3, 1, 1))]


def draw_chunk(random: Random) -> Case:
    prompt, budget = random.randint(1, 40), random.randint(1, 16)
    return chunk_case(prompt, budget, random.randint(0, -(-prompt // budget) + 2))


# -- c: transposed weights -----------------------------------------------------------------------------------------------------------------
WEIGHTS = ("wte", "wpe", "h.0.attn.c_attn", "h.0.attn.c_proj", "h.0.mlp.c_fc", "h.0.mlp.c_proj")
"""The matrices of a GPT-2, as far as its first layer."""


def stored_shapes(width: int, vocab: int, positions: int) -> dict[str, tuple[int, int]]:
    shapes = ((vocab, width), (positions, width), (width, 3 * width), (width, width), (width, 4 * width), (4 * width, width))
    return dict(zip(WEIGHTS, shapes, strict=True))


@cache
def kept_as_conv1d() -> frozenset[str]:
    """Names of the matrices that GPT-2's own modules multiply the other way round."""
    import torch

    from ...model.gpt2 import GPT2
    from ...model.layers import Conv1D

    config = {"n_embd": 2, "n_head": 1, "n_layer": 1, "vocab_size": 4, "n_positions": 4}
    spec = GPT2.spec_from(config, architecture="GPT2LMHeadModel", eos_token_ids=(), bos_token_id=None, dtype=torch.float32)
    with torch.device("meta"):
        model = GPT2(spec)
    return frozenset(name for name in WEIGHTS if isinstance(model.get_submodule(name), Conv1D))


def weight_case(name: str, width: int, random: Random) -> Case:
    """A stored matrix and the shape of the parameter that it is for; Conv1D itself says which numbers belong there."""
    import torch

    from ...model.layers import Conv1D

    rows, columns = stored_shapes(width, width + 3, width + 2)[name]
    stored = torch.tensor([[float(random.randint(-9, 9)) for _ in range(columns)] for _ in range(rows)])
    wanted = stored
    if name in kept_as_conv1d():
        layer = Conv1D(rows, columns)
        layer.weight.data, layer.bias.data = stored, torch.zeros(columns)
        wanted = layer(torch.eye(rows)).detach().T            # what a Linear needs to give the same for every input
    return Case((f"{name}.weight", stored.tolist(), tuple(wanted.shape)), wanted.tolist())


def weight_fixed() -> Sequence[Case]:
    random = Random(0)
    return [weight_case(name, width, random) for width in (2, 3) for name in WEIGHTS]


def draw_weight(random: Random) -> Case:
    name, width = random.choice(WEIGHTS), random.randint(1, 3)
    return weight_case(name, width, random)


def weight_drive(function: Function, args: tuple[Any, ...], read: Reader) -> Any:
    """The matrix comes as a tensor."""
    import torch

    name, stored, shape = args
    return read(function(name, torch.tensor(stored), shape))


def matrix(value: Any) -> list[list[float]]:
    """Rows of numbers: a tensor, an array or lists."""
    import numpy as np

    try:
        found = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value, dtype=np.float64)
    except (TypeError, ValueError):
        raise NoAnswerError(f"it returned {kind_of(value)}, and a matrix was wanted") from None
    if found.ndim != 2:
        got = kind_of(value) if value is None else f"an array of shape {found.shape}"
        raise NoAnswerError(f"it returned {got}, and a matrix was wanted")
    rows: list[list[float]] = found.tolist()
    return rows


def say_matrix(rows: list[list[float]]) -> str:
    return "[" + ", ".join("[" + ", ".join(f"{number:g}" for number in row) + "]" for row in rows) + "]"


def tell_weight(case: Case) -> str:
    name, stored, shape = case.args
    return f"linear_weight(name={name!r}, stored={say_matrix(stored)}, shape={shape})"
