"""Run lessons and store their outputs: ``python tests/notebooks/execute.py notebooks/00_one_minute_tour.ipynb ...``

Stored are pictures and text only. A widget's id means nothing to the next kernel, and JupyterLab would show "model not found" in place of the
picture beside it, so ids are left out; so are the times of the run, to keep the difference between two versions readable.
"""
from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

VIEW_MIME = "application/vnd.jupyter.widget-view+json"
PLOTLY_MIME = "application/vnd.plotly.v1+json"


def written(notebook: nbformat.NotebookNode) -> str:
    """As Jupyter writes it, but every plotly figure on one line: a number a line would double the file."""
    figures: list[str] = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if (figure := output.get("data", {}).get(PLOTLY_MIME)) is not None:
                output["data"][PLOTLY_MIME] = f"figure {len(figures)} stands here"
                figures.append(json.dumps(figure, separators=(",", ":"), ensure_ascii=False))
    text = str(nbformat.writes(notebook))
    for i, figure in enumerate(figures):
        text = text.replace(f'"figure {i} stands here"', figure, 1)
    return text


def execute(path: Path) -> None:
    """Execute one notebook in its own folder, in a fresh kernel without a GPU and without network, and write it back."""
    os.environ.update(CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=120, kernel_name="python3", coalesce_streams=True, resources={"metadata": {"path": str(path.parent)}}).execute()
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", ()):
            output.get("data", {}).pop(VIEW_MIME, None)
    path.write_text(written(notebook) + "\n", encoding="utf-8")
    print(f"{path}: {path.stat().st_size // 1000} kB")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        execute(Path(name))
