"""What if? The paper's systems with other cards and other lengths: what each holds while somebody always waits (Paper §6.2)."""
from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from .. import lengths
from ..checks import number, one_of
from ..core.scheduler import Scheduler
from .cost_model import Constants
from .points import PARTS
from .presets import PAPER_SERVERS, Server
from .serve import serve
from .systems import MOST_SEQS, PAPER_SYSTEMS, with_manager
from .workload import Arrival

SYSTEMS = tuple(name for name in PAPER_SYSTEMS if name != "FasterTransformer")
FACTORS = {
    "memory": (0.5, 1, 2, 4), "bandwidth": (0.5, 1, 2, 4), "compute": (0.5, 1, 2, 4), "host": (0, 0.5, 1, 2), "prompts": (0.25, 0.5, 1, 2),
    "answers": (0.25, 0.5, 1, 2),
}
"""What can be changed, and the values that `sweep` tries, one change at a time."""
DATASETS = ("sharegpt", "alpaca")
LEAST, MOST = 1 / 16, 16.0
"""Factors are between these."""
BACKLOG = 16
"""Requests that wait at any time: the queue never runs dry."""
FEWEST, BATCHES = 100, 6
"""Requests of a run: so many, and so many times what the memory holds. The first and the last fifth to end are not counted: memory fills then, or
empties, and a fifth is more than a batch and a queue."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One of the paper's servers and workloads, with what is changed as factors (1: as in the paper)."""

    model: str = "opt-13b"
    dataset: str = "sharegpt"
    memory: float = 1.0
    """Of the slots for keys and values."""
    bandwidth: float = 1.0
    """Of the card's memory."""
    compute: float = 1.0
    """Of the card's operations a second."""
    host: float = 1.0
    """Of the time that the serving program takes: for a pass, a sequence and a request."""
    prompts: float = 1.0
    answers: float = 1.0
    """Of each request's tokens. A request longer than the model allows is cut, its prompt first, as chat programs do."""
    block_size: int = 16

    def changes(self) -> dict[str, float]:
        """The factors that are not 1."""
        return {name: value for name in FACTORS if (value := getattr(self, name)) != 1}

    def server(self) -> Server:
        """The card and model. Raises ValueError for a name that the paper has not, and for a factor out of range."""
        one_of("model", self.model, PAPER_SERVERS)
        for name in FACTORS:
            number(name, getattr(self, name), 0 if name == "host" else LEAST, MOST)
        paper = PAPER_SERVERS[self.model]
        gpu = replace(paper.gpu, bandwidth=paper.gpu.bandwidth * self.bandwidth, flops=paper.gpu.flops * self.compute)
        return replace(paper, gpu=gpu, num_slots=int(paper.num_slots * self.memory))

    def constants(self) -> Constants:
        """The cost model's, with the serving program's part scaled."""
        usual = Constants()
        names = ("pass_overhead", "sequence_overhead", "request_overhead", "request_overhead_llama", "broadcast")
        return replace(usual, **{name: getattr(usual, name) * self.host for name in names})

    def num_requests(self) -> int:
        """How many requests show what a server holds."""
        data = lengths.load(self.dataset)
        mean = data.input.mean() * self.prompts + data.output.mean() * self.answers
        return FEWEST + BATCHES * min(MOST_SEQS, int(self.server().num_slots / mean))

    def requests(self, seed: int) -> list[Arrival]:
        """Requests with the dataset's lengths, scaled, that come as soon as there is a place in the queue."""
        longest, found = lengths.PAPER_MODEL_LEN, []
        for prompt, answer in lengths.load(self.dataset).matched(self.num_requests(), np.random.default_rng((seed, 1))):
            answer = min(max(1, round(answer * self.answers)), longest - 1)
            found.append(Arrival(float("inf"), min(max(1, round(prompt * self.prompts)), longest - answer), answer))
        return found


@dataclass(frozen=True, slots=True)
class Held:
    """What a system does while somebody always waits."""

    rate: float
    """Requests that end in a second: with more than these coming, the queue grows without bound."""
    running: float
    """Requests in the batch, on average over steps."""
    step: float
    """Seconds of a step, on average."""
    parts: dict[str, float]
    """Shares of the memory, by `PARTS`."""


Results = dict[str, Held]
"""By the systems' names in the paper."""


def saturated(
    server: Server, system: str, arrivals: Sequence[Arrival], *, block_size: int = 16, constants: Constants | None = None,
    prefix_caching: bool = False, backlog: int = BACKLOG,
) -> Held:
    """Run ``system`` (a name in `SYSTEMS`) on ``server`` with ``backlog`` requests that wait at any time; who gives way computes again.

    The rate is counted between the end of the first and of the fourth fifth of the requests. Raises ValueError for an unknown system, and for a pool
    that is too small for one of the requests.
    """
    one_of("system", system, SYSTEMS)
    scheduler: Scheduler
    scheduler, runner = with_manager(
        server, PAPER_SYSTEMS[system], block_size=block_size, constants=constants, prefix_caching=prefix_caching, preemption_mode="recompute")
    longest = max(arrival.prompt_tokens + arrival.output_tokens for arrival in arrivals)
    if longest > server.num_slots // block_size * block_size:
        raise ValueError(f"the memory has {server.num_slots} slots in blocks of {block_size}, and the longest request needs {longest}")
    seen: list[tuple[float, int]] = []
    parts: list[tuple[float, Sequence[float]]] = []

    def watch(scheduler: Scheduler, now: float) -> None:
        seen.append((now, len(scheduler.running)))
        if len(seen) % 20 == 1:
            shares = scheduler.manager.report().shares()
            parts.append((now, [shares[part] for part in PARTS]))

    ends = serve(scheduler, runner, arrivals, watch=watch, backlog=backlog).ends  # type: ignore[arg-type]
    low, high = len(arrivals) // 5, len(arrivals) - len(arrivals) // 5
    begin, end = ends[low - 1], ends[high - 1]
    running = [count for now, count in seen if begin <= now < end]
    mean = np.mean([row for now, row in parts if begin <= now < end] or [row for _, row in parts], axis=0)
    return Held((high - low) / (end - begin), fmean(running), (end - begin) / len(running), dict(zip(PARTS, map(float, mean), strict=True)))


def held(setting: Setting, system: str, seed: int = 0) -> Held:
    """`saturated` in ``setting``. Raises ValueError for what `Setting.server` refuses as well."""
    one_of("system", system, SYSTEMS)
    server, arrivals = setting.server(), setting.requests(seed)
    longest = max(arrival.prompt_tokens + arrival.output_tokens for arrival in arrivals)
    if longest > server.num_slots:
        raise ValueError(f"memory {setting.memory:g} leaves {server.num_slots} slots, and the longest request needs {longest}")
    return saturated(server, system, arrivals, block_size=setting.block_size, constants=setting.constants())


def all_held(setting: Setting) -> Results:
    """Each of `SYSTEMS`. Raises as `held` does."""
    return {system: held(setting, system) for system in SYSTEMS}


# -- one change at a time, stored --------------------------------------------------------------------------------------------------------
def sweep() -> list[Setting]:
    """The paper's setting for each dataset, and each value of each factor alone."""
    found = []
    for dataset in DATASETS:
        found.append(Setting(dataset=dataset))
        for name, values in FACTORS.items():
            changes: list[dict[str, Any]] = [{name: value} for value in values if value != 1]
            found += [Setting(dataset=dataset, **change) for change in changes]
    return found


def stored() -> dict[Setting, Results]:
    """`sweep`, run beforehand by ``python -m paged_edu.sim.what_if FILE``: a test runs some of it again."""
    rows = json.loads(files("paged_edu.data").joinpath("sim", "what_if.json").read_text(encoding="utf-8"))
    return {Setting(**row["setting"]): {system: Held(**one) for system, one in row["systems"].items()} for row in rows}


def main(path: Path) -> None:
    """Run `sweep` and write it."""
    rows = []
    for setting in tqdm(sweep(), unit="setting", disable=None):
        systems = {system: {**asdict(one), "parts": {part: round(share, 4) for part, share in one.parts.items()}}
                   for system, one in all_held(setting).items()}
        rows.append({"setting": {"dataset": setting.dataset, **setting.changes()}, "systems": systems})
    path.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
