"""The kernels that fill and move blocks, byte for byte what torch does: `attention.cache.write` and `copy_by_index`; and attention over int8."""
from __future__ import annotations

import pytest
import torch
from ladder import DEVICE, LATER, NAN, check, make
from paged_edu.kernels.cache import copy_blocks, write_cache
from torch import Tensor

from paged_edu.attention.cache import KVCache, LayerCache, copy_by_index, write
from paged_edu.attention.triton import copy_pages
from paged_edu.core.plan import Copy

DTYPES = [torch.float32, torch.float16, torch.int8]


def new_tokens(n: int, heads: int, head_dim: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Keys and values, with heads of zeros, of huge and of tiny numbers, and of one number beside zeros among them."""
    g = torch.Generator().manual_seed(seed)
    k, v = (torch.randn(n, heads, head_dim, generator=g) for _ in range(2))
    k[0] = 0
    v[1 % n] *= 1e4
    k[2 % n] *= 1e-5
    v[2 % n, 0] = 0
    v[2 % n, 0, head_dim // 2] = -3
    return k.to(dtype).to(DEVICE), v.to(dtype).to(DEVICE)


def empty(num_blocks: int, heads: int, block_size: int, head_dim: int, dtype: torch.dtype) -> LayerCache:
    return KVCache(1, num_blocks, heads, block_size, head_dim, dtype, DEVICE).fill_(NAN)[0]


def same_bytes(a: LayerCache, b: LayerCache) -> None:
    for x, y in zip(a, b, strict=True):
        assert x.dtype == y.dtype
        assert torch.equal(x.contiguous().view(torch.uint8), y.contiguous().view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "head_dim", "block_size"), [(2, 16, 16), (3, 20, 3), (48, 64, 4), (1, 96, 1), (9, 256, 32)])
def test_writing_is_what_torch_writes(dtype: torch.dtype, heads: int, head_dim: int, block_size: int) -> None:
    """48 heads of 64 take two programs a token, and 9 of 256 too."""
    k, v = new_tokens(9, heads, head_dim, torch.float32 if dtype == torch.int8 else dtype)
    num_blocks = 40 // block_size + 2
    slots = torch.randperm(num_blocks * block_size, generator=torch.Generator().manual_seed(1))[:9].to(DEVICE)
    slots[4] = -1
    ours, torchs = (empty(num_blocks, heads, block_size, head_dim, dtype) for _ in range(2))
    write_cache(k, v, ours, slots)
    write(torchs, k, v, slots)
    same_bytes(ours, torchs)
    written = torchs[-1][..., 0] if dtype != torch.int8 else torchs[-1]
    assert int((~written.isnan()).sum()) == 8 * heads


def test_codes_of_fp16_keys_are_those_of_torch() -> None:
    k, v = new_tokens(40, 2, 64, torch.float16, seed=3)
    ours, torchs = (empty(11, 2, 4, 64, torch.int8) for _ in range(2))
    slots = torch.arange(1, 41, device=DEVICE)
    write_cache(k, v, ours, slots)
    write(torchs, k, v, slots)
    same_bytes(ours, torchs)
    assert ours[0].min() == -127
    assert ours[0][:, 0, :, 0].float().std() > 20


@pytest.mark.parametrize("dtype", DTYPES)
def test_slot_minus_one_writes_nowhere(dtype: torch.dtype) -> None:
    """known fault B79: -1 // 4 and -1 % 4 would be the very last slot, 15."""
    k, v = new_tokens(3, 2, 16, torch.float32)
    cache = empty(4, 2, 4, 16, dtype)
    before = [t.clone() for t in cache]
    write_cache(k, v, cache, torch.tensor([5, -1, 6], device=DEVICE))
    for t, old in zip(cache, before):
        flat, old = (x.transpose(1, 2).reshape(16, -1) for x in (t, old))
        changed = [s for s in range(16) if flat[s].cpu().numpy().tobytes() != old[s].cpu().numpy().tobytes()]
        assert changed == [5, 6]


def test_keys_out_of_a_fused_projection() -> None:
    k, v = new_tokens(5, 2, 16, torch.float32)
    fused = torch.full((5, 8, 16), NAN, device=DEVICE)
    fused[:, 4:6], fused[:, 6:] = k, v
    ours, torchs = (empty(3, 2, 4, 16, torch.float32) for _ in range(2))
    slots = torch.tensor([11, 0, 3, 4, 7], device=DEVICE)
    write_cache(fused[:, 4:6], fused[:, 6:], ours, slots)
    write(torchs, k, v, slots)
    same_bytes(ours, torchs)


def test_into_one_tensor_of_keys_and_values() -> None:
    """known fault B78, the writing side."""
    k, v = new_tokens(5, 2, 16, torch.float32)
    kv = torch.full((8, 2, 4, 2, 16), NAN, device=DEVICE)
    torchs = empty(8, 2, 4, 16, torch.float32)
    slots = torch.tensor([31, 0, 13, 4, 7], device=DEVICE)
    write_cache(k, v, (kv[:, 0].transpose(1, 2), kv[:, 1].transpose(1, 2)), slots)
    write(torchs, k, v, slots)
    same_bytes((kv[:, 0].transpose(1, 2), kv[:, 1].transpose(1, 2)), torchs)


def test_a_block_far_into_the_cache() -> None:
    """known fault B71, the writing side."""
    k, v = new_tokens(3, 1, 16, torch.float16)
    cache = empty(65540, 1, 16, 16, torch.float16)
    write_cache(k, v, cache, torch.tensor([65539 * 16 + 15, 65536 * 16, 0], device=DEVICE))
    for which, x in enumerate((k, v)):
        assert torch.equal(torch.stack([cache[which][65539, 0, 15], cache[which][65536, 0, 0], cache[which][0, 0, 0]]), x[:, 0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("page", [(2, 16, 16), (3, 5, 20), (1, 1, 80), (3, 16, 96)])
def test_copying_is_what_torch_copies(dtype: torch.dtype, page: tuple[int, int, int]) -> None:
    """All layers at once, several destinations of one source; 4608 numbers of a page take two programs, 300 are no power of two."""
    caches = []
    for copy in (copy_pages, copy_by_index):
        g = torch.Generator().manual_seed(4)
        cache = KVCache(3, 7, *page, dtype, DEVICE, copy_pages=copy)
        for stack in cache.stacks:
            stack.copy_(torch.randint(-127, 128, stack.shape, generator=g) if dtype == torch.int8 else torch.randn(stack.shape, generator=g))
        cache.stacks[-1][:, 0] = 5
        before = [stack.clone() for stack in cache.stacks]
        cache.copy_blocks([Copy(6, 2), Copy(6, 0), Copy(4, 5), Copy(6, 1)])
        for stack, old in zip(cache.stacks, before):
            assert torch.equal(stack, old[:, [6, 6, 6, 3, 4, 4, 6]])
        caches.append(cache)
    same_bytes(caches[0].stacks, caches[1].stacks)


def test_copying_between_two_stacks_of_different_strides() -> None:
    """As from a GPU's layout into host memory's, where all layers of a block lie together."""
    src = torch.randn(3, 5, 300, device=DEVICE)
    dst = torch.full((8, 3, 400), NAN, device=DEVICE).transpose(0, 1)[..., :300]
    copy_blocks(src, dst, torch.tensor([4, 0], device=DEVICE), torch.tensor([7, 2], device=DEVICE), 300)
    assert torch.equal(dst[:, [7, 2]], src[:, [4, 0]])
    assert dst[:, [0, 1, 3, 4, 5, 6]].isnan().all()


def test_nothing_to_copy() -> None:
    cache = KVCache(1, 2, 1, 4, 16, torch.float32, DEVICE, copy_pages=copy_pages).fill_(1.0)
    cache.copy_blocks([])
    assert (cache.stacks[0] == 1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("rung", LATER)
def test_attention_over_int8(rung: str, window: int | None, dtype: torch.dtype) -> None:
    """Against float64 over codes times scales; unwritten slots have NaN for a scale."""
    batch = make([(40, 3), (17, 1), (70, 8), (3, 3)], 4, 2, 20, 3, dtype=dtype, quantised=True)
    check(LATER[rung](batch, window=window), batch, window, atol=1e-5 if dtype == torch.float32 else 2e-3)


def test_int8_is_not_exact() -> None:
    """What tells whether the codes were read at all: over int8 the result is near that of the keys themselves, and not the same."""
    exact, coded = (make([(40, 3)], 4, 2, 64, quantised=quantised) for quantised in (False, True))
    assert torch.equal(exact.q, coded.q)
    away = (exact.expected() - coded.expected()).abs().max()
    assert 1e-3 < away < 0.1
