"""From logits to tokens: bias and penalties (in `penalties`), temperature, top-k, top-p, min-p, and one random number a token.

The uniform number of a token comes from a counter-based generator, Philox, at (seed, branch, position, draw). There is no generator state to
carry along: a request with a seed gets the same numbers whatever shares its batch and whether it was preempted and recomputed. The token
is where the cumulative distribution, in order of token ids, passes that number.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ..core.plan import Branch, ScheduledSeq
from .beam import search
from .logprobs import TokenLogprobs, token_logprobs
from .penalties import adjusted
from .rows import BeamState as BeamState
from .rows import BrokenLogitsError as BrokenLogitsError
from .rows import SampleRow as SampleRow
from .rows import SamplingState as SamplingState
from .rows import State as State


class UniformNumbers:
    """Uniform numbers in [0, 1) at any (seed, branch, position, draw), from numpy's Philox 4x64.

    ``draw`` tells several numbers for the same token apart; plain sampling uses number 0.
    """

    def __init__(self) -> None:
        self._generator = np.random.Philox(key=np.zeros(2, dtype=np.uint64))
        self._state = self._generator.state

    def at(self, seed: int, branch: int, position: int, draw: int = 0) -> float:
        self._state["state"]["key"][:] = seed, branch
        self._state["state"]["counter"][:] = position, draw, 0, 0
        self._generator.state = self._state
        return float(int(self._generator.random_raw()) >> 11) * 2.0**-53


def filtered_probabilities(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Probabilities ``[R, V]`` after temperature, then top-k, then top-p, then min-p; each row by its own parameters.

    ``logits`` ``[R, V]`` float32 or float64; the parameters ``[R]``. A ``top_k`` below 1 or above V keeps all; ties with the k-th token are kept.
    """
    vocab = logits.shape[-1]
    scaled = logits - logits.amax(-1, keepdim=True)                       # first the maximum: no temperature can overflow then
    scaled = scaled / temperature.clamp(1e-10, 1e30)[:, None]
    if bool(((top_k < 1) | (top_k >= vocab)).all() and (top_p >= 1).all() and (min_p <= 0).all()):
        return scaled.softmax(-1)
    ordered, ids = scaled.sort(dim=-1, descending=True, stable=True)
    k = torch.where(top_k < 1, vocab, top_k.clamp_max(vocab))
    keep = ordered >= ordered.gather(-1, (k - 1)[:, None])
    probs = ordered.masked_fill(~keep, -torch.inf).softmax(-1)
    before = probs.cumsum(-1) - probs
    keep &= (before < top_p[:, None]) | (top_p[:, None] >= 1)
    keep &= probs >= min_p[:, None] * probs[:, :1]
    keep[:, 0] = True                                                     # a top_p that rounds to 0 still keeps the most probable
    keep = torch.zeros_like(keep).scatter(-1, ids, keep)
    return scaled.masked_fill(~keep, -torch.inf).softmax(-1)


def inverse_cdf(probs: Tensor, uniforms: Tensor) -> Tensor:
    """Token ids ``[R]``: the first id whose cumulative probability exceeds the row's uniform number. Never a token of probability 0."""
    cdf = probs.double().cumsum(-1)
    total = cdf[:, -1:].contiguous()
    token = torch.searchsorted(cdf, uniforms[:, None] * total, right=True)
    last = torch.searchsorted(cdf, total, right=False)                    # rounding may put the number on the total itself
    return torch.minimum(token, last)[:, 0]


class Sampler:
    """Samples a batch of rows. ``vocab_limit``: ids from there on are padding of the head and never sampled."""

    def __init__(self, vocab_limit: int | None = None) -> None:
        self.vocab_limit = vocab_limit
        self._uniform = UniformNumbers()

    def branch(self, logits: Tensor, items: Sequence[ScheduledSeq], states: Mapping[str, State]) -> dict[str, tuple[Branch, ...]]:
        """How each request goes on that samples in this step.

        ``logits`` ``[R, V]``: one row for each of ``items``, the sequences that have caught up. Sampling: one branch for each of an item's
        ``num_samples``, every one with its own random numbers. Beam search: all survivors and the hypotheses that end.
        """
        logits = self.without_padding(logits)
        rows: list[SampleRow] = []
        index: list[int] = []
        beams: dict[str, tuple[BeamState, list[int]]] = {}
        for i, item in enumerate(items):
            state = states[item.request_id]
            if isinstance(state, BeamState):
                beams.setdefault(item.request_id, (state, []))[1].append(i)
                continue
            output_ids = _output_ids(item, state) if state.params.penalised else ()
            for sample in range(item.num_samples):
                rows.append(SampleRow(item.request_id, state, item.branch + sample, item.seq_len, output_ids))
                index.append(i)
        branches: dict[str, tuple[Branch, ...]] = {}
        if rows:
            sampled = logits if len(index) == len(logits) == len(items) and not beams else logits[index]
            tokens = self.sample(sampled, rows)
            known = _logprobs(sampled, rows, tokens)
            for row, i in enumerate(index):
                item = items[i]
                branch = Branch(item.seq_id, (tokens[row],), (known[row],) if known and row in known else None)
                branches[item.request_id] = (*branches.get(item.request_id, ()), branch)
        for request_id, (state, where) in beams.items():
            if not bool(logits[where].amax(-1).isfinite().all()):
                raise BrokenLogitsError([request_id])
            branches[request_id] = search(state.params, state.request, logits[where].log_softmax(-1))
        return branches

    def sample(self, logits: Tensor, rows: Sequence[SampleRow]) -> list[int]:
        """One token for each row of ``logits`` ``[R, V]``. Raises BrokenLogitsError if a row has no finite maximum."""
        logits = adjusted(self.without_padding(logits), rows)
        best, tokens = logits.max(-1)
        if not bool(best.isfinite().all()):
            raise BrokenLogitsError([rows[i].request_id for i in (~best.isfinite()).nonzero()[:, 0].tolist()])
        random = [i for i, row in enumerate(rows) if not row.state.params.greedy]
        if random:
            index = torch.tensor(random, device=logits.device)
            tokens[index] = self._draw(logits[index], [rows[i] for i in random])
        sampled: list[int] = tokens.tolist()
        return sampled

    def prompt_token_logprobs(self, request_id: str, logits: Tensor, tokens: Sequence[int], k: int) -> list[TokenLogprobs]:
        """The log-probabilities of prompt tokens: ``tokens`` ``[R]``, each with the logits of the position before it, ``[R, V]``.

        Raises BrokenLogitsError if a row has no finite maximum.
        """
        logits = self.without_padding(logits)
        if not bool(logits.amax(-1).isfinite().all()):
            raise BrokenLogitsError([request_id])
        return token_logprobs(logits, tokens, k)

    def without_padding(self, logits: Tensor) -> Tensor:
        """``[R, V]`` in float32 or float64, with the tokens that there are."""
        logits = logits[:, : self.vocab_limit]
        return logits if logits.dtype == torch.float64 else logits.float()

    def _draw(self, logits: Tensor, rows: Sequence[SampleRow]) -> Tensor:
        def column(name: str, dtype: torch.dtype) -> Tensor:
            return torch.tensor([getattr(row.state.params, name) for row in rows], dtype=dtype, device=logits.device)

        top_k = torch.tensor([min(row.state.params.top_k, logits.shape[-1]) for row in rows], device=logits.device)     # any integer will do
        probs = filtered_probabilities(
            logits, column("temperature", logits.dtype), top_k, column("top_p", logits.dtype), column("min_p", logits.dtype),
        )
        uniforms = [self._uniform.at(row.state.seed, row.branch, row.position) for row in rows]
        return inverse_cdf(probs, torch.tensor(uniforms, dtype=torch.float64, device=logits.device))


def _output_ids(item: ScheduledSeq, state: SamplingState) -> Sequence[int]:
    """The output tokens of the sequence that is sampled: it has caught up, so they are all that it has."""
    return next(seq.output_token_ids for seq in state.request.live if seq.seq_id == item.seq_id)


def _logprobs(logits: Tensor, rows: Sequence[SampleRow], tokens: Sequence[int]) -> dict[int, TokenLogprobs]:
    """For each row that asks for it, what `token_logprobs` gives for its sampled token. ``logits``: the model's own."""
    asking: dict[int, list[int]] = {}       # how many of the most probable -> rows
    for i, row in enumerate(rows):
        if row.state.params.logprobs is not None:
            asking.setdefault(row.state.params.logprobs, []).append(i)
    found: dict[int, TokenLogprobs] = {}
    for k, which in asking.items():
        own = logits if len(which) == len(logits) else logits[which]
        found |= zip(which, token_logprobs(own, [tokens[i] for i in which], k), strict=True)
    return found
