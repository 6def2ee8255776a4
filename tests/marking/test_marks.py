"""Marking: the solutions get every point, the lessons as shipped none, wrong answers their sentence; only code counts, and the best try."""
from __future__ import annotations

import csv
import io
import json

import pytest
from handed_in import ALLOCATE, CALL, CALL_B, CHECK, ROOT, SLOT, SOLUTIONS, found, marked, write

from paged_edu import cli
from paged_edu.marking import report
from paged_edu.marking.judge import ABSENT, CRASHED, NOT_YET, PASS
from paged_edu.marking.marks import course, mark_all
from paged_edu.viz import exercises

NAMES = [exercise.name for exercise in course([])]


def test_the_solutions_get_every_point():
    (row,) = marked(SOLUTIONS)
    assert [name for name, mark in row.marks.items() if mark.found.status != PASS] == []
    assert [*row.marks] == NAMES
    assert {part: row.points(part) for part in ("class", "home", "extra")} == report.totals([row]) == {"class": 14, "home": 13, "extra": 2}
    assert row.race == "policy and manager"


def test_the_lessons_as_shipped_are_not_begun():
    """Each of them, although one shows a policy of its own to `check`, and ``solutions`` lies in a folder beside them."""
    (row,) = marked(ROOT / "notebooks")
    for name, mark in row.marks.items():
        assert mark.found.status == NOT_YET, (name, mark.found)
        assert mark.found.sentence == f"`{exercises.find(name).signature}` is yours to write."
        assert mark.notebook.startswith(name[:2])
    assert row.race == "not yet"


WRONG = {
    "03.a": ("def slot(table, pos, B):\n    return pos + table[0] * B", CALL, "contiguous"),
    "03.b": ("def allocate(free, num_blocks, n):\n    if n > num_blocks:\n        return 'never'\n    got = []\n    for _ in range(n):\n"
             "        if not free:\n            return 'later'\n        got.append(free.pop(0))\n    return got", CALL_B, None),
    "06.b": ("def beam_step(tables, counts, free, parents):\n    return [tables[p] for p in parents]", 'check("06.b", beam_step)', None),
    "13.a": ("class MyPolicy:\n    def order(self, waiting):\n        return sorted(waiting, key=lambda r: r.prompt_tokens)\n\n"
             "    def victim(self, running):\n        return running[-1]", 'check("13.a", MyPolicy)', "a long prompt is passed"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_gets_the_sentence_of_the_check(tmp_path, name):
    """The same words as in the notebook, where the function is called without a pipe in between."""
    code, call, words = WRONG[name]
    mark = found(write(tmp_path / "x.ipynb", CHECK, code, call), name)
    space: dict[str, object] = {}
    exec(code, space)
    exercise = exercises.find(name)
    verdict = exercises.exercise.examine(exercise, space[exercise.function_name])
    assert (mark.status, "not yet: " + mark.sentence, mark.details) == (NOT_YET, verdict.headline, verdict.details)
    assert words is None or words in mark.sentence


def test_only_code_counts(tmp_path):
    """No stored output, no variable, no `check` of one's own."""
    path = write(tmp_path / "x.ipynb", "check = lambda name, fn: True\nslot = None", CALL)
    mark = found(path, "03.a")
    assert (mark.status, mark.sentence) == (NOT_YET, "`slot` must be a function, and this is NoneType.")
    path = write(tmp_path / "y.ipynb", "def check(name, fn):\n    print('✓ pass')\n    return True", SLOT.replace("pos % B", "pos"), CALL)
    assert found(path, "03.a").status == NOT_YET


def test_helpers_constants_and_imports_come_along_and_lessons_do_not(tmp_path):
    path = write(
        tmp_path / "x.ipynb", CHECK, "%matplotlib inline\nimport math as m\nfrom functools import *", "raise RuntimeError('a view')",
        "while True:\n    serve = 1", "ONE = 1\nnames = {}\nnames['one'] = ONE", "def part(a, b):\n    return m.floor(a / b) * names['one']",
        "@lru_cache\ndef rest(a, b):\n    import numpy\n    return int(numpy.mod(a, b))",
        "slot = lambda table, pos, B: table[part(pos, B)] * B + rest(pos, B)", CALL,
    )
    assert found(path, "03.a").status == PASS


@pytest.mark.parametrize("cells", [
    ["from __future__ import annotations", SLOT.replace("table, pos, B", "table: List[Block], pos: int, B: int", 1)],
    ["def slot(table, pos, B):\n    raise NotImplementedError", CALL, SLOT],
    [SLOT + "\nfiles = !ls\nfor _ in range(2):\n    %time slot([1], 0, 1)\nslot?"],
], ids=["annotations of the future", "below the call", "magic"])
def test_what_works_in_a_notebook_works_here(tmp_path, cells):
    assert found(write(tmp_path / "x.ipynb", CHECK, *cells, *([] if CALL in cells else [CALL])), "03.a", seconds=1e20).status == PASS


@pytest.mark.parametrize("cells", [
    ["seen = []", "other = seen\nother.append(1)", SLOT + " + (seen != [1])"],
    ["exec('''" + SLOT + "''')"],
    ["1 / 0", "exec('help_me = divmod')", "def slot(table, pos, B):\n    i, j = help_me(pos, B)\n    return table[i] * B + j"],
    ["import asyncio\n\nawait asyncio.sleep(0)\nZERO = await asyncio.sleep(0, 0)", SLOT + " + ZERO"],
], ids=["filled elsewhere", "exec", "a helper by exec, after an error", "await"])
def test_the_whole_notebook_is_run_where_a_part_may_not_do(tmp_path, cells):
    assert found(write(tmp_path / "x.ipynb", CHECK, *cells, CALL), "03.a").status == PASS


def test_the_best_of_several_tries_counts(tmp_path):
    wrong = SLOT.replace("pos % B", "pos")
    better = SLOT.replace("def slot", "def better")
    assert found(write(tmp_path / "a" / "x.ipynb", CHECK, wrong, CALL, better, 'check("03.a", better)'), "03.a").status == PASS
    assert found(write(tmp_path / "b" / "x.ipynb", CHECK, wrong, CALL, SLOT, CALL), "03.a").status == PASS
    assert found(write(tmp_path / "c" / "x.ipynb", SLOT), "03.a").status == PASS, "without a call of check"
    write(tmp_path / "d" / "1.ipynb", CHECK, wrong, CALL)
    write(tmp_path / "d" / "2.ipynb", CHECK, SLOT, CALL)
    (row,) = marked(tmp_path / "d", "03")
    assert (row.marks["03.a"].found.status, row.marks["03.a"].notebook, row.marks["03.b"].found.status) == (PASS, "2.ipynb", ABSENT)
    write(tmp_path / "e" / "x.ipynb", CHECK, wrong, CALL)
    write(tmp_path / "e" / "solutions" / "03_solutions.ipynb", CHECK, SLOT, CALL)
    assert found(tmp_path / "e", "03.a").status == NOT_YET, "what `paged-edu lab` copies is not the student's"


def test_answers_of_many_types(tmp_path):
    """What readers take and what they complain about, through the pipe as without it."""
    for i, (answer, words) in enumerate({
        "numpy.int64(table[pos // B] * B + pos % B)": None, "numpy.array(table[pos // B] * B + pos % B)": None, "Fraction(1, 2)": "type `Fraction`",
        "float(pos)": "a float", "[pos]": "type `list`", "(x for x in [pos])": "type `generator`", "10 ** 10_000": "", "slot": "type `function`",
    }.items()):
        code = f"import numpy\nfrom fractions import Fraction\ndef slot(table, pos, B):\n    return {answer}"
        path = write(tmp_path / str(i) / "x.ipynb", code, CALL)
        mark = found(path, "03.a")
        assert mark.status == (PASS if words is None else NOT_YET), (answer, mark)
        assert words is None or words in "".join(mark.details) + mark.sentence


# -- the command ---------------------------------------------------------------------------------------------------------------------------
def test_a_class_in_the_terminal_and_in_files(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    write(tmp_path / "class" / "anna" / "03.ipynb", CHECK, SLOT, CALL, ALLOCATE, CALL_B)
    write(tmp_path / "class" / "=bert" / "a" / "03.ipynb", CHECK, "def slot(table, pos, B):\n    return '\\x1b[31m[bold]red'", CALL)
    (tmp_path / "class" / "cleo").mkdir()
    files = ["--json", str(tmp_path / "m.json"), "--csv", str(tmp_path / "m.csv")]
    assert cli.main(["mark", str(tmp_path / "class"), "--lessons", "3", *files]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "anna" in out
    assert "✓✓" in out
    assert "there is no notebook in the folder" in out
    content = json.loads((tmp_path / "m.json").read_text())
    anna, bert, cleo = (next(s for s in content["students"] if s["name"] == name) for name in ("anna", "=bert", "cleo"))
    assert anna["points"] == {"class": 1, "home": 1}
    assert [bert["marks"][name]["status"] for name in ("03.a", "03.b")] == [NOT_YET, ABSENT]
    assert cleo["problems"] == ["there is no notebook in the folder"]
    lines = list(csv.reader(io.StringIO((tmp_path / "m.csv").read_text())))
    assert lines[0] == ["student", "class (of 1)", "home (of 1)", "03.a", "03.b"]
    assert sorted(lines[1:]) == [["'=bert", "0", "0", NOT_YET, ABSENT], ["anna", "1", "1", PASS, PASS], ["cleo", "0", "0", ABSENT, ABSENT]]


@pytest.mark.parametrize(("argv", "parts"), [
    (["nowhere"], ["nowhere", "no such file"]),
    (["{}"], ["no notebook", "{}"]),
    (["{}/notes.txt"], ["notes.txt", ".ipynb"]),
    (["{}", "--lessons", "77"], ["'77'", "00, 01"]),
    (["{}", "--timeout", "0"], ["--timeout", "above 0"]),
    (["{}", "--timeout", "soon"], ["--timeout", "'soon'"]),
    (["{}", "--csv", "/no/such/folder/x.csv"], ["--csv", "/no/such/folder"]),
    (["{}", "--csv", "{}/x", "--json", "{}/x"], ["--json and --csv both write"]),
    ([], ["PATH"]),
])
def test_bad_input_is_one_line(tmp_path, capsys, argv, parts):
    (tmp_path / "notes.txt").write_text("")
    code = cli.main(["mark", *(arg.format(tmp_path) for arg in argv)])
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert all(part.format(tmp_path) in err for part in parts), err


def test_a_lesson_that_nobody_touched_is_judged_once(tmp_path, monkeypatch):
    from paged_edu.marking import judge

    calls = []
    original = judge.mark
    monkeypatch.setattr(judge, "mark", lambda exercise, *rest: (calls.append(exercise.name), original(exercise, *rest))[1])
    for name in ("anna", "bert"):
        write(tmp_path / name / "03.ipynb", CHECK, SLOT, CALL)
    rows = mark_all([tmp_path], ["03"])
    assert calls == ["03.a", "03.b"]
    assert [row.marks["03.a"].found.status for row in rows] == [PASS, PASS]
    assert CRASHED not in {row.marks["03.b"].found.status for row in rows}
