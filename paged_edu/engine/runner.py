"""The runner: carries a `SchedulerOutput` out on the model and samples (Paper §4.3, §5).

A runner is all that changes between a CPU, a GPU, a fake and a simulator: the scheduler hands each of them the same plan.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from ..attention.cache import KVCache
from ..attention.metadata import Attend, ModelInput, build_input
from ..attention.swap import Swapper
from ..core.plan import ScheduledSeq, SchedulerOutput, StepResult
from ..model.spec import CausalLM
from ..sampling.logprobs import ROWS_AT_ONCE, TokenLogprobs
from ..sampling.sampler import Sampler, SamplingState, State


class Runner(Protocol):
    """Carries one step out: swap out, swap in, copies, then writes and attention, then sampling."""

    gives_logprobs: bool
    """Whether it answers ``logprobs`` and ``prompt_logprobs``; an engine refuses them otherwise."""

    def execute(self, output: SchedulerOutput, sampling: Mapping[str, State]) -> StepResult:
        """Run the plan. ``sampling`` maps every scheduled request id to how its tokens are chosen."""
        ...


class ModelRunner:
    """Runs the plan on a torch model.

    ``model`` and ``cache`` are on ``device``; ``attend`` is the attention backend, called ``backend``; ``cpu_cache`` holds the
    blocks of swapped-out sequences (None: nothing is ever swapped); ``clock`` gives seconds.
    """

    gives_logprobs = True

    def __init__(
        self, model: CausalLM, cache: KVCache, attend: Attend, sampler: Sampler, device: torch.device,
        clock: Callable[[], float] = time.perf_counter, cpu_cache: KVCache | None = None, backend: str = "reference",
    ) -> None:
        self.model: CausalLM | None = model
        self.cache: KVCache | None = cache
        self.cpu_cache = cpu_cache
        self.swapper = Swapper(cache, cpu_cache) if cpu_cache is not None else None
        self.attend = attend
        self.backend = backend
        self.sampler = sampler
        self.device = device
        self.clock = clock

    @torch.inference_mode()
    def execute(self, output: SchedulerOutput, sampling: Mapping[str, State]) -> StepResult:
        if self.model is None or self.cache is None:
            raise RuntimeError("this runner is closed")
        start = self.clock()
        if output.swap_out or output.swap_in:
            if self.swapper is None:
                raise RuntimeError(f"step {output.step} swaps blocks, and this runner has no cache in host memory")
            self.swapper.out(output.swap_out)
            self.swapper.back(output.swap_in)
        self.cache.copy_blocks(output.copies)
        if not output.scheduled:
            return StepResult(elapsed=self.clock() - start)
        batch = build_input(output.scheduled, self.cache.block_size, self.device)
        hidden = self.model(batch.input_ids, batch.positions, self.cache, batch.meta, self.attend)
        sampled = [item for item in output.scheduled if item.num_samples]
        rows, prompts = batch.logits_rows, {}
        if len(rows) > len(sampled):                # somebody wants the logits of its prompt as well
            prompts = self._prompt_logprobs(self.model, batch, hidden, output.scheduled, sampling)
            ends = [end for item, end in zip(output.scheduled, accumulate(batch.logits_counts)) if item.num_samples]
            rows = rows[[end - 1 for end in ends]]
        branches = self.sampler.branch(self.model.logits(hidden[rows]), sampled, sampling) if sampled else {}
        return StepResult(branches, self.clock() - start, prompts)

    def _prompt_logprobs(
        self, model: CausalLM, batch: ModelInput, hidden: Tensor, scheduled: Sequence[ScheduledSeq], sampling: Mapping[str, State],
    ) -> dict[str, tuple[int, tuple[TokenLogprobs, ...]]]:
        """What the wanted logits of prompts say of the tokens after them; a few rows at a time, however long a prompt is.

        Raises BrokenLogitsError for a request whose logits are not finite.
        """
        found: dict[str, tuple[int, tuple[TokenLogprobs, ...]]] = {}
        for item, count, end in zip(scheduled, batch.logits_counts, accumulate(batch.logits_counts), strict=True):
            own = bool(item.num_samples)            # the last row is for the first output token
            rows, state = batch.logits_rows[end - count : end - own], sampling[item.request_id]
            if not len(rows) or not isinstance(state, SamplingState):
                continue
            first, k = item.seq_len - own - len(rows) + 1, state.params.prompt_logprobs or 0
            entries: list[TokenLogprobs] = []
            for at in range(0, len(rows), ROWS_AT_ONCE):
                part = rows[at : at + ROWS_AT_ONCE]
                tokens = state.request.prompt_token_ids[first + at : first + at + len(part)]
                entries += self.sampler.prompt_token_logprobs(item.request_id, model.logits(hidden[part]), tokens, k)
            found[item.request_id] = first, tuple(entries)
        return found

    def close(self) -> None:
        """Drop weights and cache."""
        if self.swapper is not None:
            self.swapper.wait()
        self.model = self.cache = self.cpu_cache = self.swapper = None
