"""The lessons as one course: each says how long it takes, what it needs and what it gives, where it comes from and leads to; links lead somewhere."""
from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LESSONS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
LINK = re.compile(r"\]\(([^)#]+\.(?:ipynb|md|svg|png))(?:#[^)]*)?\)")


@cache
def texts(path: Path) -> list[str]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]


def test_there_are_fourteen():
    assert [path.name[:2] for path in LESSONS] == [f"{i:02}" for i in range(14)]


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.name[:2])
def test_it_says_what_it_takes_and_what_it_gives(path):
    first, last = texts(path)[0], texts(path)[-1]
    assert first.startswith(f"# {path.name[:2]} · ")
    assert re.search(r"\*[^*]*minutes[^*]*You need [^*]*No GPU[^*]*\*", first, re.DOTALL), "how long, what one should know, on which machine"
    assert re.search(r"^- ", first, re.MULTILINE) or path.name.startswith("00"), "what one can do after it"
    assert "## You can now explain" in last
    assert len(re.findall(r"^\d\. ", last, re.MULTILINE)) >= 3
    assert "## Next in the code" in last


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.name[:2])
def test_it_points_back_and_forwards(path):
    linked = {target for text in texts(path) for target in LINK.findall(text)}
    at = LESSONS.index(path)
    if at:
        assert linked & {other.name for other in LESSONS[:at]} or re.search(r"lessons? 0\d", texts(path)[0]), "what it builds on"
    if path is not LESSONS[-1]:
        assert LESSONS[at + 1].name in LINK.findall(texts(path)[-1]), "which lesson comes next"
    for target in linked:
        assert (path.parent / target).exists(), f"{target} is not there"


def test_minutes_add_up_to_what_the_readme_says():
    minutes = {path.name[:2]: int(match[1]) for path in LESSONS if (match := re.search(r"\*(\d+) minutes", texts(path)[0]))} | {"00": 30}
    assert len(minutes) == 14
    essentials = sum(minutes[lesson] for lesson in ("00", "01", "02", "03", "05", "06", "08", "11"))
    assert (sum(minutes.values()), essentials) == (550, 285)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "about nine hours" in readme
    assert "not quite five" in readme
