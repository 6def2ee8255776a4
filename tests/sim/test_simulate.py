"""`paged-edu simulate`: the table and the file, the paper's servers, what is refused."""
from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from paged_edu.cli import main
from paged_edu.sim import simulate as simulate_module
from paged_edu.sim.presets import PAPER_SERVERS
from paged_edu.sim.simulate import Load, Options, simulate


def test_paging_carries_more_than_slabs(tmp_path, capsys):
    file = tmp_path / "out.json"
    assert main(["simulate", "--rate", "1.2", "--seconds", "60", "--kv-manager", "paged", "orca-max", "--json", str(file)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "opt-13b on 1 x A100-40GB, 15,728 slots" in said
    assert "no GPU ran" in said
    paged, slabs = json.loads(file.read_text())["rows"]
    assert paged["requests"] == slabs["requests"] > 40
    assert slabs["running"] <= 7 < paged["running"]                         # Fig. 13: 7 slabs of 2,048
    assert paged["normalized_latency"] < slabs["normalized_latency"] / 2


def test_low_load_takes_what_a_lone_request_takes():
    """Fig. 12's leftmost points, 0.030 s a token for OPT-13B."""
    (row,) = simulate(Options(rates=(0.05,), kv_managers=("paged",), seconds=400))
    assert 0.027 < row["normalized_latency"] < 0.033
    assert row["preemptions"] == 0


def test_the_papers_servers_have_the_papers_slots_and_others_what_fits():
    assert Options(model="opt-66b", gpus=4).server is PAPER_SERVERS["opt-66b"]
    other = Options(model="llama-3-8b", gpu="L4-24GB").server
    assert other.num_slots * other.model.kv_bytes_per_token + other.model.weight_bytes <= 0.9 * other.gpu.memory


@pytest.mark.parametrize(("flags", "message"), [
    (["--model", "opt-14b"], "--model must be one of"), (["--gpu", "A100"], "--gpu must be one of"), (["--rate", "0"], "--rate must be above 0"),
    (["--rate", "nan"], "--rate must be above 0"), (["--kv-manager", "slabs"], "--kv-manager must be one of"), (["--gpus", "0"], "--gpus must be"),
    (["--dataset", "c4"], "--dataset must be one of"), (["--seconds", "-1"], "--seconds must be above 0"), (["--n", "0"], "--n must be"),
    (["--block-size", "300"], "--block-size must be"), (["--seed", "-1"], "--seed must be"),
    (["--model", "opt-66b"], "more cards, or a smaller model"),
    (["--json", "/no/such/folder/a.json"], "--json"), (["--perfetto", "/no/such/folder/a.json"], "--perfetto"),
    (["--utilization", "1.5"], "--utilization must be above 0 and at most 1"), (["--utilization", "0.2"], "more cards, or a smaller model"),
    (["--capacity", "--rate", "1"], "--rate with --capacity"), (["--dataset", "chat", "--trace", "a.csv"], "--dataset with --trace"),
    (["--seed", "0", "--trace", "a.csv"], "--seed with --trace"), (["--threshold", "0.2"], "--threshold without --capacity"),
    (["--metric", "p99"], "--metric without --capacity"), (["--capacity", "--metric", "p99"], "--metric p99 needs its --threshold"),
    (["--capacity", "--metric", "median"], "--metric must be one of"), (["--capacity", "--threshold", "0"], "--threshold must be above 0"),
    (["--prefix-tokens", "80"], "--prefix-tokens without --dataset translation"), (["--beam"], "--beam with --n 1"),
    (["--dataset", "translation", "--prefix-tokens", "-1"], "--prefix-tokens must be between 0 and 1024"),
    (["--perfetto", "{}/a.json"], "--perfetto shows one run, not 2 managers x 3 rates"),
    (["--perfetto", "{}/a.json", "--capacity"], "--perfetto shows one run, not a search"),
    (["--perfetto", "{}/a.json", "--json", "{}/b/../a.json", "--rate", "1", "--kv-manager", "paged"], "--json and --perfetto both write"),
    (["--list", "--seed", "1"], "--list with --seed"), (["--trace", "{}/none.csv"], "none.csv: No such file"),
    (["--rate", "1e6"], "at most 1,000,000: fewer --seconds"),
])
def test_bad_options_name_value_and_limit(flags, message, capsys, tmp_path):
    (tmp_path / "b").mkdir()
    assert main(["simulate", *(flag.replace("{}", str(tmp_path)) for flag in flags)]) == 2
    told = capsys.readouterr().err
    assert message in " ".join(told.split())
    assert told.count("\n") == 1
    assert [file.name for file in tmp_path.iterdir()] == ["b"]


def run(capsys, *flags) -> str:
    assert main(["simulate", *flags]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_capacity_beside_the_options_that_it_depends_on(tmp_path, capsys):
    file = tmp_path / "out.json"
    said = run(capsys, "--capacity", "--seconds", "40", "--dataset", "alpaca", "--threshold", "0.06", "--n", "2", "--json", str(file),
               "--kv-manager", "orca-max", "orca-pow2")
    assert "alpaca, 40 s of arrivals, 2 samples" in said
    assert "within 0.06 s/token, to 2 %" in said
    assert "memory: a little above that rate, requests wait for blocks." in said
    slabs, pow2 = json.loads(file.read_text())["rows"]
    assert (slabs["kv_manager"], pow2["kv_manager"]) == ("orca-max", "orca-pow2")
    assert 0.3 < slabs["rate"] < slabs["above"] <= 1.02 * slabs["rate"] < pow2["rate"]
    assert slabs["latency"] <= 0.06
    assert slabs["binds"] == "memory"
    assert {run["rate"] for run in slabs["tried"]} >= {1.0, slabs["rate"], slabs["above"]}


def test_a_limit_that_no_rate_can_hold(capsys):
    said = run(capsys, "--capacity", "--seconds", "300", "--threshold", "0.02", "--kv-manager", "paged")
    assert "alone: a request takes longer even by itself." in said


TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{second:02}.1234567,{tokens},{tokens // 4}\n" for second, tokens in enumerate((100, 300, 3000, 200, 0, 4, 1200, 80)))


def test_a_trace_at_its_own_rate_and_at_others(tmp_path, capsys):
    file, out = tmp_path / "day [1].csv", tmp_path / "out.json"
    file.write_text(TRACE)
    said = run(capsys, "--trace", str(file), "--kv-manager", "paged", "--json", str(out))
    assert "day [1].csv, 6 requests" in said
    assert "Left out of 8 requests: 1 longer than 2,048 tokens, 1 no prompt." in said
    found = json.loads(out.read_text())
    assert found["trace"] == {"rows": 8, "skipped": {"longer than 2,048 tokens": 1, "no prompt": 1}}
    assert found["options"]["trace"] == str(file)
    (row,) = found["rows"]
    assert row["rate"] == pytest.approx(6 / 7)
    assert row["requests"] == 6
    twice, part = Load(Options(trace=file, rates=(2.0,))), Load(Options(trace=file, seconds=4.5))
    assert [a.time for a in twice.at(2.0)] == [pytest.approx(t * 6 / 7 / 2) for t in (0, 1, 3, 5, 6, 7)]
    assert (len(part.trace.arrivals), part.trace.num_rows) == (3, 5)
    assert len(Load(Options(trace=file, model="llama-3-8b")).trace.arrivals) == 7         # 8,192 positions
    file.write_text(TRACE.splitlines()[0] + "\n2023-11-16 18:15:46,5000,10\n")
    assert main(["simulate", "--trace", str(file)]) == 2
    assert "no request that opt-13b can serve (1 longer than 2,048 tokens)" in capsys.readouterr().err


def test_a_long_prompt_of_a_trace_runs(tmp_path):
    """Longer than the usual token budget, and unchunked."""
    file = tmp_path / "trace.csv"
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,5000,10\n2023-11-16 18:15:47,10,10\n")
    (row,) = simulate(Options(trace=file, model="llama-3-8b", kv_managers=("paged",)))
    assert row["requests"] == 2


def test_a_shared_prefix_is_computed_and_held_once():
    """Paper §6.4: only the paged manager shares it."""
    options = Options(model="llama-13b", dataset="translation", prefix_tokens=341, rates=(20.0,), seconds=20, kv_managers=("paged", "orca-oracle"))
    paged, slabs = simulate(options)
    assert 1.2 * paged["normalized_latency"] < slabs["normalized_latency"]
    scheduler, runner = simulate_module.build(options, "paged")
    arrivals = Load(options).at(2.0)
    simulate_module.serve(scheduler, runner, arrivals)
    assert scheduler.prefix_stats.hits == (len(arrivals) - 1) * (341 - 341 % 16)        # whole blocks
    assert not simulate_module.build(Options(dataset="translation", prefix_tokens=0), "paged")[0].manager.prefix_caching


def test_utilization_decides_the_slots():
    small, large = (Options(utilization=share).server.num_slots for share in (0.7, 0.9))
    assert 0 < small < large != Options().server.num_slots
    assert large - small == pytest.approx(0.2 * 40 * 2**30 / 819_200, abs=2)


def test_beams_are_asked_for_only_when_wanted(monkeypatch):
    heard = []
    real = simulate_module.serve

    def serve(*args, **options):
        heard.append(options)
        return real(*args)

    monkeypatch.setattr(simulate_module, "serve", serve)
    for beam in (False, True):
        simulate(Options(n=2, beam=beam, rates=(0.5,), seconds=10, kv_managers=("paged",)))
    assert heard == [{}, {"beam": True}]


def test_the_timeline(tmp_path, capsys):
    file = tmp_path / "run.json"
    said = run(capsys, "--rate", "2", "--seconds", "10", "--kv-manager", "paged", "--perfetto", str(file))
    assert "0.1 MB, for ui.perfetto.dev" in said or "0.0 MB" in said or "0.2 MB" in said
    names = {event["name"] for event in json.loads(file.read_text())["traceEvents"]}
    assert {"request 0", "running", "blocks", "requests"} <= names


def test_requests_that_outgrow_the_pool_are_told(capsys, tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,100,600\n2023-11-16 18:15:47,10,10\n")
    said = run(capsys, "--utilization", "0.608", "--kv-manager", "paged", "--trace", str(file))
    assert "504 slots" in said
    assert "1 request outgrew the whole pool, alone, and ended early" in said


def test_a_search_that_would_never_end_is_refused(monkeypatch):
    monkeypatch.setattr(simulate_module, "MOST_SEARCHED", 500)
    options = Options(dataset="alpaca", capacity=True, seconds=1, threshold=1000)
    with pytest.raises(ValueError, match=r"latencies are still within 1000 at 512 requests/s; .* 500 .* a lower --threshold"):
        simulate_module.find_capacity(options, "paged")


def test_the_presets(capsys):
    said = run(capsys, "--list")
    for piece in ("H200-141GB", "smollm2-135m", "32/8", "800", "A100-80GB │ 312 │ 2,039 │ 80 │ 32 │ yes", "opt-175b on 8 x A100-80GB: 60,100"):
        assert piece in said


def test_the_flags_load_nothing_heavy():
    code = "import sys, argparse\nfrom paged_edu.sim import arguments\nassert not {'numpy', 'torch', 'rich'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent)
