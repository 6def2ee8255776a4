"""The streams' benchmark compares the same texts; no time is compared with anything."""
import pytest

from paged_edu.bench import streams


def test_both_sides_do_the_same(monkeypatch):
    result = streams.measure(streams=3, tokens=4, rounds=2)
    assert (result["streams"], result["tokens"], result["rounds"]) == (3, 4, 2)
    assert min(value for key, value in result.items() if "ratio" in key or "per_s" in key) > 0
    monkeypatch.setattr(streams.LLM, "generate", lambda self, prompts, *args, **options: [])
    with pytest.raises(RuntimeError, match="texts are not those"):
        streams.measure(streams=2, tokens=2, rounds=0)
