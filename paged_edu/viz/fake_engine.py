"""FakeEngine: the real scheduler and a real memory manager around `FakeRunner`, for pictures and measurements that need no words.

It steps like the engine that serves a model, so a view draws either; and `trace24` runs the course's one trace through it.
"""
from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from ..checks import one_of
from ..config import CONTIGUOUS
from ..core.contiguous import ContiguousKVManager
from ..core.events import Event
from ..core.kv_manager import KVManager
from ..core.limits import SchedulerConfig
from ..core.paged import PagedKVManager
from ..core.plan import SchedulerOutput
from ..core.sequence import Request
from ..engine.choosing import build_scheduler
from ..engine.fake_runner import FakeRunner
from ..engine.own_manager import check_manager
from ..sampling.params import SamplingParams


class FakeEngine:
    """One step a call, one invented token a caught-up sequence. Whoever listens gets every event.

    ``kv_manager`` and ``policy`` are those of `EngineConfig`, and so are the limits; host memory and the prefix cache are the paged manager's.
    """

    def __init__(
        self, num_blocks: int, block_size: int = 16, max_model_len: int = 256, max_num_batched_tokens: int = 4096,
        kv_manager: str | type = "paged", *, max_num_seqs: int = 256, num_cpu_blocks: int = 0, prefix_caching: bool = False,
        preemption_mode: str = "auto", policy: Any = None,
    ) -> None:
        manager: KVManager
        if isinstance(kv_manager, type):
            manager = kv_manager(num_blocks, block_size, max_model_len)
            check_manager(manager)
        elif kv_manager == "paged":
            manager = PagedKVManager(num_blocks, block_size, prefix_caching=prefix_caching, num_cpu_blocks=num_cpu_blocks)
        else:
            one_of("kv_manager", kv_manager, ("paged", *CONTIGUOUS))
            manager = ContiguousKVManager(num_blocks, block_size, CONTIGUOUS[kv_manager], max_model_len)
        config = SchedulerConfig(
            max_model_len=max_model_len, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens, preemption_mode=preemption_mode,
        )
        self.scheduler = build_scheduler(config, manager, policy)
        self.runner = FakeRunner(num_blocks, block_size, num_cpu_blocks=num_cpu_blocks)
        self.last_output: SchedulerOutput | None = None
        self._listeners: list[Callable[[Event], object]] = []
        self._num_added = 0

    def _emit(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)

    def listen(self, listener: Callable[[Event], object]) -> Callable[[], None]:
        """Call ``listener`` with every event from now on; the function that comes back ends that."""
        self._listeners.append(listener)
        self.scheduler.emit = self.scheduler.manager.emit = self._emit      # not before: with no listener the core pays one ``if`` an event
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def add(self, lengths: Iterable[tuple[int, int]], n: int = 1) -> None:
        """Queue one request of ``n`` samples for each (prompt tokens, output tokens)."""
        for prompt, output in lengths:
            i = self._num_added
            ids = tuple((31 * i + 7 * k) % self.runner.vocab_size for k in range(prompt))   # different ones for different requests
            self.scheduler.add(Request(str(i), ids, max_tokens=output, n=n))
            self._num_added += 1

    def prepare(self, request_id: str, prompt: str | Sequence[int], params: SamplingParams) -> Request:
        """Check a request like `Engine.prepare`; only ``max_tokens`` and ``n`` of ``params`` mean something here."""
        if isinstance(prompt, str):
            raise ValueError(f"the prompt is {prompt!r}, and this engine has no tokenizer: give token ids")
        request = Request(request_id, tuple(prompt), max_tokens=params.max_tokens, n=params.n)
        self.scheduler.check(request)
        return request

    def queue(self, request: Request) -> None:
        """Queue what `prepare` has checked."""
        self.scheduler.add(request)

    def abort_request(self, request_id: str) -> None:
        """End a request in whatever state it is."""
        self.scheduler.abort(request_id)

    def step(self) -> SchedulerOutput:
        """Schedule, "compute", take the tokens in."""
        self.last_output = self.scheduler.schedule()
        self.scheduler.update(self.last_output, self.runner.execute(self.last_output))
        return self.last_output

    def has_unfinished_requests(self) -> bool:
        return self.scheduler.has_unfinished()


@dataclass(frozen=True, slots=True)
class Trace24:
    """The course's one trace: 24 requests that arrive together, and the memory that they share."""

    num_blocks: int
    block_size: int
    max_model_len: int
    max_num_batched_tokens: int
    requests: tuple[tuple[int, int], ...]
    """(prompt tokens, output tokens) of each request, in order of arrival."""

    @property
    def num_slots(self) -> int:
        return self.num_blocks * self.block_size

    def engine(self, kv_manager: str | type = "paged") -> FakeEngine:
        """An engine in which the 24 requests wait for their first step; ``kv_manager`` is that of `FakeEngine`."""
        engine = FakeEngine(self.num_blocks, self.block_size, self.max_model_len, self.max_num_batched_tokens, kv_manager)
        engine.add(self.requests)
        return engine


def trace24() -> Trace24:
    """TRACE24, from the package's data."""
    stored = json.loads(files("paged_edu.data").joinpath("trace24.json").read_text(encoding="utf-8"))
    names = ("num_blocks", "block_size", "max_model_len", "max_num_batched_tokens")
    return Trace24(**{name: stored[name] for name in names}, requests=tuple((p, o) for p, o in stored["requests"]))
