"""The experiments of `paged-edu bench paper`, one function a figure, all on the real engine: memory and batch size (Paper Fig. 2, 13), latency
against request rate (Fig. 12), sharing (Fig. 15), block size (Fig. 18b). Swapping against recomputing (Fig. 19) is in `paper_swap`.

Each function fills a dict as it goes, so that whoever interrupts it keeps the rows that are there.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import torch

from .. import lengths
from ..core.block_table import num_blocks_for
from ..engine.llm import LLM
from ..engine.runner import ModelRunner
from ..model.loader import load_spec, resolve
from ..sampling.params import SamplingParams
from ..threads import one_thread_for_small_models
from . import memory
from .open_loop import Racer, at_rate, jobs, race, sizes
from .probe import Probe
from .timers import WallTimer, in_turns, spread

ORCAS = ("orca-max", "orca-pow2", "orca-oracle")
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
QUICK_BLOCK_SIZES = (1, 8, 32, 128)
ALIKE = 16
"""Slots of a block where lengths are the data set's own (Paper §6.1)."""
SEQUENCES_AT_ONCE = 60
SPEED_REQUESTS = 48
HALF = 2
"""Where times are measured, the pool is the paper's over this. An A100 decodes 30 sequences in little more time than 7 (Paper Fig. 1), a processor
does not: its batches pay while they are small, so they are compared there."""

Part = dict[str, Any]
Advance = Callable[[int], object]
Begin = Callable[[str, int], object]
"""Called with what comes next and how many requests or rounds that is."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What every experiment needs: the model, the scale, and how much of it fits the time.

    ``seconds_per_request``: of this machine, measured with a full batch. ``share``: seconds that the experiment may take. ``least``: of the smallest
    numbers of requests that show something; tests, which only look whether all is there, take fewer.
    """

    model: str
    device: str
    dtype: str
    dataset: str
    max_model_len: int
    block_size: int
    seed: int
    quick: bool
    seconds_per_request: float = 0.0
    share: float = 0.0
    least: float = 1.0

    @property
    def num_slots(self) -> int:
        """The paper's pool, scaled to ``max_model_len``."""
        return memory.SLOTS * self.max_model_len // lengths.PAPER_MODEL_LEN

    def how_many(self, cost: float, low: int, high: int) -> int:
        """Requests that fit the share, where each costs as much as ``cost`` of them in a full batch."""
        return max(round(low * self.least), min(high, int(self.share / (cost * self.seconds_per_request))))

    def open(self, stack: ExitStack, num_blocks: int, **options: Any) -> LLM:
        """An engine that is closed with ``stack``."""
        chosen = {"block_size": self.block_size, "max_model_len": self.max_model_len, "swap_space": 0} | options
        llm = stack.enter_context(LLM(
            self.model, device=self.device, dtype=self.dtype, num_gpu_blocks_override=num_blocks, enable_prefix_caching=False,
            skip_tokenizer_init=True, **chosen,
        ))
        one_thread_for_small_models(llm)
        return llm


def sizes_of(setting: Setting) -> Sequence[int]:
    """The block sizes to compare."""
    return QUICK_BLOCK_SIZES if setting.quick else BLOCK_SIZES


def share_weights(llms: Sequence[LLM]) -> None:
    """One copy of the weights for all of them (but where CUDA graphs have been captured over each one's own): less memory, warmer caches."""
    runners = [llm.engine.runner for llm in llms]
    for runner in runners[1:]:
        if isinstance(runner, ModelRunner) and isinstance(runners[0], ModelRunner) and runner.graphs is None:
            runner.model = runners[0].model


def run_race(racers: Sequence[Racer], rows: list[dict[str, Any]]) -> None:
    """Race; each racer's row is there once it is done."""
    for racer in race(racers):
        rows.append(racer.row())


def measure_speed(setting: Setting, part: Part, advance: Advance, begin: Begin) -> None:
    """How long a request takes under paging where the batch is as full as it gets: rates and sizes of everything else follow from it."""
    begin("speed of this machine", SPEED_REQUESTS)
    drawn = sizes(setting.dataset, SPEED_REQUESTS, setting.seed, setting.max_model_len)
    with ExitStack() as stack:
        llm = setting.open(stack, setting.num_slots // (HALF * setting.block_size))
        racer = Racer({}, llm, jobs(drawn, llm.engine.vocab_size, setting.seed), advance)
        run_race([racer], [])
        part["device"] = device_name(llm)
    full = racer.full()
    part |= {"requests": SPEED_REQUESTS, "seconds": racer.now, "seconds_per_request": 1 / full["requests_per_s"]} | full


def device_name(llm: LLM) -> str:
    """The device that an engine runs on, and whose it is."""
    runner = llm.engine.runner
    device = runner.device if isinstance(runner, ModelRunner) else torch.device("cpu")
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


# -- Fig. 2 and 13 ---------------------------------------------------------------------------------------------------------------------
def fig2_fig13(setting: Setting, part: Part, advance: Advance, begin: Begin) -> None:
    """What the memory holds and how many requests run, under more load than any manager can serve: `bench memory`'s engine part."""
    managers = (*ORCAS, "paged")
    count = setting.how_many(1.3 * len(managers), 48, 300)
    pool = setting.num_slots // setting.block_size
    options = memory.Options(
        part="engine", dataset=setting.dataset, model=setting.model, device=setting.device, dtype=setting.dtype,
        max_model_len=setting.max_model_len, block_size=setting.block_size, engine_requests=count,
    )
    # A quick run has fewer requests: half of the pool, or there would be room for all of them.
    part |= memory.engine_part(options) | {"num_blocks": pool // HALF if setting.quick else pool, "pool": 1 / HALF if setting.quick else 1.0}
    begin("Fig. 2 and 13", count * len(managers))
    texts: dict[str, memory.Texts] = {}
    for manager in managers:
        memory.add_engine_row(part, texts, options, manager, advance)


# -- Fig. 12 ---------------------------------------------------------------------------------------------------------------------------
def fig12(setting: Setting, part: Part, advance: Advance, begin: Begin) -> None:
    """Normalized latency of each system at each rate. First everybody is there from the start (a rate of None), which gives each system's capacity
    and with it the rates; then all systems at all rates race, and beside them paging with everybody there again: how fast the machine was then."""
    managers = ("orca-max", "paged") if setting.quick else ("orca-max", "orca-oracle", "paged")
    fractions = (0.25, 0.9) if setting.quick else (0.3, 0.5, 0.7, 0.9)
    cost = 1 + len(managers) * (1.4 + sum(max(1.5, 1 / fraction) for fraction in fractions))     # a small batch costs more than a full one
    count = setting.how_many(cost, 36, 400)
    part |= {
        "dataset": setting.dataset, "requests": count, "max_model_len": setting.max_model_len, "block_size": setting.block_size,
        "num_blocks": setting.num_slots // (HALF * setting.block_size), "pool": 1 / HALF, "rows": [], "capacity": {}, "capacity_beside": None,
    }
    begin("Fig. 12", count * (len(managers) * (1 + len(fractions)) + 1))
    drawn = sizes(setting.dataset, count, setting.seed, setting.max_model_len)
    for racer in _heat(setting, part["num_blocks"], [(manager, None) for manager in managers], drawn, advance):
        part["rows"].append(racer.row())
        part["capacity"][racer.about["manager"]] = racer.full()
    rates = [round(fraction * part["capacity"]["paged"]["requests_per_s"], 4) for fraction in fractions]
    entries = [*((manager, rate) for rate in rates for manager in managers), ("paged", None)]
    for racer in _heat(setting, part["num_blocks"], entries, drawn, advance):
        if racer.about["rate"] is None:
            part["capacity_beside"] = racer.full()
        else:
            part["rows"].append(racer.row())


def _heat(
    setting: Setting, num_blocks: int, entries: Sequence[tuple[str, float | None]], drawn: list[tuple[int, int]], advance: Advance,
) -> Iterator[Racer]:
    """Race managers at rates."""
    with ExitStack() as stack:
        llms = [setting.open(stack, num_blocks, kv_manager=manager) for manager, _ in entries]
        share_weights(llms)
        at_once = jobs(drawn, llms[0].engine.vocab_size, setting.seed)
        yield from race([
            Racer({"manager": manager, "rate": rate}, llm, at_once if rate is None else at_rate(at_once, rate, setting.seed), advance)
            for (manager, rate), llm in zip(entries, llms, strict=True)
        ])


# -- Fig. 15 ---------------------------------------------------------------------------------------------------------------------------
def alpaca(count: int, seed: int, longest: int, scale: int = 1) -> list[tuple[int, int]]:
    """Alpaca requests with the lengths that they have, over ``scale``; what is longer than ``longest`` tokens is drawn again."""
    rng, found = np.random.default_rng((seed, 1)), list[tuple[int, int]]()
    while len(found) < count:
        drawn = lengths.load("alpaca").sample(count, rng, lengths.PAPER_MODEL_LEN // scale)
        found += [(prompt, output) for prompt, output in drawn if prompt + output <= longest]
    return found[:count]


def fig15(setting: Setting, part: Part, advance: Advance, begin: Begin, branches: Sequence[int] | None = None) -> None:
    """Blocks that are not there because branches share them: parallel samples and beams, Alpaca's own lengths, blocks of 16; in a quick run both
    are halved, so that a sequence has as many blocks."""
    branches = branches or (memory.SHARING_N[:2] if setting.quick else memory.SHARING_N)
    scale = 2 if setting.quick else 1
    longest = min(lengths.PAPER_MODEL_LEN, load_spec(resolve(setting.model)).max_positions) // scale
    tokens, own = lengths.load("alpaca").output.mean() / scale, lengths.load(setting.dataset).output.mean()
    # A beam's token costs half as much again as a sample's.
    cost = 2.5 * sum(branches) * tokens / max(1.0, own * setting.max_model_len / lengths.PAPER_MODEL_LEN)
    drawn = alpaca(setting.how_many(cost, 2 if setting.quick else 5, 200), setting.seed, longest, scale)
    part |= {"dataset": "alpaca", "requests": len(drawn), "scale": scale, "max_model_len": longest, "block_size": ALIKE // scale, "rows": []}
    begin("Fig. 15", 2 * len(branches) * len(drawn))
    for how in ("sampling", "beam"):
        for n in branches:
            part["rows"].append(_sharing_row(setting, drawn, part, how, n, max(1, SEQUENCES_AT_ONCE // max(branches)), advance))


def _sharing_row(
    setting: Setting, drawn: list[tuple[int, int]], part: Part, how: str, n: int, at_once: int, advance: Advance,
) -> dict[str, Any]:
    """``n`` samples, or beams, of each request, ``at_once`` requests at a time. The pool has room for all of them, shared or not."""
    blocks = sorted((num_blocks_for(sum(size), part["block_size"]) for size in drawn), reverse=True)
    with ExitStack() as stack:
        llm = setting.open(
            stack, n * sum(blocks[:at_once]), block_size=part["block_size"], max_model_len=part["max_model_len"], max_num_seqs=n * at_once,
        )
        probe = Probe(llm.engine.scheduler, 1, advance)
        racer = Racer({"how": how, "n": n}, llm, jobs(drawn, llm.engine.vocab_size, setting.seed, n, how == "beam"))
        racer.warm_up()
        llm.engine.listen(probe)
        while not racer.done:
            racer.step()
    reports = [report for report, _ in probe.reports.values()]
    saved, held = sum(report.shared_saved for report in reports), sum(report.num_used_blocks for report in reports)
    savings = [report.sharing_saving for report in reports]
    return racer.about | {
        "saving": {"mean": fmean(savings), "min": min(savings), "max": max(savings)}, "saving_of_the_whole_run": saved / (saved + held),
        "steps": len(reports), "preemptions": racer.preemptions, "seconds": racer.now,
    }


# -- Fig. 18b --------------------------------------------------------------------------------------------------------------------------
def fig18b(setting: Setting, part: Part, advance: Advance, begin: Begin, block_sizes: Sequence[int] | None = None) -> None:
    """The same slots in blocks of other sizes: normalized latency at a fixed rate (all of what the default blocks can serve), and a decode step
    of a fixed batch, which is the price of the smaller pages alone."""
    block_sizes = block_sizes or sizes_of(setting)
    largest = max(block_sizes)
    slots = max(1, round(setting.num_slots / HALF / largest)) * largest
    count = setting.how_many(2.0 * len(block_sizes), 24, 400)
    speed: Part = {}
    measure_speed(setting, speed, advance, begin)           # now: minutes have passed
    rate = round(float(speed["requests_per_s"]), 4)
    longest = num_blocks_for(setting.max_model_len, largest) * largest
    batch = max(1, min(8, slots // longest))
    rounds = max(3, min(10 if setting.quick else 24, setting.max_model_len // 2 - 2))
    part |= {
        "dataset": setting.dataset, "requests": count, "max_model_len": setting.max_model_len, "num_slots": slots, "rate": rate,
        "batch": batch, "rows": [], "steps": {},
    }
    begin("Fig. 18b", rounds + count * len(block_sizes))
    with ExitStack() as stack:
        llms = {size: setting.open(stack, slots // size, block_size=size) for size in block_sizes}
        share_weights(list(llms.values()))
        part["steps"] = _fixed_batch(llms, batch, setting.max_model_len // 2, rounds, advance)
        vocab_size = next(iter(llms.values())).engine.vocab_size
        todo = at_rate(jobs(sizes(setting.dataset, count, setting.seed, setting.max_model_len), vocab_size, setting.seed), rate, setting.seed)
        run_race([Racer({"block_size": size}, llm, todo, advance) for size, llm in llms.items()], part["rows"])


def _fixed_batch(llms: Mapping[int, LLM], batch: int, prompt: int, rounds: int, advance: Advance) -> dict[str, Any]:
    """Times of a decode step of ``batch`` sequences by block size; the first step, which is the prompts', is not counted."""
    for llm in llms.values():
        for i in range(batch):
            llm.engine.add_request(str(i), [i] * prompt, SamplingParams(temperature=0, max_tokens=rounds + 2, ignore_eos=True))
    times = in_turns({str(size): llm.engine.step for size, llm in llms.items()}, rounds, WallTimer(), advance)
    for llm in llms.values():
        for i in range(batch):
            llm.engine.abort_request(str(i))
    return {size: spread(ms) for size, ms in times.items()}
