"""The runner: carries a `SchedulerOutput` out on the model and samples (Paper §4.3, §5).

A runner is all that changes between a CPU, a GPU, a fake and a simulator: the scheduler hands each of them the same plan.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

import torch

from ..attention.cache import KVCache
from ..attention.metadata import Attend, build_input
from ..checks import UnsupportedError
from ..core.plan import Branch, SchedulerOutput, StepResult
from ..model.spec import CausalLM
from ..sampling.sampler import Sampler, SampleRow, SamplingState


class Runner(Protocol):
    """Carries one step out: swap out, swap in, copies, then writes and attention, then sampling."""

    def execute(self, output: SchedulerOutput, sampling: Mapping[str, SamplingState]) -> StepResult:
        """Run the plan. ``sampling`` maps every scheduled request id to how its tokens are chosen."""
        ...


class ModelRunner:
    """Runs the plan on a torch model.

    ``model`` and ``cache`` are on ``device``; ``attend`` is the attention backend; ``clock`` gives seconds.
    """

    def __init__(
        self, model: CausalLM, cache: KVCache, attend: Attend, sampler: Sampler, device: torch.device,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.model: CausalLM | None = model
        self.cache: KVCache | None = cache
        self.attend = attend
        self.sampler = sampler
        self.device = device
        self.clock = clock

    @torch.inference_mode()
    def execute(self, output: SchedulerOutput, sampling: Mapping[str, SamplingState]) -> StepResult:
        if self.model is None or self.cache is None:
            raise RuntimeError("this runner is closed")
        if output.swap_out or output.swap_in or any(item.num_samples > 1 for item in output.scheduled):
            raise UnsupportedError(f"step {output.step} swaps blocks or samples several branches at once, which is not served yet")
        start = self.clock()
        if output.copies:
            self.cache.copy_blocks(output.copies)
        if not output.scheduled:
            return StepResult(elapsed=self.clock() - start)
        batch = build_input(output.scheduled, self.cache.block_size, self.device)
        hidden = self.model(batch.input_ids, batch.positions, self.cache, batch.meta, self.attend)
        branches: dict[str, tuple[Branch, ...]] = {}
        sampled = [item for item in output.scheduled if item.num_samples]
        if sampled:
            rows = [SampleRow(item.request_id, sampling[item.request_id], item.branch, item.seq_len) for item in sampled]
            tokens = self.sampler.sample(self.model.logits(hidden[batch.logits_rows]), rows)
            for item, token in zip(sampled, tokens, strict=True):
                branches[item.request_id] = (*branches.get(item.request_id, ()), Branch(item.seq_id, (token,)))
        return StepResult(branches, self.clock() - start)

    def close(self) -> None:
        """Drop weights and cache."""
        self.model = self.cache = None
