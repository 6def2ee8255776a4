"""tests/gpu/run_cells.py, which runs the lessons on a GPU machine without Jupyter: what it takes, and what it says of a lesson that fails.

And how long tests/gpu/run.sh, which calls it, may take.
"""
import importlib.util
import json
import re
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "gpu" / "run_cells.py"


@pytest.fixture
def run_cells():
    spec = importlib.util.spec_from_file_location("run_cells", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lesson(folder, name, *sources):
    cells = [{"cell_type": "markdown", "source": ["# Text"]}, *({"cell_type": "code", "source": source.splitlines(True)} for source in sources)]
    (folder / name).write_text(json.dumps({"cells": cells}), encoding="utf-8")


def test_cells_may_await_and_share_one_event_loop(run_cells, tmp_path, capsys):
    """Lesson 10 does: an engine that one cell starts is asked by the next."""
    lesson(tmp_path, "00_a.ipynb",
           "import asyncio\nqueue = asyncio.Queue()",
           "loop = asyncio.get_running_loop()\ntask = asyncio.create_task(queue.get())\nawait asyncio.sleep(0)",
           "print('not shown')\nasync def three():\n    for i in range(3):\n        yield i",
           "found = []\nasync for i in three():\n    found.append(i)\nawait queue.put(5)",
           "assert await task == 5\nassert found == [0, 1, 2]\nassert asyncio.get_running_loop() is loop")
    assert run_cells.main(str(tmp_path / "out.txt"), tmp_path) == 0
    said = capsys.readouterr().out
    assert said.startswith("00_a.ipynb: 5 cells, ")
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == said


def test_a_lesson_that_fails_is_named_with_its_cell_and_the_others_run(run_cells, tmp_path, capsys):
    lesson(tmp_path, "00_a.ipynb", "x = 1", "x\nassert x == 2, 'no'")
    lesson(tmp_path, "01_b.ipynb", "import asyncio\nawait asyncio.sleep(0)\n1 / 0")
    lesson(tmp_path, "02_c.ipynb", "assert 'x' not in globals()")
    assert run_cells.main(folder=tmp_path) == 2
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "00_a.ipynb: AssertionError in code cell 2, line 2: no"
    assert second == "01_b.ipynb: ZeroDivisionError in code cell 1, line 3: division by zero"
    assert third.startswith("02_c.ipynb: 1 cells, ")


def test_what_has_run_is_written_when_a_later_lesson_is_ended(run_cells, tmp_path):
    lesson(tmp_path, "00_a.ipynb", "1")
    lesson(tmp_path, "01_b.ipynb", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        run_cells.main(str(tmp_path / "out.txt"), tmp_path)
    assert (tmp_path / "out.txt").read_text(encoding="utf-8").startswith("00_a.ipynb: 1 cells, ")


def test_the_parts_together_stay_under_8_minutes():
    """With what is left for unpacking wheels, and for ending what does not end by itself."""
    script = SCRIPT.with_name("run.sh").read_text(encoding="utf-8")
    limits = [int(limit) for limit in re.findall(r"^part \w+ (\d+) ", script, re.MULTILINE)]
    grace = int(re.search(r"timeout -k (\d+) ", script).group(1))
    assert len(limits) == 4
    assert sum(limits) + len(limits) * grace + 20 <= 8 * 60
    assert len(set(re.findall(r"\$OUT/([\w.]+)", script))) == 4


def test_every_lessons_cells_compile(run_cells, monkeypatch, capsys):
    """None needs what only Jupyter understands."""
    monkeypatch.setattr(run_cells, "eval", lambda code, names: None, raising=False)
    monkeypatch.setattr(run_cells.asyncio, "Runner", Idle)
    assert run_cells.main() == 0
    assert len(capsys.readouterr().out.splitlines()) == 14


class Idle:
    """An event loop that runs nothing."""

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def run(self, result):
        assert result is None
