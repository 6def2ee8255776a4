"""Where numbers lie in memory: block ids beyond 16 bits, strides of any kind, and shapes that don't fit, which are refused."""
from __future__ import annotations

import pytest
import torch
from ladder import DEVICE, LATER, NAN, RUNGS, check, make
from paged_edu.kernels.cache import write_cache
from torch import Tensor


@pytest.mark.parametrize("rung", RUNGS)
def test_block_ids_beyond_65535(rung: str) -> None:
    """known fault B71"""
    batch = make([(40, 1), (16, 1)], 2, 1)
    spread = torch.tensor([65535, 65536, 65537, 65539, 0], device=DEVICE)
    cache = []
    for small in batch.cache:
        large = torch.full((65540, *small.shape[1:]), NAN, device=DEVICE)
        large[spread] = small
        cache.append(large)
    batch.cache = tuple(cache)
    batch.block_tables = spread.int()[batch.block_tables.long()]
    check(RUNGS[rung](batch), batch)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("rung", RUNGS)
def test_keys_and_values_in_one_tensor_and_queries_out_of_a_fused_projection(rung: str, dtype: torch.dtype) -> None:
    """known fault B78: between two blocks of keys lies one of values, and between two queries a key and a value."""
    batch = make([(9, 1), (6, 1)], 4, 2, block_size=4, dtype=dtype)
    right = RUNGS[rung](batch)
    num_blocks = batch.cache[0].shape[0]
    kv = torch.full((num_blocks, 2, 4, 2, 16), NAN, dtype=dtype, device=DEVICE)                    # [blocks, k and v, slots, heads, head]
    for which, t in enumerate(batch.cache):
        kv[:, which] = t.transpose(1, 2)
    batch.cache = (kv[:, 0].transpose(1, 2), kv[:, 1].transpose(1, 2))
    assert batch.cache[0].stride() == (256, 16, 32, 1)
    fused = torch.full((2, 8, 16), NAN, dtype=dtype, device=DEVICE)
    fused[:, 1:5] = batch.q
    batch.q = fused[:, 1:5]
    assert not batch.q.is_contiguous()
    out = RUNGS[rung](batch)
    assert torch.equal(out, right)
    check(out, batch)


@pytest.mark.parametrize("rung", RUNGS)
def test_queries_with_tokens_inside_heads(rung: str) -> None:
    """A dense tensor seen in another order: the result's strides are its own as well."""
    batch = make([(9, 1), (6, 1), (2, 1)], 4, 2)
    right = RUNGS[rung](batch)
    batch.q = batch.q.transpose(0, 1).contiguous().transpose(0, 1)
    assert batch.q.stride() == (16, 48, 1)
    assert torch.equal(RUNGS[rung](batch), right)


@pytest.mark.parametrize("rung", LATER)
def test_tables_inside_a_wider_one(rung: str) -> None:
    """A row of the table need not end where the next begins, and what lies behind its end is never a block."""
    batch = make([(40, 3), (16, 1), (33, 2)], 2, 1)
    right = LATER[rung](batch)
    wide = torch.full((3, 9), 2**30, dtype=torch.int32, device=DEVICE)
    wide[:, :3] = batch.block_tables
    batch.block_tables = wide[:, :3]
    assert torch.equal(LATER[rung](batch), right)


@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize("rung", RUNGS)
def test_what_lies_in_a_table_behind_the_last_block_is_not_looked_up(rung: str, block_size: int) -> None:
    batch = make([(4 * block_size, 1), (block_size, 1), (1, 1)], 2, 1, block_size=block_size)
    batch.block_tables[1, 1:] = batch.block_tables[2, 1:] = 2**30
    check(RUNGS[rung](batch), batch)


@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("rung", LATER)
def test_a_layer_of_a_stack(rung: str, quantised: bool) -> None:
    """Blocks of all layers together, as host memory has them: between two blocks of a layer lie those of the others, scales too."""
    batch = make([(20, 2), (5, 1)], 4, 2, quantised=quantised)
    right = LATER[rung](batch)
    batch.cache = tuple(_in_the_middle(t) for t in batch.cache)
    assert not batch.cache[0].is_contiguous()
    assert torch.equal(LATER[rung](batch), right)


def _in_the_middle(t: Tensor) -> Tensor:
    stack = torch.empty(t.shape[0], 3, *t.shape[1:], dtype=t.dtype, device=t.device).fill_(NAN if t.is_floating_point() else 127)
    stack[:, 1] = t
    return stack[:, 1]


@pytest.mark.parametrize("rung", RUNGS)
def test_numbers_of_a_head_that_lie_apart_are_refused(rung: str) -> None:
    batch = make([(5, 1)], 2, 1)
    apart = torch.empty(*batch.q.shape, 2, device=DEVICE)[..., 0]
    with pytest.raises(ValueError, match=r"the numbers of one head of q must lie side by side; its strides are \(64, 32, 2\)"):
        RUNGS[rung](_with(batch, q=apart))
    for which, name in enumerate("kv"):
        cache = list(batch.cache)
        cache[which] = torch.empty(*cache[which].shape, 2, device=DEVICE)[..., 0]
        with pytest.raises(ValueError, match=f"one head of {name} must lie side by side"):
            RUNGS[rung](_with(batch, cache=tuple(cache)))


@pytest.mark.parametrize("rung", RUNGS)
def test_shapes_that_do_not_fit_are_refused(rung: str) -> None:
    batch = make([(5, 1)], 4, 2)
    k, v = batch.cache
    with pytest.raises(ValueError, match="3 query heads can't share 2 KV heads evenly"):
        RUNGS[rung](_with(batch, q=batch.q[:, :3]))
    with pytest.raises(ValueError, match="queries have 12 numbers a head"):
        RUNGS[rung](_with(batch, q=batch.q[..., :12]))
    with pytest.raises(ValueError, match="queries have 16 numbers a head"):
        RUNGS[rung](_with(batch, cache=(k, v[:, :1])))
    with pytest.raises(ValueError, match="heads of up to 256 numbers, not 300"):
        RUNGS[rung](_with(batch, q=torch.zeros(1, 4, 300, device=DEVICE), cache=(torch.zeros(2, 2, 16, 300, device=DEVICE),) * 2))


def _with(batch, **changes):
    return type(batch)(**vars(batch) | changes)


def test_shapes_of_new_keys_that_do_not_fit_are_refused() -> None:
    cache = tuple(torch.zeros(2, 2, 4, 16, device=DEVICE) for _ in range(2))
    x, slots = torch.zeros(3, 2, 16, device=DEVICE), torch.arange(3, device=DEVICE)
    for k, v, where in ((x[:, :1], x[:, :1], slots), (x, x[:2], slots), (x[..., :8], x[..., :8], slots), (x, x, slots[:2])):
        with pytest.raises(ValueError, match=r"new keys .* don't fit a cache of \(2, 2, 4, 16\)"):
            write_cache(k, v, cache, where)
    apart = torch.zeros(3, 2, 32, device=DEVICE)[..., ::2]
    for k, v in ((apart, x), (x, apart)):
        with pytest.raises(ValueError, match="must lie side by side"):
            write_cache(k, v, cache, slots)
