"""Compile the kernels of `kernels/matrix.py` without a GPU, in processes that can be killed, and read what each needs.

A compile may hang for minutes, and triton must not be interpreting its kernels when it is imported, which is decided before: so each worker
is a process of its own, started without TRITON_INTERPRET and with a cache folder that is thrown away. ``python -m paged_edu.bench.compiled`` is
such a worker: it reads one case a line, as JSON, and answers with one row a line.
"""
from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

Case = Any
"""`kernels.matrix.Case`: the folder is mapped into the package where type checkers don't see it."""

Row = dict[str, Any]
"""``name``, the case's own fields, ``seconds``, and either ``error`` or ``registers``, ``shared_bytes``, ``spill_bytes``, ``num_warps``,
``tensor_core_instructions``, ``cpu_seconds`` (the assembler's included, neighbours' not)."""

LIMIT_S = 90.0
"""For one kernel. Most take one to five seconds."""

TENSOR_CORES = re.compile(r"\b(?:mma\.sync|wgmma\.mma_async)\b")


def compiled(cases: Sequence[Case], workers: int = 2, limit_s: float = LIMIT_S) -> Iterator[Row]:
    """A row for every case, in the order in which they get ready. Nothing raises: what could not be compiled says so under ``error``.

    ``limit_s``: seconds that one kernel may take; its worker is killed then, and another one takes over.
    """
    # The long ones first: the last worker to finish is then not far behind the others.
    waiting: queue.SimpleQueue[Case] = queue.SimpleQueue()
    for case in sorted(cases, key=weight, reverse=True):
        waiting.put(case)
    done: queue.SimpleQueue[Row] = queue.SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="paged_edu_kernels_") as folder:
        pool = [_Worker(waiting, done, folder, limit_s) for _ in range(max(1, min(workers, len(cases))))]
        try:
            for worker in pool:
                worker.start()
            for _ in cases:
                yield done.get()
        finally:
            for worker in pool:
                worker.stop()
            for worker in pool:
                worker.join()


def weight(case: Case) -> int:
    """What compiles longest comes first: the kernels with products, and of those the ones without tensor cores."""
    return {"unified": 4, "split": 2, "tiled": 1}.get(case.kernel, 0) * (2 if case.kernel != "copy" and not case.tensor_cores else 1)


def faults(row: Row) -> list[str]:
    """What is wrong with a compiled kernel, in words; nothing, as it should be."""
    from paged_edu.kernels import matrix

    if "error" in row:
        return [f"{row['name']}: {row['error']}"]
    found = []
    limit = matrix.SHARED_LIMIT[row["arch"]]
    if row["shared_bytes"] > limit:
        found.append(f"{row['name']}: {row['shared_bytes']} bytes of shared memory, and sm_{row['arch']} has {limit}")
    if row["spill_bytes"] and row["head_dim"] <= matrix.SPILL_FREE:
        found.append(f"{row['name']}: spills {row['spill_bytes']} bytes a thread")
    if row["needs_tensor_cores"] and not row["tensor_core_instructions"]:
        found.append(f"{row['name']}: no tensor core instructions")
    return found


class _Worker(threading.Thread):
    """Feeds one process, and starts it again after it was killed or has died."""

    def __init__(self, waiting: queue.SimpleQueue[Case], done: queue.SimpleQueue[Row], folder: str, limit_s: float) -> None:
        super().__init__(daemon=True)
        self.waiting, self.done, self.folder, self.limit_s = waiting, done, folder, limit_s
        self.process: subprocess.Popen[str] | None = None
        self.stopped = False
        self.lock = threading.Lock()

    def run(self) -> None:
        while not self.stopped:
            try:
                case = self.waiting.get_nowait()
            except queue.Empty:
                break
            start = time.perf_counter()
            try:
                answer = self._ask(case)
            except OSError as error:
                answer = {"error": f"the compiling process: {error}"}
            self.done.put(described(case) | {"seconds": round(time.perf_counter() - start, 2)} | answer)
        self._end()

    def stop(self) -> None:
        self.stopped = True
        self._end()

    def _ask(self, case: Case) -> Row:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Event()

        def kill() -> None:
            late.set()
            self._end()

        timer = threading.Timer(self.limit_s, kill)
        timer.start()
        try:
            process.stdin.write(json.dumps(asdict(case)) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if line:
            answer: Row = json.loads(line)
            return answer
        self._end()
        return {"error": f"took longer than {self.limit_s:g} s" if late.is_set() else f"the compiler died with exit code {process.wait()}"}

    def _running(self) -> subprocess.Popen[str]:
        with self.lock:
            if self.process is None or self.process.poll() is not None:
                if self.stopped:
                    raise OSError("stopped")
                environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
                # A session of its own: triton starts ptxas, which must go too when a worker is killed, and Ctrl-C is the parent's alone.
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "paged_edu.bench.compiled"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                    env=environment | {"TRITON_CACHE_DIR": self.folder, "OMP_NUM_THREADS": "1"}, start_new_session=True,
                )
            return self.process

    def _end(self) -> None:
        with self.lock:
            process, self.process = self.process, None
        if process is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def described(case: Case) -> Row:
    """The part of a row that is known before anything is compiled."""
    return {"name": case.name, "head_dim": case.head_dim, "group": case.group, "needs_tensor_cores": case.tensor_cores} | asdict(case)


def compile_case(case: Case) -> Row:
    """Compile one case in this process; the other part of its row."""
    from paged_edu.kernels.aot import compile_launch

    start, cpu_start = time.perf_counter(), sum(os.times()[:4])
    found = compile_launch(case.launch(), case.arch)
    return {
        "registers": found.registers, "shared_bytes": found.shared_bytes, "spill_bytes": found.spill_bytes, "num_warps": found.num_warps,
        "tensor_core_instructions": len(TENSOR_CORES.findall(found.ptx)), "seconds": round(time.perf_counter() - start, 2),
        "cpu_seconds": round(sum(os.times()[:4]) - cpu_start, 2),
    }


def main() -> None:
    """Answer a line with a line until there are no more; what the compiler prints goes to stderr."""
    from paged_edu.kernels.matrix import Case as Listed

    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        try:
            row = compile_case(Listed(**json.loads(line)))
        except Exception as error:          # whatever triton raises is what there is to say about this kernel
            row = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[-300:]}"}
        answers.write(json.dumps(row) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
