"""RequestView: what views of a single request have in common, the request that they point at."""
from __future__ import annotations

from ..trace import EventLog
from .track import Decode, Steppable
from .view import View


class RequestView(View):
    """See `View`; ``request``: its id, or None for the one that the view chooses itself. Raises TypeError for what is no id."""

    def __init__(
        self, log: EventLog, engine: Steppable | None = None, *, name: str | None = None, speed: float = 2.0, request: str | None = None,
        decode: Decode | None = None,
    ) -> None:
        if request is not None and not isinstance(request, str):
            raise TypeError(f"request must be the id of a request, not {request!r}")
        self.request = request
        super().__init__(log, engine, name=name, speed=speed, decode=decode)
