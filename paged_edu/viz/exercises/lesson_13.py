"""Exercises of lesson 13: a policy and a KV manager of one's own. Judged by `Scheduler`, `PagedKVManager` and what must always hold."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...engine.choosing import Candidate
from .exercise import Exercise, Misconception
from .managers import (
    AlwaysBreaks,
    AnyNeighbours,
    LargeOnly,
    LosesTheRest,
    NeedsWhole,
    NeverWhole,
    SmallOnly,
    TakesFirst,
    draw_manager,
    drive_manager,
    manager_fixed,
)
from .policies import FAST_ENOUGH, PATIENCE, draw_policy, drive_policy, policy_fixed

Choice = Callable[[list[Candidate]], Any]


def _policy(order: Choice, victim: Choice) -> Callable[[], Any]:
    """A class with these two methods."""
    return type("Policy", (), {"order": lambda self, waiting: order(waiting), "victim": lambda self, running: victim(running)})


def _by(key: Callable[[Candidate], float]) -> Choice:
    return lambda waiting: sorted(waiting, key=key)


def newest(running: list[Candidate]) -> Candidate:
    return running[-1]


def aged(candidate: Candidate) -> float:
    return candidate.prompt_tokens + candidate.output_tokens - candidate.waited


EXERCISES = (
    Exercise(
        name="13.a",
        title="A policy of your own",
        signature="MyPolicy()",
        statement=(
            "Write a class with two methods. `order(self, waiting)` returns all of the list `waiting`, who shall start first at the head. "
            "`victim(self, running)` returns the one of the list `running`, which is in order of arrival, that gives its blocks back. Both lists "
            "hold candidates with `arrival`, `prompt_tokens`, `output_tokens`, `max_tokens`, `waited`, `blocks` and `preemptions`. Nobody may "
            f"starve: while others keep coming, each ends within {PATIENCE} steps. And on TRACE24 in 24 blocks a request must end in step "
            f"{FAST_ENOUGH:.0f} or before, on average."
        ),
        hints=(
            "Short ones first is fast. What must happen to the long one, the longer it waits, so that one day it is the first?",
            "`waited` counts the steps. The victim matters as well: whoever has just come in after a long wait should not be the one that leaves.",
            "order: sorted by (prompt_tokens + output_tokens - waited), smallest first. victim: the last of `running`",
        ),
        judge="the scheduler",
        passed=(
            "Nobody starves, nothing is lost, and the mean is far below first come, first served. What you paid for it stands in the columns p99 and "
            "largest wait."
        ),
        read=lambda value: value,
        fixed=policy_fixed,
        draw=draw_policy,
        num_drawn=0,
        drive=drive_policy,
        tell=lambda case: str(case.args[0]),
        say=lambda finding: str(finding.words),
        misconceptions=(
            Misconception(
                "the shortest prompt first, and waiting does not count, or not enough: a long prompt is passed by every newcomer that is shorter, "
                "for ever. Let whoever waits grow older, in the order; and see that it is not at once the victim again.",
                _policy(_by(lambda c: c.prompt_tokens), newest),
            ),
            Misconception(
                "the shortest answer first, and waiting does not count: whoever asks for a long answer is passed for ever. A real server would "
                "not even know how long the answers get.",
                _policy(_by(lambda c: c.max_tokens), newest),
            ),
            Misconception(
                "the longest answer first: a short one starves, and the mean gets worse than that of first come, first served.",
                _policy(_by(lambda c: -c.max_tokens), lambda running: min(running, key=lambda c: (c.max_tokens, -c.arrival))),
            ),
            Misconception(
                "the newest first: whoever once had to wait sees every newcomer pass, and waits for ever.",
                _policy(lambda waiting: waiting[::-1], newest),
            ),
            Misconception(
                "the newest first, and the oldest steps back. Even the very first request never ends: it is thrown out, and everybody who comes "
                "later passes. All that it had computed is computed again and again.",
                _policy(lambda waiting: waiting[::-1], lambda running: running[0]),
            ),
            Misconception(
                "your order is fair, but your victim is always the largest. Whoever is near the end of a long answer is the largest, so it "
                "loses its blocks once more, and others end before it.",
                _policy(_by(aged), lambda running: max(running, key=lambda c: c.blocks)),
            ),
            Misconception(
                "your order is fair, but your victim is always the oldest. The paper takes the latest for a reason: then the oldest can always end, "
                "and so can, one after the other, everybody.",
                _policy(_by(aged), lambda running: running[0]),
            ),
            Misconception(
                "nobody starves, and the mean is that of first come, first served or worse: 87.2. Order is where the mean comes from; let short ones "
                "pass, for a while.",
                _policy(lambda waiting: waiting, newest),
            ),
            Misconception(
                "`order` does not return everybody who waits. Whom you leave out would be lost; put them at the end instead. The scheduler stops by "
                "itself at the first one for whom there is no room.",
                _policy(lambda waiting: waiting[:1], newest),
            ),
        ),
    ),
    Exercise(
        name="13.b",
        title="Two block sizes",
        signature="TwoSizes(num_blocks, block_size, max_model_len)",
        statement=(
            "Write a subclass of `OwnManager` with `start`, `take(count)`, `give(blocks)` and `num_free()`. Blocks 4k, 4k + 1, 4k + 2 and 4k + 3 "
            "together are a large block; the pool has a multiple of four. `take` returns `count` free blocks: large ones that are whole first, four "
            "numbers in a row for each full four of `count`, as long as there are any; then single ones, and a large one is broken only if no single "
            "one is left. It returns None, and changes nothing, if fewer than `count` are free. From a fresh pool, `take(5)` may return "
            "[0, 1, 2, 3, 4]; 5, 6 and 7 are single now. `give` makes a large block whole again once all of its four are free."
        ),
        hints=(
            "Two lists: large blocks that are whole, and single ones. What moves a number from one list to the other, and back?",
            "Breaking moves four numbers into the list of single ones. Block b belongs to the large block b // 4. And count first: all or nothing.",
            "take: too few free -> None; while 4 or more are missing and a large one is whole: its four; while any is missing: break a large one if "
            "there is no single one, take one. give: add to the single ones; for each b // 4: if all four are there, they become a large one",
        ),
        judge="PagedKVManager",
        passed=(
            "As long as large blocks are whole, a long prompt lies in runs of 16 slots, and the end of each sequence wastes 1.5 slots on average, "
            "not 7.5. Scheduler, runner and kernel did not notice: they read a table."
        ),
        read=lambda value: value,
        fixed=manager_fixed,
        draw=draw_manager,
        num_drawn=0,
        drive=drive_manager,
        tell=lambda case: str(case.args[0]),
        say=lambda finding: str(finding.words),
        misconceptions=(
            Misconception(
                "you give whole large blocks only. What a request does not need of its last one is internal fragmentation again, and others are "
                "refused although there is room.",
                LargeOnly,
            ),
            Misconception(
                "you refuse when no large block is whole, although there are enough single ones: that is external fragmentation. Any free block will "
                "do, since the table translates.",
                NeedsWhole,
            ),
            Misconception(
                "what was broken once is never whole again. After a while there are only single ones. In `give`, look whether all four are free.",
                NeverWhole,
            ),
            Misconception(
                "you break a large block although there are single ones. Soon none is whole. Single ones first, for what is less than four.",
                AlwaysBreaks,
            ),
            Misconception(
                "you take before you know that it is enough: when `take` says None, blocks are gone. All or nothing: count first.",
                TakesFirst,
            ),
            Misconception(
                "any four neighbours make a large block for you. Numbers 2 to 5 belong to two large ones, and now neither can be whole. A large "
                "block begins at a multiple of four.",
                AnyNeighbours,
            ),
            Misconception(
                "of a large block that you break, what is not needed at once is lost. It belongs to the single ones.",
                LosesTheRest,
            ),
            Misconception(
                "that is one list of single blocks, as in the paged manager: right, and with one size. Where a large block is whole, its four "
                "numbers should come together and in a row.",
                SmallOnly,
            ),
        ),
    ),
)
