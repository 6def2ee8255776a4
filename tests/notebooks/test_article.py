"""The article's statements and the cells that show them (`book/article.md`): every cell is there, was executed, and says what the table quotes."""
from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "book/article.md"
ROW = re.compile(r"\| (?P<statement>[^|]+) \| \[(?P<lesson>\d\d)\]\((?P<file>[^)]+)\) \| `(?P<cell>[^`]+)` \| `(?P<shows>[^`]+)` \|")
ROWS = [match for line in PAGE.read_text(encoding="utf-8").splitlines() if (match := ROW.fullmatch(line))]

# What no version of the table may lose: a few words of each statement of the article, in its order.
STATEMENTS = (
    "KV-cache memory, not by leftover FLOPs", "appends a key and a value", "wastes huge slabs", "finish early", "under-batched",
    "fixed-size blocks", "on demand", "keys and values of all prior tokens", "contiguous tensor", "Internal fragmentation",
    "External fragmentation", "hard to share", "B = 16", "logical positions to physical", "gather keys and values", "free its blocks for reuse",
    "Static pre-allocation", "Padded batches", "Copy-on-growth", "still fragments", "improved scheduling", "ceil(L/B)", "pool of blocks",
    "page table", "allocator is simple", "live tokens", "shared prompt", "copy-on-write", "1. Choose", "2. On arrival", "sharing if possible",
    "3. In a decode step", "4. Attention reads", "5. On finish", "on preemption", "opening visual", "not approximate attention", "effective batch",
    "trades indirection", "granularity", "Near-zero waste", "2 to 4 times", "more sequences into the same memory", "depend on the model",
    "arrival pattern", "lengths", "authoritative", "kernel complexity", "Very small blocks", "Very large blocks", "Compute inefficiencies",
    "quantisation", "policies remain", "FlashAttention", "Orca", "GQA",
)


@cache
def outputs(file: str) -> dict[str, str]:
    """Cell -> the text of its stored outputs, of code cells that were executed."""
    cells: list[dict[str, Any]] = json.loads((PAGE.parent / file).read_text(encoding="utf-8"))["cells"]
    return {
        cell["id"]: "".join("".join(output.get("text") or output.get("data", {}).get("text/plain") or "") for output in cell["outputs"])
        for cell in cells if cell["cell_type"] == "code" and cell["outputs"]
    }


def test_no_row_is_written_so_that_this_test_overlooks_it():
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    headings = [line for line in lines if line.startswith(("| the article", "|---"))]
    assert len(ROWS) == len(lines) - len(headings) >= len(STATEMENTS)


def test_every_statement_of_the_article_is_there_in_its_order():
    text = "\n".join(match["statement"] for match in ROWS)
    at = 0
    for words in STATEMENTS:
        assert words in text[at:], f"{words!r} is missing, or stands before what the article says first"
        at = text.index(words, at) + len(words)


@pytest.mark.parametrize("match", ROWS, ids=lambda match: f"{match['lesson']}-{match['cell']}")
def test_its_cell_shows_it(match):
    assert Path(match["file"]).name.startswith(match["lesson"])
    assert match["shows"] in outputs(match["file"])[match["cell"]], f"{match['statement']}: the cell says something else now"
