"""A policy of one's own in the real scheduler: the same plans as the built-in ones, only legal choices, and nothing lost where one is not."""
from __future__ import annotations

from random import Random

import pytest

from paged_edu import LLM, SamplingParams
from paged_edu.core.limits import SchedulerConfig
from paged_edu.core.paged import PagedKVManager
from paged_edu.core.policy import FCFS, Priority
from paged_edu.core.scheduler import Scheduler
from paged_edu.core.sequence import Request
from paged_edu.engine.choosing import Candidate, ChoiceError, ChoosingScheduler, build_scheduler
from paged_edu.engine.fake_runner import FakeRunner, expected_tokens
from paged_edu.trace import EventLog, TraceState


class ByKey:
    """A chooser that orders by a built-in policy's key."""

    def order(self, waiting):
        return sorted(waiting, key=self.key_of)

    def victim(self, running):
        return max(running, key=self.key_of)


class FirstCome(ByKey):
    key_of = staticmethod(lambda candidate: candidate.arrival)


class Urgent(ByKey):
    key_of = staticmethod(lambda candidate: (candidate.priority, candidate.arrival))


def drive(scheduler, seed):
    """Random arrivals, samples and aborts, with every token checked; the outputs of all steps."""
    random = Random(seed)
    runner = FakeRunner(scheduler.manager.num_blocks, scheduler.manager.block_size, num_cpu_blocks=30)
    state = TraceState(scheduler.manager.num_blocks, scheduler.manager.block_size)
    scheduler.emit = scheduler.manager.emit = state.apply
    made, outputs = [], []
    while len(made) < 20 or scheduler.has_unfinished():
        if len(made) < 20 and random.random() < 0.6:
            ids = tuple(random.randrange(3) for _ in range(random.randint(1, 14)))
            tokens, n, priority = random.randint(1, 12), random.choice((1, 1, 1, 2, 3)), random.randint(0, 2)
            made.append(Request(str(len(made)), ids, max_tokens=tokens, n=n, priority=priority))
            scheduler.add(made[-1])
        if random.random() < 0.05 and scheduler.requests:
            scheduler.abort(sorted(scheduler.requests)[0])
        outputs.append(scheduler.schedule())
        ids = [row.seq_id for row in outputs[-1].scheduled]
        assert len({*ids}) == len(ids)
        assert not {*outputs[-1].preempted} & {row.request_id for row in outputs[-1].scheduled}, "who stepped back is in no plan"
        copied = [copy.dst for copy in outputs[-1].copies]
        assert len({*copied}) == len(copied)
        scheduler.manager.check()
        scheduler.update(outputs[-1], runner.execute(outputs[-1]))
        scheduler.manager.check()
        assert state.sequences == TraceState.of(scheduler).sequences, "the events tell the same story"
        assert len(outputs) < 3000
    for request in made:
        for seq in request.sequences:
            assert seq.output_token_ids == expected_tokens(request.prompt_token_ids, seq.num_output_tokens, 1000, seq.branch)
    assert scheduler.manager.pool.num_used == 0
    return outputs


def limits(mode="auto"):
    return SchedulerConfig(32, max_num_seqs=8, max_num_batched_tokens=40, preemption_mode=mode)


def manager(num_blocks=12, caching=False, cpu=0):
    return PagedKVManager(num_blocks, 4, prefix_caching=caching, num_cpu_blocks=cpu)


@pytest.mark.parametrize("seed", range(25))
def test_first_come_by_hand_makes_the_same_plans(seed):
    """Whole plans, slot by slot."""
    built_in = drive(Scheduler(limits(), manager(), FCFS()), seed)
    asked = drive(ChoosingScheduler(limits(), manager(), FirstCome()), seed)
    assert asked == built_in


def test_the_runs_above_do_preempt():
    assert sum(len(output.preempted) for seed in range(25) for output in drive(Scheduler(limits(), manager(), FCFS()), seed)) > 50


class Odd:
    """Chooses by lot."""

    def __init__(self, seed):
        self.random, self.planned = Random(seed), 0

    def order(self, waiting):
        return self.random.sample(waiting, len(waiting))

    def victim(self, running):
        assert [c.arrival for c in running] == sorted(c.arrival for c in running)
        assert all(c.waited == 0 for c in running)
        return self.random.choice(running)


@pytest.mark.parametrize("mode", ["recompute", "swap", "auto"])
@pytest.mark.parametrize("caching", [False, True])
def test_any_choice_is_carried_out_rightly(mode, caching):
    """Victims that have a place in the plan already, that copy, that are swapped: no token is ever wrong."""
    preempted = 0
    for seed in range(30):
        scheduler = ChoosingScheduler(limits(mode), manager(10, caching, 0 if mode == "recompute" else 30), Odd(seed))
        preempted += sum(len(output.preempted) for output in drive(scheduler, seed))
    assert preempted > 100


def test_candidates_tell_what_is_known():
    seen = {}

    class Looks(FirstCome):
        def order(self, waiting):
            seen.update({(c.request_id, c.waited): c for c in waiting})
            return super().order(waiting)

    scheduler = ChoosingScheduler(SchedulerConfig(64, max_num_seqs=1), manager(20), Looks())
    runner = FakeRunner(20, 4)
    for name in "abc":
        scheduler.add(Request(name, (1, 2, 3), max_tokens=3, priority=7))
    for _ in range(3):
        output = scheduler.schedule()
        scheduler.update(output, runner.execute(output))
    assert seen["c", 1] == Candidate("c", 2, 3, 0, 3, 1, 0, 0, 7)
    assert ("c", 3) in seen
    with pytest.raises(AttributeError):
        seen["c", 1].waited = 100


def serve(scheduler, runner):
    while scheduler.has_unfinished():
        output = scheduler.schedule()
        scheduler.update(output, runner.execute(output))


def _order(answer):
    return type("Mine", (FirstCome,), {"order": lambda self, waiting: answer(waiting)})()


def _victim(answer):
    return type("Mine", (FirstCome,), {"victim": lambda self, running: answer(running)})()


ILLEGAL = {
    "Mine.order left out 'b'": _order(lambda waiting: [c for c in waiting if c.request_id != "b"]),
    "Mine.order put 'a' into the line twice": _order(lambda waiting: [*waiting, waiting[0]]),
    "Mine.order put 'z', who does not wait": _order(lambda waiting: ["z", *waiting]),
    r"Mine.order returned nothing \(None\): is a `return` missing": _order(lambda waiting: None),
    "Mine.order returned a int": _order(lambda waiting: 3),
    "Mine.victim chose 'd', who has no blocks to give back": _victim(lambda running: "d"),
    r"Mine.victim chose nothing \(None\)": _victim(lambda running: None),
    "Mine.victim chose 'x', who": _victim(lambda running: Candidate("x", 0, 1, 1, 1, 0, 1, 0)),
}


@pytest.mark.parametrize("message", ILLEGAL)
def test_an_illegal_choice_is_named_and_nothing_is_lost(message):
    scheduler = ChoosingScheduler(limits(), manager(5), ILLEGAL[message])
    runner = FakeRunner(5, 4)
    log = EventLog.of(scheduler)
    scheduler.emit = scheduler.manager.emit = log
    made = [Request(name, (1, 2, 3), max_tokens=12) for name in "abcd"]
    for request in made:
        scheduler.add(request)
    with pytest.raises(ChoiceError, match=f"step .*{message}"):
        serve(scheduler, runner)
    assert len(scheduler.waiting) == len(scheduler.requests) == 4
    assert scheduler.manager.pool.num_used == 0
    scheduler.chooser = FirstCome()
    serve(scheduler, runner)
    assert all(r.sequences[0].output_token_ids == expected_tokens(r.prompt_token_ids, 12) for r in made)
    assert log.state.num_finished == 4


def test_what_is_no_policy_is_refused_by_name():
    class OnlyOrder:
        def order(self, waiting):
            return waiting

    with pytest.raises(TypeError, match=r"OnlyOrder is no policy: it has no victim\(\)"):
        build_scheduler(limits(), manager(), OnlyOrder())
    with pytest.raises(TypeError, match=r"policy must be an object, not the class FirstCome: write FirstCome\(\)"):
        build_scheduler(limits(), manager(), FirstCome)
    assert type(build_scheduler(limits(), manager(), Priority())) is type(build_scheduler(limits(), manager())) is Scheduler
    with pytest.raises(ValueError, match="give one of them"):
        LLM("tiny-shakespeare", policy=FirstCome(), scheduling_policy="priority")


def test_a_policy_in_the_real_engine():
    """Whatever the order, the same words; an illegal choice ends the call and leaves the engine in order."""
    prompts = [list(range(i, i + n)) for i, n in enumerate((30, 3, 20, 5, 2))]
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    options = {"num_gpu_blocks_override": 6, "max_model_len": 64, "dtype": "float64", "enable_prefix_caching": False}

    def words(llm):
        return [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)]

    with LLM("tiny-shakespeare", **options) as llm:
        want, steps = words(llm), llm.engine.scheduler.step
    with LLM("tiny-shakespeare", policy=Odd(1), **options) as llm:
        assert words(llm) == want
        assert llm.engine.scheduler.step != steps
        llm.engine.scheduler.chooser = _order(lambda waiting: waiting[1:])
        with pytest.raises(ChoiceError, match="left out"):
            words(llm)
        llm.engine.scheduler.chooser = Urgent()
        llm.generate(prompts[:2], params, use_tqdm=False, priority=[1, 0])
        assert words(llm) == want
