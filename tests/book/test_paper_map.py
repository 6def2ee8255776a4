"""The paper-to-code map (`book/paper_map.md`) is whole, and every name in the book's pages is one of the code."""
from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("sphinx")
from paged_book import engine_map, source_pages

ROOT = Path(__file__).parents[2]
BOOK = ROOT / "book"
MAP = (BOOK / "paper_map.md").read_text(encoding="utf-8")
ROWS = [line for line in MAP.splitlines() if line.startswith("| ") and not line.startswith("| paper |")]
SECTIONS = ("1", "2.1", "2.2", "2.3", "3", "3.1", "4", "4.1", "4.2", "4.3", "4.4", "4.5", "4.6", "5", "5.1", "5.2", "6.1", "6.2", "6.3", "6.4", "6.5",
            "7.1", "7.2", "7.3", "8")
"""The paper's sections with something to carry out or to show; 6 and 7 as headings, related work and conclusion left out."""
ROLE = re.compile(r"\{src\}`(?:[^`<]+<)?([^`<>]+)>?`")


def references() -> list[tuple[str, str]]:
    return [(page.name, found) for page in sorted(BOOK.glob("*.md")) for found in ROLE.findall(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("section", SECTIONS)
def test_each_section_has_a_row(section):
    assert any(re.match(rf"\| §{re.escape(section)}[ ,|]", row) for row in ROWS)


@pytest.mark.parametrize("name", ["Table 1", "Formula 4", *(f"Fig. {i}" for i in range(1, 18)), "Fig. 18a", "Fig. 18b", "Fig. 19"])
def test_each_table_formula_and_figure_has_a_row(name):
    assert any(row.startswith(f"| {name} |") for row in ROWS)


def test_each_row_leads_to_code_or_to_a_lesson_and_names_a_lesson_that_exists():
    for row in ROWS:
        _, _, code, lessons = row.strip("| ").split(" | ")
        assert ROLE.search(code) or "](notebooks/" in code, row
        found = re.findall(r"\[(\d\d)\]\((notebooks/[^)]+)\)", lessons)
        assert found, row
        for number, path in found:
            assert Path(path).name.startswith(number)
            assert (BOOK / path).is_file(), path


@pytest.mark.parametrize(("page", "reference"), references())
def test_every_name_in_the_pages_is_there(page, reference):
    source_pages.line_of(reference)


def test_a_name_that_is_gone_is_found_out():
    for gone in ("paged_edu/core/paged.py::PagedKVManager.append", "paged_edu/core/blocks.py", "paged_edu/core/paged.py::admit"):
        with pytest.raises(source_pages.GoneError, match=re.escape(gone.partition("::")[2] or gone)):
            source_pages.line_of(gone)


def test_every_section_that_a_docstring_names_is_on_the_map():
    """The code says "Paper §4.4" where it carries a part out: the map must not overlook one."""
    for path in [*(ROOT / "paged_edu").rglob("*.py"), *(ROOT / "kernels").glob("*.py")]:
        for section in re.findall(r"Paper §(\d(?:\.\d)?)", path.read_text(encoding="utf-8")):
            assert section in SECTIONS or any(known.startswith(section) for known in SECTIONS), f"{path}: §{section}"


def test_the_six_hops_are_calls_in_the_code():
    assert len(engine_map.HOPS) == 7
    for hop in engine_map.HOPS:
        source_pages.line_of(hop.reference)
        assert engine_map.said(hop)
        if hop.caller:
            assert engine_map.line_of_call(hop) > 0
    with pytest.raises(source_pages.GoneError, match="does not call"):
        engine_map.line_of_call(engine_map.Hop("", "paged_edu/engine/engine.py::Engine._advance", "self.runner.run"))
