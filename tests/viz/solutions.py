"""The functions and classes of `notebooks/solutions/`, for the tests of the exercises: the notebooks are their only source."""
from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

from paged_edu.viz import exercises

FOLDER = Path(__file__).parents[2] / "notebooks" / "solutions"
ALL = [exercise for lesson in exercises.LESSONS for exercise in exercises.of_lesson(lesson).values()]
NAMES = [exercise.name for exercise in ALL]


@cache
def source(name):
    """The code cell that defines the function, or the class, of exercise ``name``."""
    exercise = exercises.find(name)
    notebook = json.loads((FOLDER / f"{exercise.lesson}_solutions.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    (code,) = [cell for cell in cells if re.search(rf"^(def|class) {exercise.function_name}\b", cell, re.MULTILINE)]
    assert f'assert check("{name}", {exercise.function_name})' in cells, "the solution notebook asserts the bool"
    return code


def define(code, name):
    """The function that ``code`` defines."""
    space = {}
    exec(code, space)
    return space[exercises.find(name).function_name]


def solution(name):
    return define(source(name), name)
