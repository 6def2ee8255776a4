"""Tables of generated pages, as HTML that a phone can scroll."""
from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from .assets import ROOT

BENCH = ROOT / "data" / "bench"


def table(headings: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "", words: int = 1) -> str:
    """``words``: how many columns from the left hold words; the others hold numbers, at the right of their cells."""
    head = "".join(f'<th scope="col" class="{_side(i, words)}">{escape(name)}</th>' for i, name in enumerate(headings))
    body = "".join(
        "<tr>" + "".join(f'<td class="{_side(i, words)}">{escape(str(cell))}</td>' for i, cell in enumerate(row)) + "</tr>" for row in rows)
    said = f"<caption>{escape(caption)}</caption>" if caption else ""
    label = escape(caption or headings[0], quote=True)
    return (f'<div class="pst-scrollable-table-container pe-table-box" tabindex="0" role="region" aria-label="{label}">'
            f'<table class="table">{said}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>\n')


def _side(column: int, words: int) -> str:
    return "text-start" if column < words else "text-end"


def paragraph(text: str, small: bool = False) -> str:
    return f"<p{' class=pe-small' if small else ''}>{escape(text)}</p>\n"


def pre(text: str) -> str:
    """Text of a terminal."""
    return f'<div class="pe-terminal" tabindex="0"><pre>{escape(text.rstrip())}</pre></div>\n'


def stored(*keys: str) -> list[tuple[str, dict[str, Any]]]:
    """The benchmark files of the repository that hold all of ``keys``: (path, content), by name."""
    found = []
    for path in sorted(BENCH.glob("*.json")):
        content = load(path)
        if all(content.get(key) for key in keys):
            found.append((f"data/bench/{path.name}", content))
    return found


def load(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def where(content: dict[str, Any]) -> str:
    """Machine and day of a stored run."""
    machine = content.get("machine", {})
    card = machine.get("gpu") or content.get("times", {}).get("card", {}).get("name")
    device = card or machine.get("cpu", "machine not stored")
    cores = f", {machine['cpu_count']} cores" if machine.get("cpu_count") and not card else ""
    return f"{device}{cores}, {machine.get('date', 'day not stored')[:10]}"
