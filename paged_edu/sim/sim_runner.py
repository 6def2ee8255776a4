"""SimRunner: answers a step with its time by the cost model, and with tokens that mean nothing: requests end by their lengths (Paper §6)."""
from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from ..core.plan import Branch, SchedulerOutput, StepResult
from .beams import BeamSearch
from .cost_model import CostModel


class SimRunner:
    """A runner with a clock of its own.

    Prompts and single tokens run in one pass (Paper §4.3); ``separate_prefill``: in passes of their own, as later systems do. ``searches`` has
    the state of each request that is a beam search; requests without one sample.
    """

    gives_logprobs = False

    def __init__(self, cost: CostModel, separate_prefill: bool = False) -> None:
        self.cost = cost
        self.separate_prefill = separate_prefill
        self.received = 0
        """Requests that came since the last step: the serving program has work with each."""
        self.searches: dict[str, BeamSearch] = {}
        self._answers: dict[int, tuple[Branch, ...]] = {}

    def execute(self, output: SchedulerOutput, sampling: Mapping[str, Any] | None = None) -> StepResult:
        """One token for each sample of each sequence that has caught up; ``elapsed`` is what the step would have taken."""
        branches: dict[str, tuple[Branch, ...]] = {}
        groups: dict[str, list[int]] = {}                   # beams that have all caught up
        searches, answers = self.searches, self._answers
        if len(answers) > 8 * len(output.scheduled) + 1000:
            answers.clear()                                 # most of them have ended
        new: tuple[Branch, ...] | None
        prompt_tokens = prompts = decodes = context = longest = 0
        for request_id, seq_id, branch, token_ids, start, _, _, _, num_samples in output.scheduled:
            num_new = len(token_ids)
            if num_new == 1:
                decodes += 1
                context += start + 1
                if start >= longest:
                    longest = start + 1
            else:
                prompts += 1
                prompt_tokens += num_new
            if num_samples:
                if searches and request_id in searches:
                    groups.setdefault(request_id, []).append(seq_id)
                    continue
                # Branches write different texts: what they have in common decides how a group is recomputed.
                if num_samples == 1:                        # the same answer in every step
                    new = answers.get(seq_id)
                    if new is None:
                        new = answers[seq_id] = (Branch(seq_id, (branch,)),)
                else:
                    new = tuple([Branch(seq_id, (branch + sample,)) for sample in range(num_samples)])
                branches[request_id] = branches[request_id] + new if request_id in branches else new
        for request_id, parents in groups.items():
            branches[request_id] = searches[request_id].step(parents)
        return StepResult(branches, self._seconds(output, prompts, prompt_tokens, decodes, context, longest))

    def _seconds(self, output: SchedulerOutput, prompts: int, prompt_tokens: int, decodes: int, context: int, longest: int) -> float:
        cost, seconds = self.cost, 0.0
        if prompts and decodes and self.separate_prefill:
            seconds += cost.forward(prompt_tokens, prompts) + cost.forward(decodes, decodes)
        elif prompts or decodes:
            seconds += cost.forward(prompt_tokens + decodes, prompts + decodes)
        if decodes:
            seconds += cost.attention(context, longest, decodes)
        if output.copies:
            copies = output.copies
            seconds += cost.copies(len(copies), sum(b.dst != a.dst + 1 for a, b in pairwise(copies)) + 1)
        if self.received:
            seconds += cost.receiving(self.received)
            self.received = 0
        if self.searches:
            seconds += cost.constants.beam_overhead * decodes
        if output.swap_out:
            seconds += cost.swap_out(len(output.swap_out))
        if output.swap_in:
            seconds += cost.swap_in(len(output.swap_in))
        return seconds
