"""Beam search: which branches of a request go on after a step, and which ones end, as a function that remembers nothing.

The sequences themselves say all there is to know: their tokens and their cumulative log-probability. So preemption, recomputation and a restart
have nothing to bring back. Forking, copy-on-write and freeing are the scheduler's (Paper §4.4); candidates, scores and the end of the search
follow transformers' ``generate(num_beams=...)``, against which they are tested.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from torch import Tensor, inf, tensor

from .. import checks
from ..core.plan import Branch
from ..core.sequence import Request
from ..core.sequence import Sequence as Branched

_LARGEST_DIVISOR = 1e100
"""``length ** length_penalty`` and its inverse stay within it: no score overflows or rounds to zero."""


@dataclass(frozen=True, kw_only=True)
class BeamSearchParams:
    """How to search for the most probable outputs. Deterministic, over the model's own distribution: there is no temperature.

    Raises ValueError, with the value and its limits, for what cannot be.
    """

    beam_width: int
    """Branches that are kept after each step."""
    max_tokens: int = 16
    """At most that many output tokens; at least 1."""
    n: int | None = None
    """Outputs to return, best first; at most ``beam_width``. None: ``beam_width``."""
    ignore_eos: bool = False
    """Go on after the model's end token; the user's own stop tokens still count."""
    length_penalty: float = 1.0
    """An output's score is its log-probability over ``length ** length_penalty``: above 0 favours long ones, below 0 short ones."""
    early_stopping: bool | Literal["never"] = False
    """When to stop, with ``beam_width`` outputs finished. True: at once. False: when the best branch, at its length now, scores no better than the
    worst of them. "never": as False, but where a longer branch may still gain, at the greatest length that it can reach."""
    stop_token_ids: Sequence[int] | None = None
    """Tokens that end an output besides the model's own end tokens."""
    min_tokens: int = 0
    """No end token before that many output tokens."""
    skip_special_tokens: bool = True
    """Leave special tokens, such as the end token, out of the text."""

    # What sampling has and a beam search does not, for whoever handles both.
    stop: ClassVar[tuple[str, ...]] = ()
    include_stop_str_in_output: ClassVar[bool] = False

    def __post_init__(self) -> None:
        checks.integer("beam_width", self.beam_width, 1)
        checks.integer("max_tokens", self.max_tokens, 1)
        checks.integer("min_tokens", self.min_tokens, 0)
        if self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens ({self.min_tokens}) must be at most max_tokens ({self.max_tokens})")
        if self.n is not None:
            checks.integer("n (outputs of a beam search, at most beam_width)", self.n, 1, self.beam_width)
        limit = math.log(_LARGEST_DIVISOR) / math.log(max(self.max_tokens, 2))
        checks.number(f"length_penalty with max_tokens={self.max_tokens}", self.length_penalty, -limit, limit)
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise ValueError(f"early_stopping must be True, False or 'never', not {self.early_stopping!r}")
        for name in ("ignore_eos", "skip_special_tokens"):
            checks.flag(name, getattr(self, name))
        object.__setattr__(self, "stop_token_ids", checks.token_ids("stop_token_ids", self.stop_token_ids))

    @property
    def num_returned(self) -> int:
        """Outputs that the request returns."""
        return self.beam_width if self.n is None else self.n


class Beam(NamedTuple):
    """A live branch."""

    seq_id: int
    logprob: float
    """Cumulative log-probability (natural logarithm) of its output tokens."""


class Hypothesis(NamedTuple):
    """A finished branch."""

    logprob: float
    """Cumulative log-probability (natural logarithm) of its output tokens, end token included."""
    num_tokens: int
    """Its output tokens, end token included."""


class _Candidate(NamedTuple):
    """A live branch and one token more."""

    seq_id: int
    token: int
    logprob: float
    """Of the token."""
    total: float
    """Cumulative, token included."""


def search(params: BeamSearchParams, request: Request, logprobs: Tensor) -> tuple[Branch, ...]:
    """`choose` for a request as it is: ``logprobs`` ``[len(request.live), V]`` are those of its live sequences, in order."""
    return choose(
        params, [Beam(seq.seq_id, seq.cumulative_logprob) for seq in request.live], hypotheses(request), logprobs,
        end_ids=request.eos_token_ids | request.stop_token_ids, num_output=request.live[0].num_output_tokens + 1, max_output=request.max_tokens,
    )


def ended(request: Request) -> list[Branched]:
    """The sequences of a request that are finished hypotheses; those that the search dropped are none."""
    return [seq for seq in request.sequences if seq.finish_reason not in (None, "pruned")]


def hypotheses(request: Request) -> list[Hypothesis]:
    """What `ended` gives, as `choose` and `rank` read it."""
    return [Hypothesis(seq.cumulative_logprob, seq.num_output_tokens) for seq in ended(request)]


def choose(
    params: BeamSearchParams, live: Sequence[Beam], finished: Sequence[Hypothesis], logprobs: Tensor, *,
    end_ids: frozenset[int], num_output: int, max_output: int,
) -> tuple[Branch, ...]:
    """The branches of a request after this step: first those that go on, best first, then those that end in it, best first.

    ``logprobs`` ``[len(live), V]``, float32 or float64: log-probabilities of the next token of each live branch, in order; -inf: never taken.
    ``finished``: every hypothesis so far, in the order of finishing. ``end_ids``: all tokens that end an output. ``num_output``: output tokens of a
    branch once this step's token is appended; ``max_output``: the most that it may have.

    Only candidates among the best ``beam_width`` can end ("stop" for an end token, "length" at ``max_output``); an end token further down is
    dropped, and the best ``beam_width`` of the others go on. No branch that goes on: the search is over. Equal candidates are taken in live
    order, then in order of token ids. Raises ValueError if ``logprobs`` has another number of rows than there are live branches.
    """
    if logprobs.dim() != 2 or len(logprobs) != len(live):
        raise ValueError(f"logprobs of shape {list(logprobs.shape)} for {len(live)} live branches; [{len(live)}, V] is needed")
    # At most len(end_ids) candidates a branch end, so that many times the width, plus the width, always holds enough that go on.
    candidates = _best_candidates(live, logprobs, params.beam_width * (1 + len(end_ids)))
    if num_output <= params.min_tokens:
        candidates = [c for c in candidates if c.token not in end_ids]
    going: list[_Candidate] = []
    ended: list[tuple[_Candidate, str]] = []
    for place, candidate in enumerate(candidates):
        reason = "stop" if candidate.token in end_ids else "length" if num_output >= max_output else None
        if reason is None:
            going.append(candidate)
        elif place < params.beam_width:
            ended.append((candidate, reason))
    hypotheses = [*finished, *(Hypothesis(candidate.total, num_output) for candidate, _ in ended)]
    if going and not _can_improve(params, Hypothesis(going[0].total, num_output), hypotheses, max_output):
        going = []
    survivors = [Branch(c.seq_id, (c.token,), logprob=c.logprob) for c in going[: params.beam_width]]
    return (*survivors, *(Branch(c.seq_id, (c.token,), logprob=c.logprob, finish_reason=reason) for c, reason in ended))


def score(hypothesis: Hypothesis, params: BeamSearchParams) -> float:
    """What hypotheses are compared by: higher is better. A search that ended before its first token counts as one of length 1."""
    return float(hypothesis.logprob / max(hypothesis.num_tokens, 1) ** params.length_penalty)


def rank(finished: Sequence[Hypothesis], params: BeamSearchParams) -> tuple[int, ...]:
    """Indices into ``finished`` (in the order of finishing) of the outputs to return, best first; of equals the one that finished first."""
    scores = [score(hypothesis, params) for hypothesis in finished]
    return tuple(sorted(range(len(finished)), key=lambda i: -scores[i])[: params.num_returned])


def check_vocab(params: BeamSearchParams, vocab_size: int, end_ids: frozenset[int], max_output: int | None = None) -> None:
    """Refuse a beam wider than there are different outputs, by ValueError; otherwise a search always ends with ``beam_width`` of them.

    ``vocab_size``: tokens that can be sampled. ``max_output``: the most output tokens; None: ``max_tokens``.
    """
    length = params.max_tokens if max_output is None else min(max_output, params.max_tokens)
    num_ends = sum(0 <= token < vocab_size for token in end_ids)
    num_others = vocab_size - num_ends
    if num_others > 1:
        outputs, open_branches, num_output = 0, 1, 0
        while num_output < length and outputs + open_branches < params.beam_width:     # an open branch is one output at least
            num_output += 1
            outputs += open_branches * num_ends if num_output > params.min_tokens else 0
            open_branches *= num_others
        outputs += open_branches
    elif num_others == 1:
        outputs = max(length - params.min_tokens, 0) * num_ends + 1
    else:
        outputs = num_ends if params.min_tokens == 0 else 0
    if outputs < params.beam_width:
        raise ValueError(
            f"beam_width must be at most {outputs}, not {params.beam_width}: a vocabulary of {vocab_size}, end tokens among them: {num_ends}, "
            f"has no more outputs of at most {length} tokens (min_tokens={params.min_tokens})"
        )


def _best_candidates(live: Sequence[Beam], logprobs: Tensor, count: int) -> list[_Candidate]:
    """The ``count`` best candidates, or all if there are fewer, best first; equal ones in live order, then in order of token ids.

    ``topk`` leaves the order of equals open: it gives the threshold only, and what reaches it is sorted stably.
    """
    threshold = logprobs.topk(min(count, logprobs.shape[-1]), dim=-1).values[:, -1:]
    rows, tokens = (logprobs >= threshold).nonzero(as_tuple=True)
    steps = logprobs[rows, tokens].double()
    totals = steps + tensor([beam.logprob for beam in live], dtype=steps.dtype, device=steps.device)[rows]
    totals, order = totals.sort(descending=True, stable=True)
    order = order[:count]
    columns = rows[order].tolist(), tokens[order].tolist(), steps[order].tolist(), totals.tolist()
    return [_Candidate(live[row].seq_id, token, step, total) for row, token, step, total in zip(*columns) if total > -inf]


def _can_improve(params: BeamSearchParams, best: Hypothesis, hypotheses: Sequence[Hypothesis], max_output: int) -> bool:
    """Whether going on with the ``best`` live branch may still change the result."""
    if len(hypotheses) < params.beam_width:
        return True
    if params.early_stopping is True:
        return False
    if params.early_stopping == "never" and params.length_penalty > 0:
        best = best._replace(num_tokens=max_output)
    worst = sorted((score(hypothesis, params) for hypothesis in hypotheses), reverse=True)[params.beam_width - 1]
    return score(best, params) > worst
