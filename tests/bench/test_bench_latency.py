"""`bench latency`: what is counted and shown; nothing about how fast this machine is."""
import json

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from paged_edu import cli
from paged_edu.bench import contest, latency


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    """A Llama of one layer."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("tiny")
    LlamaForCausalLM(LlamaConfig(
        vocab_size=64, max_position_embeddings=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, initializer_range=0.3,
    )).save_pretrained(path)
    return str(path)


def test_the_command_measures_shows_draws_and_shows_again(capsys, tmp_path, tiny):
    flags = ["--model", tiny, "--batch", "1, 3,1", "--input-len", "5", "--output-len", "9", "--rounds", "2", "--dtype", "float64"]
    assert cli.main(["bench", "latency", *flags, "--json", str(tmp_path / "l.json"), "--html", str(tmp_path / "l.html")]) == 0
    out, err = capsys.readouterr()
    result = json.loads((tmp_path / "l.json").read_text(encoding="utf-8"))
    assert result["complete"]
    part = result["latency"]
    assert list(part["batches"]) == list(part["summary"]) == ["1", "3"]
    for batch, own in part["batches"].items():
        assert own["summary"] == part["summary"][batch]
        assert own["same_tokens"]["others"]["transformers"]["different"] == 0
        for name, its in own["summary"].items():
            rounds = own["systems"][name]["rounds"]
            steps = [x for one in rounds for x in one["step_s"]]
            assert len(steps) == 2 * 8
            assert list(its["step_s"].values()) == pytest.approx(np.percentile(steps, [50, 90, 99]).tolist())
            assert its["prefill_s"]["median"] == pytest.approx(np.median([max(one["ttft_s"]) for one in rounds]))
            assert rounds[0]["tokens_per_s"] == pytest.approx(int(batch) * 9 / rounds[0]["seconds"])
            assert its["running"] == {"mean": int(batch), "max": int(batch)}
            # Prefill and the steps after it are all that there is; transformers also packs up after the last token.
            together = max(rounds[0]["ttft_s"]) + sum(rounds[0]["step_s"])
            assert rounds[0]["seconds"] > together - 1e-4
            assert name != "paged" or rounds[0]["seconds"] < together + 1e-4
    assert "batch 3, round 2 of 2: transformers" in err
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "prompts of 5 tokens, 9 tokens to write each" in " ".join(out.split())
    assert "Plotly.newPlot" in (tmp_path / "l.html").read_text(encoding="utf-8")
    assert cli.main(["bench", "latency", "--load", str(tmp_path / "l.json")]) == 0
    assert capsys.readouterr().out == out


@pytest.mark.parametrize(("flags", "message"), [
    (["--batch", "0"], "--batch must be between 1 and 4096, not 0"), (["--batch", "1;2"], "--batch must be whole numbers with commas"),
    (["--batch", ""], "not ''"), (["--input-len", "0"], "--input-len must be between 1"), (["--output-len", "1"], "--output-len must be between 2"),
    (["--systems", "fast"], "--systems must be one of"), (["--threads", "-1"], "--threads must be between 0 and 1024, not -1"),
    (["--input-len", "500"], "--input-len 500 and 128 tokens of output are 628, and tiny-shakespeare has positions for 512"),
    (["--load", "x.json", "--batch", "2"], "--batch has no meaning beside it"),
])
def test_bad_flags_are_one_line(capsys, flags, message):
    assert cli.main(["bench", "latency", *flags]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err


def test_ctrl_c_keeps_the_batches_that_have_ended(capsys, tmp_path, monkeypatch, tiny):
    race, calls = contest.race, []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return race(*arguments)

    monkeypatch.setattr(contest, "race", interrupted)
    flags = ["--model", tiny, "--systems", "paged", "--batch", "2,4", "--output-len", "4", "--rounds", "1", "--json", str(tmp_path / "l.json")]
    assert cli.main(["bench", "latency", *flags]) == 130
    out = capsys.readouterr().out
    assert list(json.loads((tmp_path / "l.json").read_text(encoding="utf-8"))["latency"]["summary"]) == ["2"]
    assert "This run was interrupted" in out
    assert cli.main(["bench", "latency", "--load", str(tmp_path / "l.json")]) == 0


def test_a_quick_run_writes_fewer_tokens_in_two_rounds():
    options = latency.Options(quick=True)
    assert (options.num_output, options.num_rounds, options.batches) == (24, 2, (1,))
    assert [len(one.prompt) for one in options.asked(3, 50)] == [32] * 3
    assert latency.Options(rounds=1, quick=True).num_rounds == 1
