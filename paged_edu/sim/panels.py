"""The paper's evaluation as experiments: model, workload and systems of each panel, and one run of one of them (Paper §6).

An experiment names a model of the paper (and with it the cards), a workload, a system and a request rate. Nothing else goes in: what a step costs is
the cost model's, and no number here was chosen by looking at the panel's curves.
"""
from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from . import workload as workloads
from .points import Points as Points
from .points import crossing as crossing
from .presets import PAPER_SERVERS
from .serve import Served, serve
from .systems import PAPER_SYSTEMS, AnyScheduler, build
from .workload import Arrival

ALL = tuple(PAPER_SYSTEMS)
ORCAS = ("Orca (Max)", "Orca (Pow2)", "Orca (Oracle)", "vLLM")


@dataclass(frozen=True, slots=True)
class Panel:
    """Normalized latency over request rate: one panel of Fig. 12, 14, 16 or 17."""

    figure: str
    title: str
    model: str
    workload: str
    seconds: float
    """Of arrivals. The paper's traces have an hour, a quarter of an hour for OPT-175B; groups of sequences are simulated over shorter ones, see
    `seconds_at`."""
    systems: tuple[str, ...] = ORCAS
    n: int = 1
    beam: bool = False

    def seconds_at(self, rate: float) -> float:
        """Of arrivals at ``rate`` requests a second: groups run for longer where few come, until `REQUESTS` have come or the hour is over.

        Beyond a knee waiting grows with the time that is watched, so a short trace flatters whoever falls behind.
        """
        return self.seconds if self.n == 1 else min(HOUR, max(self.seconds, REQUESTS / rate))


HOUR, REQUESTS = 3600.0, 4000

PANELS = {panel.figure: panel for panel in (
    Panel("fig12a", "OPT-13B, ShareGPT", "opt-13b", "sharegpt", 3600, ALL),
    Panel("fig12b", "OPT-66B, ShareGPT", "opt-66b", "sharegpt", 3600, ALL),
    Panel("fig12c", "OPT-175B, ShareGPT", "opt-175b", "sharegpt", 900, ALL),
    Panel("fig12d", "OPT-13B, Alpaca", "opt-13b", "alpaca", 3600, ALL),
    Panel("fig12e", "OPT-66B, Alpaca", "opt-66b", "alpaca", 3600, ALL),
    Panel("fig12f", "OPT-175B, Alpaca", "opt-175b", "alpaca", 900, ALL),
    *(Panel(f"fig14{letter}", f"parallel sampling, {n} samples", "opt-13b", "alpaca", 900, n=n) for letter, n in (("a", 2), ("b", 4), ("c", 6))),
    *(Panel(f"fig14{letter}", f"beam search, width {n}", "opt-13b", "alpaca", 600, n=n, beam=True) for letter, n in (("d", 2), ("e", 4), ("f", 6))),
    Panel("fig16a", "shared prefix of 80 tokens", "llama-13b", "translation-80", 1200, ("Orca (Oracle)", "vLLM")),
    Panel("fig16b", "shared prefix of 341 tokens", "llama-13b", "translation-341", 1200, ("Orca (Oracle)", "vLLM")),
    Panel("fig17", "chatbot", "opt-13b", "chat", 3600),
)}


@cache
def published() -> dict[str, dict[str, Points]]:
    """The paper's own points: figure -> system -> points. Panels 12c, 12f, 14c, 14f, 16b and 17 are not among them."""
    text = files("paged_edu.data").joinpath("paper", "figures.json").read_text(encoding="utf-8")
    stored: dict[str, dict[str, Points]] = json.loads(text)["figures"]
    return stored


@cache
def replayed() -> dict[str, dict[str, Points]]:
    """The same from the simulator, at the paper's lengths of traces: what ``paged-edu simulate --all --json`` wrote. A test runs some of it again."""
    stored: dict[str, dict[str, Points]] = json.loads(files("paged_edu.data").joinpath("sim", "replayed.json").read_text(encoding="utf-8"))
    return stored


def arrivals(workload: str, rate: float, seconds: float, seed: int = 0) -> list[Arrival]:
    """``workload``: a name of `workload.WORKLOADS`, translation with the tokens of its prefix ("translation-80")."""
    name, _, prefix = workload.partition("-")
    return workloads.arrivals(name, rate, seconds, seed, prefix_tokens=int(prefix or workloads.ONE_EXAMPLE))


def run(
    model: str, workload: str, system: str, rate: float, seconds: float, *, n: int = 1, beam: bool = False, block_size: int = 16,
    preemption_mode: str = "auto", watch: Callable[[AnyScheduler, float], object] | None = None,
) -> Served:
    """One system under one load. ``system`` has its name in the paper; the cards are those that the paper ran ``model`` on."""
    ours = PAPER_SYSTEMS[system]
    if workload == "chat" and ours.startswith("orca"):
        ours = "orca-max"                                   # all variants keep 1,024 slots for an answer there: with the prompt, a run of 2,048
    prefix = workload.startswith("translation-") and system == "vLLM"
    scheduler, runner = build(
        PAPER_SERVERS[model], ours, block_size=block_size, prefix_caching=prefix, preemption_mode=preemption_mode)
    return serve(scheduler, runner, arrivals(workload, rate, seconds), n, beam=beam, watch=watch)


# -- a curve ---------------------------------------------------------------------------------------------------------------------------
TOP, LEFT_AXES = 1.0, 1.3
"""A curve goes on below the first, and ends above the second, where the paper's leave their axes [s/token]."""
STEEP = 0.15
"""Where a curve passes this latency [s/token] it is refined, until the rates on both sides are close."""
OWN_CLOSE, GIVEN_CLOSE = 1.03, 1.25
"""As ratios: between rates of our own choice, and between the paper's, which are dense where its own curve is steep."""


def rates_of(figure: str, system: str) -> list[float]:
    """The rates at which the paper drew points, the last one where its line leaves the axes; none for a panel that was not given."""
    points = published().get(figure, {}).get(system, [])
    rates: list[float] = []
    for x, y in points:
        if not rates or x > rates[-1]:
            rates.append(x)
        if y > LEFT_AXES:
            break
    return rates


def curve(panel: Panel, system: str, seconds: float, step: Callable[[], object]) -> Points:
    """Latency over rate: at the paper's rates, or at rates of our own choice, and on until a token takes 1 s. ``step`` is called after each point.

    ``seconds`` of arrivals; where that is not `Panel.seconds`, `Panel.seconds_at` is scaled with it.
    """
    def at(rate: float) -> list[float]:
        length = seconds / panel.seconds * panel.seconds_at(rate)
        point = [rate, run(panel.model, panel.workload, system, rate, length, n=panel.n, beam=panel.beam).normalized_latency]
        step()
        return point

    given = rates_of(panel.figure, system)
    if given:
        points, close = [], GIVEN_CLOSE
        for rate in given:
            points.append(at(rate))
            if points[-1][1] > LEFT_AXES:
                break
        gap = given[-1] - given[-2]
        while points[-1][1] < TOP and points[-1][0] < 4 * given[-1]:     # ours may hold where the paper's has left the axes
            points.append(at(_rounded(points[-1][0] + gap)))
            gap *= 1.5
    else:
        points, close = [at(0.05)], OWN_CLOSE
        while points[-1][1] < TOP and len(points) < 40:
            points.append(at(_rounded(points[-1][0] * (1.5 if points[-1][1] < 0.1 else 1.15))))
    for _ in range(4):                                      # halve the steepest part
        points.sort()
        right = next(i for i, (_, y) in enumerate(points) if y > STEEP or i == len(points) - 1)
        if right == 0 or points[right][0] / points[right - 1][0] < close:
            break
        points.append(at(_rounded((points[right - 1][0] + points[right][0]) / 2)))
    return sorted(points)


def _rounded(rate: float) -> float:
    return float(f"{rate:.3g}")
