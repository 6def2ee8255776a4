"""The requests of `paged-edu bench throughput` and `bench serve`: read from a workload file, or drawn from the paper's histograms (Paper §6.1).

A workload file is a JSON list with an object a request: ``[{"prompt": [token ids], "n_out": tokens to generate}, ...]``. ``"time"`` [s] may say when
it comes; without one all are there from the start.
"""
from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..checks import integer, number


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: its prompt, how many tokens it wants (never fewer), and when it comes [s]."""

    prompt: tuple[int, ...]
    n_out: int
    time: float = 0.0

    @property
    def length(self) -> int:
        """Prompt and output together [tokens]."""
        return len(self.prompt) + self.n_out


def read(path: Path) -> list[Asked]:
    """The requests of a workload file, by their time. Raises ValueError that names the request and the field, OSError where there is no file."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"--workload {path}: no JSON ({error})") from None
    if not isinstance(stored, list) or not stored:
        raise ValueError(f'--workload {path}: it must be a list of requests, such as [{{"prompt": [5, 6], "n_out": 8}}]')
    return sorted((_request(f"--workload {path}: request {i}", item) for i, item in enumerate(stored)), key=lambda asked: asked.time)


def _request(who: str, item: Any) -> Asked:
    if not isinstance(item, dict) or not {"prompt", "n_out"} <= set(item):
        raise ValueError(f'{who} must be an object with "prompt" and "n_out"')
    if unknown := sorted(set(item) - {"prompt", "n_out", "time"}):
        raise ValueError(f'{who} has a field {unknown[0]!r}; there are "prompt", "n_out" and "time"')
    prompt = item["prompt"]
    if not isinstance(prompt, list) or not prompt:
        raise ValueError(f"{who}: prompt must be a list of token ids, not empty")
    for place, token in enumerate(prompt):
        integer(f"{who}: prompt[{place}]", token, 0)
    integer(f"{who}: n_out", item["n_out"], 1)
    number(f"{who}: time", item.get("time", 0.0), 0)
    return Asked(tuple(prompt), item["n_out"], float(item.get("time", 0.0)))


def check(asked: Sequence[Asked], vocab_size: int, max_model_len: int) -> None:
    """Raise ValueError where a request is nothing for the model: a token that it doesn't have, or more tokens than it has positions for."""
    for i, one in enumerate(asked):
        if (largest := max(one.prompt)) >= vocab_size:
            raise ValueError(f"request {i}: its prompt has token {largest}, and the model's tokens end at {vocab_size - 1}")
        if one.length > max_model_len:
            raise ValueError(
                f"request {i}: {len(one.prompt)} tokens of prompt and {one.n_out} of output are {one.length}, and the longest may be {max_model_len}")


def drawn(dataset: str, count: int, seed: int, max_model_len: int, vocab_size: int) -> list[Asked]:
    """``count`` requests with a data set's lengths, scaled to ``max_model_len`` positions; their prompts are random tokens."""
    import numpy as np

    from .open_loop import sizes

    rng = np.random.default_rng((seed, 2))
    pairs = sizes(dataset, count, seed, max_model_len)
    return [Asked(tuple((rng.random(prompt) * vocab_size).astype(int).tolist()), output) for prompt, output in pairs]


def at_rate(asked: Sequence[Asked], rate: float, seed: int) -> list[Asked]:
    """The same requests as a Poisson process of ``rate`` requests a second; at another rate the same arrivals, only closer together."""
    import numpy as np

    gaps = np.random.default_rng((seed, 0)).exponential(size=len(asked))
    return [replace(one, time=float(when)) for one, when in zip(asked, gaps.cumsum() / rate, strict=True)]
