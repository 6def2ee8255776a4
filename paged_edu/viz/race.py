"""Race: policies and KV managers on the same requests in the same memory, and a leaderboard of how long everybody took (lesson 13).

The engine is the real one with `FakeRunner` in place of a model, so a step costs nothing and every token is known beforehand: whoever loses or
mixes up a token is disqualified, however fast it was.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from html import escape
from random import Random
from statistics import fmean
from typing import Any

from ..checks import one_of
from ..core.plan import SchedulerOutput
from ..core.sequence import Request
from ..engine.fake_runner import expected_tokens
from .fake_engine import FakeEngine, trace24

NUM_SLOTS = 384
"""24 blocks of 16."""
MOST_STEPS = 20_000
"""A race that is not over by then never will be."""


class DisqualifiedError(Exception):
    """Somebody was lost, or got other tokens than its own."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A request of a workload."""

    step: int
    """The step before which it arrives; the first one is 1."""
    prompt: int
    output: int


@cache
def workload(name: str) -> tuple[Entry, ...]:
    """The requests of a race, in order of arrival: "trace24", all in step 1, or "hidden", of which one should know only that they keep coming."""
    one_of("on", name, ("trace24", "hidden"))
    if name == "trace24":
        return tuple(Entry(1, prompt, output) for prompt, output in trace24().requests)
    random = Random("not for the eyes of who races")
    entries, step = [], 1.0
    for _ in range(120):
        step += random.expovariate(0.3)
        if random.random() < 0.12:
            entries.append(Entry(int(step), random.randint(90, 180), random.randint(20, 50)))
        else:
            entries.append(Entry(int(step), random.choice((1, 2, 3, 5, 8, 13, 21)), random.randint(4, 60)))
    return tuple(entries)


@dataclass(frozen=True, slots=True)
class Result:
    """What a race came to, in steps."""

    name: str
    steps: int
    took: tuple[int, ...]
    """For each request, in order of arrival, the steps from its arrival to its last token, both counted."""
    waits: tuple[int, ...]
    """For each request, the steps in which it held no place: before it began, and after it had stepped back."""
    preemptions: int
    recomputed: int
    """Tokens of those who stepped back that ran again: all that they had, the newest one included."""

    @property
    def mean(self) -> float:
        return fmean(self.took)

    @property
    def p99(self) -> int:
        """Within that many steps 99 % of the requests have ended (of 24 requests: all)."""
        return sorted(self.took)[-(-99 * len(self.took) // 100) - 1]

    @property
    def largest_wait(self) -> int:
        return max(self.waits)


def engine(policy: Any = None, kv_manager: str | type = "paged", block_size: int = 16) -> FakeEngine:
    """The engine of a race: `FakeEngine` with the tour's limits and 384 slots, 24 blocks of 16."""
    trace = trace24()
    return FakeEngine(NUM_SLOTS // block_size, block_size, trace.max_model_len, trace.max_num_batched_tokens, kv_manager, policy=policy)


def race(
    policy: Any = None, *, kv_manager: str | type = "paged", block_size: int = 16, on: str = "trace24", name: str | None = None,
) -> Result:
    """Serve the requests of the workload ``on`` under ``policy``, an object as `LLM` takes it (None: first come, first served).

    Raises `DisqualifiedError` if a request is lost, gets a wrong token, or never ends; what the policy itself does wrong comes out as it is.
    """
    server = engine(policy, kv_manager, block_size)
    label = name or (type(policy).__name__ if policy is not None else "first come, first served")
    return Run(server, workload(on)).result(label)


class Run:
    """A workload on its way through an engine, step by step."""

    def __init__(self, server: FakeEngine, entries: Iterable[Entry], listen: Callable[[SchedulerOutput], object] | None = None) -> None:
        self.server, self.coming, self.listen = server, list(entries), listen
        self.made: list[Request] = []
        self.arrived: dict[str, int] = {}
        self.took: dict[str, int] = {}
        self.waits: dict[str, int] = {}
        self.preemptions = self.recomputed = 0

    def arrive(self) -> None:
        """Queue those who arrive before the next step."""
        while len(self.made) < len(self.coming) and self.coming[len(self.made)].step <= self.server.scheduler.step + 1:
            entry = self.coming[len(self.made)]
            self.add(entry.prompt, entry.output)

    def add(self, prompt: int, output: int, n: int = 1) -> Request:
        """Queue a request now."""
        number = len(self.made)
        ids = tuple((31 * number + 7 * k) % self.server.runner.vocab_size for k in range(prompt))
        request = Request(str(number), ids, max_tokens=output, n=n)
        self.server.scheduler.add(request)
        self.made.append(request)
        self.arrived[request.request_id] = self.server.scheduler.step + 1
        self.waits[request.request_id] = 0
        return request

    def step(self) -> SchedulerOutput:
        """One step, with whoever arrives before it."""
        self.arrive()
        scheduler = self.server.scheduler
        had = {request_id: sum(seq.num_tokens for seq in request.live) for request_id, request in scheduler.requests.items()}
        output = self.server.step()
        self.preemptions += len(output.preempted)
        self.recomputed += sum(had[request_id] for request_id in output.preempted)
        for request in scheduler.waiting:
            self.waits[request.request_id] += 1
        for request_id in had.keys() - scheduler.requests.keys():
            self.took[request_id] = output.step - self.arrived[request_id] + 1
        if self.listen is not None:
            self.listen(output)
        return output

    def check(self) -> None:
        """Raise `DisqualifiedError` unless every request has ended with all of its own tokens, and every block is free again."""
        for request in self.made:
            if not request.finished:
                raise DisqualifiedError(f"request {request.request_id} never ended")
            for seq in request.sequences:
                got = seq.output_token_ids
                count = len(got) if seq.finish_reason == "abort" or seq.stop_reason == "kv_pool" else request.max_tokens
                if got != expected_tokens(request.prompt_token_ids, count, self.server.runner.vocab_size, seq.branch):
                    raise DisqualifiedError(f"request {request.request_id} got {len(got)} tokens, and not the {count} that are its own")
        report = self.server.scheduler.manager.report()
        if report.external < report.total:
            raise DisqualifiedError(f"everybody has ended, and {report.total - report.external} slots are still taken")

    def result(self, name: str) -> Result:
        """Run to the end."""
        while len(self.made) < len(self.coming) or self.server.has_unfinished_requests():
            self.step()
            if self.server.scheduler.step >= MOST_STEPS:
                raise DisqualifiedError(f"after {MOST_STEPS:,} steps {len(self.made) - len(self.took)} requests have not ended")
        self.check()
        ids = [request.request_id for request in self.made]
        return Result(
            name, self.server.scheduler.step, tuple(self.took[i] for i in ids), tuple(self.waits[i] for i in ids), self.preemptions, self.recomputed,
        )


class Leaderboard:
    """Results in a table, the best mean first. In every column the best value has a mark, for nobody need be best in all."""

    columns: Mapping[str, Callable[[Result], float]] = {
        "mean": lambda r: r.mean, "p99": lambda r: r.p99, "steps": lambda r: r.steps, "recomputed": lambda r: r.recomputed,
        "largest wait": lambda r: r.largest_wait,
    }

    def __init__(self, results: Iterable[Result], title: str = "") -> None:
        self.title = title
        self.results = sorted(results, key=lambda result: result.mean)

    def rows(self) -> list[list[str]]:
        """Name and values as they are shown; "*" marks the best of a column."""
        best = {name: min(map(value, self.results), default=0) for name, value in self.columns.items()}
        return [
            [result.name, *(
                f"{value(result):.1f}" * (name == "mean") + f"{value(result):,}" * (name != "mean") + ("*" if value(result) == best[name] else " ")
                for name, value in self.columns.items()
            )] for result in self.results
        ]

    def __str__(self) -> str:
        rows = [[self.title or "in steps", *(f"{name} " for name in self.columns)], *self.rows()]
        wide = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        return "\n".join("  ".join([row[0].ljust(wide[0]), *(cell.rjust(w) for cell, w in zip(row[1:], wide[1:]))]).rstrip() for row in rows)

    __repr__ = __str__

    def html(self) -> str:
        right = 'style="text-align:right;padding:0 .6em"'
        head = "".join(f'<th scope="col" {right}>{escape(name)}</th>' for name in self.columns)
        body = "".join(
            f'<tr><th scope="row" style="text-align:left">{escape(row[0])}</th>'
            + "".join(
                f'<td {right}>{f"<strong>{cell[:-1]} ✓</strong>" if cell.endswith("*") else cell}</td>' for cell in row[1:]
            ) + "</tr>" for row in self.rows()
        )
        caption = f'<caption style="text-align:left;font-weight:600">{escape(self.title)}</caption>' if self.title else ""
        return f"<table>{caption}<thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Mapping[str, object]:
        return {"text/html": self.html(), "text/plain": str(self)}


class Boards:
    """Several leaderboards as one value, one below the other."""

    def __init__(self, boards: Iterable[Leaderboard]) -> None:
        self.boards = tuple(boards)

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.boards))

    __repr__ = __str__

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Mapping[str, object]:
        return {"text/html": "".join(board.html() for board in self.boards), "text/plain": str(self)}
