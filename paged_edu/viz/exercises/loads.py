"""Exercises 11.a to c: their cases, which `serve` and `panels.crossing` answer, and the typical wrong ways to read a rate off a curve."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

import numpy as np

from ...core.contiguous import ContiguousKVManager
from ...core.paged import PagedKVManager
from ...core.plan import SchedulerOutput, StepResult
from ...core.scheduler import SchedulerConfig
from ...sim.cost_model import CostModel
from ...sim.panels import Points, crossing, published
from ...sim.presets import PAPER_SERVERS
from ...sim.serve import serve
from ...sim.sim_runner import SimRunner
from ...sim.timed import TimedScheduler
from ...sim.workload import Arrival
from .exercise import Case, Function


class _Steady(SimRunner):
    """A runner whose steps all take the same time, so that latencies are numbers one can check in one's head."""

    def __init__(self, seconds: float) -> None:
        server = PAPER_SERVERS["opt-13b"]
        super().__init__(CostModel(server.model, server.gpu))
        self.seconds = seconds

    def execute(self, output: SchedulerOutput, sampling: Mapping[str, Any] | None = None) -> StepResult:
        return replace(super().execute(output, sampling), elapsed=self.seconds)


def said(value: float | None) -> str:
    return "None" if value is None else f"{value:.6g}"


# -- a: the metric ---------------------------------------------------------------------------------------------------------------------
class Answered(NamedTuple):
    """A request that has been answered."""

    prompt: int
    """Tokens that came in."""
    tokens: int
    """Tokens of its answer."""
    seconds: float
    """From its arrival to its last token, waiting included."""


def _latency_case(places: int, step: float, arrivals: Sequence[tuple[float, int, int]]) -> Case:
    """Serve requests, ``(arrival, prompt, answer)``, ``places`` at a time and ``step`` seconds a step; read each one's latency and the run's."""
    scheduler = TimedScheduler(SchedulerConfig(max_model_len=256, max_num_seqs=places), PagedKVManager(64 * places, 16))
    requests: list[Answered] = []
    scheduler.ended = lambda request, latency: requests.append(Answered(len(request.prompt_token_ids), request.max_tokens, round(latency, 6)))
    found = serve(scheduler, _Steady(step), [Arrival(*arrival) for arrival in arrivals])
    return Case((requests,), found.normalized_latency)


def latency_fixed() -> Sequence[Case]:
    return [
        _latency_case(1, 0.1, [(0.0, 8, 20)]), _latency_case(1, 0.1, [(0.0, 8, 100), (1.0, 30, 10)]),
        _latency_case(1, 0.1, [(0.0, 5, 60), (0.5, 40, 1), (0.6, 12, 30)]),
        _latency_case(4, 0.05, [(0.0, 100, 40), (0.0, 2, 8), (1.0, 60, 2), (1.5, 3, 100)]),
    ]


def draw_latency(random: Random) -> Case:
    times = sorted(round(random.uniform(0, 3), 1) for _ in range(random.randint(1, 5)))
    arrivals = [(time, random.randint(1, 60), random.randint(1, 60)) for time in times]
    return _latency_case(random.randint(1, 3), random.choice((0.05, 0.1, 0.2)), arrivals)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# -- b: capacity off a curve -------------------------------------------------------------------------------------------------------------
def _capacity_case(curve: Points, threshold: float) -> Case:
    return Case((curve, threshold), crossing(curve, threshold))


def capacity_fixed() -> Sequence[Case]:
    plain = [[1.0, 0.1], [2.0, 0.3], [3.0, 0.7]]
    paper = published()["fig12a"]
    return [
        _capacity_case(plain, 0.5), _capacity_case(plain, 0.3), _capacity_case(plain, 0.9), _capacity_case(plain, 0.05),
        _capacity_case([[1.0, 0.1], [2.0, 0.6], [3.0, 0.2], [4.0, 1.0]], 0.5),
        *(_capacity_case(curve, 0.5) for curve in paper.values()), *(_capacity_case(paper[system], 0.2) for system in ("vLLM", "FasterTransformer")),
    ]


def draw_capacity(random: Random) -> Case:
    """Curves that rise, some of them with a dip; none has a point that lies at the threshold itself."""
    threshold = random.choice((0.2, 0.5, 0.9))
    kind = random.choice(("passes", "passes", "dips", "never", "always"))
    rate, curve = 0.0, []
    below = [] if kind == "always" else sorted(random.uniform(0.1, 0.98) for _ in range(random.randint(2, 4)))
    above = [] if kind == "never" else sorted(random.uniform(1.02, 4) for _ in range(random.randint(2, 3)))
    middle = [random.uniform(0.3, 0.98), random.uniform(1.02, 3)] if kind == "dips" else []
    for share in (*below, *above[:1], *middle, *above[1:]):
        rate += random.uniform(0.1, 1.5)
        curve.append([round(rate, 2), round(share * threshold, 3)])
    return _capacity_case(curve, threshold)


def passing(formula: Callable[[float, float, float, float, float], float], last: bool = False) -> Function:
    """A way to read the rate off the two points ``(x0, y0)`` and ``(x1, y1)`` between which a curve passes ``y``; where it never does: None."""

    def read(curve: Points, threshold: float) -> float | None:
        places = [i for i in range(1, len(curve)) if curve[i - 1][1] <= threshold < curve[i][1]]
        if not places:
            return None
        (x0, y0), (x1, y1) = curve[places[-1 if last else 0] - 1 :][:2]
        return formula(x0, y0, x1, y1, threshold)

    return read


def on_the_line(x0: float, y0: float, x1: float, y1: float, y: float) -> float:
    """The rate at which a straight line through two points has the latency ``y``."""
    return x0 + (y - y0) * (x1 - x0) / (y1 - y0)


_right = passing(on_the_line)


def from_the_origin(curve: Points, threshold: float) -> float | None:
    return crossing([[0.0, 0.0], *curve], threshold)


def extended(curve: Points, threshold: float) -> float | None:
    (x0, y0), (x1, y1) = curve[-2:]
    if all(y <= threshold for _, y in curve) and y1 > y0:
        return x0 + (threshold - y0) * (x1 - x0) / (y1 - y0)
    answer: float | None = _right(curve, threshold)
    return answer


def held_at_the_ends(curve: Points, threshold: float) -> float:
    answer: float | None = _right(curve, threshold)
    return answer if answer is not None else curve[0 if curve[0][1] > threshold else -1][0]


def interpolated(curve: Points, threshold: float) -> float:
    rates, latencies = np.array(curve).T
    return float(np.interp(threshold, latencies, rates))


def the_other_axis(curve: Points, threshold: float) -> float:
    rates, latencies = np.array(curve).T
    return float(np.interp(threshold, rates, latencies))


# -- c: Little's law -------------------------------------------------------------------------------------------------------------------
def _held(slots: int, reserved: int, tokens: int, step: float, count: int) -> tuple[int, float]:
    """``count`` requests that are all there at 0 s, over runs of ``reserved`` slots: most of them at once, and requests a second."""
    most = 0

    def watch(scheduler: Any, now: float) -> None:
        nonlocal most
        most = max(most, len(scheduler.running))

    scheduler = TimedScheduler(SchedulerConfig(reserved, max_num_seqs=count), ContiguousKVManager(slots, 1, "max", reserved))
    found = serve(scheduler, _Steady(step), [Arrival(0.0, 1, tokens)] * count, watch=watch)
    return most, found.num_requests / found.seconds


def _held_case(slots: int, reserved: int, tokens: int, step: float) -> Case:
    """Two rounds of as many as the pool takes at once: every place is busy to the end."""
    places, _ = _held(slots, reserved, 1, step, slots // reserved + 3)
    return Case((slots, reserved, tokens, step), _held(slots, reserved, tokens, step, 2 * places)[1])


def held_fixed() -> Sequence[Case]:
    return [_held_case(*args) for args in ((64, 16, 10, 0.1), (60, 16, 10, 0.1), (300, 256, 100, 0.05), (15_728, 2048, 338, 0.03))]


def draw_held(random: Random) -> Case:
    reserved = random.choice((16, 32, 64))
    slots = random.randint(reserved, 6 * reserved)
    return _held_case(slots, reserved, random.randint(1, reserved - 1), random.choice((0.02, 0.03, 0.05, 0.1)))
