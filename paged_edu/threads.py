"""How many CPU threads torch may use. A small model is served faster, or as fast, by one thread, above all beside other programs.

OpenMP splits each operation over its threads and lets those that are done spin until the last one is. The operations of a small model take
microseconds: as soon as another program takes one of the processors, every operation waits for a thread that isn't running.
"""
from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .engine.llm import LLM

SMALL_MODEL = 20_000_000
"""Parameters below which one thread is enough."""
ENVIRONMENT = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""What a user sets to say how many threads there shall be."""


def one_thread_for_small_models(llm: LLM, below: int = SMALL_MODEL) -> bool:
    """Let torch use one thread if ``llm`` runs on the CPU and has fewer than ``below`` parameters; returns whether it was changed.

    For programs that serve one model, such as the commands: torch's thread count belongs to the whole process. A count that somebody has
    chosen stays as it is: one of `ENVIRONMENT` is set, or torch's count is not the one that it starts with.
    """
    import torch

    from .engine.runner import ModelRunner

    runner = llm.engine.runner
    if not isinstance(runner, ModelRunner) or runner.model is None or runner.device.type != "cpu":
        return False
    if any(os.environ.get(name) for name in ENVIRONMENT) or torch.get_num_threads() not in _own_choices():
        return False
    if runner.model.num_weights() >= below:
        return False
    torch.set_num_threads(1)
    return True


def _own_choices() -> set[int | None]:
    """What torch's thread count can be before anybody changes it: a thread a core, or one a processor that this process may use."""
    import psutil

    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {psutil.cpu_count(logical=False), os.cpu_count(), allowed} - {1}
