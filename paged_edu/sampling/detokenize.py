"""Detokenise: from token ids to text, one token at a time, so that what has been shown never has to be taken back.

A token is not a piece of text. It may hold half a character (byte-level BPE, byte-fallback tokens), a space that is dropped at the start of the
text (SentencePiece), or nothing that a reader should see (special tokens). Two ways to read such tokens:

`ByteStream` knows the bytes of each token and feeds them to Python's incremental UTF-8 decoder. It serves byte-level vocabularies (GPT-2,
Llama 3, Qwen, SmolLM), byte-fallback ones (Llama 1 and 2, Mistral) and Metaspace ones. `WindowStream` serves every other tokenizer: it decodes the
last few tokens again with the tokenizer's own ``decode``. Both cost the same for each token, however long the text is.

The pieces that a stream gives, joined, are ``tokenizer.decode(ids)``. Where the bytes are no valid UTF-8, they are what Python's
``bytes.decode("utf-8", "replace")`` makes of the whole stream.
"""
from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable
from typing import Any, Protocol

REPLACEMENT = "\ufffd"


class TextStream(Protocol):
    """Reads the tokens of one output, in order."""

    def push(self, ids: Iterable[int]) -> str:
        """The text that is certain now and was not before: whole characters only."""
        ...

    def finish(self) -> str:
        """No token follows: the rest, with U+FFFD for a character that was never completed."""
        ...


def _byte_alphabet() -> dict[str, int]:
    """The characters that byte-level BPE writes for the 256 bytes: printable Latin-1 stands for itself, the rest is numbered from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()
_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


def _byte_level(token: str) -> bytes:
    try:
        return bytes([_ALPHABET[char] for char in token])
    except KeyError:                    # an added token: it is its own text
        return token.encode()


class _Pieces:
    """What the tokenizer's decoder does to one token. Raises LookupError for a decoder that needs more than one at a time, or is unknown."""

    def __init__(self, steps: list[dict[str, Any]]) -> None:
        self.byte_level = self.byte_fallback = self._fused = False
        self.replace: list[tuple[str, str]] = []
        self.dropped_at_start = ""      # Metaspace: this character of the first token
        self.strip, self.num_strip = b"", 0
        for step in steps:
            if not self._take(step):
                raise LookupError(step["type"])

    def _take(self, step: dict[str, Any]) -> bool:
        """Learn one step of the decoder; False if it is unknown, or known in another place only."""
        fresh = not (self.byte_level or self.byte_fallback or self._fused or self.dropped_at_start)
        match step:
            case {"type": "ByteLevel"}:
                self.byte_level = True
                return fresh and not self.replace
            case {"type": "Replace", "pattern": {"String": old}, "content": new}:
                self.replace.append((old, new))
                return fresh
            case {"type": "Metaspace", "replacement": old, "prepend_scheme": scheme}:
                self.dropped_at_start = "" if scheme == "never" else old
                self.replace.append((old, " "))
                return fresh
            case {"type": "ByteFallback"}:
                self.byte_fallback = True
                return fresh
            case {"type": "Fuse"}:
                self._fused = True
                return True
            case {"type": "Strip", "content": char, "start": start, "stop": 0} if len(char.encode()) == 1:
                self.strip, self.num_strip = char.encode(), start
                return self._fused
        return False

    def of(self, token: str, first: bool) -> bytes:
        """The bytes of a token; ``first``: no other token was read before."""
        if self.byte_level:
            return _byte_level(token)
        if first and self.dropped_at_start:
            token = token.replace(self.dropped_at_start, "")
        for old, new in self.replace:
            token = token.replace(old, new)
        byte = _BYTE_TOKEN.fullmatch(token) if self.byte_fallback else None
        return bytes([int(byte[1], 16)]) if byte else token.encode()


class ByteStream:
    """Text through the bytes of each token. ``bytes_of(id, first)``; ``num_strip`` leading bytes ``strip`` are left out of the text."""

    def __init__(self, bytes_of: Callable[[int, bool], bytes | None], strip: bytes = b"", num_strip: int = 0) -> None:
        self._bytes_of = bytes_of
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip, self._num_strip = strip, num_strip
        self._first = True

    def push(self, ids: Iterable[int]) -> str:
        data = bytearray()
        for token in ids:
            piece = self._bytes_of(token, self._first)
            if piece is not None:       # None: skipped, as if it were not there
                self._first = False
                data += piece
        while self._num_strip and data:
            if data.startswith(self._strip):
                del data[:1]
                self._num_strip -= 1
            else:
                self._num_strip = 0
        return self._utf8.decode(bytes(data))

    def finish(self) -> str:
        return self._utf8.decode(b"", True)


class WindowStream:
    """Text through the tokenizer's own ``decode`` of the last tokens: ``CONTEXT`` to twice as many.

    Held back: U+FFFD at the end (a character may be under way) and, where ``clean_up`` moves spaces afterwards, the last few characters.
    """

    CONTEXT = 16
    """Tokens before the new ones that are decoded with them, so that spaces between them come out right."""
    PATIENCE = 64
    """So many U+FFFD in a row are no character under way."""
    CLEANED = 6
    """Characters at the end that `clean_up_tokenization` may still change: its longest pattern, and a neighbour that it joins."""

    def __init__(self, decode: Callable[[list[int]], str], skipped: frozenset[int] = frozenset(), clean_up: bool = False) -> None:
        self._decode = decode
        self._skipped = skipped
        self._held = self.CLEANED if clean_up else 0
        self._ids: list[int] = []
        self._limit = 2 * self.CONTEXT
        self._text, self._sent = "", 0      # the text of the window; so much of it has been given

    def push(self, ids: Iterable[int]) -> str:
        delta = ""
        for token in ids:
            if token not in self._skipped:
                delta += self._push(token)
        return delta

    def _push(self, token: int) -> str:
        self._ids.append(token)
        self._text = text = self._decode(self._ids)
        whole = max(len(text.rstrip(REPLACEMENT)), self._sent)
        ready = min(whole if len(text) - whole <= self.PATIENCE else len(text), max(0, len(text) - self._held))
        delta = text[self._sent : ready]
        self._sent = max(self._sent, ready)
        if len(self._ids) >= self._limit and not text.endswith(REPLACEMENT):
            self._shorten()
        return delta

    def _shorten(self) -> None:
        """Start the window `CONTEXT` tokens back, or a little more: where a character begins, and the text that is still to come is found."""
        rest = self._text[self._sent :]
        for size in range(self.CONTEXT, self.CONTEXT + 4):
            text = self._decode(self._ids[-size:])
            if len(text) > len(rest) and text.endswith(rest) and REPLACEMENT not in text:
                self._ids, self._text, self._sent = self._ids[-size:], text, len(text) - len(rest)
                self._limit = 2 * self.CONTEXT
                return
        self._limit = len(self._ids) + self.CONTEXT

    def finish(self) -> str:
        delta, self._sent = self._text[self._sent :], len(self._text)
        return delta


class Detokenizer:
    """A tokenizer, as a source of text streams. What it learns about a token it keeps, for all streams."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._pieces = _pieces(tokenizer)
        self._bytes: dict[tuple[int, bool], bytes] = {}
        self._tokens: dict[int, tuple[str, bytes | None]] = {}
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            self._special = frozenset(tokenizer.all_special_ids)
        else:
            self._special = frozenset(i for i, token in backend.get_added_tokens_decoder().items() if token.special)

    def stream(self, *, skip_special_tokens: bool = True) -> TextStream:
        """A reader for one output, from its first token on."""
        skipped = self._special if skip_special_tokens else frozenset()
        pieces = self._pieces
        if pieces is None:
            def decode(ids: list[int]) -> str:
                return str(self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

            return WindowStream(decode, skipped, _cleans_up(self._tokenizer))
        id_to_token, known = self._tokenizer.backend_tokenizer.id_to_token, self._bytes

        def bytes_of(token_id: int, first: bool) -> bytes | None:
            if token_id in skipped:
                return None
            found = known.get((token_id, first))
            if found is None:
                token = id_to_token(token_id)
                if token is None:       # a gap of the vocabulary
                    return None
                found = known[token_id, first] = pieces.of(token, first)
            return found

        return ByteStream(bytes_of, pieces.strip, pieces.num_strip)

    def token(self, token_id: int) -> tuple[str, bytes | None]:
        """One token by itself, special ones included: its text, with U+FFFD for parts of characters, and its bytes.

        None for bytes that only the tokenizer knows; an id that it does not have is the empty text.
        """
        if token_id not in self._tokens:
            self._tokens[token_id] = self._look_at(token_id)
        return self._tokens[token_id]

    def _look_at(self, token_id: int) -> tuple[str, bytes | None]:
        if self._pieces is None:
            text = str(self._tokenizer.decode([token_id]))
            return text, None if REPLACEMENT in text else text.encode()
        token = self._tokenizer.backend_tokenizer.id_to_token(token_id)
        data = b"" if token is None else self._pieces.of(token, False)
        return data.decode("utf-8", "replace"), data


def _pieces(tokenizer: Any) -> _Pieces | None:
    """How to read the tokens one by one; None where only the tokenizer itself can turn several of them into text."""
    from transformers import PreTrainedTokenizerFast

    kind = type(tokenizer)
    if not isinstance(tokenizer, PreTrainedTokenizerFast) or kind.decode is not PreTrainedTokenizerFast.decode \
            or kind._decode is not PreTrainedTokenizerFast._decode or _cleans_up(tokenizer):
        return None
    decoder = tokenizer.backend_tokenizer.decoder
    if decoder is None:
        return None
    description = json.loads(decoder.__getstate__())
    try:
        return _Pieces(description["decoders"] if description["type"] == "Sequence" else [description])
    except LookupError:
        return None


def _cleans_up(tokenizer: Any) -> bool:
    """Whether ``decode`` takes spaces before punctuation away. transformers does not do that to BPE unless it is forced to."""
    if not getattr(tokenizer, "clean_up_tokenization_spaces", False):
        return False
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    return type(model).__name__ != "BPE" or bool(getattr(tokenizer, "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", False))
