"""EventLog: replay to any step, bounds, files, and errors that name the line."""
import pytest
from driving import make, request, step

from paged_edu.core import events as ev
from paged_edu.trace import EventLog, TraceState


def recorded(max_steps=10_000, snapshot_every=5):
    scheduler, runner = make(num_blocks=6, block_size=2)
    log = EventLog.of(scheduler, max_steps, snapshot_every)
    scheduler.emit = scheduler.manager.emit = log
    for i in range(5):
        scheduler.add(request(f"r<{i}>", 3, max_tokens=9))
    while scheduler.has_unfinished():
        step(scheduler, runner)
    return scheduler, log


def test_replay_backwards_is_replay_forwards():
    _, log = recorded()
    forwards = [log.replay(s) for s in range(log.first_step, log.last_step + 1)]
    backwards = [log.replay(s) for s in range(log.last_step, log.first_step - 1, -1)]
    assert forwards == backwards[::-1]
    assert forwards[0].step == 0
    assert len(forwards[0].requests) == 5
    assert forwards[-1].num_finished == 5
    assert forwards[-1].num_preemptions > 0
    assert log.replay(3) is not log.replay(3), "a replayed state belongs to the caller"


def test_the_log_is_bounded_and_says_what_it_holds():
    scheduler, log = recorded(max_steps=10, snapshot_every=4)
    assert log.last_step == scheduler.step
    assert 10 <= log.last_step - log.first_step + 1 < 10 + 4
    with pytest.raises(IndexError, match=rf"step 0 is not in the log: it holds steps {log.first_step} to {log.last_step}"):
        log.replay(0)
    with pytest.raises(IndexError):
        log.events(log.last_step + 1)
    _, whole = recorded()
    for number in range(log.first_step, log.last_step + 1):
        assert log.replay(number) == whole.replay(number)
        if number > log.first_step:
            assert log.events(number) == whole.events(number)


def test_a_log_that_starts_in_mid_run():
    scheduler, runner = make(num_blocks=6, block_size=2)
    for i in range(3):
        scheduler.add(request(f"r{i}", 3, max_tokens=6))
    step(scheduler, runner)
    step(scheduler, runner)
    log = EventLog.of(scheduler)
    scheduler.emit = scheduler.manager.emit = log
    while scheduler.has_unfinished():
        step(scheduler, runner)
        assert log.state.sequences == TraceState.of(scheduler).sequences
    assert log.first_step == 2
    with pytest.raises(ValueError, match="unfinished requests"):
        log.save("never-written.jsonl")


def test_saved_and_loaded(tmp_path):
    _, log = recorded()
    path = tmp_path / "trace.jsonl"
    log.save(path)
    again = EventLog.load(path)
    assert list(again) == list(log)
    assert [again.replay(s) for s in (0, 7, again.last_step)] == [log.replay(s) for s in (0, 7, log.last_step)]


@pytest.mark.parametrize(("content", "message"), [
    ("", "line 1"), ("{}", "line 1"), ("[1]", "line 1"), ('{"format": "other"}', "line 1"), ("not json", "line 1"),
])
def test_a_file_of_another_kind_is_refused(tmp_path, content, message):
    path = tmp_path / "x.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        EventLog.load(path)


def test_a_damaged_line_is_named(tmp_path):
    _, log = recorded()
    path = tmp_path / "trace.jsonl"
    log.save(path)
    lines = path.read_text().splitlines()
    for bad in ('["Nonsense", 1]', '["StepStarted"', '["BlocksFreed", 99, [1]]', '["StepStarted", 1, 2]'):
        path.write_text("\n".join([*lines[:3], bad, *lines[4:]]))
        with pytest.raises(ValueError, match="line 4"):
            EventLog.load(path)


def test_the_fold_refuses_what_it_does_not_know():
    state = TraceState(4, 4)
    with pytest.raises(ValueError, match="does not know the event"):
        state.apply(("what",))
    state.apply(ev.RequestAdded("r", 0, (1, 2), 4))
    state.apply(ev.BlocksAllocated(0, (2,)))
    with pytest.raises(ValueError, match=r"frees \(3,\) but its table is \[2\]"):
        state.apply(ev.BlocksFreed(0, (3,)))


def test_what_a_picture_needs():
    state = TraceState(4, 4)
    for event in (ev.RequestAdded("r", 0, (1,) * 6, 4), ev.BlocksAllocated(0, (2, 0)), ev.TokensWritten(0, 6),
                  ev.SequenceForked("r", 0, 1), ev.TableForked(0, 1)):
        state.apply(event)
    views = state.blocks()
    assert [(v.owners, v.fill, v.logical, v.ref_count) for v in views] == [((0, 1), 2, 1, 2), ((), 0, None, 0), ((0, 1), 4, 0, 2), ((), 0, None, 0)]
    assert state.token_states() == 6
    state.apply(ev.BlockCopied(1, 1, 0, 3))
    assert state.ref_counts() == [1, 0, 2, 1]
    assert state.num_copies == 1


@pytest.mark.parametrize("options", [{"max_steps": 0}, {"snapshot_every": 0}])
def test_bad_bounds(options):
    with pytest.raises(ValueError, match="at least 1"):
        EventLog(TraceState(1, 1), **options)
