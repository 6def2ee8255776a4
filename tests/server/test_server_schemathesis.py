"""Schemathesis over the OpenAPI document: whatever is sent, there is no 5xx, and every error is in OpenAI's form."""
from collections import Counter

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from serving import TEMPLATE, serving

from paged_edu import AsyncEngine


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    template = tmp_path_factory.mktemp("chat") / "template.jinja"
    template.write_text(TEMPLATE)
    engine = AsyncEngine("tiny-shakespeare", num_gpu_blocks_override=32, max_model_len=48)
    with serving(engine, chat_template=str(template), served_model_name=("m",)) as served:
        yield served


def without_contradictions(body):
    """Fields that the document allows one by one and that do not go together, or not with this server."""
    for name in ("use_beam_search", "beam_width", "length_penalty", "early_stopping", "best_of", "priority", "stream_options", "top_logprobs",
                 "logit_bias", "min_tokens", "cache_salt", "stop_token_ids", "max_completion_tokens"):
        body.pop(name, None)
    if "prompt" in body:
        body["prompt"] = "ROMEO:"
    for name, most in (("n", 4), ("max_tokens", 3), ("repetition_penalty", 1e6), ("temperature", 1e6)):
        if isinstance(body.get(name), int | float):
            body[name] = min(body[name], most)


@pytest.mark.slow
@pytest.mark.parametrize(("path", "method"), [
    ("/v1/completions", "POST"), ("/v1/chat/completions", "POST"), ("/v1/models", "GET"), ("/v1/models/{name}", "GET"), ("/health", "GET"),
    ("/metrics", "GET"),
])
def test_no_5xx(served, path, method):
    operation = schemathesis.openapi.from_url(f"{served.url}/openapi.json")[path][method]
    statuses = Counter()
    modes = list(schemathesis.GenerationMode) if method == "POST" else [schemathesis.GenerationMode.POSITIVE]
    for mode in modes:
        @settings(max_examples=50, deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=True)
        @given(case=operation.as_strategy(generation_mode=mode))
        def run(case):
            if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
                case.body["model"] = "m"                    # else nothing but 404 would be seen
                if statuses.total() % 2:
                    without_contradictions(case.body)
            answer = case.call(base_url=served.url)
            statuses[answer.status_code] += 1
            case.validate_response(answer, checks=[not_a_server_error])
            if answer.status_code >= 400:
                assert answer.json()["error"]["message"]

        run()
    if method == "POST":
        assert statuses[200] > 10, statuses
    assert max(statuses) < 500
    assert statuses[400 if method == "POST" else 404 if "{" in path else 200] > 0
