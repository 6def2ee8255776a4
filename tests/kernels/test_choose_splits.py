"""Into how many parts contexts are split. Apart from the kernels' tests, which must run on a GPU machine that has no hypothesis."""
from __future__ import annotations

import ladder  # noqa: F401  (skips this file where there is no Triton)
import pytest
from paged_edu.kernels.launch import choose_splits

pytest.importorskip("hypothesis", reason="hypothesis is not installed")

from hypothesis import given, settings
from hypothesis import strategies as st

PROGRAMS, TILES, PROCESSORS = st.integers(1, 600), st.integers(0, 3000), st.integers(1, 150)


def time_of(programs: int, tiles: int, processors: int, splits: int) -> float:
    """Tiles that pass on the clock when programs start as places get free, two to a processor; to start and to end takes a tile, the merge two."""
    places = [0] * (2 * processors)
    for _ in range(programs * splits):
        first = min(range(len(places)), key=places.__getitem__)
        places[first] += -(-tiles // splits) + 1
    return max(places) + (2 if splits > 1 else 0)


@settings(deadline=None)
@given(PROGRAMS, TILES, PROCESSORS)
def test_the_choice_is_within_bounds(programs: int, tiles: int, processors: int) -> None:
    assert 1 <= choose_splits(programs, tiles, processors) <= max(1, tiles)


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(1, 60), st.integers(1, 8))
def test_no_other_choice_would_be_faster(programs: int, tiles: int, processors: int) -> None:
    times = [time_of(programs, tiles, processors, splits) for splits in range(1, tiles + 1)]
    chosen = choose_splits(programs, tiles, processors)
    assert times[chosen - 1] == min(times)
    assert chosen == 1 + times.index(min(times))


@settings(deadline=None)
@given(st.integers(1, 8), TILES, PROCESSORS)
def test_a_card_that_is_full_is_left_alone(rounds: int, tiles: int, processors: int) -> None:
    assert choose_splits(2 * processors * rounds, tiles, processors) == 1


@settings(deadline=None)
@given(PROGRAMS, TILES, PROCESSORS)
def test_more_work_never_takes_less_time(programs: int, tiles: int, processors: int) -> None:
    def cost(programs: int, tiles: int) -> float:
        splits = choose_splits(programs, tiles, processors)
        return -(-programs * splits // (2 * processors)) * (-(-tiles // splits) + 1) + (2 if splits > 1 else 0)

    assert cost(programs, tiles) <= cost(programs, tiles + 1)
    assert cost(programs, tiles) <= cost(programs + 1, tiles)
    assert cost(programs, tiles) <= -(-programs // (2 * processors)) * (tiles + 1)


def test_the_choice_comes_from_the_card_and_the_batch() -> None:
    """No length, batch or card decides it alone."""
    assert choose_splits(8, 64, 132) > 16                             # one request of 4096 tokens, 8 KV heads
    assert choose_splits(8, 512, 132) >= choose_splits(8, 64, 132)
    assert choose_splits(8 * 64, 64, 132) == 1                        # 64 of them: short parts would fill the last round, and cost more
    assert choose_splits(8, 64, 4) == 1                               # one of them on a small card
    assert choose_splits(8, 2, 132) == 1                              # one of 128 tokens: nothing to gain
