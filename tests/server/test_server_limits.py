"""Limits and safety: the key, sizes, the queue, time, clients that go, what the log holds; and every option from flags, environment and file."""
import asyncio
import json
import logging
import re
import socket
import sys

import httpx
import pytest
from async_driving import Held, fake
from serving import events, scripted, serving
from test_engine import make
from tiny_tokenizers import tiny

from paged_edu import cli
from paged_edu.server import gate, options
from paged_edu.server.run import bound
from paged_edu.server.settings import Settings

ASK = {"model": "fake", "prompt": [5, 6, 7], "max_tokens": 40}


def test_the_key(held):
    keys = ("correct horse", "battery-staple")
    with pytest.raises(ValueError, match="without spaces"):
        Settings(api_key=keys)
    keys = ("correct-horse", "battery-staple")
    assert "horse" not in repr(Settings(api_key=keys))
    with serving(held[0], api_key=keys) as served, served.http() as client:
        for headers in ({}, {"authorization": "Bearer wrong-wrong"}, {"authorization": "Basic correct-horse"}, {"authorization": "correct-horse"},
                        {"authorization": "Bearer"}, {"authorization": b"Bearer \xff\xfe"}):
            for path in ("/v1/models", "/metrics", "/live", "/openapi.json", "/nothing"):
                answer = client.get(path, headers=headers)
                assert answer.status_code == 401
                assert answer.headers["www-authenticate"] == "Bearer"
                assert answer.json()["error"]["code"] == "invalid_api_key"
        for key in keys:
            assert client.get("/v1/models", headers={"authorization": f"Bearer {key}"}).status_code == 200
        assert client.get("/health").status_code == 200
        assert client.get("/").status_code == 200


def test_keys_are_compared_in_constant_time(held, monkeypatch):
    compared = []
    monkeypatch.setattr(gate.hmac, "compare_digest", lambda a, b: compared.append((len(a), len(b))) or a == b)
    with serving(held[0], api_key=("correct-horse", "battery-staple")) as served, served.http() as client:
        for key in ("c", "correct-horse", "x" * 1000):
            client.get("/v1/models", headers={"authorization": f"Bearer {key}"})
    assert compared == [(32, 32)] * 6


def test_a_page_whose_name_points_here_is_not_answered(held):
    with serving(held[0], allowed_host=("proxy.example",), close=False) as served, served.http() as client:
        for host, status in (("127.0.0.1:1", 200), ("localhost", 200), ("[::1]:8000", 200), ("evil.example", 403), ("evil.example:8000", 403),
                             ("proxy.example:80", 200), ("localhost.evil.example", 403), ("app.localhost", 200)):
            assert client.get("/v1/models", headers={"host": host}).status_code == status, host
    with serving(held[0], api_key=("a-long-key",)) as served, served.http() as client:
        assert client.get("/v1/models", headers={"host": "evil.example", "authorization": "Bearer a-long-key"}).status_code == 200


def test_sizes(held):
    with serving(held[0], max_body_bytes=1000, max_prompts=3, max_prompt_tokens=10) as served, served.http() as client:
        big = json.dumps(ASK | {"user": "x" * 2000}).encode()
        for content in (big, iter([big[:500], big[500:]])):     # with a length, and in chunks
            answer = client.post("/v1/completions", content=content, headers={"content-type": "application/json"})
            assert answer.status_code == 413
            assert "more than 1000 bytes" in answer.json()["error"]["message"]
        for prompt, said in (([[1]] * 4, "4 prompts; this server takes at most 3"), ([1] * 11, "11 tokens; this server takes at most 10")):
            answer = client.post("/v1/completions", json=ASK | {"prompt": prompt})
            assert answer.status_code == 400
            assert said in answer.json()["error"]["message"]
        assert client.post("/v1/completions", json=ASK | {"prompt": [[1] * 10] * 3}).status_code == 200


def test_a_body_that_never_comes(held, monkeypatch):
    monkeypatch.setattr(gate, "BODY_SECONDS", 0.05)
    with serving(held[0]) as served, socket.create_connection(("127.0.0.1", int(served.url.rsplit(":", 1)[1]))) as raw:
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
        assert b" 408 " in raw.recv(1000)


def test_a_queue_that_is_full(held):
    engine, steps = held

    async def main(served):
        async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
            steps.hold()
            first = asyncio.create_task(client.post("/v1/completions", json=ASK))
            await steps.reached()
            waiting = [asyncio.create_task(client.post("/v1/completions", json=ASK)) for _ in range(3)]
            while served.service.in_flight < 4:
                await asyncio.sleep(0.002)
            refused = await client.post("/v1/completions", json=ASK)
            assert refused.status_code == 429
            assert 1 <= int(refused.headers["retry-after"]) <= 60
            assert refused.json()["error"]["type"] == "rate_limit_error"
            assert "3 requests wait already, and at most 3 may" in refused.json()["error"]["message"]
            steps.release()
            assert [answer.status_code for answer in await asyncio.gather(first, *waiting)] == [200] * 4
            assert (await client.post("/v1/completions", json=ASK)).status_code == 200

    with serving(engine, max_queue=3, max_prompts=3) as served:
        asyncio.run(main(served))


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_takes_too_long(held, stream):
    engine, steps = held
    steps.pause = 0.02
    with serving(engine, request_timeout=0.15, stream_interval=0) as served:
        answer = served.post("/v1/completions", ASK | {"stream": stream})
        error = json.loads(events(answer.text)[-1])["error"] if stream else answer.json()["error"]
        assert answer.status_code == (200 if stream else 504)
        assert error == {"message": "no answer within 0.15 seconds, this server's limit", "type": "timeout_error", "param": None,
                         "code": "request_timeout"}
        served.nothing_left()
        # Who was too late waited for a token as well: without these the times would look best where the server is worst.
        for name in ("time_to_first_token_seconds_count", "queue_seconds_count"):
            assert served.metric(f"paged_edu_{name}") == 1
        assert served.metric("paged_edu_prompt_tokens_total") == 3
        assert served.metric('paged_edu_requests_total{end="failed"}') == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("waits", [False, True], ids=["runs", "waits"])
def test_a_client_that_goes_frees_its_blocks(monkeypatch, stream, waits):
    core = make(num_blocks=16)
    engine = fake(monkeypatch, core)
    steps = Held(core)
    steps.pause = 0.005

    async def main(served):
        async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
            if waits:                                       # behind one that has the whole pool
                other = asyncio.create_task(client.post("/v1/completions", json=ASK | {"prompt": [1] * 30, "max_tokens": 30}))
                while not core.scheduler.running:
                    await asyncio.sleep(0.002)
            async with asyncio.timeout(20):
                task = asyncio.create_task(client.post("/v1/completions", json=ASK | {"stream": stream, "n": 2, "prompt": [2] * 20}))
                while len(core.scheduler.requests) < 1 + waits:
                    await asyncio.sleep(0.002)
                task.cancel()
                while len(core.scheduler.requests) > waits:
                    await asyncio.sleep(0.002)
                while served.service.in_flight > waits:
                    await asyncio.sleep(0.002)
            assert served.service.stats.dropped == 1
            if waits:
                assert (await other).status_code == 200

    with serving(engine, stream_interval=0) as served:
        asyncio.run(main(served))
        served.nothing_left()
        assert served.metric('paged_edu_requests_total{end="dropped"}') == 1
        assert served.metric('paged_edu_http_requests_total{method="POST",path="/v1/completions",status="499"}') == 1


def test_a_client_that_reads_nothing_holds_nobody_up(held):
    engine, _ = held
    with serving(engine, stream_interval=0) as served, socket.create_connection(("127.0.0.1", int(served.url.rsplit(":", 1)[1]))) as raw:
        body = json.dumps(ASK | {"stream": True}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        raw.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        for _ in range(3):
            assert served.post("/v1/completions", ASK).status_code == 200


def test_a_mistake_of_ours_is_a_500_without_a_trace(held, monkeypatch, caplog):
    with serving(held[0]) as served:
        monkeypatch.setattr(served.service, "take", lambda count: 1 / 0)
        logging.getLogger("paged_edu").propagate = True
        answer = served.post("/v1/completions", ASK)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert "division" not in answer.text
    assert answer.headers["x-request-id"] in answer.json()["error"]["message"]
    assert "ZeroDivisionError" in caplog.text


def test_the_log_has_ids_and_no_prompts_unless_asked(monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    logging.getLogger("paged_edu").propagate = True
    tokenizer = tiny("byte-level")
    secret = "the cat sat on the mat"
    for shows in (False, True):
        caplog.clear()
        engine = scripted(monkeypatch, ["didn't it?"], tokenizer)
        engine._thread.engine.runner.prompt_len = len(tokenizer(secret)["input_ids"])
        with serving(engine, log_prompts=shows) as served:
            ask = {"model": "fake", "prompt": secret, "max_tokens": 5, "user": "me\nERROR forged"}
            answer = served.post("/v1/completions", ask, headers={"x-request-id": "my-id"})
            assert answer.headers["x-request-id"] == "my-id"
            odd = served.post("/v1/completions", ask, headers={"x-request-id": "my id; x"})
            assert len(odd.headers["x-request-id"]) == 32
        lines = [record.getMessage() for record in caplog.records if record.name == "paged_edu.server.gate"]
        assert len(lines) == 2
        assert lines[0].startswith("my-id POST /v1/completions 200 ")
        assert all("completion_tokens=5" in line and r"user='me\nERROR forged'" in line for line in lines)
        assert (secret in caplog.text) is shows
        assert ("didn't" in caplog.text) is shows


# -- options ---------------------------------------------------------------------------------------------------------------------------
def collect(*argv, environ=None, config=None):
    args = cli.build_parser().parse_args(["serve", *argv])
    return options.collect(vars(args), environ or {}, config or args.config)


def test_flags_before_environment_before_file_before_defaults(tmp_path):
    file = tmp_path / "serve.toml"
    file.write_text('port = 1\nmax-queue = 100\nhost = "::1"\nlog_prompts = true\nrequest-timeout = 7\n'
                    'served-model-name = ["a", "b"]\napi-key = "from-a-file"\n')
    environ = {"PORT": "2", "MAX_QUEUE": "200", "NO_PAGE": "yes", "SEED": ""}
    environ = {f"PAGED_EDU_SERVE_{name}": value for name, value in environ.items()} | {"PORT": "9"}
    values = collect("--port", "3", "--api-key", "first-key", "--api-key", "second-key", "--config", str(file), environ=environ)
    assert {name: values[name] for name in ("port", "max_queue", "host", "log_prompts", "request_timeout", "no_page", "seed", "max_body_bytes")} == {
        "port": 3, "max_queue": 200, "host": "::1", "log_prompts": True, "request_timeout": 7.0, "no_page": True, "seed": 0, "max_body_bytes": 2**21,
    }
    assert values["served_model_name"] == ("a", "b")
    assert values["api_key"] == ("first-key", "second-key")
    assert collect("--config", str(file))["api_key"] == ("from-a-file",)
    assert options.engine_options(collect("--no-prefix-caching"))["enable_prefix_caching"] is False
    assert options.engine_options(collect())["enable_chunked_prefill"] is True
    assert Settings.of(collect()).is_local


@pytest.mark.parametrize(("environ", "file", "said"), [
    ({"PAGED_EDU_SERVE_PROT": "1"}, "", "did you mean 'port'"),
    ({"PAGED_EDU_SERVE_PORT": "x"}, "", "PAGED_EDU_SERVE_PORT must be an integer, not 'x'"),
    ({"PAGED_EDU_SERVE_NO_PAGE": "maybe"}, "", "must be true or false"),
    ({}, "prot = 1", "did you mean 'port'"),
    ({}, "port = '1'", "port must be an integer"),
    ({}, "port =", "no TOML"), ({}, "port = true", "port must be an integer, not True"),
])
def test_what_is_wrong_with_environment_and_file(tmp_path, environ, file, said):
    path = tmp_path / "serve.toml"
    path.write_text(file)
    with pytest.raises(ValueError, match=said):
        collect(environ=environ, config=path)


@pytest.mark.parametrize(("argv", "said"), [
    (["--port", "70000"], "--port must be between 0 and 65535"),
    (["--max-queue", "0"], "--max-queue must be at least 1"),
    (["--api-key", "short"], "at least 8"),
    (["--max-queue", "3"], "--max-prompts \\(64\\) must be at most --max-queue \\(3\\)"), (["--request-timeout", "nan"], "--request-timeout"),
    (["--block-size", "0"], "block_size"), (["--log-level", "loud"], "--log-level must be one of"), (["--chat-template", "/nowhere"], "No such file"),
    (["--config", "/nowhere"], "No such file"), (["--host", "203.0.113.7", "--port", "0"], "--host 203.0.113.7"),
])
def test_what_is_wrong_with_an_option_is_one_line(capsys, argv, said):
    assert cli.main(["serve", *argv]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(said, error), error


def test_a_port_that_is_taken_and_a_missing_extra(capsys, monkeypatch):
    with bound(Settings(port=0)) as taken:
        assert taken.proto == socket.IPPROTO_TCP            # else every second packet of an answer would wait for 40 ms
        taken.listen()
        assert cli.main(["serve", "--port", str(taken.getsockname()[1])]) == 2
    assert "Address already in use" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert cli.main(["serve"]) == 2
    assert capsys.readouterr().err == "paged-edu: paged-edu serve needs the package uvicorn: pip install 'paged-edu[serve]'\n"


def test_help_explains_each_option_in_a_line(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["serve", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {option.flag} " in out or f"  {option.flag}\n" in out for option in options.ALL.values())
    assert not re.search(r"^ {12,}\S", out.split("options:")[1], re.M), out



def test_what_is_only_echoed_has_limits_too(held):
    with serving(held[0]) as served:
        for wanted in ({"n": 10**9}, {"beam_width": 10**9}):
            answer = served.post("/v1/completions", ASK | {"max_tokens": 0, "echo": True} | wanted)
            assert answer.status_code == 400
            assert "max_num_seqs is 256" in answer.json()["error"]["message"]


def test_a_long_list_of_mistakes_is_one_mistake(held):
    with serving(held[0]) as served:
        answer = served.post("/v1/completions", ASK | {"prompt": [-1] * 300_000})
        assert answer.status_code == 400
        assert len(answer.text) < 1000
