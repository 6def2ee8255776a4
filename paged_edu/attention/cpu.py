"""PagedAttention on a CPU: the same call as `reference.attend`, without copying the context together first (Paper §4.1, §5.1).

`reference.py` gathers each sequence's pages into one piece and calls torch on it, a sequence at a time. Here compiled code
(`cpu_kernels.py`) follows the block tables and reads keys and values where they are, all sequences in one call. A step's work is cut into
pieces, `SPLIT` keys of one sequence each, that the threads take one by one; which pieces there are is computed once a step (`plan`) and
serves every layer. Long chunks of prompts do more arithmetic than reading: those are left to torch's matrix products, as in `reference.py`.
"""
from __future__ import annotations

import ctypes
import functools
import logging
import struct
import time
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..checks import one_line
from . import cpu_threads, reference
from .cache import LayerCache
from .cpu_layout import BF16, F32, INT8, ROWS, SPLIT, UNLIMITED, Arguments, Piece
from .metadata import AttentionMetadata

Ints = npt.NDArray[np.int64]

log = logging.getLogger(__name__)

STORED = {torch.float32: F32, torch.bfloat16: BF16, torch.int8: INT8}
DTYPES = (torch.float32, torch.bfloat16)
"""Of queries, and of what is written."""

LONG_ROWS = 64
"""Query rows on one KV head (tokens times heads of a group) from which on a sequence may go to torch: see `is_long`."""

LONG_WORK = 1 << 21
"""Multiplications, of scores, from which on the dozen of calls that torch needs for a sequence, some hundred microseconds, may pay."""

GRAIN = 1 << 16
"""Up to so many multiplications take less time than waking other threads. It is all of them or none: OpenMP ends the threads that a smaller team
leaves over, and starts them anew for the next one."""


def why_not(dtype: torch.dtype) -> str | None:
    """Why this backend can't serve a model of that type; None: it can."""
    return None if dtype in DTYPES else f"it computes in float32 and bfloat16, not {str(dtype).removeprefix('torch.')}"


@functools.cache
def why_not_here() -> str | None:
    """Why the compiled code can't be had in this process; None: it is loaded. The first time on a machine it is compiled, for some seconds."""
    start = time.perf_counter()
    try:
        from . import cpu_kernels
    except ImportError as error:
        return f"numba can't be imported (pip install numba): {one_line(error)}"
    except Exception as error:      # of numba's and LLVM's many types; every one of them means that the reference has to do
        return f"numba could not compile it: {one_line(error)}"
    if cpu_kernels.COMPILED:
        log.info("compiled attention for this machine in %.1f s; later starts find it on disk", time.perf_counter() - start)
    return None


class Plan(NamedTuple):
    """A step's work on one layer: the pieces for the compiled code, and the sequences that torch computes."""

    pieces: Tensor
    """int64 ``[n, len(Piece)]``."""
    groups: int
    """Results that the pieces make together: runs of query rows."""
    work: int
    """Multiplications of one query head and one number of a head: keys times tokens."""
    rows: int
    """Query rows of the longest run."""
    long: tuple[int, ...]
    """Sequences for torch."""


def is_long(counts: Ints, lens: Ints, window: int | None, group: int, width: int) -> npt.NDArray[np.bool_]:
    """Which sequences torch's attention computes: ``counts`` query tokens at the end of ``lens``, ``width`` numbers in all query heads together.

    A piece reads each key once for all its query rows. With few rows reading is the work, and gathering first would only add to it. The more
    rows, the more it is arithmetic, and torch's matrix products do about twice as much a second as the loops here. Gathering moves a number
    three times; that is made up for after some dozens of rows, more with larger heads of a group, fewer where numbers must be converted.
    """
    seen = lens - counts / 2 if window is None else np.minimum(lens - counts / 2, window)
    return (counts * group >= LONG_ROWS) & (counts * seen * width >= LONG_WORK)


def plan(meta: AttentionMetadata, window: int | None, group: int, width: int, only_pieces: bool = False) -> Plan:
    """Cut the step into pieces: runs of query rows (`ROWS`, heads of a group counted), against `SPLIT` keys each. Nothing here loops over tokens.

    ``only_pieces``: torch computes none. See `is_long` for the other arguments.
    """
    lens = np.asarray(meta.host_seq_lens, dtype=np.int64)
    starts = np.asarray(meta.host_query_start_loc, dtype=np.int64)
    counts = np.diff(starts)
    long = is_long(counts, lens, window, group, width) & (not only_pieces)
    table = np.flatnonzero(~long)
    at_once = max(1, ROWS // group)
    runs = -(-counts[table] // at_once)
    table = np.repeat(table, runs)
    done = (np.arange(len(table)) - np.repeat(np.cumsum(runs) - runs, runs)) * at_once      # tokens of the sequence in the runs before
    tokens = np.minimum(at_once, counts[table] - done)
    position = lens[table] - counts[table] + done
    stop = position + tokens
    oldest = np.zeros_like(position) if window is None else np.maximum(0, position - window + 1)
    skipped = oldest // SPLIT
    pieces = -(-stop // SPLIT) - skipped
    first = np.cumsum(pieces) - pieces
    run = np.repeat(np.arange(len(table)), pieces)
    part = np.arange(len(run))
    low = (skipped[run] + part - first[run]) * SPLIT
    low = np.maximum(low, oldest[run])
    high = np.minimum((skipped[run] + part - first[run] + 1) * SPLIT, stop[run])
    columns = {
        "row": (starts[table] + done)[run], "tokens": tokens[run], "position": position[run], "table": table[run], "low": low, "high": high,
        "group": run, "pieces": pieces[run], "first": first[run], "part": part,
    }
    return Plan(
        torch.from_numpy(np.stack([columns[name] for name in Piece._fields], axis=1)), groups=len(table),
        work=int(((high - low) * tokens[run]).sum()), rows=int(tokens.max(initial=1)) * group, long=tuple(np.flatnonzero(long).tolist()),
    )


def attend(
    q: Tensor, k: Tensor, v: Tensor, cache: LayerCache, meta: AttentionMetadata, window: int | None, scale: float,
) -> Tensor:
    """As `reference.attend`: write the new keys and values, then attend through the block table. Sums are in float32 whatever is stored.

    Uses at most `torch.get_num_threads` threads, torch's own. What the compiled code can't do (float64, float16, numbers of a head that
    don't lie side by side) goes to the reference. Raises ValueError and IndexError as that does.
    """
    reference.check(q, cache, window)
    if not _served(q, k, v, cache):
        return reference.attend(q, k, v, cache, meta, window, scale)
    out = torch.empty(q.shape, dtype=q.dtype)
    if not q.shape[0]:
        return out
    from . import cpu_kernels

    num_heads, num_kv_heads, head_dim = q.shape[1], cache[0].shape[1], q.shape[2]
    group = num_heads // num_kv_heads
    todo = _plan_of(meta, window, group, num_heads * head_dim, cache[0])
    threads = cpu_threads.available()
    counters = torch.zeros(3 + todo.groups * num_kv_heads, dtype=torch.int64)
    scratch_size = (2 * todo.rows + ROWS) * head_dim + todo.rows * SPLIT
    scratch = torch.empty(threads * scratch_size)
    partial = torch.empty(todo.pieces.shape[0] * num_kv_heads * todo.rows * (head_dim + 2))
    at = counters.data_ptr()
    arguments = (ctypes.c_int64 * len(Arguments._fields))(*Arguments(
        at, at + 8, at + 16, at + 24, todo.pieces.shape[0] * num_kv_heads, q.shape[0], num_kv_heads, group, head_dim, meta.block_size,
        window or UNLIMITED, _bits(scale), STORED[q.dtype], STORED[cache[0].dtype],
        q.data_ptr(), q.stride(0), q.stride(1), out.data_ptr(),
        k.data_ptr(), k.stride(0), k.stride(1), v.data_ptr(), v.stride(0), v.stride(1), meta.slot_mapping.data_ptr(),
        *_pages(cache, 0), *_pages(cache, 1), *_scales(cache, 2), *_scales(cache, 3),
        meta.block_tables.data_ptr(), meta.block_tables.stride(0), todo.pieces.data_ptr(), todo.rows, partial.data_ptr(),
        scratch.data_ptr(), scratch_size,
    ))
    where = ctypes.addressof(arguments)
    # Every write precedes every read: sequences of one step may share the blocks that one of them fills.
    cpu_threads.run(cpu_kernels.WRITE, where, threads if 2 * k.numel() > GRAIN else 1)
    cpu_threads.run(cpu_kernels.ATTEND, where, threads if todo.work * num_heads * head_dim > GRAIN else 1)
    if todo.long:
        reference.attend_to(todo.long, q, out, cache, meta, window, scale)
    return out


def _plan_of(meta: AttentionMetadata, window: int | None, group: int, width: int, keys: Tensor) -> Plan:
    """The step's plan, computed for the first layer that asks and kept with the step. Raises IndexError for a block outside the cache."""
    num_blocks, apart = keys.shape[0], not keys.is_contiguous()
    key = "cpu", window, group, width, num_blocks, apart
    if key not in meta.kept:
        if int(meta.slot_mapping.max()) >= num_blocks * meta.block_size:
            raise IndexError(f"slot {int(meta.slot_mapping.max())} is outside the cache: {num_blocks} blocks of {meta.block_size}")
        if not 0 <= int(meta.block_tables.min()) <= int(meta.block_tables.max()) < num_blocks:
            raise IndexError(f"a block table names a block outside the cache: it has blocks 0 to {num_blocks - 1}")
        # The gathering for torch takes pages that lie side by side.
        meta.kept[key] = plan(meta, window, group, width, only_pieces=apart)
    return meta.kept[key]  # type: ignore[return-value]


def _served(q: Tensor, k: Tensor, v: Tensor, cache: LayerCache) -> bool:
    return (
        q.dtype in DTYPES and k.dtype == v.dtype == q.dtype and cache[0].dtype in STORED and q.device.type == "cpu"
        and all(x.stride(-1) == 1 for x in (q, k, v, *cache[:2]))
    )


def _pages(cache: LayerCache, which: int) -> tuple[int, int, int, int]:
    tensor = cache[which]
    block, head, slot, _ = tensor.stride()
    return tensor.data_ptr(), block, head * tensor.itemsize, slot


def _scales(cache: LayerCache, which: int) -> tuple[int, int, int, int]:
    if which >= len(cache):
        return 0, 0, 0, 0
    block, head, slot = cache[which].stride()
    return cache[which].data_ptr(), block, head * cache[which].itemsize, slot


def _bits(x: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", x))[0])
