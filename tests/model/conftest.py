"""Puts tests/ on the path, for the helpers there, and gives the tests of loading a checkpoint to write."""
from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from checkpoints import CONFIG, Save, tensors


@pytest.fixture
def save(tmp_path: Path) -> Save:
    def write(weights: dict[str, Tensor] | None = None, generation: dict[str, Any] | None = None, **config: Any) -> Path:
        (tmp_path / "config.json").write_text(json.dumps(CONFIG | config))
        if generation is not None:
            (tmp_path / "generation_config.json").write_text(json.dumps(generation))
        save_file(tensors() if weights is None else weights, tmp_path / "model.safetensors")
        return tmp_path

    return write
