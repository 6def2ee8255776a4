"""`bench throughput`, the command: what it measures, writes, shows and refuses; nothing about how fast this machine is."""
import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from paged_edu import cli
from paged_edu.bench import throughput
from paged_edu.bench.contenders import Ours

PEER = f"{sys.executable} -c"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    """A GPT-2 of one layer: nothing here asks how good its words are."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("tiny")
    GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=64, n_embd=16, n_layer=1, n_head=2, initializer_range=0.3)).save_pretrained(path)
    return str(path)


@pytest.fixture
def workload(tmp_path) -> str:
    """Nine requests of several lengths, one of a single token."""
    rng = random.Random(0)
    rows = [{"prompt": [rng.randrange(64) for _ in range(1 + 2 * i)], "n_out": 1 + 3 * i} for i in range(9)]
    path = tmp_path / "w.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    return str(path)


# -- the command -----------------------------------------------------------------------------------------------------------------------
def test_the_command_races_shows_draws_and_shows_again(capsys, tmp_path, tiny, workload):
    files = {name: str(tmp_path / name) for name in ("t.json", "t.html", "p.html")}
    flags = ["--model", tiny, "--workload", workload, "--rounds", "3", "--dtype", "float64", "--systems", "paged,transformers,orca-max"]
    flags += ["--peer", f"other={PEER} \"print('at last: 12.5 tok/s')\"", "--peer", f"broken={PEER} 'raise SystemExit(3)'"]
    assert cli.main(["bench", "throughput", *flags, "--json", files["t.json"], "--html", files["t.html"], "--profile", files["p.html"]]) == 0
    out, err = capsys.readouterr()
    result = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
    assert set(result) == {"options", "machine", "complete", "throughput", "profile"}
    assert {"date", "cpu", "load_average", "torch", "transformers", "numpy", "paged_edu"} <= set(result["machine"])
    part = result["throughput"]
    assert (result["complete"], part["requests"], part["prompt_tokens"], part["output_tokens"]) == (True, 9, 81, 117)
    assert list(part["systems"]) == list(part["summary"]) == ["paged", "transformers", "orca-max", "other"]
    assert "broken is left out: exit code 3" in err
    assert part["left_out"] == {"broken": "exit code 3: nothing on stderr"}
    _check_rows(part)
    assert {name: its["different"] for name, its in part["same_tokens"]["others"].items()} == {"transformers": 0, "orca-max": 0}
    _check_profile(result["profile"])
    assert "transformers wrote the same tokens as paged (9 requests)" in out
    assert "Where the time of a step goes" in out
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "Plotly.newPlot" in (tmp_path / "t.html").read_text(encoding="utf-8")
    assert "src=" not in (tmp_path / "p.html").read_text(encoding="utf-8")
    assert cli.main(["bench", "throughput", "--load", files["t.json"], "--profile", files["p.html"]]) == 0
    assert capsys.readouterr().out == out


def _check_rows(part):
    """What is summed up, worked out again from the rounds by numpy."""
    first = [one["tokens_per_s"] for one in part["systems"]["paged"]["rounds"]]
    for name, its in part["summary"].items():
        rounds = part["systems"][name]["rounds"]
        assert len(rounds) == its["rounds"] == 3
        speeds = [one["tokens_per_s"] for one in rounds]
        assert speeds == pytest.approx([117 / one["seconds"] for one in rounds])
        assert [its["tokens_per_s"][key] for key in ("low", "median", "high")] == pytest.approx(np.percentile(speeds, [25, 50, 75]).tolist())
        if name != "paged":
            assert its["first_against_it"]["ratio"] == pytest.approx(np.median(first) / np.median(speeds))
            assert its["first_against_it"]["high"] == pytest.approx(max(a / b for a, b in zip(first, speeds, strict=True)))
        if name == "other":
            assert speeds == [12.5] * 3
            continue
        for key, count in (("ttft_s", 27), ("tpot_s", 24)):             # one request has a single token
            values = [x for one in rounds for x in one[key]]
            assert len(values) == count
            assert list(its[key].values()) == pytest.approx(np.percentile(values, [50, 90, 99]).tolist())
            assert min(values) > 0
        assert 0 < its["held"] <= 1
        assert its["running"]["max"] == 9
    assert part["summary"]["paged"]["steps"] == 25                      # as many as the longest output
    assert part["summary"]["paged"]["held"] > part["summary"]["orca-max"]["held"]


def _check_profile(profile):
    assert set(profile["parts"]) == {"decode", "prompt", "all"}
    assert profile["parts"]["all"]["steps"] == profile["parts"]["decode"]["steps"] + profile["parts"]["prompt"]["steps"] == 25
    for its in profile["parts"].values():
        assert sum(its["shares"].values()) == pytest.approx(1)
        assert all(share > 0 for share in its["shares"].values())
    against = profile["against"]
    assert (against["sequences"], against["products"]) == (32, 5)       # four layers, and the head
    assert against["ratio"] == pytest.approx(against["step_s"]["median"] / against["products_s"]["median"])
    assert against["ratio"] > 1


def test_a_quick_run_of_the_embedded_model(capsys, tmp_path):
    flags = ["--quick", "--rounds", "1", "--requests", "3", "--max-model-len", "48", "--systems", "paged", "--rate", "1000"]
    assert cli.main(["bench", "throughput", *flags, "--json", str(tmp_path / "t.json")]) == 0
    result = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
    assert result["options"]["rate"] == 1000
    assert not result["throughput"]["at_once"]
    assert "3 requests 1000 requests/s" in capsys.readouterr().out


@pytest.fixture
def started(monkeypatch):
    """Nothing is measured; whether it would have been."""
    calls = []
    monkeypatch.setattr(throughput, "measure", lambda *arguments: calls.append(arguments))
    return calls


@pytest.mark.parametrize(("flags", "message"), [
    (["--systems", "paged,vllm"], "--systems must be one of 'paged', 'orca-max'"), (["--systems", "transformers"], "must be one of ours: paged,"),
    (["--systems", "paged,paged"], "somebody is named twice"), (["--rounds", "0"], "--rounds must be between 1 and 1000, not 0"),
    (["--requests", "0"], "--requests must be between 1"), (["--rate", "0"], "--rate must be above 0"),
    (["--dataset", "pile"], "--dataset must be one of"),
    (["--kv-cache-dtype", "int4"], "--kv-cache-dtype must be one of"), (["--peer", "ls"], "--peer must be NAME=COMMAND, not 'ls'"),
    (["--workload", "w.json", "--requests", "5"], "--workload w.json brings its requests: --requests has no meaning"),
    (["--peer", "paged=ls"], "the name 'paged' is taken"), (["--peer", "a=ls", "--peer", "a=ls"], "two of them have the same name"),
    (["--systems", "orca-max", "--profile", "p.html"], "--profile looks into 'paged'"), (["--json", "/no/such/folder/p.json"], "the directory"),
    (["--load", "/no/such.json"], "/no/such.json: No such"), (["--load", "x.json", "--rounds", "2"], "--rounds has no meaning beside it"),
    (["--load", "x.json", "--json", "y.json"], "--json has no meaning beside it"),
])
def test_bad_flags_are_refused_before_anything_runs(capsys, started, flags, message):
    assert cli.main(["bench", "throughput", *flags]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err
    assert not started


@pytest.mark.parametrize(("text", "message"), [
    ("[", "no JSON"), ("[]", "must be a list of requests"), ("[5]", 'request 0 must be an object with "prompt" and "n_out"'),
    ('[{"prompt": [1]}]', "request 0 must be an object"), ('[{"prompt": [1], "n_out": 2}, {"prompt": [], "n_out": 2}]', "request 1: prompt must be"),
    ('[{"prompt": [1, "a"], "n_out": 2}]', "request 0: prompt[1] must be an integer, not 'a'"),
    ('[{"prompt": "hi", "n_out": 2}]', "list of token ids"),
    ('[{"prompt": [1], "n_out": 0}]', "request 0: n_out must be at least 1, not 0"), ('[{"prompt": [1], "n_out": 2, "n": 1}]', "a field 'n'"),
    ('[{"prompt": [64], "n_out": 2}]', "has token 64, and the model's tokens end at 63"),
    ('[{"prompt": [1, 2], "n_out": 63}]', "2 tokens of prompt and 63 of output are 65, and the longest may be 64"),
    ('[{"prompt": [1], "n_out": 2, "time": -1}]', "request 0: time must be at least 0"),
])
def test_a_wrong_workload_is_one_line_that_names_the_place(capsys, tmp_path, tiny, text, message):
    (tmp_path / "w.json").write_text(text, encoding="utf-8")
    assert cli.main(["bench", "throughput", "--model", tiny, "--workload", str(tmp_path / "w.json")]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"throughput": {"summary": {"paged": {}}}}'])
def test_a_file_that_is_something_else_is_refused(capsys, tmp_path, text):
    (tmp_path / "t.json").write_text(text, encoding="utf-8")
    assert cli.main(["bench", "throughput", "--load", str(tmp_path / "t.json")]) == 2
    assert "t.json: no" in capsys.readouterr().err


def test_ctrl_c_keeps_the_rounds_that_have_ended(capsys, tmp_path, monkeypatch, tiny, workload):
    """In the second round, when the first contender is done."""
    serve, calls = Ours.serve, []

    def interrupted(self, asked, advance=lambda count: None):
        calls.append(len(asked))
        if len(calls) > 4:                                              # two to warm up, and a round
            raise KeyboardInterrupt
        return serve(self, asked, advance)

    monkeypatch.setattr(Ours, "serve", interrupted)
    flags = ["--model", tiny, "--workload", workload, "--systems", "paged,orca-oracle", "--json", str(tmp_path / "t.json")]
    assert cli.main(["bench", "throughput", *flags]) == 130
    out, err = capsys.readouterr()
    result = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
    assert not result["complete"]
    assert [len(its["rounds"]) for its in result["throughput"]["systems"].values()] == [1, 1]
    assert "This run was interrupted" in out
    assert "paged-edu: interrupted" in err
    assert cli.main(["bench", "throughput", "--load", str(tmp_path / "t.json")]) == 0
    calls.clear()
    calls += [0] * 9
    assert cli.main(["bench", "throughput", *flags]) == 130
    assert "nothing had been measured yet" in capsys.readouterr().err


def test_what_is_not_served_is_refused_by_name(capsys, tiny):
    assert cli.main(["bench", "throughput", "--model", tiny, "--quantization", "int3", "--max-model-len", "64"]) == 2
    assert "quantization" in capsys.readouterr().err


def test_a_pool_that_is_too_small_for_a_request(capsys, tiny, workload):
    flags = ["--model", tiny, "--workload", workload, "--systems", "paged", "--num-gpu-blocks-override", "2"]
    assert cli.main(["bench", "throughput", *flags]) == 2
    assert "2 blocks" in capsys.readouterr().err


def test_the_readme_tells_of_the_stored_race():
    root = Path(__file__).parents[2]
    race = json.loads((root / "data" / "bench" / "throughput_cpu.json").read_text(encoding="utf-8"))
    assert cli.main(["bench", "throughput", "--load", str(root / "data" / "bench" / "throughput_cpu.json")]) == 0
    assert race["complete"]
    speed = {name: one["tokens_per_s"]["median"] for name, one in race["throughput"]["summary"].items()}
    assert all(one["rounds"] == 5 for one in race["throughput"]["summary"].values())
    assert race["throughput"]["same_tokens"]["others"]["transformers"]["different"] == 0
    text = (root / "README.md").read_text(encoding="utf-8")
    for words in (
        f"float32 writes {speed['paged'] / speed['transformers']:.2f} times the tokens/s of transformers' padded batch",
        f"{speed['paged'] / speed['openvino f32']:.2f} times those of OpenVINO GenAI in float32",
        f"int8 writes {speed['paged int8'] / speed['openvino default']:.2f} times those of OpenVINO GenAI at its default",
    ):
        assert words in text
    alone = [json.loads((root / "data" / "bench" / f"{name}.json").read_text(encoding="utf-8")) for name in ("latency_cpu", "latency_cpu_int8")]
    plain, small = (one["latency"]["summary"]["1"]["transformers"]["first_against_it"]["ratio"] for one in alone)
    assert f"{plain:.2f} times transformers' tokens/s in float32 and {small:.2f} times\nin int8" in text
