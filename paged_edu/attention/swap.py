"""Swapping beside computing: blocks cross the bus on a stream of their own (Paper §4.5, §7.3)."""
from __future__ import annotations

from collections.abc import Sequence

import torch

from ..core.plan import Copy
from .cache import KVCache


class Swapper:
    """Moves blocks between a GPU's cache and one in pinned host memory.

    A CUDA *stream* is a queue: what is in it runs in order, and beside what is in other streams. Blocks on their way out are first gathered
    on the GPU; the step's own kernels wait for that, since they may overwrite the blocks, and not for the slow way over the bus. Blocks
    on their way in must have arrived before the step reads them. One stream for both ways, so a block that comes back has surely left.
    Where both caches are in host memory there is nothing to overlap, and the copies are done when the calls return.
    """

    def __init__(self, gpu: KVCache, cpu: KVCache) -> None:
        self.gpu, self.cpu = gpu, cpu
        device = gpu.stacks[0].device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def out(self, copies: Sequence[Copy]) -> None:
        """``src`` are blocks of the GPU's cache, ``dst`` of the host's. Raises ValueError as `KVCache.copy_to` does."""
        if self.stream is None:
            self.gpu.copy_to(self.cpu, copies)
            return
        gathered = torch.cuda.Event()  # type: ignore[no-untyped-call]
        computing = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(computing)
        with torch.cuda.stream(self.stream):
            self.gpu.copy_to(self.cpu, copies, all_read=gathered.record)
        computing.wait_event(gathered)

    def back(self, copies: Sequence[Copy]) -> None:
        """``src`` are blocks of the host's cache, ``dst`` of the GPU's. Raises ValueError as `KVCache.copy_to` does."""
        if self.stream is None:
            self.cpu.copy_to(self.gpu, copies)
            return
        computing = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(computing)                          # who had these blocks before may still be read
        with torch.cuda.stream(self.stream):
            self.cpu.copy_to(self.gpu, copies)
        computing.wait_stream(self.stream)

    def wait(self) -> None:
        """Until everything has arrived."""
        if self.stream is not None:
            self.stream.synchronize()
