"""What the slots hold, computed from a state: the same numbers as the manager's own `report` at the same moment, which a property test checks."""
from __future__ import annotations

from ..core.block_table import block_fills
from ..core.kv_manager import MemoryReport
from .state import SequenceState, TraceState


def memory_report(state: TraceState) -> MemoryReport:
    """The parts of Paper Fig. 2 of a state, of a paged or a contiguous manager."""
    holding = [seq for seq in state.sequences.values() if seq.blocks]
    if any(seq.capacity is not None for seq in holding):
        return _contiguous(state, holding)
    return _paged(state, holding)


def longest(state: TraceState, seq: SequenceState) -> int:
    """Tokens that will be in the cache if the sequence runs to ``max_tokens``; the last sampled one is never written."""
    request = state.requests[seq.request_id]
    return max(len(seq.tokens), request.num_prompt_tokens + request.max_tokens - 1)


def _paged(state: TraceState, holding: list[SequenceState]) -> MemoryReport:
    now: dict[int, int] = {}
    later: dict[int, int] = {}
    for seq in holding:
        count = len(seq.blocks)
        fills = zip(seq.blocks, block_fills(seq.num_computed, state.block_size, count), block_fills(longest(state, seq), state.block_size, count))
        for block, filled, final in fills:
            now[block] = max(now.get(block, 0), filled)
            later[block] = max(later.get(block, 0), final)
    total, used, states = state.num_blocks * state.block_size, len(now) * state.block_size, sum(now.values())
    reservation = sum(max(0, later[block] - filled) for block, filled in now.items())
    away = {block for seq in state.sequences.values() for block in seq.cpu_blocks}
    return MemoryReport(
        total=total, token_states=states, reservation=reservation, internal=used - states - reservation, external=total - used,
        num_sequences=len(holding), shared_saved=sum(len(seq.blocks) for seq in holding) - len(now),
        cached=len(state.entries.keys() - now.keys()) * state.block_size, swapped=len(away) * state.block_size, num_used_blocks=len(now),
    )


def _contiguous(state: TraceState, holding: list[SequenceState]) -> MemoryReport:
    states = reservation = internal = 0
    for seq in holding:
        capacity, spares = seq.capacity or 0, len(seq.reserved) // len(seq.blocks)         # a branch's run is as long as the first one
        end = min(longest(state, seq), capacity)
        states += seq.num_computed
        reservation += max(0, end - seq.num_computed) + end * spares
        internal += capacity - max(end, seq.num_computed) + (capacity - end) * spares
    total = state.num_blocks * state.block_size
    return MemoryReport(
        total=total, token_states=states, reservation=reservation, internal=internal, external=total - states - reservation - internal,
        num_sequences=len(holding), num_used_blocks=sum(len(seq.blocks) + len(seq.reserved) for seq in holding),
    )
