"""Azure's trace format: real timestamps, any order, what cannot be served is counted, what cannot be read is named with its line."""
from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paged_edu.sim import traces
from paged_edu.sim.traces import read_trace

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
ROWS = ("2023-11-16 18:15:46.6805900,374,44\r\n", "2023-11-16 18:15:50.9951690,396,109\r\n", "2023-11-16 18:16:46.6805900,879,55")


def write(tmp_path, text, name="trace.csv"):
    file = tmp_path / name
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


def test_azures_rows(tmp_path):
    found = read_trace(write(tmp_path, HEADER + "".join(ROWS)), 2048)
    assert [(a.prompt_tokens, a.output_tokens) for a in found.arrivals] == [(374, 44), (396, 109), (879, 55)]
    assert [a.time for a in found.arrivals] == [pytest.approx(t, abs=2e-6) for t in (0, 4.314579, 60)]
    assert (found.num_rows, found.skipped, found.seconds) == (3, {}, 60)
    assert found.rate == pytest.approx(3 / 60)


def test_order_extra_columns_and_empty_lines_do_not_matter(tmp_path):
    text = ("\ufeffid, GeneratedTokens ,TIMESTAMP,ContextTokens\n3,55,2023-11-16 18:16:46.6805900,879\n\n"
            "1,44,2023-11-16T18:15:46.680590+00:00,374\n2,109,2023-11-16 19:15:50.995169+01:00,396\n")
    assert read_trace(write(tmp_path, text), 2048) == read_trace(write(tmp_path, HEADER + "".join(ROWS), "other.csv"), 2048)


def test_a_part_of_it_faster(tmp_path):
    file = write(tmp_path, HEADER + ROWS[2] + "\n" + ROWS[0] + ROWS[1])             # the last one first: its window opens too late
    found = read_trace(file, 2048, limit_seconds=30, rate_scale=2)
    assert [a.time for a in found.arrivals] == [0, pytest.approx(4.314579 / 2, abs=2e-6)]
    assert (found.num_rows, found.seconds) == (2, pytest.approx(4.314579 / 2, abs=2e-6))
    whole = read_trace(file, 2048)
    assert [a.time for a in whole.at_rate(0.5)] == [pytest.approx(a.time / 10) for a in whole.arrivals]


def test_what_cannot_be_served_is_counted(tmp_path):
    rows = ["2023-11-16 18:15:47,5,0", "2023-11-16 18:15:48,0,5", "2023-11-16 18:15:49,90,11", "2023-11-16 18:15:50,90,10", "2023-11-16 18:15:51,1,0"]
    found = read_trace(write(tmp_path, HEADER + "\n".join(rows)), 100)
    assert [(a.time, a.prompt_tokens, a.output_tokens) for a in found.arrivals] == [(3.0, 90, 10)]
    assert found.skipped == {"no answer": 2, "no prompt": 1, "longer than 100 tokens": 1}
    assert found.num_rows == 5


@pytest.mark.parametrize(("text", "message"), [
    ("", "no column TIMESTAMP and no column ContextTokens"), ("TIMESTAMP,ContextTokens\n", r"trace.csv: no column GeneratedTokens; its first line"),
    (ROWS[0] + ROWS[1], "no column TIMESTAMP"), (HEADER + ROWS[0] + "yesterday,1,1", r"trace.csv, line 3: TIMESTAMP .*'yesterday'"),
    (HEADER + "2023-11-16 18:15:47,1.5,1", r"line 2: ContextTokens must be a whole number .*'1.5'"),
    (HEADER + "2023-11-16 18:15:47,1,-1", r"line 2: GeneratedTokens .*'-1'"), (HEADER + "2023-11-16 18:15:47,1,", r"line 2: GeneratedTokens .*''"),
    (HEADER + "2023-11-16 18:15:47,1", "line 2: 2 of 3 columns"), (HEADER + "2023-11-16 18:15:47,1,²", "'²'"),
    (HEADER + "2023-11-16 18:15:47,9999999999999999999999,1", "line 2: ContextTokens"), (HEADER.encode() + b"\xff\xfe", "not UTF-8"),
    (HEADER + '"2023-11-16 18:15:47,1,1', r"line 2: unexpected end of data"),
])
def test_what_cannot_be_read_is_named(tmp_path, text, message):
    with pytest.raises(ValueError, match=message) as caught:
        read_trace(write(tmp_path, text), 2048)
    assert "\n" not in str(caught.value)


def test_limits_are_checked(tmp_path, monkeypatch):
    file = write(tmp_path, HEADER + "".join(ROWS))
    for options, message in (({"max_model_len": 1}, "max_model_len"), ({"rate_scale": 0}, "rate_scale must be above 0"),
                             ({"limit_seconds": -1}, "limit_seconds must be above 0")):
        with pytest.raises(ValueError, match=message):
            read_trace(file, **({"max_model_len": 2048} | options))
    monkeypatch.setattr(traces, "MOST_ROWS", 2)
    with pytest.raises(ValueError, match="more than 2 requests"):
        read_trace(file, 2048)
    assert read_trace(file, 2048, limit_seconds=10).num_rows == 2
    with pytest.raises(FileNotFoundError):
        read_trace(tmp_path / "none.csv", 2048)
    with pytest.raises(ValueError, match="1 request in 0 s: that is no rate"):
        _ = read_trace(write(tmp_path, HEADER + ROWS[0]), 2048).rate


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 60), st.integers(0, 60)), max_size=30), st.integers(1, 300), st.randoms())
@settings(max_examples=60, deadline=None)
def test_any_order_gives_the_same_and_nothing_is_lost(tmp_path_factory, rows, limit, random):
    folder = tmp_path_factory.mktemp("traces")

    def read(rows):
        lines = [f"2024-05-10 00:{s // 60:02}:{s % 60:02},{p},{o}\n" for s, p, o in rows]
        return read_trace(write(folder, HEADER + "".join(lines)), 100, limit_seconds=limit)

    straight = sorted(rows, key=lambda row: row[0])
    mixed = random.sample(straight, len(straight))
    found = read(mixed)
    first = straight[0][0] if rows else 0
    kept = [row for row in straight if row[0] - first <= limit]
    assert len(found.arrivals) + sum(found.skipped.values()) == found.num_rows == len(kept)
    assert sorted((a.time, a.prompt_tokens, a.output_tokens) for a in found.arrivals) == sorted(
        (s - first, p, o) for s, p, o in kept if p and o and p + o <= 100)
    assert [a.time for a in found.arrivals] == sorted(a.time for a in found.arrivals)
