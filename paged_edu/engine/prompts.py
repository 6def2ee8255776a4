"""Prompts: text, token ids or a dict of one of them, turned into checked token ids before anything is queued."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or a dict with a ``"prompt"`` (text), ``"prompt_token_ids"``, or both: then the ids count, and the text is only shown."""


def check_ids(name: str, ids: Sequence[Any], vocab_size: int) -> None:
    """Refuse what is no token id of the model: it must never be used as an index."""
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int | np.integer):
            raise ValueError(f"{name} must hold token ids (integers), not {token!r}")
        if not 0 <= token < vocab_size:
            raise ValueError(f"{name}: the id {token} is not in the vocabulary, 0 to {vocab_size - 1}")


def tokenize(prompt: Prompt, tokenizer: Any, vocab_size: int) -> tuple[str | None, tuple[int, ...]]:
    """``(text, token ids)`` of a prompt; the text is None where ids were given.

    Raises ValueError for an empty prompt, text that is no valid Unicode and ids that the model does not have; TypeError for another type.
    """
    if isinstance(prompt, Mapping):
        if not prompt or not set(prompt) <= {"prompt", "prompt_token_ids"}:
            raise ValueError(f"a prompt given as a dict has the keys 'prompt' or 'prompt_token_ids', not {sorted(map(str, prompt))}")
        for key, value in prompt.items():
            if (key == "prompt") != isinstance(value, str) or isinstance(value, Mapping):
                raise TypeError(f"{key!r} must be {'text' if key == 'prompt' else 'a list of token ids'}, not {type(value).__name__}")
        if len(prompt) == 2:
            return prompt["prompt"], tokenize(prompt["prompt_token_ids"], tokenizer, vocab_size)[1]
        (prompt,) = prompt.values()
    if isinstance(prompt, str):
        return prompt, _from_text(prompt, tokenizer, vocab_size)
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
        raise TypeError(f"a prompt is text or a list of token ids, not {type(prompt).__name__}")
    given: list[Any] = list(prompt)
    if not given:
        raise ValueError("the prompt is empty: at least 1 token is needed")
    check_ids("prompt_token_ids", given, vocab_size)
    return None, tuple(int(token) for token in given)


def _from_text(text: str, tokenizer: Any, vocab_size: int) -> tuple[int, ...]:
    if tokenizer is None:
        raise ValueError("this engine has no tokenizer: give the prompt as token ids")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the prompt is no valid text: a lone surrogate {text[error.start]!a} at position {error.start}") from error
    ids = tuple(tokenizer(text, verbose=False)["input_ids"])      # the length is checked here, not warned about
    if not ids:
        raise ValueError(f"the prompt {text!r} is empty: at least 1 token is needed")
    check_ids("the tokenized prompt", ids, vocab_size)
    return ids
