"""Helpers of the browser tests: a page in headless Chromium that writes down errors and requests to elsewhere, and a JupyterLab of our own."""
from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from paged_edu.lab import trust

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
         "--disable-sync"]
OURS = ("http://127.0.0.1:", "data:", "blob:", "file:")


_running: dict[str, Any] = {}


def browser() -> Any:
    """The Chromium of this test file, started at the first call; `stop_browser` ends it."""
    from playwright.sync_api import sync_playwright

    if "browser" not in _running:
        _running["playwright"] = sync_playwright().start()
        _running["browser"] = _running["playwright"].chromium.launch(executable_path=CHROMIUM, args=FLAGS)
    return _running["browser"]


def stop_browser() -> None:
    if started := _running.pop("browser", None):
        started.close()
    if started := _running.pop("playwright", None):
        started.stop()


@contextmanager
def open_page(expected: str = "", **options: Any) -> Iterator[Any]:
    """A page with ``problems`` (errors, and what the console says is one) and ``outside`` (requests to other places, which are refused).

    A console message that begins with ``expected`` is none. The page has a context of its own: cookies, storage and cache of no other test.
    """
    with browser().new_context(**options) as context:
        page = context.new_page()
        page.problems, page.outside = [], []
        page.route("**/*", lambda r: r.continue_() if r.request.url.startswith(OURS) else (page.outside.append(r.request.url), r.abort()))
        page.on("pageerror", lambda error: page.problems.append(str(error)[:300]))
        page.on("console", lambda message: page.problems.append(message.text[:300]) if message.type == "error"
                and not (expected and message.text.startswith(expected)) else None)
        yield page


@contextmanager
def open_lab(address: str) -> Iterator[Any]:
    """A page with a notebook of `lab_server`. JupyterLab asks for files that need not exist (settings): that is no problem."""
    with open_page("Failed to load resource: the server responded with a status of 404", viewport={"width": 1280, "height": 1000}) as page:
        page.set_default_timeout(90_000)
        page.goto(address)
        page.wait_for_selector(".jp-Notebook .jp-Cell")
        assert page.evaluate("window.jupyterapp.hasPlugin('@jupyter-widgets/jupyterlab-manager:plugin')"), \
            "JupyterLab does not find the widgets' extension: the environment's share/jupyter is not in `jupyter --paths` (JUPYTER_PATH adds it)"
        yield page


def drawn(page: Any) -> None:
    """Wait for the frame that shows what was done last: a player draws once a frame, after the event that asked for it."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def shot(page: Any, name: str) -> None:
    """``PAGED_EDU_SHOTS=FOLDER`` keeps pictures of the tests."""
    if folder := os.environ.get("PAGED_EDU_SHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def lab_server(work: Path, notebook: str, *others: str) -> Iterator[str]:
    """The address of ``notebook`` in a JupyterLab of our own in the folder ``work``, in its own process group and with its own settings folders.

    It and ``others`` are trusted. Another one's address is the same with another name in it.
    """
    port, token = free_port(), secrets.token_hex(8)
    folders = {f"JUPYTER_{name}_DIR": str(work / f".{name.lower()}") for name in ("CONFIG", "DATA", "RUNTIME")}
    env = os.environ | folders | {"IPYTHONDIR": str(work / ".ipython"), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    with mock.patch.dict(os.environ, folders):
        trust([work / name for name in (notebook, *others)])
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}", f"--ServerApp.root_dir={work}",
        f"--IdentityProvider.token={token}", "--LabApp.expose_app_in_browser=True", "--LabApp.extension_manager=readonly",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]
    with (work / "lab.log").open("w") as output:
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=env, start_new_session=True)
    try:
        wait_for(f"http://127.0.0.1:{port}/api?token={token}", server, work / "lab.log")
        yield f"http://127.0.0.1:{port}/lab/tree/{notebook}?reset&token={token}"
    finally:
        os.killpg(server.pid, signal.SIGTERM)               # our own process group and nothing else
        try:
            server.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert server.poll() is None, log.read_text()[-2000:]
        try:
            urllib.request.urlopen(url, timeout=2).close()
            return
        except OSError:
            time.sleep(0.25)
    pytest.fail(f"JupyterLab did not answer within {seconds} s:\n{log.read_text()[-2000:]}")
