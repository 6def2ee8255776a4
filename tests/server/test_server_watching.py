"""What a running server shows: /metrics, /health, the OpenAPI document, and the live page, which listens only while somebody looks."""
import json
import re
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families
from serving import serving

from paged_edu import AsyncEngine
from paged_edu.core.kv_manager import MemoryReport
from paged_edu.server.metrics import Histogram

ASK = {"model": "tiny-shakespeare", "prompt": "ROMEO:\nBut soft, what light through yonder window breaks?", "max_tokens": 30, "ignore_eos": True}


@pytest.fixture(scope="module")
def served():
    with serving(AsyncEngine("tiny-shakespeare", num_gpu_blocks_override=14, block_size=4, swap_space=0.001), stream_interval=0) as served:
        three = {"prompt": [[i] * 20 for i in (1, 2, 3)], "max_tokens": 12}
        for more in ({}, {"stream": True}, {"n": 2, "max_tokens": 6}, three, {"prompt": [5] * 6, "n": 2}):
            assert served.post("/v1/completions", ASK | more).status_code == 200
        yield served


def metrics(served):
    with served.http() as client:
        answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    return {family.name: family for family in text_string_to_metric_families(answer.text)}


def test_metrics(served):
    families = metrics(served)
    assert all(name.startswith("paged_edu_") and family.documentation for name, family in families.items())

    def value(name, **labels):
        (sample,) = [s for f in families.values() for s in f.samples if s.name == f"paged_edu_{name}" and labels.items() <= s.labels.items()]
        return sample.value

    assert value("healthy") == 1
    assert value("requests_in_flight") == value("requests_running") == value("requests_waiting") == value("requests_swapped") == 0
    assert value("requests_total", end="finished") == 7
    assert value("generated_tokens_total") >= 23 + 23 + 12 + 36
    assert value("prompt_tokens_total") == 6 + 60 + 3 * served.post("/v1/completions", ASK | {"max_tokens": 1}).json()["usage"]["prompt_tokens"]
    assert value("cached_prompt_tokens_total") > 0
    assert value("copied_blocks_total") > 0
    assert value("preemptions_total", kind="recompute") > 0
    assert value("preemptions_total", kind="swap") == value("swapped_blocks_total", direction="out") == 0
    assert value("prefix_hits_total") <= value("prefix_queries_total")
    assert sum(value("kv_blocks", state=state) for state in ("used", "cached", "free")) == 14
    assert sum(value("kv_slots", part=part) for part in ("token_states", "reservation", "internal", "external")) == 56
    assert value("kv_usage_ratio") == value("kv_waste_ratio") == 0
    for name, count in (("time_to_first_token_seconds", 7), ("request_seconds", 7), ("queue_seconds", 7)):
        assert value(f"{name}_count") == count
        assert value(f"{name}_bucket", le="+Inf") == count
        assert value(f"{name}_sum") > 0
    assert value("inter_token_seconds_count") >= 22 + 22 + 10 + 33
    assert value("http_requests_total", method="POST", path="/v1/completions", status="200") == 5


@pytest.mark.parametrize("path", ["/", "/health", "/metrics", "/v1/models", "/v1/models/tiny-shakespeare", "/live.js"])
def test_head_is_get_without_a_body(served, path):
    with served.http() as client:
        got, head = client.get(path), client.head(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"] == got.headers["content-type"]
        assert client.head("/live").status_code == client.head("/v1/completions").status_code == 405
        assert client.head("/nowhere").status_code == 404


def test_a_histogram():
    histogram = Histogram((0.1, 1.0))
    for seconds, times in ((0.05, 1), (0.1, 2), (0.5, 1), (7, 1)):
        histogram.add(seconds, times)
    assert histogram.buckets() == [("0.1", 3.0), ("1.0", 4.0), ("+Inf", 5.0)]
    assert (histogram.count, histogram.sum) == (5, pytest.approx(7.75))


def test_waste():
    from paged_edu.server.metrics import Snapshot

    report = MemoryReport(total=100, token_states=30, reservation=15, internal=5, external=50, num_sequences=1)
    assert Snapshot(report, 0, 0, 0, 25, 4, 0, 0).waste == 0.4


def test_the_openapi_document(served):
    with served.http() as client:
        document = client.get("/openapi.json").json()
    assert {"/v1/completions", "/v1/chat/completions", "/v1/models", "/health", "/metrics"} <= set(document["paths"])
    fields = document["components"]["schemas"]["CompletionRequest"]["properties"]
    assert {"beam_width", "priority", "logit_bias", "stream_options", "echo"} <= set(fields)
    assert all(field.get("description") or "stream_options" in name for name, field in fields.items())
    assert document["components"]["schemas"]["CompletionRequest"]["additionalProperties"] is False


def test_the_page_and_its_script_ask_nobody_else(served):
    with served.http() as client:
        page, script = client.get("/"), client.get("/live.js")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    for text in (page.text, script.text):
        assert not re.search(r"https?://(?!www\.w3\.org/)", text)
    assert "$live.start({ pool: $pool, timeline: $timeline });" in script.text


def test_live_events_begin_with_the_state_and_hide_what_people_write(served):
    messages = []
    with served.http() as client, client.stream("GET", "/live") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if not line.startswith("data: "):
                continue
            messages.append(json.loads(line[6:]))
            if len(messages) == 1:
                assert served.between_steps(lambda core: len(core._listeners)) == 1
                served.post("/v1/completions", ASK | {"prompt": "What's in a name?", "max_tokens": 5})
            if any(event[0] == "RequestFinished" for message in messages for event in message.get("events", ())):
                break
    first, *rest = messages
    assert (first["kind"], {message["kind"] for message in rest}) == ("reset", {"events"})
    assert [pane["module"] for pane in first["panes"]] == ["pool", "timeline"]
    assert first["tracks"][0]["header"]["num_blocks"] == 14
    assert first["numbers"]["blocks"] == 14
    events = [event for message in rest for event in message["events"]]
    tokens = {token for event in events if event[0] in ("RequestAdded", "TokensSampled") for token in event[3 if event[0] == "RequestAdded" else 2]}
    assert tokens == {0}
    assert all(message.get("words") == {} for message in messages)
    assert {token for seq in first["tracks"][0]["header"]["state"]["entries"] for token in seq[3]} <= {0}
    until = time.monotonic() + 20
    while served.between_steps(lambda core: len(core._listeners)):      # nobody looks any more
        assert time.monotonic() < until
        time.sleep(0.01)
    assert served.post("/v1/completions", ASK | {"max_tokens": 2}).status_code == 200


def test_with_log_prompts_the_page_shows_words_and_without_a_page_there_is_none():
    engine = AsyncEngine("tiny-shakespeare", num_gpu_blocks_override=14)
    with serving(engine, close=False, log_prompts=True) as served, served.http() as client, client.stream("GET", "/live") as answer:
        seen = ""
        for line in answer.iter_lines():
            message = json.loads(line[6:]) if line.startswith("data: ") else {"kind": ""}
            if message["kind"] == "reset":
                served.post("/v1/completions", ASK | {"prompt": "What's in a name?", "max_tokens": 2})
            seen += "".join(message.get("words", {}).values())
            if "name" in seen:
                break
    with serving(engine, no_page=True) as served, served.http() as client:
        assert client.get("/").status_code == client.get("/live").status_code == 404
