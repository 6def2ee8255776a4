"""Policies that tests race."""
from __future__ import annotations


class By:
    """A policy by one key: the least comes first, the greatest steps back."""

    def __init__(self, key):
        self.key_of = key

    def order(self, waiting):
        return sorted(waiting, key=self.key_of)

    def victim(self, running):
        return max(running, key=self.key_of)
