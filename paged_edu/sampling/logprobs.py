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
    own_logprobs, own_ranks = (own - normalizer)[:, 0].tolist(), _ranks(logits, own, wanted).tolist()
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


def _count(mask: Tensor) -> Tensor:
    """How many are true in each row; in 32 bits, which is several times as fast as in the usual 64."""
    return mask.sum(-1, dtype=torch.int32)


def _ranks(logits: Tensor, own: Tensor, tokens: Tensor) -> Tensor:
    """Rank ``[R]`` of the ``tokens`` ``[R, 1]``, whose logits are ``own``: one more than there are before it, equal ones in order of ids."""
    before = _count(logits > own)
    tied = (_count(logits >= own) - before > 1).nonzero()[:, 0]
    if len(tied):
        ids = torch.arange(logits.shape[-1], device=logits.device)
        before[tied] += _count((logits[tied] == own[tied]) & (ids < tokens[tied]))
    return before + 1


def _most_probable(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Ids and logits, ``[R, k]`` each, of the k largest logits of each row; equal ones in order of ids.

    ``topk`` leaves the order of equals open. Those that it found are put in order; where some that it left out equal the last one, the row is
    looked at again.
    """
    values, ids = logits.topk(min(k + 1, logits.shape[-1]), dim=-1)
    ids = ids[:, :k].sort(dim=-1).values
    if 0 < k < logits.shape[-1]:
        for row in (values[:, k - 1] == values[:, k]).nonzero()[:, 0].tolist():
            above, equal = (mask.nonzero()[:, 0] for mask in (logits[row] > values[row, k], logits[row] == values[row, k]))
            ids[row] = torch.cat([above, equal[: k - len(above)]])
    values, order = logits.gather(-1, ids).sort(dim=-1, descending=True, stable=True)
    return ids.gather(-1, order), values
