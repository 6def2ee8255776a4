"""The compiled half of `cpu.py`: writing new tokens into their slots, and attention over pages where they are (Paper §4.1, §5.1).

Importing this file imports numba and, the first time on a machine, compiles for some seconds; numba keeps the machine code beside this file or
in the user's cache folder. Sizes and types are arguments, so there is one compilation for all models; code with frozen sizes was a sixth faster,
and took as long to compile for every model.

`ATTEND` and `WRITE` are C functions, ``void f(int64_t *arguments)``, that any number of threads may call on the same arguments: each takes the
next piece of work off a shared counter until none is left. So ragged lengths even out by themselves, and which threads take part is the
caller's choice (`cpu_threads.py`). Nothing here knows of Python, or holds its lock.
"""
# mypy: ignore-errors
from __future__ import annotations

import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numba import cfunc, njit, types

from . import cpu_layout, cpu_numbers
from .cpu_layout import BF16, F32, ROWS, SPLIT, A, T
from .cpu_numbers import (
    I64P,
    SUMS,
    bf16_of,
    exp_of_negative,
    exponentials,
    f32_at,
    f32_of_bf16,
    f64_of_bits,
    fetch_add,
    i8_at,
    i32_at,
    i64_at,
    largest,
    prefetch,
    shift,
    u16_at,
)


class Pages(NamedTuple):
    """One KV head's keys, or values: the address of its row 0 of block 0, how it is stored, strides, and int8's scales in the same manner."""

    address: int
    stored: int
    block: int
    slot: int
    scale: int
    scale_block: int
    scale_slot: int


@njit(error_model="numpy", fastmath=SUMS)
def gather(pages, table, block_size, at, stop, width, buffer):
    """Rows of positions ``at`` to ``stop`` as float32, into ``buffer``."""
    index, offset = at // block_size, at % block_size
    for r in range(stop - at):
        physical = np.int64(table[index])
        row, to = physical * pages.block + offset * pages.slot, shift(buffer, r * width)
        if pages.stored == F32:
            numbers = shift(f32_at(pages.address), row)
            for d in range(width):
                to[d] = numbers[d]
        elif pages.stored == BF16:
            halves = shift(u16_at(pages.address), row)
            for d in range(width):
                to[d] = f32_of_bf16(halves[d])
        else:
            codes, scale = shift(i8_at(pages.address), row), f32_at(pages.scale)[physical * pages.scale_block + offset * pages.scale_slot]
            for d in range(width):
                to[d] = np.float32(codes[d]) * scale
        offset += 1
        if offset == block_size:
            index, offset = index + 1, 0


@njit(error_model="numpy", fastmath=SUMS)
def score_rows(q, keys, stride, low, high, width, out):
    """``out[r] = q . keys[r]`` for rows low to high, four at a time: each number of q is fetched once for four keys."""
    r = low
    while r + 4 <= high:
        k0, k1, k2, k3 = shift(keys, r * stride), shift(keys, (r + 1) * stride), shift(keys, (r + 2) * stride), shift(keys, (r + 3) * stride)
        s0 = s1 = s2 = s3 = np.float32(0.0)
        for d in range(width):
            s0 += q[d] * k0[d]
            s1 += q[d] * k1[d]
            s2 += q[d] * k2[d]
            s3 += q[d] * k3[d]
        out[r] = s0
        out[r + 1] = s1
        out[r + 2] = s2
        out[r + 3] = s3
        r += 4
    while r < high:
        k0, s0 = shift(keys, r * stride), np.float32(0.0)
        for d in range(width):
            s0 += q[d] * k0[d]
        out[r] = s0
        r += 1


@njit(error_model="numpy", fastmath=SUMS)
def add_rows(weights, values, stride, low, high, width, acc):
    """``acc += sum of weights[r] * values[r]`` for rows low to high, four at a time: ``acc`` is read and written once for four."""
    r = low
    while r + 4 <= high:
        v0, v1, v2, v3 = shift(values, r * stride), shift(values, (r + 1) * stride), shift(values, (r + 2) * stride), shift(values, (r + 3) * stride)
        w0, w1, w2, w3 = weights[r], weights[r + 1], weights[r + 2], weights[r + 3]
        for d in range(width):
            acc[d] += (w0 * v0[d] + w1 * v1[d]) + (w2 * v2[d] + w3 * v3[d])
        r += 4
    while r < high:
        v0, w0 = shift(values, r * stride), weights[r]
        for d in range(width):
            acc[d] += w0 * v0[d]
        r += 1


@njit(error_model="numpy")
def ask_for_page(pages, table, block_size, at, high, width):
    """Have the page of position ``at`` fetched while another one is computed on: where it lies is only written in the table, so the processor can't
    guess it as it does for rows that follow one another. Numbers that are converted take long enough without."""
    if pages.stored == F32 and at < high:
        start = pages.address + 4 * (np.int64(table[at // block_size]) * pages.block + at % block_size * pages.slot)
        for i in range(0, 4 * width * min(ROWS, high - at), 64):
            prefetch(start + i)


@njit(error_model="numpy")
def visit(pages, after, are_values, table, block_size, task, window, group, width, vectors, scores, buffer):
    """All rows of a piece, a few at a time, against all its query rows: keys give ``scores`` with the queries in ``vectors``, values are
    added to ``vectors`` with the weights in ``scores``. Rows that lie in one page as float32 are read where they are. ``after``: what comes next."""
    position, low, high = task[T.position], task[T.low], task[T.high]
    in_place = pages.stored == F32 and block_size >= ROWS
    at = low
    while at < high:
        stop = min(high, at + ROWS)
        if in_place:
            index, offset = at // block_size, at % block_size
            stop = min(stop, at - offset + block_size)
            rows, stride = shift(f32_at(pages.address), np.int64(table[index]) * pages.block + offset * pages.slot), pages.slot
            ask_for_page(pages, table, block_size, stop, high, width)
            if not are_values and stop >= high:
                ask_for_page(after, table, block_size, low, high, width)
        else:
            gather(pages, table, block_size, at, stop, width, buffer)
            rows, stride = buffer, width
        for t in range(task[T.tokens]):
            own = position + t
            first, last = max(at, own - window + 1) - at, min(stop, own + 1) - at
            for m in range(t * group, (t + 1) * group):
                if are_values:
                    add_rows(shift(scores, m * SPLIT + at - low), rows, stride, first, last, width, shift(vectors, m * width))
                else:
                    score_rows(shift(vectors, m * width), rows, stride, first, last, width, shift(scores, m * SPLIT + at - low))
        at = stop


@njit(error_model="numpy", fastmath=SUMS)
def join(share, pieces, stride, record, m, width, acc):
    """Put the pieces' shares of query row ``m`` together, always in their order; returns the sum of weights, with ``acc`` weighted by it."""
    most, total = np.float32(-np.inf), np.float32(0.0)
    for p in range(pieces):
        other = share[p * stride + m * record]
        most = other if other > most else most
    for d in range(width):
        acc[d] = np.float32(0.0)
    for p in range(pieces):
        other = shift(share, p * stride + m * record)
        w = exp_of_negative(other[0] - most)
        total += w * other[1]
        for d in range(width):
            acc[d] += w * other[2 + d]
    return total


@njit(error_model="numpy", fastmath=SUMS)
def load_queries(a, task, head, group, width, queries, acc):
    """The queries of a piece times the scale, as float32; ``acc`` is set to zero."""
    scale = np.float32(f64_of_bits(a[A.scale]))
    for m in range(task[T.tokens] * group):
        at = (task[T.row] + m // group) * a[A.q_token] + (head * group + m % group) * a[A.q_head]
        numbers, halves = shift(f32_at(a[A.q]), at), shift(u16_at(a[A.q]), at)
        for d in range(width):
            x = numbers[d] if a[A.q_stored] == F32 else f32_of_bf16(halves[d])
            queries[m * width + d] = x * scale
            acc[m * width + d] = np.float32(0.0)


@njit(error_model="numpy", fastmath=SUMS)
def attend_piece(a, item, scratch):
    """One piece of work for one KV head: scores, their softmax, values; whoever ends the last piece of a group joins them."""
    heads, group, width = a[A.num_kv_heads], a[A.group], a[A.head_dim]
    task, head = shift(i64_at(a[A.pieces]), item // heads * len(T)), item % heads
    table, window = shift(i32_at(a[A.tables]), task[T.table] * a[A.tables_row]), a[A.window]
    rows = a[A.rows]
    queries, acc, buffer, scores = scratch, shift(scratch, rows * width), shift(scratch, 2 * rows * width), shift(scratch, (2 * rows + ROWS) * width)
    keys = Pages(a[A.k] + head * a[A.k_head_bytes], a[A.stored], a[A.k_block], a[A.k_slot],
                 a[A.k_scale] + head * a[A.k_scale_head_bytes], a[A.k_scale_block], a[A.k_scale_slot])
    values = Pages(a[A.v] + head * a[A.v_head_bytes], a[A.stored], a[A.v_block], a[A.v_slot],
                   a[A.v_scale] + head * a[A.v_scale_head_bytes], a[A.v_scale_block], a[A.v_scale_slot])
    load_queries(a, task, head, group, width, queries, acc)
    low, high, pieces, record = task[T.low], task[T.high], task[T.pieces], width + 2
    share = shift(f32_at(a[A.partial]), (task[T.part] * heads + head) * rows * record)
    # A condition and not True: numba would compile `visit` once for each constant.
    visit(keys, values, pieces < 0, table, a[A.block_size], task, window, group, width, queries, scores, buffer)
    for m in range(task[T.tokens] * group):             # share: largest score, sum of weights, weighted values
        own, mine = task[T.position] + m // group, shift(scores, m * SPLIT)
        first, last = max(low, own - window + 1) - low, min(high, own + 1) - low
        share[m * record] = largest(mine, first, last)
        share[m * record + 1] = exponentials(mine, first, last, share[m * record])
    visit(values, keys, pieces > 0, table, a[A.block_size], task, window, group, width, acc, scores, buffer)
    if pieces > 1:
        for m in range(task[T.tokens] * group):
            for d in range(width):
                share[m * record + 2 + d] = acc[m * width + d]
        if fetch_add(shift(i64_at(a[A.done]), task[T.group] * heads + head), 1) < pieces - 1:
            return
        share = shift(f32_at(a[A.partial]), (task[T.first] * heads + head) * rows * record)
    for m in range(task[T.tokens] * group):
        mine, total = shift(acc, m * width), share[m * record + 1]
        if pieces > 1:
            total = join(share, pieces, heads * rows * record, record, m, width, mine)
        to = ((task[T.row] + m // group) * heads * group + head * group + m % group) * width
        for d in range(width):
            if a[A.q_stored] == F32:
                f32_at(a[A.out])[to + d] = mine[d] / total
            else:
                u16_at(a[A.out])[to + d] = bf16_of(mine[d] / total)


@njit(error_model="numpy")
def write_row(x_stored, x, at, stored, to_address, to, scale_address, scale_to, width):
    """One token's numbers of one KV head into the cache, as `cache.write` does it, codes and all."""
    numbers, halves = shift(f32_at(x), at), shift(u16_at(x), at)
    scale = np.float32(0.0)
    if stored != F32 and stored != BF16:
        for d in range(width):
            size = abs(numbers[d] if x_stored == F32 else f32_of_bf16(halves[d]))
            scale = size if size > scale or size != size else scale     # NaN shows, as in torch's amax
        scale /= np.float32(127.0)
        f32_at(scale_address)[scale_to] = scale
    for d in range(width):
        number = numbers[d] if x_stored == F32 else f32_of_bf16(halves[d])
        if stored == F32:
            f32_at(to_address)[to + d] = number
        elif stored == BF16:
            u16_at(to_address)[to + d] = bf16_of(number)
        else:
            i8_at(to_address)[to + d] = np.int8(np.floor(number / (scale if scale > np.float32(0.0) else np.float32(1.0)) + np.float32(0.5)))


def _compile(stamp, keep):
    """The two C functions. numba notices by itself when this file changes; ``stamp``, part of the key on disk, tells it of others."""
    @cfunc(types.void(I64P), cache=keep)
    def attend(a):
        """Take pieces until none is left. Every thread has a part of the scratch memory to itself."""
        _ = stamp
        next_item, thread = i64_at(a[A.next_item]), fetch_add(i64_at(a[A.next_thread]), 1)
        scratch = shift(f32_at(a[A.scratch]), thread * a[A.scratch_size])
        item = fetch_add(next_item, 1)
        while item < a[A.num_items]:
            attend_piece(a, item, scratch)
            item = fetch_add(next_item, 1)

    @cfunc(types.void(I64P), cache=keep)
    def write(a):
        """New keys and values to their slots, some tokens at a time; a slot of -1 is in the cache already."""
        _ = stamp
        block_size, width = a[A.block_size], a[A.head_dim]
        first = fetch_add(i64_at(a[A.next_write]), ROWS)
        while first < a[A.num_tokens]:
            for token in range(first, min(first + ROWS, a[A.num_tokens])):
                slot = i64_at(a[A.slots])[token]
                if slot < 0:
                    continue
                block, offset = slot // block_size, slot % block_size
                for head in range(a[A.num_kv_heads]):
                    write_row(a[A.q_stored], a[A.new_k], token * a[A.new_k_token] + head * a[A.new_k_head],
                              a[A.stored], a[A.k] + head * a[A.k_head_bytes], block * a[A.k_block] + offset * a[A.k_slot],
                              a[A.k_scale] + head * a[A.k_scale_head_bytes], block * a[A.k_scale_block] + offset * a[A.k_scale_slot], width)
                    write_row(a[A.q_stored], a[A.new_v], token * a[A.new_v_token] + head * a[A.new_v_head],
                              a[A.stored], a[A.v] + head * a[A.v_head_bytes], block * a[A.v_block] + offset * a[A.v_slot],
                              a[A.v_scale] + head * a[A.v_scale_head_bytes], block * a[A.v_scale_block] + offset * a[A.v_scale_slot], width)
            first = fetch_add(i64_at(a[A.next_write]), ROWS)

    return attend, write


def _load():
    stamp = zlib.crc32(b"".join(Path(module.__file__).read_bytes() for module in (cpu_layout, cpu_numbers)))
    try:
        return _compile(stamp, True)
    except RuntimeError:                            # no folder that numba could keep it in
        return _compile(stamp, False)


_FUNCTIONS = _load()
COMPILED = not all(function.cache_hits for function in _FUNCTIONS)
"""It was not found on disk."""
ATTEND, WRITE = (function.address for function in _FUNCTIONS)
