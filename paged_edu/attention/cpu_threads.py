"""Runs compiled functions on several threads: torch's own, so that the two never compete for cores.

A second pool of threads would wait, spinning, while torch's works, and the other way round: on two cores that doubled the time of a step. torch's
OpenMP library takes any function (`GOMP_parallel`, what a compiler makes of ``#pragma omp parallel``), so attention runs on the threads that
have just multiplied the matrices. Each Python thread has a team of its own there; numba's pools can't be shared like that.

Where torch comes without GNU OpenMP (macOS, Windows), threads of Python's take the part: the compiled code doesn't hold Python's lock.
"""
from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import torch

_forked = False
"""This process is a fork: the parent's OpenMP threads did not follow, and waiting for them would never end. It works with one thread."""


def _after_fork() -> None:
    global _forked
    _forked = True
    _pool.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def available() -> int:
    """How many threads may take part: torch's number, which OMP_NUM_THREADS and `torch.set_num_threads` set."""
    return 1 if _forked else torch.get_num_threads()


def run(function: int, arguments: int, threads: int) -> None:
    """Call the C function ``void f(void *)`` at address ``function`` on so many threads, this one among them; returns when all are done."""
    call = _caller(function)
    if threads <= 1:
        call(arguments)
    elif (team := _openmp()) is not None:
        team(function, arguments, threads, 0)
    else:
        others = [_pool().submit(call, arguments) for _ in range(threads - 1)]
        call(arguments)
        for other in others:
            if not other.cancel():          # one that has not begun would find nothing left to do
                other.result()


@cache
def _caller(function: int) -> Callable[[int], None]:
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)


@cache
def _openmp() -> Callable[[int, int, int, int], None] | None:
    """``GOMP_parallel(function, data, threads, flags)`` of the library that torch itself was linked with: symbols are looked up from there."""
    if sys.platform != "linux" or "OpenMP" not in torch.__config__.parallel_info():
        return None
    try:
        function = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")).GOMP_parallel
    except (OSError, AttributeError):
        return None
    function.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint
    function.restype = None
    return function


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="paged_edu-attention")
