"""Shared by all tests: the environment (one thread, CPU by default, no network), and the helpers' folders on the path."""
import contextlib
import gc
import os
import signal
import sys
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

with contextlib.suppress(ImportError):                      # a GPU machine may lack it; then the tests that need it are not collected
    from hypothesis import settings

    settings.register_profile("tests", deadline=None)       # on a busy machine a test that takes 10 ms may take a second
    settings.load_profile("tests")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:       # run in the background: every program that a test starts would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

for folder in ("", "core", "engine", "sampling", "server", "browser"):
    sys.path.insert(0, str(Path(__file__).parent / folder))

LONG_FILES = ("lessons_can_fail", "lab_lessons", "lab_notebook", "sharing_end_to_end", "smollm2", "bench_memory", "test_chat",
              "server_soak", "server_stops", "server_schemathesis")
_frozen_for: Path | None = None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take minutes first (``--no-loadscope-reorder`` keeps it so): begun last, they would leave the other workers idle."""
    if lost := [item.nodeid for item in items if item.get_closest_marker("browser") and item.path.parent.name != "browser"]:
        raise pytest.UsageError(f"the browser stage of tests/run.sh looks in tests/browser only, and {lost[0]} lies elsewhere")
    items.sort(key=lambda item: next((i for i, name in enumerate(LONG_FILES) if name in item.path.name), len(LONG_FILES)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before the first test of a file, what is alive (torch, transformers, the tests) leaves the garbage collector's rounds.

    `LLM.close` collects, as it should, and that takes half a second for every engine while a million old objects are looked at again.
    """
    global _frozen_for
    if item.path != _frozen_for:
        gc.collect()
        gc.freeze()
        _frozen_for = item.path
