"""Run a lesson as the test command does, nbval in a fresh kernel, with something planted in the kernel before the first cell.

What is planted is Python text that IPython runs when the kernel starts, so the lesson itself stays as it is. nbval runs in this process, and the
kernel is forked where the system can do that: what starting both anew costs is many times what most lessons compute.
"""
from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import pytest
from forked_kernels import Kernels

ROOT = Path(__file__).parents[2]
LESSONS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
SECONDS = 60
"""The most that a whole lesson may take on a CPU (known fault B130)."""
OPTIONS = [
    "-q", "-s", "--color=no", "--assert=plain", "--nbval", "--nbval-cell-timeout=120",
    "--nbval-sanitize-with", str(ROOT / "tests" / "notebooks" / "sanitize.cfg"), "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml"),
    # The run around this one has them, and their clocks and hooks are of the process.
    *(f"-pno:{name}" for name in ("cacheprovider", "xdist", "timeout", "faulthandler", "logging", "anyio", "hypothesispytest")),
]


class Cells:
    """Listens to nbval: the numbers of the code cells that ran, and of those that failed, and how long it took."""

    def __init__(self) -> None:
        self.ran: set[int] = set()
        self.failed: set[int] = set()
        self.seconds = 0.0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds += report.duration
        number = int(report.nodeid.rsplit("::Cell ", 1)[1])
        if report.failed:
            self.failed.add(number)
        elif report.when == "call":
            self.ran.add(number)


def failing_cells(lesson: Path, planted: str, work: Path, kernels: Kernels, first_only: bool = False) -> list[int]:
    """Numbers of the code cells, from 0, whose outputs differ from the stored ones or that raise; empty: the lesson is green.

    ``planted`` must call ``PLANTED.touch()`` when it takes effect, or this raises AssertionError, and so it does where a whole lesson takes
    `SECONDS` or more. ``work``: an empty folder for the kernel's settings. ``first_only``: stop at the first such cell.
    """
    marker = work / "planted"
    startup = work / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "00_planted.py").write_text(f"from pathlib import Path\nPLANTED = Path({str(marker)!r})\n{planted}", encoding="utf-8")
    cells, said = Cells(), io.StringIO()
    with kernels.for_nbval(work), contextlib.redirect_stdout(said):
        code = pytest.main([*OPTIONS, *(["-x"] if first_only else []), str(lesson)], plugins=[cells])
    assert code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), said.getvalue()[-3000:]
    assert marker.exists(), "what was planted never took effect"
    if not first_only:
        code_cells = [cell for cell in json.loads(lesson.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
        assert cells.ran | cells.failed == set(range(len(code_cells))), said.getvalue()[-3000:]
        assert cells.seconds < SECONDS, f"{lesson.name} took {cells.seconds:.0f} s"
    assert bool(cells.failed) == bool(code), said.getvalue()[-3000:]
    return sorted(cells.failed)
