"""Exercises of lesson 01: the bytes of a token, and how many sequences a budget holds. Judged by `bytes_per_block` and `PagedKVManager`."""
from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import torch

from ...attention.cache import bytes_per_block
from ...core.kv_manager import AllocStatus
from ...core.paged import PagedKVManager
from ...core.sequence import Request
from ...core.sequence import Sequence as TokenSequence
from ...model.spec import ModelSpec
from .exercise import Case, Exercise, Misconception
from .readers import integer


def model(name: str, layers: int, heads: int, kv_heads: int, head_dim: int, hidden: int, dtype: torch.dtype) -> ModelSpec:
    """What the engine knows of a model, with only the sizes that matter here."""
    return ModelSpec(name, layers, heads, kv_heads, head_dim, hidden, 32_000, 2048, (0,), None, dtype, False, {})


MODELS = (
    model("GPT-2", 12, 12, 12, 64, 768, torch.float32),
    model("SmolLM2-135M", 30, 9, 3, 64, 576, torch.float32),
    model("SmolLM2-135M", 30, 9, 3, 64, 576, torch.float16),
    model("Llama-3-8B", 32, 32, 8, 128, 4096, torch.bfloat16),
    model("Qwen3-0.6B", 28, 16, 8, 128, 1024, torch.bfloat16),
    model("OPT-13B", 40, 40, 40, 128, 5120, torch.float16),
)


def _bytes_case(spec: ModelSpec) -> Case:
    return Case((spec,), bytes_per_block(spec.num_layers, spec.num_kv_heads, 1, spec.head_dim, spec.dtype))


def _draw_model(random: Random) -> Case:
    kv_heads, head_dim = random.choice((1, 2, 3, 4, 8)), random.choice((32, 64, 80, 128))
    heads = kv_heads * random.choice((1, 2, 3, 4))
    hidden = heads * random.choice((head_dim, head_dim // 2))
    return _bytes_case(model("a model", random.randint(2, 40), heads, kv_heads, head_dim, hidden, random.choice((torch.float16, torch.float32))))


def _tell_model(case: Case) -> str:
    s = case.args[0]
    return (
        f"kv_bytes_per_token({s.architecture}: num_layers={s.num_layers}, num_heads={s.num_heads}, num_kv_heads={s.num_kv_heads}, "
        f"head_dim={s.head_dim}, hidden_size={s.hidden_size}, dtype={s.dtype})"
    )


def _fits_case(budget_gib: float, per_token: int, tokens: int) -> Case:
    """Blocks of one slot, as many as the budget holds; admit sequences until one must wait."""
    manager = PagedKVManager(int(budget_gib * 2**30) // per_token, 1)
    prompt = tuple(range(tokens))
    count = 0
    while manager.status(request := Request(str(count), prompt)) is AllocStatus.OK:
        manager.admit(TokenSequence(count, request, 0, list(prompt)), tokens)
        count += 1
    return Case((budget_gib, per_token, tokens), count)


def _fits_fixed() -> Sequence[Case]:
    return [_fits_case(*args) for args in ((12, 819_200, 500), (12, 819_200, 2048), (1, 2**20, 1024), (1, 2**20, 1025), (2, 131_072, 2000))]


def _draw_fits(random: Random) -> Case:
    return _fits_case(random.choice((0.25, 0.5, 1, 2)), random.choice((131_072, 819_200, 2**20)), random.randint(100, 3000))


def _bytes(layers: str, heads: str, head_dim: str, size: str, two: int = 2) -> Any:
    """A formula with one factor wrong."""

    def wrong(spec: ModelSpec) -> int:
        names = {
            "layers": spec.num_layers, "one": 1, "kv": spec.num_kv_heads, "query": spec.num_heads, "own": spec.head_dim,
            "divided": spec.hidden_size // spec.num_heads, "hidden": spec.hidden_size, "bytes": spec.dtype.itemsize,
            "bits": 8 * spec.dtype.itemsize, "four": 4, "two": 2,
        }
        return two * names[layers] * names[heads] * names[head_dim] * names[size]

    return wrong


EXERCISES = (
    Exercise(
        name="01.a",
        title="How many bytes does a token take in the cache?",
        signature="kv_bytes_per_token(spec)",
        statement=(
            "`spec` is the engine's `ModelSpec`: `num_layers`, `num_heads`, `num_kv_heads`, `head_dim`, `hidden_size`, `dtype`. Return the bytes of "
            "KV cache that one token takes. For GPT-2 in float32 that is 73,728."
        ),
        hints=(
            "In every layer a token leaves one key and one value behind, for each head that has keys and values of its own.",
            "The shape of a layer's cache: `KVCache.layers[i]` is (keys, values), each [num_blocks, num_kv_heads, block_size, head_dim].",
            "2 (keys and values) x layers x KV heads x head_dim x bytes of a number; `spec.dtype.itemsize` gives the last factor",
        ),
        judge="bytes_per_block",
        passed="One formula, `2 · layers · KV heads · head_dim · bytes`, says what a token costs; everything else of this lesson follows from it.",
        read=integer,
        fixed=lambda: [_bytes_case(spec) for spec in MODELS],
        draw=_draw_model,
        tell=_tell_model,
        say=lambda value: f"{value:,} bytes",
        misconceptions=(
            Misconception("you counted query heads; the cache holds KV heads.", _bytes("layers", "query", "own", "bytes")),
            Misconception(
                "you took hidden_size / num_heads for the head's size. Many models say it themselves, and then `head_dim` is right: Qwen3-0.6B has "
                "1024 / 16 = 64 and uses 128.", _bytes("layers", "kv", "divided", "bytes"),
            ),
            Misconception("you forgot the factor 2: a token leaves a key *and* a value.", _bytes("layers", "kv", "own", "bytes", two=1)),
            Misconception("you counted one layer; every layer has a cache of its own.", _bytes("one", "kv", "own", "bytes")),
            Misconception("you counted numbers, not bytes: a float16 has 2, a float32 has 4.", _bytes("layers", "kv", "own", "one")),
            Misconception("you took 4 bytes for every number; `spec.dtype.itemsize` says how many there are.", _bytes("layers", "kv", "own", "four")),
            Misconception("you took 2 bytes for every number; `spec.dtype.itemsize` says how many there are.", _bytes("layers", "kv", "own", "two")),
            Misconception("you counted bits: 8 of them are a byte.", _bytes("layers", "kv", "own", "bits")),
            Misconception(
                "you took the whole hidden size; the cache holds KV heads times head_dim numbers.",
                _bytes("layers", "one", "hidden", "bytes"),
            ),
        ),
    ),
    Exercise(
        name="01.b",
        title="How many sequences does a budget hold?",
        signature="fits(budget_gib, per_token, tokens)",
        statement=(
            "`budget_gib` GiB are left for the cache, a token takes `per_token` bytes, and each sequence needs room for `tokens` tokens. Return how "
            "many sequences fit. 12 GiB hold 31 sequences of 500 tokens of OPT-13B (819,200 bytes a token)."
        ),
        hints=(
            "Two divisions: how many tokens fit the budget, and how many sequences those tokens are.",
            "A GiB has 2**30 bytes, a GB 10**9: 7 % less. Engines and `nvidia-smi` count in the first.",
            "budget in bytes // (bytes a token * tokens a sequence); `int(...)` where the budget is no whole number of GiB",
        ),
        judge="PagedKVManager",
        passed=(
            "7 people where each is given room for 2048 tokens, 31 where it is the 500 of an average conversation: that gap is what the paper is "
            "about."
        ),
        read=integer,
        fixed=_fits_fixed,
        draw=_draw_fits,
        misconceptions=(
            Misconception(
                "you took 10^9 bytes for a GiB: it has 2^30. With 2048 tokens both give 7, which is why nobody notices; with 500 you get 29 and not"
                " 31.",
                lambda gib, per, tokens: int(gib * 10**9) // per // tokens,
            ),
            Misconception(
                "you rounded up: the last sequence would have no room for its last tokens.",
                lambda gib, per, n: -(-int(gib * 2**30) // (per * n)),
            ),
            Misconception("you took 2^20 bytes for a GiB; that is a MiB.", lambda gib, per, tokens: int(gib * 2**20) // per // tokens),
            Misconception("those are tokens, not sequences: divide once more.", lambda gib, per, tokens: int(gib * 2**30) // per),
            Misconception(
                "you gave 2048 tokens to each, whatever was asked: that is what a contiguous cache does.",
                lambda gib, per, tokens: int(gib * 2**30) // per // 2048,
            ),
        ),
    ),
)
