"""A contest: the same requests for several contenders, in turns, so that whatever else a machine does falls on all of them; and what came of it.

A *round* lets each of them serve everything once; the next round begins with another one. Speeds are medians over the rounds. How one compares with
another is the ratio of the two medians, and beside it the lowest and the highest ratio of a single round, in which both met the same machine.
"""
from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

import torch

from ..checks import integer, one_of
from ..engine.build import choose_device
from ..engine.llm import LLM
from ..model.loader import choose_dtype, load_spec, resolve
from ..model.spec import ModelSpec
from ..terminal import note
from ..threads import one_thread_for_small_models
from .contenders import OURS, SYSTEMS, Advance, Command, Contender, Ours, Served, Transformers
from .machine import machine
from .request_list import Asked

POINTS = (50, 90, 99)
"""Percentiles that are shown."""
NEAR_TIE = 1e-3
"""Logits that are closer than this may change places by rounding (float32), and then so may the tokens."""
SHOWN_GAPS = 20

Begin = Callable[[str, int], object]
"""Called with what comes next and how many tokens it will write."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a contest runs on. Raises ValueError with the value and its limits."""

    model: str = "tiny-shakespeare"
    systems: str = "paged,transformers"
    """Names of `SYSTEMS` with commas between them; the others are compared with the first."""
    device: str = "auto"
    dtype: str = "auto"
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    block_size: int = 16
    threads: int = 0
    """Of torch, for all of this process; 0: one for a small model, else torch's own choice."""
    rounds: int = 5
    quick: bool = False

    def check(self) -> None:
        """For ``__post_init__`` of who inherits this."""
        for name in self.names:
            one_of("--systems", name, SYSTEMS)
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"--systems {self.systems}: somebody is named twice")
        if not any(name in OURS for name in self.names):
            raise ValueError(f"--systems {self.systems}: one of them must be one of ours: {', '.join(OURS)}")
        one_of("--dtype", self.dtype, ("auto", "float32", "float64", "float16", "bfloat16"))
        one_of("--kv-cache-dtype", self.kv_cache_dtype, ("auto", "int8"))
        integer("--block-size", self.block_size, 1, 256)
        integer("--threads", self.threads, 0, 1024)
        integer("--rounds", self.rounds, 1, 1000)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.systems.split(","))

    @property
    def num_rounds(self) -> int:
        return min(self.rounds, 2) if self.quick else self.rounds

    def spec(self) -> tuple[Path, ModelSpec]:
        """Where the model lies, and what it is. Raises ModelLoadError."""
        path = resolve(self.model)
        return path, load_spec(path)

    @contextmanager
    def open(self, max_model_len: int, num_blocks: int, hf_batch: int = 0, max_num_seqs: int = 256) -> Iterator[dict[str, Contender]]:
        """The contenders, in the order in which they were named; all of ours have pools of ``num_blocks`` blocks."""
        path, spec = self.spec()
        device = choose_device(self.device)
        if self.threads:
            torch.set_num_threads(self.threads)
        with ExitStack() as stack:
            found: dict[str, Contender] = {}
            for name in sorted(self.names, key=lambda name: name not in OURS):      # ours first: they say how many threads there will be
                if name in OURS:
                    llm = LLM(
                        self.model, device=self.device, dtype=self.dtype, max_model_len=max_model_len, block_size=self.block_size,
                        num_gpu_blocks_override=num_blocks, kv_manager=name, enable_prefix_caching=False, swap_space=0, max_num_seqs=max_num_seqs,
                        quantization=self.quantization, kv_cache_dtype=self.kv_cache_dtype, skip_tokenizer_init=True,
                    )
                    if not self.threads:
                        one_thread_for_small_models(llm)
                    found[name] = Ours(llm)
                else:
                    found[name] = Transformers(path, choose_dtype(self.dtype, spec, device), device, spec.max_positions, hf_batch)
                stack.callback(found[name].close)
            yield {name: found[name] for name in self.names}


def header(options: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a result that is known before anything is measured."""
    versions = {name: version(name) for name in ("numpy", "torch", "transformers")}
    return {"options": dict(options), "machine": machine() | versions, "complete": False}


# -- rounds ----------------------------------------------------------------------------------------------------------------------------
def race(
    contenders: Mapping[str, Contender], asked: Sequence[Asked], rounds: int, part: dict[str, Any], advance: Advance = lambda count: None,
    begin: Begin = lambda what, total: None,
) -> dict[str, Served]:
    """``rounds`` rounds into ``part``, which holds every run that has ended if somebody interrupts it; the last run of each.

    Another program that fails is left out from then on, and ``part`` says why.
    """
    part |= {
        "threads": torch.get_num_threads(), "requests": len(asked), "prompt_tokens": sum(len(one.prompt) for one in asked),
        "output_tokens": sum(one.n_out for one in asked), "left_out": {},
        "systems": {name: {"about": contender.about, "rounds": []} for name, contender in contenders.items()},
    }
    names, last = list(contenders), {}
    for name in names:                      # what nobody measures: the first steps of a process are slow
        if not isinstance(contenders[name], Command):
            begin(f"warming up: {name}", 0)
            contenders[name].serve([Asked(one.prompt, min(one.n_out, 2)) for one in asked[:4]])
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            if name in part["left_out"]:
                continue
            begin(f"round {number + 1} of {rounds}: {name}", part["output_tokens"])
            gc.collect()
            try:
                last[name] = contenders[name].serve(asked, advance)
            except ValueError as error:
                if not isinstance(contenders[name], Command):
                    raise
                note(f"{name} is left out: {error}")
                part["left_out"][name] = str(error)
                del part["systems"][name]
                continue
            part["systems"][name]["rounds"].append(row(last[name], asked))
    return last


def row(served: Served, asked: Sequence[Asked]) -> dict[str, Any]:
    """One run as plain values. ``ttft_s``: each request's seconds from its arrival to its first token; ``tpot_s``: seconds a token after that, of
    the requests that have several; ``step_s``: seconds between two tokens of the request that started last."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    found: dict[str, Any] = {"seconds": served.seconds, "tokens_per_s": sum(one.n_out for one in asked) / served.seconds, "load_average": load}
    if not served.times:
        return found
    pairs = list(zip(served.times, asked, strict=True))
    last = max(served.times, key=lambda times: times[0])
    return found | {
        "ttft_s": [microseconds(times[0] - one.time) for times, one in pairs],
        "tpot_s": [microseconds((times[-1] - times[0]) / (len(times) - 1)) for times, _ in pairs if len(times) > 1],
        "step_s": [microseconds(b - a) for a, b in pairwise(last)],
        "steps": len(served.steps), "running": {"mean": fmean(served.running), "max": max(served.running)},
        "held": fmean(served.held) if served.held else None, "pool": fmean(served.pool) if served.pool else None, "preemptions": served.preemptions,
    }


def microseconds(seconds: float) -> float:
    """Seconds, to a microsecond: a file of thousands of requests stays readable."""
    return round(seconds, 6)


# -- the same tokens? ------------------------------------------------------------------------------------------------------------------
def agreement(contenders: Mapping[str, Contender], asked: Sequence[Asked], last: Mapping[str, Served]) -> dict[str, Any]:
    """Who wrote other tokens than the first of ours, and in how many requests. Where transformers takes part it is asked how close the two
    tokens were, at the first place at which a request differs: within `NEAR_TIE` rounding decides."""
    names = [name for name in last if last[name].tokens]
    base = next(name for name in names if name in OURS)
    judge = next((one for one in contenders.values() if isinstance(one, Transformers)), None)
    found: dict[str, Any] = {"with": base, "requests": len(asked), "others": {}}
    for name in names:
        if name == base:
            continue
        pairs = zip(asked, last[base].tokens, last[name].tokens, strict=True)
        apart = [(one, _first_difference(a, b), a, b) for one, a, b in pairs if a != b]
        found["others"][name] = {"different": len(apart)}
        if judge is not None:
            gaps = [judge.gap([*one.prompt, *a[:at]], a[at], b[at]) for one, at, a, b in apart[:SHOWN_GAPS]]
            found["others"][name] |= {"gaps": gaps, "near_ties": sum(gap < NEAR_TIE for gap in gaps)}
    return found


def _first_difference(a: Sequence[int], b: Sequence[int]) -> int:
    return next(i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)


# -- what came of it -------------------------------------------------------------------------------------------------------------------
def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p90, p99: straight lines between the values in order, as numpy and vLLM's benchmark have it."""
    ordered = sorted(values)
    found = {}
    for point in POINTS:
        place = (len(ordered) - 1) * point / 100
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        found[f"p{point}"] = ordered[low] + (ordered[high] - ordered[low]) * (place - low)
    return found


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, _, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else (values[0],) * 3
    return {"median": median(values), "low": low, "high": high}


def summary(part: Mapping[str, Any]) -> dict[str, Any]:
    """Each contender's medians over its rounds, and how the first one compares with it; without those who never got through a round."""
    systems = {name: its["rounds"] for name, its in part["systems"].items() if its["rounds"]}
    found: dict[str, Any] = {}
    for name, rounds in systems.items():
        its: dict[str, Any] = {"rounds": len(rounds), "tokens_per_s": spread([one["tokens_per_s"] for one in rounds])}
        if "ttft_s" in rounds[0]:
            its |= {key: percentiles([x for one in rounds for x in one[key]]) for key in ("ttft_s", "tpot_s", "step_s") if rounds[0][key]}
            its |= {key: median(one[key] for one in rounds) for key in ("held", "pool", "preemptions", "steps") if rounds[0][key] is not None}
            its["running"] = {"mean": fmean(one["running"]["mean"] for one in rounds), "max": max(one["running"]["max"] for one in rounds)}
            its["prefill_s"] = spread([max(one["ttft_s"]) for one in rounds])
        found[name] = its
    base = next(iter(found), None)
    for name, its in found.items():
        if base is not None and name != base:
            its["first_against_it"] = against(systems[base], systems[name])
    return found


def against(first: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """How many times the other's speed the first has: the ratio of the medians, and the lowest and highest of a round."""
    each = [a["tokens_per_s"] / b["tokens_per_s"] for a, b in zip(first, other, strict=False)]
    ratio = median(a["tokens_per_s"] for a in first) / median(b["tokens_per_s"] for b in other)
    return {"ratio": ratio, "low": min(each), "high": max(each)}
