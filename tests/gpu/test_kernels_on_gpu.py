"""What only a GPU can show of the kernels: real shapes in half precision, caches beyond 2^31 numbers, graphs on and off, swaps beside computing.

`tests/kernels` holds the rest: its tests run on the GPU where there is one.
"""
from __future__ import annotations

import pytest
import torch
from batches import Pager
from llamas import random_llama

from paged_edu import LLM, BeamSearchParams, SamplingParams
from paged_edu.attention import reference, triton
from paged_edu.attention.cache import KVCache
from paged_edu.attention.metadata import AttentionMetadata, build_input
from paged_edu.attention.swap import Swapper
from paged_edu.core.plan import Copy

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

SHAPES = {
    "GPT-2": (12, 12, 64), "SmolLM2": (9, 3, 64), "Llama-3-8B": (32, 8, 128), "Qwen2-7B": (28, 4, 128), "Gemma": (8, 4, 256), "Phi-2": (32, 32, 80),
}
"""Query heads, KV heads, head size."""
ATOL = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def batch_of(lengths: list[tuple[int, int]], block_size: int, num_blocks: int, seed: int = 0) -> AttentionMetadata:
    """Sequences of ``(tokens in the cache before, query tokens)``."""
    pager = Pager(num_blocks, block_size, seed)
    for i, (before, _) in enumerate(lengths):
        if before:
            pager.schedule(i, [0] * before)
    return build_input([pager.schedule(i, [0] * new) for i, (_, new) in enumerate(lengths)], block_size, "cuda").meta


def filled(num_blocks: int, kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype, meta: AttentionMetadata) -> KVCache:
    """Random numbers in every slot that a sequence uses, NaN in all others."""
    cache = KVCache(1, num_blocks, kv_heads, block_size, head_dim, dtype, "cuda", copy_pages=triton.copy_pages).fill_(float("nan"))
    g = torch.Generator("cuda").manual_seed(1)
    for table, seq_len in zip(meta.block_tables.tolist(), meta.host_seq_lens):
        for logical in range(-(-seq_len // block_size)):
            there = min(block_size, seq_len - logical * block_size)
            for tensor in cache[0][:2]:
                shape = (kv_heads, there, head_dim)
                new = torch.randn(shape, generator=g, device="cuda")
                tensor[table[logical], :, :there] = (40 * new).clamp(-127, 127).to(dtype) if dtype == torch.int8 else new.to(dtype)
            for scale in cache[0][2:]:
                scale[table[logical], :, :there] = torch.rand(kv_heads, there, generator=g, device="cuda") / 60
    return cache


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", ATOL)
@pytest.mark.parametrize(("lengths", "window"), [
    ([(1023, 1), (16, 1), (15, 1), (0, 1)], None), ([(4000, 1)], None), ([(700, 5), (31, 8), (64, 1)], None),
    ([(0, 300), (511, 1), (128, 77), (3, 13)], None), ([(0, 300), (511, 1), (900, 40)], 128), ([(2000, 1), (60, 1)], 256),
])
def test_real_shapes(name: str, dtype: torch.dtype, lengths: list[tuple[int, int]], window: int | None) -> None:
    heads, kv_heads, head_dim = SHAPES[name]
    for block_size, kv_dtype in ((16, dtype), (32, dtype), (24, dtype), (16, torch.int8)):
        if dtype == torch.bfloat16 and torch.cuda.get_device_capability() < (8, 0):
            pytest.skip("no bfloat16 before capability 8.0")
        num_blocks = sum(-(-(a + b) // block_size) for a, b in lengths) + 2
        meta = batch_of(lengths, block_size, num_blocks)
        cache = filled(num_blocks, kv_heads, block_size, head_dim, kv_dtype, meta)
        g = torch.Generator("cuda").manual_seed(2)
        q, k, v = (torch.randn(meta.num_tokens, n, head_dim, generator=g, device="cuda").to(dtype) for n in (heads, kv_heads, kv_heads))
        ours = triton.attend(q, k, v, cache[0], meta, window, head_dim**-0.5)
        exact = reference.attend(q.double(), k.double(), v.double(), cache[0], meta, window, head_dim**-0.5)    # writes the same numbers again
        torch.testing.assert_close(ours.double(), exact, rtol=0, atol=ATOL[dtype], msg=f"block size {block_size}, cache {kv_dtype}")


def test_a_cache_of_more_than_2_to_the_31_numbers() -> None:
    """The last blocks of the cache start beyond what 32 bits count; writing, reading and copying reach them."""
    kv_heads, block_size, head_dim = 8, 16, 128
    num_blocks = 2**31 // (kv_heads * block_size * head_dim) + 64
    free, _ = torch.cuda.mem_get_info()
    if free < 2.2 * num_blocks * kv_heads * block_size * head_dim * 2:
        pytest.skip("not enough memory on this card")
    cache = KVCache(1, num_blocks, kv_heads, block_size, head_dim, torch.float16, "cuda", copy_pages=triton.copy_pages)
    pager = Pager(num_blocks, block_size)
    pager.free = list(range(num_blocks - 1, num_blocks - 40, -1))
    g = torch.Generator("cuda").manual_seed(3)
    q, k, v = (torch.randn(300, n, head_dim, generator=g, device="cuda").half() for n in (32, kv_heads, kv_heads))
    meta = build_input([pager.schedule(0, [0] * 300)], block_size, "cuda").meta
    out = triton.attend(q, k, v, cache[0], meta, None, head_dim**-0.5)
    small = KVCache(1, 19, kv_heads, block_size, head_dim, torch.float16, "cuda")
    near = build_input([Pager(19, block_size).schedule(0, [0] * 300)], block_size, "cuda").meta
    torch.testing.assert_close(out, triton.attend(q, k, v, small[0], near, None, head_dim**-0.5), rtol=0, atol=0)
    last = pager.tables[0][0]
    cache.copy_blocks([Copy(last, 0), Copy(last, 1)])
    assert torch.equal(cache[0][0][0], cache[0][0][last])
    assert torch.equal(cache[0][1][1], cache[0][1][last])


def test_blocks_swapped_beside_computing_come_back_byte_for_byte() -> None:
    """Out, overwritten at once by kernels that were queued right behind, and back: many rounds, no waiting in between."""
    gpu = KVCache(4, 64, 8, 16, 128, torch.float16, "cuda", copy_pages=triton.copy_pages)
    cpu = KVCache(4, 32, 8, 16, 128, torch.float16, "cpu", for_swapping=True)
    assert all(stack.is_pinned() for stack in cpu.stacks)
    swapper = Swapper(gpu, cpu)
    for stack in gpu.stacks:
        stack.copy_(torch.randn(stack.shape, device="cuda"))
    kept = [stack.clone() for stack in gpu.stacks]
    for turn in range(20):
        out = [Copy((turn + i) % 64, (3 * turn + i) % 32) for i in range(20)]
        swapper.out(out)
        for stack in gpu.stacks:
            stack[:, [c.src for c in out]] = float("nan")
        swapper.back([Copy(c.dst, c.src) for c in out])
    torch.cuda.synchronize()
    for stack, old in zip(gpu.stacks, kept, strict=True):
        assert torch.equal(stack, old)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Llama-3-8B's heads and head size in two layers."""
    folder = tmp_path_factory.mktemp("llama")
    random_llama(folder, "grouped queries", num_hidden_layers=2, num_attention_heads=32, num_key_value_heads=8, head_dim=128, hidden_size=256,
                 max_position_embeddings=2048)
    return str(folder)


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_the_engine_gives_the_references_tokens_with_and_without_graphs(llama: str, kv_cache_dtype: str) -> None:
    """Chunks, forks, swapping, cached prefixes and beams, in a pool that makes some step back."""
    prompts = [[(7 * i + j) % 90 + 1 for j in range(n)] for i, n in enumerate((5, 70, 33, 150, 1, 64))]
    prompts.append(prompts[3])
    params = [SamplingParams(n=1 + i % 3, temperature=0.7, seed=i, max_tokens=40, ignore_eos=True) for i in range(len(prompts))]
    options = {"dtype": "float32", "device": "cuda", "skip_tokenizer_init": True, "num_gpu_blocks_override": 40, "max_num_batched_tokens": 96,
               "max_num_seqs": 24, "kv_cache_dtype": kv_cache_dtype, "preemption_mode": "swap"}
    told = {}
    for name, more in {"reference": {"attention_backend": "reference"}, "eager": {"enforce_eager": True}, "graphs": {}}.items():
        with LLM(llama, **options, **more) as llm:
            runner = llm.engine.runner
            assert runner.backend == ("reference" if name == "reference" else "triton")
            outputs = llm.generate(prompts, params, use_tqdm=False)
            assert sum(o.metrics.num_preemptions for o in outputs) > 0
            assert (runner.graphs is not None and runner.graphs.num_replays > 20) == (name == "graphs")
            beams = llm.beam_search(prompts[:2], BeamSearchParams(beam_width=3, max_tokens=12), use_tqdm=False)
        told[name] = [[c.token_ids for c in o.outputs] for o in (*outputs, *beams)]
    assert told["graphs"] == told["eager"]
    same = [a == b for a, b in zip(told["eager"], told["reference"])]
    assert sum(same) >= len(same) - 1, same                 # float32: one near tie may fall the other way


def test_half_precision_engine_runs_on_the_kernels(llama: str) -> None:
    for dtype in ("float16", "bfloat16"):
        if dtype == "bfloat16" and torch.cuda.get_device_capability() < (8, 0):
            continue
        with LLM(llama, dtype=dtype, device="cuda", skip_tokenizer_init=True, num_gpu_blocks_override=200, max_num_seqs=32) as llm:
            outputs = llm.generate([[1, 2, 3]] * 20, SamplingParams(temperature=0, max_tokens=32, ignore_eos=True), use_tqdm=False)
            assert llm.engine.runner.backend == "triton"
            assert {o.outputs[0].token_ids for o in outputs} == {outputs[0].outputs[0].token_ids}
