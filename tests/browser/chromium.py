"""Helpers of the browser tests: where chromium is, how it is started, and a page that writes down every error and every request to elsewhere."""
from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
         "--disable-sync"]
OURS = ("http://127.0.0.1:", "data:", "blob:", "file:")


@contextmanager
def open_page(**options: Any) -> Iterator[Any]:
    """A page with ``problems`` (errors, and what the console says is one) and ``outside`` (requests to other places, which are refused)."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(**options)
        page.problems, page.outside = [], []
        page.route("**/*", lambda r: r.continue_() if r.request.url.startswith(OURS) else (page.outside.append(r.request.url), r.abort()))
        page.on("pageerror", lambda error: page.problems.append(str(error)[:300]))
        page.on("console", lambda message: page.problems.append(message.text[:300]) if message.type == "error" else None)
        yield page
        browser.close()


def shot(page: Any, name: str) -> None:
    """``PAGED_EDU_SHOTS=FOLDER`` keeps pictures of the tests."""
    if folder := os.environ.get("PAGED_EDU_SHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)
