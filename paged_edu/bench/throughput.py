"""`paged-edu bench throughput`: how many tokens a second this engine gives to many requests, against transformers and older memory managers.

Everybody serves the same requests in the same process, in turns (`contest`). Requests come from a workload file or have the lengths of the paper's
data sets; all are there at once, or come as a Poisson process (``rate``). With ``profile``, `step_profile` says where a step's time goes.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .. import lengths
from ..checks import integer, number, one_of
from ..model.spec import ModelSpec
from . import contest, request_list, step_profile
from .contenders import SYSTEMS, Advance, Command
from .contest import Begin, Setting
from .request_list import Asked

QUICK_REQUESTS = 12


@dataclass(frozen=True, kw_only=True)
class Options(Setting):
    """What to measure. Raises ValueError with the value and its limits."""

    workload: Path | None = None
    """A file of requests; None: lengths of ``dataset``."""
    dataset: str = "sharegpt"
    requests: int = 48
    rate: float | None = None
    """Requests a second; None: all at once, or when the file says."""
    max_model_len: int | None = None
    """Positions: what lengths are scaled to, and what Orca Max reserves. None: the longest request of a file; else 256, at most the model's."""
    num_gpu_blocks_override: int | None = None
    """Blocks of every pool; None: enough for all requests at once."""
    max_num_seqs: int = 256
    hf_batch: int = 0
    """Requests in a batch of transformers, at most; 0: no limit."""
    peer: tuple[str, ...] = ()
    """Other programs that take part, as "name=command"."""
    seed: int = 0
    profile: bool = False

    def __post_init__(self) -> None:
        self.check()
        one_of("--dataset", self.dataset, lengths.DATASETS)
        for name, low, high in (("requests", 1, 1_000_000), ("max_num_seqs", 1, 2**20), ("hf_batch", 0, 2**20), ("seed", 0, 2**32)):
            integer(f"--{name.replace('_', '-')}", getattr(self, name), low, high)
        if self.rate is not None:
            number("--rate", self.rate, 0, 1e6, low_open=True)
        if self.max_model_len is not None:
            integer("--max-model-len", self.max_model_len, 2, 2**20)
        if self.num_gpu_blocks_override is not None:
            integer("--num-gpu-blocks-override", self.num_gpu_blocks_override, 1, 2**31 - 1)
        for name, default in (("dataset", "sharegpt"), ("requests", 48)):
            if self.workload is not None and getattr(self, name) != default:
                raise ValueError(f"--workload {self.workload} brings its requests: --{name} has no meaning beside it")
        if self.profile and "paged" not in self.names:
            raise ValueError(f"--profile looks into 'paged', which is not among --systems {self.systems}")
        taken = {*self.names, *SYSTEMS}
        for name in self.peers:
            if name in taken:
                raise ValueError(f"--peer {name}=...: the name {name!r} is taken")
            taken.add(name)
        if len(self.peers) < len(self.peer):
            raise ValueError("--peer: two of them have the same name")

    @property
    def peers(self) -> dict[str, str]:
        """Name -> command of the other programs."""
        found = {}
        for text in self.peer:
            name, _, command = text.partition("=")
            if not name.strip() or not command.strip():
                raise ValueError(f"--peer must be NAME=COMMAND, not {text!r}")
            found[name.strip()] = command.strip()
        return found

    def asked(self, spec: ModelSpec) -> list[Asked]:
        """The requests for a model, in the order in which they come. Raises ValueError for one that it can't serve."""
        if self.workload is not None:
            found = request_list.read(self.workload)[: QUICK_REQUESTS if self.quick else None]
            request_list.check(found, spec.vocab_size, self.positions(spec, found))
        else:
            count = min(self.requests, QUICK_REQUESTS) if self.quick else self.requests
            found = request_list.drawn(self.dataset, count, self.seed, self.positions(spec, ()), spec.vocab_size)
        return found if self.rate is None else request_list.at_rate(found, self.rate, self.seed)

    def positions(self, spec: ModelSpec, asked: Sequence[Asked]) -> int:
        """What the longest request may have [tokens]."""
        if self.max_model_len is not None:
            if self.max_model_len > spec.max_positions:
                raise ValueError(f"--max-model-len must be at most {spec.max_positions}, the positions of {self.model}, not {self.max_model_len}")
            return self.max_model_len
        if self.workload is not None:
            return min(spec.max_positions, max(2, *(one.length for one in asked)))
        return min(spec.max_positions, 128 if self.quick else 256)

    def blocks(self, asked: Sequence[Asked], max_model_len: int) -> int:
        """Of every pool."""
        if self.num_gpu_blocks_override is not None:
            return self.num_gpu_blocks_override
        blocks = sum(sorted((-(-one.length // self.block_size) for one in asked), reverse=True)[: self.max_num_seqs])
        return max(blocks, step_profile.blocks_for(asked, max_model_len, self.block_size)) if self.profile else blocks


def measure(
    options: Options, result: dict[str, Any], advance: Advance = lambda count: None, begin: Begin = lambda what, total: None,
) -> dict[str, Any]:
    """Everything that was asked for, into ``result``, which holds whatever was measured if somebody interrupts it."""
    path, spec = options.spec()
    asked = options.asked(spec)
    positions = options.positions(spec, asked)
    blocks = options.blocks(asked, positions)
    result |= contest.header(asdict(options) | {"workload": None if options.workload is None else str(options.workload)})
    result["options"] |= {"max_model_len": positions, "num_blocks": blocks}
    with options.open(positions, blocks, options.hf_batch, options.max_num_seqs) as contenders:
        every = contenders | {name: Command(command, path) for name, command in options.peers.items()}
        if options.profile:
            step_profile.check(contenders["paged"], positions)
        part = result["throughput"] = {"at_once": asked[0].time == asked[-1].time}
        try:
            last = contest.race(every, asked, options.num_rounds, part, advance, begin)
            part["same_tokens"] = contest.agreement(every, asked, last)
        finally:
            part["summary"] = contest.summary(part) if part.get("systems") else {}
        if options.profile:
            result["profile"] = {}
            step_profile.measure(contenders["paged"], asked, positions, options.quick, result["profile"], advance, begin)
    result["complete"] = True
    return result


def run(
    options: Options, json_file: Path | None = None, html_file: Path | None = None, load: Path | None = None, profile_file: Path | None = None,
) -> int:
    """Measure (or load what an earlier run wrote), print, and write the files that were asked for. Ctrl-C: what there is; exit code 130."""
    from . import contest_run, throughput_view

    def measured(result: dict[str, Any], advance: Advance, begin: Begin) -> None:
        measure(options, result, advance, begin)

    files = {"--json": json_file, "--html": html_file, "--profile": profile_file}
    return contest_run.run("throughput", options, measured, throughput_view.show, throughput_view.PAGES, files, load)
