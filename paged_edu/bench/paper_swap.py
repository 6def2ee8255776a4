"""Bringing a sequence back: swapping its blocks in against computing them again (Paper §7.3, Fig. 19), in the engine's own parts.

A preempted sequence that is recomputed costs one prompt step over all its tokens; one that is swapped, its blocks' way out and in. The times are of
`Swapper` and of `Engine.step`, in turns, by the clock on the wall.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import count
from typing import Any

import torch

from ..core.block_table import num_blocks_for
from ..core.plan import Copy
from ..engine.llm import LLM
from ..engine.runner import ModelRunner
from ..model.loader import load_spec, resolve
from ..sampling.params import SamplingParams
from .open_loop import Racer, jobs, sizes
from .paper_figures import Advance, Begin, Part, Setting, run_race, share_weights, sizes_of
from .timers import WallTimer, in_turns, spread

TOKENS = 256
"""Of the sequence that comes back: the length at which the paper's times and an A100's peak agree."""
MORE = 10
WAYS = ("recompute", "swap_in", "swap_out")


def fig19(setting: Setting, part: Part, advance: Advance, begin: Begin, block_sizes: Sequence[int] | None = None) -> None:
    """Milliseconds of each way by block size; then the same requests through an engine that preempts, both ways, whose answers must be the same."""
    block_sizes = block_sizes or sizes_of(setting)
    tokens = min(TOKENS // 2 if setting.quick else TOKENS, load_spec(resolve(setting.model)).max_positions - 1)
    part |= {"tokens": tokens, "rows": [], "served": [], "requests": setting.how_many(5.0, 24, 100), "same_tokens": None}
    with ExitStack() as stack:
        llms = {size: setting.open(
            stack, num_blocks_for(tokens + 1, size), block_size=size, max_model_len=tokens + 1, swap_space=None,
        ) for size in block_sizes}
        share_weights(list(llms.values()))
        calls = {(size, way): call for size, llm in llms.items() for way, call in _ways(llm, tokens).items()}
        start = time.perf_counter()
        for call in calls.values():
            call()
        rounds = max(3, min(100, int(0.5 * setting.share / (time.perf_counter() - start))))
        begin("Fig. 19", rounds + 2 * part["requests"])
        times = in_turns({f"{size} {way}": call for (size, way), call in calls.items()}, rounds, WallTimer(), advance)
        # A swap takes so little time that one hiccup of the machine outweighs it: more of them.
        swaps = {f"{size} {way}": call for (size, way), call in calls.items() if way != "recompute"}
        for name, ms in in_turns(swaps, MORE * rounds, WallTimer()).items():
            times[name] += ms
    part["rows"] = [{"block_size": size} | {way: spread(times[f"{size} {way}"]) for way in WAYS} for size in block_sizes]
    _serve_both_ways(setting, part, advance)


def _ways(llm: LLM, tokens: int) -> dict[str, Callable[[], object]]:
    """The three ways for one engine. Raises ValueError where there is no host memory to swap to."""
    engine, runner = llm.engine, llm.engine.runner
    blocks = llm.memory_plan.num_blocks
    if not isinstance(runner, ModelRunner) or runner.swapper is None or llm.memory_plan.num_cpu_blocks < blocks:
        raise ValueError(f"fig19 swaps {blocks} blocks, and host memory has room for {llm.memory_plan.num_cpu_blocks}; leave it out with --only")
    swapper = runner.swapper
    copies = [Copy(i, i) for i in range(num_blocks_for(tokens, llm.config.block_size))]
    names = count()
    prompt = [i % engine.vocab_size for i in range(tokens)]

    def recompute() -> None:
        engine.add_request(str(next(names)), prompt, SamplingParams(temperature=0, max_tokens=1, ignore_eos=True))
        while engine.has_unfinished_requests():
            engine.step(finished_only=True)

    def across(move: Callable[[Sequence[Copy]], None]) -> Callable[[], None]:
        @torch.inference_mode()
        def call() -> None:
            move(copies)
            swapper.wait()

        return call

    return {"recompute": recompute, "swap_in": across(swapper.back), "swap_out": across(swapper.out)}


def _serve_both_ways(setting: Setting, part: Part, advance: Advance) -> None:
    """A sixth of the pool, so that requests are preempted; a row for each way back, and how many requests wrote the same both ways."""
    num_blocks = max(num_blocks_for(setting.max_model_len, setting.block_size), setting.num_slots // (6 * setting.block_size))
    with ExitStack() as stack:
        llms = {mode: setting.open(stack, num_blocks, preemption_mode=mode, swap_space=None) for mode in ("recompute", "swap")}
        share_weights(list(llms.values()))
        drawn = sizes(setting.dataset, part["requests"], setting.seed, setting.max_model_len)
        todo = jobs(drawn, llms["swap"].engine.vocab_size, setting.seed)
        racers = [Racer({"mode": mode}, llm, todo, advance) for mode, llm in llms.items()]
        run_race(racers, part["served"])
    first, second = racers
    part["same_tokens"] = sum(first.tokens[place] == second.tokens[place] for place in first.tokens)


def crossing(rows: Sequence[dict[str, Any]]) -> int | None:
    """The smallest block size at which swapping out and in takes less time than recomputing; None: at none of them."""
    for row in sorted(rows, key=lambda row: row["block_size"]):
        if row["swap_in"]["median_ms"] + row["swap_out"]["median_ms"] < row["recompute"]["median_ms"]:
            return int(row["block_size"])
    return None
