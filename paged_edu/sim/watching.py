"""Watching a run: who runs, who waits and what the memory holds over virtual time, for the points of a curve that can be clicked (lesson 11)."""
from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from ..core.scheduler import Scheduler
from ..core.sequence import Request, Status
from . import panels
from .points import PARTS, Points, Run, Sample
from .serve import Served
from .systems import AnyScheduler

NUM_SAMPLES, NUM_REQUESTS = 60, 40
_EMPTY = (0.0, 0.0, 0.0, 1.0)


class Recorder:
    """A watcher for `serve`: call it with the scheduler and the time after each plan, then ask for the `run`.

    It reads the queues and changes nothing. ``seconds``: for how long requests come.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.first = seconds, seconds / 5
        self._every = seconds / NUM_SAMPLES
        self._due = 0.0
        self._samples: list[Sample] = []
        self._now, self._step = 0.0, 0.0                    # time of the last plan, and how long the step before it took
        self._held = (0, 0)                                 # requests that ran and waited since then
        self._areas = [0.0, 0.0]                            # their numbers times seconds
        self._times: dict[str, list[float]] = {}            # what becomes `Run.requests`
        self._live: list[Request] = []

    def __call__(self, scheduler: AnyScheduler, now: float) -> None:
        # An empty system's clock jumps to the next arrival: then everybody who is there has just come.
        idle = all(request.arrival_time == now for queue in (scheduler.running, scheduler.waiting) for request in queue)
        self._count(now, idle)
        self._follow(scheduler, now, min(now, self._now + self._step) if idle else now)
        if idle:
            while self._due < now:
                self._samples.append(Sample(self._due, 0, 0, _EMPTY if isinstance(scheduler, Scheduler) else None))
                self._due += self._every
        if now >= self._due:
            self._samples.append(_sample(scheduler, now))
            while self._due <= now:
                self._due += self._every
        if not idle:
            self._step = now - self._now
        self._now, self._held = now, (len(scheduler.running), len(scheduler.waiting))

    def _count(self, now: float, idle: bool) -> None:
        stop = min(now, self._now + self._step) if idle else now
        span = min(stop, self.seconds) - max(self._now, self.first)
        if span > 0:
            self._areas = [area + held * span for area, held in zip(self._areas, self._held)]

    def _follow(self, scheduler: AnyScheduler, now: float, before: float) -> None:
        """``before``: when the step ended that came before this plan."""
        for request in self._live:
            times = self._times[request.request_id]
            runs = len(times) % 2 == 0                      # arrival and an odd number of changes
            if request.status is Status.RUNNING and not runs:
                times.append(now)
            elif request.status is not Status.RUNNING and runs:
                times.append(before)
        self._live = [request for request in self._live if request.status is not Status.FINISHED]
        if now >= self.first and len(self._times) < NUM_REQUESTS:
            self._begin(scheduler.running, now)
            self._begin(scheduler.waiting, now)

    def _begin(self, queue: Iterable[Request], now: float) -> None:
        for request in queue:
            if request.arrival_time >= self.first and request.request_id not in self._times and len(self._times) < NUM_REQUESTS:
                self._times[request.request_id] = [request.arrival_time] + [now] * (request.status is Status.RUNNING)
                self._live.append(request)

    def run(self, system: str, rate: float, served: Served) -> Run:
        """All that was seen, once the run is over."""
        for request in self._live:                          # the last step has no plan after it
            if len(times := self._times[request.request_id]) % 2 == 0:
                times.append(served.seconds)
        span = max(min(served.seconds, self.seconds) - self.first, 0.0)
        running, waiting = (area / span if span else 0.0 for area in self._areas)
        samples = [*self._samples, Sample(served.seconds, 0, 0, self._samples[-1].parts and _EMPTY)] if self._samples else []
        if len(samples) > 2 * NUM_SAMPLES:                  # a long queue was still there when requests stopped to come
            last = len(samples) - 1
            samples = [samples[round(i * last / (NUM_SAMPLES - 1))] for i in range(NUM_SAMPLES)]
        requests = sorted(tuple(round(time, 2) for time in times) for times in self._times.values())
        return Run(
            system, rate, self.seconds, served.normalized_latency, running, waiting, served.num_requests, served.num_preemptions, tuple(samples),
            tuple(requests))


def _sample(scheduler: AnyScheduler, now: float) -> Sample:
    parts = None
    if isinstance(scheduler, Scheduler):
        shares = scheduler.manager.report().shares()
        a, b, c, d = (shares[part] for part in PARTS)
        parts = (a, b, c, d)
    return Sample(now, len(scheduler.running), len(scheduler.waiting), parts)


def watched_curve(
    model: str, workload: str, system: str, rates: Iterable[float], seconds: float, *, n: int = 1, beam: bool = False,
    step: Callable[[], object] = lambda: None,
) -> tuple[Points, list[Run]]:
    """Normalized latency at ``rates``, and the run behind each point; the other arguments are those of `panels.run`. ``step``: called after each."""
    points: Points = []
    runs: list[Run] = []
    for rate in rates:
        recorder = Recorder(seconds)
        served = panels.run(model, workload, system, rate, seconds, n=n, beam=beam, watch=recorder)
        points.append([rate, served.normalized_latency])
        runs.append(recorder.run(system, rate, served))
        step()
    return points, runs


# -- Fig. 12a, stored --------------------------------------------------------------------------------------------------------------------
FIGURE, WATCHED = "fig12a", ("Orca (Max)", "Orca (Oracle)", "vLLM")


def stored() -> dict[str, list[Run]]:
    """Runs of Fig. 12a, an hour each: what ``python -m paged_edu.sim.watching FILE`` wrote. A test runs one again. The points are the runs' own
    rates and latencies."""
    text = files("paged_edu.data").joinpath("sim", "watched.json").read_text(encoding="utf-8")
    return {system: [_run(row) for row in rows] for system, rows in json.loads(text).items()}


def _run(row: dict[str, Any]) -> Run:
    samples = tuple(Sample(time, running, waiting, tuple(parts)) for time, running, waiting, parts in row["samples"])
    return Run(**{**row, "samples": samples, "requests": tuple(map(tuple, row["requests"]))})


def main(path: Path) -> None:
    """Watch the runs of `stored` at the paper's rates, and at some beyond where ours go on, and write them."""
    panel, rows = panels.PANELS[FIGURE], {}
    for system in WATCHED:
        rates = [rate for rate, _ in panels.replayed()[FIGURE][system]]
        with tqdm(total=len(rates), desc=system, disable=None) as bar:
            runs = watched_curve(panel.model, panel.workload, system, rates, panel.seconds, step=bar.update)[1]
        rows[system] = [_row(run) for run in runs]
    lines = [f"{json.dumps(system)}: [\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in found) + "\n]"
             for system, found in rows.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _row(run: Run) -> dict[str, Any]:
    samples = [[round(one.time, 1), one.running, one.waiting, [round(part, 4) for part in one.parts or ()]] for one in run.samples]
    return {**asdict(run), "running": round(run.running, 3), "waiting": round(run.waiting, 3), "samples": samples}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
