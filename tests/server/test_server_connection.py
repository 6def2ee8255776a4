"""What clients may do to a connection: odd heads, offers of other protocols, HTTP/1.0, pipelines, bodies that the end of the server overtakes."""
import asyncio
import json
import socket
import time
from contextlib import contextmanager

import httpx
import pytest
from serving import events, serving

from paged_edu.server import connection
from paged_edu.server.connection import MAX_HEAD

ASK = {"model": "fake", "prompt": [5, 6, 7], "max_tokens": 6}
UPGRADE = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"


def post(body, version="1.1", headers=""):
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/{version}\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n{headers}\r\n"
    return head.encode() + data


@contextmanager
def connected(served):
    with socket.create_connection(("127.0.0.1", int(served.url.rsplit(":", 1)[1])), timeout=20) as raw:
        yield raw


def told(served, *sent):
    """What comes back until the server closes: its last head, and the body."""
    with connected(served) as raw:
        for part in sent:
            raw.sendall(part)
            time.sleep(0.05)
        found = b""
        try:
            while part := raw.recv(65536):
                found += part
        except ConnectionResetError:                        # it had more to read
            pass
    head, _, body = found.rpartition(b"\r\n\r\n") if not found.endswith(b"\n\n") else found.partition(b"\r\n\r\n")
    return head.decode(), body.decode()


@pytest.mark.parametrize("sent", [
    b"\x16\x03\x01 hello\r\n\r\n", b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n", b"GET /\xc3\xa9 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
])
def test_what_is_no_http_is_an_error_object(held, sent):
    with serving(held[0]) as served:
        head, body = told(served, sent)
    assert head.startswith("HTTP/1.1 400 ")
    assert json.loads(body)["error"]["code"] == "invalid_http"


def test_a_head_has_an_end(held):
    with serving(held[0]) as served:
        begin = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
        for more in (b"X: " + b"a" * 2**20, b"X: a\r\n" * 2**17):
            head, body = told(served, begin, more)
            assert head.startswith("HTTP/1.1 431 ")
            assert json.loads(body)["error"]["code"] == "headers_too_large"
        head, _ = told(served, begin, b"Connection: close\r\nX: " + b"a" * (MAX_HEAD // 2), b"\r\n\r\n")
        assert head.startswith("HTTP/1.1 200 ")
        large = ASK | {"prompt": [1] * 60_000}              # larger than a head may be, and begun heads after it
        head, body = told(served, post(large) + b"GET /hea", b"lth HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert "HTTP/1.1 200 " in head
        assert json.loads(body)["status"] == "ok"


@pytest.mark.parametrize("sent", [b"", b"GET /hea", None])
def test_a_head_that_does_not_come_is_not_waited_for(held, monkeypatch, sent):
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.3)
    with serving(held[0]) as served:
        with connected(served) as raw:
            if sent is None:                                # of the second request
                raw.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                found = b""
                while b"ok" not in found:
                    found += raw.recv(65536)
                time.sleep(0.5)
                sent = b"GET /hea"
            raw.sendall(sent)
            answer = b"".join(iter(lambda: raw.recv(65536), b"")).decode()
        assert answer.startswith("HTTP/1.1 408 ")
        assert json.loads(answer.partition("\r\n\r\n")[2])["error"]["code"] == "headers_timeout"
        held[1].pause = 0.02                                # an answer may take longer, with something of the next head behind it
        with connected(served) as raw:
            raw.sendall(post(ASK | {"max_tokens": 40}) + b"GET /hea")
            answer = b"".join(iter(lambda: raw.recv(65536), b"")).decode()
        assert answer.startswith("HTTP/1.1 200 ")
        assert "headers_timeout" in answer.split("HTTP/1.1 408 ")[1]


def test_an_offer_of_another_protocol_is_declined_and_the_body_read(held):
    with serving(held[0]) as served:
        wanted = served.post("/v1/completions", ASK).json()["choices"]
        request = post(ASK, headers=UPGRADE)
        for parts in ([request], [request[:-20], request[-20:]]):
            head, body = told(served, *parts, post(ASK, headers="Connection: close\r\n"))
            assert head.count("HTTP/1.1 200 ") == 2
            assert json.loads(body)["choices"] == wanted
            assert json.dumps(wanted[0]["text"]) in head    # in the first answer's body


def test_a_client_of_http_1_0_gets_no_chunks(held):
    with serving(held[0]) as served:
        whole = served.post("/v1/completions", ASK | {"stream": True}).text
        head, body = told(served, post(ASK | {"stream": True}, version="1.0"))
        assert "transfer-encoding" not in head.lower()
        assert [json.loads(event)["choices"] for event in events(body)[:-1]] == [json.loads(event)["choices"] for event in events(whole)[:-1]]
        head, body = told(served, post(ASK, version="1.0"))
        assert f"content-length: {len(body)}" in head
        assert json.loads(body)["choices"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("later", [False, True])
def test_a_client_with_a_pipeline_that_goes_is_noticed(held, stream, later):
    engine, steps = held
    steps.pause = 0.02
    with serving(engine, stream_interval=0) as served:
        with connected(served) as raw:
            raw.sendall(post(ASK | {"max_tokens": 40, "stream": stream}) + (b"" if later else post(ASK)))
            while not engine.num_running_requests:
                time.sleep(0.002)
            if later:
                raw.sendall(post(ASK))
                time.sleep(0.05)
        served.nothing_left()
        assert (served.service.stats.dropped, served.service.stats.finished) == (1, 0)


def test_prompts_that_have_ended_do_not_wait(held):
    """One long prompt and three short ones: until the long one ends all four are in flight, and none of them waits."""
    engine, steps = held

    async def main(served):
        async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
            steps.pause = 0.01
            task = asyncio.create_task(client.post("/v1/completions", json=ASK | {"prompt": [[1] * 60] * 3 + [[5]], "max_tokens": 60}))
            while served.service.stats.finished < 3:
                assert not task.done(), task.result().text
                await asyncio.sleep(0.002)
            assert served.service.in_flight == 4
            steps.hold()
            await steps.reached()
            others = [asyncio.create_task(client.post("/v1/completions", json=ASK)) for _ in range(4)]
            while served.service.in_flight < 8:
                await asyncio.sleep(0.002)
                assert not any(other.done() for other in others)
            assert (await client.post("/v1/completions", json=ASK)).status_code == 429
            steps.release()
            assert [answer.status_code for answer in await asyncio.gather(task, *others)] == [200] * 5
            assert served.service._ended == 0

    with serving(engine, max_queue=4, max_prompts=4) as served:
        asyncio.run(main(served))


def test_a_body_on_its_way_is_refused_when_the_server_stops(held):
    with serving(held[0], drain_timeout=600) as served, connected(served) as raw:
        raw.sendall(post(ASK)[:-5])
        time.sleep(0.1)
        served.nothing_left()
        begin = time.monotonic()
        served.service.drain()
        served.server.should_exit = True
        answer = b"".join(iter(lambda: raw.recv(65536), b"")).decode()
        assert answer.startswith("HTTP/1.1 503 ")
        assert json.loads(answer.partition("\r\n\r\n")[2])["error"]["code"] == "draining"
        assert time.monotonic() - begin < 5
