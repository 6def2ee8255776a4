"""The known faults of servers, by number: streams of several choices, limits, templates, errors in the engine, malformed requests, framing."""
import asyncio
import json

import httpx
import openai
import pytest
import torch
from async_driving import Held, fake
from serving import TALK, TEMPLATE, events, scripted, serving
from test_engine import make
from tiny_tokenizers import tiny

from paged_edu import AsyncEngine
from paged_edu.sampling.sampler import BrokenLogitsError
from paged_edu.server import service as service_module

IDS = [5, 6, 7]


def stream(served, path="/v1/completions", **body):
    answer = served.post(path, {"model": "fake", "stream": True} | body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return events(answer.text)


def test_each_choice_of_a_stream_ends_once(monkeypatch):
    """known fault B110"""
    tokenizer = tiny("byte-level")
    a, b = tokenizer("cat")["input_ids"][0], tokenizer("mat")["input_ids"][0]
    end = 0
    scripts = [[a, end], [b, a, b, a, b], [a, b, end]]
    with serving(scripted(monkeypatch, scripts, tokenizer, eos=[end]), stream_interval=0) as served:
        found = stream(served, prompt=IDS, n=3, max_tokens=5)
        assert found.count("[DONE]") == 1
        assert found[-1] == "[DONE]"
        reasons, ended = {}, set()
        for chunk in map(json.loads, found[:-1]):
            (choice,) = chunk["choices"]
            assert choice["index"] not in ended
            if choice["finish_reason"]:
                ended.add(choice["index"])
                reasons[choice["index"]] = choice["finish_reason"]
        assert reasons == {0: "stop", 1: "length", 2: "stop"}


def test_max_tokens_is_an_upper_bound_everywhere(monkeypatch, tmp_path):
    """known fault B112: more than there is room for is clamped, on both endpoints."""
    tokenizer = tiny("byte-level")
    template = tmp_path / "t"
    template.write_text("{{ messages[0].content }}")
    text = "the cat sat on the mat"
    length = len(tokenizer(text)["input_ids"])
    engine = scripted(monkeypatch, [[9]], tokenizer, max_model_len=length + 6)
    engine._thread.engine.runner.prompt_len = length
    with serving(engine, chat_template=str(template)) as served:
        for path, given in (("completions", {"prompt": text}), ("chat/completions", {"messages": [{"role": "user", "content": text}]})):
            def ask(path=path, given=given, **more):
                return served.post(f"/v1/{path}", {"model": "fake"} | given | more)

            for more in ({"max_tokens": 100}, {"max_tokens": 6}, {"max_tokens": None}, {}):
                answer = ask(**more).json()
                assert answer["usage"]["completion_tokens"] == 6, (path, more)
                assert answer["choices"][0]["finish_reason"] == "length"
            long = ask(**({"prompt": text * 2} if path == "completions" else {"messages": [{"role": "user", "content": text * 2}]}))
            assert long.status_code == 400
            assert "the prompt has" in long.json()["error"]["message"]
            assert f"max_model_len is {length + 6}" in long.json()["error"]["message"]
            low = ask(max_tokens=-1)
            assert low.status_code == 400
            assert "max_tokens must be at least 1, not -1" in low.json()["error"]["message"]


def test_without_a_chat_template_a_chat_is_a_400(tmp_path):
    """known fault B115"""
    engine = AsyncEngine("tiny-shakespeare", num_gpu_blocks_override=32)
    template = tmp_path / "t"
    template.write_text(TEMPLATE)
    chat, completion = {"model": "tiny-shakespeare", "messages": TALK, "max_tokens": 1}, {"model": "tiny-shakespeare", "prompt": "x", "max_tokens": 1}
    with serving(engine, close=False) as served:
        for more in ({}, {"stream": True}):
            answer = served.post("/v1/chat/completions", chat | more)
            assert answer.status_code == 400
            assert "no chat template: ask /v1/completions, or give the server one with --chat-template" in answer.json()["error"]["message"]
        assert served.post("/v1/completions", completion).status_code == 200
    with serving(engine, chat_template=str(template)) as served:
        assert served.post("/v1/chat/completions", chat).status_code == 200


@pytest.fixture
def held(monkeypatch):
    """A fake engine whose steps a test holds and breaks: ``(served, core, held)``."""
    monkeypatch.setattr(service_module, "PROBES", (0.01, 0.01))
    core = make(num_blocks=64)
    engine, held = fake(monkeypatch, core), Held(core)
    with serving(engine, stream_interval=0) as served:
        yield served, core, held
        held.release()


async def together(served, held, count, stream, during):
    """``count`` requests that all run when ``during`` is called; their answers."""
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
        held.hold()
        body = {"model": "fake", "prompt": IDS, "max_tokens": 5, "stream": stream}
        tasks = [asyncio.create_task(client.post("/v1/completions", json=body | {"seed": i})) for i in range(count)]
        while served.service.in_flight < count or not held.inside.is_set():
            await asyncio.sleep(0.002)
        await asyncio.to_thread(during)
        held.release()
        return await asyncio.gather(*tasks)


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_in_the_engine_reaches_everybody_and_health(held, stream):
    """known fault B120"""
    served, _, steps = held

    def break_it():
        steps.errors = [None] + [RuntimeError("no memory: a secret path")] * 10_000      # the step that is held began before

    answers = asyncio.run(together(served, steps, 3, stream, break_it))
    for answer in answers:
        assert "secret" not in answer.text
        assert "Traceback" not in answer.text
        if answer.status_code == 200:
            last = json.loads(events(answer.text)[-1])
            assert (last["error"]["type"], last["error"]["code"]) == ("server_error", "engine_failed")
        else:
            assert answer.status_code in (500, 503), answer.text
            assert answer.json()["error"]["type"] in ("server_error", "overloaded_error")
    with served.http() as client:
        health = client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "failed")
        refused = client.post("/v1/completions", json={"model": "fake", "prompt": IDS})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert refused.json()["error"]["code"] == "engine_failed"
        steps.errors = []                                   # it works again: a probe finds out
        while client.get("/health").status_code != 200:
            pass
        assert client.post("/v1/completions", json={"model": "fake", "prompt": IDS}).status_code == 200


def test_an_error_of_one_request_is_its_own(held):
    """known fault B120"""
    served, core, steps = held

    def break_one():
        first = next(iter(core.scheduler.requests))
        steps.errors = [None, BrokenLogitsError([first])]

    answers = asyncio.run(together(served, steps, 3, False, break_one))
    assert sorted(answer.status_code for answer in answers) == [200, 200, 500]
    (error,) = [answer.json()["error"] for answer in answers if answer.status_code == 500]
    assert error["code"] == "request_aborted"
    with served.http() as client:
        assert client.get("/health").json()["status"] == "ok"


BODIES = [
    b"{", b"", b"[]", b"null", b'"x"', b"\xff", b'{"model": NaN}', b"[" * 100_000, b'{"n": ' + b"9" * 10_000 + b"}",
    {"messages": "hi"}, {"model": "fake"}, {"model": "nope", "prompt": "x"}, {"model": "fake", "prompt": 5}, {"model": "fake", "prompt": [1], "n": 0},
    {"model": "fake", "prompt": [1], "max_tokens": -1}, {"model": "fake", "prompt": [1], "temperature": "hot"}, {"model": "fake", "prompt": []},
    {"model": "fake", "prompt": [[]]}, {"model": "fake", "prompt": [-1]}, {"model": "fake", "prompt": [10**9]}, {"model": "fake", "prompt": [True]},
    {"model": "fake", "prompt": ["a", 1]}, {"model": "fake", "prompt": "\ud800"}, {"model": "fake", "prompt": [1], "stop": "\ud800"},
    {"model": "fake", "prompt": [1], "\ud800": 1}, {"model": "\ud800", "prompt": [1]}, {"model": "fake", "prompt": [1], "logit_bias": {"x": 1}},
    {"model": "fake", "prompt": [1], "logit_bias": {"1": 1e999}}, {"model": "fake", "prompt": [1], "seed": 1.5},
    {"model": "fake", "prompt": [1], "stop": [""]}, {"model": "fake", "prompt": [1], "temperature": float("nan")},
    {"model": "fake", "prompt": [1], "stream": "yes"}, {"model": "fake", "prompt": [1], "n": 10**30}, {"model": "fake", "prompt": [1], "best_of": 2},
    {"model": "fake", "prompt": [1], "priority": 1}, {"model": "fake", "prompt": [1], "cache_salt": ""}, {"model": "fake", "prompt": [1] * 64},
    {"model": "fake", "prompt": [1], "beam_width": 0}, {"model": "fake", "prompt": [1], "logprobs": 3}, {"model": "fake", "prompt": "no tokenizer"},
    {"model": "fake", "prompt": [1], "stream_options": 3, "stream": True}, {"model": "fake", "prompt": [1], "user": "x" * 1000},
]


def test_malformed_requests_are_errors_in_openais_form(monkeypatch):
    """known fault B121"""
    with serving(fake(monkeypatch, make())) as served, served.http() as client:
        for body in BODIES:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            for path in ("/v1/completions", "/v1/chat/completions"):
                answer = client.post(path, content=content, headers={"content-type": "application/json"})
                assert answer.status_code in (400, 404, 422), (path, body, answer.text)
                error = answer.json()["error"]
                assert isinstance(error["message"], str)
                assert error["message"]
                assert isinstance(error["type"], str)
                assert {"param", "code"} <= set(error)
                assert "Traceback" not in answer.text
                assert len(error["message"]) < 500
        assert client.post("/v1/completions", json={"model": "nope", "prompt": "x"}).status_code == 404
        assert client.post("/v1/completions", content=b"x=1", headers={"content-type": "text/plain"}).status_code == 415
        assert client.get("/v1/nothing").json()["error"]["type"] == "not_found_error"
        assert client.get("/v1/completions").status_code == 405
        assert client.post("/v1/completions", json={"model": "fake", "prompt": [1]}).status_code == 200


NO_NUMBER = [float("nan"), float("inf"), float("-inf")]
SAMPLING = [
    *({name: value} for value in NO_NUMBER for name in (
        "temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")),
    *({"beam_width": 2, "length_penalty": value} for value in NO_NUMBER),
    {"temperature": -0.1}, {"top_p": 1.01}, {"top_p": -0.1}, {"min_p": 1.5}, {"repetition_penalty": 0}, {"top_k": -2}, {"n": 0}, {"max_tokens": -5},
    {"seed": "x"}, {"prompt": [999_999]}, {"prompt": [-1]}, {"logit_bias": {"999999": 1}}, {"logit_bias": {"abc": 1}},
    {"stop_token_ids": [999_999]},
]


def test_sampling_parameters_that_cannot_be_name_their_field(monkeypatch):
    """known faults B50, B57"""
    with serving(fake(monkeypatch, make())) as served, served.http() as client:
        for wrong in SAMPLING:
            body = json.dumps({"model": "fake", "prompt": IDS} | wrong)
            answer = client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
            assert answer.status_code == 400, (wrong, answer.text)
            assert answer.json()["error"]["type"] == "invalid_request_error"
            assert answer.json()["error"]["param"] == list(wrong)[-1], answer.text
        assert client.post("/v1/completions", json={"model": "fake", "prompt": IDS}).status_code == 200


def test_tokens_that_cannot_be_have_a_finite_logprob():
    """known fault B64: all but three tokens have a probability of 0."""
    def strict(text):
        return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))

    engine = AsyncEngine("tiny-shakespeare", num_gpu_blocks_override=32)
    model = engine.llm.engine.runner.model
    whole = model.logits
    model.logits = lambda hidden: whole(hidden).index_fill(-1, torch.arange(3, engine.vocab_size), -torch.inf)
    with serving(engine) as served:
        body = {"model": "tiny-shakespeare", "prompt": IDS, "max_tokens": 2, "logprobs": 5, "echo": True, "ignore_eos": True}
        answer = served.post("/v1/completions", body)
        assert answer.status_code == 200
        chunks = events(served.post("/v1/completions", body | {"stream": True}).text)[:-1]
        for found in (strict(answer.text), *map(strict, chunks)):
            tops = [top for choice in found["choices"] if choice.get("logprobs") for top in choice["logprobs"]["top_logprobs"] if top]
            assert all(list(top.values()).count(-9999.0) >= 2 for top in tops)
            assert found in map(strict, chunks) or len(tops) == len(IDS) - 1 + 2


@pytest.mark.parametrize("text", ['a\n\ndata: x\u2028"q"', "\r\n\r\n", "größer, 你好 🔥 [DONE]"])
def test_events_are_one_line_of_json_each(monkeypatch, text):
    """known fault B122"""
    tokenizer = tiny("byte-level")
    ids = tokenizer(text)["input_ids"]
    with serving(scripted(monkeypatch, [ids], tokenizer), stream_interval=0) as served:
        found = stream(served, prompt=IDS, max_tokens=len(ids))
        assert found[-1] == "[DONE]"
        assert "".join(json.loads(event)["choices"][0]["text"] for event in found[:-1]) == text
        assert all(event.isascii() for event in found)
        whole = served.post("/v1/completions", {"model": "fake", "prompt": IDS, "max_tokens": len(ids)})
        assert whole.json()["choices"][0]["text"] == text


def test_an_error_in_a_stream_is_its_last_event(monkeypatch):
    """known fault B122"""
    monkeypatch.setattr(service_module, "PROBES", (0.01, 0.01))
    tokenizer = tiny("byte-level")
    engine = scripted(monkeypatch, ["the cat sat on the mat"], tokenizer)
    steps = Held(engine._thread.engine)
    with serving(engine, stream_interval=0) as served:
        steps.errors = [None, None, RuntimeError("broken")]
        found = [json.loads(event) for event in stream(served, prompt=IDS, max_tokens=8)]
        assert "error" in found[-1]
        assert [len(chunk["choices"]) for chunk in found[:-1]] == [1] * (len(found) - 1)
        steps.errors = [None, None, RuntimeError("broken")]
        while not served.service.healthy:
            pass
        with served.openai() as client, pytest.raises(openai.APIError, match="the engine failed"):
            for _ in client.completions.create(model="fake", prompt=IDS, max_tokens=8, stream=True):
                pass
        while not served.service.healthy:
            pass
