"""Results that an earlier run wrote: read again, and refused where they are something else."""
from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def load(path: Path, command: str, show: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """The JSON that ``command`` wrote to ``path``. ``show`` uses the result as its readers will, so that whatever is missing is missed here.

    Raises ValueError for another file, OSError where there is none.
    """
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"--load {path}: no JSON ({error})") from None
    try:
        show(result)
    except (KeyError, TypeError, IndexError, AttributeError, ValueError, AssertionError, ZeroDivisionError):
        raise ValueError(f"--load {path}: not what `paged-edu {command} --json` writes") from None
    return result
