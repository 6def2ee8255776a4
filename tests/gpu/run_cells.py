"""Runs the code cells of the lessons in a plain interpreter, without Jupyter: on a GPU machine they then drive the engine on the GPU.

    python tests/gpu/run_cells.py [FILE]        a line a lesson, on the screen and in FILE; the exit code is the number of lessons that failed

A cell may use ``await`` outside of a function, as in Jupyter: each lesson has an event loop of its own, which goes on from cell to cell.
"""
from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import json
import sys
import time
from pathlib import Path

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def main(file: str | None = None, folder: Path = NOTEBOOKS) -> int:
    failed, lines = 0, []
    for path in sorted(folder.glob("[0-9]*.ipynb")):
        start = time.perf_counter()
        cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                run(path.name, ["".join(cell["source"]) for cell in cells])
            lines.append(f"{path.name}: {len(cells)} cells, {time.perf_counter() - start:.1f} s")
        except Exception as error:
            failed += 1
            lines.append(f"{path.name}: {type(error).__name__} in {where(error)}: {error}")
        print(lines[-1], flush=True)
        if file is not None:                            # after each: a time limit may end the script before the last one
            Path(file).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return failed


def run(name: str, sources: list[str]) -> None:
    """One lesson's cells, one after the other, in one namespace and one event loop."""
    names = {"__name__": "__main__"}
    with asyncio.Runner() as loop:
        for number, source in enumerate(sources, 1):
            code = compile(source, f"{name}, code cell {number}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            waits = bool(code.co_flags & inspect.CO_COROUTINE)
            result = eval(code, names)
            if waits:
                loop.run(result)


def where(error: BaseException) -> str:
    """The lesson's cell in which it was raised."""
    at, found = error.__traceback__, "?"
    while at is not None:
        if "code cell" in at.tb_frame.f_code.co_filename:
            found = f"{at.tb_frame.f_code.co_filename.partition(', ')[2]}, line {at.tb_lineno}"
        at = at.tb_next
    return found


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
