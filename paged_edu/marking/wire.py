"""What goes over the pipe: arguments as pickles to the worker, which may trust them; answers as JSON to the judge, which may not.

An answer is plain data. Lists and dicts keep their identity (a function may return one list twice), objects that came with the arguments come back as
themselves, and of any other object the judge gets a stand-in: its type's name, what it counts for as a number, its items, and whether it equals
another one.
"""
from __future__ import annotations

import json
import operator
import struct
import sys
from collections.abc import Callable
from itertools import islice
from typing import IO, Any

MOST_BYTES = 12 * 2**20
"""Of one message."""
MOST_NODES = 200_000
"""Values in one answer."""
MOST_ITEMS = 10_001
"""Items of one list: one more than a reader takes, so that it complains itself."""
MOST_DIGITS = 100_000
"""Characters of a text, and bits of a number."""
_HEAD = struct.Struct(">I")


class WireError(Exception):
    """What came over the pipe is no message."""


def send(stream: IO[bytes], payload: bytes) -> None:
    stream.write(_HEAD.pack(len(payload)) + payload)
    stream.flush()


def receive(stream: IO[bytes]) -> bytes:
    """The next message. Raises EOFError at the end, and WireError for one that is too long."""
    (length,) = _HEAD.unpack(_exactly(stream, _HEAD.size))
    if length > MOST_BYTES:
        raise WireError(f"a message of {length} bytes")
    return _exactly(stream, length)


def _exactly(stream: IO[bytes], count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (part := stream.read(count - len(data))):
            raise EOFError
        data += part
    return data


def objects_in(args: Any) -> list[Any]:
    """The objects among the arguments that are no plain data, always in the same order; judge and worker number them alike."""
    found: list[Any] = []
    stack = [args]
    while stack:
        value = stack.pop()
        if type(value) in (list, tuple):
            stack.extend(value)
        elif type(value) is dict:
            stack.extend(value.values())
        elif type(value).__name__ not in _BY_VALUE:
            found.append(value)
    return found


_BY_VALUE = {"int", "float", "bool", "str", "bytes", "NoneType", "set", "frozenset", "ndarray", "Tensor"}


def type_name(said: Any) -> str:
    """The name of a type as the other side gives it, if a type can be called so."""
    return said[:100] if isinstance(said, str) and said.isidentifier() else "thing"


# -- the worker's side ---------------------------------------------------------------------------------------------------------------------
class Encoder:
    """Turns answers into JSON. One for a worker's whole life: equal keys of a dictionary stay equal from call to call."""

    def __init__(self) -> None:
        self.equal: dict[Any, int] = {}
        self.kept: list[Any] = []               # so that no id is given to another object while it matters

    def encode(self, value: Any, given: list[Any]) -> bytes:
        """``value`` as a message; ``given`` are the objects of the call. Raises ValueError for one that is too large."""
        self.given = {id(item): i for i, item in enumerate(given)}
        self.by_request = {item.request_id: i for i, item in enumerate(given) if hasattr(item, "request_id")}
        self.known: dict[int, int] = {}
        self.count = 0
        self.kept = []
        payload = json.dumps(self._node(value)).encode()
        if len(payload) > MOST_BYTES:
            raise ValueError(f"an answer of more than {MOST_BYTES:,} bytes")
        return payload

    def _counted(self, values: int) -> None:
        self.count += values
        if self.count > MOST_NODES:
            raise ValueError(f"an answer of more than {MOST_NODES:,} values")

    def _node(self, value: Any) -> Any:
        self._counted(1)
        if value is None or value is True or value is False:
            return value
        if isinstance(value, int | float | str | bytes | bytearray):
            return self._scalar(value)
        if id(value) in self.given:
            return ["o", self.given[id(value)]]
        if isinstance(value, list | dict):
            if id(value) in self.known:
                return ["r", self.known[id(value)]]
            self.known[id(value)] = len(self.known)
        kinds: tuple[tuple[Any, str], ...] = ((list, "l"), (tuple, "t"), (frozenset, "f"), (set, "s"))
        for kind, mark in kinds:
            if isinstance(value, kind):                     # its own iterator, not that of a subclass
                return [mark, *(self._node(item) for item in islice(kind.__iter__(value), MOST_ITEMS))]
        if isinstance(value, dict):
            return ["d", *([self._node(key), self._node(item)] for key, item in islice(dict.items(value), MOST_ITEMS))]
        return self._array(value) or self._object(value)

    def _scalar(self, value: Any) -> Any:
        if isinstance(value, int):
            number = int.__index__(value)
            if number.bit_length() > MOST_DIGITS:
                return self._object(value)
            self._counted(number.bit_length() // 16)
            return number if number.bit_length() < 64 else ["i", hex(number)]
        if isinstance(value, float):
            return float.__float__(value)
        text = str.__str__(value)[:MOST_DIGITS] if isinstance(value, str) else bytes(value[:MOST_DIGITS]).hex()
        self._counted(len(text) // 4)
        return text if isinstance(value, str) else ["b", text]

    def _array(self, value: Any) -> Any:
        """An array or scalar of NumPy, or a tensor; None if it is neither. Both libraries are there already if it is one of theirs."""
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic) and value.dtype.kind in "biuf":
            self._counted(int(value.size))
            return ["n", str(value.dtype), list(value.shape), numpy.asarray(value).ravel().tolist()]
        if torch is not None and isinstance(value, torch.Tensor) and not value.is_complex():
            self._counted(value.numel())
            plain = value.detach().cpu()
            return ["T", str(plain.dtype).removeprefix("torch."), list(plain.shape), plain.reshape(-1).tolist()]
        return None

    def _object(self, value: Any) -> Any:
        known = _tried(lambda: self.by_request[value.request_id])
        if known is not None:                                               # a candidate that was kept from an earlier call
            return ["o", known]
        about: dict[str, Any] = {}
        if (whole := _tried(lambda: operator.index(value))) is not None and whole.bit_length() <= MOST_DIGITS:
            about["index"] = ["i", hex(whole)]
        elif (real := _tried(lambda: float(value))) is not None:
            about["float"] = real
        if (key := _tried(lambda: self.equal.setdefault(value, len(self.equal)))) is not None:
            about["key"] = key
        if _tried(lambda: hasattr(value, "__iter__")):
            about["items"] = [self._node(item) for item in islice(iter(value), MOST_ITEMS)]
        self.kept.append(value)
        return ["x", str(type.__dict__["__name__"].__get__(type(value)))[:100], about]


def _tried(question: Callable[[], Any]) -> Any:
    try:
        return question()
    except Exception:
        return None


# -- the judge's side ----------------------------------------------------------------------------------------------------------------------
def decode(payload: bytes, given: list[Any]) -> Any:
    """The answer. Raises WireError if the message is not one that `Encoder` makes."""
    try:
        return _Decoder(given).value(json.loads(payload))
    except (ValueError, TypeError, LookupError, RecursionError, AttributeError, OverflowError, RuntimeError) as error:
        raise WireError(f"an answer that cannot be read ({type(error).__name__})") from None


class _Decoder:
    def __init__(self, given: list[Any]) -> None:
        self.given = given
        self.known: list[Any] = []

    def value(self, node: Any) -> Any:
        if not isinstance(node, list):
            if isinstance(node, dict):
                raise ValueError("a dict is written as a list")
            return node
        mark, *rest = node
        return getattr(self, "_" + {"l": "list", "t": "tuple", "s": "set", "f": "frozenset", "d": "dict", "r": "repeated", "o": "given", "i": "int",
                                    "b": "bytes", "n": "array", "T": "tensor", "x": "object"}[mark])(rest)

    def _list(self, rest: list[Any]) -> list[Any]:
        made: list[Any] = []
        self.known.append(made)
        made.extend(self.value(item) for item in rest)
        return made

    def _dict(self, rest: list[Any]) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        self.known.append(made)
        for key, item in rest:
            name = self.value(key)
            made[name] = self.value(item)
        return made

    def _tuple(self, rest: list[Any]) -> tuple[Any, ...]:
        return tuple(self.value(item) for item in rest)

    def _set(self, rest: list[Any]) -> set[Any]:
        return {self.value(item) for item in rest}

    def _frozenset(self, rest: list[Any]) -> frozenset[Any]:
        return frozenset(self.value(item) for item in rest)

    def _repeated(self, rest: list[Any]) -> Any:
        return self.known[rest[0]]

    def _given(self, rest: list[Any]) -> Any:
        return self.given[rest[0]]

    def _int(self, rest: list[Any]) -> int:
        return int(rest[0], 16)

    def _bytes(self, rest: list[Any]) -> bytes:
        return bytes.fromhex(rest[0])

    def _array(self, rest: list[Any]) -> Any:
        import numpy as np

        dtype, shape, items = rest
        if np.dtype(dtype).kind not in "biuf":
            raise ValueError(dtype)
        return np.array(items, dtype=dtype).reshape(shape)[()]

    def _tensor(self, rest: list[Any]) -> Any:
        import torch

        dtype, shape, items = rest
        wanted = getattr(torch, dtype)
        if not isinstance(wanted, torch.dtype):
            raise ValueError(dtype)
        return torch.tensor(items, dtype=wanted).reshape(shape)

    def _object(self, rest: list[Any]) -> Any:
        """A stand-in with the same type name, which counts for the same."""
        name, about = rest
        body: dict[str, Any] = {"__hash__": None}
        if "index" in about:
            index = self.value(about["index"])
            body["__index__"] = lambda _: index
        if "float" in about:
            real = float(about["float"])
            body["__float__"] = lambda _: real
        if "key" in about:
            key = int(about["key"])                         # None would equal whatever has no key
            body |= {"__hash__": lambda _: hash(("object", key)), "__eq__": lambda _, other: getattr(type(other), "key", None) == key, "key": key}
        if "items" in about:
            items = [self.value(item) for item in about["items"]]
            body["__iter__"] = lambda _: iter(items)
        return type(type_name(name), (), body)()
