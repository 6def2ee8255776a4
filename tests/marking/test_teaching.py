"""`book/teaching.md` agrees with the lessons: minutes, prerequisites, exercises, drills, questions, predictions, headings, links, weights."""
from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest

from paged_edu.marking import marks
from paged_edu.viz import exercises, questions
from paged_edu.viz.check import drill

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "book" / "teaching.md"
TEXT = PAGE.read_text(encoding="utf-8")
NUMBERED = {"One minute to run, thirty minutes to read": 30}
NAMES = [exercise.name for exercise in marks.course([])]


@cache
def lesson(number: str) -> str:
    """All the text of a lesson, markdown and code."""
    (path,) = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
    return "\n".join("".join(cell["source"]) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"])


def section(title: str) -> str:
    (found,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", TEXT, re.M | re.S)
    return found


def rows(text: str) -> list[list[str]]:
    """The table rows of a text, without heading and rule."""
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line.startswith("|")]
    return [row for i, row in enumerate(cells) if not row[0].startswith("---") and not (i + 1 < len(cells) and cells[i + 1][0].startswith("---"))]


LESSONS = {re.search(r"\d\d", row[0])[0]: row for row in rows(section("The lessons"))}
SESSIONS = dict(re.findall(r"^### Session (\d · [^\n]*)\n(.*?)(?=^##|\Z)", TEXT, re.M | re.S))


def test_every_lesson_has_its_row():
    assert [*LESSONS] == [*exercises.LESSONS]


@pytest.mark.parametrize("number", LESSONS)
def test_a_row_says_what_the_lesson_says(number):
    link, minutes, needs, helps, tasks, drills, goal = LESSONS[number]
    opening = re.search(r"^\*([^\n]*)\*$", lesson(number), re.M)[1]
    said = re.match(r"(\d+) minutes[.,]", opening)
    assert int(minutes) == (int(said[1]) if said else NUMBERED[opening.partition(".")[0]])
    assert (PAGE.parent / re.search(r"\((.*?)\)", link)[1]).resolve().name.startswith(number)
    named = set(re.findall(r"\b(0\d|1[0-3])\b", re.sub(r"\(\d\d_[^)]*\)", "", opening)))
    said_here = set(re.findall(r"\d\d", needs)) | set(re.findall(r"\d\d", helps))
    assert named - {minutes} <= said_here | {number}, "what its first cell asks for"
    assert said_here <= named, "and nothing more"
    assert all(other < number for other in said_here)
    assert tasks == ", ".join(exercises.of_lesson(number))
    for name in re.findall(r"`([^`]+)`", drills):
        assert name.startswith(number)
        assert "Answer" in str(drill(name, 1, answer=True))
    assert len(goal) > 20


def test_the_sum_of_the_minutes_and_the_paths():
    minutes = {number: int(row[1]) for number, row in LESSONS.items()}
    assert f"{sum(minutes.values())} in all, about nine hours" in TEXT
    assert sum(minutes.values()) == 550
    essentials = re.search(r"\*Essentials\*[^:]*: ([\d, ]+)\.", TEXT)[1].split(", ")
    assert essentials == ["00", "01", "02", "03", "05", "06", "08", "11"]
    assert abs(sum(minutes[number] for number in essentials) / 60 - 4.75) < 0.1
    operator = re.search(r"\*Operator\*: ([\d, ]+);", TEXT)[1].split(", ")
    assert operator == ["00", "01", "05", "07", "08", "10", "12"]
    for path, first in ((essentials, set()), (operator, {"03", "06"}), (["04", "09", "12"], {*essentials})):
        for i, number in enumerate(path):
            needs = set(re.findall(r"\d\d", LESSONS[number][2]))
            assert needs <= {*path[:i]} | first, f"{number} comes before what it needs"


def test_six_sessions_cover_the_course_in_an_order_that_works():
    assert len(SESSIONS) == 6
    taught = [re.findall(r"\d\d", title) for title in SESSIONS]
    assert sorted(number for numbers in taught for number in numbers) == [*exercises.LESSONS]
    alone = [sum(int(LESSONS[number][1]) for number in numbers) for numbers in taught]
    assert f"{min(alone)} to {max(alone)} minutes" in TEXT
    before: set[str] = set()
    for numbers in taught:
        for number in numbers:
            assert set(re.findall(r"\d\d", LESSONS[number][2])) <= before, number
            before.add(number)


def _minutes(plan: str, end: int) -> list[tuple[int, int, str]]:
    found = [(int(row[0].split("–")[0]), int(row[0].split("–")[1]), row[1]) for row in rows(plan)]
    assert [found[0][0], *(stop for _, stop, _ in found)] == [0, *(start for start, _, _ in found[1:]), end], "no gap, no overlap"
    return found


@pytest.mark.parametrize("title", SESSIONS)
def test_a_session_has_thirty_forty_five_and_fifteen_minutes(title):
    plan = _minutes(SESSIONS[title], 90)
    pairs = [(start, stop) for start, stop, what in plan if what.startswith("pairs:")]
    checks = [(start, stop) for start, stop, what in plan if what.startswith("check:")]
    assert (pairs[0][0], pairs[-1][1]) == (30, 75)
    assert checks == [(75, 90)]
    assert "*On the board first*" in SESSIONS[title]
    numbers = re.findall(r"\d\d", title)
    class_work = {*re.findall(r"\d\d\.a\b", " ".join(what for _, _, what in plan))}
    home = {*re.findall(r"\d\d\.[bc]\b", re.search(r"^Home: .*", SESSIONS[title], re.M)[0])}
    names = {name for number in numbers for name in exercises.of_lesson(number)}
    assert home == {name for name in names if name[-1] in "bc"}, "the b exercises are home work"
    assert {name for name in names if name.endswith(".a")} <= class_work


def test_half_a_day():
    half = section("Half a day")
    _minutes(half, 240)
    assert half.strip().startswith("Lessons 00, 02, 03, 06, 08")


def test_every_name_on_the_page_exists():
    """Exercises, questions, predictions, drills; and the headings in italics that stand behind a lesson's number."""
    for name in re.findall(r"\b\d\d\.[a-z]\b(?!\d)", TEXT):
        assert name in NAMES
    for name in re.findall(r"\b\d\d\.p\d\b", TEXT):
        assert re.search(rf'predict\(\s*"{name}"', lesson(name[:2])), name
    for name in re.findall(r"\b\d\d\.[1-9]\b", TEXT):
        assert name in questions.of_lesson(name[:2])[0], name
    for name, seed in re.findall(r'drill\("([^"]+)"(?:, seed=(\d+|\.\.\.))?\)', TEXT):
        assert "Answer" in str(drill(name, int(seed) if seed.isdigit() else 0, answer=True))


def test_headings_that_are_quoted_are_those_of_the_lessons():
    headings = set(re.findall(r"^#{2,3} (.*)$", "\n".join(lesson(number) for number in LESSONS), re.M))
    plans = "\n".join([*SESSIONS.values(), section("Half a day"), section("Hard spots")])
    own = {"On the board first", "later", "never"}
    quoted = {words.strip() for words in re.findall(r"(?<!\*)\*([^*\n|]+)\*(?!\*)", plans)} - own
    assert len(quoted) > 12
    for words in quoted:
        assert words in headings or any(heading.startswith(f"{words}:") for heading in headings) or words == "Break it", words
    for numbers, number in ((re.findall(r"\d\d", title), title) for title in SESSIONS):
        text = "\n".join(lesson(n) for n in numbers)
        for words in {w.strip() for w in re.findall(r"(?<!\*)\*([^*\n|]+)\*(?!\*)", SESSIONS[number])} - own:
            assert re.search(rf"^#+ {re.escape(words)}", text, re.M), f"{words!r} is no heading of {numbers}"


def test_weights_points_and_hard_spots():
    assert sum(int(row[-1].removesuffix(" %")) for row in rows(section("Assessment"))) == 100
    parts = [marks.part_of(name) for name in NAMES]
    said = re.search(r"(\d+) in class \(`a`\), (\d+) at home \(`b`\), (\d+) for more", TEXT)
    assert [parts.count(part) for part in marks.PARTS.values()] == [int(number) for number in said.groups()]
    hard = {row[0] for row in rows(section("Hard spots"))}
    assert hard == {"01", "03", "04", "06", "07", "08"}
    assert "`--timeout` seconds (120)" in TEXT
    assert marks.SECONDS == 120


def test_the_solutions_run_in_ci_as_the_page_says():
    script = (ROOT / "tests" / "run.sh").read_text()
    stage = re.search(r"^notebooks\(\) \{(.*?)^\}", script, re.M | re.S)[1]
    assert "--nbval notebooks " in stage, "the folder, so the solutions below it as well"
    assert {path.name for path in (ROOT / "notebooks" / "solutions").glob("*.ipynb")} == {f"{number}_solutions.ipynb" for number in LESSONS}
    for link in re.findall(r"\]\(([^)]+)\)", TEXT):
        assert (PAGE.parent / link).exists(), link


def test_a_hand_trace_is_eight_operations_with_one_answer():
    for seed in range(200):
        problem = str(drill("06.trace", seed))
        assert re.findall(r"^ *(\d)\. ", problem, re.M) == [*"12345678"]
        answer = str(drill("06.trace", seed, answer=True))
        tables = {block for table in re.findall(r"[A-H] \[([\d, ]*)\]", answer.partition("Answer")[2]) for block in map(int, table.split(","))}
        counts = re.search(r"counts (.*)", answer)[1]
        free = [int(block) for block in re.search(r"free \[([\d, ]*)\]", answer)[1].split(",") if block.strip()]
        assert tables == {int(block) for block in re.findall(r"(\d+):", counts)}
        assert sorted([*tables, *free]) == [*range(12)]
        assert all(f" {what}" in problem for what in ("comes with", "writes", "is forked from", "ends"))
