"""States to draw: real ones, out of the real scheduler under every kind of load, and made-up ones that the scheduler cannot reach yet."""
from __future__ import annotations

from hypothesis import strategies as st

from paged_edu.core.sequence import Status
from paged_edu.trace import EventLog, TraceState
from paged_edu.trace.state import RequestState, SequenceState
from paged_edu.viz.fake_engine import FakeEngine


def run(num_blocks: int, block_size: int, lengths: list[tuple[int, int]], steps: int, max_model_len: int = 256) -> tuple[FakeEngine, EventLog]:
    """An engine after some steps, and its log from the very beginning."""
    engine = FakeEngine(num_blocks, block_size, max_model_len)
    log = EventLog.of(engine.scheduler)
    engine.listen(log)
    engine.add(lengths)
    for _ in range(steps):
        if engine.has_unfinished_requests():
            engine.step()
    return engine, log


@st.composite
def engine_states(draw: st.DrawFn) -> TraceState:
    """A state that the real engine reaches."""
    block_size = draw(st.sampled_from([1, 2, 4, 16, 256]))
    num_blocks = draw(st.integers(1, 80))
    longest = min(60, num_blocks * block_size)
    lengths = draw(st.lists(st.tuples(st.integers(1, longest), st.integers(1, 20)), max_size=12))
    _, log = run(num_blocks, block_size, lengths, draw(st.integers(0, 25)))
    return log.state


@st.composite
def any_states(draw: st.DrawFn) -> TraceState:
    """Shared blocks, several branches, hostile request ids: whatever a picture may meet."""
    block_size, num_blocks = draw(st.sampled_from([1, 3, 16, 200])), draw(st.integers(1, 40))
    state = TraceState(num_blocks, block_size, step=draw(st.integers(0, 9)))
    tables = draw(st.lists(st.lists(st.integers(0, num_blocks - 1), unique=True, max_size=6), max_size=6))
    for seq_id, table in enumerate(tables):
        request_id = draw(st.text(max_size=8)) + str(seq_id)
        tokens = [7] * draw(st.integers(1, max(1, len(table) * block_size)))
        computed = draw(st.integers(0, len(tokens))) if table else 0
        state.requests[request_id] = RequestState(draw(st.integers(0, 60)), 1, 8, draw(st.sampled_from(list(Status))))
        state.sequences[seq_id] = SequenceState(request_id, tokens, computed, table)
        state.scheduled[seq_id] = draw(st.integers(0, 5))
    return state
