"""`bench perplexity`: against transformers' own loss, and what it refuses."""
from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from paged_edu.bench.perplexity import Options, measure
from paged_edu.cli import main
from paged_edu.model.loader import resolve

TEXT = "ROMEO:\nWhat light through yonder window breaks? It is the east, and Juliet is the sun. Arise, fair sun, and kill the envious moon. " * 3


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_the_plain_cache_gives_the_models_own_perplexity_and_int8_nearly_so(text):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    found = measure(Options(text, "tiny-shakespeare", window=32, windows=3))
    folder = resolve("tiny-shakespeare")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), AutoTokenizer.from_pretrained(folder)
    ids = torch.tensor(tokenizer.encode(TEXT)[:96]).view(3, 32)
    with torch.inference_mode():
        expected = math.exp(model(ids, labels=ids).loss)
    plain, small = found["rows"]
    assert plain["perplexity"] == pytest.approx(expected, rel=1e-4)
    assert plain["tokens"] == 3 * 31
    assert plain["other_top_token"] == 0
    assert small["perplexity"] != plain["perplexity"]                      # the codes were used
    assert small["ratio"] == pytest.approx(1, abs=0.02)
    assert 3 < plain["bytes_per_block"] / small["bytes_per_block"] < 4


def test_the_command_prints_a_table_and_writes_json(text, tmp_path, capsys):
    file = tmp_path / "out.json"
    options = ["--text", str(text), "--model", "tiny-shakespeare", "--window", "16", "--windows", "1", "--json", str(file)]
    assert main(["bench", "perplexity", *options]) == 0
    assert "most likely token" in capsys.readouterr().out
    assert [row["kv_cache_dtype"] for row in json.loads(file.read_text())["rows"]] == ["auto", "int8"]


@pytest.mark.parametrize(("extra", "message"), [
    (["--window", "1"], "--window must be at least 2"), (["--windows", "0"], "--windows must be at least 1"),
    (["--window", "200"], "not enough for one window of 200"),
    (["--kv-cache-dtype", "int8", "int8"], "one or more different types"), (["--kv-cache-dtype", "int3"], "kv_cache_dtype must be one of"),
    (["--quantization", "none", "none"], "one or more different kinds"), (["--quantization", "int3"], "quantization must be one of"),
])
def test_bad_options_name_value_and_limit(text, capsys, extra, message):
    assert main(["bench", "perplexity", "--text", str(text), "--model", "tiny-shakespeare", *extra]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_window_longer_than_the_model_is_refused_by_its_name(tmp_path, capsys):
    path = tmp_path / "long.txt"
    path.write_text(TEXT * 20, encoding="utf-8")
    assert main(["bench", "perplexity", "--text", str(path), "--model", "tiny-shakespeare", "--window", "600"]) == 2
    assert "--window must be at most 511 for tiny-shakespeare, not 600" in capsys.readouterr().err


def test_a_text_that_is_none(tmp_path, capsys):
    assert main(["bench", "perplexity", "--text", str(tmp_path / "none.txt")]) == 2
    (tmp_path / "bytes").write_bytes(b"ab\xff")
    assert main(["bench", "perplexity", "--text", str(tmp_path / "bytes")]) == 2
    assert "byte 2 is 0xff" in capsys.readouterr().err


def test_the_readme_says_what_was_measured():
    root = Path(__file__).parents[2]
    plain, small = json.loads((root / "data" / "bench" / "perplexity.json").read_text(encoding="utf-8"))["rows"]
    said = f"a quarter of float32's memory, for {small['ratio']:.4f} times the perplexity"
    assert said in (root / "README.md").read_text(encoding="utf-8")
    assert plain["bytes_per_block"] / small["bytes_per_block"] == pytest.approx(4, rel=0.06)


def test_the_readme_says_what_int8_weights_cost():
    root = Path(__file__).parents[2]
    found = json.loads((root / "data" / "bench" / "perplexity_int8.json").read_text(encoding="utf-8"))
    plain, small = found["rows"]
    assert (plain["quantization"], small["quantization"]) == (None, "int8")
    said = f"{small['ratio']:.4f} times its perplexity on {found['windows']} windows of {found['window']:,} tokens"
    assert said in (root / "README.md").read_text(encoding="utf-8")
    assert small["ratio"] <= 1.04
    assert small["weight_bytes"] < plain["weight_bytes"] / 2
