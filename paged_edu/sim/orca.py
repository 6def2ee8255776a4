"""OrcaManager: contiguous memory as the paper's Orcas must have had it, where beams are searched (Paper §4.4, §6.3)."""
from __future__ import annotations

from dataclasses import replace

from ..core.contiguous import ContiguousKVManager
from ..core.kv_manager import MemoryReport
from ..core.sequence import Request, Sequence


class OrcaManager(ContiguousKVManager):
    """Each beam search keeps one run more than it has beams: to copy into, while the runs that will be given back are still read.

    *Assumed*: Orca's program was never published, and nobody says how its beams were copied. `ContiguousKVManager` gives back the losers' runs
    first and needs none; whoever gathers the winners into fresh memory needs at least one. It decides how many searches fit: of the 7 slabs of
    2,048 slots that OPT-13B has on its card, two of width 2 take 6, and without that run three would.
    """

    def reset(self) -> None:
        super().reset()
        self._fresh: dict[str, int] = {}
        """Request -> first block of that run."""

    def _orders(self, request: Request) -> list[int]:
        orders = super()._orders(request)
        return [*orders, orders[0]] if request.beam and request.request_id not in self._fresh else orders

    def admit(self, seq: Sequence, num_tokens: int, leader: Sequence | None = None, num_led: int = 0) -> int | None:
        request = seq.request
        if not request.beam or request.request_id in self._fresh:
            return super().admit(seq, num_tokens, leader, num_led)
        start = self.buddy.allocate(self._order(self.reserved_tokens(request, num_tokens)))
        if start is None:
            return None
        found = super().admit(seq, num_tokens, leader, num_led)
        if found is None:
            self.buddy.free(start)
        else:
            self._fresh[request.request_id] = start
        return found

    def free(self, seq: Sequence) -> None:
        super().free(seq)
        request = seq.request
        if request.request_id in self._fresh and not any(held.seq.request is request for held in self._held.values()):
            self.buddy.free(self._fresh.pop(request.request_id))

    def report(self) -> MemoryReport:
        """That run counts as reserved."""
        found = super().report()
        slots = self.block_size * sum(1 << self.buddy.orders[start] for start in self._fresh.values())
        return replace(found, reservation=found.reservation + slots, external=found.external - slots) if slots else found

    def _holders(self) -> dict[int, int]:
        return super()._holders() | dict.fromkeys(self._fresh.values(), 1)
