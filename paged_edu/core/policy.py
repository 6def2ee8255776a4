"""Policies: in which order requests get places, tokens and blocks, and who steps back (Paper §4.5).

A policy is one function, ``key``. The scheduler keeps its queues sorted by it: the smallest key is served first, and the victim of a
preemption is the running request with the largest.
"""
from __future__ import annotations

from typing import Protocol

from .sequence import Request


class Policy(Protocol):
    """A total order of requests; the key of a request does not change while it is queued."""

    def key(self, request: Request) -> tuple[float, ...]:
        """Smaller is served first; no two requests have the same (end with ``arrival_index``)."""
        ...


class FCFS:
    """First come, first served; the latest arrival steps back first (Paper §4.5)."""

    def key(self, request: Request) -> tuple[float, ...]:
        return (request.arrival_index,)


class Priority:
    """The smallest ``priority`` first; among equals, first come, first served. The least urgent steps back first."""

    def key(self, request: Request) -> tuple[float, ...]:
        return (request.priority, request.arrival_index)
