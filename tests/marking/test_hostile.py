"""Notebooks that mean harm, or are broken: each is reported, none hurts another, and nothing of them is left running."""
from __future__ import annotations

import sys
import time

import psutil
import pytest
from handed_in import ALLOCATE, CALL, CALL_B, CHECK, SLOT, found, marked, write

from paged_edu.marking.judge import ABSENT, CRASHED, NOT_YET, PASS, TOO_LONG
from paged_edu.marking.marks import mark_all

FORK = """
import os
def start():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execlp('sleep', 'sleep', '98765')
        os._exit(0)
    return 0
ZERO = start()
"""
STEAL = """
import gc, sys
def slot(table, pos, B):
    import paged_edu.viz.exercises.exercise as e
    import paged_edu.viz.check as c
    import paged_edu.marking.judge as j
    for module in (e, c, j):
        module.examine = lambda *a: e.Verdict(True, "pass")
    for frame in (sys._getframe(i) for i in range(3)):
        frame.f_locals.update(want=0)
    e.Outcome.same = lambda *a: True
    return -1
"""
WIPE = "import os, shutil\nZERO = [shutil.rmtree(os.path.expanduser(name), ignore_errors=True) for name in {}].count(0)\n"
LIAR = "class Liar(int):\n    __eq__ = lambda *a: True\n    __ne__ = lambda *a: False\n    __hash__ = int.__hash__\n"
FORGE = """
def slot(table, pos, B):
    import os
    for fd in range(3, 20):
        try:
            os.write(fd, b'\\x00\\x00\\x00\\x02[]')
        except OSError:
            pass
    return 0
"""


FLOOD = """
import os
def start():
    if os.fork() == 0:
        os.setsid()
        while True:
            os.write(4, b'\\0\\0\\0\\1x' * 1000)
    return 0
ZERO = start()
"""
COMET = """
import os
def start():
    if os.fork() == 0:
        os.setsid()
        for _ in range(10**5):
            if os.fork():
                os._exit(0)
        os._exit(0)
    return 0
ZERO = start()
"""


def body(text: str) -> str:
    return f"def slot(table, pos, B):\n    {text}"


HOSTILE = {
    # name -> (cells before the call, status, words of the sentence)
    "loop in the call": ([body("while True: pass")], TOO_LONG, "come to an end"),
    "loop that catches all": ([body("while True:\n        try:\n            while True: pass\n        except BaseException: pass")], TOO_LONG, ""),
    "loop in C": ([body("sum(iter(int, 1))")], TOO_LONG, "come to an end"),
    "loop at the top": (["while True:\n    slot = 1"], TOO_LONG, "after 2 seconds"),
    "sleep": (["import time\ntime.sleep(3600)\nslot = time.sleep"], TOO_LONG, "after 2 seconds"),
    "sys.exit in the call": ([body("import sys; sys.exit()")], NOT_YET, "come out differently"),
    "sys.exit at the top": (["import sys\n\nslot = sys.exit()"], CRASHED, "SystemExit"),
    "os._exit in the call": ([body("import os; os._exit(0)")], CRASHED, "exit code 0"),
    "os._exit at the top": (["import os\n\nslot = os._exit(7)"], CRASHED, "exit code 7"),
    "killed": ([body("import os, signal; os.kill(os.getpid(), 9)")], CRASHED, "signal 9"),
    "its parent's killer": ([body("import os; os.kill(-os.getpgrp(), 9)")], CRASHED, "signal 9"),
    "patched check": ([STEAL], NOT_YET, "come out differently"),
    "arguments that are a tree without end": (
        [body("tree = []\n    for _ in range(60): tree = [tree, tree]\n    table[:] = [tree]\n    return 0")], NOT_YET, "come out differently"),
    "an answer that equals everything": ([LIAR + body("return Liar(-1)")], NOT_YET, "come out differently"),
    "forged answers": ([FORGE], CRASHED, "it sends"),
    "forged all the time": (
        ["import os\n" + body("while True: os.write(4, b'\\0\\0\\0\\x0c[\"value\",0,0]' * 1000)")], CRASHED, "it sends"),
    "forged by a child": ([FLOOD + SLOT + " + ZERO"], CRASHED, "it sends"),
    "a group of errors": ([body("raise ExceptionGroup('x', [ValueError()])")], NOT_YET, "come out differently"),
    "forged at loading": ([FORGE.replace("[]", "{}") + "slot = [slot(1, 2, 3)][0]"], CRASHED, "it sends"),
    "a type with a strange name": (["slot = type('a \\x1b b', (), {})()"], NOT_YET, "must be a function, and this is"),
    "an error with a strange name": (["Bad = type('a \\x1b b', (Exception,), {})\n" + body("raise Bad")], NOT_YET, "come out differently"),
    "prints": ([body("print('x' * 10**7); import os; os.write(1, b'y' * 10**7); return -1")], NOT_YET, "come out differently"),
    "a large answer": ([body("return ['x' * 10**6] * 10**6")], NOT_YET, ""),
    "a deep answer": (["deep = []\nfor _ in range(10**5):\n    deep = [deep]", body("return deep")], NOT_YET, "come out differently"),
    "all memory": ([body("return bytearray(2**40)")], NOT_YET, "come out differently"),
    "syntax error": (["def slot(table, pos, B)\n    return 1"], CRASHED, "cell 2 is no Python: expected ':' (line 1)"),
    "not defined": (["pass"], CRASHED, "`slot` is not there"),
    "an error before": (["x = 1 / 0\n", "def slot(table, pos, B, x=x): pass"], CRASHED, "cell 2 raises ZeroDivisionError"),
    "reads input": ([body("return input()")], NOT_YET, "come out differently"),
    "deletes files": ([WIPE.format(("~", ".")) + SLOT + " + ZERO"], PASS, ""),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_reported(tmp_path, name):
    cells, status, words = HOSTILE[name]
    before = {*psutil.Process().children(recursive=True)}
    mark = found(write(tmp_path / "x.ipynb", CHECK, *cells, CALL), "03.a", seconds=2 if "2 seconds" in words else 60)
    assert (mark.status, words in mark.sentence) == (status, True), mark
    assert before >= {*psutil.Process().children(recursive=True)}, "nothing is left running"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process can hide")
def test_what_it_started_is_killed(tmp_path):
    mark = found(write(tmp_path / "x.ipynb", FORK + SLOT + " + ZERO", CALL), "03.a")
    assert mark.status == PASS
    left = [p.pid for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "98765"]]
    assert left == []


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process can hide")
def test_who_only_forks_and_ends_is_killed(tmp_path):
    """No process lives for as long as it takes to look at all; their group is what is killed."""
    assert found(write(tmp_path / "x.ipynb", COMET + SLOT + " + ZERO", CALL), "03.a").status == PASS
    seen = [p.pid for _ in range(20) for p in psutil.process_iter(["cmdline"]) if "paged_edu.marking.worker" in (p.info["cmdline"] or ())]
    assert seen == []


def test_the_others_get_their_marks(tmp_path):
    """Files are read before anything runs, so one who deletes the class's folder, as far as it can, changes no mark."""
    good = (CHECK, SLOT, CALL, ALLOCATE, CALL_B)
    write(tmp_path / "anna" / "03.ipynb", *good)
    write(tmp_path / "bert" / "03.ipynb", WIPE.format((str(tmp_path),)) + SLOT + " + ZERO", CALL, "import os\nos._exit(1)", ALLOCATE, CALL_B)
    write(tmp_path / "cleo" / "03.ipynb", *good)
    (tmp_path / "dora").mkdir()
    (tmp_path / "dora" / "03.ipynb").write_text("no JSON")
    (tmp_path / "emil").mkdir()
    for name, content in (("a", "[1]"), ("b", '{"cells": 3}'), ("c", '{"cells": [{"cell_type": "code", "source": [3]}]}'), ("d", "[" * 10**6)):
        (tmp_path / "emil" / f"{name}.ipynb").write_text(content)
    (tmp_path / "emil" / "e.ipynb").mkdir()
    (tmp_path / "emil" / "f.ipynb").symlink_to("f.ipynb")
    (tmp_path / "fritz").mkdir()
    rows = {row.student.name: row for row in mark_all([tmp_path], ["03"], 20)}
    statuses = {name: [mark.found.status for mark in row.marks.values()] for name, row in rows.items()}
    assert statuses == {
        "anna": [PASS, PASS], "bert": [PASS, PASS], "cleo": [PASS, PASS], "dora": [ABSENT] * 2, "emil": [ABSENT] * 2, "fritz": [ABSENT] * 2,
    }
    assert rows["dora"].student.problems == ["03.ipynb cannot be read: it is not JSON"]
    assert rows["fritz"].student.problems == ["there is no notebook in the folder"]
    assert [problem.rpartition(": ")[2] for problem in rows["emil"].student.problems] == [
        "it has no cells", "it has no cells", "cell 1 has no text", "it is not JSON", "it is no ordinary file"]


def test_a_worker_sees_no_secrets_and_no_files(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "a secret")
    look = "import os\nZERO = len(os.listdir('.')) + len(os.listdir(os.path.expanduser('~'))) + len(os.environ.get('HF_TOKEN', ''))\n"
    assert found(write(tmp_path / "x.ipynb", look + SLOT + " + ZERO", CALL), "03.a").status == PASS


def test_a_policy_that_hangs_is_over_soon(tmp_path):
    start = time.monotonic()
    code = "class MyPolicy:\n    def order(self, waiting):\n        while True: pass\n    def victim(self, running):\n        return running[-1]"
    (row,) = marked(write(tmp_path / "x.ipynb", code), "13", seconds=5)
    assert row.marks["13.a"].found.status == TOO_LONG
    assert time.monotonic() - start < 60
