"""`paged-edu simulate`: the table and the file, the paper's servers, what is refused."""
from __future__ import annotations

import json

import pytest

from paged_edu.cli import main
from paged_edu.sim.presets import PAPER_SERVERS
from paged_edu.sim.simulate import Options, simulate


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
    (["--json", "/no/such/folder/a.json"], "--json"),
])
def test_bad_options_name_value_and_limit(flags, message, capsys):
    assert main(["simulate", *flags]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
