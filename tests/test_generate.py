"""``paged-edu generate``: texts, JSON, streams, and prompts from a file or a pipe."""
import io
import json
import math
import re
import sys

import pytest

from paged_edu import cli, terminal


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = cli.main(list(argv))
    out, err = capsys.readouterr()
    return code, out, err


def test_generate_json_round_trip(capsys):
    argv = ["generate", "ROMEO:", "First Citizen:\nWe are", "--max-tokens", "6", "--temperature", "0.8", "--num-gpu-blocks-override", "8"]
    code, out, _ = run(capsys, *argv, "--seed", "3", "--json")
    assert code == 0
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["prompt"] for row in rows] == ["ROMEO:", "First Citizen:\nWe are"]
    for row in rows:
        assert set(row) == {"request_id", "index", "prompt", "text", "token_ids", "finish_reason", "stop_reason", "cumulative_logprob"}
        assert 1 <= len(row["token_ids"]) <= 6
        assert row["finish_reason"] in ("stop", "length")
    assert run(capsys, *argv, "--seed", "3", "--json")[1] == out
    assert run(capsys, *argv, "--seed", "4", "--json")[1] != out


def test_generate_text_has_prompt_completion_reason_and_no_control_codes(capsys):
    code, out, err = run(capsys, "generate", "ROMEO:", "--max-tokens", "3", "--ignore-eos", "--temperature", "0")
    assert code == 0
    head, text = out.split("\n", 1)
    assert head.endswith("prompt tokens + 3 output, length")
    assert text.startswith("ROMEO:")
    assert "1 prompt, 3 output tokens" in err
    assert not re.search(r"[\x1b\r]", out + err)


def test_prompts_from_the_standard_input(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("ROMEO:\n\nJULIET:\n"))
    code, out, err = run(capsys, "generate", "--max-tokens", "2", "--json")
    assert code == 0
    assert [json.loads(line)["prompt"] for line in out.splitlines()] == ["ROMEO:", "JULIET:"]
    assert "1 empty line of the standard input is skipped" in err


@pytest.mark.parametrize(("text", "message"), [("", "no prompt in the standard input: it has no lines"), ("\n \n", "2 lines, all of them empty")])
def test_no_prompt_at_all(capsys, monkeypatch, text, message):
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    code, _, err = run(capsys, "generate", "--file", "-")
    assert code == 2
    assert message in err


def test_prompts_from_a_file(capsys, tmp_path):
    (tmp_path / "prompts.txt").write_text("ROMEO:\nJULIET:\n", encoding="utf-8")
    code, out, _ = run(capsys, "generate", "--file", str(tmp_path / "prompts.txt"), "--max-tokens", "1", "--json")
    assert code == 0
    assert [json.loads(line)["prompt"] for line in out.splitlines()] == ["ROMEO:", "JULIET:"]


@pytest.mark.parametrize(("data", "prompts"), [
    ("\ufeffROMEO:\r\nJULIET:\r\n".encode(), ["ROMEO:", "JULIET:"]),            # with a byte order mark and Windows line ends
    ("a\x0bb\x85c\u2028d\re\nf".encode(), ["a\x0bb\x85c\u2028d\re", "f"]),     # only a line end ends a line
])
def test_lines_of_a_file(tmp_path, monkeypatch, data, prompts):
    from paged_edu.generate import read_prompts

    (tmp_path / "prompts.txt").write_bytes(data)
    assert read_prompts([], str(tmp_path / "prompts.txt")) == prompts
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert read_prompts([], "-") == prompts


def test_a_file_that_is_no_text_is_named(capsys, tmp_path):
    (tmp_path / "prompts.bin").write_bytes(b"ab\xff")
    code, _, err = run(capsys, "generate", "--file", str(tmp_path / "prompts.bin"))
    assert (code, err) == (2, f"paged-edu: {tmp_path / 'prompts.bin'} is no UTF-8 text: byte 0xFF at position 2\n")


ARGS = ["--temperature", "0", "--max-tokens", "30", "--ignore-eos"]


def test_stop_strings(capsys):
    code, out, _ = run(capsys, "generate", "ROMEO:", *ARGS, "--json")
    assert code == 0
    text = json.loads(out)["text"]
    found = json.loads(run(capsys, "generate", "ROMEO:", *ARGS, "--json", "--stop", "never found", "--stop", text[9:12])[1])
    assert found["text"] == text[: text.index(text[9:12])]
    assert (found["finish_reason"], found["stop_reason"]) == ("stop", text[9:12])


def test_a_stream_is_the_same_text(capsys):
    text = json.loads(run(capsys, "generate", "ROMEO:", *ARGS, "--json")[1])["text"]
    code, out, err = run(capsys, "generate", "ROMEO:", *ARGS, "--stream")
    assert (code, out) == (0, "ROMEO:" + text + "\n")
    assert "prompt tokens + 30 output, length" in err


def test_a_stream_of_json_has_the_texts_in_pieces_and_whole(capsys):
    argv = ["generate", "ROMEO:", "JULIET:", *ARGS, "--json"]
    whole = [json.loads(line) for line in run(capsys, *argv)[1].splitlines()]
    code, out, _ = run(capsys, *argv, "--stream")
    assert code == 0
    rows = [json.loads(line) for line in out.splitlines()]
    ids = list(dict.fromkeys(row["request_id"] for row in rows))
    assert len(ids) == 2
    assert [row["request_id"] for row in rows[:4]] == ids * 2
    for request_id, expected in zip(ids, whole, strict=True):
        mine = [row for row in rows if row["request_id"] == request_id]
        assert "".join(row["delta"] for row in mine) == expected["text"]
        assert {key: mine[-1][key] for key in expected if key != "request_id"} == {k: v for k, v in expected.items() if k != "request_id"}
        assert len(mine) > 10


def test_no_word_about_a_long_prompt_but_ours(capsys):
    code, _, err = run(capsys, "generate", "word " * 600)
    assert code == 2
    assert "max_model_len is 512" in err
    assert "indices" not in err


def test_what_a_terminal_may_be_given():
    assert terminal.visible("a\tb\n\x1b[2J\r\x07\x7f\x9b\u202e🔥é") == "a\tb\n␛[2J␍␇␡\ufffd\ufffd🔥é"


def test_a_chat_model_is_asked_and_completes_with_raw(capsys, tmp_path):
    """The same folder with a chat template: the prompt goes through it, the prompt shown is the user's, the answer on a line of its own."""
    import shutil

    from paged_edu.model.loader import resolve

    shutil.copytree(resolve("tiny-shakespeare"), tmp_path / "m")
    (tmp_path / "m" / "chat_template.jinja").write_text("{% for m in messages %}Q: {{ m.content }}\nA:{% endfor %}")
    options = ("--model", str(tmp_path / "m"), "--max-tokens", "8", "--json")
    code, out, _ = run(capsys, "generate", "Who?", *options)
    asked = json.loads(out)
    assert (code, asked["prompt"]) == (0, "Who?")
    assert asked["token_ids"] == json.loads(run(capsys, "generate", "Q: Who?\nA:", "--raw", "--temperature", "0", *options)[1])["token_ids"]
    assert asked["token_ids"] != json.loads(run(capsys, "generate", "Who?", "--raw", "--temperature", "0", *options)[1])["token_ids"]
    out = run(capsys, "generate", "Who?", *options[:-1])[1]
    assert "Who?\n" + asked["text"] in out
    assert run(capsys, "generate", "Who?", "--stream", *options[:-1])[1].startswith("Who?\n" + asked["text"])


def test_several_texts_a_prompt(capsys):
    common = ("generate", "ROMEO:", "--max-tokens", "6", "--json")
    sampled = [json.loads(line) for line in run(capsys, *common, "--n", "3")[1].splitlines()]
    assert [row["index"] for row in sampled] == [0, 1, 2]
    assert len({row["text"] for row in sampled}) > 1
    beams = [json.loads(line) for line in run(capsys, *common, "--beam-width", "4", "--n", "2")[1].splitlines()]
    assert [row["index"] for row in beams] == [0, 1]
    assert beams[0]["cumulative_logprob"] > beams[1]["cumulative_logprob"]
    assert "log-probability" in run(capsys, *common[:-1], "--beam-width", "2")[1]
    deltas = [json.loads(line) for line in run(capsys, *common, "--n", "2", "--stream")[1].splitlines()]
    for index in (0, 1):
        assert "".join(row["delta"] for row in deltas if row["index"] == index) == sampled[index]["text"]


def strict(line):
    """A JSON line, which has no NaN and no Infinity (known fault B64)."""
    return json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))


def test_logprobs_as_a_table(capsys):
    common = ("generate", "ROMEO: and", "--max-tokens", "4", "--temperature", "0", "--ignore-eos", "--logprobs", "2", "--prompt-logprobs", "0")
    row = strict(run(capsys, *common, "--json")[1])
    for out in (run(capsys, *common)[1], run(capsys, *common, "--stream")[1]):
        prompt, tokens = (part.splitlines() for part in out.split("\n\n")[-3:-1])
        assert prompt[-len(row["prompt_token_ids"]) - 1].split() == ["prompt", "id", "probability", "logprob", "rank", "instead"]
        assert tokens[0].split() == ["token", "id", "probability", "logprob", "rank", "instead"]
        assert len(tokens) == 5
        assert tokens[0].index("id") == tokens[1].index(str(row["token_ids"][0])) + len(str(row["token_ids"][0])) - 2, "aligned"
        for line, token, entries in zip(tokens[1:], row["token_ids"], row["logprobs"]):
            own = next(entry for entry in entries if entry["token_id"] == token)
            assert line.startswith(repr(own["token"]))
            assert f" {own['logprob']:.3f} " in line
            assert f"{100 * math.exp(own['logprob']):.1f} %" in line
            assert all(repr(entry["token"]) in line for entry in entries)
        assert not re.search(r"[\x1b\r]| $", out, re.M), "no codes and no trailing spaces in a pipe"


def test_logprobs_as_json(capsys):
    common = ("generate", "ROMEO: and", "--max-tokens", "4", "--ignore-eos", "--logprobs", "2", "--prompt-logprobs", "1", "--json")
    row = strict(run(capsys, *common)[1])
    assert [len(row[name]) for name in ("token_ids", "logprobs")] == [4, 4]
    assert row["prompt_logprobs"][0] is None
    assert len(row["prompt_logprobs"]) == len(row["prompt_token_ids"])
    for token, entries in zip(row["token_ids"] + row["prompt_token_ids"][1:], row["logprobs"] + row["prompt_logprobs"][1:]):
        assert token in [entry["token_id"] for entry in entries]
        assert [entry["rank"] for entry in entries[:1]] == [1]
        assert all(bytes(entry["bytes"]).decode() == entry["token"] for entry in entries)
    assert row["cumulative_logprob"] == pytest.approx(sum(
        entry["logprob"] for token, entries in zip(row["token_ids"], row["logprobs"]) for entry in entries if entry["token_id"] == token))
    last = strict(run(capsys, *common, "--stream")[1].splitlines()[-1])
    assert last["logprobs"] == row["logprobs"]


def test_penalties_and_biases(capsys):
    common = ("generate", "ROMEO:", "--max-tokens", "12", "--temperature", "0", "--ignore-eos", "--json")
    plain = json.loads(run(capsys, *common)[1])["token_ids"]
    banned = json.loads(run(capsys, *common, "--logit-bias", f"{plain[0]}=-100", "--logit-bias", f"{plain[1]}=-100")[1])["token_ids"]
    assert not {plain[0], plain[1]} & set(banned)
    for flag in ("--presence-penalty", "--frequency-penalty", "--repetition-penalty"):
        varied = json.loads(run(capsys, *common, flag, "2")[1])["token_ids"]
        assert len(set(varied)) >= len(set(plain))
        assert varied != plain
    assert json.loads(run(capsys, *common, "--presence-penalty", "-2")[1])["token_ids"] != plain, "a negative number is no flag"


@pytest.mark.parametrize(("flags", "message"), [
    (["--beam-width", "2", "--temperature", "1"], "--temperature does not go with --beam-width"),
    (["--beam-width", "2", "--stream"], "--stream does not go with --beam-width"), (["--beam-width", "0"], "beam_width must be at least 1, not 0"),
    (["--beam-width", "2", "--n", "3"], "between 1 and 2, not 3"),
    (["--n", "2", "--stream"], "there is 1 prompt of 2 texts each"),
    (["--length-penalty", "3"], "--length-penalty is for a beam search"),
    (["--beam-width", "2", "--logprobs", "1"], "--logprobs does not go with --beam-width"),
    (["--beam-width", "2", "--repetition-penalty", "1.5"], "--repetition-penalty does not go with --beam-width"),
    (["--beam-width", "2", "--logit-bias", "3=1"], "--logit-bias does not go with --beam-width"),
    (["--logit-bias", "3"], "--logit-bias must be ID=B, a token id and a number, such as 198=-100; not '3'"),
    (["--logit-bias", "3=x"], "not '3=x'"), (["--logit-bias", "x=3"], "logit_bias: every token id must be an integer, not 'x'"),
    (["--logit-bias", "3=nan"], "logit_bias of token 3 must be"), (["--logit-bias", "3=1", "--logit-bias", "3=2"], "has the token 3 twice"),
    (["--logprobs", "-1"], "logprobs must be at least 0, not -1"), (["--presence-penalty", "3"], "presence_penalty must be at least -2"),
    (["--n", "0"], "n must be at least 1, not 0"), (["--preemption-mode", "pray"], "'pray'"),
    (["--swap-space", "-1"], "swap_space must be at least 0"),
])
def test_what_does_not_go_together(capsys, flags, message):
    code, _, err = run(capsys, "generate", "ROMEO:", *flags)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
