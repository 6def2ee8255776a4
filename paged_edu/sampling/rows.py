"""What the sampler has to know besides the logits: the state of a request, and whose each row of logits is."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..core.sequence import Request
from .beam import BeamSearchParams
from .params import SamplingParams


class BrokenLogitsError(FloatingPointError):
    """The model gave NaN or infinity where a probability was needed. ``request_ids`` says for whom."""

    def __init__(self, request_ids: Sequence[str]) -> None:
        super().__init__(f"the logits of {', '.join(dict.fromkeys(request_ids))} are not finite")
        self.request_ids = tuple(dict.fromkeys(request_ids))


@dataclass(frozen=True)
class SamplingState:
    """What the sampler has to know of a request that samples. Its tokens are read from the request itself: there is nothing to bring back."""

    params: SamplingParams
    seed: int
    """The request's own seed, or one derived from the engine's; below 2**64."""
    request: Request
    stop_ids: tuple[int, ...] = ()
    """Tokens that would end the output: banned before ``min_tokens`` output tokens."""

    @cached_property
    def adjusts(self) -> bool:
        """Whether anything is done to the logits before the temperature."""
        params = self.params
        return bool(params.logit_bias or params.penalised or (params.min_tokens and self.stop_ids))

    @cached_property
    def prompt_ids(self) -> npt.NDArray[np.int64]:
        """The different token ids of the prompt, in order."""
        return np.unique(np.array(self.request.prompt_token_ids, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class BeamState:
    """What a beam search has to know of its request: everything else is in the request's sequences."""

    params: BeamSearchParams
    request: Request


State = SamplingState | BeamState


class SampleRow(NamedTuple):
    """One row of logits: whose it is and which position it fills."""

    request_id: str
    state: SamplingState
    branch: int
    position: int
    """Position of the token to be sampled, counted from the start of the prompt."""
    output_ids: Sequence[int] = ()
    """The output tokens so far, where a penalty needs them."""

    @property
    def num_output(self) -> int:
        """Output tokens so far."""
        return self.position - len(self.state.request.prompt_token_ids)
