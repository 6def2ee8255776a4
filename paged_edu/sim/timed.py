"""TimedScheduler: the project's scheduler, with the run's virtual clock beside it, and with an eye on what requests wait for."""
from __future__ import annotations

from collections.abc import Callable

from ..core.kv_manager import AllocStatus, KVManager
from ..core.plan import SchedulerOutput, StepResult
from ..core.scheduler import Scheduler, SchedulerConfig
from ..core.sequence import Request, Sequence

MEMORY, PLACES, COMPUTE = "memory", "places", "compute"


class TimedScheduler(Scheduler):
    """Schedules exactly as `Scheduler` does. Times are virtual seconds: a step takes what its runner says, and a request moves the clock of an empty
    scheduler to its arrival."""

    def __init__(self, config: SchedulerConfig, manager: KVManager) -> None:
        super().__init__(config, manager)
        self.now = 0.0
        """Start of the step while one is planned, its end while its result is taken in."""
        self.ended: Callable[[Request, float], object] | None = None
        """Called at the end of each request, with its latency [s]."""
        self.busy = 0.0
        """Seconds in steps."""
        self.waited = {MEMORY: 0.0, PLACES: 0.0, COMPUTE: 0.0}
        """Seconds of steps in which the first in line waited, by what it waited for."""
        self.num_preemptions = 0
        self._batches = 0
        self._waits_for: str | None = None

    def add(self, request: Request) -> None:
        self.now = max(self.now, request.arrival_time)
        super().add(request)

    def schedule(self) -> SchedulerOutput:
        output = super().schedule()
        self._waits_for = self._reason(output)
        self._batches += len(self.running)
        self.num_preemptions += len(output.preempted)
        return output

    def update(self, output: SchedulerOutput, result: StepResult) -> list[Sequence]:
        self.now += result.elapsed
        self.busy += result.elapsed
        if self._waits_for is not None:
            self.waited[self._waits_for] += result.elapsed
        grown = super().update(output, result)
        if self.ended is not None:
            done = {seq.request.request_id: seq.request for seq in grown if seq.finish_reason is not None and not seq.request.live}
            for request in done.values():                       # each once: its samples may end together
                self.ended(request, self.now - request.arrival_time)
        return grown

    def clock(self) -> float:
        return self.now

    @property
    def mean_running(self) -> float:
        """Requests in the batch, averaged over steps."""
        return self._batches / max(1, self.step)

    @property
    def binds(self) -> str:
        """What held the run back: "memory" (the first in line waited for blocks), "places" (for ``max_num_seqs``), or "compute": it waited for a step
        with room for its prompt, or hardly anybody waited and the steps themselves were slow."""
        reason = max(self.waited, key=self.waited.__getitem__)
        return reason if self.waited[reason] >= _HARDLY * self.busy else COMPUTE

    def _reason(self, output: SchedulerOutput) -> str | None:
        """Why the first in line did not start in this step; None: nobody waits."""
        if not self.waiting:
            return None
        first = self.waiting[0]
        if not output.preempted and self.num_running_seqs + first.places > self.config.max_num_seqs:
            return PLACES
        return MEMORY if output.preempted or self.manager.status(first) is not AllocStatus.OK else COMPUTE


_HARDLY = 0.1
"""Share of the time in steps below which waiting does not count."""
