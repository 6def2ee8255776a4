"""How many blocks the KV cache gets, from what the device has (Paper §4.2: all the memory that the weights leave)."""
from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import torch

from ..config import EngineConfig
from ..core.block_table import num_blocks_for

CPU_SHARE = 0.5
"""Of the memory that is free on a machine without a GPU, the engine plans with this share: the rest belongs to the reader's other programs."""

SWAP_SHARE = 0.1
"""Of the host memory that the engine plans with, the share for swapped-out blocks, unless ``swap_space`` says how much."""

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
    num_cpu_blocks: int = 0
    """Blocks in host memory for swapped-out requests."""

    def __str__(self) -> str:
        size = self.num_blocks * self.bytes_per_block
        swap = f", {mib(self.num_cpu_blocks * self.bytes_per_block)} to swap to" if self.num_cpu_blocks else ""
        return (
            f"{self.num_blocks} blocks of {self.bytes_per_block / 1024:.1f} KiB = {mib(size)} KV cache beside {mib(self.weight_bytes)} weights{swap}"
        )


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


def plan_blocks(
    config: EngineConfig, max_model_len: int, bytes_per_block: int, weight_bytes: int, device: torch.device, memory: tuple[int, int] | None = None,
) -> MemoryPlan:
    """Blocks for the KV cache. ``weight_bytes`` are allocated already.

    ``memory`` is what `device_memory` would say, for a device that is not here; None: it is asked. Raises ValueError, before anything is
    allocated, when an asked-for pool does not fit or when nothing is left for a single block.
    """
    base, free = memory if memory is not None else device_memory(device)
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
        return _with_swap_space(MemoryPlan(config.num_gpu_blocks_override, bytes_per_block, weight_bytes, budget), config.swap_space, device)
    blocks = min(budget - weight_bytes, int(free * FREE_SHARE)) // bytes_per_block
    if blocks < 1:
        raise ValueError(
            f"gpu_memory_utilization={config.gpu_memory_utilization} leaves no room for the KV cache on {device}: the budget is {mib(budget)}, "
            f"the weights take {mib(weight_bytes)}, a block {mib(bytes_per_block)}, and {mib(free)} are free; "
            + _way_out(base, free, weight_bytes, bytes_per_block)
        )
    most_useful = config.max_num_seqs * num_blocks_for(max_model_len, config.block_size)
    return _with_swap_space(MemoryPlan(min(blocks, most_useful), bytes_per_block, weight_bytes, budget), config.swap_space, device)


def _way_out(base: int, free: int, weight_bytes: int, bytes_per_block: int) -> str:
    """What to do where not even one block fits."""
    smallest = math.ceil(10_000 * (weight_bytes + bytes_per_block + 1) / max(1, base)) / 10_000      # up: what is printed must work
    if smallest > 1:
        return "no value works: weights and one block need more than there is"
    if int(free * FREE_SHARE) < bytes_per_block:
        return "no value works until more is free"
    return f"the smallest value that works is {smallest:.4f}"


def _with_swap_space(plan: MemoryPlan, swap_space: float | None, device: torch.device) -> MemoryPlan:
    """Add the blocks in host memory. Raises ValueError when more are asked for than host memory has."""
    cache = plan.num_blocks * plan.bytes_per_block if device.type != "cuda" else 0      # the cache itself will be in host memory too
    free = max(0, free_host_memory() - cache)
    if swap_space is None:
        blocks = min(plan.num_blocks, int(free * CPU_SHARE * SWAP_SHARE) // plan.bytes_per_block)
        return replace(plan, num_cpu_blocks=blocks)
    asked = int(swap_space * 2**30)
    if asked > free:
        raise ValueError(f"swap_space={swap_space} GiB is {mib(asked)}; {mib(free)} of host memory are free beside the KV cache")
    return replace(plan, num_cpu_blocks=asked // plan.bytes_per_block)
