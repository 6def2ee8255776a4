"""Stop strings: where the text is cut, and what may be shown before. Checked against the definition, applied to the whole text."""
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_tokenizers import EOT, KINDS, tiny

from paged_edu import SamplingParams
from paged_edu.sampling.detokenize import Detokenizer
from paged_edu.sampling.stop import OutputText, Stop, StopString


class Pieces:
    """A stream whose tokens are pieces of text."""

    def __init__(self, pieces):
        self.pieces = pieces

    def push(self, ids):
        return "".join(self.pieces[i] for i in ids)

    def finish(self):
        return ""


def run(stream, num_tokens, params):
    """``(what was shown after each token, the finished OutputText)``"""
    text, shown = OutputText(stream, params), []
    for i in range(num_tokens):
        if text.read([i]) is None:
            assert text.num_tokens == i + 1
        shown.append(text.text)
    text.end()
    return shown, text


def by_definition(pieces, stops, min_tokens, include):
    """``(text, Stop or None)`` from the whole text: of all occurrences the one that ends first, of those the longest."""
    whole, completed_by = "".join(pieces), [i + 1 for i, piece in enumerate(pieces) for _ in piece]
    for end in range(1, len(whole) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if whole[:end].endswith(stop) and completed_by[end - 1] >= min_tokens:
                return whole[: end if include else end - len(stop)], Stop(stop, completed_by[end - 1])
    return whole, None


def check(pieces, stops, min_tokens, include, shown, text):
    expected, stop = by_definition(pieces, stops, min_tokens, include)
    assert (text.text, text.stop) == (expected, stop)
    before = ""
    for i, released in enumerate(shown):
        assert released.startswith(before), "nothing is taken back"
        assert expected.startswith(released), "nothing is shown that is cut later"
        before = released
        if stop is None or i + 1 < stop.num_tokens:         # and no character more than needed is held back
            read = "".join(pieces[: i + 1])
            begins = [k for s in stops for k in range(1, len(s)) if read.endswith(s[:k])]
            assert len(read) - len(released) == (0 if include else max(begins, default=0))
    assert expected.startswith(before)


few = st.text("ab#", max_size=3)
stop_lists = st.lists(st.text("ab#", min_size=1, max_size=5), min_size=1, max_size=4)


@settings(max_examples=800, deadline=None)
@given(pieces=st.lists(few, max_size=14), stops=stop_lists, min_tokens=st.integers(0, 6), include=st.booleans())
@example(pieces=["aab", "aabb"], stops=["aabaabb", "abb"], min_tokens=0, include=False)
@example(pieces=["aa", "a"], stops=["aa"], min_tokens=2, include=False)
def test_any_pieces_and_stops(pieces, stops, min_tokens, include):
    params = SamplingParams(stop=stops, min_tokens=min_tokens, include_stop_str_in_output=include)
    check(pieces, stops, min_tokens, include, *run(Pieces(pieces), len(pieces), params))


@settings(max_examples=300, deadline=None)
@given(pieces=st.lists(few, max_size=14), stops=stop_lists, min_tokens=st.integers(0, 6), data=st.data())
def test_catching_up_with_many_tokens_at_once_is_the_same(pieces, stops, min_tokens, data):
    params = SamplingParams(stop=stops, min_tokens=min_tokens)
    text, at = OutputText(Pieces(pieces), params), 0
    while at < len(pieces):
        size = data.draw(st.integers(1, 5))
        text.read(range(at, min(len(pieces), at + size)))
        at += size
    text.end()
    text.end()
    assert (text.text, text.stop) == by_definition(pieces, stops, min_tokens, False)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100, deadline=None)
@given(data=st.data(), text=st.text(st.one_of(st.sampled_from("aab ## 🔥ď'."), st.characters(codec="utf-8")), max_size=30), skip=st.booleans(),
       include=st.booleans(), min_tokens=st.integers(0, 4))
def test_real_tokenizers(kind, data, text, skip, include, min_tokens):
    """The definition, on what the tokenizer makes visible; stops are parts of the text, so they are found."""
    tokenizer = tiny(kind)
    ids = [*tokenizer(text)["input_ids"], tokenizer.eos_token_id, *tokenizer("a##b🔥")["input_ids"]]
    whole = tokenizer.decode(ids, skip_special_tokens=skip)
    stops = [EOT]
    for _ in range(data.draw(st.integers(0, 2))):
        start = data.draw(st.integers(0, max(0, len(whole) - 1)))
        stops += [part] if (part := whole[start : start + data.draw(st.integers(1, 5))]) else []
    detokenizer = Detokenizer(tokenizer)
    reader = detokenizer.stream(skip_special_tokens=skip)
    pieces = [reader.push([i]) for i in ids]
    pieces[-1] += reader.finish()
    assert "".join(pieces) == whole
    params = SamplingParams(stop=stops, min_tokens=min_tokens, include_stop_str_in_output=include)
    output = OutputText(detokenizer.stream(skip_special_tokens=skip), params)
    for i in ids:
        output.read([i])
    output.end()
    assert (output.text, output.stop) == by_definition(pieces, stops, min_tokens, include)


def test_only_what_could_become_a_stop_is_held_back():
    """known fault B105"""
    shown, text = run(Pieces(["a", "#", "b", "##", "c", "d"]), 6, SamplingParams(stop="###"))
    ends = [0, *map(len, shown)]
    assert [text.text[start:end] for start, end in pairwise(ends)] == ["a", "", "#b", "", "##c", "d"]
    assert text.text == "a#b##cd"


def test_what_was_held_back_is_released_at_the_end():
    """known fault B104"""
    shown, text = run(Pieces(["Hi", " there", "\n"]), 3, SamplingParams(stop=["\nUser:"]))
    assert shown == ["Hi", "Hi there", "Hi there"]
    assert (text.text, text.stop) == ("Hi there\n", None)
    shown, text = run(Pieces(["one, ", "five", ", six"]), 3, SamplingParams(stop=["five"]))
    assert shown == ["one, "] * 3
    assert (text.text, text.stop) == ("one, ", Stop("five", 2))


def test_a_stop_in_the_last_broken_bytes():
    text = OutputText(Detokenizer(tiny("byte-level")).stream(), SamplingParams(stop="\ufffd"))
    text.read([tiny("byte-level").convert_tokens_to_ids("Ä")])            # the byte C4, which begins a character
    assert (text.text, text.stop) == ("", None)
    text.end()
    assert (text.text, text.stop) == ("", Stop("\ufffd", 1))


@settings(max_examples=500, deadline=None)
@given(string=st.text("ab", min_size=1, max_size=6), text=st.text("ab", max_size=25))
def test_the_automaton(string, text):
    stop = StopString(string)
    for end, char in enumerate(text, 1):
        assert stop.feed(char) == text[:end].endswith(string)
        assert stop.matched == max(k for k in range(len(string)) if text[:end].endswith(string[:k]))


@pytest.mark.parametrize(("stop", "message"), [
    ("", "empty string"), (["a", ""], "empty string"), (b"x", "stop must be text"), (5, "stop must be text"), ([5], "a list with 5"),
    ({"a": 1}, "stop must be text"), (["\ud800"], "lone surrogate"), ([None], "a list with None"),
])
def test_what_is_no_stop_string(stop, message):
    with pytest.raises(ValueError, match=message):
        SamplingParams(stop=stop)


def test_stop_as_text_as_list_or_left_out():
    assert SamplingParams(stop="ab").stop == SamplingParams(stop=["ab"]).stop == ("ab",)
    assert SamplingParams().stop == SamplingParams(stop=[]).stop == ()
