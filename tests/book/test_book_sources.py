"""What the book is made of, before it is built: the table of contents, lessons as pages, the replay's sentences, generated parts."""
from __future__ import annotations

import json
import re
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
import yaml

import paged_edu
from paged_edu.viz import exercises

pytest.importorskip("sphinx")
from paged_book import lessons, maths, players, replay

ROOT = Path(__file__).parents[2]
BOOK = ROOT / "book"
LESSONS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))


def files_of_toc() -> list[str]:
    toc = yaml.safe_load((BOOK / "_toc.yml").read_text(encoding="utf-8"))
    return [toc["root"], *(chapter["file"] for part in toc["parts"] for chapter in part["chapters"])]


@cache
def cells(lesson: str) -> list[dict]:
    path = BOOK / "notebooks" / f"{lesson}.ipynb"
    return json.loads(lessons.page(path.read_text(encoding="utf-8"), f"notebooks/{lesson}", ROOT))["cells"]


def test_every_page_and_lesson_is_in_the_table_of_contents_once():
    named = files_of_toc()
    assert len(named) == len(set(named))
    assert {f"notebooks/{name}" for name in LESSONS} <= set(named)
    assert {path.stem for path in BOOK.glob("*.md")} == {name for name in named if "/" not in name}


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_as_a_page(lesson):
    """Plots and pictures are HTML with a description; solutions are there, folded; calls of cards are hidden, and what they show is not."""
    found = cells(lesson)
    kinds = {kind for cell in found for output in cell.get("outputs", ()) for kind in output.get("data", {})}
    assert kinds <= {"text/html", "text/plain"}
    html = [output["data"]["text/html"] for cell in found for output in cell.get("outputs", ()) if "text/html" in output.get("data", {})]
    plots = [text for text in html if 'class="pe-figure"' in "".join(text)]
    assert plots or any("pe-mount" in "".join(text) for text in html)
    for text in plots:
        assert re.search(r'aria-label="[^"]{40,}"', text)
        assert "<svg" in text
        spec = json.loads(re.search(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)[1])
        assert spec["data"]
    names = [exercise.name for exercise in import_module(f"{exercises.__name__}.lesson_{lesson[:2]}").EXERCISES]
    text = "\n".join("".join(cell["source"]) for cell in found if cell["cell_type"] == "markdown")
    for name in names:
        assert f"A solution of {name}" in text, f"{name} is not checked by a cell of its own, or has no solution"
    for cell in found:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and source.startswith("ask("):
            assert "remove-input" in cell["metadata"]["tags"]
            assert cell["outputs"]
        if source.startswith(lessons.INSTALL):
            assert "remove-cell" in cell["metadata"]["tags"]


def test_a_player_that_shows_another_run_than_the_lesson_is_found_out():
    with pytest.raises(players.DiffersError, match="02-rows"):
        players.player("02-rows", "Max, step 31: 99.9 % of 960 slots hold tokens")
    assert players.player("03-28", "whatever") is None
    stored = {cell["id"] for lesson in LESSONS for cell in json.loads((ROOT / "notebooks" / f"{lesson}.ipynb").read_text(encoding="utf-8"))["cells"]}
    assert set(players.PLAYERS) <= stored


def test_a_page_changes_nothing_in_the_notebook():
    path = ROOT / "notebooks" / f"{LESSONS[0]}.ipynb"
    before = path.read_bytes()
    cells(LESSONS[0])
    assert path.read_bytes() == before


def test_the_replay_says_what_it_shows():
    data = replay.data()
    slabs, paged = (replay.served(replay.trace24(), name) for name in ("orca-max", "paged"))
    scenes = data["scenes"]
    assert [scene["step"] for scene in scenes] == sorted(scene["step"] for scene in scenes)
    assert len(scenes) == 6
    assert slabs.at(1).running == 3
    assert paged.last_step == 141
    assert slabs.last_step == 300
    assert f"{paged.at(60).written}" in scenes[4]["text"]
    assert paged.at(data["until"]).stepped_back
    assert len(json.dumps(data)) < 400_000


def test_the_reference_names_what_the_package_exports():
    page = (BOOK / "api.md").read_text(encoding="utf-8")
    for name in paged_edu.__all__:
        if name != "__version__":
            assert f"{{api}} paged_edu.{name}\n" in page


def test_formulas_become_mathml():
    made = maths.mathml(r"\frac{a}{b} \cdot \sum_i x_i", True)
    assert made.startswith('<math alttext="\\frac{a}{b}')
    assert "<mfrac>" in made
    assert 'display="block"' in made
