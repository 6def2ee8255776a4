"""The KV cache: copies move exactly the bytes they should, in all layers; writes land in their slots; bad plans are refused."""
from __future__ import annotations

import gc

import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paged_edu.attention import cache as cache_module
from paged_edu.attention.cache import KVCache, bytes_per_block, write
from paged_edu.core.plan import Copy


def random_cache(num_blocks: int = 8, dtype: torch.dtype = torch.float32, layers: int = 3, seed: int = 0) -> KVCache:
    cache = KVCache(layers, num_blocks, 2, 4, 5, dtype, "cpu")
    generator = torch.Generator().manual_seed(seed)
    for layer in cache:
        for tensor in layer:
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return cache


def snapshot(cache: KVCache) -> list[list[torch.Tensor]]:
    return [[t.clone() for t in layer] for layer in cache]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int8])
def test_shapes_and_size(dtype: torch.dtype) -> None:
    cache = KVCache(3, 7, 2, 16, 8, dtype, "cpu")
    assert len(cache) == 3
    assert all(t.shape == (7, 2, 16, 8) and t.dtype == dtype and t.is_contiguous() for layer in cache for t in layer[:2])
    assert all(t.shape == (7, 2, 16) and t.dtype == torch.float32 and t.is_contiguous() for layer in cache for t in layer[2:])
    held = sum(t.numel() * t.element_size() for layer in cache for t in layer)
    assert held == 7 * bytes_per_block(3, 2, 16, 8, dtype)


def test_bytes_per_block_of_opt_13b() -> None:
    assert bytes_per_block(40, 40, 1, 128, torch.float16) == 819_200  # the paper's 800 KB a token


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_copy_blocks_moves_bytes_in_all_layers(data: st.DataObject) -> None:
    cache = random_cache(num_blocks=10)
    order = data.draw(st.permutations(range(10)))
    dst = order[: data.draw(st.integers(1, 6))]
    src = [data.draw(st.sampled_from(order[len(dst):])) for _ in dst]  # a source may repeat
    before = snapshot(cache)
    cache.copy_blocks([Copy(s, d) for s, d in zip(src, dst)])
    came_from = dict(zip(dst, src))
    for layer, old_layer in zip(cache, before):
        for tensor, old in zip(layer, old_layer):
            for block in range(10):
                assert tensor[block].numpy().tobytes() == old[came_from.get(block, block)].numpy().tobytes()


def test_copy_keeps_nan_payloads() -> None:
    cache = random_cache()
    cache.layers[0][0][2].fill_(float("nan"))
    cache.copy_blocks([Copy(2, 5)])
    assert cache[0][0][5].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_a_cache_for_swapping_keeps_each_block_in_one_piece_and_gives_it_back(dtype: torch.dtype) -> None:
    here, there = random_cache(dtype=dtype), KVCache(3, 5, 2, 4, 5, dtype, "cpu", for_swapping=True)
    assert all(stack[:, 2].is_contiguous() for stack in there.stacks)
    assert not any(stack[:, 2].is_contiguous() for stack in here.stacks)
    kept = [stack.clone() for stack in here.stacks]
    here.copy_to(there, [Copy(6, 0), Copy(1, 4)])
    here.fill_(0)
    there.copy_to(here, [Copy(4, 1), Copy(0, 6)])
    for stack, old in zip(here.stacks, kept, strict=True):
        assert len(here.stacks) == (4 if dtype == torch.int8 else 2)
        assert stack[:, [1, 6]].numpy().tobytes() == old[:, [1, 6]].numpy().tobytes()


def test_an_int8_cache_keeps_codes_and_a_scale_for_each_token_and_head() -> None:
    cache = KVCache(1, 3, 2, 4, 8, torch.int8, "cpu").fill_(float("nan"))
    k = torch.randn(3, 2, 8) * torch.tensor([0.01, 1.0, 100.0])[:, None, None]
    k[1, 1] = 0
    write(cache[0], k, -2 * k, torch.tensor([5, -1, 2]))
    codes, _, k_scale, v_scale = cache[0]
    for token, (block, offset) in ((0, (1, 1)), (2, (0, 2))):
        torch.testing.assert_close(k_scale[block, :, offset], k[token].abs().amax(-1) / 127)
        torch.testing.assert_close(v_scale[block, :, offset], 2 * k[token].abs().amax(-1) / 127)
        back = codes[block, :, offset] * k_scale[block, :, offset, None]
        assert ((back - k[token]).abs() <= k_scale[block, :, offset, None] / 2 * 1.0001).all()
        assert (codes[block, :, offset].abs().amax(-1) == 127).all()
    assert k_scale.isnan().sum() == 2 * 4 * 3 - 4                    # two tokens of two heads, nothing else
    write(cache[0], k, k, torch.tensor([0, 1, 2]))
    assert k_scale[0, 1, 1] == 0
    assert not codes[0, 1, 1].any()                                  # zeros, not 0 / 0


def test_one_layers_numbers_are_its_share_of_the_stacks() -> None:
    cache = random_cache()
    assert all(cache[i][kind].data_ptr() == cache.stacks[kind][i].data_ptr() for i in range(3) for kind in range(2))


@pytest.mark.parametrize(
    ("copies", "message"),
    [
        ([Copy(0, 1), Copy(1, 2)], "block 1 is both source and destination"),
        ([Copy(3, 3)], "block 3 is both source and destination"),
        ([Copy(0, 2), Copy(1, 2)], "block 2 is the destination of two copies"),
        ([Copy(8, 0)], "source block 8 is outside the cache: it has blocks 0 to 7"),
        ([Copy(0, 1), Copy(0, -1)], "destination block -1 is outside the cache"),
    ],
)
def test_bad_copies_are_refused_and_nothing_moves(copies: list[Copy], message: str) -> None:
    cache = random_cache()
    before = snapshot(cache)
    with pytest.raises(ValueError, match=message):
        cache.copy_blocks(copies)
    assert all(torch.equal(t, o) for layer, old in zip(cache, before) for t, o in zip(layer, old))


def test_no_copies_is_fine() -> None:
    random_cache().copy_blocks([])


def test_swap_out_and_in_keeps_the_bytes() -> None:
    gpu, cpu = random_cache(8, seed=1), random_cache(3, seed=2)
    before = snapshot(gpu)
    gpu.copy_to(cpu, [Copy(6, 0), Copy(1, 2)])  # src 1 and dst 1 would be different blocks: ids of two caches
    for layer in gpu:
        for tensor in layer:
            tensor[[1, 6]] = float("nan")
    cpu.copy_to(gpu, [Copy(0, 3), Copy(2, 0)])
    for layer, old in zip(gpu, before):
        for t, o in zip(layer, old):
            assert torch.equal(t[3], o[6])
            assert torch.equal(t[0], o[1])


def test_swap_refuses_another_page_type_and_bad_ids() -> None:
    with pytest.raises(ValueError, match="different pages"):
        random_cache().copy_to(random_cache(dtype=torch.float16), [Copy(0, 0)])
    with pytest.raises(ValueError, match="destination block 5 is outside the cache: it has blocks 0 to 2"):
        random_cache().copy_to(random_cache(3), [Copy(0, 5)])


def test_write_goes_by_slot_and_minus_one_writes_nowhere() -> None:
    cache = random_cache()
    before = snapshot(cache)[0]
    k, v = torch.randn(4, 2, 5), torch.randn(4, 2, 5)
    write(cache[0], k, v, torch.tensor([9, -1, 0, 31]))
    expected_k, expected_v = before
    for i, (block, offset) in {0: (2, 1), 2: (0, 0), 3: (7, 3)}.items():
        expected_k[block, :, offset], expected_v[block, :, offset] = k[i], v[i]
    assert torch.equal(cache[0][0], expected_k)  # slot 31, the last one, is not slot -1
    assert torch.equal(cache[0][1], expected_v)


def test_write_casts_and_checks_the_range() -> None:
    cache = random_cache(dtype=torch.float16)
    k = torch.randn(1, 2, 5, dtype=torch.float64)
    write(cache[0], k, k, torch.tensor([5]), all_written=True)
    assert torch.equal(cache[0][0][1, :, 1], k[0].half())
    with pytest.raises(IndexError):
        write(cache[0], k, k, torch.tensor([32]))


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="block_size must be at least 1, not 0"):
        KVCache(1, 4, 2, 0, 8, torch.float32, "cpu")
    with pytest.raises(ValueError, match=r"torch\.int32"):
        KVCache(1, 4, 2, 16, 8, torch.int32, "cpu")
    with pytest.raises(ValueError, match="num_layers"):
        bytes_per_block(0, 1, 1, 1, torch.float32)


def test_a_large_cache_is_memory_like_any_other(monkeypatch):
    """Large pages are asked for from `LARGE_PAGES_FROM` on; whoever holds a layer holds the memory, and whoever lets go of it gives it back."""
    monkeypatch.setattr(cache_module, "LARGE_PAGES_FROM", 1 << 20)
    process = psutil.Process()
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        cache = KVCache(2, 64, 3, 16, 64, dtype, "cpu").fill_(3.0)
        layer = cache[1]
        del cache
        gc.collect()
        assert (layer[0] == (127 if dtype == torch.int8 else 3)).all()
        layer[0][5] = 1
        assert layer[0].is_contiguous()
        assert layer[0][5].float().sum() == 3 * 16 * 64
    del layer
    gc.collect()
    before = process.memory_info().rss
    for _ in range(5):
        KVCache(2, 4096, 3, 16, 64, torch.float32, "cpu").fill_(1.0)      # 100 MB each
    gc.collect()
    assert process.memory_info().rss - before < 60e6
