"""Shared by all tests: the environment (one thread, CPU by default, no network), and the helpers' folders on the path."""
import contextlib
import os
import signal
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

with contextlib.suppress(ImportError):                      # a GPU machine may lack it; then the tests that need it are not collected
    from hypothesis import settings

    settings.register_profile("tests", deadline=None)       # on a busy machine a test that takes 10 ms may take a second
    settings.load_profile("tests")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:       # run in the background: every program that a test starts would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

for folder in ("", "core", "engine", "sampling", "browser"):
    sys.path.insert(0, str(Path(__file__).parent / folder))
