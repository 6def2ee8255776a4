"""Detokenising while it streams: joined pieces are the whole decode, for every kind of tokenizer, any ids and any bytes."""
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_tokenizers import ADDED, BY_BYTES, EOT, KINDS, byte_id, tiny

from paged_edu.sampling.detokenize import REPLACEMENT, ByteStream, Detokenizer, WindowStream

DETOKENIZERS = {}


def stream(kind, *, skip=True, clean_up=False):
    key = kind, clean_up
    if key not in DETOKENIZERS:
        DETOKENIZERS[key] = Detokenizer(tiny(kind, clean_up))
    return DETOKENIZERS[key].stream(skip_special_tokens=skip)


def deltas(reader, ids, splits=()):
    """One piece for each token, or for each group between ``splits``; the last one from `finish`."""
    cuts = sorted({min(cut, len(ids)) for cut in splits} | {len(ids)}) if splits else range(1, len(ids) + 1)
    pieces, at = [], 0
    for cut in cuts:
        pieces.append(reader.push(ids[at:cut]))
        at = cut
    return [*pieces, reader.finish()]


@pytest.mark.parametrize("kind", KINDS)
def test_which_reader_serves_which_tokenizer(kind):
    assert isinstance(stream(kind), ByteStream if kind in BY_BYTES else WindowStream)
    assert isinstance(stream(kind, clean_up=True), WindowStream if kind not in ("byte-level", "sentencepiece") else ByteStream)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=80, deadline=None)
@given(data=st.data(), text=st.text(st.characters(codec="utf-8"), max_size=40), skip=st.booleans(), clean_up=st.booleans())
def test_any_text_streams_to_its_decode(kind, data, text, skip, clean_up):
    tokenizer = tiny(kind, clean_up)
    ids = tokenizer(text)["input_ids"]
    splits = data.draw(st.lists(st.integers(0, len(ids)), max_size=5))
    assert "".join(deltas(stream(kind, skip=skip, clean_up=clean_up), ids, splits)) == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(data=st.data(), skip=st.booleans(), clean_up=st.booleans())
def test_any_ids_stream_to_their_decode(kind, data, skip, clean_up):
    """Ids in any order, special and added ones among them; where the bytes are no UTF-8, to Python's reading of them."""
    tokenizer = tiny(kind, clean_up)
    special = tokenizer.convert_tokens_to_ids([EOT, ADDED])
    ids = data.draw(st.lists(st.one_of(st.integers(0, len(tokenizer) - 1), st.sampled_from(special)), max_size=60))
    got = "".join(deltas(stream(kind, skip=skip, clean_up=clean_up), ids))
    expected = tokenizer.decode(ids, skip_special_tokens=skip)
    if kind == "sentencepiece" and REPLACEMENT in expected:
        expected = by_hand(tokenizer, ids, skip)
    assert got == expected


def by_hand(tokenizer, ids, skip):
    """SentencePiece with byte fallback, from the definition."""
    data = b""
    for token in tokenizer.convert_ids_to_tokens(ids):
        if not (skip and token == EOT):
            data += bytes([int(token[3:5], 16)]) if len(token) == 6 and token.startswith("<0x") else token.replace("▁", " ").encode()
    return data.decode("utf-8", "replace").removeprefix(" ")


@pytest.mark.parametrize("kind", ["byte-level", "sentencepiece"])
@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=30), sizes=st.lists(st.integers(1, 4), max_size=10))
@example(data=b"\xf0\x9f\x98", sizes=[])
@example(data="�".encode(), sizes=[1, 1, 1])
def test_any_bytes_stream_as_python_reads_them(kind, data, sizes):
    ids, cuts = [byte_id(kind, byte) for byte in data], [sum(sizes[: i + 1]) for i in range(len(sizes))]
    text = data.decode("utf-8", "replace")
    expected = text.removeprefix(" ") if kind == "sentencepiece" else text
    assert "".join(deltas(stream(kind), ids, cuts)) == expected


class Scripted:
    """Tokens that are any bytes, for the faults' exact numbers."""

    def __init__(self, pieces):
        self.pieces = [bytes.fromhex(piece) for piece in pieces]

    def deltas(self):
        reader = ByteStream(lambda token, first: self.pieces[token])
        return [reader.push([token]) for token in range(len(self.pieces))], reader.finish()


@pytest.mark.parametrize(("pieces", "expected"), [
    (["48", "69", "F0", "9F", "94", "A5", "21"], ["H", "i", "", "", "", "🔥", "!"]),
    (["C4", "8F"], ["", "ď"]),
    (["E4", "BD", "A0"], ["", "", "你"]),
    (["F0 9F", "98 8A F0", "9F 98", "81"], ["", "😊", "", "😁"]),
])
def test_a_character_made_of_several_tokens_comes_once_and_whole(pieces, expected):
    """known fault B98"""
    assert Scripted(pieces).deltas() == (expected, "")
    decoded = [b"".join(Scripted(pieces).pieces[: i + 1]).decode("utf-8", "replace") for i in range(len(pieces))]
    reader = WindowStream(lambda ids: decoded[len(ids) - 1] if ids else "")         # the other way gives the same pieces
    assert [reader.push([i]) for i in range(len(pieces))] == expected


@pytest.mark.parametrize(("pieces", "text"), [
    (["61", "C4"], "a�"), (["61", "FF", "62"], "a�b"), (["61", "EF", "BF", "BD", "62"], "a�b"), (["61", "F0", "9F", "62"], "a�b"),
])
def test_invalid_bytes_and_a_real_replacement_character(pieces, text):
    """known fault B99"""
    live, rest = Scripted(pieces).deltas()
    assert "".join(live) + rest == text == bytes.fromhex("".join(pieces)).decode("utf-8", "replace")
    assert live[0] == "a"
    assert rest == ("�" if pieces == ["61", "C4"] else "")


def test_spaces_at_the_start_and_between():
    tokenizer = tiny("sentencepiece")
    hello, there = (tokenizer.convert_tokens_to_ids(token) for token in ("▁", "the"))
    assert deltas(stream("sentencepiece"), [hello, hello, there, hello, there]) == ["", " ", "the", " ", "the", ""]
    eot = tokenizer.eos_token_id
    assert deltas(stream("sentencepiece"), [eot, hello, there]) == ["", "", "the", ""], "a skipped token is no first token"
    assert deltas(stream("sentencepiece", skip=False), [eot, hello, there]) == [EOT, " ", "the", ""]


@pytest.mark.parametrize("kind", KINDS)
def test_every_token_costs_the_same(kind):
    """No token is decoded more often because others came before it."""
    tokenizer, counts = tiny(kind), []

    class Counting:
        def __getattr__(self, name):
            return getattr(tokenizer, name)

        def decode(self, ids, **options):
            counts.append(len(ids))
            return tokenizer.decode(ids, **options)

    detokenizer = Detokenizer(tokenizer)
    detokenizer._tokenizer = Counting()
    ids = tokenizer(" ".join(["the cat sat on the mat"] * 60))["input_ids"]
    assert "".join(deltas(detokenizer.stream(), ids)) == tokenizer.decode(ids)
    assert max(counts, default=0) <= 2 * WindowStream.CONTEXT
    assert (not counts) == (kind in BY_BYTES)


def test_endless_replacement_characters_are_not_held_for_ever():
    reader = WindowStream(lambda ids: REPLACEMENT * len(ids))
    assert len("".join(reader.push([0]) for _ in range(500))) > 300
    assert "".join(deltas(WindowStream(lambda ids: REPLACEMENT * len(ids)), [0] * 500)) == REPLACEMENT * 500


def test_the_window_never_begins_inside_a_character():
    tokenizer, text = tiny("sentencepiece"), "a" + "🔥你" * 40 + " end"
    ids = [byte_id("sentencepiece", byte) for byte in text.encode()]
    pieces = deltas(WindowStream(tokenizer.decode), ids)
    assert "".join(pieces) == text
    assert pieces.count("🔥") == pieces.count("你") == 40
