"""Runs the code cells of the lessons in a plain interpreter, without Jupyter: on a GPU machine they then drive the engine on the GPU."""
from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def main() -> int:
    failed = 0
    for path in sorted((Path(__file__).parents[2] / "notebooks").glob("[0-9]*.ipynb")):
        start, names = time.perf_counter(), {"__name__": "__main__"}
        cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
        try:
            for number, cell in enumerate(cells, 1):
                exec(compile("".join(cell["source"]), f"{path.name}, code cell {number}", "exec"), names)
            print(f"{path.name}: {len(cells)} cells, {time.perf_counter() - start:.1f} s, device {names['llm'].engine.runner.device}")
        except Exception as error:
            failed += 1
            print(f"{path.name}: {type(error).__name__}: {error}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
