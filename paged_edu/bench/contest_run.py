"""What `bench throughput`, `latency` and `serve` have in common around their measurements: files, progress, Ctrl-C, and runs that are shown again."""
from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

from ..checks import writable_file
from ..terminal import note
from . import stored
from .contenders import Advance
from .contest import Begin

Result = dict[str, Any]
Measure = Callable[[Result, Advance, Begin], object]
Show = Callable[[Result, Console], object]
Page = Callable[[Result, Path], object]
"""Writes an HTML file."""


def run(
    command: str, options: Any, measure: Measure, show: Show, pages: Mapping[str, Page], files: Mapping[str, Path | None], load: Path | None,
) -> int:
    """Measure (or load what an earlier run wrote), print, and write ``files`` (by their flags: --json, and those of ``pages``).

    ``command`` is also the name of the result's main part. Ctrl-C: what there is, is printed and written; exit code 130.
    """
    for name, path in files.items():
        if path is not None:
            writable_file(name, path)
    if files.get("--html") is not None and find_spec("plotly") is None:
        raise ImportError("--html draws with plotly, which is not installed: pip install 'paged-edu[lab]'")
    console = Console(highlight=False)
    if load is not None:
        result = _loaded(command, options, show, files, load)
        show(result, console)
        _write(result, files, pages)
        return 0
    result, interrupted = {}, False
    try:
        _with_progress(measure, result)
    except KeyboardInterrupt:
        note("interrupted")
        interrupted = True
    except Exception:
        if _measured(result, command):
            _write(result, {"--json": files.get("--json")}, pages)
        raise
    if not _measured(result, command):
        note("nothing had been measured yet")
        return 130
    show(result, console)
    _write(result, files, pages)
    return 130 if interrupted else 0


def _measured(result: Result, command: str) -> bool:
    return bool(result.get(command, {}).get("summary"))


def _loaded(command: str, options: Any, show: Show, files: Mapping[str, Path | None], load: Path) -> Result:
    changed = [field.name for field in fields(options) if getattr(options, field.name) != field.default and field.name != "profile"]
    if files.get("--json") is not None:
        changed.append("json")
    if changed:
        raise ValueError(f"--load shows what was measured before: --{changed[0].replace('_', '-')} has no meaning beside it")

    def drawn(result: Result) -> None:
        if not _measured(result, command):
            raise ValueError
        show(result, Console(file=io.StringIO(), width=80))

    result = stored.load(load, f"bench {command}", drawn)
    if files.get("--profile") is not None and "profile" not in result:
        raise ValueError(f"--load {load}: that run had no --profile")
    return result


def _write(result: Result, files: Mapping[str, Path | None], pages: Mapping[str, Page]) -> None:
    for name, path in files.items():
        if path is None:
            continue
        if name == "--json":
            path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        elif name != "--profile" or result.get("profile", {}).get("parts"):
            pages[name](result, path)
        else:
            continue                                        # interrupted before there was a profile
        note(f"written to {path}")


def _with_progress(measure: Measure, result: Result) -> None:
    from tqdm import tqdm

    with tqdm(unit="token", dynamic_ncols=True, disable=None, leave=False) as bar:
        def begin(what: str, total: int) -> None:
            bar.reset(total)
            bar.set_description(what)
            if bar.disable:                                 # no terminal: a sign of life a run
                print(f"measuring: {what}", file=sys.stderr, flush=True)

        measure(result, bar.update, begin)
