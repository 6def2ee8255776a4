"""SchedulerConfig: the limits of a step, validated in one place, whoever builds a scheduler."""
from __future__ import annotations

from dataclasses import dataclass

PREEMPTION_MODES = ("auto", "recompute", "swap")
"""The values of ``preemption_mode``."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What the scheduler may put into one step. Raises ValueError that names both numbers where two limits contradict each other."""

    max_model_len: int
    max_num_seqs: int = 256
    """Sequences that may run at the same time."""
    max_num_batched_tokens: int = 2048
    """Token budget of a step."""
    long_prefill_token_threshold: int = 0
    """Longest chunk of a prompt in one step; 0: only the budget bounds it."""
    enable_chunked_prefill: bool = True
    preemption_mode: str = "auto"
    """How a preempted request comes back: "recompute"; "swap", as long as host memory has room; "auto": swap where several branches would be
    computed again, recompute otherwise (Paper §4.5)."""

    def __post_init__(self) -> None:
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "long_prefill_token_threshold"):
            if type(getattr(self, name)) is not int:
                raise ValueError(f"{name} must be an integer, not {getattr(self, name)!r}")
        if self.max_model_len < 2:
            raise ValueError(f"max_model_len must be at least 2 (one prompt token, one output token), not {self.max_model_len}")
        if self.max_num_seqs < 1:
            raise ValueError(f"max_num_seqs must be at least 1, not {self.max_num_seqs}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs ({self.max_num_seqs}): "
                "otherwise a running sequence could not get its one token a step"
            )
        if self.long_prefill_token_threshold < 0:
            raise ValueError(f"long_prefill_token_threshold must be at least 0, not {self.long_prefill_token_threshold}")
        if self.preemption_mode not in PREEMPTION_MODES:
            raise ValueError(f"preemption_mode must be one of {', '.join(PREEMPTION_MODES)}, not {self.preemption_mode!r}")
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ValueError(
                f"without chunked prefill a whole prompt must fit one step: max_num_batched_tokens ({self.max_num_batched_tokens}) "
                f"is below max_model_len ({self.max_model_len})"
            )
