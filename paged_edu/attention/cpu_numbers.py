"""What the kernels of `cpu_kernels.py` are made of: pointers, a counter that threads share, exponentials, bfloat16. Importing this imports numba."""
# mypy: ignore-errors
from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

SUMS = {"contract", "reassoc", "nsz"}
"""What a sum may be: in another order, multiplied and added in one go. NaN and infinity keep their meaning."""

SECOND_LEVEL = 2
"""The cache to fetch into: a page would push too much out of the first one."""

I64P = types.CPointer(types.int64)


def _pointer_to(element):
    @intrinsic
    def at(typingctx, address):
        def codegen(context, builder, signature, args):
            return builder.inttoptr(args[0], context.get_value_type(types.CPointer(element)))
        return types.CPointer(element)(types.int64), codegen
    return at


f32_at, i64_at, i32_at, u16_at, i8_at = (_pointer_to(t) for t in (types.float32, types.int64, types.int32, types.uint16, types.int8))


def _same_bits(source, target, llvm):
    @intrinsic
    def reread(typingctx, x):
        def codegen(context, builder, signature, args):
            return builder.bitcast(args[0], llvm)
        return target(source), codegen
    return reread


f64_of_bits = _same_bits(types.int64, types.float64, ir.DoubleType())
f32_of_bits = _same_bits(types.uint32, types.float32, ir.FloatType())
bits_of_f32 = _same_bits(types.float32, types.uint32, ir.IntType(32))


@intrinsic
def shift(typingctx, pointer, by):
    """``pointer + by``."""
    def codegen(context, builder, signature, args):
        return builder.gep(args[0], [args[1]])
    return pointer(pointer, types.int64), codegen


@intrinsic
def fetch_add(typingctx, pointer, by):
    """Adds to ``*pointer``, as one step that no other thread can split, and returns what was there before."""
    def codegen(context, builder, signature, args):
        return builder.atomic_rmw("add", args[0], args[1], "acq_rel")
    return types.int64(I64P, types.int64), codegen


@intrinsic
def prefetch(typingctx, address):
    """Ask for the cache line at this address, which is read soon; any address will do."""
    def codegen(context, builder, signature, args):
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [pointer, number, number, number]), "llvm.prefetch.p0")
        builder.call(function, [builder.inttoptr(args[0], pointer), number(0), number(SECOND_LEVEL), number(1)])
        return context.get_dummy_value()
    return types.void(types.int64), codegen


@njit(error_model="numpy", fastmath={"contract"})
def exp_of_negative(x):
    """``exp(x)`` for x up to 0, to float32's precision; 0 below -87, NaN for NaN. A polynomial (Cephes), so that a loop over it uses vectors."""
    n = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    r = x - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    p = p * r * r + r + np.float32(1.0)
    two_to_n = f32_of_bits(np.uint32(np.int32(n) + np.int32(127)) << np.uint32(23))
    return np.float32(0.0) if x < np.float32(-87.0) else p * two_to_n


@njit(error_model="numpy", fastmath={"nnan", "nsz"})
def largest(x, low, high):
    m = np.float32(-np.inf)
    for i in range(low, high):
        m = x[i] if x[i] > m else m
    return m


@njit(error_model="numpy", fastmath=SUMS)
def exponentials(x, low, high, most):
    """``x = exp(x - most)`` in place; returns their sum."""
    total = np.float32(0.0)
    for i in range(low, high):
        e = exp_of_negative(x[i] - most)
        x[i] = e
        total += e
    return total


@njit(error_model="numpy")
def bf16_of(x):
    """The nearest bfloat16, ties to even, as torch rounds; NaN stays NaN."""
    bits = bits_of_f32(x)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.uint16(0x7FC0) if x != x else np.uint16(rounded)


@njit(error_model="numpy")
def f32_of_bf16(x):
    return f32_of_bits(np.uint32(x) << np.uint32(16))
