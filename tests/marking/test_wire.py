"""Answers over the pipe: what arrives is what was sent, or a stand-in that counts for the same; rubbish is refused."""
from __future__ import annotations

import io
import math
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paged_edu.marking import wire
from paged_edu.viz.exercises.readers import integer, number


def sent(value, given=()):
    return wire.decode(wire.Encoder().encode(value, [*given]), [*given])


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.integers() | st.text() | st.tuples(st.text()), inner)
    | st.sets(st.integers()) | st.frozensets(st.text()),
)


@given(plain)
def test_plain_data_arrives_as_it_was(value):
    got = sent(value)
    assert got == value
    assert type(got) is type(value)


def test_identity_of_lists_is_kept():
    row = [1]
    got = sent(([row, row, [1]], {"a": row}))
    assert got[0][0] is got[0][1] is got[1]["a"]
    assert got[0][2] is not got[0][0]
    loop = []
    loop.append(loop)
    got = sent(loop)
    assert got[0] is got


def test_objects_that_were_given_come_back_as_themselves():
    given = [object(), object()]
    numbered = wire.objects_in(([given[0]], {"a": (given[1], 3, None, "x", np.arange(3))}))
    assert {*map(id, numbered)} == {*map(id, given)}
    got = sent([given[1], given[0]], given)
    assert got[0] is given[1]
    assert got[1] is given[0]


def test_numbers_of_numpy_and_torch():
    for value in (np.int64(3), np.float32(0.5), np.bool_(True), np.arange(6).reshape(2, 3), np.array(math.nan)):
        got = sent(value)
        assert np.array_equal(got, value, equal_nan=getattr(value, "dtype", np.dtype(int)).kind == "f")
    for tensor in (torch.arange(4), torch.tensor(2.5, dtype=torch.bfloat16), torch.zeros(2, 0, 3)):
        got = sent(tensor)
        assert torch.equal(got, tensor)
        assert got.dtype == tensor.dtype


def test_other_objects_count_for_the_same():
    class Five:
        def __index__(self):
            return 5

    @dataclass(frozen=True)
    class Key:
        tokens: tuple

    class Color(Enum):
        RED = 1

    assert integer(sent(Five())) == 5
    assert number(sent(Decimal("0.25"))) == 0.25
    assert type(sent(Color.RED)).__name__ == "Color"
    assert list(sent(iter([1, 2]))) == [1, 2]
    encoder = wire.Encoder()
    one, same, other = (wire.decode(encoder.encode(Key(tokens), []), []) for tokens in ((1,), (1,), (2,)))
    assert {one: "found"}.get(same) == "found"
    assert one != other
    with pytest.raises(TypeError):
        hash(sent(type("Plain", (), {"__eq__": lambda *a: True})()))


def test_what_is_too_large_is_refused_before_it_is_sent():
    with pytest.raises(ValueError, match="more than"):
        wire.Encoder().encode([[0] * 1000] + [list(range(1000)) for _ in range(1000)], [])
    for value in (["x" * 10**6] * 100, [np.zeros(150_000)] * 2, [torch.zeros(150_000)] * 2, [1 << 90_000] * 100):
        with pytest.raises(ValueError, match="more than"):
            wire.Encoder().encode(value, [])
    assert len(sent(list(range(20_000)))) == len(list(sent(iter(range(10**9))))) == wire.MOST_ITEMS


@pytest.mark.parametrize("payload", [
    b"", b"{", b"{}", b'["z", 1]', b'["r", 0]', b'["o", 3]', b'["i", "zz"]', b'["n", "object", [1], [1]]', b'["T", "Tensor", [1], [1]]', b"[" * 10**5,
    b'["d", [["l"], 1]]', b'["x"]', b'["n", "float64", [7], [1]]', b"[]", b'["s", ["l"]]', b"\xff",
])
def test_rubbish_is_refused(payload):
    with pytest.raises(wire.WireError):
        wire.decode(payload, [])


def test_an_object_that_would_equal_everything_is_refused():
    with pytest.raises(wire.WireError):
        wire.decode(b'["x", "thing", {"key": null}]', [])


def test_messages():
    pipe = io.BytesIO()
    wire.send(pipe, b"one")
    wire.send(pipe, b"")
    pipe.seek(0)
    assert (wire.receive(pipe), wire.receive(pipe)) == (b"one", b"")
    with pytest.raises(EOFError):
        wire.receive(pipe)
    with pytest.raises(wire.WireError):
        wire.receive(io.BytesIO(b"\xff" * 8))
