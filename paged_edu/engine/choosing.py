"""ChoosingScheduler: the scheduler, asking an object of yours for its two choices: who of the waiting comes first, and who steps back (Paper §4.5).

A built-in policy is a fixed key (`core.policy`), and both queues are sorted by it. Here a policy is asked each time, so it may look at how long
somebody has waited. It chooses among the legal steps and changes nothing else: blocks are given wholly or not at all, the budget holds, nobody is
admitted in a step in which somebody stepped back. A choice that is not legal raises `ChoiceError`, and every request is still there.
"""
from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Protocol

from ..checks import own_class
from ..core import events
from ..core.kv_manager import KVManager
from ..core.limits import SchedulerConfig
from ..core.plan import Copy, SchedulerOutput
from ..core.policy import Policy
from ..core.scheduler import Scheduler, _Step
from ..core.sequence import Request, Status


class ChoiceError(ValueError):
    """A policy chose what it may not choose; the message names the method, what it returned and what was wanted."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a policy may know of a request. How long the answer will be is not known: ``max_tokens`` is only the most."""

    request_id: str
    arrival: int
    """Place in the order of arrival: 0, 1, 2, ..."""
    prompt_tokens: int
    output_tokens: int
    """Tokens of the answer so far. Whoever stepped back has some, and they will be computed again together with the prompt."""
    max_tokens: int
    waited: int
    """Steps for which it has been waiting; 0 for the running ones."""
    blocks: int
    """Blocks that it holds, and would give back."""
    preemptions: int
    """How often it has stepped back."""
    priority: int = 0


class Chooser(Protocol):
    """A policy of one's own."""

    def order(self, waiting: list[Candidate]) -> Seq[Candidate]:
        """All of ``waiting``, who shall start first at the head. The scheduler admits from the head as long as there is room; nobody is skipped."""
        ...

    def victim(self, running: list[Candidate]) -> Candidate:
        """Somebody needs a block and there is none: the one of ``running`` (in order of arrival) that gives back all of its blocks."""
        ...


class _Arrival:
    """The order in which queues are kept; who comes first is asked for when it matters."""

    def key(self, request: Request) -> tuple[float, ...]:
        return (request.arrival_index,)


def build_scheduler(config: SchedulerConfig, manager: KVManager, policy: Any = None) -> Scheduler:
    """The scheduler for ``policy``: None, an object with ``key`` as in `core.policy`, or one with ``order`` and ``victim`` as `Chooser`."""
    if policy is None or (callable(getattr(policy, "key", None)) and not hasattr(policy, "order")):
        own: Policy | None = policy
        return Scheduler(config, manager, own)
    return ChoosingScheduler(config, manager, policy)


class ChoosingScheduler(Scheduler):
    """A `Scheduler` that asks a `Chooser`. Raises TypeError, naming the method, for an object that is none."""

    def __init__(self, config: SchedulerConfig, manager: KVManager, chooser: Chooser, emit: events.Emit | None = None) -> None:
        own_class("policy", chooser, ("order", "victim"))
        super().__init__(config, manager, _Arrival(), emit)
        self.chooser = chooser
        self._since: dict[str, int] = {}        # request id -> the last step before it began to wait

    def schedule(self) -> SchedulerOutput:
        """As `Scheduler.schedule`. Whatever the policy raises, or raises about it, comes out; then every request waits, with all of its tokens."""
        if self._planned:
            return super().schedule()           # which refuses
        self._since = {r.request_id: self._since.get(r.request_id, self.step) for r in self.waiting}
        try:
            return super().schedule()
        except BaseException:
            self.recover()
            raise

    # -- who comes first -----------------------------------------------------------------------------------------------------------
    def _admit(self, step: _Step, budget: int) -> None:
        if len(self.waiting) > 1:
            requests = {r.request_id: r for r in self.waiting}
            offered = {name: self._candidate(r) for name, r in requests.items()}
            chosen = self._ordered(self.chooser.order(list(offered.values())), offered)
            self.waiting = [requests[name] for name in chosen]
        super()._admit(step, budget)
        self.waiting.sort(key=self.policy.key)

    def _remove(self, queue: list[Request], request: Request) -> None:
        queue.remove(request)                               # the waiting are not in the order of their keys while somebody is admitted

    def _ordered(self, answer: Any, offered: dict[str, Candidate]) -> list[str]:
        """The ids in the chosen order. Raises ChoiceError unless ``answer`` is those who were offered, each once."""
        if isinstance(answer, str) or not hasattr(answer, "__iter__"):
            raise self._illegal("order", f"returned {_shown(answer)}; a list of all who wait was wanted")
        names: list[str] = []
        for item in answer:
            name = self._one_of(item, offered, "order", "put", "who does not wait")
            if name in names:
                raise self._illegal("order", f"put {name!r} into the line twice")
            names.append(name)
        if missing := [name for name in offered if name not in names]:
            raise self._illegal("order", f"left out {', '.join(map(repr, missing))}: who waits must stay in the line, if need be at its end")
        return names

    def _one_of(self, item: Any, offered: dict[str, Candidate], method: str, did: str, why: str) -> str:
        if isinstance(item, Candidate) and item.request_id in offered:
            return item.request_id
        name = item.request_id if isinstance(item, Candidate) else item
        raise self._illegal(method, f"{did} {_shown(name)}, {why}; there were {', '.join(map(repr, offered))}")

    def _illegal(self, method: str, what: str) -> ChoiceError:
        return ChoiceError(f"step {self.step}: {type(self.chooser).__name__}.{method} {what}")

    # -- who steps back ------------------------------------------------------------------------------------------------------------
    def _make_room(self, request: Request, tokens: list[int], step: _Step) -> list[Copy] | None:
        while len(self.running) > 1:
            victim = self._step_back(step)
            if victim is request:
                return None
            if (copies := self.manager.reserve(request.live, tokens)) is not None:
                return copies
        return super()._make_room(request, tokens, step)    # alone

    def _rejoin(self, request: Request, step: _Step) -> None:
        while request.status is Status.RUNNING and not self._join(request):
            self._step_back(step)

    def _step_back(self, step: _Step) -> Request:
        """Preempt whom the policy chooses. It may have its place in this step's plan already: then it loses it."""
        targets = {copy.dst for copy in step.copies}        # of blocks that are being copied now the new owner must not change
        free = [r for r in self.running if not any(targets.intersection(self.manager.table(seq)) for seq in self._holders(r))]
        offered = {r.request_id: self._candidate(r) for r in free}
        answer = self.chooser.victim(list(offered.values()))
        name = self._one_of(answer, offered, "victim", "chose", "who has no blocks to give back")
        victim = self.requests[name]
        step.scheduled = [row for row in step.scheduled if row.request_id != name]
        self._preempt(victim, step)
        self._since[name] = self.step
        return victim

    def _holders(self, request: Request) -> list[Any]:
        return [seq for seq in request.live if self.manager.holds(seq)]

    def _candidate(self, request: Request) -> Candidate:
        running = request.status is Status.RUNNING
        prompt = len(request.prompt_token_ids)
        return Candidate(
            request.request_id, request.arrival_index, prompt, sum(seq.num_tokens - prompt for seq in request.live), request.max_tokens,
            0 if running else self.step - self._since.get(request.request_id, self.step - 1),
            sum(len(self.manager.table(seq)) for seq in self._holders(request)) if running else 0, request.num_preemptions, request.priority,
        )


def _shown(value: Any) -> str:
    """A value in an error message; of None, what is probably missing."""
    return "nothing (None): is a `return` missing?" if value is None else repr(value) if isinstance(value, str) else f"a {type(value).__name__}"
