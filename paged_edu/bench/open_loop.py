"""Requests that arrive by themselves, through the real engine: normalized latency against request rate (Paper §6.1, Fig. 12).

Several engines race: the same requests for each, and turns of a fraction of a second, so that a busy machine is busy for all of them. Each racer has
a stopwatch of its own. It runs in real time while its engine works and stands still in the others' turns; while the engine has nothing to do it
jumps to the next arrival. A racer's latencies are therefore what a clock on the wall would show if it had the machine to itself.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from .. import lengths
from ..engine.llm import LLM
from ..engine.outputs import RequestOutput
from ..sampling.beam import BeamSearchParams
from ..sampling.params import SamplingParams

TURN = 0.25
"""Seconds of work before the next racer has its turn: long beside a step, short beside what a machine's neighbours do."""


@dataclass(frozen=True, slots=True)
class Job:
    """One request: when it comes [s], its prompt, and how it is to be answered."""

    time: float
    prompt: list[int]
    params: SamplingParams | BeamSearchParams

    @property
    def output_tokens(self) -> int:
        """Of each of its samples."""
        return self.params.max_tokens


def jobs(sizes: Sequence[tuple[int, int]], vocab_size: int, seed: int, n: int = 1, beam: bool = False) -> list[Job]:
    """A request for each (prompt tokens, output tokens), of ``n`` samples or beams: random ids, always to the last token. All come at 0."""
    rng = np.random.default_rng((seed, 2))
    return [
        Job(0.0, (rng.random(prompt) * vocab_size).astype(int).tolist(), _params(output, i, n, beam)) for i, (prompt, output) in enumerate(sizes)
    ]


def _params(output: int, seed: int, n: int, beam: bool) -> SamplingParams | BeamSearchParams:
    if beam:
        return BeamSearchParams(beam_width=n, max_tokens=output, ignore_eos=True)
    return SamplingParams(temperature=1.0, seed=seed, max_tokens=output, ignore_eos=True, n=n)


def sizes(dataset: str, count: int, seed: int, max_model_len: int) -> list[tuple[int, int]]:
    """``count`` requests of a data set as (prompt tokens, output tokens), scaled to ``max_model_len`` positions."""
    return lengths.load(dataset).sample(count, np.random.default_rng((seed, 1)), max_model_len)


def at_rate(all_at_once: Sequence[Job], rate: float, seed: int) -> list[Job]:
    """The same requests as a Poisson process of ``rate`` requests a second; at another rate the same arrivals, only closer together."""
    gaps = np.random.default_rng((seed, 0)).exponential(size=len(all_at_once))
    return [replace(job, time=float(when)) for job, when in zip(all_at_once, gaps.cumsum() / rate, strict=True)]


class Racer:
    """One engine, its requests and its stopwatch. ``about`` is who it is, for its row. ``finished`` is called with 1 for every request that ends."""

    def __init__(self, about: dict[str, Any], llm: LLM, todo: Sequence[Job], finished: Callable[[int], object] = lambda count: None) -> None:
        self.about, self.engine, self.todo, self.finished = about, llm.engine, todo, finished
        self.now = 0.0
        """Its stopwatch [s]."""
        self.latencies: dict[int, float] = {}
        """Place of the request -> seconds from its arrival to its last token."""
        self.tokens: dict[int, tuple[int, ...]] = {}
        """What each request's first sample wrote."""
        self.running: list[int] = []
        """Requests in the batch, of each step."""
        self.steps: list[float] = []
        """Seconds a step."""
        self.new_tokens: list[int] = []
        """Tokens sampled, of each step."""
        self.waiting: list[int] = []
        """Requests without memory, of each step."""
        self.preemptions = self.swapped_blocks = 0
        self._at = 0

    @property
    def done(self) -> bool:
        return self._at == len(self.todo) and not self.engine.has_unfinished_requests()

    def warm_up(self) -> None:
        """A request that nobody measures: the first step of a process is slow."""
        self.engine.add_request("warm-up", self.todo[0].prompt[:1], SamplingParams(max_tokens=2, ignore_eos=True))
        while self.engine.has_unfinished_requests():
            self.engine.step(finished_only=True)

    def turn(self, seconds: float) -> None:
        """Work for that long, or to the end."""
        until = time.perf_counter() + seconds
        while not self.done and time.perf_counter() < until:
            self.step()

    def step(self) -> None:
        """Take in who has arrived, and step the engine once."""
        if not self.engine.has_unfinished_requests():
            self.now = max(self.now, self.todo[self._at].time)
        start = time.perf_counter()
        while self._at < len(self.todo) and self.todo[self._at].time <= self.now:
            job = self.todo[self._at]
            self.engine.add_request(str(self._at), job.prompt, job.params)
            self._at += 1
        outputs = self.engine.step(finished_only=True)      # the tokens are here when it returns: a GPU has been waited for
        seconds = time.perf_counter() - start
        self.now += seconds
        self.steps.append(seconds)
        self._note(outputs)

    def _note(self, outputs: list[RequestOutput]) -> None:
        plan = self.engine.last_output
        if plan is not None:
            self.running.append(len({item.request_id for item in plan.scheduled}))
            self.new_tokens.append(sum(item.num_samples for item in plan.scheduled))
            self.waiting.append(len(self.engine.scheduler.waiting))
            self.preemptions += len(plan.preempted)
            self.swapped_blocks += len(plan.swap_out)
        for output in outputs:
            place = int(output.request_id)
            self.latencies[place] = self.now - self.todo[place].time
            self.tokens[place] = tuple(output.outputs[0].token_ids)
            self.finished(1)

    def row(self) -> dict[str, Any]:
        """Who it is, and what came of it."""
        tokens = sum(job.output_tokens for job in self.todo)
        return self.about | {
            "normalized_latency": fmean(seconds / self.todo[i].output_tokens for i, seconds in self.latencies.items()),
            "requests": len(self.latencies), "output_tokens": tokens, "seconds": self.now, "running": fmean(self.running), "steps": len(self.steps),
            "preemptions": self.preemptions, "swapped_blocks": self.swapped_blocks,
        }

    def full(self) -> dict[str, float]:
        """The steps in which somebody waits for memory, if there are any: as many run as the manager can hold, and that is its capacity."""
        steps = [i for i, waiting in enumerate(self.waiting) if waiting] or list(range(len(self.steps)))
        tokens_per_s = sum(self.new_tokens[i] for i in steps) / sum(self.steps[i] for i in steps)
        per_request = sum(job.output_tokens for job in self.todo) / len(self.todo)
        return {
            "tokens_per_s": tokens_per_s, "requests_per_s": tokens_per_s / per_request, "running": fmean(self.running[i] for i in steps),
            "steps": len(steps),
        }


def race(racers: Sequence[Racer], turn: float = TURN) -> Iterator[Racer]:
    """Let them take turns until all are done; each is given out when it is. Rounds begin with another one each time."""
    for racer in racers:
        racer.warm_up()
    left = list(racers)
    while left:
        for racer in list(left):
            racer.turn(turn)
            if racer.done:
                left.remove(racer)
                yield racer
        left = left[1:] + left[:1]
