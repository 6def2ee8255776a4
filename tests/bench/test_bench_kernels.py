"""`bench kernels`: the floor by hand, turns and spreads, tables and roofline from stored numbers, the command, and its measuring on tiny shapes.

What needs CUDA (`CudaTimer`, and the times themselves) runs on a machine with a GPU only; everything around it runs here.
"""
import io
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from paged_edu.kernels import matrix
from rich.console import Console

from paged_edu import cli
from paged_edu.bench import kernels, kernels_view, timers, workloads
from paged_edu.bench.workloads import Workload, chosen, floor_ms, published_ms

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton has no wheels for this system")


# -- what no kernel can beat, by hand ------------------------------------------------------------------------------------------------
def test_bytes_and_operations_of_a_decode_step_by_hand():
    w = Workload(3, 40, 4, 2, 8)
    keys_and_values = 2 * 3 * 40 * 2 * 8 * 2
    queries_and_results = 2 * 3 * 4 * 8 * 2
    assert w.num_bytes(2, 16) == keys_and_values + queries_and_results + 4 * (3 * 3 + 3 + 4)        # 3 blocks each; lengths; starts
    assert w.flops == 3 * 4 * 40 * (2 * 8 + 2 * 8)
    assert w.num_bytes(2, 16, int8=True) == 2 * 3 * 40 * 2 * (8 + 4) + queries_and_results + 4 * 16
    assert w.cache_bytes(2) == keys_and_values


@pytest.mark.parametrize(("context", "queries"), [(7, 3), (5, 5), (9, 1)])
def test_operations_of_a_chunk_are_those_of_the_visible_pairs(context, queries):
    pairs = sum(key <= query for query in range(context - queries, context) for key in range(context))
    assert Workload(2, context, 4, 4, 16, queries=queries).flops == 2 * 4 * pairs * 4 * 16


def test_the_slower_of_bandwidth_and_arithmetic_decides():
    assert floor_ms(10**9, 4 * 10**9, 2000, 500) == pytest.approx(2.0)
    assert floor_ms(10**12, 4 * 10**6, 2000, 500) == pytest.approx(2.0)


def test_the_floor_of_the_largest_published_shape():
    """64 x 4,096 tokens, 8 KV heads of 128, 2 bytes, keys and values: 2^30 bytes and some; 0.224 ms at 4.8 TB/s."""
    w = Workload(64, 4096, 32, 8, 128)
    assert w.num_bytes(2, 16) == pytest.approx(2**30, rel=0.002)
    assert floor_ms(w.flops, w.num_bytes(2, 16), 4800, 900) == pytest.approx(0.224, abs=0.001)


def test_published_times_stand_only_beside_their_shape():
    assert published_ms(Workload(8, 4096, 32, 8, 128), "bfloat16") == (0.263, 0.153)
    assert published_ms(Workload(8, 4096, 32, 8, 128), "float16") is None
    assert published_ms(Workload(8, 4096, 32, 8, 128, queries=2), "bfloat16") is None
    assert published_ms(Workload(8, 4096, 40, 40, 128), "bfloat16") is None
    assert sum(published_ms(w, "bfloat16") is not None for w in workloads.DEFAULT) == 3


def test_shapes_from_flags():
    assert chosen(None, None, None, None) == workloads.DEFAULT
    assert chosen(None, None, None, None, quick=True) == workloads.QUICK
    assert chosen("1, 64", None, "9/3x64", None) == (Workload(1, 4096, 9, 3, 64), Workload(64, 4096, 9, 3, 64))
    assert chosen("2", "100,200", "4/4x16,8/2x32", "10") == tuple(
        Workload(2, context, *heads, queries=10) for heads in ((4, 4, 16), (8, 2, 32)) for context in (100, 200))


# -- in turns ------------------------------------------------------------------------------------------------------------------------
class Scripted:
    """A timer that notes the order and makes times up."""

    def __init__(self) -> None:
        self.prepared, self.order = 0, []

    def prepare(self, call):
        self.prepared += 1
        return call

    def once(self, call):
        call()
        count = len(self.order)
        return lambda: float(count)


def test_every_round_begins_with_another_one():
    timer = Scripted()
    calls = {name: (lambda name=name: timer.order.append(name)) for name in "abc"}
    rounds = []
    times = timers.in_turns(calls, 4, timer, rounds.append)
    assert "".join(timer.order) == "abc" "bca" "cab" "abc"
    assert timer.prepared == 3
    assert rounds == [1, 1, 1, 1]
    assert times == {"a": [1, 6, 8, 10], "b": [2, 4, 9, 11], "c": [3, 5, 7, 12]}


def test_spread():
    assert timers.spread([5.0]) == {"median_ms": 5, "low_ms": 5, "high_ms": 5, "runs": 1}
    assert timers.spread([1.0, 2, 3, 4, 100]) == {"median_ms": 3, "low_ms": 1.5, "high_ms": 52, "runs": 5}


# -- measuring, on tiny shapes -------------------------------------------------------------------------------------------------------
TINY = """
import json, sys, torch
from paged_edu.bench.kernels import Options, measure_on
from paged_edu.bench.timers import WallTimer

options = Options(part="times", batch="1", context="33", heads="2/1x16", queries="1,5,7", rounds=2)
advanced = []
free = iter([2**20, 2**20, 2**20, 100])
result = measure_on(torch.device("cpu"), torch.float32, options, WallTimer(), lambda: next(free), 2**16, 64, advanced.append, lambda name: None)
print(json.dumps(result | {"advanced": sum(advanced)}))
"""


@needs_triton
@pytest.mark.slow
def test_measuring_decode_and_chunks_with_the_interpreter():
    """Every rung gives SDPA's numbers, and all that a row says fits together; what does not fit into memory is left out."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    result = json.loads(subprocess.run([sys.executable, "-c", TINY], env=environment, capture_output=True, text=True, check=True).stdout)
    decode, chunk, large = result["workloads"]
    assert large == {"name": "1 x 33, 2/1x16, 7 asking", "skipped": "wants 0.0 GiB, and 0.0 are free", "rows": []}
    assert result["advanced"] == 6
    assert [(row["kernel"], row["wrong"]) for row in chunk["rows"]] == [("sdpa gqa", False), ("unified", False)]
    assert (chunk["chosen_splits"], decode["chosen_splits"]) == (None, 1)
    assert [row["kernel"] for row in decode["rows"]] == ["sdpa", "sdpa gqa", "naive", "tiled", "split", "split 1", "unified"]
    best = min(row["median_ms"] for row in decode["rows"][:2])
    for row in decode["rows"]:
        assert (row["wrong"], row["runs"]) == (False, 2)
        assert row["error"] < 1e-5
        assert row["against_sdpa"] == pytest.approx(row["median_ms"] / best)
        assert row["gb_per_s"] == pytest.approx(decode["bytes"] / row["median_ms"] / 1e6)
        assert row["share_of_floor"] == pytest.approx(decode["floor_ms"] / row["median_ms"])
    assert decode["floor_ms"] == pytest.approx(floor_ms(decode["flops"], decode["bytes"], decode["copy_gb_per_s"], result["matmul_tflop_per_s"]))
    assert not kernels_view.wrong({"times": result})


# -- tables and picture, from stored numbers -----------------------------------------------------------------------------------------
def stored() -> dict:
    """As a GPU might have written it; 4,000 GB/s, 800 TFLOP/s."""
    def row(w: Workload, kernel: str, slower: float) -> dict:
        ms = slower * floor_ms(w.flops, w.num_bytes(2, 16), 4000, 800)
        return {"kernel": kernel, "median_ms": ms, "low_ms": ms, "high_ms": ms, "runs": 9, "error": 0.001, "wrong": False,
                "against_sdpa": slower / 1.1, "share_of_floor": 1 / slower, "gb_per_s": w.num_bytes(2, 16) / ms / 1e6,
                "tflop_per_s": w.flops / ms / 1e9}

    def workload(w: Workload) -> dict:
        rungs = {"sdpa": 1.1, "naive": 40, "tiled": 3, "split": 1.15, "split 1": 2, "split 16": 1.2} if w.decode else {"sdpa gqa": 1.1}
        return {"name": w.name, "dtype": "bfloat16", "flops": w.flops, "bytes": w.num_bytes(2, 16), "copy_gb_per_s": 4000.0, "queries": w.queries,
                "floor_ms": floor_ms(w.flops, w.num_bytes(2, 16), 4000, 800), "published_ms": published_ms(w, "bfloat16"),
                "chosen_splits": 8 if w.decode else None, "rows": [row(w, name, slower) for name, slower in (rungs | {"unified": 1.5}).items()]}

    rows = [workload(w) for w in workloads.DEFAULT] + [{"name": "huge", "skipped": "wants 9.0 GiB, and 1.0 are free", "rows": []}]
    part = {"card": {"name": "Card"}, "matmul_tflop_per_s": 800.0, "workloads": rows}
    return {"options": {}, "machine": {"date": "2026-11-30T00:00:00"}, "times": part}


def shown(result: dict) -> str:
    out = io.StringIO()
    kernels_view.show(result, Console(file=out, width=80))
    return out.getvalue()


def test_the_table_of_times():
    said = shown(stored())
    assert all(len(line) <= 80 for line in said.splitlines())
    assert said.count("3 unified") == len(workloads.DEFAULT)
    assert "64 x 4,096, 32/8x128, bfloat16" in said
    assert "published (card not named): 1.154 ms, improved 0.932 ms" in " ".join(said.split())
    (split, *_) = [line for line in said.split("8 x 4,096")[1].splitlines() if "2 split" in line]
    assert "+4.5%" in split                                  # 1.15 / 1.1
    assert "87%" in split
    assert "left out: wants 9.0 GiB, and 1.0 are free" in said
    assert "WRONG" not in said


def test_a_wrong_result_is_said_and_is_the_exit_code(capsys, tmp_path):
    result = stored()
    result["times"]["workloads"][0]["rows"][2] |= {"wrong": True, "error": 0.5}
    (tmp_path / "r.json").write_text(json.dumps(result), encoding="utf-8")
    assert cli.main(["bench", "kernels", "--load", str(tmp_path / "r.json")]) == 1
    assert "WRONG: 1 x 1,024, 32/8x128: tiled is off by 0.5" in capsys.readouterr().out


def test_the_roofline_from_stored_numbers(tmp_path, capsys):
    file, page = tmp_path / "r.json", tmp_path / "r.html"
    file.write_text(json.dumps(stored()), encoding="utf-8")
    assert cli.main(["bench", "kernels", "--load", str(file), "--html", str(page)]) == 0
    assert "plotly" in page.read_text(encoding="utf-8")
    figure = kernels_view.figure(stored())
    slope, flat, *marks = figure.data
    assert slope.name == "bandwidth of a copy, 4,000 GB/s"
    assert slope.y[-1] == pytest.approx(800)                # where the roofs meet: 800e12 / 4000e9 operations a byte
    assert (slope.x[-1], flat.x[0], tuple(flat.y)) == (pytest.approx(200), pytest.approx(200), (800, 800))
    assert [mark.name for mark in marks] == ["SDPA, contiguous", "SDPA, enable_gqa", "0 naive", "1 tiled", "2 split", "3 unified"]
    for mark in marks:                                      # nothing above its roof
        assert all(y <= min(800, x * 4) * 1.0001 for x, y in zip(mark.x, mark.y, strict=True))
    assert len(marks[-1].x) == len(workloads.DEFAULT)
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"


# -- the command -----------------------------------------------------------------------------------------------------------------------
@pytest.fixture
def no_gpu(monkeypatch):
    """As on a machine without a GPU; nothing is measured, and whether it would have been."""
    calls = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(kernels, "measure", lambda *arguments: calls.append(arguments))
    return calls


@pytest.mark.parametrize(("flags", "message"), [
    (["--part", "all"], "--part must be one of 'auto', 'times', 'resources', not 'all'"), (["--arch", "80,70"], "--arch must be one of '75', '80'"),
    (["--arch", ""], "--arch must be one of"), (["--rounds", "0"], "--rounds must be between 1"),
    (["--batch", ""], "--batch takes a list"), (["--block-size", "0"], "--block-size must be between"),
    (["--dtype", "int8"], "--dtype must be one of"), (["--workers", "-1"], "--workers must be between 0"),
    (["--part", "times", "--batch", "x"], "--batch takes a list such as 1,8,64, not 'x'"),
    (["--part", "times", "--heads", "32x8"], "--heads takes a list such as 32/8x128"),
    (["--part", "times", "--heads", "3/2x64"], "3 query heads can't share 2 KV heads"),
    (["--part", "times", "--context", "0"], "context must be between 1"), (["--part", "times", "--queries", "5000"], "the 5000 tokens that ask"),
    (["--part", "times", "--heads", "4/4x512"], "head dim must be between 1 and 256"),
    (["--batch", "8"], "--batch belongs to --part times; this would be resources"), (["--part", "times", "--arch", "80"], "--arch belongs to --part"),
    (["--part", "times"], "--part times needs a GPU with CUDA, and there is none"), (["--html", "r.html"], "nothing to draw: --html draws times"),
    (["--json", "/no/such/folder/m.json"], "--json /no/such/folder/m.json: the directory"),
    (["--load", "/no/such.json"], "/no/such.json: No such file"),
    (["--load", __file__], "no JSON"), (["--load", __file__, "--quick"], "--quick has no meaning beside it"),
    (["--no-graphs"], "--no-graphs belongs to --part times; this would be resources"),
])
def test_bad_flags_are_refused_before_anything_runs(capsys, no_gpu, flags, message):
    if flags[0] == "--html" and find_spec("triton") is None:
        pytest.skip("triton is asked for first")
    assert cli.main(["bench", "kernels", *flags]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err
    assert not no_gpu


@pytest.mark.parametrize("written", [
    "[1]", "{}", '{"times": 3}', '{"times": {"workloads": []}}', '{"times": {"workloads": [{"name": "a"}]}}', '{"resources": {}}',
    '{"times": {"card": {"name": "c"}, "matmul_tflop_per_s": 1, "workloads": [{"rows": []}]}}',
    '{"resources": {"rows": [{"name": 1}], "faults": []}}', '{"resources": {"rows": [], "faults": []}}',
])
def test_another_json_is_refused(capsys, tmp_path, written):
    (tmp_path / "x.json").write_text(written, encoding="utf-8")
    assert cli.main(["bench", "kernels", "--load", str(tmp_path / "x.json")]) == 2
    assert "not what `paged-edu bench kernels --json` writes" in capsys.readouterr().err


def test_without_triton_it_says_so(capsys, no_gpu, monkeypatch):
    monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "platform", "win32")
    assert cli.main(["bench", "kernels"]) == 2
    assert "the kernels need triton, which is not installed (no wheels for win32)" in capsys.readouterr().err
    assert not no_gpu


def test_the_interpreter_is_not_timed(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises((ValueError, ImportError), match=r"TRITON_INTERPRET is set|need triton"):
        kernels.able(kernels.Options(part="times"))


def test_quick_compiles_one_of_each_kernel_on_each_architecture():
    cases = kernels.cases(kernels.Options(part="resources", quick=True, arch="80,90"))
    assert sorted((case.arch, case.kernel) for case in cases) == sorted(
        (arch, kernel) for arch in (80, 90) for kernel in ("naive", "tiled", "split", "merge", "unified", "write", "copy"))
    assert kernels.cases(kernels.Options(part="resources")) == matrix.matrix()


@needs_triton
@pytest.mark.slow
@pytest.mark.usefixtures("no_gpu")
def test_the_command_compiles(capsys, tmp_path, monkeypatch):
    monkeypatch.undo()                                      # what `no_gpu` put in the place of measuring
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(kernels, "cases", lambda options: [matrix.Case("copy", "gpt2", "fp16"), matrix.Case("write", "gpt2", "fp32", int8=True)])
    assert cli.main(["bench", "kernels", "--json", str(tmp_path / "k.json")]) == 0
    out, err = capsys.readouterr()
    result = json.loads((tmp_path / "k.json").read_text(encoding="utf-8"))
    assert [row["kernel"] for row in result["resources"]["rows"]] == ["copy", "write"]
    assert all(row["registers"] > 0 and row["spill_bytes"] == 0 for row in result["resources"]["rows"])
    assert {"triton", "torch", "date"} <= set(result["machine"])
    assert "sm_80" in out
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "compiling 2 kernels" in err
    assert cli.main(["bench", "kernels", "--load", str(tmp_path / "k.json")]) == 0
    assert capsys.readouterr().out == out


def test_spills_and_failures_are_shown():
    fine = {"dtype": "fp16", "block_size": 16, "int8": False, "window": None, "queries": 1, "splits": 1, "arch": 80, "kernel": "split"}
    rows = [fine | {"name": "sm_80 split x 4/4x64 fp16", "num_warps": 4, "registers": 255, "shared_bytes": 2048, "spill_bytes": 77},
            fine | {"name": "sm_80 split y 8/8x64 fp16", "error": "took longer than 90 s"}]
    said = shown({"resources": {"rows": rows, "faults": ["sm_80 split x: spills 77 bytes a thread"]}})
    assert "77" in said
    assert "failed" in said
    assert "WRONG: sm_80 split x: spills 77 bytes a thread" in said


def test_help_explains_every_option(capsys):
    assert cli.main(["bench", "kernels", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    flags = [line for line in lines if line.startswith("  --")]
    assert len(flags) == 15
    assert all(len(line.split("  ")) > 2 and len(line) <= 110 for line in flags)


def test_the_readme_names_the_command():
    assert "`paged-edu bench kernels`" in (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
