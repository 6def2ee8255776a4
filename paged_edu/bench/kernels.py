"""`paged-edu bench kernels`: the attention kernels against SDPA and against what the card allows; without a GPU, what each needs of it.

*times* (with CUDA): for each `Workload` every rung, SDPA on contiguous keys and values, and the floor: the bytes that must be read over the
bandwidth of a device copy, measured in the same rounds. *resources* (anywhere that Triton runs): registers, shared memory and spills of the
kernels listed in `kernels/matrix.py`, compiled for other cards than this machine's.
"""
from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ..checks import integer, one_of, writable_file
from ..kernels.matrix import ARCHES
from ..words import counted
from .machine import machine
from .timers import CudaTimer, Timer, in_turns, spread
from .workloads import Workload, chosen

PARTS = ("auto", "times", "resources")
DTYPES = ("bfloat16", "float16", "float32")
COPY_BYTES = 2**30
ONLY = {"times": ("batch", "context", "heads", "queries", "dtype", "block_size", "rounds", "no_graphs"), "resources": ("arch", "workers")}
"""Options that only one of the parts has."""

Advance = Callable[[int], object]
Begin = Callable[[str], object]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure. Raises ValueError with the value and its limits."""

    part: str = "auto"
    quick: bool = False
    batch: str | None = None
    context: str | None = None
    heads: str | None = None
    queries: str | None = None
    dtype: str = "auto"
    block_size: int = 16
    rounds: int = 100
    no_graphs: bool = False
    arch: str | None = None
    workers: int = 0
    """0: a process for each processor, at most 8."""

    def __post_init__(self) -> None:
        one_of("--part", self.part, PARTS)
        one_of("--dtype", self.dtype, ("auto", *DTYPES))
        integer("--block-size", self.block_size, 1, 256)
        integer("--rounds", self.rounds, 1, 100_000)
        integer("--workers", self.workers, 0, 256)
        _ = self.workloads, self.arches
        other = "resources" if self.what == "times" else "times"
        if given := [flag for flag in ONLY[other] if flag in self.changed]:
            raise ValueError(f"--{given[0].replace('_', '-')} belongs to --part {other}; this would be {self.what}")

    @property
    def changed(self) -> list[str]:
        """What is not as it is by itself."""
        return [field.name for field in fields(self) if getattr(self, field.name) != field.default]

    @property
    def what(self) -> str:
        """times or resources."""
        return self.part if self.part != "auto" else "times" if torch.cuda.is_available() else "resources"

    @property
    def workloads(self) -> tuple[Workload, ...]:
        return chosen(self.batch, self.context, self.heads, self.queries, self.quick)

    @property
    def arches(self) -> tuple[int, ...]:
        names = (",".join(map(str, ARCHES)) if self.arch is None else self.arch).split(",")
        for name in names:
            one_of("--arch", name.strip(), [str(arch) for arch in ARCHES])
        return tuple(dict.fromkeys(int(name) for name in names))


def able(options: Options) -> None:
    """Raise where this machine can't do what is asked: ImportError without triton, ValueError without a GPU or in the interpreter."""
    if find_spec("triton") is None:
        raise ImportError("the kernels need triton, which is not installed "
                          f"({'no wheels for ' + sys.platform if sys.platform != 'linux' else 'pip install triton'})")
    if options.what == "times":
        from ..attention.triton import interpreted

        if not torch.cuda.is_available():
            raise ValueError("--part times needs a GPU with CUDA, and there is none; --part resources needs none")
        if interpreted():
            raise ValueError("TRITON_INTERPRET is set: the interpreter's times say nothing about a GPU's")


# -- with a GPU ------------------------------------------------------------------------------------------------------------------------
def measure_times(options: Options, advance: Advance, begin: Begin) -> dict[str, Any]:
    """The workloads on this machine's GPU, with its name and its roofs."""
    device = torch.device("cuda", torch.cuda.current_device())
    dtype = getattr(torch, options.dtype if options.dtype != "auto" else "bfloat16" if torch.cuda.get_device_capability()[0] >= 8 else "float16")
    timer = CudaTimer(device, graphs=not options.no_graphs)

    def free() -> int:
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(device)[0])

    return {"card": card(device)} | measure_on(device, dtype, options, timer, free, COPY_BYTES, 4096 if options.quick else 8192, advance, begin)


def measure_on(
    device: torch.device, dtype: torch.dtype, options: Options, timer: Timer, free: Callable[[], int], copy_bytes: int, matmul_size: int,
    advance: Advance, begin: Begin,
) -> dict[str, Any]:
    """Every workload that fits into ``free()`` bytes, and of the others that they don't; and how many TFLOP/s a product of matrices reaches."""
    from .attention_times import timed

    peak = matmul_tflops(matmul_size, dtype, device, timer)
    src = torch.ones(min(copy_bytes, free() // 8), dtype=torch.int8, device=device)
    dst = torch.empty_like(src)
    workloads: list[dict[str, Any]] = []
    for workload in options.workloads:
        begin(workload.name)
        # Three times keys and values: contiguous, in blocks, and once more while they are laid out.
        wanted, there = 3 * workload.cache_bytes(dtype.itemsize), free()
        if wanted > there:
            advance(options.rounds)
            workloads.append({"name": workload.name, "skipped": f"wants {wanted / 2**30:,.1f} GiB, and {there / 2**30:,.1f} are free", "rows": []})
            continue
        workloads.append(timed(
            workload, dtype, options.block_size, device, timer, options.rounds, peak, lambda: dst.copy_(src), 2 * src.numel(), advance=advance))
    return {"matmul_tflop_per_s": peak, "workloads": workloads}


def matmul_tflops(size: int, dtype: torch.dtype, device: torch.device, timer: Timer, rounds: int = 20) -> float:
    """The other roof: products of square matrices."""
    a, b = (torch.randn(size, size, dtype=dtype, device=device) for _ in "ab")
    (times,) = in_turns({"matmul": lambda: a @ b}, rounds, timer).values()
    return float(2 * size**3 / spread(times)["median_ms"] / 1e9)


def card(device: torch.device) -> dict[str, Any]:
    """What the driver says of the GPU."""
    its = torch.cuda.get_device_properties(device)
    return {"name": its.name, "capability": f"{its.major}.{its.minor}", "multiprocessors": its.multi_processor_count,
            "memory_bytes": its.total_memory, "l2_bytes": getattr(its, "L2_cache_size", None), "cuda": torch.version.cuda}


# -- without -------------------------------------------------------------------------------------------------------------------------
def cases(options: Options) -> list[Any]:
    """What to compile: the whole list, or with ``quick`` one of each kernel on each architecture."""
    from ..kernels.matrix import matrix

    every = matrix(options.arches)
    if not options.quick:
        return list(every)
    return list({(case.arch, case.kernel): case for case in reversed(every) if case.head_dim in (64, 128) and case.dtype != "fp32"}.values())[::-1]


def measure_resources(options: Options, advance: Advance, begin: Begin) -> dict[str, Any]:
    """A row for every case, in the list's order, and what is wrong with any of them."""
    from .compiled import compiled, faults

    listed = cases(options)
    begin("compiling")
    rows = {}
    for row in compiled(listed, options.workers or min(8, os.cpu_count() or 1)):
        rows[row["name"]] = row
        advance(1)
    ordered = [rows[case.name] for case in listed]
    return {"rows": ordered, "faults": [fault for row in ordered for fault in faults(row)]}


# -- either ----------------------------------------------------------------------------------------------------------------------------
def measure(options: Options, advance: Advance = lambda count: None, begin: Begin = lambda what: None) -> dict[str, Any]:
    """What was asked for; ``begin`` is called with what comes next, ``advance`` with how many rounds or kernels are done."""
    versions = {name: version(name) for name in ("torch", "triton")}
    part = (measure_times if options.what == "times" else measure_resources)(options, advance, begin)
    return {"options": asdict(options), "machine": machine() | versions, options.what: part}


def run(options: Options, json_file: Path | None = None, html_file: Path | None = None, load: Path | None = None) -> int:
    """Measure (or load what an earlier run wrote), print, and write the files that were asked for. Exit code 1: something is wrong with a kernel."""
    from . import kernels_view

    for name, file in (("--json", json_file), ("--html", html_file)):
        if file is not None:
            writable_file(name, file)
    if load is None:
        able(options)
    elif options.changed:
        raise ValueError(f"--load shows what was measured before: --{options.changed[0].replace('_', '-')} has no meaning beside it")
    result = kernels_view.loaded(load) if load is not None else None
    if html_file is not None:
        kernels_view.drawable("times" if result and "times" in result else "resources" if result else options.what)
    if result is None:
        result = _with_progress(options)
    kernels_view.show(result)
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if html_file is not None:
        kernels_view.write_html(result, html_file)
    return 1 if kernels_view.wrong(result) else 0


def _with_progress(options: Options) -> dict[str, Any]:
    from tqdm import tqdm

    times = options.what == "times"
    total = options.rounds * len(options.workloads) if times else len(cases(options))
    with tqdm(total=total, unit="round" if times else "kernel", dynamic_ncols=True, disable=None, leave=False) as bar:
        def begin(what: str) -> None:
            bar.set_description(what)
            if bar.disable:                                 # no terminal: a sign of life a part
                print(what if times else f"{what} {counted(total, 'kernel')}", file=sys.stderr, flush=True)

        return measure(options, bar.update, begin)
