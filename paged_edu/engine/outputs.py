"""What users get back: `RequestOutput` with one `CompletionOutput` a sequence, in vLLM's shape."""
from __future__ import annotations

from dataclasses import dataclass

from ..sampling.logprobs import TokenLogprobs


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One output sequence of a request."""

    index: int
    """The branch, 0 to n - 1."""
    text: str
    """Whole characters. While it grows, the end that may still turn out to begin a stop string is left out."""
    token_ids: tuple[int, ...]
    finish_reason: str | None
    """"stop" (an end token, a stop token or a stop string), "length" (max_tokens, max_model_len or the pool), "abort"; None while it grows."""
    stop_reason: int | str | None
    """The user's stop token or stop string; "kv_pool" when the request, alone, had filled the pool; None for the model's own end token."""
    cumulative_logprob: float | None = None
    """Natural logarithm of the probability of ``token_ids``: in a beam search, and where ``logprobs`` were asked for; otherwise None."""
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """One entry for each of ``token_ids``: `Logprob` by token id, in order of rank. None: not asked for."""
    delta: str = ""
    """What ``text`` grew by since the output of this request that was returned before; joined, the deltas are the text."""

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestMetrics:
    """When things happened to a request [seconds on the engine's clock]; None: not yet."""

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    finished_time: float | None = None
    num_preemptions: int = 0


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A request so far; the last one of a request has ``finished`` set."""

    request_id: str
    prompt: str | None
    """The text, if the prompt was given as text."""
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    finished: bool
    metrics: RequestMetrics
    num_cached_tokens: int = 0
    """Prompt tokens that were found in the prefix cache."""
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    """As `CompletionOutput.logprobs`, one entry for each prompt token, the first None: nothing comes before it. Shorter only for a request that
    was aborted before its prompt had been computed. None: not asked for."""
