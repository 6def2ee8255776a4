"""Prompts: text, token ids or a dict of one of them, turned into checked token ids before anything is queued."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or a dict with a ``"prompt"`` (text), ``"prompt_token_ids"``, or both: then the ids count, and the text is only shown. A dict may
also have a ``"cache_salt"``, a text: only requests with the same salt find each other's cached prefixes."""


def check_ids(name: str, ids: Sequence[Any], vocab_size: int) -> None:
    """Refuse what is no token id of the model: it must never be used as an index."""
    if {*map(type, ids)} == {int} and min(ids) >= 0 and max(ids) < vocab_size:
        return                                              # nearly always; what follows says what is wrong, or knows numpy's integers
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
        given = {key: value for key, value in prompt.items() if key != "cache_salt"}
        if {"role", "content"} <= set(given):
            raise ValueError("this prompt is a message of a conversation: chat(messages) answers it; render_chat(messages) makes a prompt of it")
        if not given or not set(given) <= {"prompt", "prompt_token_ids"}:
            raise ValueError(f"a prompt given as a dict has the keys 'prompt' or 'prompt_token_ids', not {sorted(map(str, prompt))}")
        for key, value in given.items():
            if (key == "prompt") != isinstance(value, str) or isinstance(value, Mapping):
                raise TypeError(f"{key!r} must be {'text' if key == 'prompt' else 'a list of token ids'}, not {type(value).__name__}")
        if len(given) == 2:
            return given["prompt"], tokenize(given["prompt_token_ids"], tokenizer, vocab_size)[1]
        (prompt,) = given.values()
    if isinstance(prompt, str):
        return prompt, _from_text(prompt, tokenizer, vocab_size)
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
        raise TypeError(f"a prompt is text or a list of token ids, not {type(prompt).__name__}")
    ids: list[Any] = list(prompt)
    if not ids:
        raise ValueError("the prompt is empty: at least 1 token is needed")
    check_ids("prompt_token_ids", ids, vocab_size)
    return None, tuple(map(int, ids))


def salt_of(prompt: Prompt) -> str | None:
    """The ``cache_salt`` of a prompt, if it has one. Raises ValueError for one that is no text, or empty."""
    if not isinstance(prompt, Mapping) or "cache_salt" not in prompt:
        return None
    salt = prompt["cache_salt"]
    if not isinstance(salt, str) or not salt:
        raise ValueError(f"cache_salt must be a text that is not empty, not {salt!r}")
    return salt


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
