"""Kernels for nbval that are there at once: forked from one process which has imported what is not ours and never changes.

Each kernel is a fresh process that has not seen `paged_edu`, so whatever is planted takes effect as it would in a kernel started by hand; it
only finds torch and its like imported already. Triton is left out: it asks whether it shall interpret when it is imported.
"""
from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

from jupyter_client import BlockingKernelClient
from jupyter_client.connect import write_connection_file

ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
PARENT = """
import json, os, signal, sys, threading
import anywidget, ipykernel.ipkernel, ipykernel.kernelapp, ipywidgets, numpy, torch
from transformers import PreTrainedTokenizerFast
assert not {"triton", "paged_edu"} & set(sys.modules), "a kernel must import these by itself"
assert threading.active_count() == 1, "a fork would lose the other threads"

def reap(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass

signal.signal(signal.SIGCHLD, reap)
for line in sys.stdin:
    order = json.loads(line)
    if pid := os.fork():
        print(pid, flush=True)
        continue
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ["JPY_PARENT_PID"] = str(os.getppid())    # without its parent a kernel ends
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.chdir(order["cwd"])
    os.environ.update(order["env"])
    sys.argv = ["ipykernel_launcher", "-f", order["file"]]
    ipykernel.kernelapp.launch_new_instance()
    os._exit(0)
"""


class Kernel:
    """What nbval asks of a kernel's manager."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def is_alive(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def interrupt_kernel(self) -> None:
        os.kill(self.pid, signal.SIGINT)

    def shutdown_kernel(self, now: bool = False) -> None:
        if self.is_alive():
            os.kill(self.pid, signal.SIGKILL)


class Kernels:
    """The parent of kernels; a context manager. The kernels end with it. On systems without fork, nbval starts each anew."""

    def __enter__(self) -> Kernels:
        self.parent = None if not hasattr(os, "fork") else subprocess.Popen(
            [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | ENVIRONMENT)
        return self

    def __exit__(self, *error: object) -> None:
        if self.parent is not None:
            self.parent.communicate()

    @contextmanager
    def for_nbval(self, work: Path) -> Iterator[None]:
        """Inside, nbval's kernels come from here; their settings lie in ``work``/ipython."""
        env = {"IPYTHONDIR": str(work / "ipython")}
        with ExitStack() as stack:
            if self.parent is None:
                stack.enter_context(mock.patch.dict(os.environ, ENVIRONMENT | env))
            else:
                stack.enter_context(mock.patch("nbval.kernel.start_new_kernel", partial(self._start, work, env)))
            yield

    def _start(self, work: Path, env: dict[str, str], startup_timeout: float, cwd: str, **_: object) -> tuple[Kernel, BlockingKernelClient]:
        file, _info = write_connection_file(str(work / "kernel.json"))
        assert self.parent is not None
        assert self.parent.stdin is not None
        assert self.parent.stdout is not None
        self.parent.stdin.write(json.dumps({"file": file, "cwd": cwd, "env": env}) + "\n")
        self.parent.stdin.flush()
        kernel = Kernel(int(self.parent.stdout.readline()))
        client = BlockingKernelClient(connection_file=file)
        client.load_connection_file()
        client.start_channels()
        client.wait_for_ready(timeout=startup_timeout)
        return kernel, client
