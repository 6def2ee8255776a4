"""Where the time of a step goes: matrix products, attention, sampling, scheduling, and the rest (`bench throughput --profile`).

Two measurements. The *shares*: the engine serves the requests once more, and stopwatches lie around the functions that belong to a part. A part
is everything inside the outermost of them, so the parts don't overlap and add up to the step. The *ratio*: a decode step without any stopwatch
against its matrix products alone. Those are recorded once, with their weights and the inputs that they had in a real step of as many sequences, and
run again between the steps, so that a busy machine is busy for both.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import cycle, islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..engine import runner as runner_module
from ..engine.engine import Engine
from ..engine.llm import LLM
from ..engine.runner import ModelRunner
from ..sampling.params import SamplingParams
from .contenders import Advance, Contender, Ours
from .contest import Begin, spread
from .request_list import Asked

PARTS = {
    "products": "matrix products", "attention": "attention", "sampling": "sampling", "scheduling": "scheduling", "other": "everything else",
}
"""Part -> what it is called. Attention: writing keys and values, and reading them through the block table. Scheduling: the plan, the update after
it, and the tensors that tell the model of it. Everything else: norms, rotations, activations, additions, and the engine around the step."""
KINDS = {"decode": "decode steps", "prompt": "with prompts", "all": "all steps"}
BATCH = 32
"""Sequences in the decode step that is compared with its products; fewer where they don't fit."""
STEPS, QUICK_STEPS = 40, 12
BEFORE = 8
"""Steps in which the prompts are computed, at most: the first ones decode already while the last ones are."""
PRODUCTS = ((F, "linear"), (torch, "addmm"), (torch, "mm"), (torch, "matmul"), (torch, "bmm"), (torch, "_int_mm"))

Call = Callable[[], object]


class Stopwatches:
    """Seconds by part. Inside one function that is timed, others are not: the outermost says whose time it is."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.inside = False
        self.record: list[Call] | None = None
        """If a list: the products are put there to be run again, as they were called."""

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed_call(*args: Any, **named: Any) -> Any:
            if self.inside:
                return call(*args, **named)
            self.inside = True
            start = time.perf_counter()
            try:
                return call(*args, **named)
            finally:
                self.seconds[part] += time.perf_counter() - start
                self.inside = False
                if part == "products" and self.record is not None:
                    self.record.append(lambda: call(*args, **named))

        return timed_call

    def taken(self) -> dict[str, float]:
        """The seconds since the last call."""
        seconds, self.seconds = self.seconds, dict.fromkeys(PARTS, 0.0)
        return seconds


@contextmanager
def watched(engine: Engine) -> Iterator[Stopwatches]:
    """Stopwatches around the functions of an engine on the CPU, and of torch, until the end of the block."""
    watches, runner = Stopwatches(), engine.runner
    assert isinstance(runner, ModelRunner)
    assert runner.model is not None
    places: list[tuple[Any, str, str]] = [(owner, name, "products") for owner, name in PRODUCTS if hasattr(owner, name)]
    # A layer with a matrix of its own, however it multiplies by it (an int8 one has its own way).
    places += [(module, "forward", "products") for module in runner.model.modules() if _multiplies(module)]
    places += [
        (runner, "attend", "attention"), (runner.sampler, "branch", "sampling"), (runner_module, "build_input", "scheduling"),
        (engine.scheduler, "schedule", "scheduling"), (engine.scheduler, "update", "scheduling"),
    ]
    with ExitStack() as stack:
        for owner, name, part in places:
            stack.callback(_put, owner, name, getattr(owner, name), name in vars(owner))
            setattr(owner, name, watches.timed(part, getattr(owner, name)))
        yield watches


def _put(owner: Any, name: str, value: Any, own: bool) -> None:
    """As it was: an object's own attribute, or again its class's."""
    if own:
        setattr(owner, name, value)
    else:
        delattr(owner, name)


def _multiplies(module: nn.Module) -> bool:
    if hasattr(module, "packed_bytes"):                     # its weights are in a form that only the product itself can read
        return True
    tensors = (*module.parameters(recurse=False), *module.buffers(recurse=False))
    return not isinstance(module, nn.Embedding) and not any(module.children()) and any(tensor.dim() == 2 for tensor in tensors)


def check(contender: Contender, max_model_len: int) -> None:
    """Raise ValueError on a GPU, whose work goes on after the function that asked for it, and where requests are too short to be looked into."""
    assert isinstance(contender, Ours)
    runner = contender.llm.engine.runner
    if not isinstance(runner, ModelRunner) or runner.device.type != "cpu":
        raise ValueError("--profile times the functions of a step on the CPU; a GPU works on after they return: use torch.profiler there")
    if max_model_len < BEFORE + 8:
        raise ValueError(f"--profile needs room for {BEFORE + 8} tokens, and the longest request has {max_model_len}: --max-model-len")


# -- the measurements ------------------------------------------------------------------------------------------------------------------
def measure(
    contender: Contender, asked: Sequence[Asked], max_model_len: int, quick: bool, part: dict[str, Any],
    advance: Advance = lambda count: None, begin: Begin = lambda what, total: None,
) -> None:
    """Both measurements into ``part``. Ask `check` first."""
    assert isinstance(contender, Ours)
    begin("profile: shares", sum(one.n_out for one in asked))
    shares = shares_of(contender.llm.engine, asked, advance)
    steps = min(QUICK_STEPS if quick else STEPS, max_model_len - BEFORE - 2)
    begin("profile: decode steps against their products", steps)
    part["against"] = against_products(contender.llm, asked, max_model_len, steps, advance)
    part["parts"] = shares


def shares_of(engine: Engine, asked: Sequence[Asked], advance: Advance = lambda count: None) -> dict[str, Any]:
    """Serve the requests once, all at once, and add up the parts, of the steps of each kind (`KINDS`): seconds, and shares of the steps' time."""
    totals = {kind: dict.fromkeys(PARTS, 0.0) for kind in KINDS}
    counts = dict.fromkeys(KINDS, 0)
    for i, one in enumerate(asked):
        engine.add_request(str(i), list(one.prompt), SamplingParams(temperature=0.0, max_tokens=one.n_out, ignore_eos=True))
    with watched(engine) as watches:
        while engine.has_unfinished_requests():
            start = time.perf_counter()
            engine.step(finished_only=True)
            seconds = time.perf_counter() - start
            parts = watches.taken()
            parts["other"] = seconds - sum(parts.values())
            plan = engine.last_output
            assert plan is not None
            for kind in ("all", "decode" if all(item.num_new == 1 for item in plan.scheduled) else "prompt"):
                counts[kind] += 1
                for name, value in parts.items():
                    totals[kind][name] += value
            advance(sum(item.num_samples for item in plan.scheduled))
    return {
        kind: {
            "steps": counts[kind], "seconds": sum(its.values()), "shares": {name: value / sum(its.values()) for name, value in its.items()},
        } for kind, its in totals.items() if counts[kind]
    }


def against_products(
    llm: LLM, asked: Sequence[Asked], max_model_len: int, steps: int, advance: Advance = lambda count: None,
) -> dict[str, Any]:
    """Decode steps of `BATCH` sequences, in the middle of their outputs, against the matrix products of such a step: milliseconds, and the ratio."""
    engine = llm.engine
    more = steps + BEFORE
    prompts = _half_way(asked, max_model_len, more, engine)
    for i, prompt in enumerate(prompts):
        engine.add_request(f"decode-{i}", prompt, SamplingParams(temperature=0.0, max_tokens=more, ignore_eos=True))
    try:
        queues = engine.scheduler
        while queues.waiting or any(not seq.num_output_tokens for request in queues.running for seq in request.live):
            engine.step(finished_only=True)                 # until all prompts are computed
        calls: list[Call] = []
        with watched(engine) as watches:
            watches.record = calls
            engine.step(finished_only=True)
        whole, alone = list[float](), list[float]()
        for number in range(steps):
            for what in ("step", "products") if number % 2 else ("products", "step"):
                start = time.perf_counter()
                if what == "step":
                    engine.step(finished_only=True)
                else:
                    _run(calls)
                (whole if what == "step" else alone).append(time.perf_counter() - start)
            advance(1)
    finally:
        for i in range(len(prompts)):
            engine.discard(f"decode-{i}")
    return {
        "sequences": len(prompts), "mean_context": sum(map(len, prompts)) / len(prompts) + steps / 2, "products": len(calls), "steps": steps,
        "step_s": spread(whole), "products_s": spread(alone), "ratio": spread(whole)["median"] / spread(alone)["median"],
        "ratio_by_step": spread([a / b for a, b in zip(whole, alone, strict=True)]),
    }


@torch.inference_mode()
def _run(calls: Sequence[Call]) -> None:
    for call in calls:
        call()


def _half_way(asked: Sequence[Asked], max_model_len: int, more: int, engine: Engine) -> list[list[int]]:
    """Up to `BATCH` prompts as long as the requests are when half of their output is written, with room for ``more`` tokens. They are to run all
    at once: as many as the pool has blocks for. Raises ValueError where not even one fits."""
    manager, limits, prompts = engine.scheduler.manager, engine.scheduler.config, list[list[int]]()
    blocks, tokens = manager.num_blocks, (BEFORE - 2) * limits.max_num_batched_tokens
    for one in islice(cycle(asked), min(BATCH, limits.max_num_seqs)):
        length = _length(one, max_model_len - more)
        blocks, tokens = blocks - -(-(length + more) // manager.block_size), tokens - length
        if blocks < 0 or (tokens < 0 and prompts):
            break
        prompts.append([one.prompt[j % len(one.prompt)] for j in range(length)])
    if not prompts:
        raise ValueError(f"--profile needs a pool that holds a request and {more} tokens more; {manager.num_blocks} blocks are too few")
    return prompts


def _length(one: Asked, most: int) -> int:
    return min(len(one.prompt) + one.n_out // 2, most)


def blocks_for(asked: Sequence[Asked], max_model_len: int, block_size: int) -> int:
    """Blocks of a pool in which `BATCH` sequences can be decoded."""
    more = STEPS + BEFORE
    return sum(-(-(_length(one, max_model_len) + more) // block_size) for one in islice(cycle(asked), BATCH))
