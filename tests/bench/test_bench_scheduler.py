"""The scheduler benchmark: what it measures is what it says. No time is compared with anything: machines differ."""
import ast
import io
import json

import pytest

from paged_edu import cli
from paged_edu.bench import core_copies, scheduler


@pytest.fixture
def small(monkeypatch):
    """The whole benchmark at a size for a test."""
    monkeypatch.setattr(scheduler, "SEQUENCES", (1, 3))
    monkeypatch.setattr(scheduler, "POOLS", (100, 1000))
    monkeypatch.setattr(scheduler, "EVENT_SEQUENCES", 2)


def test_a_step_runs_every_sequence_by_one_token():
    run = scheduler.Decoding(core_copies.real_core(), 5, 40)
    for _ in range(40):
        run.step()
    assert [seq.num_tokens for r in run.scheduler.running for seq in r.live] == [scheduler.PROMPT + 1 + 40] * 5
    run.manager.check()


def test_steps(small):
    row = scheduler.measure_steps(3, 20)
    assert row["context"] == [129, 148]
    for part in ("step", "schedule", "update"):
        assert 0 < row[part]["median_us"] <= row[part]["p90_us"]
    assert row["schedule"]["median_us"] < row["step"]["p90_us"]


def test_pools(small, monkeypatch):
    monkeypatch.setattr(scheduler, "POOLS", (1000, 2000))
    result = scheduler.measure_pools(rounds=2, chunks=50)
    assert [row["blocks"] for row in result["pools"]] == [1000, 2000]
    assert all(row["allocate_ns"] > 0 and row["free_ns"] > 0 for row in result["pools"])
    assert result["ratio_largest_to_smallest"] > 0


def test_every_emitting_statement_is_taken_out():
    modules, removed = core_copies.load_copy("test", without_events=True)
    remover = core_copies.EventRemover()
    left = ast.unparse(remover.visit(ast.parse(_joined())))
    assert removed == remover.removed > 10
    assert "self.emit(" in _joined()
    assert "self.emit(" not in left
    heard = []
    run = scheduler.Decoding(modules, 2, 5)
    run.scheduler.emit = run.manager.emit = heard.append
    run.step()
    assert heard == []


def _joined() -> str:
    """The core as one text that still parses: the ``from __future__`` lines left out."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(core_copies.CORE_DIR.glob("*.py"))]
    return "\n".join(text.replace("from __future__ import annotations", "") for text in texts)


def test_a_copy_is_a_second_core_that_does_the_same():
    real, (copy, removed) = core_copies.real_core(), core_copies.load_copy("test")
    assert removed == 0
    assert set(copy) == set(real)
    assert all(copy[name] is not real[name] for name in real)
    plans = []
    for core in (real, copy, core_copies.load_copy("test_stripped", without_events=True)[0]):
        run = scheduler.Decoding(core, 3, 30)
        for _ in range(30):
            run.step()
        plans.append(str(run.scheduler.schedule()))
    assert plans[0] == plans[1] == plans[2]


def test_a_guard_with_an_else_is_refused():
    with pytest.raises(ValueError, match="line 1"):
        core_copies.EventRemover().visit(ast.parse("if self.emit is not None:\n    pass\nelse:\n    x = 1"))


def test_events(small):
    result = scheduler.measure_events(rounds=2, steps=10)
    assert result["removed_statements"] > 10
    assert all(result[key] > 0 for key in ("stripped_us", "off", "off_again", "listening", "listening_mean"))


def test_the_command_prints_and_writes_everything(small, monkeypatch, tmp_path):
    out = io.StringIO()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr(scheduler, "POOLS", (1000, 2000))
    assert cli.main(["bench", "scheduler", "--quick", "--json", str(tmp_path / "b.json")]) == 0
    result = json.loads((tmp_path / "b.json").read_text(encoding="utf-8"))
    assert [row["sequences"] for row in result["steps"]] == [1, 3]
    assert {"date", "python", "cpu_count", "paged_edu", "cpu"} <= set(result["machine"])
    text = out.getvalue()
    assert "\x1b" not in text
    assert all(f"({part})" in text for part in "abc")


def test_progress_reaches_its_end(small, monkeypatch):
    monkeypatch.setattr(scheduler, "POOLS", (1000, 2000))
    pieces = []
    scheduler.measure(True, lambda what: lambda: pieces.append(what))
    assert len(pieces) == scheduler.pieces(True)
