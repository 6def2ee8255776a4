"""The lessons on a reader's own disk: copy the notebooks that the package ships, and open them in JupyterLab (``paged-edu lab``).

A notebook that the reader has changed is theirs: it is never overwritten.
"""
from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath

from .words import counted

MISSING = "JupyterLab is not installed here. Install the notebook extra: pip install 'paged-edu[lab]'"


def shipped_notebooks() -> dict[str, bytes]:
    """Path below the notebook folder -> content, for everything that a lesson needs (Python's own files left out)."""
    return {str(path): entry.read_bytes() for path, entry in _walk(files("paged_edu.notebooks"), PurePosixPath())}


def _walk(folder: Traversable, below: PurePosixPath) -> Iterator[tuple[PurePosixPath, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda e: e.name):
        if entry.name.startswith((".", "__")) or entry.name.endswith((".py", ".pyc")):
            continue
        if entry.is_dir():
            yield from _walk(entry, below / entry.name)
        else:
            yield below / entry.name, entry


def copy_notebooks(target: Path) -> list[Path]:
    """Copy the shipped lessons to ``target``; returns the files that were written.

    A file that exists is never overwritten. If it differs from the shipped one (the reader's work, or an older release) a line on standard
    output says that it was kept. Raises NotADirectoryError when ``target`` or a folder below it is a file.
    """
    target = Path(target)
    if target.exists() and not target.is_dir():
        raise NotADirectoryError(f"{target} is a file; the notebooks need a folder")
    copied = []
    for name, content in shipped_notebooks().items():
        path = target / name
        if path.exists():
            if not path.is_file() or path.read_bytes() != content:
                print(f"kept your {path}: it differs from the one that this version ships; rename it to get the new one")
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        copied.append(path)
    return copied


def trust(notebooks: Sequence[Path]) -> None:
    """Sign what was copied unchanged from this package, so that JupyterLab shows its stored pictures before anything has run."""
    try:
        import nbformat
        from nbformat.sign import NotebookNotary

        notary = NotebookNotary()  # type: ignore[no-untyped-call]
        for path in notebooks:
            if path.suffix == ".ipynb":
                notary.sign(nbformat.read(path, as_version=4))  # type: ignore[no-untyped-call]
    except Exception as error:                              # a read-only home, a broken database: the lessons work without it
        print(f"the notebooks could not be marked as trusted ({error}); their pictures appear when you run the cells", file=sys.stderr)


def open_lab(target: Path, open_browser: bool = True, extra_args: Sequence[str] = ()) -> int:
    """Copy the notebooks to ``target`` and run JupyterLab there until it is stopped; returns its exit code (1: it is not installed).

    ``extra_args`` go to JupyterLab as they are, e.g. ``["--port=8890"]``.
    """
    if importlib.util.find_spec("jupyterlab") is None:
        print(MISSING, file=sys.stderr)
        return 1
    target = Path(target)
    copied = copy_notebooks(target)
    trust(copied)
    print(f"{counted(len(copied), 'file')} copied to {target.resolve()}" if copied else f"the notebooks are in {target.resolve()}")
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={target.resolve()}"]
    if not open_browser:
        command.append("--no-browser")
    process = subprocess.Popen([*command, *extra_args])
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:                           # Ctrl-C reaches JupyterLab too, which asks before it stops: wait for its answer
            continue
