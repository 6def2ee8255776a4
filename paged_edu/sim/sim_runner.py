"""SimRunner: answers a step with its time by the cost model, and with tokens that mean nothing: requests end by their lengths (Paper §6)."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.plan import Branch, SchedulerOutput, StepResult
from .cost_model import CostModel


class SimRunner:
    """A runner with a clock of its own. ``separate_prefill``: prompts and single tokens run in passes of their own, as in the paper's system."""

    gives_logprobs = False

    def __init__(self, cost: CostModel, separate_prefill: bool = True) -> None:
        self.cost = cost
        self.separate_prefill = separate_prefill

    def execute(self, output: SchedulerOutput, sampling: Mapping[str, Any] | None = None) -> StepResult:
        """One token for each sample of each sequence that has caught up; ``elapsed`` is what the step would have taken."""
        branches: dict[str, tuple[Branch, ...]] = {}
        prompt_tokens = prompts = decodes = context = blocks = 0
        for item in output.scheduled:
            if len(item.token_ids) == 1:
                decodes += 1
                context += item.start + 1
                blocks += len(item.block_table)
            else:
                prompts += 1
                prompt_tokens += len(item.token_ids)
            if item.num_samples:
                # Branches write different texts: what they have in common decides how a group is recomputed.
                new = tuple(Branch(item.seq_id, (item.branch + sample,)) for sample in range(item.num_samples))
                before = branches.get(item.request_id)
                branches[item.request_id] = new if before is None else before + new
        return StepResult(branches, self._seconds(output, prompts, prompt_tokens, decodes, context, blocks))

    def _seconds(self, output: SchedulerOutput, prompts: int, prompt_tokens: int, decodes: int, context: int, blocks: int) -> float:
        cost, seconds = self.cost, 0.0
        if prompts and decodes and not self.separate_prefill:
            seconds += cost.forward(prompt_tokens + decodes, prompts + decodes)
        else:
            if prompts:
                seconds += cost.forward(prompt_tokens, prompts)
            if decodes:
                seconds += cost.forward(decodes, decodes)
        if decodes:
            seconds += cost.attention(context, blocks)
        if output.swap_out:
            seconds += cost.swap_out(len(output.swap_out))
        if output.swap_in:
            seconds += cost.swap_in(len(output.swap_in))
        return seconds
