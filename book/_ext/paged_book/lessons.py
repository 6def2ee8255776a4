"""Lessons as pages: their stored outputs, arranged for a reader without a kernel.

The notebooks are not changed. While Sphinx reads one, its text goes through `page`: plots become live ones with their picture beside them, some views
play with the package's own JavaScript (`players`), pictures stand in the page, cells that only show a card hide their call, solutions come folded
below the exercise, and a note says how to run the lesson.
"""
from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

from .players import player
from .plots import PLOTLY_MIME, described, picture, plot

CARDS = {"ask", "quiz", "predict", "hint", "task", "drill", "reveal"}
"""Functions whose value is a card that speaks for itself: in a page the call above it says nothing new."""
NOT_YET = "your turn"
"""What an exercise raises until it is written."""
INSTALL = "# Where paged_edu comes from"

RUN_IT = """\
:::{{admonition}} This page shows what the cells gave when they were run
:class: tip run-it
Plots, players and questions work here; making the engine run something else needs a kernel. To run and change everything: `paged-edu lab`, then open
`{name}`. (Not installed yet? [Start here](../start.md).)
:::
"""


def page(text: str, docname: str, root: Path) -> str:
    """A notebook's JSON as the book shows it."""
    notebook = json.loads(text)
    number = docname.rpartition("/")[2][:2]
    answers = solutions(root / "notebooks" / "solutions" / f"{number}_solutions.ipynb")
    cells: list[dict[str, Any]] = []
    last = {exercise: i for i, cell in enumerate(notebook["cells"]) if (exercise := _checked("".join(cell["source"])))}
    waiting = ""                                            # the exercise whose solution comes next, once its hints are there
    for index, cell in enumerate(notebook["cells"]):
        source = "".join(cell["source"])
        if waiting and not source.startswith("hint("):
            cells.append(_markdown(f"solution-{waiting.replace('.', '-')}", _folded(waiting, answers[waiting])))
            waiting = ""
        if cell["cell_type"] == "code":
            cell = _code(cell, source)
        else:
            cell["source"] = source.replace("](../book/", "](../").replace("](../notebooks/", "](")
        cells.append(cell)
        if index == 0:
            cells.append(_markdown(f"run-{number}", RUN_IT.format(name=docname.rpartition("/")[2] + ".ipynb")))
        exercise = _checked(source) if cell["cell_type"] == "code" else ""
        if exercise in answers and last[exercise] == index:
            waiting = exercise
    notebook["cells"] = cells
    return json.dumps(notebook)


def _markdown(name: str, source: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": source}


def _code(cell: dict[str, Any], source: str) -> dict[str, Any]:
    tags = set(cell["metadata"].get("tags", ()))
    if source.startswith(INSTALL):
        tags.add("remove-cell")
    elif _calls(source) and cell["outputs"]:
        tags.add("remove-input")
    if _checked(source):
        tags.add("remove-output")                           # nobody has tried anything in a book: "not yet" would be about nobody
    cell["metadata"] = {**cell["metadata"], "tags": sorted(tags)}
    cell["outputs"] = [_output(output, cell["id"]) for output in cell["outputs"]]
    return cell


def _output(output: dict[str, Any], cell: str) -> dict[str, Any]:
    """An output as HTML of its own where it is a view, a plot or a picture; any other one as it is."""
    data = output.get("data", {})
    if PLOTLY_MIME in data and (html := player(cell, "".join(data.get("text/plain", "")))) is not None:
        output["data"] = {"text/html": html}
        return output
    svg = "".join(data.get("image/svg+xml", ""))
    if (figure := data.get(PLOTLY_MIME)) is not None:
        plain = "".join(data.get("text/plain", ""))
        output["data"] = {"text/html": plot(figure, described(svg) or plain, svg)}
    elif svg:
        output["data"] = {"text/html": picture(svg)}
    return output


def _calls(source: str) -> bool:
    """Whether a cell is one call of `CARDS` and nothing else."""
    body = _body(source)
    return len(body) == 1 and isinstance(body[0], ast.Expr) and _name(body[0].value) in CARDS


def _checked(source: str) -> str:
    """The exercise that a cell checks ("03.a"), if that is what it does."""
    for node in _body(source):
        value = getattr(node, "value", None)
        if isinstance(value, ast.Call) and _name(value) == "check" and value.args and isinstance(value.args[0], ast.Constant):
            return str(value.args[0].value)
    return ""


def _body(source: str) -> list[ast.stmt]:
    try:
        return ast.parse(source).body
    except SyntaxError:                                     # ``await`` and magics are a notebook's own
        return []


def _name(node: ast.expr) -> str:
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


# -- solutions -----------------------------------------------------------------------------------------------------------------------------
def solutions(path: Path) -> dict[str, list[tuple[str, str]]]:
    """Exercise -> its (kind, text) parts, from the notebook of solutions: the words under its heading, then the code."""
    if not path.is_file():
        return {}
    found: dict[str, list[tuple[str, str]]] = {}
    parts: list[tuple[str, str]] = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown" and source.startswith("## "):
            parts = found.setdefault(source.split()[1], [])
            parts.append(("markdown", source.rpartition("\n\n")[2]))      # the statement stands in the lesson already
        elif cell["cell_type"] == "code" and not source.startswith(("assert check(", "check(")):
            parts.append(("code", source))
    return found


def _folded(exercise: str, parts: list[tuple[str, str]]) -> str:
    body = "\n\n".join(text if kind == "markdown" else f"```python\n{text}\n```" for kind, text in parts)
    return f"::::{{dropdown}} A solution of {exercise}\n:icon: light-bulb\n:color: light\n\n{body}\n::::\n"


def _read(app: Any, docname: str, source: list[str]) -> None:
    root = Path(app.srcdir).parent
    if docname.startswith("notebooks/"):
        source[0] = page(source[0], docname, root)
        app.env.note_dependency(str(root / "notebooks" / "solutions" / f"{docname.rpartition('/')[2][:2]}_solutions.ipynb"))
    else:
        source[0] = source[0].replace("](../notebooks/", "](notebooks/")       # as GitHub has it; the book has them in a folder of its own


def setup(app: Any) -> None:
    app.connect("source-read", _read)
