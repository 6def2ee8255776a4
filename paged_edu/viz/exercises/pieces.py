"""Exercises 10.a and b: their cases, which the engine's `ByteStream` and `OutputText` answer, and the typical wrong ways to show a stream."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from random import Random

from ...sampling.detokenize import ByteStream
from ...sampling.params import SamplingParams
from ...sampling.stop import OutputText
from .exercise import Case

BROKEN = "\ufffd"


# -- a: whole characters -----------------------------------------------------------------------------------------------------------------
def text_case(token_bytes: Sequence[bytes]) -> Case:
    """The engine's own stream over a vocabulary that has these tokens."""
    stream = ByteStream(lambda token, first: token_bytes[token])
    return Case((list(token_bytes),), [stream.push((token,)) for token in range(len(token_bytes))])


def cut(text: str, *places: int) -> list[bytes]:
    """The bytes of ``text``, cut before these places."""
    data, ends = text.encode(), (0, *places, None)
    return [data[start:end] for start, end in pairwise(ends)]


def text_fixed() -> Sequence[Case]:
    return [text_case(tokens) for tokens in (
        [b"Hi", b"!"], cut("🔥", 1, 2, 3), cut("é", 1), cut("Hé!", 2), cut("größer", 3, 5), cut("x🔥y", 2, 5), cut("你好", 1, 4), [b"ab", b"", b"c"],
        cut("so 🔥", 3, 5)[:2], cut("éé", 1, 2, 3),
    )]


def draw_text(random: Random) -> Case:
    """A text of letters and longer characters, cut anywhere; at times it ends in the middle of a character."""
    text = "".join(random.choice("aehr tß éö你好🔥🙂") for _ in range(random.randint(2, 9)))
    length = len(text.encode())
    places = sorted(random.sample(range(1, length), min(length - 1, random.randint(1, 6))))
    tokens = cut(text, *places)
    return text_case(tokens[:-1] if len(tokens) > 2 and random.random() < 0.3 else tokens)


def told_text(case: Case) -> str:
    return f"stream_text({case.args[0]!r})"


def one_by_one(errors: str) -> Callable[[Sequence[bytes]], list[str]]:
    return lambda token_bytes: [data.decode("utf-8", errors) for data in token_bytes]


def all_or_nothing(token_bytes: Sequence[bytes]) -> list[str]:
    """Waits until everything that is held ends with a whole character."""
    pieces, held = [], b""
    for data in token_bytes:
        held += data
        try:
            pieces.append(held.decode())
            held = b""
        except UnicodeDecodeError:
            pieces.append("")
    return pieces


def what_is_longer(token_bytes: Sequence[bytes]) -> list[str]:
    """Decodes everything again, and shows what the text is longer by."""
    pieces, shown = [], 0
    for i in range(len(token_bytes)):
        text = b"".join(token_bytes[: i + 1]).decode("utf-8", "replace")
        pieces.append(text[shown:])
        shown = max(shown, len(text))
    return pieces


def right_pieces(token_bytes: Sequence[bytes]) -> list[str]:
    pieces: list[str] = text_case(token_bytes).want
    return pieces


def text_so_far(token_bytes: Sequence[bytes]) -> list[str]:
    pieces = right_pieces(token_bytes)
    return ["".join(pieces[: i + 1]) for i in range(len(pieces))]


def at_the_end(token_bytes: Sequence[bytes]) -> list[str]:
    return [""] * (len(token_bytes) - 1) + ["".join(right_pieces(token_bytes))]


def one_token_late(token_bytes: Sequence[bytes]) -> list[str]:
    pieces = right_pieces(token_bytes)
    return ["", *pieces[:-2], "".join(pieces[-2:])] if len(pieces) > 1 else pieces


def flushed(token_bytes: Sequence[bytes]) -> list[str]:
    """Gives up the last character, although it may be under way."""
    pieces, data = right_pieces(token_bytes), b"".join(token_bytes)
    unfinished = len(data) > len("".join(pieces).encode())
    return [*pieces[:-1], pieces[-1] + BROKEN] if unfinished else pieces


# -- b: stop strings ---------------------------------------------------------------------------------------------------------------------
class _Deltas:
    """A `TextStream` whose tokens are these texts."""

    def __init__(self, deltas: Sequence[str]) -> None:
        self._deltas = deltas

    def push(self, ids: Iterable[int]) -> str:
        return "".join(self._deltas[i] for i in ids)

    def finish(self) -> str:
        return ""


def stop_case(deltas: Sequence[str], stop: str) -> Case:
    """What the engine releases with each delta; with the last one, also what it still held back."""
    text = OutputText(_Deltas(deltas), SamplingParams(stop=stop))
    pieces: list[str] = []
    for i in range(len(deltas)):
        before = len(text.text)
        found = text.read((i,))
        if i == len(deltas) - 1:
            text.end()
        pieces.append(text.text[before:])
        if found is not None:
            break
    return Case((list(deltas), stop), pieces)


def stop_fixed() -> Sequence[Case]:
    return [stop_case(deltas, stop) for deltas, stop in (
        (["the ", "E", "ND", " of"], "END"), (["the ", "E", "XIT"], "END"), (["one", " two"], "END"), (["END"], "END"), (["a", "bENDc", "d"], "END"),
        (["the E", "ND"], "END"), (["an E"], "END"), (["\n", "\n", "ROMEO"], "\n\nJ"), (["a", "a", "a", "b"], "aab"), (["ENDEND"], "END"),
        (["x", "EEN", "D"], "END"), (["A", "BA", "BAC"], "ABAC"),
    )]


def draw_stop(random: Random) -> Case:
    """Few letters, so that beginnings of the stop string are everywhere."""
    stop = random.choice(("ab", "aab", "aba", "abb", "abab", "ba"))
    letters = "".join(random.choice("abbac") for _ in range(random.randint(2, 12)))
    deltas = []
    while letters:
        size = random.randint(1, 3)
        deltas.append(letters[:size])
        letters = letters[size:]
    return stop_case(deltas, stop)


Keep = Callable[[str, str], int]
"""Of a text that does not contain the stop string: how many characters at its end are held back."""


def longest(text: str, stop: str) -> int:
    return max(size for size in range(len(stop)) if text.endswith(stop[:size]))


def shortest(text: str, stop: str) -> int:
    return min((size for size in range(1, len(stop)) if text.endswith(stop[:size])), default=0)


def all_of_it(text: str, stop: str) -> int:
    return len(text) if longest(text, stop) else 0


def only_when_whole(text: str, stop: str) -> int:
    """Holds back nothing unless all that is held begins the stop string."""
    return len(text) if stop.startswith(text) else 0


def shown_by(keep: Keep, *, include: bool = False, release: bool = True, apart: bool = False, last: bool = False, go_on: bool = False,
             padded: bool = False) -> Callable[[Sequence[str], str], list[str]]:
    """A way to show a stream: what is held back, and one thing that may be done otherwise."""

    def show(deltas: Sequence[str], stop: str) -> list[str]:
        pieces, held = [], ""
        for delta in deltas:
            held += delta
            found = held.rfind(stop) if last else held.find(stop)
            if found >= 0 and go_on:
                held = held[:found] + held[found + len(stop) :]
            elif found >= 0:
                pieces.append(held[: found + include * len(stop)])
                return pieces + [""] * (len(deltas) - len(pieces)) * padded
            size = keep(held, stop)
            pieces.append(held[: len(held) - size])
            held = held[len(held) - size :]
        if release and apart and held:
            pieces.append(held)
        elif release:
            pieces[-1] += held
        return pieces

    return show


def too_early(deltas: Sequence[str], stop: str) -> list[str]:
    """Shows everything at once; the stop string is found in the whole text, too late for what has been shown of it."""
    pieces, text = [], ""
    for delta in deltas:
        before, text = len(text), text + delta
        found = text.find(stop)
        pieces.append(delta if found < 0 else text[before : max(before, found)])
        if found >= 0:
            break
    return pieces


def each_alone(deltas: Sequence[str], stop: str) -> list[str]:
    """Looks for the stop string in one delta at a time."""
    pieces = []
    for delta in deltas:
        pieces.append(delta.partition(stop)[0])
        if stop in delta:
            break
    return pieces


def forgets(deltas: Sequence[str], stop: str) -> list[str]:
    """After a false alarm, what was held back is lost."""
    pieces: list[str] = []
    held = ""
    for delta in deltas:
        text = held + delta
        found = text.find(stop)
        if found >= 0:
            return [*pieces, text[:found]]
        size = longest(text, stop)
        pieces.append(delta[: max(0, len(delta) - size)])
        held = text[len(text) - size :]
    pieces[-1] += held
    return pieces


def whole_answer(deltas: Sequence[str], stop: str) -> list[str]:
    return [""] * (len(deltas) - 1) + ["".join(deltas).partition(stop)[0]]
