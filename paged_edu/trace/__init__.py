"""A run as events: record it, fold it, replay it to any step, forwards and backwards."""
from .log import EventLog
from .state import BlockView, RequestState, SequenceState, TraceState

__all__ = ["BlockView", "EventLog", "RequestState", "SequenceState", "TraceState"]
