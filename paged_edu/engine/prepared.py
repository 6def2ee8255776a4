"""PreparedRequest: a request that has been checked, and what the engine keeps of it besides the scheduler's `Request`."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.sequence import Request
from ..sampling.beam import BeamSearchParams
from ..sampling.params import SamplingParams
from .outputs import RequestMetrics

Params = SamplingParams | BeamSearchParams
"""How the outputs of a request are chosen."""


@dataclass(slots=True)
class PreparedRequest:
    """A request that has been checked: what the engine keeps of it besides the scheduler's `Request`."""

    request: Request
    params: Params
    prompt: str | None
    """The text, if the prompt was given as text."""
    metrics: RequestMetrics


def check_request_id(request_id: Any) -> None:
    if not isinstance(request_id, str) or not request_id:
        raise ValueError(f"request_id must be a non-empty string, not {request_id!r}")


def derived_seed(seed: int, index: int) -> int:
    """The seed of the ``index``-th request that brings none: a function of the engine's seed alone."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0])
