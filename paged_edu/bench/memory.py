"""`paged-edu bench memory`: what the KV cache holds and how many requests run, under every manager (Paper Fig. 2, 13, 15).

Three parts. *paper*: scheduler, managers and `FakeRunner` at the paper's own size, OPT-13B on an A100 with 40 GB: 15,728 slots, 2048 positions,
lengths from Fig. 11. *sharing*: several samples a request there, and the blocks that they share. *engine*: a real model, lengths and pool scaled to
its positions; every manager must give the same tokens. All requests wait from the start, so that memory is what limits every system.

The parts without a model are whole numbers through and through: the same version gives the same counts on every machine.
"""
from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from .. import lengths
from ..checks import integer, one_of, writable_file
from ..config import CONTIGUOUS
from ..viz.fake_engine import FakeEngine
from .machine import machine
from .probe import PARTS, Probe

MANAGERS = (*CONTIGUOUS, "paged")
SLOTS = 15_728
"""Slots of the paper's OPT-13B on an A100 with 40 GB (Table 1: 12 GB at 800 KB a token)."""
BLOCK_SIZE = 16
NUM_BLOCKS = SLOTS // BLOCK_SIZE
SHARING_N = (2, 4, 6)
"""Samples a request (Paper Fig. 15)."""
EVERY = 5
"""The fake runs look at the memory in one step of so many, and not always at the same slot of a block: 5 and 16 have no common divisor."""
BATCHED_TOKENS = 2048

PAPER_FIG2 = {
    "orca-max": (0.204, 0.133, 0.573, 0.089), "orca-pow2": (0.268, 0.179, 0.136, 0.416), "orca-oracle": (0.382, 0.252, 0.0, 0.366),
    "paged": (0.963, 0.0104, 0.0104, 0.0165),
}
"""Paper Fig. 2, the order of `PARTS`: printed labels; the last three of "paged" are heights of segments."""
PAPER_RUNNING = {
    "sharegpt": {"orca-max": 7.00, "orca-pow2": 9.81, "orca-oracle": 13.62, "paged": 30.42},
    "alpaca": {"orca-max": 7.00, "orca-pow2": 43.24, "orca-oracle": 72.75, "paged": 132.44},
}
"""Paper Fig. 13: average number of requests in a batch."""
PAPER_SHARING = {2: 0.0609, 4: 0.0853, 6: 0.0979}
"""Paper Fig. 15: blocks saved by parallel samples, Alpaca."""

Advance = Callable[[int], object]
Texts = dict[str, tuple[int, ...]]
"""Tokens by request."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure. Raises ValueError with the value and its limits."""

    part: str = "all"
    dataset: str = "sharegpt"
    requests: int = 300
    seeds: int = 3
    model: str = "tiny-shakespeare"
    device: str = "auto"
    """Of the engine part: "auto" (CUDA if there is one), "cpu", "cuda" or "cuda:1"."""
    dtype: str = "auto"
    """In float32 rounding may, very rarely, decide between two tokens, and it depends on the batch; in float64 it does not."""
    max_model_len: int = 512
    block_size: int = BLOCK_SIZE
    engine_requests: int = 120

    def __post_init__(self) -> None:
        one_of("--part", self.part, ("all", *PARTS_TO_RUN))
        one_of("--dataset", self.dataset, lengths.DATASETS)
        one_of("--dtype", self.dtype, ("auto", "float32", "float64", "float16", "bfloat16"))
        for name, low, high in (("requests", 20, 1_000_000), ("engine_requests", 20, 1_000_000), ("seeds", 1, 1000), ("block_size", 1, 256),
                                ("max_model_len", 16, 2**20)):
            integer(f"--{name.replace('_', '-')}", getattr(self, name), low, high)

    def quick(self) -> Options:
        """Fewer runs of the same kind: the first seed, whose numbers stay exactly as they are, and half of the engine's requests."""
        return replace(self, seeds=1, engine_requests=max(20, self.engine_requests // 2))

    @property
    def sharing_requests(self) -> int:
        """Alpaca's answers are short: twice as many requests, so that the run is long enough to have a middle."""
        return 2 * self.requests

    @property
    def parts(self) -> tuple[str, ...]:
        return PARTS_TO_RUN if self.part == "all" else (self.part,)

    def num_requests(self) -> int:
        """Requests of all runs together, for a progress bar."""
        each = {
            "paper": self.requests * self.seeds * len(MANAGERS), "sharing": self.sharing_requests * len(SHARING_N),
            "engine": self.engine_requests * len(MANAGERS),
        }
        return sum(each[part] for part in self.parts)


def serve(engine: FakeEngine, probe: Probe) -> dict[str, Any]:
    """Run an engine dry under a probe; its row, with the blocks that were copied."""
    unlisten = engine.listen(probe)
    copied = 0
    while engine.has_unfinished_requests():
        copied += len(engine.step().copies)
    unlisten()
    return probe.row() | {"copied_blocks": copied}


# -- at the paper's size ---------------------------------------------------------------------------------------------------------------
def paper_row(manager: str, dataset: str, requests: int, seed: int, advance: Advance, n: int = 1) -> dict[str, Any]:
    """One manager and one sample of requests at the paper's size."""
    engine = FakeEngine(NUM_BLOCKS, BLOCK_SIZE, lengths.PAPER_MODEL_LEN, BATCHED_TOKENS, manager)
    drawn = lengths.load(dataset).sample(requests, np.random.default_rng(seed))
    engine.add(drawn, n)
    row = serve(engine, Probe(engine.scheduler, EVERY, advance))
    return {"manager": manager, "seed": seed, "prompt_tokens": sum(p for p, _ in drawn), "output_tokens": n * sum(o for _, o in drawn)} | row


def measure_paper(options: Options, advance: Advance) -> dict[str, Any]:
    """Every manager with every seed."""
    rows = [paper_row(manager, options.dataset, options.requests, seed, advance) for seed in range(options.seeds) for manager in MANAGERS]
    return {
        "dataset": options.dataset, "requests": options.requests, "seeds": options.seeds, "num_blocks": NUM_BLOCKS, "block_size": BLOCK_SIZE,
        "max_model_len": lengths.PAPER_MODEL_LEN, "max_num_batched_tokens": BATCHED_TOKENS, "every": EVERY, "rows": rows, "summary": summary(rows),
    }


def measure_sharing(options: Options, advance: Advance) -> dict[str, Any]:
    """Parallel samples of Alpaca requests under paging: the blocks that they save by sharing (Paper Fig. 15)."""
    rows = [paper_row("paged", "alpaca", options.sharing_requests, 0, advance, n) | {"n": n} for n in SHARING_N]
    return {"dataset": "alpaca", "requests": options.sharing_requests, "num_blocks": NUM_BLOCKS, "block_size": BLOCK_SIZE, "rows": rows}


# -- a real model ----------------------------------------------------------------------------------------------------------------------
def measure_engine(options: Options, advance: Advance) -> dict[str, Any]:
    """The same requests through a real model under every manager, with the paper's pool scaled to ``max_model_len``."""
    part = engine_part(options)
    texts: dict[str, Texts] = {}
    for manager in MANAGERS:
        add_engine_row(part, texts, options, manager, advance)
    return part


def engine_part(options: Options) -> dict[str, Any]:
    """What the engine part says of itself, before any row."""
    pool = SLOTS * options.max_model_len // (lengths.PAPER_MODEL_LEN * options.block_size)
    return {
        "model": options.model, "dtype": options.dtype, "dataset": options.dataset, "requests": options.engine_requests, "num_blocks": pool,
        "block_size": options.block_size, "max_model_len": options.max_model_len, "rows": [], "summary": {},
    }


def add_engine_row(part: dict[str, Any], texts: dict[str, Texts], options: Options, manager: str, advance: Advance) -> None:
    """Serve the requests under one manager, and let ``part``, of `engine_part`, say so. ``texts``: what every manager so far has written.

    "paged" is what the others' tokens are compared with, so the comparison comes with its row.
    """
    row, texts[manager] = _engine_row(options, manager, part["num_blocks"], advance)
    part["rows"].append(row)
    part["summary"] = summary(part["rows"])
    if "paged" in texts:
        for row in part["rows"]:
            row["same_tokens_as_paged"] = sum(texts[row["manager"]][request_id] == tokens for request_id, tokens in texts["paged"].items())


def _engine_row(options: Options, manager: str, num_blocks: int, advance: Advance) -> tuple[dict[str, Any], Texts]:
    """One manager: its row, and the tokens of each request."""
    from ..engine.llm import LLM
    from ..sampling.params import SamplingParams
    from ..threads import one_thread_for_small_models

    rng = np.random.default_rng(0)
    drawn = lengths.load(options.dataset).sample(options.engine_requests, rng, options.max_model_len)
    with LLM(
        options.model, device=options.device, dtype=options.dtype, max_model_len=options.max_model_len, block_size=options.block_size,
        num_gpu_blocks_override=num_blocks, kv_manager=manager, enable_prefix_caching=False, swap_space=0,
        skip_tokenizer_init=True,
    ) as llm:
        one_thread_for_small_models(llm)
        engine = llm.engine
        for i, (prompt, output) in enumerate(drawn):
            ids = (rng.random(prompt) * engine.vocab_size).astype(int).tolist()
            engine.add_request(str(i), ids, SamplingParams(temperature=1.0, seed=i, max_tokens=output, ignore_eos=True))
        probe = Probe(engine.scheduler, 1, advance)
        engine.listen(probe)
        texts: Texts = {}
        copied = 0
        while engine.has_unfinished_requests():
            texts |= {output.request_id: tuple(output.outputs[0].token_ids) for output in engine.step(finished_only=True)}
            copied += len(engine.last_output.copies) if engine.last_output else 0
    tokens = {"prompt_tokens": sum(p for p, _ in drawn), "output_tokens": sum(o for _, o in drawn)}
    return {"manager": manager, "seed": 0} | tokens | probe.row() | {"copied_blocks": copied}, texts


# -- all of it -------------------------------------------------------------------------------------------------------------------------
def summary(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Each manager's means over its seeds, with the smallest and the largest, and what they are of Orca Max's."""
    rows, result = list(rows), {}
    for manager in dict.fromkeys(row["manager"] for row in rows):
        own = [row for row in rows if row["manager"] == manager]
        result[manager] = {
            "parts": {part: _over(row["parts"][part]["mean"] for row in own) for part in PARTS},
            "in_use": _over(row["in_use"]["mean"] for row in own), "running": _over(row["running"]["mean"] for row in own),
            "peak_running": max(row["running"]["max"] for row in own),
        } | {name: _over(row[name] for row in own) for name in ("steps", "preemptions", "copied_blocks")}
    base = result.get("orca-max")
    for its in result.values():
        its["running_against_orca_max"] = round(its["running"]["mean"] / base["running"]["mean"], 4) if base else None
        its["steps_against_orca_max"] = round(its["steps"]["mean"] / base["steps"]["mean"], 4) if base else None
    return result


def _over(values: Iterable[float]) -> dict[str, float]:
    values = list(values)
    return {"mean": round(fmean(values), 6), "min": min(values), "max": max(values)}


MEASURES: dict[str, Callable[[Options, Advance], dict[str, Any]]] = {
    "paper": measure_paper, "sharing": measure_sharing, "engine": measure_engine,
}
PARTS_TO_RUN = tuple(MEASURES)


def measure(options: Options, advance: Advance = lambda count: None, begin: Callable[[str], object] = lambda part: None) -> dict[str, Any]:
    """Everything that was asked for; ``begin`` is called with the name of each part, ``advance`` with 1 for every request that ends."""
    versions = {name: version(name) for name in ("numpy", "torch")}
    result: dict[str, Any] = {"options": asdict(options), "machine": machine() | versions}
    for part in options.parts:
        begin(part)
        result[part] = MEASURES[part](options, advance)
    return result


def run(options: Options, json_file: Path | None = None, html_file: Path | None = None) -> int:
    """Measure, print, and write the files that were asked for."""
    from tqdm import tqdm

    from . import memory_view

    for name, file in (("--json", json_file), ("--html", html_file)):
        if file is not None:
            writable_file(name, file)
    if html_file is not None:
        memory_view.drawable(options.parts)
    with tqdm(total=options.num_requests(), unit="request", dynamic_ncols=True, disable=None, leave=False) as bar:
        def begin(part: str) -> None:
            bar.set_description(part)
            if bar.disable:                                 # no terminal: a sign of life a part
                print(f"measuring: {part}", file=sys.stderr, flush=True)

        result = measure(options, bar.update, begin)
    memory_view.show(result)
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if html_file is not None:
        memory_view.write_html(result, html_file)
    return 0
