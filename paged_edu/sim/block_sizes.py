"""Which block size? What grows with it and what shrinks, by formulas and, for five workloads, by simulation (Paper §4.3, §7.2).

Model and card are OPT-13B's in the paper; a workload says how much of that card's memory it has. The simulator knows three things of block sizes:
slots at the end of a sequence that stay empty, prefixes that are shared in full blocks only, and an attention kernel that takes as long for a smaller
block as for one of 16 (`Constants.tokens_a_turn`). Nothing in it makes blocks of more than 16 faster, and looking up a table costs nothing: a real
server gains less from the smallest sizes, and the paper's was a little faster with 32 than with 16 (Fig. 18b, ShareGPT).
"""
from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from .. import lengths
from ..checks import integer
from ..core.block_table import num_blocks_for
from ..lengths import Histogram, Lengths
from .cost_model import CostModel
from .presets import PAPER_SERVERS, Server
from .systems import MOST_SEQS
from .what_if import BATCHES, Held, saturated
from .workload import Arrival

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Slots of a block [tokens]."""
FEWEST = 400
"""Requests of a run, and `BATCHES` times what the memory holds. Another seed moves the rates of a workload by up to 8 %, all sizes together: what two
sizes have to do with each other it moves by 1 or 2 %."""
BACKLOG = 64
"""Requests that wait at any time: of Alpaca's, many are let in at once when a large one has waited for memory long enough."""
DRAWN = 20_000
"""Requests that means of a workload are taken over."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests of one kind, and how much memory is there for them."""

    name: str
    label: str
    """As people say it."""
    lengths: Lengths
    """Of prompts, without what all have in common, and of answers."""
    prefix: int = 0
    """Tokens that all prompts begin with, kept by a prefix cache; 0: none, and no cache."""
    memory: float = 1.0
    """Of OPT-13B's slots on the paper's card (15,728)."""

    def server(self) -> Server:
        """The paper's for OPT-13B, with this much memory."""
        paper = PAPER_SERVERS["opt-13b"]
        return replace(paper, num_slots=int(paper.num_slots * self.memory))

    def requests(self, seed: int = 0, count: int | None = None) -> list[Arrival]:
        """Requests that come as soon as there is a place in the queue; ``count``: by default as many as show what the server holds.

        A request longer than the model allows is cut, its prompt first.
        """
        if count is None:
            count = FEWEST + BATCHES * min(MOST_SEQS, int(self.server().num_slots / (self.lengths.input.mean() + self.lengths.output.mean())))
        most = lengths.PAPER_MODEL_LEN - self.prefix
        found = []
        for prompt, answer in self.lengths.matched(count, np.random.default_rng((seed, 1))):
            answer = min(answer, most - 1)
            found.append(Arrival(float("inf"), self.prefix + min(prompt, most - answer), answer, self.prefix))
        return found

    def totals(self) -> np.ndarray:
        """Tokens of `DRAWN` requests at their ends: prefix, prompt and answer, int64."""
        return _totals(self)


@cache
def _totals(workload: Workload) -> np.ndarray:
    return np.array([one.prompt_tokens + one.output_tokens for one in workload.requests(count=DRAWN)])


def _even(name: str, prompts: tuple[int, int], answers: tuple[int, int]) -> Lengths:
    """Every length from the first to the last equally often."""
    sides = [Histogram(low, high, (high - low + 1,)) for low, high in (prompts, answers)]
    return Lengths(name, "made up", *sides)


WORKLOADS = {workload.name: workload for workload in (
    Workload("chat", "chat (ShareGPT)", lengths.load("sharegpt")),
    Workload("instructions", "instructions (Alpaca)", lengths.load("alpaca"), memory=1 / 2),
    Workload("examples", "instructions after 80 tokens of examples", lengths.load("alpaca"), prefix=80, memory=1 / 2),
    Workload("labels", "labels for short texts, 20 tokens in all", _even("labels", (8, 22), (1, 8)), memory=1 / 32),
    Workload("documents", "documents, 1,050 to 1,900 tokens", _even("documents", (1000, 1700), (50, 200)), memory=2.0),
)}
"""The shorter the requests, the less memory they have here: otherwise the most sequences of a step (`MOST_SEQS`) would hold them back at any block
size. As it is, memory does, at every size; a test sees to it."""


# -- by simulation -------------------------------------------------------------------------------------------------------------------------
def held(workload: Workload, size: int, seed: int = 0) -> Held:
    """What vLLM holds of ``workload`` with blocks of ``size`` slots while somebody always waits (see `what_if.saturated`).

    A prefix is computed by the first requests, which are not counted, and found by all others, as in Fig. 16. Raises ValueError for a size that is
    not between 1 and 256, and where the longest request needs more than the memory.
    """
    integer("size", size, 1, SIZES[-1])
    return saturated(workload.server(), "vLLM", workload.requests(seed), block_size=size, prefix_caching=workload.prefix > 0, backlog=BACKLOG)


def stored() -> dict[str, dict[int, Held]]:
    """`held` by a workload's name and the size, run beforehand by ``python -m paged_edu.sim.block_sizes FILE``: a test runs some of it again."""
    rows: list[dict[str, Any]] = json.loads(files("paged_edu.data").joinpath("sim", "block_sizes.json").read_text(encoding="utf-8"))
    found: dict[str, dict[int, Held]] = {}
    for row in rows:
        found.setdefault(row["workload"], {})[row["size"]] = Held(**row["held"])
    return found


# -- by formula ----------------------------------------------------------------------------------------------------------------------------
def waste(size: int, tokens: Iterable[int]) -> float:
    """Mean slots that stay empty in a sequence's last block; ``tokens``: of each sequence at its end.

    About ``(size - 1) / 2`` as long as sequences are longer than a block. Raises ValueError for a size or a length that is no integer above 0.
    """
    integer("size", size, 1)
    return float((-as_tokens(tokens) % size).mean())


def token_share(size: int, tokens: Iterable[int]) -> float:
    """Slots that hold a token, as a share (0 to 1) of those in the blocks of whole sequences; ``tokens`` and errors as for `waste`."""
    integer("size", size, 1)
    counts = as_tokens(tokens)
    return float(counts.sum() / (counts + -counts % size).sum())


def reusable(prefix: int, size: int) -> int:
    """Tokens of a common prefix that the next request finds: those in full blocks (Paper §4.4). Raises ValueError as `entries` does."""
    integer("prefix", prefix, 0)
    integer("size", size, 1)
    return prefix // size * size


def entries(tokens: int, size: int) -> int:
    """Block numbers in the table of a sequence of ``tokens`` tokens. Raises ValueError for tokens below 0 and a size below 1."""
    integer("tokens", tokens, 0)
    integer("size", size, 1)
    return num_blocks_for(tokens, size)


def swap_seconds(size: int, tokens: int = 256) -> float:
    """Seconds to move ``tokens`` tokens of OPT-13B to the host and back, by the cost model: bytes, and a start for each piece (Paper Fig. 19a)."""
    blocks = entries(tokens, size)
    cost = _cost(PAPER_SERVERS["opt-13b"], size)
    return cost.swap_out(blocks) + cost.swap_in(blocks)


def step_seconds(workload: Workload, size: int, batch: int) -> float:
    """Simulated seconds of a step of the first ``batch`` requests of ``workload`` with half of their answers written (Paper §5.1, Fig. 18).

    The size acts below 16 only: the kernel's turns, see `Constants.tokens_a_turn`. Raises ValueError for a size or a batch below 1.
    """
    integer("size", size, 1)
    integer("batch", batch, 1)
    contexts = [one.prompt_tokens + one.output_tokens // 2 for one in workload.requests(count=batch)]
    cost = _cost(workload.server(), size)
    return cost.forward(batch, batch) + cost.attention(sum(contexts), max(contexts), batch)


def _cost(server: Server, size: int) -> CostModel:
    return CostModel(server.model, server.gpu, server.num_gpus, size)


def as_tokens(tokens: Iterable[int], name: str = "tokens") -> np.ndarray:
    """Lengths of sequences as int64. Raises ValueError for what is no list of integers of at least 1, and for an empty one."""
    if not isinstance(tokens, Iterable):
        raise ValueError(f"{name} must be a list of lengths, not {tokens!r}")
    counts = tokens.tolist() if isinstance(tokens, np.ndarray) else list(tokens)
    for count in counts:
        integer(f"every one of {name}", count, 1, 2**31)
    if not counts:
        raise ValueError(f"{name} must be of 1 sequence at least, not of 0")
    return np.array(counts, np.int64)


def main(path: Path) -> None:
    """Run `held` for all workloads and sizes, and write it."""
    rows = []
    for workload, size in tqdm([(workload, size) for workload in WORKLOADS.values() for size in SIZES], unit="run", disable=None):
        found = asdict(held(workload, size))
        found["parts"] = {part: round(share, 4) for part, share in found["parts"].items()}
        rows.append({"workload": workload.name, "size": size, "held": found})
    path.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
