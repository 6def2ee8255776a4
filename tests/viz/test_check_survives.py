"""`check` never raises and never hangs, whatever the function does; it says what happened, and leaves nothing running."""
from __future__ import annotations

import subprocess
import sys
import threading
import time
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from solutions import NAMES, solution

from paged_edu.core.kv_manager import AllocStatus
from paged_edu.viz import exercises
from paged_edu.viz.check import check
from paged_edu.viz.exercises import guard
from paged_edu.viz.exercises.exercise import cases_of


class Hostile:
    """An object whose every special method fails."""

    def _fail(self, *args, **options):
        raise RuntimeError("hostile")

    __eq__ = __hash__ = __str__ = __iter__ = __len__ = __bool__ = __index__ = _fail

    def __repr__(self):
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("hostile")
        return "Hostile()"                                  # for the reports of the test's own tools


class Liar(int):
    """Equal to everything."""

    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    __hash__ = int.__hash__


class Nameless(type):
    @property
    def __name__(cls):
        raise RuntimeError("no name")


class BadError(Exception, metaclass=Nameless):
    def __str__(self):
        raise ValueError("no text either")


def raiser(error):
    def function(*args):
        raise error

    return function


def endless_list(*args):
    while True:
        yield 1


def digits(*args):
    return 10 ** 10_000


WEIRD = {
    "hostile": lambda *args: Hostile(), "liar": lambda *args: Liar(3), "endless list": endless_list, "digits": digits,
    "nan": lambda *args: float("nan"), "infinity": lambda *args: float("inf"), "none": lambda *args: None, "bytes": lambda *args: b"x",
    "text": lambda *args: "<script>alert(1)</script>", "array": lambda *args: np.arange(3), "tensor": lambda *args: torch.arange(3),
    "matrix": lambda *args: np.zeros((2, 2)), "arguments": lambda *args: [args], "class": lambda *args: int, "complex": lambda *args: 1j,
    "no arguments": lambda: 1, "keywords only": lambda *, x: 1, "exit": lambda *args: sys.exit(3), "interrupt": raiser(KeyboardInterrupt()),
    "generator exit": raiser(GeneratorExit()), "stop": raiser(StopIteration()), "bad error": raiser(BadError()),
    "recursion": lambda *args: WEIRD["recursion"](*args), "function": lambda *args: time.sleep,
    "no function": 7, "hostile function": Hostile(), "nothing": None, "a class": int, "a type": type, "a builtin": print, "bad class": BadError,
}


@pytest.mark.parametrize("name", NAMES)
def test_weird_functions_are_not_yet(name, capsys):
    for what, function in WEIRD.items():
        assert check(name, function) is False, what
    out = capsys.readouterr().out
    assert out.count(f"✗ {name} · not yet: ") == len(WEIRD)
    assert "Traceback" not in out


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner), max_leaves=6,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(NAMES), value=values, error=st.sampled_from([None, ValueError, KeyError, SystemExit, MemoryError]))
def test_any_answer_and_any_error(name, value, error, capsys):
    def function(*args):
        if error is not None:
            raise error()
        return value

    assert check(name, function) in (True, False)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(NAMES), answers=st.lists(values, min_size=1, max_size=4))
def test_answers_that_change_from_call_to_call(name, answers, capsys):
    calls = iter(range(10**9))
    right = solution(name)

    def function(*args):
        i = next(calls)
        return answers[i % len(answers)] if i % 3 else right(*args)

    assert check(name, function) in (True, False)


def swallow_everything(*args):
    while True:
        try:  # noqa: SIM105
            sum(range(10))
        except BaseException:
            pass


def catches_errors(*args):
    while True:
        try:  # noqa: SIM105
            sum(range(10))
        except Exception:
            pass


def plain_loop(*args):
    while True:
        pass


@pytest.mark.parametrize("function", [plain_loop, catches_errors, swallow_everything])
def test_an_endless_loop_is_given_up(function, capsys, monkeypatch):
    monkeypatch.setattr(guard, "TIME_LIMIT", 0.3)
    before = threading.active_count()
    start = time.monotonic()
    assert check("03.a", function) is False
    assert time.monotonic() - start < 10
    out = capsys.readouterr().out
    assert "does not come to an end" in out
    assert "slot(table=[5], pos=0, B=4)" in out
    for _ in range(100):
        if threading.active_count() == before:
            break
        time.sleep(0.05)
    assert threading.active_count() == before, "its thread is gone"


def test_a_call_that_cannot_be_stopped_is_left_behind(capsys, monkeypatch):
    """Not even another thread can end a sleep; check comes back all the same, and the next check works."""
    limit = guard.TIME_LIMIT
    monkeypatch.setattr(guard, "TIME_LIMIT", 0.2)
    monkeypatch.setattr(guard, "PATIENCE", 0.2)
    start = time.monotonic()
    assert check("03.a", lambda table, pos, B: time.sleep(6)) is False
    assert time.monotonic() - start < 5
    monkeypatch.setattr(guard, "TIME_LIMIT", limit)
    assert check("03.a", solution("03.a")) is True
    capsys.readouterr()
    time.sleep(max(0.0, 6.5 - (time.monotonic() - start)))


def test_slow_on_every_input(capsys, monkeypatch):
    monkeypatch.setattr("paged_edu.viz.exercises.exercise.WHOLE_LIMIT", 0.5)
    assert check("03.a", lambda table, pos, B: time.sleep(0.1)) is False
    assert "far too slow" in capsys.readouterr().out


def test_prints_are_kept_for_the_card_and_do_not_flood_the_cell(capsys):
    def chatty(table, pos, B):
        print("looking at", pos)
        print("x" * 10_000, file=sys.stderr)
        return 0

    assert check("03.a", chatty) is False
    captured = capsys.readouterr()
    assert "printed: looking at 0 xxx" in captured.out
    assert len(captured.out) < 1500
    assert captured.err == ""
    print("still here")
    assert capsys.readouterr().out == "still here\n"


def test_a_function_that_changes_its_arguments_is_told_so(capsys):
    cases = [case.args for case in cases_of(exercises.find("07.b"))]

    def destructive(chains):
        order = solution("07.b")(chains)
        chains.clear()
        return order

    assert check("07.b", destructive) is False
    assert "it changes its arguments: [[4]] became []" in capsys.readouterr().out
    assert [case.args for case in cases_of(exercises.find("07.b"))] == cases, "the inputs are copies"


def test_answers_of_other_types_that_mean_the_same(capsys):
    assert check("00.a", lambda n, size: np.int64(-(-n // size)))
    assert check("00.a", lambda n, size: torch.tensor(-(-n // size)))
    assert check("05.a", lambda running, waiting, places: tuple(waiting[: places - len(running)]))
    assert check("08.a", lambda seq, free, size: np.bool_(-(-seq.num_tokens // size) <= free))
    assert check("11.a", lambda requests: np.mean([request.seconds / request.tokens for request in reversed(requests)]))
    assert check("11.a", lambda requests: torch.tensor([request.seconds / request.tokens for request in requests]).mean())
    assert check("11.c", lambda slots, reserved, tokens, step: Fraction(slots // reserved, tokens) / Fraction(str(step)))

    def allocate(free, num_blocks, n):
        answer = solution("03.b")(free, num_blocks, n)
        return AllocStatus(answer) if isinstance(answer, str) else np.array(answer, dtype=int)

    assert check("03.b", allocate)


@pytest.mark.parametrize(("function", "words"), [
    (lambda n, size: float(-(-n // size)), "it returned 1.0, a float, and a whole number was wanted: `//` divides integers"),
    (lambda n, size: n / size, "it returned 0.3125, a float, and a whole number was wanted: what is to be done with the rest?"),
    (lambda n, size: None, "is a `return` missing?"), (lambda n, size: True, "it returned True, and a whole number was wanted"),
    (lambda n, size: [1], "it returned a value of type `list`"), (lambda n: 1, "TypeError"), (lambda n, size: 1 // 0, "ZeroDivisionError: "),
])
def test_wrong_types_are_explained(function, words, capsys):
    assert check("00.a", function) is False
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(("value", "words"), [
    (None, "is a `return` missing?"), (True, "a value of type `bool`"), ("0.5", "a value of type `str`"), (1j, "a value of type `complex`"),
    ([0.5], "a value of type `list`"), (np.array([0.5]), "a value of type `ndarray`"), (float("nan"), "it returned nan"),
    (10**400, "it returned inf, and a number was wanted that is not infinite"),
])
def test_what_is_no_number_is_explained(value, words, capsys):
    assert check("11.a", lambda requests: value) is False
    assert words in capsys.readouterr().out


def test_numbers_are_compared_within_a_millionth(capsys):
    right = solution("11.a")
    assert check("11.a", lambda requests: right(requests) * (1 + 5e-7))
    assert not check("11.a", lambda requests: right(requests) * (1 + 5e-6))


@pytest.mark.parametrize("name", ["14.a", "03.z", "", "03", 3, None])
def test_an_unknown_exercise_is_not_yet(name, capsys):
    assert check(name, max) is False
    assert "not yet: there " in capsys.readouterr().out


def test_a_reader_who_stops_the_cell_stops_it():
    code = (
        "import _thread, threading, paged_edu.viz.check as c\n"
        "threading.Timer(0.5, _thread.interrupt_main).start()\n"
        "def slot(table, pos, B):\n    while True: pass\n"
        "try:\n    c.check('03.a', slot)\nexcept KeyboardInterrupt:\n    print('stopped', threading.active_count())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("stopped"), done
    assert done.returncode == 0


def test_works_without_jupyter_and_imports_none(capsys):
    code = (
        "import sys\n"
        "for name in ('ipywidgets', 'IPython', 'anywidget', 'plotly'): sys.modules[name] = None\n"
        "from paged_edu.viz.check import *\n"
        "assert check('03.a', lambda table, pos, B: table[pos // B] * B + pos % B)\n"
        "print(predict('p', 'How many?', 'blocks'), reveal('p', 3), quiz('03'), hint('03.a'), drill('03.a'), sep='\\n')\n"
        "assert predict('p', 'How many?')._repr_mimebundle_().keys() == {'text/html', 'text/plain'}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Measured: 3 blocks." in done.stdout
    code = "import sys, paged_edu, paged_edu.viz.check; print({'IPython', 'ipywidgets', 'plotly', 'anywidget', 'torch'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120).stdout == "set()\n"
