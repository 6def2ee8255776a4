"""A run as events: record it, fold it, replay it to any step, forwards and backwards."""
from .history import Branch, Lane, Span, history
from .log import EventLog
from .memory import memory_report
from .state import BlockView, EntryState, RequestState, SequenceState, TraceState

__all__ = [
    "BlockView", "Branch", "EntryState", "EventLog", "Lane", "RequestState", "SequenceState", "Span", "TraceState", "history", "memory_report",
]
