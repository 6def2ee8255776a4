"""FakeRunner: it writes where it is told, touches nothing else, and refuses a plan whose block table does not read what was written."""
import numpy as np
import pytest

from paged_edu.core.plan import COMPUTED_SLOT, Copy, ScheduledSeq, SchedulerOutput
from paged_edu.engine.fake_runner import POISON, FakeRunner, expected_tokens


def row(name: str, tokens: tuple[int, ...], start: int, slots: tuple[int, ...], table: tuple[int, ...], num_samples: int = 1) -> ScheduledSeq:
    return ScheduledSeq(name, ord(name), 0, tokens, start, slots, table, len(tokens) - 1 if num_samples else None, num_samples)


def plan(*rows: ScheduledSeq, **moves) -> SchedulerOutput:
    empty = dict.fromkeys(("swap_out", "swap_in", "copies", "admitted", "preempted", "refused"), ())
    return SchedulerOutput(step=1, scheduled=rows, **empty | moves)


def test_a_step_writes_every_row_and_answers_from_what_each_reads():
    runner = FakeRunner(4, 2)
    result = runner.execute(plan(row("a", (5, 6, 7), 0, (6, 7, 0), (3, 0)), row("b", (8,), 0, (2,), (1,)), row("c", (9,), 0, (4,), (2,), 0)))
    assert np.flatnonzero(runner.cells != POISON).tolist() == [0, 2, 4, 6, 7]
    assert {name: branches[0].tokens for name, branches in result.branches.items()} == {
        "a": tuple(expected_tokens((5, 6, 7), 1)), "b": tuple(expected_tokens((8,), 1)),
    }
    assert not runner.execute(plan()).branches


def test_a_token_that_is_only_queried_writes_nothing():
    runner = FakeRunner(2, 2)
    runner.execute(plan(row("a", (5, 6), 0, (0, 1), (0,))))
    before = runner.cells.copy()
    result = runner.execute(plan(row("a", (6,), 1, (COMPUTED_SLOT,), (0,))))
    assert np.array_equal(runner.cells, before)
    assert result.branches["a"][0].tokens == tuple(expected_tokens((5, 6), 1))


@pytest.mark.parametrize(("bad", "message"), [
    (row("a", (5, 6), 0, (0, 2), (0, 1)), "a/0: slots .0, 2. are not what its block table reads at 0"),        # the second token in the wrong slot
    (row("a", (5,), 1, (COMPUTED_SLOT,), (0,)), "are not what its block table reads at 1"),                   # queried, never written
])
def test_a_wrong_slot_is_found(bad, message):
    with pytest.raises(ValueError, match=message):
        FakeRunner(4, 2).execute(plan(bad))


def test_two_rows_in_one_slot_are_found():
    with pytest.raises(ValueError, match="a/0"):
        FakeRunner(4, 2).execute(plan(row("a", (5,), 0, (0,), (0,)), row("b", (6,), 0, (0,), (0,))))


def test_moves_happen_before_writes():
    runner = FakeRunner(4, 2)
    runner.execute(plan(row("a", (5, 6), 0, (0, 1), (0,))))
    runner.execute(plan(row("a", (7,), 2, (4,), (3, 2)), copies=(Copy(0, 3),)))
    assert runner.cells[6] == runner.cells[0] != POISON
    with pytest.raises(ValueError, match="a target twice"):
        runner.execute(plan(copies=(Copy(0, 1), Copy(2, 1))))
    with pytest.raises(ValueError, match="swaps both ways"):
        runner.execute(plan(swap_out=(Copy(0, 0),), swap_in=(Copy(0, 1),)))
