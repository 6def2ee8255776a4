"""Log-probabilities as users get them: natural logarithms of the model's own distribution, before bias, penalties, temperature and filters.

k asked for gives the k most probable tokens and, if it is not among them, the token that is there; k = 0 gives that one alone. Tokens that the
tokenizer does not know (padding of the head) are no part of the distribution. Nothing here needs a softmax over the whole batch: of each row
only its logsumexp and the logits of the entries that are given.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

LOWEST_LOGPROB = -9999.0
"""Reported for a token of probability 0, whose logarithm is -inf: JSON has no infinity, and sums stay finite."""

ROWS_AT_ONCE = 128
"""Rows of a long prompt whose logits are made together: with a vocabulary of 50,000 in float32 that is 25 MB instead of a gigabyte."""

_Bytes = bytes


class Logprob(NamedTuple):
    """A token at a position of a text: how probable the model found it there."""

    logprob: float
    """Natural logarithm of its probability; `LOWEST_LOGPROB` at least, so it is always finite."""
    rank: int
    """1: the most probable token. Of equally probable ones the smaller id comes first."""
    decoded_token: str | None = None
    """Its text alone, with U+FFFD for parts of characters; None without a tokenizer."""
    bytes: _Bytes | None = None
    """Its bytes; those of several tokens, joined, are text where none of them is alone. None where the tokenizer does not say what they are."""


TokenLogprobs = dict[int, Logprob]
"""The tokens at one position by id, in order of rank."""


def token_logprobs(logits: Tensor, tokens: Sequence[int], k: int) -> list[TokenLogprobs]:
    """An entry for each row of ``logits`` ``[R, V]``, float32 or float64: its ``k`` most probable tokens, and the one of ``tokens`` ``[R]``.

    A token of V or more (a prompt may have it) is possible nowhere. The rows must have finite maxima.
    """
    vocab = logits.shape[-1]
    normalizer = logits.logsumexp(-1, keepdim=True)
    wanted = torch.tensor(tokens, device=logits.device)[:, None]
    own = logits.gather(-1, wanted.clamp_max(vocab - 1))
    before = (logits > own).sum(-1) + ((logits == own) & (torch.arange(vocab, device=logits.device) < wanted)).sum(-1)
    own_logprobs, own_ranks = (own - normalizer)[:, 0].tolist(), (before + 1).tolist()
    top_ids, top = _most_probable(logits, k)
    rows = zip(top_ids.tolist(), (top - normalizer).tolist(), tokens, own_logprobs, own_ranks, strict=True)
    found = []
    for ids, logprobs, token, logprob, rank in rows:
        entry = {id_: Logprob(max(value, LOWEST_LOGPROB), place) for place, (id_, value) in enumerate(zip(ids, logprobs, strict=True), 1)}
        if token >= vocab:
            entry[token] = Logprob(LOWEST_LOGPROB, vocab + 1)
        elif token not in entry:
            entry[token] = Logprob(max(logprob, LOWEST_LOGPROB), rank)
        found.append(entry)
    return found


def _most_probable(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Ids and logits, ``[R, k]`` each, of the k largest logits of each row; equal ones in order of ids.

    ``topk`` leaves the order of equals open: it gives the k-th value only.
    """
    if k == 0:
        return logits.new_empty(len(logits), 0, dtype=torch.int64), logits.new_empty(len(logits), 0)
    threshold = logits.topk(k, dim=-1).values[:, -1:]
    above, equal = logits > threshold, logits == threshold
    room = k - above.sum(-1, keepdim=True)
    keep = above | equal if bool((equal.sum(-1, keepdim=True) == room).all()) else above | (equal & (equal.cumsum(-1) <= room))
    ids = keep.nonzero()[:, 1].view(len(logits), k)
    values, order = logits.gather(-1, ids).sort(dim=-1, descending=True, stable=True)
    return ids.gather(-1, order), values
