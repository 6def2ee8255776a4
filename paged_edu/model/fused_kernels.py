"""The compiled half of `fused.py`: what a Llama layer does between its matrix products, each in one pass over the numbers.

Importing this file imports numba and, the first time on a machine, compiles for some seconds, as `attention/cpu_kernels.py` does. Each function
is a C function, ``void f(int64_t *arguments)``, that any number of threads may call on the same arguments: they take rows off a shared
counter. What a row gets depends on that row alone, so its bits do not change with the batch or the number of threads.
"""
# mypy: ignore-errors
from __future__ import annotations

import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numba import cfunc, njit, types

from ..attention import cpu_numbers
from ..attention.cpu_numbers import I64P, SUMS, bits_of_f32, exp_of_negative, f32_at, f32_of_bits, f64_of_bits, fetch_add, shift

AT_ONCE = 8
"""Rows that a thread takes at a time."""


class Arguments(NamedTuple):
    """Places in the arguments, int64 each. Strides count numbers, not bytes."""

    next_row: int
    """The counter itself."""
    rows: int
    width: int
    x: int
    x_row: int
    y: int
    y_row: int
    a: int
    """What else a function reads, as ``b``: a pointer, or 0 for nothing."""
    b: int
    b_row: int
    number: int
    """A float64's bits (the norm's epsilon), or a count (the heads that are turned)."""


A = Arguments(*range(len(Arguments._fields)))


@njit(error_model="numpy", fastmath=SUMS)
def add_norm_row(x, delta, adds, weight, eps, y, width):
    """``x += delta`` where there is one, and ``y = x / sqrt(mean(x^2) + eps) * weight``."""
    total = np.float32(0.0)
    if adds:
        for d in range(width):
            x[d] += delta[d]
    for d in range(width):
        total += x[d] * x[d]
    factor = np.float32(1.0) / np.sqrt(total / np.float32(width) + eps)
    for d in range(width):
        y[d] = x[d] * factor * weight[d]


@njit(error_model="numpy", fastmath=SUMS)
def rotate_row(x, heads, dim, cos, sin):
    """`rope.rotate` of one token's heads, in place."""
    half = dim // 2
    for head in range(heads):
        first, second = shift(x, head * dim), shift(x, head * dim + half)
        for d in range(half):
            a, b = first[d], second[d]
            first[d] = a * cos[d] - b * sin[d]
            second[d] = b * cos[d] + a * sin[d]


@njit(error_model="numpy", fastmath=SUMS)
def silu_row(x, y, width):
    """``y = silu(gate) * up``; x holds gate and then up."""
    up = shift(x, width)
    for d in range(width):
        gate = x[d]
        e = exp_of_negative(-abs(gate))
        sigmoid = (np.float32(1.0) if gate >= np.float32(0.0) else e) / (np.float32(1.0) + e)
        y[d] = gate * sigmoid * up[d]


@njit(error_model="numpy")
def scale_row(x, y, scale, least, width):
    """``y = x / scale`` with the row's largest absolute number as scale, ``least`` if that is more."""
    bits = bits_of_f32(least)
    for d in range(width):                          # without the sign, floats are in the order of their bits, NaN behind all others
        size = bits_of_f32(x[d]) & np.uint32(0x7FFFFFFF)
        bits = size if size > bits else bits
    most = f32_of_bits(bits)
    scale[0] = most
    for d in range(width):
        y[d] = x[d] / most


def _compile(stamp, keep):
    """The C functions. numba notices by itself when this file changes; ``stamp``, part of the key on disk, tells it of others."""
    @cfunc(types.void(I64P), cache=keep)
    def add_norm(a):
        _ = stamp
        first = fetch_add(a, AT_ONCE)
        while first < a[A.rows]:
            for row in range(first, min(first + AT_ONCE, a[A.rows])):
                add_norm_row(shift(f32_at(a[A.x]), row * a[A.x_row]), shift(f32_at(a[A.b]), row * a[A.b_row]), a[A.b] != 0, f32_at(a[A.a]),
                             np.float32(f64_of_bits(a[A.number])), shift(f32_at(a[A.y]), row * a[A.y_row]), a[A.width])
            first = fetch_add(a, AT_ONCE)

    @cfunc(types.void(I64P), cache=keep)
    def rotate(a):
        _ = stamp
        half = a[A.width] // 2
        first = fetch_add(a, AT_ONCE)
        while first < a[A.rows]:
            for row in range(first, min(first + AT_ONCE, a[A.rows])):
                rotate_row(shift(f32_at(a[A.x]), row * a[A.x_row]), a[A.number], a[A.width],
                           shift(f32_at(a[A.a]), row * half), shift(f32_at(a[A.b]), row * half))
            first = fetch_add(a, AT_ONCE)

    @cfunc(types.void(I64P), cache=keep)
    def silu(a):
        _ = stamp
        first = fetch_add(a, AT_ONCE)
        while first < a[A.rows]:
            for row in range(first, min(first + AT_ONCE, a[A.rows])):
                silu_row(shift(f32_at(a[A.x]), row * a[A.x_row]), shift(f32_at(a[A.y]), row * a[A.y_row]), a[A.width])
            first = fetch_add(a, AT_ONCE)

    @cfunc(types.void(I64P), cache=keep)
    def scale(a):
        _ = stamp
        tiny = np.float32(f64_of_bits(a[A.number]))
        first = fetch_add(a, AT_ONCE)
        while first < a[A.rows]:
            for row in range(first, min(first + AT_ONCE, a[A.rows])):
                scale_row(shift(f32_at(a[A.x]), row * a[A.x_row]), shift(f32_at(a[A.y]), row * a[A.y_row]), shift(f32_at(a[A.a]), row),
                          tiny, a[A.width])
            first = fetch_add(a, AT_ONCE)

    return add_norm, rotate, silu, scale


def _load():
    stamp = zlib.crc32(Path(cpu_numbers.__file__).read_bytes())
    try:
        return _compile(stamp, True)
    except RuntimeError:                            # no folder that numba could keep it in
        return _compile(stamp, False)


_FUNCTIONS = _load()
ADD_NORM, ROTATE, SILU, SCALE = (function.address for function in _FUNCTIONS)
