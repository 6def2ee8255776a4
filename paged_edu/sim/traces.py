"""Requests out of a recorded trace: CSV files with the columns of Azure's public LLM inference traces.

A row is a request: ``TIMESTAMP`` (ISO 8601; theirs have seven fractional digits), ``ContextTokens`` (its prompt) and ``GeneratedTokens``. What a
trace holds and a run cannot serve is left out, counted, and told.
"""
from __future__ import annotations

import csv
import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TextIO

from ..checks import integer, number
from ..words import counted
from .workload import Arrival

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOST_ROWS = 5_000_000
"""Requests that are read from one file: some 120 MB while reading. ``limit_seconds`` takes a part of a longer one."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The requests of a file, in order of time; the first row is at 0 s."""

    arrivals: list[Arrival]
    seconds: float
    """From the first row to the last one that was taken, at the speed of ``arrivals``."""
    num_rows: int
    """Requests of the file, those beyond ``limit_seconds`` not counted."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Requests that were left out, by the reason; no entry where there were none."""

    @property
    def rate(self) -> float:
        """Requests a second that a run serves. Raises ValueError where all come at the same moment, or none does."""
        if not self.arrivals or self.seconds <= 0:
            raise ValueError(f"{counted(len(self.arrivals), 'request')} in {self.seconds:g} s: that is no rate; a trace needs two moments at least")
        return len(self.arrivals) / self.seconds

    def at_rate(self, rate: float) -> list[Arrival]:
        """The same requests, played so fast that ``rate`` of them come a second on average."""
        number("rate", rate, 0, low_open=True)
        return _faster(self.arrivals, rate / self.rate)


def read_trace(path: str | os.PathLike[str], max_model_len: int, limit_seconds: float | None = None, rate_scale: float = 1.0) -> Trace:
    """Read a trace for a model with ``max_model_len`` positions.

    ``limit_seconds``: only that much of it, from its first request on, in its own time. ``rate_scale``: how many times as fast it is played (2:
    gaps are half as long). Rows may be in any order, columns too; others are ignored. Left out and counted in ``Trace.skipped``: requests without
    a prompt, without an answer, and those of more than ``max_model_len`` tokens. The file is read once, row by row; only times and lengths are
    kept.

    Raises ValueError for a missing column or a row that cannot be read, with file, line and value; OSError if there is no such file.
    """
    integer("max_model_len", max_model_len, 2)
    number("rate_scale", rate_scale, 0, low_open=True)
    if limit_seconds is not None:
        number("limit_seconds", limit_seconds, 0, low_open=True)
    times, sizes = array("d"), (array("q"), array("q"))
    first = float("inf")
    with open(path, encoding="utf-8-sig", newline="") as file:      # Python's own universal newlines would break quoted fields
        for time, prompt, output in _rows(file, path):
            first = min(first, time)
            if limit_seconds is not None and time - first > limit_seconds:
                continue                                            # an earlier first row would leave it out all the more
            if len(times) == MOST_ROWS:
                raise ValueError(f"{path}: more than {MOST_ROWS:,} requests; take a part of it (--seconds)")
            times.append(time)
            sizes[0].append(prompt)
            sizes[1].append(output)
    order = sorted(range(len(times)), key=times.__getitem__)
    if limit_seconds is not None:
        order = [i for i in order if times[i] - first <= limit_seconds]
    skipped: dict[str, int] = {}
    arrivals = []
    for i in order:
        reason = _unserved(sizes[0][i], sizes[1][i], max_model_len)
        if reason is None:
            arrivals.append(Arrival((times[i] - first), sizes[0][i], sizes[1][i]))
        else:
            skipped[reason] = skipped.get(reason, 0) + 1
    seconds = (times[order[-1]] - first) / rate_scale if order else 0.0
    return Trace(_faster(arrivals, rate_scale), seconds, len(order), skipped)


def _faster(arrivals: Sequence[Arrival], scale: float) -> list[Arrival]:
    return [replace(arrival, time=arrival.time / scale) for arrival in arrivals]


def _unserved(prompt: int, output: int, max_model_len: int) -> str | None:
    if prompt == 0:
        return "no prompt"
    if output == 0:
        return "no answer"
    if prompt + output > max_model_len:
        return f"longer than {max_model_len:,} tokens"
    return None


def _rows(file: TextIO, path: str | os.PathLike[str]) -> Iterator[tuple[float, int, int]]:
    """(seconds, prompt tokens, output tokens) of each row, in the order of the file."""
    reader = csv.reader(file, strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        missing = [name for name in COLUMNS if name not in header]
        if missing:
            raise ValueError(f"{path}: no column {' and no column '.join(missing)}; its first line has to name {', '.join(COLUMNS)}")
        when, prompt, output = (header.index(name) for name in COLUMNS)
        for row in reader:
            if not row:
                continue                                            # an empty line
            where = f"{path}, line {reader.line_num}"
            if len(row) < len(header):
                raise ValueError(f"{where}: {len(row)} of {len(header)} columns")
            yield _seconds(row[when], where), _tokens(row[prompt], COLUMNS[1], where), _tokens(row[output], COLUMNS[2], where)
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}, after line {reader.line_num}: not UTF-8 text ({error.reason})") from None


def _seconds(value: str, where: str) -> float:
    try:
        time = datetime.fromisoformat(value.strip())
    except ValueError:
        raise ValueError(f"{where}: {COLUMNS[0]} must be a time such as 2023-11-16 18:15:46.6805900, not {value!r}") from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _tokens(value: str, name: str, where: str) -> int:
    text = value.strip()
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError(f"{where}: {name} must be a whole number of tokens, 0 or more, not {value!r}")
    return int(text)
