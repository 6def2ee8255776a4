"""`paged-edu bench latency`: one batch of equal requests, token by token, on this engine and on transformers.

How long until everybody has a first token (prefill), and how long each further token of the batch takes: what one person waits for at batch 1.
Rounds are in turns, as in `bench throughput` (`contest`).
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ..checks import integer
from ..words import counted
from . import contest
from .contenders import Advance
from .contest import Begin, Setting
from .memory_view import new_table
from .request_list import Asked
from .step_profile_view import ms
from .throughput_view import name_of, ran, rate, sentences

LARGEST_BATCH = 4096
QUICK_OUTPUT = 24


@dataclass(frozen=True, kw_only=True)
class Options(Setting):
    """What to measure. Raises ValueError with the value and its limits."""

    batch: str = "1"
    """Requests of a batch; several numbers with commas between them are measured one after the other."""
    input_len: int = 32
    output_len: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        self.check()
        _ = self.batches
        integer("--input-len", self.input_len, 1, 2**20)
        integer("--output-len", self.output_len, 2, 2**20)
        integer("--seed", self.seed, 0, 2**32)

    @property
    def batches(self) -> tuple[int, ...]:
        found = []
        for text in self.batch.split(","):
            if not text.strip().isdecimal():
                raise ValueError(f"--batch must be whole numbers with commas between them, not {self.batch!r}")
            integer("--batch", int(text), 1, LARGEST_BATCH)
            found.append(int(text))
        return tuple(dict.fromkeys(found))

    @property
    def num_output(self) -> int:
        """Tokens to write: fewer in a quick run."""
        return min(self.output_len, QUICK_OUTPUT) if self.quick else self.output_len

    def asked(self, batch: int, vocab_size: int) -> list[Asked]:
        """The requests: as long as each other, with different random prompts."""
        import numpy as np

        ids = (np.random.default_rng(self.seed).random((batch, self.input_len)) * vocab_size).astype(int).tolist()
        return [Asked(tuple(prompt), self.num_output) for prompt in ids]


def measure(
    options: Options, result: dict[str, Any], advance: Advance = lambda count: None, begin: Begin = lambda what, total: None,
) -> dict[str, Any]:
    """Every batch, into ``result``, which holds whatever was measured if somebody interrupts it."""
    _, spec = options.spec()
    length, largest = options.input_len + options.num_output, max(options.batches)
    if length > spec.max_positions:
        raise ValueError(f"--input-len {options.input_len} and {options.num_output} tokens of output are {length}, and {options.model} has positions "
                         f"for {spec.max_positions}")
    result |= contest.header(asdict(options) | {"output_len": options.num_output})
    part = result["latency"] = {"batches": {}, "summary": {}}
    with options.open(length, largest * -(-length // options.block_size), max_num_seqs=largest) as contenders:
        for batch in options.batches:
            asked, own = options.asked(batch, spec.vocab_size), part["batches"].setdefault(str(batch), {})
            try:
                last = contest.race(contenders, asked, options.num_rounds, own, advance, _named(begin, batch))
                own["same_tokens"] = contest.agreement(contenders, asked, last)
            finally:
                own["summary"] = contest.summary(own) if own.get("systems") else {}
                if own["summary"]:
                    part["summary"][str(batch)] = own["summary"]
    result["complete"] = True
    return result


def _named(begin: Begin, batch: int) -> Begin:
    return lambda what, total: begin(f"batch {batch}, {what}", total)


def run(options: Options, json_file: Path | None = None, html_file: Path | None = None, load: Path | None = None) -> int:
    """Measure (or load what an earlier run wrote), print, and write the files that were asked for. Ctrl-C: what there is; exit code 130."""
    from . import contest_run, page

    def measured(result: dict[str, Any], advance: Advance, begin: Begin) -> None:
        measure(options, result, advance, begin)

    files = {"--json": json_file, "--html": html_file}
    return contest_run.run("latency", options, measured, show, {"--html": page.write_latency}, files, load)


# -- as a person reads it --------------------------------------------------------------------------------------------------------------
def title(result: Mapping[str, Any]) -> str:
    """What was served."""
    options = result["options"]
    return f"{options['model']}: prompts of {counted(options['input_len'], 'token')}, {counted(options['output_len'], 'token')} to write each"


def show(result: dict[str, Any], console: Console) -> None:
    """Print what was measured, in 80 columns."""
    part = result["latency"]
    measured = [own for own in part["batches"].values() if own.get("summary")]
    console.print(title(result), style="bold", markup=False)
    console.print(ran(result, measured), style="dim", markup=False)
    tables(result, console)
    for batch, own in part["batches"].items():
        for line in sentences(own) if own.get("summary") else ():
            console.print(f"Batch {batch}: {line}", markup=False)
    if not result["complete"]:
        console.print("This run was interrupted: what is above is all that had been measured.", style="bold", markup=False)


def tables(result: Mapping[str, Any], console: Console) -> None:
    """Prefill, tokens and speed of every batch."""
    summaries = result["latency"]["summary"]
    first = name_of(next(iter(next(iter(summaries.values())))))
    table = new_table("prefill\nms", "a token\np50, ms", "\np90", "\np99", "tokens/s", f"speed of\n{first}\nover this")
    for batch, found in summaries.items():
        table.add_row(f"batch {batch}", style="dim")
        for name, its in found.items():
            steps, ratio = its["step_s"], its.get("first_against_it")
            table.add_row(
                f"  {name_of(name)}", ms(its["prefill_s"]["median"]), *(ms(steps[f"p{p}"]) for p in contest.POINTS),
                rate(its["tokens_per_s"]["median"]), f"{ratio['ratio']:.2f}" if ratio else "")
    console.print(table)
