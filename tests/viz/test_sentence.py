"""The sentence beside the picture says what the events say."""
import pytest
from viz_states import run

from paged_edu.trace import EventLog
from paged_edu.viz import pool_svg, step_sentence
from paged_edu.viz.fake_engine import FakeEngine, trace24
from paged_edu.viz.svg import headline
from paged_edu.words import counted


def test_the_course_trace_in_words():
    engine = trace24().engine()
    log = EventLog.of(engine.scheduler)
    engine.listen(log)
    for _ in range(13):
        engine.step()
    assert step_sentence(log, 0) == "step 0: the recording starts here; 0 requests running, 24 waiting"
    assert step_sentence(log, 1) == "step 1: A, B, C and 21 others admitted; 58 blocks taken; 666 tokens computed"
    assert step_sentence(log, 2) == "step 2: B and W finished, 2 blocks freed; 1 block taken; 24 tokens computed"
    assert step_sentence(log, 13) == "step 13: X preempted, 1 block freed; 1 block taken; 19 tokens computed"


def test_preempted_finished_and_arrived():
    engine, log = run(5, 4, [(7, 9), (7, 9), (3, 9)], 3, max_model_len=32)
    assert step_sentence(log, 3) == "step 3: C and B preempted, 3 blocks freed; 1 block taken; 1 token computed"
    engine.add([(2, 2)])
    assert step_sentence(log, 3).endswith("; D arrived")
    while engine.has_unfinished_requests():
        engine.step()
    assert "A finished, 4 blocks freed" in step_sentence(log, 9)
    with pytest.raises(IndexError):
        step_sentence(log, 99)


def test_a_request_that_fills_the_pool_alone():
    engine = FakeEngine(2, 4, 32)
    log = EventLog.of(engine.scheduler)
    engine.listen(log)
    engine.add([(7, 9)])
    while engine.has_unfinished_requests():
        engine.step()
    assert "A filled the whole pool alone and had to end" in step_sentence(log, log.last_step)


def test_one_is_not_many():
    """A pool of one block of one slot, one request of one token: every noun that a view shows stands in the singular."""
    engine, log = run(1, 1, [(1, 1)], 0, max_model_len=8)
    tips = pool_svg(log.state)
    engine.step()
    step = log.replay(1)
    assert step_sentence(log, 0) == "step 0: the recording starts here; 0 requests running, 1 waiting"
    assert step_sentence(log, 1) == "step 1: A finished, 1 block freed; A admitted; 1 block taken; 1 token computed"
    assert "1 prompt token<" in tips
    assert "a block has 1 slot;" in tips
    assert headline(step) == "0 of 1 block, 0 % of slots hold tokens"
    engine.add([(1, 2)])
    engine.step()
    assert "1 of 1 slot holds a token" in pool_svg(log.state)
    assert [counted(n, "step") for n in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]
    assert [counted(n, "entry", "entries") for n in (1, 2)] == ["1 entry", "2 entries"]


def test_an_abort_between_two_steps():
    engine, log = run(5, 4, [(7, 9), (3, 9)], 1, max_model_len=32)
    engine.scheduler.abort("0")
    assert "A finished, 2 blocks freed" in step_sentence(log, 1)
