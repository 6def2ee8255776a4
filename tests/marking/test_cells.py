"""Which statements of a notebook a function needs."""
from __future__ import annotations

from paged_edu.marking.cells import candidates, imported_within, is_bound, sliced, statements_of, without_magic


def kept(*sources, exercise="03.a", function="slot"):
    """(source of the statements in the slice, whether it is certain) for the first candidate."""
    import ast

    found, faults = statements_of([*enumerate(sources, 1)])
    assert not faults
    piece = sliced(found, candidates(found, exercise, function)[0])
    return [ast.unparse(s.node).split("\n")[0] for s in piece.statements], piece.certain


CALL = 'passed = check("03.a", slot)'


def test_names_of_functions_are_followed_and_locals_are_not():
    slot = "def slot(table, pos):\n    engine = helper\n    return engine(pos)"
    got = kept("engine = start()\ntable = engine.table", "K = 2", "def helper(x):\n    return x * K", slot, CALL)
    assert got == (["K = 2", "def helper(x):", "def slot(table, pos):"], True)


def test_what_is_changed_on_the_way_comes_along():
    got = kept("D = {}", "D['a'] = 1", "D.update(b=2)", "other = {}", "other['a'] = 1", "def slot(): return D", "slot.cache = 3", CALL)
    assert got == (["D = {}", "D['a'] = 1", "D.update(b=2)", "def slot():", "slot.cache = 3"], True)


def test_a_slice_that_may_lack_something_says_so():
    assert kept("L = []", "for i in range(3): L.append(i)", "def slot(): return L", CALL)[1] is True
    assert kept("L = []", "M = L", "M.append(1)", "def slot(): return L", CALL)[1] is False
    assert kept("L = []", "fill(L)", "def slot(): return L", CALL)[1] is False
    assert kept("L = []", "def slot(): return L", "print(slot())", CALL)[1] is True


def test_comprehensions_classes_decorators_and_defaults():
    slot = "@f.cache\ndef slot(a=M):\n    return [N for _ in range(a)], Base"
    got = kept("N = 3", "M = 4", "import functools as f", "class Base: pass", slot, CALL)
    assert got[0] == ["N = 3", "M = 4", "import functools as f", "class Base:", "@f.cache"]


def test_calls_of_check_in_all_their_forms():
    found, _ = statements_of([
        (1, "def slot(): pass\nother = slot"), (2, 'assert check("03.a", slot)'), (3, 'if not viz.check("03.a", function=other): print()'),
        (4, 'check("03.b", slot)\nmanager.check()\ncheck()\ncheck(name, slot)\ncheck("03.a")'), (5, "def later(): check('03.a', slot)"),
    ])
    assert [(c.cell, c.expression) for c in candidates(found, "03.a", "slot")] == [(2, "slot"), (3, "other")]
    assert candidates(found, "07.a", "slot") == [], "a notebook of another lesson"
    found, _ = statements_of([(1, "def slot(): pass"), (2, 'check("03.b", allocate)')])
    assert [(c.cell, c.end) for c in candidates(found, "03.a", "slot")] == [(1, len(found))], "without a call: as it is at the end"
    assert candidates(found, "03.c", "other") == []


def test_cells_that_are_no_python():
    found, faults = statements_of([(1, "%matplotlib inline\n!ls\nx = 1"), (2, "%%bash\nls"), (3, "def f("), (4, "x = '\0'"), (5, "y = 2 % x\n?y")])
    assert [s.cell for s in found] == [1, 5]
    assert [*faults] == [3, 4]
    assert without_magic("%%time\nx = 1") == "\nx = 1"


def test_ipython_within_python():
    assert without_magic("for i in x:\n    %time f(i)\n    !ls \\\n  -l\n%%x?\nf??") == "for i in x:\n    f(i)\n    pass\n\n\n"
    assert without_magic("a, b[0] = !ls\nt = %timeit -o f()\n%time x = f()\n%time") == "a, b[0] = None\nt = None\nx = f()\n"
    assert without_magic("\n  def f(): pass\n  g?") == "\ndef f(): pass\n"
    kept = "y = (x\n  % 3)\nz = \"\"\"\n!a\n%b\nc?\f\n\"\"\""
    assert without_magic(f"{kept}\n%time") == f"{kept}\n"


def test_methods_and_registered_functions_come_along():
    got = kept("class A: pass", "setattr(A, 'f', 3)", "@h.register\ndef _(x: int): pass", "h.register(list)(print)", "def slot(): return A, h", CALL)
    assert got[0] == ["class A:", "setattr(A, 'f', 3)", "@h.register", "h.register(list)(print)", "def slot():"]


def test_an_answer_below_the_call():
    found, _ = statements_of([(1, "def slot(): raise NotImplementedError"), (2, CALL), (3, "def slot(): return 3")])
    assert [(c.cell, c.end) for c in candidates(found, "03.a", "slot")] == [(3, 3), (2, 1)]


def test_check_under_another_name():
    found, _ = statements_of([(1, "from paged_edu.viz.check import check as c"), (2, "def f(): pass"), (3, 'c("03.a", f)')])
    assert [(c.cell, c.expression) for c in candidates(found, "03.a", "slot")] == [(3, "f")]


def test_whether_a_whole_run_could_help():
    found, _ = statements_of([(1, "exec('a')"), (2, CALL)])
    assert is_bound(found, candidates(found, "03.a", "slot")[0])
    found, _ = statements_of([(1, "a = 1"), (2, CALL), (3, "def slot(): pass")])
    assert [is_bound(found, candidate) for candidate in candidates(found, "03.a", "slot")] == [True, False]


def test_imports_of_functions():
    found, _ = statements_of([(1, "import a\ndef f():\n    import b.c\n    from d import e\n    from . import g")])
    assert imported_within(found) == ["b.c", "d"]
