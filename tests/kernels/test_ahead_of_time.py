"""Every listed kernel compiles for every architecture, without a GPU: no spills up to head size 128, no more shared memory than there is.

The interpreter takes much that the compiler refuses, so what the other tests here run is compiled too. The compiling happens in processes of
its own (`paged_edu.bench.compiled`), because this one's triton may be interpreting. How long it took is printed with ``-s``.
"""
import os
import time
from dataclasses import replace
from importlib.util import find_spec

import pytest
from paged_edu.kernels import matrix

from paged_edu.bench.compiled import compiled, faults

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton has no wheels for this system")
WORKERS = min(2, os.cpu_count() or 1)
ALL_S = 360
"""For the whole list, on two processors that nobody else uses: twice as many seconds of processor time. It takes a third of that."""


# -- the list --------------------------------------------------------------------------------------------------------------------------
def test_the_list_is_short_and_names_everything_once():
    cases = matrix.matrix()
    assert len(cases) <= 250
    assert len({case.name for case in cases}) == len(cases)
    assert [case.arch for case in matrix.matrix((80,))] == [80] * len(matrix.LISTED)


@pytest.mark.parametrize("arch", matrix.ARCHES)
def test_every_choice_is_listed_on_every_architecture(arch):
    cases = matrix.matrix((arch,))
    assert {case.kernel for case in cases} == {"naive", "tiled", "split", "merge", "unified", "write", "copy"}
    assert {case.dtype for case in cases} == {"fp16", "fp32"} | ({"bf16"} if arch >= 80 else set())
    for kernel in ("split", "unified"):
        own = [case for case in cases if case.kernel == kernel]
        assert {case.head_dim for case in own} == {16, 64, 80, 96, 128, 256}
        assert {case.group for case in own} >= {1, 4, 8}
        assert {16, 32} < {case.block_size for case in own}
        assert {case.int8 for case in own} == {case.window is not None for case in own} == {False, True}
        assert {case.dtype for case in own} == {case.dtype for case in cases}
        assert any(case.int8 and case.window and case.dtype == "fp32" for case in own)
    assert {case.splits > 1 for case in cases if case.kernel == "split"} == {False, True}
    assert {case.int8 for case in cases if case.kernel == "write"} == {False, True}


# -- what the compiler makes of it -----------------------------------------------------------------------------------------------------
@needs_triton
@pytest.mark.slow
@pytest.mark.timeout(4 * ALL_S)
def test_every_kernel_compiles_fits_and_uses_what_the_card_has():
    start = time.perf_counter()
    cases = matrix.matrix()
    rows = list(compiled(cases, WORKERS))
    cpu = sum(row.get("cpu_seconds", 0) for row in rows)
    print(f"\n{len(rows)} kernels compiled in {time.perf_counter() - start:.0f} s by {WORKERS} processes; {cpu:.0f} s of processor time")
    wrong = [fault for row in rows for fault in faults(row)]
    assert not wrong, "\n".join(wrong)
    assert {row["name"] for row in rows} == {case.name for case in cases}
    slowest = max(rows, key=lambda row: row["cpu_seconds"])
    assert cpu < 2 * ALL_S, f"the slowest: {slowest['name']}, {slowest['cpu_seconds']} s"


@needs_triton
@pytest.mark.slow
def test_a_kernel_that_spills_is_seen():
    (row,) = compiled([matrix.SPILLING])
    assert row["spill_bytes"] > 0
    assert faults(row) == [f"{matrix.SPILLING.name}: spills {row['spill_bytes']} bytes a thread"]


@needs_triton
@pytest.mark.slow
def test_a_compile_that_takes_too_long_is_ended(monkeypatch):
    slow, quick = matrix.Case("unified", "llama3-70b", "fp32", int8=True, queries=64), matrix.Case("copy", "smollm2", "fp16")
    rows = {row["name"]: row for row in compiled([slow, quick], workers=1, limit_s=0.2)}
    assert faults(rows[slow.name]) == [f"{slow.name}: took longer than 0.2 s"]
    assert set(rows) == {slow.name, quick.name}


@needs_triton
@pytest.mark.slow
def test_the_compiling_process_does_not_interpret(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    (row,) = compiled([matrix.Case("copy", "smollm2", "fp16")])
    assert faults(row) == []
    assert row["registers"] > 0


@needs_triton
@pytest.mark.slow
def test_what_does_not_compile_says_why():
    """And the worker goes on with the next one."""
    broken = replace(matrix.SPILLING, kernel="copy", dtype="fp64", int8=False, warps=None)
    good = matrix.Case("copy", "smollm2", "fp16")
    rows = {row["name"]: row for row in compiled([broken, good], workers=1)}
    assert faults(rows[broken.name]) == [f"{broken.name}: KeyError: 'fp64'"]
    assert faults(rows[good.name]) == []


# -- the check -------------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("changed", "said"), [
    ({}, []), ({"spill_bytes": 8}, ["k: spills 8 bytes a thread"]), ({"spill_bytes": 8, "head_dim": 256}, []),
    ({"shared_bytes": 99 * 1024 + 1, "arch": 89}, ["k: 101377 bytes of shared memory, and sm_89 has 101376"]),
    ({"shared_bytes": 99 * 1024 + 1, "arch": 80}, []),
    ({"shared_bytes": 64 * 1024 + 1, "arch": 75}, ["k: 65537 bytes of shared memory, and sm_75 has 65536"]),
    ({"tensor_core_instructions": 0}, ["k: no tensor core instructions"]), ({"tensor_core_instructions": 0, "needs_tensor_cores": False}, []),
    ({"error": "no"}, ["k: no"]),
])
def test_faults(changed, said):
    fine = {"name": "k", "arch": 80, "head_dim": 128, "shared_bytes": 1000, "spill_bytes": 0, "tensor_core_instructions": 4}
    assert faults(fine | {"needs_tensor_cores": True} | changed) == said


@pytest.mark.parametrize(("case", "needs"), [
    (matrix.Case("split", "gpt2", "fp16"), True), (matrix.Case("split", "gpt2", "fp32"), False),
    (matrix.Case("unified", "gpt2", "bf16", arch=90), True),
    (matrix.Case("unified", "gpt2", "fp16", arch=75), False), (matrix.Case("merge", "gpt2", "fp16"), False),
])
def test_where_tensor_cores_are_asked_for(case, needs):
    assert case.tensor_cores is needs
