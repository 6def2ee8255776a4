"""The compiled CPU backend against the reference in float64: sizes, types, batches, windows, poison; and who may call it, on how many threads."""
from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from batches import Pager
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paged_edu import LLM, SamplingParams
from paged_edu.attention import cpu, cpu_threads, reference
from paged_edu.attention.cache import KVCache
from paged_edu.attention.cpu_layout import SPLIT
from paged_edu.attention.metadata import ModelInput, build_input

pytest.importorskip("numba")

NAN = float("nan")
BOUND = {torch.float32: 2e-5, torch.bfloat16: 4e-2}
F32, BF16, INT8 = torch.float32, torch.bfloat16, torch.int8


def qkv(tokens: int, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype = F32, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Parts of one fused tensor, as GPT-2 has them: not contiguous."""
    numbers = torch.randn(tokens, heads + 2 * kv_heads, head_dim, generator=torch.Generator().manual_seed(seed)) * 1.5
    q, k, v = numbers.to(dtype).split([heads, kv_heads, kv_heads], 1)
    return q, k, v


def compare(
    steps: list[list[int]], block_size: int = 16, heads: int = 4, kv_heads: int = 2, head_dim: int = 16, dtype: torch.dtype = F32,
    kept: torch.dtype | None = None, window: int | None = None, seed: int = 0,
) -> float:
    """Run ``steps``, each a number of tokens for every sequence, on both; returns the largest difference. The caches must end up alike."""
    totals = [sum(step[i] for step in steps) for i in range(len(steps[0]))]
    num_blocks = sum(-(-n // block_size) for n in totals) + 2
    mine, its = (KVCache(1, num_blocks, kv_heads, block_size, head_dim, kept or dtype, "cpu").fill_(NAN) for _ in range(2))
    pager, worst = Pager(num_blocks, block_size, seed), 0.0
    for number, step in enumerate(steps):
        batch = build_input([pager.schedule(i, [0] * n) for i, n in enumerate(step) if n], block_size, "cpu")
        q, k, v = qkv(batch.meta.num_tokens, heads, kv_heads, head_dim, dtype, seed * 1000 + number)
        out = cpu.attend(q, k, v, mine[0], batch.meta, window, head_dim**-0.5)
        want = reference.attend(q.double(), k.double(), v.double(), its[0], batch.meta, window, head_dim**-0.5)
        assert out.dtype == dtype
        assert out.isfinite().all()
        worst = max(worst, (out.double() - want).abs().max().item())
    for a, b in zip(mine[0], its[0]):
        assert torch.equal(a.float().nan_to_num(-7.0), b.float().nan_to_num(-7.0))
    return worst


MIXED = [[300, 19, 5, 1, 40], [1, 1, 9, 1, 3], [1, 7, 0, 1, 0], [1, 0, 1, 1, 1]]
"""Prompts, chunks and single tokens in one step; one sequence is longer than a piece of work."""


@pytest.mark.parametrize("kept", [F32, BF16, INT8])
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("block_size", [1, 3, 16, 64])
def test_types_and_block_sizes(dtype: torch.dtype, kept: torch.dtype, block_size: int) -> None:
    assert compare(MIXED, block_size, dtype=dtype, kept=kept) < BOUND[dtype]


@pytest.mark.parametrize("head_dim", [16, 17, 64, 80, 96, 128, 256])
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (9, 3), (20, 1)])
def test_head_sizes_and_groups(head_dim: int, heads: int, kv_heads: int) -> None:
    assert compare(MIXED, heads=heads, kv_heads=kv_heads, head_dim=head_dim) < BOUND[F32]


@pytest.mark.parametrize("window", [1, 5, SPLIT, SPLIT + 1, 290, 1000])
@pytest.mark.parametrize("kept", [F32, INT8])
def test_windows(window: int, kept: torch.dtype) -> None:
    assert compare([[2 * SPLIT + 40, 3], [30, 1], [1, 1]], window=window, kept=kept) < BOUND[F32]


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(1, 2 * SPLIT + 30), min_size=1, max_size=5), chunk=st.integers(1, 300), block_size=st.sampled_from([1, 3, 16, 64]),
    window=st.sampled_from([None, 1, 7, 260]), seed=st.integers(0, 99),
)
def test_any_lengths(lengths: list[int], chunk: int, block_size: int, window: int | None, seed: int) -> None:
    steps = [[max(1, n - chunk) for n in lengths], [min(chunk, n - max(1, n - chunk)) for n in lengths], [1] * len(lengths)]
    assert compare([step for step in steps if any(step)], block_size, head_dim=8, window=window, seed=seed) < BOUND[F32]


def test_the_comparison_can_fail() -> None:
    """A scale that is a little off, a window one too long and heads in another order are far beyond the bound."""
    batch, cache = prompt(40)
    q, k, v = qkv(40, 4, 2, 16)
    right = cpu.attend(q, k, v, cache[0], batch.meta, 5, 0.25)
    for other in (cpu.attend(q, k, v, cache[0], batch.meta, 6, 0.25), cpu.attend(q, k, v, cache[0], batch.meta, 5, 0.255),
                  cpu.attend(q, k[:, [1, 0]], v[:, [1, 0]], cache[0], batch.meta, 5, 0.25)):
        assert (right - other).abs().max() > 50 * BOUND[F32]


def prompt(*lengths: int, block_size: int = 16, kv_heads: int = 2, head_dim: int = 16, requeried: int = 0) -> tuple[ModelInput, KVCache]:
    """The first step of sequences, and a cache of NaN for them."""
    pager = Pager(sum(-(-n // block_size) for n in lengths) + 2, block_size, 1)
    batch = build_input([pager.schedule(i, [0] * n) for i, n in enumerate(lengths)], block_size, "cpu")
    return batch, KVCache(1, len(pager.free) + sum(map(len, pager.tables.values())), kv_heads, block_size, head_dim, F32, "cpu").fill_(NAN)


@pytest.mark.parametrize("kept", [F32, BF16, INT8])
def test_a_token_queried_again_writes_nothing(kept: torch.dtype) -> None:
    pager, cache = Pager(6, 4, 0), KVCache(1, 6, 2, 4, 16, kept, "cpu").fill_(NAN)
    q, k, v = qkv(12, 4, 2, 16)
    out = cpu.attend(q, k, v, cache[0], build_input([pager.schedule(0, [0] * 12)], 4, "cpu").meta, None, 0.3)
    before = [t.clone() for t in cache[0]]
    again = build_input([pager.schedule(0, [0], requeried=1)], 4, "cpu").meta
    assert again.slot_mapping.tolist() == [-1]
    torch.testing.assert_close(cpu.attend(q[11:], k[11:] + 9, v[11:] + 9, cache[0], again, None, 0.3), out[11:], rtol=0, atol=1e-5)
    for t, old in zip(cache[0], before):
        assert torch.equal(t.float().nan_to_num(-7.0), old.float().nan_to_num(-7.0))


def test_neither_the_batch_nor_the_threads_change_a_bit() -> None:
    lengths = (2 * SPLIT + 5, 7, 40, 1)
    q, k, v = qkv(sum(lengths), 4, 2, 16)
    batch, cache = prompt(*lengths)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(cpu.attend(q, k, v, cache[0], batch.meta, None, 0.3))
        last = build_input([_last(batch, i) for i in range(len(lengths))], 16, "cpu")
        rows = torch.tensor([sum(lengths[: i + 1]) - 1 for i in range(len(lengths))])
        together = cpu.attend(q[rows], k[rows], v[rows], cache[0], last.meta, None, 0.3)
        for i, row in enumerate(rows.tolist()):
            alone = build_input([_last(batch, i)], 16, "cpu")
            assert torch.equal(cpu.attend(q[row : row + 1], k[row : row + 1], v[row : row + 1], cache[0], alone.meta, None, 0.3)[0], together[i])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def _last(batch: ModelInput, i: int):
    """The last token of a sequence, once more."""
    n, table = batch.meta.host_seq_lens[i], batch.meta.block_tables[i].tolist()
    pager = Pager(0, 16)
    pager.tables[i], pager.computed[i] = table, n
    return pager.schedule(i, [0], requeried=1)


def test_nan_in_a_models_numbers_shows() -> None:
    batch, cache = prompt(20)
    q, k, v = qkv(20, 4, 2, 16)
    k = k.clone()
    k[3, 0, 0] = NAN
    out = cpu.attend(q, k, v, cache[0], batch.meta, None, 0.3)
    assert out[3:, :2].isnan().all()
    assert out[:3].isfinite().all()
    assert out[:, 2:].isfinite().all()


def test_huge_scores_are_stable() -> None:
    """known fault B82"""
    batch, cache = prompt(300)
    q, k, v = qkv(300, 4, 2, 16)
    out = cpu.attend(q, k, v, cache[0], batch.meta, None, 1e4)
    want = reference.attend(q.double(), k.double(), v.double(), cache[0], batch.meta, None, 1e4)
    assert (out - want).abs().max() < 1e-2


def test_strides_come_from_the_tensors() -> None:
    """known fault B78: keys and values as halves of one tensor."""
    batch, cache = prompt(300, 20)
    both = torch.full((cache.num_blocks, 2, 2, 16, 16), NAN)
    q, k, v = qkv(320, 4, 2, 16)
    apart = cpu.attend(q, k, v, cache[0], batch.meta, None, 0.3)
    halves = cpu.attend(q, k, v, (both[:, 0], both[:, 1]), batch.meta, None, 0.3)
    torch.testing.assert_close(halves, apart, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_what_it_cannot_compute_goes_to_the_reference(dtype: torch.dtype) -> None:
    batch, cache = prompt(20)
    mine, its = (KVCache(1, cache.num_blocks, 2, 16, 16, dtype, "cpu") for _ in range(2))
    q, k, v = qkv(20, 4, 2, 16, dtype)
    assert torch.equal(cpu.attend(q, k, v, mine[0], batch.meta, None, 0.3), reference.attend(q, k, v, its[0], batch.meta, None, 0.3))


def test_bad_arguments_are_refused() -> None:
    batch, cache = prompt(20)
    q, k, v = qkv(20, 4, 2, 16)
    with pytest.raises(ValueError, match="3 query heads can't share 2 KV heads"):
        cpu.attend(q[:, :3], k, v, cache[0], batch.meta, None, 0.3)
    with pytest.raises(ValueError, match="at least 1 token, not 0"):
        cpu.attend(q, k, v, cache[0], batch.meta, 0, 0.3)
    small = KVCache(1, 1, 2, 16, 16, F32, "cpu")
    with pytest.raises(IndexError, match="outside the cache"):
        cpu.attend(q, k, v, small[0], batch.meta, None, 0.3)


def test_an_empty_batch() -> None:
    empty = torch.empty(0, 2, 16)
    assert cpu.attend(empty, empty, empty, KVCache(1, 2, 2, 4, 16, F32, "cpu")[0], build_input([], 4, "cpu").meta, None, 1.0).shape == (0, 2, 16)


@pytest.fixture(params=["torch's threads", "Python's threads"])
def pool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "Python's threads":
        monkeypatch.setattr(cpu_threads, "_openmp", lambda: None)


def test_several_python_threads_at_once(pool: None) -> None:
    lengths = (300, 20, 7, 33)
    q, k, v = qkv(sum(lengths), 4, 2, 64)
    batch, cache = prompt(*lengths, head_dim=64)
    want = cpu.attend(q, k, v, cache[0], batch.meta, None, 0.3)
    start = threading.Barrier(4)

    def work(_: int) -> bool:
        torch.set_num_threads(3)
        mine = prompt(*lengths, head_dim=64)[1]
        start.wait()
        return all(torch.equal(cpu.attend(q, k, v, mine[0], batch.meta, None, 0.3), want) for _ in range(20))

    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(4) as threads:
            assert all(threads.map(work, range(4)))
    finally:
        torch.set_num_threads(before)


def test_as_many_threads_as_torch_has(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(cpu_threads, "run", lambda function, arguments, threads: asked.append(threads))
    batch, cache = prompt(*[25] * 80)
    q, k, v = qkv(2000, 4, 2, 16)
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            cpu.attend(q, k, v, cache[0], batch.meta, None, 0.3)
    finally:
        torch.set_num_threads(before)
    assert asked == [1, 1, 3, 3]


ATTEND_ONCE = """
import sys
sys.path.insert(0, {tests!r})
import torch
from test_cpu import cpu, cpu_threads, prompt, qkv
torch.set_num_threads({threads} or torch.get_num_threads())
lengths = [25] * 8             # short enough not to go to torch, whose own products do wait for the threads
batch, cache = prompt(*lengths)
q, k, v = qkv(200, 4, 2, 16)
here = cpu.attend(q, k, v, cache[0], batch.meta, None, 0.3)
print(cpu_threads.available())
"""
IN_A_FORK = """
import os
child = os.fork()
if not child:
    same = torch.equal(cpu.attend(q, k, v, cache[0], batch.meta, None, 0.3), here)
    os._exit(0 if same and cpu_threads.available() == 1 else 1)
print(os.waitpid(child, 0)[1])
"""


def _python(code: str, threads: int = 0, **environment: str) -> str:
    folder = os.path.dirname(__file__)
    code = code.replace("{tests!r}", repr(folder)).replace("{threads}", str(threads))
    path = os.pathsep.join([folder, os.path.dirname(folder)])
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path} | environment, capture_output=True, text=True, timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_little_work_wakes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(cpu_threads, "run", lambda function, arguments, threads: asked.append(threads))
    monkeypatch.setattr(cpu_threads, "available", lambda: 3)
    batch, cache = prompt(9, 5)
    cpu.attend(*qkv(14, 4, 2, 16), cache[0], batch.meta, None, 0.3)
    assert asked == [1, 1]


def test_omp_num_threads_counts() -> None:
    assert _python(ATTEND_ONCE, OMP_NUM_THREADS="1") == "1\n"


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork on this system")
def test_a_fork_works_alone() -> None:
    """OpenMP's threads don't follow a fork; a child that waited for them would hang."""
    assert _python(ATTEND_ONCE + IN_A_FORK, threads=3) == "3\n0\n"


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_the_engine_says_the_same(kv_cache_dtype: str) -> None:
    prompts = ["ROMEO:", "To be, or not to be, that is the", "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\n" * 2]
    said, small = {}, {"max_num_seqs": 16, "max_num_batched_tokens": 48}
    for name in ("reference", "cpu"):
        with LLM("tiny-shakespeare", attention_backend=name, kv_cache_dtype=kv_cache_dtype, num_gpu_blocks_override=64, **small) as llm:
            assert llm.engine.runner.backend == name
            outputs = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True), use_tqdm=False)
            said[name] = [output.outputs[0].token_ids for output in outputs]
    assert said["cpu"] == said["reference"]
