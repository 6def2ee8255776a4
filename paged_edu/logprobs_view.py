"""Log-probabilities for people: a table of tokens with how probable each was and what else might have come, and the same as JSON."""
from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .terminal import is_fancy

if TYPE_CHECKING:
    from rich.table import Table

    from .sampling.logprobs import Logprob, TokenLogprobs

_BAR = 12
"""Cells of the bar that stands for 100 %."""


def print_table(title: str, token_ids: Sequence[int], entries: Sequence[TokenLogprobs | None]) -> None:
    """One row a token of ``token_ids``; ``entries``: what is known of each, None for nothing. In a pipe plain text, as wide as it is."""
    from rich.console import Console

    fancy = is_fancy(sys.stdout)
    console = Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else 10_000, no_color=not fancy)
    with console.capture() as capture:
        console.print(_table(title, token_ids, entries, fancy))
    lines = capture.get().splitlines()
    print("\n".join(lines if fancy else (line.rstrip() for line in lines)))


def _table(title: str, token_ids: Sequence[int], entries: Sequence[TokenLogprobs | None], fancy: bool) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim" if fancy else "")
    table.add_column(title, no_wrap=True, style="bold" if fancy else "")
    for name in ("id", "probability"):
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column("", no_wrap=True, style="cyan" if fancy else "")
    for name in ("logprob", "rank"):
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column("instead", no_wrap=True, overflow="ellipsis", style="dim" if fancy else "")
    for token, entry in zip(token_ids, entries, strict=True):
        if entry is None:           # the first of a prompt
            table.add_row("(the first)", str(token), "-", "", "-", "-", "")
            continue
        own = entry[token]
        others = ", ".join(f"{_name(i, other)} {_percent(other.logprob)}" for i, other in entry.items() if i != token)
        cells = (_name(token, own), str(token), _percent(own.logprob), _bar(own.logprob), f"{own.logprob:.3f}", str(own.rank), others)
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _name(token_id: int, token: Logprob) -> str:
    """The token's text in quotes, so that spaces and line ends show and no control character gets through."""
    return f"<{token_id}>" if token.decoded_token is None else repr(token.decoded_token)


def _percent(logprob: float) -> str:
    percent = 100 * math.exp(logprob)
    return "< 0.1 %" if percent < 0.05 else f"{percent:.1f} %"


def _bar(logprob: float) -> str:
    """Eighths of a cell, so that small differences show."""
    full, eighths = divmod(round(8 * _BAR * math.exp(logprob)), 8)
    return "█" * full + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths]


def as_json(entries: Sequence[TokenLogprobs | None]) -> list[list[dict[str, Any]] | None]:
    """For each token what is known of it and of its alternatives, in order of rank; None for nothing. Every number is finite."""
    return [None if entry is None else [
        {"token_id": i, "token": one.decoded_token, "bytes": None if one.bytes is None else list(one.bytes), "logprob": one.logprob, "rank": one.rank}
        for i, one in entry.items()
    ] for entry in entries]
