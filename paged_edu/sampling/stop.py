"""Stop strings: where the text of an output ends, and how much of it may be shown before that is known.

The rule does not depend on how the text was split into tokens. Of all places where a stop string occurs in the visible text (after
``skip_special_tokens``), the one that ends first counts, of those that end there the longest. The text is cut before it, or after it with
``include_stop_str_in_output``. With ``min_tokens`` an occurrence counts if the token that completes it is the ``min_tokens``-th or a later one:
it may begin in earlier text; one that was complete before stays in the text and stops nothing.

Nothing that may still be cut is shown: the longest end of the text that begins a stop string is held back, and no character more.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .detokenize import TextStream
from .params import SamplingParams


class StopString:
    """One stop string and how much of it the text ends with (Knuth, Morris and Pratt: each character is looked at once)."""

    def __init__(self, string: str) -> None:
        self.string = string
        self.matched = 0
        self._shorter = [0]             # how much of the string still matches when character i + 1 does not
        for i in range(1, len(string)):
            self._shorter.append(self._next(self._shorter[i - 1], string[i]))

    def _next(self, matched: int, char: str) -> int:
        while matched and char != self.string[matched]:
            matched = self._shorter[matched - 1]
        return matched + (char == self.string[matched])

    def feed(self, char: str) -> bool:
        """Whether ``char`` completes the string. ``matched`` is the longest proper beginning of it that the text ends with."""
        matched = self._next(self.matched, char)
        complete = matched == len(self.string)
        self.matched = self._shorter[-1] if complete else matched
        return complete


@dataclass(frozen=True, slots=True)
class Stop:
    """Where an output stopped."""

    string: str
    num_tokens: int
    """The output tokens up to the one that completed the stop string."""


class OutputText:
    """The text of one output, released as it becomes certain."""

    def __init__(self, stream: TextStream, params: SamplingParams) -> None:
        self._stream = stream
        self._stops = [StopString(string) for string in params.stop or ()]
        self._min_tokens = params.min_tokens
        self._include = params.include_stop_str_in_output
        self._held = ""
        self._ended = False
        self.num_tokens = 0
        """Output tokens that have been read."""
        self.text = ""
        """What may be shown: no part of it is ever taken back."""
        self.stop: Stop | None = None

    def read(self, ids: Sequence[int]) -> Stop | None:
        """Read the output tokens that follow the ``num_tokens`` read so far. The stop, if there is one; no token after it is read."""
        if not self._stops:
            self.text += self._stream.push(ids)
            self.num_tokens += len(ids)
            return None
        for token in ids:
            if self.stop is not None:
                break
            self.num_tokens += 1
            self._take(self._stream.push((token,)))
        return self.stop

    def end(self) -> Stop | None:
        """No token follows: release what was held back."""
        if self.stop is None and not self._ended:
            self._ended = True
            self._take(self._stream.finish())
            self.text, self._held = self.text + self._held, ""
        return self.stop

    def _take(self, new: str) -> None:
        """Look at new text, one character at a time; cut it at a stop string, or release what cannot become one."""
        for i, char in enumerate(new):
            complete = [stop.string for stop in self._stops if stop.feed(char)]
            if complete and self.num_tokens >= self._min_tokens:
                string = max(complete, key=len)
                found = self._held + new[: i + 1]
                self.text += found if self._include else found[: len(found) - len(string)]
                self._held, self.stop = "", Stop(string, self.num_tokens)
                return
        certain = self._held + new
        keep = 0 if self._include else max((stop.matched for stop in self._stops), default=0)
        self.text += certain[: len(certain) - keep]
        self._held = certain[len(certain) - keep :]
