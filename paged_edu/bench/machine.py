"""Where and when something was measured, for whoever compares two files."""
from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .. import __version__


def machine() -> dict[str, Any]:
    """Date, versions, system and processor, as plain values for a JSON file."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "paged_edu": __version__, "python": platform.python_version(),
        "implementation": platform.python_implementation(), "system": platform.system(), "machine": platform.machine(), "cpu": _cpu_name(),
        "cpu_count": os.cpu_count(), "load_average": load,
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())
