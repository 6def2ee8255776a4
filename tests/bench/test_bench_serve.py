"""`bench serve`: what is sent, counted and shown; nothing about how fast this machine is."""
import asyncio
import json
import signal
from pathlib import Path

import pytest
from serving import serving

from paged_edu import AsyncEngine, cli
from paged_edu.bench import serve
from paged_edu.bench.http_client import AnswerError, Target


@pytest.fixture(scope="module")
def served():
    with serving(AsyncEngine("tiny-shakespeare", num_gpu_blocks_override=128), stream_interval=0) as served:
        yield served


def test_the_command_measures_shows_draws_and_shows_again(capsys, tmp_path, served):
    flags = ["--url", served.url, "--requests", "9", "--rate", "200", "--max-model-len", "40", "--seed", "3"]
    assert cli.main(["bench", "serve", *flags, "--json", str(tmp_path / "s.json"), "--html", str(tmp_path / "s.html")]) == 0
    out, err = capsys.readouterr()
    result = json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))
    assert result["complete"]
    part = result["serve"]
    asked = serve.Options(requests=9, rate=200, seed=3).asked(40, 1000)
    rows = part["run"]["rows"]
    assert [row["tokens"] for row in rows] == [it.n_out for it in asked]
    assert [row["arrival"] for row in rows] == [it.time for it in asked]
    assert all(row["arrival"] <= row["sent"] <= row["events"][0] <= row["ended"] for row in rows)
    its = part["summary"]
    assert (its["answered"], its["requests"], its["errors"]) == (9, 9, {})
    assert its["tokens"] == sum(it.n_out for it in asked)
    assert its["tokens_per_s"] == pytest.approx(its["tokens"] / its["seconds"])
    assert its["ttft_s"]["p50"] == pytest.approx(sorted(row["events"][0] - row["arrival"] for row in rows)[4])
    assert "9 of 9 requests answered" in out
    assert "measuring: 9 requests to tiny-shakespeare" in err
    assert all(len(line) <= 80 for line in out.splitlines())
    page = (tmp_path / "s.html").read_text(encoding="utf-8")
    assert page.count("Plotly.newPlot") == 2
    assert "cdn" not in page.split("<body>")[0]
    assert cli.main(["bench", "serve", "--load", str(tmp_path / "s.json")]) == 0
    assert capsys.readouterr().out == out


def test_ctrl_c_keeps_what_has_ended(capsys, tmp_path, served, monkeypatch):
    ended = []

    async def send(target, path, body, timeout):
        if len(ended) == 3:
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(60)
        ended.append(await own(target, path, body, timeout))
        return ended[-1]

    own = serve.send
    monkeypatch.setattr(serve, "send", send)
    flags = ["--url", served.url, "--requests", "9", "--max-concurrency", "1", "--max-model-len", "40"]
    assert cli.main(["bench", "serve", *flags, "--json", str(tmp_path / "s.json")]) == 130
    result = json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))
    assert not result["complete"]
    assert sorted(row["text"] for row in result["serve"]["run"]["rows"]) == sorted(row["text"] for row in ended)
    out = " ".join(capsys.readouterr().out.split())
    assert "3 of 3 requests answered" in out
    assert "This run was interrupted: 9 requests had been asked for, and above are those that had ended." in out


@pytest.mark.parametrize("flags", [["--text"], ["--chat"], ["--no-ignore-eos", "--max-concurrency", "2"]])
def test_other_forms_and_errors_in_the_summary(capsys, tmp_path, served, flags):
    command = ["bench", "serve", "--url", served.url, "--requests", "4", "--max-model-len", "30", *flags, "--json", str(tmp_path / "s.json")]
    assert cli.main(command) == int(flags == ["--chat"]), "1: nobody was answered"
    its = json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))["serve"]["summary"]
    if flags == ["--chat"]:
        assert its["answered"] == 0
        assert [error[:4] for error in its["errors"]] == ["400:"]
        assert "4 times: 400: this model has no chat template" in " ".join(capsys.readouterr().out.split())
    else:
        assert its["answered"] == 4


def test_a_workload_file_and_the_key(tmp_path, capsys):
    work = tmp_path / "w.json"
    work.write_text(json.dumps([{"prompt": [5, 6], "n_out": 3}, {"prompt": [7], "n_out": 4, "time": 0.02}]))
    with serving(AsyncEngine("tiny-shakespeare", num_gpu_blocks_override=32), api_key=("a-long-key",)) as served:
        command = ["bench", "serve", "--url", served.url, "--workload", str(work), "--json", str(tmp_path / "s.json")]
        assert cli.main(command) == 2
        assert "an API key is needed" in capsys.readouterr().err
        assert cli.main([*command, "--api-key", "a-long-key"]) == 0
    stored = (tmp_path / "s.json").read_text(encoding="utf-8")
    assert "a-long-key" not in stored
    assert [row["tokens"] for row in json.loads(stored)["serve"]["run"]["rows"]] == [3, 4]


@pytest.mark.parametrize(("flags", "message"), [
    (["--url", "localhost:8000"], "--url must be an address"), (["--url", "http://me:secret@127.0.0.1"], "--url has a user's name or password in it"),
    (["--rate", "0"], "--rate must be above 0"),
    (["--requests", "0"], "--requests must be"),
    (["--url", "http://127.0.0.1:9"], "no connection to http://127.0.0.1:9: refused\n"), (["--dataset", "x"], "--dataset must be one of"),
    (["--against-llm", "--rate", "3"], "--rate has no meaning beside --against-llm"), (["--workload", "/nowhere"], "No such file"),
])
def test_what_is_wrong_is_one_line(capsys, flags, message):
    assert cli.main(["bench", "serve", *flags]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "hush" not in error
    assert error.count("\n") == 1


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(("answer", "status", "said"), [
    (CHUNKED + b"19\r\ndata: {\"choices\": [], \"x\"\r\n9\r\n: 1}\n\ndat\r\n0\r\n\r\n", 0, "ended without"),
    (b"HTTP/1.1 200 OK\r\n\r\ndata: {\"choices\": []}\n\ndata: {\"error\": {\"message\": \"broken\"}}\n\n", 500, "broken"),
    (b"HTTP/1.1 429 No\r\nContent-Length: 31\r\n\r\n{\"error\": {\"message\": \"later\"}}", 429, "later"), (b"hello\r\n", 0, "no HTTP"),
    (b"HTTP/1.1 200 OK\r\n\r\ndata: {no\n\n", 0, "cannot be read: JSONDecodeError"), (CHUNKED + b"x\r\n", 0, "cannot be read: ValueError"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ndata: ", 0, "the connection was lost"), (b"", 0, "the connection was lost"),
])
def test_answers_of_other_servers(answer, status, said):
    async def main():
        async def talk(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
            target = Target(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/api/v1/")

            async def read():
                async for event in target.events("/completions", {}):
                    assert event["choices"] == []

            with pytest.raises(AnswerError, match=said) as raised:
                await read()
            assert raised.value.status == status

    asyncio.run(main())


def test_the_readme_tells_of_the_stored_races(capsys):
    root = Path(__file__).parents[2]
    text = (root / "README.md").read_text(encoding="utf-8")
    for name, rounds, least, words in (
        ("serve_cpu", 5, 0.9, "got {:.2f} times the tokens/s of `LLM.generate`"), ("serve_cpu_small", 7, 0.8, "milliseconds, {:.2f} times"),
    ):
        file = root / "data" / "bench" / f"{name}.json"
        result = json.loads(file.read_text(encoding="utf-8"))
        its = result["serve"]["summary"]
        assert (result["complete"], its["rounds"], its["answered"], its["same_texts"]) == (True, rounds, 64, 64)
        assert its["race"]["ratio"]["median"] >= least
        assert words.format(its["race"]["ratio"]["median"]) in text
        assert cli.main(["bench", "serve", "--load", str(file)]) == 0
        assert "Equal texts: 64 of 64" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_the_race_with_the_library_gives_equal_texts(capsys, tmp_path):
    assert cli.main(["bench", "serve", "--against-llm", "--quick", "--max-model-len", "60", "--json", str(tmp_path / "r.json")]) == 0
    its = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["serve"]["summary"]
    assert (its["answered"], its["same_texts"], its["rounds"]) == (16, 16, 1)
    assert its["race"]["ratio"]["median"] > 0
    assert "LLM.generate:" in capsys.readouterr().out
