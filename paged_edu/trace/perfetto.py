"""A run as a timeline for Perfetto (ui.perfetto.dev) or chrome://tracing: who waited, who ran, who stepped back, and when.

`PerfettoTrace` listens to a scheduler's events and writes the Trace Event Format as they come, so its memory does not grow with the run. Events say
*what* happened, not *when*: an `EventLog`, saved or not, has no times, so a timeline is written while the run runs, with a clock beside it (the
engine's own, or the virtual one of `paged_edu.sim`).

One process holds the steps and the counters, another the requests, a track for each: a span from arrival to end, and in it what it did. Spans on a
track nest and never overlap, which is all that Perfetto supports of this format.
"""
from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from ..core import events as ev
from ..core.kv_manager import KVManager
from ..core.paged import PagedKVManager
from ..core.scheduler import Scheduler
from ..core.sequence import Status

ENGINE, REQUESTS = 1, 2
"""Numbers of the two processes."""
MOST_BYTES = 200 * 2**20
"""Of a file; browsers read larger ones badly or not at all."""


@dataclass(slots=True)
class _Lane:
    """A request that has not ended."""

    track: int
    state: str
    since: int
    """Microseconds."""
    num_prompt_tokens: int
    num_output_tokens: int = 0
    num_preemptions: int = 0


class PerfettoTrace:
    """A listener that writes a timeline to ``path``::

        engine = llm.engine
        with PerfettoTrace("run.json", engine.scheduler, engine.clock) as trace:
            stop = engine.listen(trace)
            ...
            stop()

    ``clock`` gives seconds, and never goes back; it must be the one by which requests arrive (``Request.arrival_time``). The file appears, whole,
    when the ``with`` block ends; if an error ends it, nothing is left behind. A file of more than ``most_bytes`` would be of no use: what comes
    after that is left out, but for the ends of what has begun, and ``cut_at`` says from when on. Raises OSError where the file cannot be written."""

    def __init__(self, path: str | os.PathLike[str], scheduler: Scheduler, clock: Callable[[], float], most_bytes: int = MOST_BYTES) -> None:
        self.path = Path(os.path.realpath(path))                    # a link stays a link
        self.scheduler, self.clock, self.most_bytes = scheduler, clock, most_bytes
        self.cut_at: float | None = None
        """When the file was full [s]; None: everything is in it."""
        self.num_bytes = 0
        self._lanes: dict[str, _Lane] = {}
        self._num_tracks = 0
        self._step: dict[str, Any] | None = None
        """The step that has begun, without its duration."""
        self._preempted: list[str] = []
        self._last: dict[str, dict[str, int]] = {}
        self._part = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        self._file = self._part.open("w", encoding="utf-8")

    # -- the file ------------------------------------------------------------------------------------------------------------------
    def __enter__(self) -> PerfettoTrace:
        try:
            self._write_text('{"displayTimeUnit":"ms","traceEvents":[\n')
            for process, name in ((ENGINE, "engine"), (REQUESTS, "requests")):
                self._put("M", "process_name", process, 0, None, args={"name": name})
                self._put("M", "process_sort_index", process, 0, None, args={"sort_index": process})
            self._put("M", "thread_name", ENGINE, 0, None, args={"name": "steps"})
            now = self._now()
            for request_id, request in self.scheduler.requests.items():             # those that were there already
                self._open(request_id, str(request.status), len(request.prompt_token_ids), now)
        except BaseException:
            self._drop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self._drop()
            return
        try:
            now = self._now()
            self._end_step()
            for request_id in list(self._lanes):
                self._close(request_id, now, "not finished")
            if self.cut_at is not None:
                self._put("i", f"cut: the file has {self.num_bytes / 2**20:.0f} MiB", ENGINE, 0, _micro(self.cut_at), always=True, s="g")
            self._put("M", "process_labels", ENGINE, 0, None, last=True, always=True, args={"labels": f"{self._num_tracks} requests"})
            self._write_text("]}\n")
            self._file.close()
            os.replace(self._part, self.path)
        except BaseException:
            self._drop()
            raise

    def _drop(self) -> None:
        try:
            self._file.close()
        finally:
            self._part.unlink(missing_ok=True)

    def _write_text(self, text: str) -> None:
        self._file.write(text)
        self.num_bytes += len(text)                                 # all ASCII: json escapes the rest

    def _put(
        self, phase: str, name: str, process: int, track: int, at: int | None, always: bool = False, last: bool = False, **fields: Any,
    ) -> None:
        if self.num_bytes > self.most_bytes:
            if self.cut_at is None:
                self.cut_at = self.clock()
            if not always:
                return
        event: dict[str, Any] = {"ph": phase, "name": name, "pid": process, "tid": track}
        if at is not None:
            event["ts"] = at
        self._write_text(json.dumps(event | fields, separators=(",", ":")) + ("\n" if last else ",\n"))

    def _now(self) -> int:
        return _micro(self.clock())

    # -- the run -------------------------------------------------------------------------------------------------------------------
    def __call__(self, event: ev.Event) -> None:
        match event:
            case ev.TokensWritten():
                self._stepped()
            case ev.TokensSampled(seq_id, token_ids):
                self._stepped()
                seq = self.scheduler.sequences.get(seq_id)
                if seq is not None and seq.request.request_id in self._lanes:
                    self._lanes[seq.request.request_id].num_output_tokens += len(token_ids)
            case ev.StepStarted(step):
                self._end_step()
                now = self._now()
                self._step, self._preempted = {"step": step, "start": now, "end": now, "args": {}}, []
            case ev.StepScheduled(step, tokens):
                self._scheduled(step, tokens)
            case ev.RequestAdded(request_id, _, prompt, _):
                self._open(request_id, Status.WAITING, len(prompt), min(self._now(), _micro(self.scheduler.requests[request_id].arrival_time)))
            case ev.RequestAdmitted(request_id):
                self._turn(request_id, Status.RUNNING, self._now())
            case ev.RequestPreempted(request_id, _, mode):
                self._preempted.append(request_id)
                if request_id in self._lanes:
                    self._lanes[request_id].num_preemptions += 1
                self._turn(request_id, Status.SWAPPED if mode == "swap" else Status.PREEMPTED, self._now())
            case ev.SequenceFinished(request_id, _, reason):
                if request_id not in self.scheduler.requests or not self.scheduler.requests[request_id].live:
                    self._close(request_id, self._now(), reason)
            case ev.Recovered():
                self._recovered()

    def _stepped(self) -> None:
        """Something came out of the step: it has taken until now at least."""
        if self._step is not None:
            self._step["end"] = self._now()

    def _scheduled(self, step: int, tokens: dict[int, int]) -> None:
        sequences, count = len(tokens), sum(tokens.values())
        if self._step is None:                                      # listening began in the middle of a step
            return
        self._step["name"] = f"step {step}: {sequences} sequence{'s' * (sequences != 1)}, {count} token{'s' * (count != 1)}"
        self._step["args"] = {"scheduled tokens": count, "preempted": self._preempted} if self._preempted else {"scheduled tokens": count}
        at, free = self._step["start"], _free_blocks(self.scheduler.manager)
        self._count("blocks", at, {"in use": self.scheduler.manager.num_blocks - free, "free": free})
        self._count("requests", at, {"running": len(self.scheduler.running), "waiting": len(self.scheduler.waiting)})

    def _count(self, name: str, at: int, values: dict[str, int]) -> None:
        if self._last.get(name) != values:
            self._last[name] = values
            self._put("C", name, ENGINE, 0, at, args=values)

    def _end_step(self) -> None:
        step, self._step = self._step, None
        if step is not None and step["end"] > step["start"]:
            self._put("X", step.get("name", f"step {step['step']}: interrupted"), ENGINE, 0, step["start"], dur=step["end"] - step["start"],
                      args=step["args"])

    # -- the requests --------------------------------------------------------------------------------------------------------------
    def _open(self, request_id: str, state: str, num_prompt_tokens: int, at: int) -> None:
        self._num_tracks += 1
        self._put("M", "thread_name", REQUESTS, self._num_tracks, None, args={"name": f"request {request_id}"})
        self._put("M", "thread_sort_index", REQUESTS, self._num_tracks, None, args={"sort_index": self._num_tracks})
        if self.cut_at is None:                                     # what has no beginning in the file gets no end either
            self._lanes[request_id] = _Lane(self._num_tracks, state, at, num_prompt_tokens)
            self._put("B", f"request {request_id}", REQUESTS, self._num_tracks, at, always=True, args={"prompt tokens": num_prompt_tokens})

    def _turn(self, request_id: str, state: str, at: int) -> None:
        """From one state to the next."""
        lane = self._lanes.get(request_id)
        if lane is None:
            return
        if at > lane.since:
            self._put("X", str(lane.state), REQUESTS, lane.track, lane.since, always=True, dur=at - lane.since)
        lane.state, lane.since = state, at

    def _close(self, request_id: str, at: int, reason: str) -> None:
        self._turn(request_id, "", at)
        lane = self._lanes.pop(request_id, None)
        if lane is not None:
            args = {"output tokens": lane.num_output_tokens, "preemptions": lane.num_preemptions, "ended by": reason}
            self._put("E", f"request {request_id}", REQUESTS, lane.track, at, always=True, args=args)

    def _recovered(self) -> None:
        """An interrupted step has not happened; who is not there any more had ended in it."""
        now = self._now()
        self._step = None
        for request_id in list(self._lanes):
            request = self.scheduler.requests.get(request_id)
            if request is None:
                self._close(request_id, now, "interrupted")
            elif self._lanes[request_id].state != str(request.status):
                self._turn(request_id, str(request.status), now)


def _free_blocks(manager: KVManager) -> int:
    """Blocks that nobody uses, cached ones included. A report would count every slot."""
    if isinstance(manager, PagedKVManager):
        return manager.pool.num_free + manager.pool.num_cached
    return manager.num_blocks - manager.report().num_used_blocks


def _micro(seconds: float) -> int:
    """The format counts microseconds; whole ones, so that spans add up."""
    return round(seconds * 1e6)
