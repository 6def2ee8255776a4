"""Runs the code cells of the lessons in a plain interpreter, without Jupyter: on a GPU machine they then drive the engine on the GPU.

    python tests/gpu/run_cells.py [FILE]        a line a lesson, on the screen and in FILE; the exit code is the number of lessons that failed
"""
from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from pathlib import Path


def main(file: str | None = None) -> int:
    failed, lines = 0, []
    for path in sorted((Path(__file__).parents[2] / "notebooks").glob("[0-9]*.ipynb")):
        start, names = time.perf_counter(), {"__name__": "__main__"}
        cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                for number, cell in enumerate(cells, 1):
                    exec(compile("".join(cell["source"]), f"{path.name}, code cell {number}", "exec"), names)
            lines.append(f"{path.name}: {len(cells)} cells, {time.perf_counter() - start:.1f} s")
        except Exception as error:
            failed += 1
            lines.append(f"{path.name}: {type(error).__name__} in {where(error)}: {error}")
        print(lines[-1], flush=True)
    if file is not None:
        Path(file).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return failed


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
