"""Exercises of lesson 05: who is admitted, and how long a chunk is. Judged by `Scheduler`."""
from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from ...core.paged import PagedKVManager
from ...core.plan import Branch, SchedulerOutput, StepResult
from ...core.scheduler import Scheduler, SchedulerConfig
from ...core.sequence import Request
from ...words import counted
from .exercise import Case, Exercise, Function, Misconception
from .guard import NoAnswerError
from .readers import Reader, boolean, integer, list_of, tuple_of

OUTPUTS = (3, 12, 4, 5, 10, 2, 6, 3, 9, 2, 4, 4)
"""Output tokens of the lesson's twelve requests; four may run at a time."""


def advance(scheduler: Scheduler) -> SchedulerOutput:
    """One step with a runner that always samples token 7."""
    output = scheduler.schedule()
    scheduler.update(output, StepResult({item.request_id: (Branch(item.seq_id, (7,)),) for item in output.scheduled if item.num_samples}))
    return output


def _admit_case(outputs: Sequence[int], places: int) -> Case:
    """Prompts of one token, a pool that is never short: only the places bound what runs."""
    scheduler = Scheduler(SchedulerConfig(max_model_len=64, max_num_seqs=places), PagedKVManager(64 * len(outputs), 1))
    for i, tokens in enumerate(outputs):
        scheduler.add(Request(str(i), (i,), max_tokens=tokens))
    admitted = []
    while scheduler.has_unfinished():
        admitted.append([int(request_id) for request_id in advance(scheduler).admitted])
    return Case((list(outputs), places), admitted)


def _admit_fixed() -> Sequence[Case]:
    return [_admit_case(*args) for args in (((2,), 1), ((2, 1), 1), ((2, 1, 1), 2), ((1, 3, 2, 1), 2), ((1, 1, 4, 1, 1), 3), (OUTPUTS, 4))]


def _draw_admit(random: Random) -> Case:
    return _admit_case([random.randint(1, 8) for _ in range(random.randint(3, 10))], random.randint(1, 4))


def _admit_drive(function: Function, args: tuple[Any, ...], read: Reader) -> Any:
    """Serve the requests, one token a step each, and ask ``function`` before every step whom to admit."""
    outputs, places = args
    waiting, left = list(range(len(outputs))), dict(enumerate(outputs))
    running: list[int] = []
    admitted: list[list[int]] = []
    while waiting or running:
        new = read(function(list(running), list(waiting), places))
        if strangers := [i for i in new if i not in waiting]:
            raise NoAnswerError(f"it admits {strangers[0]}, which is not waiting (step {len(admitted) + 1})")
        if len(set(new)) < len(new):
            raise NoAnswerError(f"it admits a request twice (step {len(admitted) + 1})")
        admitted.append(new)
        running += new
        waiting = [i for i in waiting if i not in new]
        if not running:
            raise NoAnswerError(f"nobody runs and nobody is admitted (step {len(admitted)}): {counted(len(waiting), 'request')} would wait for ever")
        for i in running:
            left[i] -= 1
        running = [i for i in running if left[i]]
    return admitted


def _say_admitted(value: Any) -> str:
    steps = [f"step {i}: {' '.join(map(str, new))}" for i, new in enumerate(value, 1) if new]
    return f"{counted(len(value), 'step')}; admitted {', '.join(steps[:6])}{', ...' if len(steps) > 6 else ''}"


def _chunk_case(budget: int, decodes: int, left: int) -> Case:
    """Let ``decodes`` requests run, add a prompt of ``left`` tokens, and read its share of the next step."""
    manager = PagedKVManager(2 * decodes + left + 8, 4)
    scheduler = Scheduler(SchedulerConfig(max_model_len=4096, max_num_seqs=decodes + 1, max_num_batched_tokens=max(budget, decodes + 1)), manager)
    for i in range(decodes):
        scheduler.add(Request(str(i), (i,), max_tokens=4))
    advance(scheduler)
    scheduler.add(Request("long", tuple(range(left)), max_tokens=4))
    items = [item for item in advance(scheduler).scheduled if item.request_id == "long"]
    return Case((budget, decodes, left), (len(items[0].token_ids), items[0].num_samples > 0))


def _chunk_fixed() -> Sequence[Case]:
    return [_chunk_case(*args) for args in (
        (8, 0, 8), (8, 0, 9), (8, 2, 5), (8, 2, 6), (8, 2, 7), (256, 3, 241), (256, 3, 494), (256, 3, 747), (256, 3, 1000),
    )]


def _draw_chunk(random: Random) -> Case:
    decodes = random.randint(0, 6)
    budget = decodes + random.randint(1, 40)
    return _chunk_case(budget, decodes, random.randint(1, 80))


EXERCISES = (
    Exercise(
        name="05.a",
        title="Who is admitted now?",
        signature="admit(running, waiting, places)",
        statement=(
            "Called before every step: `running` and `waiting` list request numbers, the first come first; `places` may run at once. Return the "
            "list of those to admit now. Twelve requests with answers of 3 12 4 5 10 2 6 3 9 2 4 4 tokens and four places should take 18 steps."
        ),
        hints=(
            "A place is free as soon as one request has ended. Why should the next one wait for the others?",
            "How many places are free is `places - len(running)`; who comes first is at the head of `waiting`.",
            "count the free places; from the head of `waiting`, as many as that; nobody is an answer too",
        ),
        judge="Scheduler",
        passed="Continuous batching is this one line, asked at every step: 18 steps where waiting for the whole batch takes 31.",
        read=list_of(integer, "a list of request numbers"),
        fixed=_admit_fixed,
        draw=_draw_admit,
        drive=_admit_drive,
        tell=lambda case: f"answers of {' '.join(map(str, case.args[0]))} tokens, {counted(case.args[1], 'place')}",
        say=_say_admitted,
        misconceptions=(
            Misconception(
                "you admit only when everybody has ended: that is static batching. The twelve requests take 31 steps and not 18; places stand empty.",
                lambda running, waiting, places: [] if running else waiting[:places],
            ),
            Misconception("you admit past the places: those that run already take theirs.", lambda running, waiting, places: waiting[:places]),
            Misconception(
                "you admit everybody at once. `places` is what memory and the model can serve in one step.",
                lambda running, waiting, places: waiting,
            ),
            Misconception(
                "you admit one request a step, although several places may be free.",
                lambda r, w, places: w[:1] if len(r) < places else [],
            ),
            Misconception(
                "the last come are first in your answer; the first in line might wait for ever.",
                lambda r, w, places: w[::-1][: places - len(r)],
            ),
            Misconception(
                "you leave a place empty.", lambda r, w, places: w[: max(0, places - 1 - len(r))] if r else w[: max(1, places - 1)],
            ),
        ),
    ),
    Exercise(
        name="05.b",
        title="A chunk of a long prompt",
        signature="chunk(budget, decodes, left)",
        statement=(
            "A step computes at most `budget` tokens. `decodes` running requests need one token each, and `left` tokens of a long prompt are still "
            "to be "
            "computed. Return (tokens of the prompt in this step, whether it samples a token at the end of it). A budget of 256, 3 decodes and a "
            "prompt of 1,000 tokens give chunks of 253, 253, 253 and 241; it samples after the last."
        ),
        hints=(
            "Whoever is in the middle of an answer should not wait for somebody's long prompt.",
            "One rule: `num_computed_tokens` catches up with `num_tokens`; a sequence samples when it has caught up.",
            "give each decode its one token of the budget; the prompt gets what remains, but not more than it has left; it samples if nothing of "
            "it is left after that",
        ),
        judge="Scheduler",
        passed="Nobody's next token waits for a whole prompt; with small chunks the long prompt's own first token comes later: that is the trade.",
        read=tuple_of(integer, boolean, what="(tokens, samples)"),
        fixed=_chunk_fixed,
        draw=_draw_chunk,
        misconceptions=(
            Misconception(
                "your prompt goes first and takes the budget of the decodes: 256 and not 253. Three people would see their answers stop.",
                lambda budget, decodes, left: (min(left, budget), min(left, budget) == left),
            ),
            Misconception(
                "you sample after every chunk. In the middle of a prompt the next token is known: it is the prompt's.",
                lambda budget, decodes, left: (min(left, budget - decodes), True),
            ),
            Misconception("your prompt goes first, and you sample after every chunk.", lambda budget, decodes, left: (min(left, budget), True)),
            Misconception(
                "you never sample. After the last chunk the prompt has caught up.",
                lambda budget, decodes, left: (min(left, budget - decodes), False),
            ),
            Misconception("the whole prompt runs in one step in your answer: the budget is a limit.", lambda budget, decodes, left: (left, True)),
            Misconception(
                "you divide the budget among all: a decode needs one token and can use no more.",
                lambda budget, decodes, left: (min(left, budget // (decodes + 1)), left <= budget // (decodes + 1)),
            ),
        ),
    ),
)
