"""PreparedRequest: a request that has been checked, and what the engine keeps of it besides the scheduler's `Request`."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..checks import UnsupportedError
from ..core.sequence import Request
from ..sampling.beam import BeamSearchParams
from ..sampling.logprobs import TokenLogprobs
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
    prompt_token_logprobs: list[TokenLogprobs] = field(default_factory=list)
    """The log-probabilities of the prompt's tokens so far, from the second one on, as the runner gave them."""
    shown_prompt: list[TokenLogprobs | None] = field(default_factory=lambda: [None])
    """The same with the texts of the tokens, from the first one on: it catches up when an output is made."""

    def keep_prompt_logprobs(self, first: int, entries: Sequence[TokenLogprobs]) -> None:
        """Keep what a step said of the tokens at position ``first`` and after. By position: a step that is computed again writes them again."""
        self.prompt_token_logprobs[first - 1 : first - 1 + len(entries)] = entries


def check_tokens(params: SamplingParams, num_known: int, num_stops: int, gives_logprobs: bool) -> None:
    """What depends on the model: tokens that there are, as many as are asked for, and one that is not banned. Raises ValueError with both numbers.

    ``num_known``: tokens that can be sampled, ids 0 to ``num_known - 1``; ``num_stops``: how many of them would end the output.
    """
    for token in params.logit_bias or ():
        if token >= num_known:
            raise ValueError(f"logit_bias: the id {token} is not in the vocabulary, 0 to {num_known - 1}")
    for name in ("logprobs", "prompt_logprobs"):
        asked = getattr(params, name)
        if asked is not None and asked > num_known:
            raise ValueError(f"{name} must be at most {num_known}, the size of the vocabulary, not {asked}")
        if asked is not None and not gives_logprobs:
            raise UnsupportedError(f"{name}={asked}: this engine's runner has no probabilities; leave it at None")
    if params.min_tokens and num_stops >= num_known:
        raise ValueError(f"min_tokens={params.min_tokens} bans every token: the stop tokens are the whole vocabulary of {num_known}")


def check_request_id(request_id: Any) -> None:
    if not isinstance(request_id, str) or not request_id:
        raise ValueError(f"request_id must be a non-empty string, not {request_id!r}")


def derived_seed(seed: int, index: int) -> int:
    """The seed of the ``index``-th request that brings none: a function of the engine's seed alone."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0])
