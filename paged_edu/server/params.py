"""From a checked request to what the engine takes: prompts as token ids, and `SamplingParams` or `BeamSearchParams`."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..sampling.beam import BeamSearchParams
from ..sampling.params import SamplingParams
from .errors import ApiError
from .schemas import ChatRequest, CompletionRequest
from .settings import MAX_LOGPROBS, MAX_STOPS

DEFAULT_TOKENS = 16
"""Of a completion, as in OpenAI's interface. A chat's answer may fill what the model has room for."""
SAMPLING = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias", "stop", "seed", "top_k", "min_p", "repetition_penalty",
            "min_tokens", "ignore_eos", "stop_token_ids", "include_stop_str_in_output", "skip_special_tokens")
"""Fields with the same name and meaning in `SamplingParams`."""
BEAMS = ("min_tokens", "ignore_eos", "stop_token_ids", "skip_special_tokens", "length_penalty", "early_stopping")
"""The same in `BeamSearchParams`."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, tokenized. ``text`` is None where ids were given."""

    text: str | None
    ids: tuple[int, ...]


@dataclass(slots=True)
class Job:
    """What one HTTP request asks of the engine."""

    request_id: str
    model: str
    prompts: list[Prompt]
    params: list[SamplingParams | BeamSearchParams]
    """One for each prompt: how much room it leaves for the output differs."""
    chat: bool
    stream: bool
    include_usage: bool = False
    echo: bool = False
    only_echo: bool = False
    """``max_tokens=0``: the prompt is all that is sent back."""
    logprobs: int | None = None
    """Most probable tokens that are shown with each one; None: no log-probabilities."""
    priority: int = 0
    cache_salt: str | None = None
    user: str | None = None
    messages: list[dict[str, Any]] = field(default_factory=list)
    begun: set[int] = field(default_factory=set)
    """Prompts of which an output has been read, by their places."""
    ended: int = 0
    """Prompts whose last output has come."""
    failed: bool = False

    @property
    def beams(self) -> bool:
        return isinstance(self.params[0], BeamSearchParams)

    @property
    def num_choices(self) -> int:
        """Of each prompt."""
        params = self.params[0]
        return params.num_returned if isinstance(params, BeamSearchParams) else params.n


def check_body(body: CompletionRequest | ChatRequest) -> None:
    """What the interface limits or refuses and the engine does not know of. Raises ApiError."""
    stops = 1 if isinstance(body.stop, str) else len(body.stop or ())
    if stops > MAX_STOPS:
        raise ApiError(400, f"stop has {stops} texts; at most {MAX_STOPS} are looked for", param="stop")
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "stream_options are for stream=true", param="stream_options")
    name, asked = ("logprobs", body.logprobs) if isinstance(body, CompletionRequest) else ("top_logprobs", body.top_logprobs)
    if asked is not None and not 0 <= asked <= MAX_LOGPROBS:
        raise ApiError(400, f"{name} must be between 0 and {MAX_LOGPROBS}, not {asked}", param=name)
    if isinstance(body, ChatRequest):
        if body.top_logprobs is not None and not body.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs=true", param="top_logprobs")
        if None not in (body.max_tokens, body.max_completion_tokens) and body.max_tokens != body.max_completion_tokens:
            said = f"max_tokens={body.max_tokens} and max_completion_tokens={body.max_completion_tokens} are two names of one limit: give one"
            raise ApiError(400, said, param="max_tokens")
    elif body.best_of is not None and body.best_of != (body.n or 1):
        said = f"best_of={body.best_of} is not served: it must be n={body.n or 1}, or left out"
        raise ApiError(400, said, param="best_of", code="unsupported_value")


def shown_logprobs(body: CompletionRequest | ChatRequest) -> int | None:
    if isinstance(body, CompletionRequest):
        return body.logprobs
    return (body.top_logprobs or 0) if body.logprobs else None


def wanted_tokens(body: CompletionRequest | ChatRequest, room: int) -> int:
    """``max_tokens`` for a prompt that leaves ``room``: an upper bound, so more than there is room for is the room.

    Raises ApiError for a ``min_tokens`` above a bound that the client has not named.
    """
    asked = body.max_tokens
    if isinstance(body, ChatRequest) and asked is None:
        asked = body.max_completion_tokens
    default = room if isinstance(body, ChatRequest) else DEFAULT_TOKENS
    most = min(default if asked is None else asked, room)
    if most < (body.min_tokens or 0) and most != asked:
        why = "the prompt leaves no room for more" if most == room else "what a completion has where no max_tokens is given"
        raise ApiError(400, f"min_tokens is {body.min_tokens}, and the output has at most {most} tokens: {why}", param="min_tokens")
    return most


def parameters(body: CompletionRequest | ChatRequest, max_tokens: int) -> SamplingParams | BeamSearchParams:
    """Raises ValueError with the value and its limits, ApiError for what does not go together."""
    if body.use_beam_search or body.beam_width is not None:
        return _beams(body, max_tokens)
    for name in ("length_penalty", "early_stopping"):
        if getattr(body, name) is not None:
            raise ApiError(400, f"{name} is for a beam search: give use_beam_search=true or beam_width", param=name)
    given = {name: value for name in SAMPLING if (value := getattr(body, name)) is not None}
    if "seed" in given:
        given["seed"] %= 2**64
    logprobs = shown_logprobs(body)
    echoed = logprobs if isinstance(body, CompletionRequest) and body.echo else None
    return SamplingParams(n=1 if body.n is None else body.n, max_tokens=max_tokens, logprobs=logprobs, prompt_logprobs=echoed, **given)


def _beams(body: CompletionRequest | ChatRequest, max_tokens: int) -> BeamSearchParams:
    if body.use_beam_search is False:
        raise ApiError(400, f"use_beam_search=false and beam_width={body.beam_width}: leave one of them out", param="beam_width")
    refused = [name for name in SAMPLING if name not in BEAMS and getattr(body, name) is not None]
    refused += ["logprobs"] if shown_logprobs(body) is not None else []
    if refused:
        raise ApiError(400, f"{refused[0]} does not go with a beam search, which does not sample: leave it out", param=refused[0])
    given = {name: value for name in BEAMS if (value := getattr(body, name)) is not None}
    n = 1 if body.n is None else body.n
    return BeamSearchParams(beam_width=body.beam_width if body.beam_width is not None else n, n=n, max_tokens=max_tokens, **given)


def prompts_of(body: CompletionRequest) -> list[str | list[int]]:
    """The prompts, each text or token ids."""
    given = body.prompt
    if isinstance(given, str):
        return [given]
    if not given:
        raise ApiError(400, "prompt is an empty list: at least 1 prompt is needed", param="prompt")
    if isinstance(given[0], int):
        return [given]  # one prompt of token ids
    return list(given)


def plain_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages without the keys that ask for nothing: a client sends back what an answer had, ``"refusal": null`` among it.

    "developer" is OpenAI's newer name for "system"; templates know the older one.
    """
    plain = []
    for message in messages:
        kept = {key: value for key, value in message.items() if key in ("role", "content") or value not in (None, [], {})}
        if kept.get("role") == "developer":
            kept["role"] = "system"
        plain.append(kept)
    return plain
