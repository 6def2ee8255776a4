"""SamplingParams: how the tokens of a request are chosen and when it ends. vLLM's names; checked when it is made, never ignored."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import checks


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How to sample, in this order: logit bias, penalties (repetition, then frequency and presence), temperature, top-k, top-p, min-p.

    ``temperature=0`` is greedy: the most probable token after bias and penalties. Without a ``seed`` the engine derives one from its own. Raises
    ValueError, with the value and its limits, for NaN, infinite, negative or otherwise impossible values.
    """

    n: int = 1
    """Output sequences of a request. The prompt is computed once and its blocks are shared (Paper §4.4)."""
    temperature: float = 1.0
    """Divides the logits; 0: always the most probable token."""
    top_p: float = 1.0
    """Keep the most probable tokens that together reach this probability; above 0, at most 1."""
    top_k: int = 0
    """Keep the k most probable tokens; 0 or -1: all."""
    min_p: float = 0.0
    """Keep tokens with at least this share of the most probable one's probability."""
    presence_penalty: float = 0.0
    """Taken from the logit of each token that the output has; -2 to 2."""
    frequency_penalty: float = 0.0
    """Taken from the logit of each token of the output once for each time that it is there; -2 to 2."""
    repetition_penalty: float = 1.0
    """For each token that prompt or output has: a positive logit is divided by it, a negative one multiplied, as in transformers. Above 0."""
    seed: int | None = None
    """Same seed, same prompt: same tokens, whatever shares the batch and whether the request was preempted."""
    stop: str | Sequence[str] | None = None
    """A string, or several, that end the output where the text first contains one (see `sampling.stop`). They are looked for in the text as it is
    shown: after special tokens are left out."""
    stop_token_ids: Sequence[int] | None = None
    """Tokens that end the output besides the model's own end tokens."""
    ignore_eos: bool = False
    """Go on after the model's end token; the user's own stop tokens still count."""
    min_tokens: int = 0
    """No stop token is sampled before that many output tokens, and a stop string counts only if that token or a later one completes it."""
    max_tokens: int = 16
    """At most that many output tokens; at least 1."""
    logprobs: int | None = None
    """With each output token, the log-probabilities of so many most probable tokens and its own: of the model's distribution, before everything
    that is done to it here. 0: its own only; None: none; at most the vocabulary."""
    prompt_logprobs: int | None = None
    """The same for each prompt token, given those before it. Such a request computes its whole prompt, whatever the prefix cache holds."""
    logit_bias: Mapping[Any, float] | None = field(default=None, hash=False)
    """Token id -> what is added to its logit, -100 to 100. An id may be written as text, as JSON has it; the attribute has numbers."""
    include_stop_str_in_output: bool = False
    """The text ends with the stop string, or the end or stop token, that ended it; otherwise before it. The token ids have it in any case."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""

    def __post_init__(self) -> None:
        checks.integer("n", self.n, 1)
        checks.number("temperature", self.temperature, 0)
        checks.number("top_p", self.top_p, 0, 1, low_open=True)
        checks.integer("top_k", self.top_k, -1)
        checks.number("min_p", self.min_p, 0, 1)
        checks.number("presence_penalty", self.presence_penalty, -2, 2)
        checks.number("frequency_penalty", self.frequency_penalty, -2, 2)
        checks.number("repetition_penalty", self.repetition_penalty, 0, low_open=True)
        checks.integer("min_tokens", self.min_tokens, 0)
        checks.integer("max_tokens", self.max_tokens, 1)
        if self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens ({self.min_tokens}) must be at most max_tokens ({self.max_tokens})")
        if self.seed is not None:
            checks.integer("seed", self.seed, 0, 2**64 - 1)
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            checks.flag(name, getattr(self, name))
        object.__setattr__(self, "stop", _stop_strings(self.stop))
        object.__setattr__(self, "stop_token_ids", checks.token_ids("stop_token_ids", self.stop_token_ids))
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                checks.integer(name, getattr(self, name), 0)
        object.__setattr__(self, "logit_bias", _logit_bias(self.logit_bias))

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def penalised(self) -> bool:
        """Whether the tokens that are there already change the logits."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0 or self.repetition_penalty != 1


def _stop_strings(stop: Any) -> tuple[str, ...]:
    """``stop`` as a tuple. Raises ValueError for what is no text, and for a string that every text, or none, contains."""
    if not isinstance(stop, str | Sequence | None) or isinstance(stop, bytes | bytearray):
        raise ValueError(f"stop must be text or a list of texts, not {stop!r}")
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    for string in strings:
        if not isinstance(string, str):
            raise ValueError(f"stop must be text or a list of texts, not a list with {string!r}")
        if not string:
            raise ValueError("stop has an empty string: it would end every output before its first character; leave it out")
        try:
            string.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"stop: {string!a} is no valid text: a lone surrogate at position {error.start}") from error
    return strings


def _logit_bias(bias: Any) -> dict[int, float] | None:
    """``logit_bias`` with numbers for ids; an empty one is None. Raises ValueError that names the id, and its value if that is wrong."""
    if not isinstance(bias, Mapping | None):
        raise ValueError(f"logit_bias must map token ids to numbers, not {bias!r}")
    checked: dict[int, float] = {}
    for key, value in (bias or {}).items():
        token = int(key) if isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) < 20 else key
        checks.integer("logit_bias: every token id", token, 0)
        checks.number(f"logit_bias of token {token}", value, -100, 100)
        if token in checked:
            raise ValueError(f"logit_bias has the token {token} twice")
        checked[token] = value
    return checked or None
