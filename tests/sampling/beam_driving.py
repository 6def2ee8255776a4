"""A whole beam search over any table of log-probabilities: forks and drops as `choose` says, and nothing else."""
import math
import zlib
from functools import cache

import torch

from paged_edu.sampling.beam import Beam, Hypothesis, choose, rank, score


class Search:
    """Runs a whole search over ``logprobs(histories) -> [len(histories), V]`` and keeps every step: ``steps``, the live branches after each;
    ``finished``, (tokens, hypothesis, reason) in that order; ``results``, (tokens, cumulative, score, reason), best first."""

    def __init__(self, params, logprobs, end_ids=frozenset(), max_output=None):
        self.max_output = max_output or params.max_tokens
        self.steps = []
        live, finished = [((), 0.0)], []
        while live:
            assert len(self.steps) < self.max_output, "a search that does not end"
            branches = choose(
                params, [Beam(100 + i, total) for i, (_, total) in enumerate(live)], [h for _, h, _ in finished],
                logprobs([tokens for tokens, _ in live]), end_ids=frozenset(end_ids), num_output=len(self.steps) + 1,
                max_output=self.max_output)
            going = []
            for branch in branches:
                tokens, total = live[branch.parent - 100]
                tokens, total = tokens + branch.tokens, total + branch.logprob
                assert math.isfinite(branch.logprob)
                if branch.finish_reason is None:
                    going.append((tokens, total))
                else:
                    finished.append((tokens, Hypothesis(total, len(tokens)), branch.finish_reason))
            assert [b.finish_reason is None for b in branches] == sorted((b.finish_reason is None for b in branches), reverse=True)
            assert len({b.parent * 10**6 + b.tokens[0] for b in branches}) == len(branches)
            assert [total for _, total in going] == sorted((total for _, total in going), reverse=True)
            assert len(going) <= params.beam_width
            live = going
            self.steps.append([list(tokens) for tokens, _ in live])
        self.finished = finished
        order = rank([h for _, h, _ in finished], params)
        self.results = [(finished[i][0], finished[i][1].logprob, score(finished[i][1], params), finished[i][2]) for i in order]


def random_table(seed, vocab, sharpness=2.0):
    """Float64 log-probabilities that depend on the whole history."""
    @cache
    def row(tokens):
        g = torch.Generator().manual_seed(zlib.crc32(repr((seed, tokens)).encode()))
        return torch.log_softmax(sharpness * torch.randn(vocab, generator=g, dtype=torch.float64), -1)
    return lambda histories: torch.stack([row(tokens) for tokens in histories])
