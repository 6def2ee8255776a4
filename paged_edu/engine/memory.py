"""How many blocks the KV cache gets, from what the device has (Paper §4.2: all the memory that the weights leave)."""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from ..config import EngineConfig
from ..core.block_table import num_blocks_for

CPU_SHARE = 0.5
"""Of the memory that is free on a machine without a GPU, the engine plans with this share: the rest belongs to the reader's other programs."""

FREE_SHARE = 0.9
"""Of what is free, at most this share becomes cache: other programs may hold memory too, and a step needs room for activations."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The pool's size and how it came about; sizes in bytes."""

    num_blocks: int
    bytes_per_block: int
    weight_bytes: int
    budget: int
    """What weights and cache may take together."""

    def __str__(self) -> str:
        size = self.num_blocks * self.bytes_per_block
        return f"{self.num_blocks} blocks of {self.bytes_per_block / 1024:.1f} KiB = {mib(size)} KV cache beside {mib(self.weight_bytes)} weights"


def mib(size: float) -> str:
    return f"{size / 2**20:,.1f} MiB"


def free_host_memory() -> int:
    """Bytes of memory that this process could still take: the machine's, or what is left of the container's limit."""
    free = int(psutil.virtual_memory().available)
    for limit, used in (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")):
        try:
            group = Path("/sys/fs/cgroup")
            free = min(free, int((group / limit).read_text()) - int((group / used).read_text()))
        except (OSError, ValueError):       # no such file, or "max": no limit
            continue
    return max(0, free)


def device_memory(device: torch.device) -> tuple[int, int]:
    """``(what the utilisation is a share of, what is free now)`` in bytes."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total, free
    free = free_host_memory()
    return int(free * CPU_SHARE), free


def plan_blocks(config: EngineConfig, max_model_len: int, bytes_per_block: int, weight_bytes: int, device: torch.device) -> MemoryPlan:
    """Blocks for the KV cache. ``weight_bytes`` are allocated already.

    Raises ValueError, before anything is allocated, when an asked-for pool does not fit or when nothing is left for a single block.
    """
    base, free = device_memory(device)
    if device.type != "cuda":
        base += int(weight_bytes * CPU_SHARE)   # loading the weights has taken them from what was free
    budget = int(base * config.gpu_memory_utilization)
    if config.num_gpu_blocks_override is not None:
        asked = config.num_gpu_blocks_override * bytes_per_block
        if asked > free:
            raise ValueError(
                f"num_gpu_blocks_override={config.num_gpu_blocks_override} needs {mib(asked)} ({mib(bytes_per_block)} a block); "
                f"{mib(free)} are free on {device}, enough for {free // bytes_per_block} blocks"
            )
        return MemoryPlan(config.num_gpu_blocks_override, bytes_per_block, weight_bytes, budget)
    blocks = min(budget - weight_bytes, int(free * FREE_SHARE)) // bytes_per_block
    if blocks < 1:
        smallest = (weight_bytes + bytes_per_block) / max(1, base)
        raise ValueError(
            f"gpu_memory_utilization={config.gpu_memory_utilization} leaves no room for the KV cache on {device}: the budget is {mib(budget)}, "
            f"the weights take {mib(weight_bytes)}, a block {mib(bytes_per_block)}, and {mib(free)} are free; "
            f"the smallest value that works is {smallest:.4f}"
        )
    most_useful = config.max_num_seqs * num_blocks_for(max_model_len, config.block_size)
    return MemoryPlan(min(blocks, most_useful), bytes_per_block, weight_bytes, budget)
