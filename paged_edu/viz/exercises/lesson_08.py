"""Exercises of lesson 08: when a swapped request may return, and what recomputation computes. Judged by `PagedKVManager.status` and `Scheduler`."""
from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from ...core.kv_manager import AllocStatus
from ...core.paged import PagedKVManager
from ...core.scheduler import Scheduler, SchedulerConfig
from ...core.sequence import Request
from ...core.sequence import Sequence as TokenSequence
from .exercise import Case, Exercise, Misconception
from .lesson_05 import advance
from .readers import boolean, integer


class Swapped(NamedTuple):
    """A sequence whose blocks wait in host memory."""

    num_computed_tokens: int
    """Tokens whose keys and values it brings back."""
    num_tokens: int
    """Tokens that it has: the last sampled one is not computed yet."""


def blocks(tokens: int, B: int) -> int:
    """Blocks that hold so many tokens."""
    return -(-tokens // B)


def _resume_case(computed: int, tokens: int, free: int, B: int) -> Case:
    """Swap a sequence out, let others take all but ``free`` blocks, and ask the manager."""
    need = blocks(tokens, B)
    manager = PagedKVManager(need + free + 1, B, num_cpu_blocks=need)
    request = Request("A", tuple(range(tokens)))
    seq = TokenSequence(0, request, 0, list(range(tokens)), 0)
    request.sequences, request.live = [seq], [seq]
    manager.admit(seq, computed)
    seq.num_computed_tokens = computed
    manager.commit(seq, computed)
    manager.swap_out([seq])
    manager.pool.allocate(manager.pool.num_available - free)
    return Case((Swapped(computed, tokens), free, B), manager.status(request) is AllocStatus.OK)


def _resume_fixed() -> Sequence[Case]:
    return [_resume_case(*args) for args in (
        (8, 9, 2, 4), (8, 9, 3, 4), (7, 8, 2, 4), (7, 8, 1, 4), (6, 7, 2, 4), (16, 17, 1, 16), (3, 4, 4, 1), (3, 4, 3, 1),
    )]


def _draw_resume(random: Random) -> Case:
    computed, B = random.randint(1, 20), random.choice((1, 2, 4, 8))
    tokens = computed + random.choice((1, 1, 1, 3, 8))
    return _resume_case(computed, tokens, max(0, blocks(tokens, B) + random.randint(-2, 1)), B)


def _recompute_case(prompt: int, generated: int) -> Case:
    """Let a request sample ``generated`` tokens, throw its blocks away, and read what the next step computes."""
    scheduler = Scheduler(SchedulerConfig(max_model_len=256), PagedKVManager(256, 1))
    scheduler.add(Request("A", tuple(range(prompt)), max_tokens=generated + 2))
    for _ in range(generated):
        advance(scheduler)
    scheduler.recover()
    return Case((prompt, generated), advance(scheduler).scheduled[0].num_new)


def _recompute_fixed() -> Sequence[Case]:
    return [_recompute_case(*args) for args in ((6, 3), (1, 1), (5, 0), (40, 30))]


def _draw_recompute(random: Random) -> Case:
    return _recompute_case(random.randint(1, 60), random.randint(0, 40))


EXERCISES = (
    Exercise(
        name="08.a",
        title="May it come back?",
        signature="can_resume(seq, free, B)",
        statement=(
            "`seq` was swapped out; it has `num_tokens` tokens, and the keys and values of `num_computed_tokens` of them are in host memory. `free` "
            "blocks of `B` slots are free. Return whether it may come back now, so that it can go on at once. With 8 tokens computed, 9 in all, and "
            "B = 4, two free blocks are too few."
        ),
        hints=(
            "It comes back in order to go on. What does its first step need, beyond what it had?",
            "Compare `num_computed_tokens` and `num_tokens` of a sequence whose last block was exactly full.",
            "blocks for num_tokens tokens, rounded up, <= free",
        ),
        judge="PagedKVManager.status",
        passed="In the lesson's run of three requests this gives 1 preemption and 4 block moves; a request that returns can really go on.",
        read=boolean,
        fixed=_resume_fixed,
        draw=_draw_resume,
        misconceptions=(
            Misconception(
                "you ask only for the blocks that it had, not for its next token. It comes back, finds no block and leaves again: 3 preemptions and"
                " 12 block moves "
                "instead of 1 and 4. A real engine thrashed so.",
                lambda seq, free, B: blocks(seq.num_computed_tokens, B) <= free,
            ),
            Misconception(
                "you always ask for one block more than it had. Where its last block has room it would wait longer than it must.",
                lambda seq, free, B: blocks(seq.num_computed_tokens, B) + 1 <= free,
            ),
            Misconception("any free block is enough in your answer; it needs all of its blocks at once.", lambda seq, free, B: free > 0),
            Misconception("you ask for one free block more than it needs.", lambda seq, free, B: blocks(seq.num_tokens, B) < free),
            Misconception("you compare tokens with blocks: a block has B slots.", lambda seq, free, B: seq.num_tokens <= free),
            Misconception(
                "you rounded down: the tokens of its last, partly filled block have no place.", lambda seq, free, B: seq.num_tokens // B <= free,
            ),
            Misconception("it may always come back in your answer.", lambda seq, free, B: True),
        ),
    ),
    Exercise(
        name="08.b",
        title="What is computed again?",
        signature="recompute_length(prompt, generated)",
        statement=(
            "A request has a prompt of `prompt` tokens, and `generated` tokens of its answer had been sampled when it was preempted. It is "
            "recomputed. Return how many tokens its first step computes. With a prompt of 5 and nothing generated yet: 5."
        ),
        hints=(
            "What the user has seen already must stay. From where do its keys and values come?",
            "One rule: `num_computed_tokens` (now 0) catches up with `num_tokens`.",
            "prompt + generated",
        ),
        judge="Scheduler",
        passed="The answer's tokens run with the prompt, all in one step: that is why recomputing is cheaper than it sounds.",
        read=integer,
        fixed=_recompute_fixed,
        draw=_draw_recompute,
        misconceptions=(
            Misconception(
                "you recompute the prompt only. The tokens of the answer would be lost, or sampled again, perhaps differently.",
                lambda prompt, generated: prompt,
            ),
            Misconception(
                "you count what was in the cache: one less. The last sampled token had not been computed yet, and is now, in the same step.",
                lambda prompt, generated: prompt + generated - 1 if generated else prompt,
            ),
            Misconception(
                "you recompute the answer only. Without the prompt's keys and values it has no context.",
                lambda prompt, generated: generated,
            ),
            Misconception(
                "one token too many: the next one is sampled at the end of the step, from its logits.",
                lambda prompt, generated: prompt + generated + 1,
            ),
        ),
    ),
)
