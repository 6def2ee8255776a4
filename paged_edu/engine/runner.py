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
from ..core.plan import SchedulerOutput, StepResult
from ..model.spec import CausalLM
from ..sampling.sampler import Sampler, State


class Runner(Protocol):
    """Carries one step out: swap out, swap in, copies, then writes and attention, then sampling."""

    def execute(self, output: SchedulerOutput, sampling: Mapping[str, State]) -> StepResult:
        """Run the plan. ``sampling`` maps every scheduled request id to how its tokens are chosen."""
        ...


class ModelRunner:
    """Runs the plan on a torch model.

    ``model`` and ``cache`` are on ``device``; ``attend`` is the attention backend; ``cpu_cache`` holds the blocks of swapped-out sequences
    (None: nothing is ever swapped); ``clock`` gives seconds.
    """

    def __init__(
        self, model: CausalLM, cache: KVCache, attend: Attend, sampler: Sampler, device: torch.device,
        clock: Callable[[], float] = time.perf_counter, cpu_cache: KVCache | None = None,
    ) -> None:
        self.model: CausalLM | None = model
        self.cache: KVCache | None = cache
        self.cpu_cache = cpu_cache
        self.attend = attend
        self.sampler = sampler
        self.device = device
        self.clock = clock

    @torch.inference_mode()
    def execute(self, output: SchedulerOutput, sampling: Mapping[str, State]) -> StepResult:
        if self.model is None or self.cache is None:
            raise RuntimeError("this runner is closed")
        start = self.clock()
        if output.swap_out or output.swap_in:
            if self.cpu_cache is None:
                raise RuntimeError(f"step {output.step} swaps blocks, and this runner has no cache in host memory")
            self.cache.copy_to(self.cpu_cache, output.swap_out)
            self.cpu_cache.copy_to(self.cache, output.swap_in)
        self.cache.copy_blocks(output.copies)
        if not output.scheduled:
            return StepResult(elapsed=self.clock() - start)
        batch = build_input(output.scheduled, self.cache.block_size, self.device)
        hidden = self.model(batch.input_ids, batch.positions, self.cache, batch.meta, self.attend)
        sampled = [item for item in output.scheduled if item.num_samples]
        if not sampled:
            return StepResult(elapsed=self.clock() - start)
        branches = self.sampler.branch(self.model.logits(hidden[batch.logits_rows]), sampled, sampling)
        return StepResult(branches, self.clock() - start)

    def close(self) -> None:
        """Drop weights and cache."""
        self.model = self.cache = self.cpu_cache = None
