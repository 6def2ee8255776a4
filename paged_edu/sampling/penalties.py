"""What is done to the logits before the temperature, in this order: logit bias, repetition penalty, frequency and presence penalty, bans.

Greedy rows are treated like any other. Each row has its own parameters and its own tokens, and an entry of the batch is changed by no other row:
the entries are addressed as ``row * V + token``, one flat list for the whole batch. Penalties are computed from the tokens
themselves in every step, so a preempted or recovered request has nothing to bring back.
"""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .rows import SampleRow

Ids = npt.NDArray[np.int64]


def adjusted(logits: Tensor, rows: Sequence[SampleRow]) -> Tensor:
    """``logits`` ``[R, V]``, float32 or float64, with the biases, penalties and bans of ``rows``: a new tensor, or the same one if nobody has any."""
    touched = [i for i, row in enumerate(rows) if row.state.adjusts]
    if not touched:
        return logits
    logits = logits.clone(memory_format=torch.contiguous_format)
    _add_biases(logits, rows, touched)
    _penalise(logits, rows, [i for i in touched if rows[i].state.params.penalised])
    _ban(logits, rows, touched)
    return logits


def _add_biases(logits: Tensor, rows: Sequence[SampleRow], touched: Sequence[int]) -> None:
    vocab = logits.shape[-1]
    biases = [(i * vocab + token, bias) for i in touched for token, bias in (rows[i].state.params.logit_bias or {}).items()]
    if biases:
        where, values = zip(*biases, strict=True)
        logits.view(-1)[torch.tensor(where, device=logits.device)] += torch.tensor(values, dtype=logits.dtype, device=logits.device)


def _penalise(logits: Tensor, rows: Sequence[SampleRow], which: Sequence[int]) -> None:
    """A token that the prompt or the output has: a positive logit over the repetition penalty, a negative one times it. A token of the output:
    minus the presence penalty, and minus the frequency penalty for each time that it is there."""
    if not which:
        return
    vocab, big = logits.shape[-1], torch.finfo(logits.dtype).max
    output = _entries(which, [np.array(rows[i].output_ids, dtype=np.int64) for i in which], vocab)
    repeating = [i for i in which if rows[i].state.params.repetition_penalty != 1]
    prompts = _entries(repeating, [rows[i].state.prompt_ids for i in repeating], vocab)
    entries, place = np.unique(np.concatenate([output, prompts]), return_inverse=True)
    times = np.bincount(place[: len(output)], minlength=len(entries))       # in the output
    where = torch.from_numpy(entries).to(logits.device)
    row = np.searchsorted(which, entries // vocab)          # place in ``which``

    def penalty(name: str) -> npt.NDArray[np.float64]:
        return np.array([getattr(rows[i].state.params, name) for i in which], dtype=np.float64)[row]

    repetition = torch.from_numpy(penalty("repetition_penalty")).to(logits.device)
    minus = torch.from_numpy(penalty("frequency_penalty") * times + penalty("presence_penalty") * (times > 0)).to(logits.device)
    flat = logits.view(-1)
    values = flat[where].double()
    changed = torch.where(values > 0, values / repetition, values * repetition) - minus
    # No penalty, however extreme, makes a logit infinite: that would be taken for a broken model.
    flat[where] = torch.where(values.isfinite(), changed.clamp(-big, big), values).to(logits.dtype)


def _entries(which: Sequence[int], ids: Sequence[Ids], vocab: int) -> Ids:
    """``row * V + token`` of the tokens of each row; those of a prompt may lie beyond the V that can be sampled, and are left out."""
    parts = [i * vocab + tokens[tokens < vocab] for i, tokens in zip(which, ids, strict=True)]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _ban(logits: Tensor, rows: Sequence[SampleRow], touched: Sequence[int]) -> None:
    """Stop tokens are out of reach before ``min_tokens``."""
    vocab = logits.shape[-1]
    banned = [
        i * vocab + token for i in touched if rows[i].num_output < rows[i].state.params.min_tokens
        for token in rows[i].state.stop_ids if token < vocab
    ]
    if banned:
        logits.view(-1)[torch.tensor(banned, device=logits.device)] = -torch.inf
