"""What the commands write: notes on stderr, and a model's words in a form that a terminal may be given."""
from __future__ import annotations

import os
import sys
from typing import TextIO

PROG = "paged-edu"

_PICTURES = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"} | {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
_PICTURES |= dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD)      # they turn the direction of what follows


def visible(text: str) -> str:
    """Text without control characters other than line ends and tabs: each becomes a picture of itself, such as ␛ for escape.

    A model can write any character; an escape sequence in the terminal could move the cursor, retitle the window or hide what it says.
    """
    return text.translate(_PICTURES)


def is_fancy(stream: TextIO) -> bool:
    """Whether bold and dim may be written to this stream: a terminal that can, of a person who has not set NO_COLOR."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def styled(text: str, code: int, stream: TextIO) -> str:
    """``text`` with a style (1 bold, 2 dim), where the stream has styles."""
    return f"\033[{code}m{text}\033[0m" if is_fancy(stream) else text


def note(text: str) -> None:
    """Progress, for a person: on stderr, so that stdout holds nothing but the result."""
    print(f"{PROG}: {text}", file=sys.stderr, flush=True)
