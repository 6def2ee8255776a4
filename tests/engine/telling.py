"""A fake runner that tells log-probabilities: each is a function of every byte that its position reads through the block table."""
import numpy as np

from paged_edu import Logprob
from paged_edu.engine.fake_runner import FakeRunner, _mix


def entry(cells, token):
    """About ``token``, after the cells of the tokens before it."""
    digest = int(cells.sum(dtype=np.uint64)) ^ (token * 0x9E3779B97F4A7C15)
    return {token: Logprob(-(digest % 9973) / 100, 1)}


def entries_of(token_ids, first):
    """What `TellingRunner` says of ``token_ids[first:]`` if no byte is ever lost: computed from the tokens alone."""
    cells = _mix(np.array(token_ids), np.arange(len(token_ids)))
    return [entry(cells[:i], token_ids[i]) for i in range(first, len(token_ids))]


class TellingRunner(FakeRunner):
    gives_logprobs = True

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.told = []
        """(request id, position) of every prompt token that it has told something about."""

    def execute(self, output, sampling=None):
        result = super().execute(output, sampling)
        prompts, branches = {}, dict(result.branches)
        for item in output.scheduled:
            cells, request = self._read(item), sampling[item.request_id].request
            first = item.start + (item.num_new if item.logits_from is None else item.logits_from) + 1
            stop = item.seq_len + (not item.num_samples)
            if first < stop:
                prompts[item.request_id] = first, tuple(entry(cells[:i], request.prompt_token_ids[i]) for i in range(first, stop))
                self.told += [(item.request_id, i) for i in range(first, stop)]
            if item.num_samples and sampling[item.request_id].params.logprobs is not None:
                branches[item.request_id] = tuple(
                    branch._replace(logprobs=tuple(entry(cells, token) for token in branch.tokens)) if branch.parent == item.seq_id else branch
                    for branch in branches[item.request_id]
                )
        return type(result)(branches, result.elapsed, prompts)
