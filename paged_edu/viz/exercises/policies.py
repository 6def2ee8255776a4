"""The property machine of exercise 13.a: a policy on the real scheduler; all that must hold is checked after every step, and only then comes a race.

*Nothing lost*: who waits and who runs are all that there are, each once, and at the end each has its own tokens. *Counts right*: blocks, places,
budget. *Nobody starves*: while others keep coming, the one that is watched ends within a fixed number of steps.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from ...core.plan import SchedulerOutput
from ...core.sequence import Status
from ..fake_engine import FakeEngine
from ..race import DisqualifiedError, Run, race
from .exercise import Case, Function
from .readers import Reader

PATIENCE = 250
"""Steps within which the watched request must have ended."""
FAST_ENOUGH = 65.0
"""Mean finishing step on TRACE24: first come, first served has 87.2, shortest prompt first 54.5."""


@dataclass(frozen=True, slots=True)
class Steady:
    """A request that is watched, among others that keep coming, faster than they can be served."""

    watched: tuple[int, int]
    """(prompt, output) of the watched one."""
    others: tuple[int, int]
    before: int
    """How many of the others are there already, a step earlier."""
    num_blocks: int = 10
    every: int = 2
    """A newcomer every so many steps."""


SCENARIOS = {
    "the first one, and others keep coming": Steady((2, 30), (2, 8), 0),
    "a long prompt among short ones": Steady((24, 6), (2, 12), 7),
    "a long answer among short ones": Steady((2, 34), (2, 10), 7),
    "a short answer among long ones": Steady((2, 6), (2, 20), 7),
    "one of many that are alike": Steady((2, 12), (2, 12), 7, num_blocks=8),
}
RACE = "TRACE24 in 24 blocks"
SEEDS = ("seed 1", "seed 2", "seed 3")
"""Random arrivals, sizes, samples, aborts and pools."""


@dataclass(frozen=True, slots=True)
class Finding:
    """How a run went. Two are alike if they are of the same kind, whatever the numbers are."""

    kind: str
    words: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Finding) and self.kind == other.kind

    __hash__ = None  # type: ignore[assignment]


def check_step(server: FakeEngine, output: SchedulerOutput) -> None:
    """Raise AssertionError with a sentence if a step has broken what no policy may touch."""
    scheduler = server.scheduler
    scheduler.manager.check()
    queued = [*scheduler.waiting, *scheduler.running]
    assert sorted(r.request_id for r in queued) == sorted(scheduler.requests), "a request is lost, or there twice"
    assert all(r.status is Status.RUNNING for r in scheduler.running), "somebody runs who does not"
    places = sum(r.places for r in scheduler.running)
    assert places == scheduler.num_running_seqs <= scheduler.config.max_num_seqs, "the places are miscounted"
    assert output.num_tokens <= scheduler.config.max_num_batched_tokens, "the budget is overdrawn"
    assert not (output.preempted and output.admitted), "somebody was admitted in a step in which somebody stepped back"
    assert not any(
        scheduler.manager.holds(seq) for r in scheduler.waiting if r.status is not Status.SWAPPED for seq in r.live
    ), "who waits has kept a block: all or nothing"
    held = [block for r in scheduler.running for seq in r.live if scheduler.manager.holds(seq) for block in {*scheduler.manager.table(seq)}]
    assert len({*held}) == scheduler.manager.report().num_used_blocks, "blocks belong to nobody"


def steady(policy: Any, scenario: Steady) -> Finding:
    """Let them come until the watched one has ended; then nobody comes any more, and all must end."""
    server = FakeEngine(scenario.num_blocks, 4, 64, 64, max_num_seqs=32, policy=policy)
    run = Run(server, [], lambda output: check_step(server, output))
    for _ in range(scenario.before):
        run.add(*scenario.others)
    if scenario.before:
        run.step()
    watched, start = run.add(*scenario.watched), server.scheduler.step
    while not watched.finished:
        if (server.scheduler.step - start) % scenario.every == 0:
            run.add(*scenario.others)
        run.step()
        if server.scheduler.step > PATIENCE:
            passed = sum(r.finished for r in run.made[scenario.before + 1 :])
            words = f"request {scenario.before} starves: it has not ended after {PATIENCE} steps, and {passed} of those who came later have"
            return Finding("starves", words)
    return _drain(run, f"request {scenario.before} ended, as all others did")


def _drain(run: Run, words: str) -> Finding:
    for _ in range(4000):
        if not run.server.has_unfinished_requests():
            run.check()
            return Finding("ended", words)
        run.step()
    return Finding("stuck", f"nobody comes any more, and after 4,000 steps {len(run.server.scheduler.requests)} requests have not ended")


def chance(policy: Any, seed: str) -> Finding:
    """Whatever may happen to a scheduler: chunks, places, samples that fork, aborts."""
    random = Random(seed)
    server = FakeEngine(
        random.randint(8, 16), random.choice((2, 4)), 64, random.randint(12, 40), max_num_seqs=random.randint(4, 8), num_cpu_blocks=8,
        policy=policy, preemption_mode=random.choice(("auto", "recompute")),
    )
    run = Run(server, [], lambda output: check_step(server, output))
    arrivals = sorted(random.randint(1, 40) for _ in range(16))
    while arrivals:
        while arrivals and arrivals[0] <= server.scheduler.step + 1:
            arrivals.pop(0)
            run.add(random.randint(1, 12), random.randint(1, 10), random.choice((1, 1, 1, 2, 3)))
        run.step()
        if server.scheduler.step in (9, 18) and server.scheduler.requests:
            server.scheduler.abort(random.choice(sorted(server.scheduler.requests)))
    return _drain(run, "all have ended")


def raced(policy: Any) -> Finding:
    result = race(policy)
    fast = result.mean <= FAST_ENOUGH
    return Finding("fast" if fast else "slow", f"a request ends in step {result.mean:.1f} on average")


@cache
def policy_case(name: str) -> Case:
    """What is wanted of every run is the same; that first come, first served starves nobody is asked of the scheduler here."""
    if name == RACE:
        return Case((name,), Finding("fast", f"a request ends in step {FAST_ENOUGH:.0f} or before, on average"))
    return Case((name,), drive_policy(lambda: None, (name,), lambda value: value))


def drive_policy(function: Function, args: tuple[Any, ...], read: Reader) -> Finding:
    """One run of a new object of the learner's class."""
    (name,) = args
    policy = function()
    try:
        if name == RACE:
            return raced(policy)
        return chance(policy, name) if name in SEEDS else steady(policy, SCENARIOS[name])
    except (AssertionError, DisqualifiedError) as broken:
        return Finding("broken", str(broken))


def policy_fixed() -> Sequence[Case]:
    return [policy_case(name) for name in (*SCENARIOS, *SEEDS, RACE)]


def draw_policy(random: Random) -> Case:
    return policy_case(random.choice((*SCENARIOS, *SEEDS, RACE)))
