"""Run a lesson as the test command does, nbval in a fresh kernel, with something planted in the kernel before the first cell.

What is planted is Python text that IPython runs when the kernel starts, so the lesson itself stays as it is.
"""
from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LESSONS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))


def failing_cells(lesson: Path, planted: str, work: Path, first_only: bool = False) -> list[int]:
    """Numbers of the code cells, from 0, whose outputs differ from the stored ones or that raise; empty: the lesson is green.

    ``planted`` must call ``PLANTED.touch()`` when it takes effect, or this raises AssertionError. ``work``: an empty folder for the
    kernel's settings. ``first_only``: stop at the first such cell.
    """
    marker = work / "planted"
    startup = work / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "00_planted.py").write_text(f"from pathlib import Path\nPLANTED = Path({str(marker)!r})\n{planted}", encoding="utf-8")
    env = os.environ | {
        "IPYTHONDIR": str(work / "ipython"), "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--nbval", str(lesson), "--nbval-cell-timeout=120",
        "--nbval-sanitize-with", str(ROOT / "tests" / "notebooks" / "sanitize.cfg"), "-rf", *(["-x"] if first_only else []),
    ]
    run = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert run.returncode in (0, 1), run.stdout[-3000:] + run.stderr[-1000:]        # 0: passed, 1: a cell failed
    assert marker.exists(), "what was planted never took effect"
    failed = sorted({int(number) for number in re.findall(r"^FAILED .*::Cell (\d+)", run.stdout, re.M)})
    assert bool(failed) == bool(run.returncode), run.stdout[-3000:]
    return failed
