"""The server as a process: it starts from the command line, ends by SIGTERM, and loses no request that it has accepted."""
import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import time
from urllib.request import urlopen

import httpx
import pytest
from serving import process

from paged_edu import LLM, AsyncEngine, SamplingParams
from paged_edu.server import options, run
from paged_edu.server.settings import Settings

OPTIONS = ("--num-gpu-blocks-override", "40", "--block-size", "8")
PROMPTS = [f"{name}:\n{word}" for name in ("ROMEO", "JULIET") for word in "abcdefghijkl"]


@pytest.mark.slow
def test_sigterm_in_mid_load_loses_no_accepted_request():
    with LLM("tiny-shakespeare", num_gpu_blocks_override=40, block_size=8) as llm:
        wanted = llm.generate(PROMPTS, [SamplingParams(seed=i, max_tokens=40) for i in range(len(PROMPTS))], use_tqdm=False)

    async def main(served):
        async with httpx.AsyncClient(base_url=served.url, timeout=60, limits=httpx.Limits(max_connections=100)) as client:
            async def one(i):
                body = {"model": "tiny-shakespeare", "prompt": PROMPTS[i], "seed": i, "max_tokens": 40, "stream": i % 2 == 1}
                answer = await client.post("/v1/completions", json=body)
                assert answer.status_code == 200, answer.text
                if not body["stream"]:
                    return answer.json()["choices"][0]["text"]
                assert answer.text.endswith("data: [DONE]\n\n")
                chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
                return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])

            tasks = [asyncio.create_task(one(i)) for i in range(len(PROMPTS))]
            while (await client.get("/health")).json()["in_flight"] < len(PROMPTS):
                assert not any(task.done() for task in tasks)
            served.child.send_signal(signal.SIGTERM)
            texts = await asyncio.gather(*tasks)
            with pytest.raises(httpx.TransportError):       # nobody listens any more
                await client.get("/health")
            return texts

    with process(*OPTIONS) as served:
        texts = asyncio.run(main(served))
        assert served.child.wait(30) == 0
        served.reader.join(10)
    assert texts == [output.outputs[0].text for output in wanted]
    log = "".join(served.lines)
    assert f"SIGTERM: no new requests; {len(PROMPTS)} prompts in flight may end" in log
    assert f"stopped; {len(PROMPTS)} prompts answered, 0 dropped, 0 failed" in log
    assert "Traceback" not in log


@pytest.mark.slow
def test_the_drain_timeout_and_the_environment():
    variables = {"PAGED_EDU_SERVE_API_KEY": "from-the-environment", "PAGED_EDU_SERVE_DRAIN_TIMEOUT": "0.5", "PAGED_EDU_SERVE_REQUEST_TIMEOUT": "60"}
    with process("--served-model-name", "bard", env=variables) as served:
        headers = {"authorization": "Bearer from-the-environment"}

        async def main():
            async with httpx.AsyncClient(base_url=served.url, timeout=60, headers=headers) as client:
                assert (await client.get("/v1/models")).json()["data"][0]["id"] == "bard"
                body = {"model": "bard", "prompt": ["x"] * 40, "n": 6, "max_tokens": 500, "ignore_eos": True}       # takes longer than half a second
                tasks = [asyncio.create_task(client.post("/v1/completions", json=body)) for _ in range(4)]
                while (await client.get("/health")).json()["in_flight"] < 160:
                    pass
                served.child.send_signal(signal.SIGTERM)
                return await asyncio.gather(*tasks, return_exceptions=True)

        assert "from-the-environment" not in all_cut_off(served, asyncio.run(main()), 160)


def all_cut_off(served, answers, num_prompts):
    """Everybody was cut off and told so, and the process has ended with 0; its log."""
    for answer in answers:
        cut_off(answer)
    assert served.child.wait(30) == 0
    served.reader.join(10)
    log = "".join(served.lines)
    assert f"0 prompts answered, 0 dropped, {num_prompts} failed" in log, log
    return log


def cut_off(answer):
    """Whoever is cut off is told so, in an error object, or in the last event of a stream."""
    if answer.headers["content-type"].startswith("text/event-stream"):
        *_, error, nothing = answer.text.split("\n\n")
        assert (answer.status_code, nothing) == (200, "")
        error = json.loads(error.removeprefix("data: "))
    else:
        assert answer.status_code == 503
        error = answer.json()
    assert error == {"error": {"message": "the server was stopped before this request had ended", "type": "overloaded_error", "param": None,
                               "code": "stopped"}}


@pytest.mark.slow
def test_a_second_ctrl_c_cuts_off_and_tells():
    with process("--drain-timeout", "600") as served:
        async def main():
            async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
                body = {"model": "tiny-shakespeare", "prompt": ["x"] * 40, "n": 6, "max_tokens": 500, "ignore_eos": True}
                tasks = [asyncio.create_task(client.post("/v1/completions", json=body | {"stream": stream})) for stream in (False, True, True)]
                while (await client.get("/health")).json()["in_flight"] < 120:
                    pass
                served.child.send_signal(signal.SIGINT)
                while not any("SIGINT: no new requests; 120 prompts in flight may end, Ctrl-C cuts them off" in line for line in served.lines):
                    await asyncio.sleep(0.01)
                served.child.send_signal(signal.SIGINT)
                return await asyncio.gather(*tasks)

        assert "Traceback" not in all_cut_off(served, asyncio.run(main()), 120)


@pytest.mark.slow
def test_a_client_that_reads_nothing_is_not_waited_for():
    """Nor is one that sends no body: after the second Ctrl-C there are seconds for the last words, whatever the drain timeout."""
    with process("--drain-timeout", "600") as served:
        body = {"model": "tiny-shakespeare", "prompt": ["x"] * 20, "n": 6, "max_tokens": 500, "ignore_eos": True, "stream": True, "logprobs": 20}
        data = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        with socket.socket() as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            raw.connect(("127.0.0.1", int(served.url.rsplit(":", 1)[1])))
            raw.sendall(head.encode() + data)
            time.sleep(3)                                   # until every buffer is full
            for _ in range(2):
                served.child.send_signal(signal.SIGINT)
                time.sleep(0.2)
            assert served.child.wait(25) == 0
        served.reader.join(10)
        assert "Traceback" not in "".join(served.lines)


@pytest.mark.slow
def test_a_signal_while_nobody_reads_stderr_any_more():
    """As in ``paged-edu serve 2>&1 | head``: what is said of the signal cannot be said, and the requests are answered."""
    command = [sys.executable, "-m", "paged_edu", "serve", "--port", "0", *OPTIONS, "--log-level", "error"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        try:
            url = next(found[1] for line in child.stderr if (found := re.search(r" at (http://\S+)/v1", line)))
            child.stderr.close()
            body = {"model": "tiny-shakespeare", "prompt": ["x"] * 40, "max_tokens": 200, "ignore_eos": True}

            async def main():
                async with httpx.AsyncClient(base_url=url, timeout=60) as client:
                    task = asyncio.create_task(client.post("/v1/completions", json=body))
                    while (await client.get("/health")).json()["in_flight"] < 40:
                        pass
                    child.send_signal(signal.SIGTERM)
                    return await task

            assert len(asyncio.run(main()).json()["choices"]) == 40
            child.wait(30)
        finally:
            child.kill()


@pytest.mark.slow
def test_it_listens_when_it_says_so_and_can_be_stopped_at_once():
    with process(*OPTIONS) as served:
        with urlopen(f"{served.url}/health", timeout=60) as answer:     # one try: a refused connection is an error
            assert answer.status == 200
        served.child.send_signal(signal.SIGTERM)
        assert served.child.wait(30) == 0
        served.reader.join(10)
        assert "paged-edu: SIGTERM: no new requests\n" in served.lines
    with process(*OPTIONS) as served:
        served.child.send_signal(signal.SIGTERM)
        assert served.child.wait(30) == 0
        served.reader.join(10)
        assert "stopped; 0 prompts answered" in "".join(served.lines)


def test_a_signal_before_the_loop_has_begun_is_not_lost(monkeypatch, capsys):
    settings = Settings.of(options.collect({"port": 0}, {}, None))
    begin = asyncio.run

    def signalled(loop):
        signal.raise_signal(signal.SIGTERM)
        return begin(loop)

    monkeypatch.setattr(run.asyncio, "run", signalled)
    assert run.serve(AsyncEngine("tiny-shakespeare", num_gpu_blocks_override=40), settings, run.bound(settings)) == 0
    assert "stopped; 0 prompts answered" in capsys.readouterr().err
