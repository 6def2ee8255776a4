"""Scripts and styles of the book: our own, the views' from the package, plotly's from its wheel. All are served by the site itself."""
from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[2] / "_site"
ROOT = Path(__file__).parents[3]
"""The repository."""
VIEWS = ("pool", "table", "timeline", "fragmentation", "curves")
"""Modules of ``paged_edu/viz/js`` that some page of the book draws with."""
NOT_LOADED = ("sphinx-thebe.js", "thebelab-helper.js")
"""Scripts of extensions that ask for a kernel: there is none here, and one of them writes an error to the console of every page."""


def up(docname: str) -> str:
    """The way from a page to the root of the site."""
    return "../" * docname.count("/")


def views_script() -> str:
    """The views of the package as one module, which turns every ``pe-mount`` of a page into a player."""
    from paged_edu.viz.bundle import bundle

    return bundle(VIEWS, "page")


def replay_script() -> str:
    """The first page's replay: our two modules on top of the package's."""
    from paged_edu.viz.bundle import bundle

    own = tuple((name, (HERE / f"{name}.js").read_text(encoding="utf-8")) for name in ("memory", "replay"))
    return bundle(("memory",), "replay", own)


def write(app: Any) -> None:
    """Put everything into a folder that Sphinx copies to ``_static``; plotly is copied once and loaded by the pages that have a plot."""
    import plotly

    from paged_edu.viz.bundle import css

    folder = Path(app.doctreedir).parent / "book_static"
    folder.mkdir(parents=True, exist_ok=True)
    library = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    if not (folder / "plotly.min.js").exists() or (folder / "plotly.min.js").stat().st_size != library.stat().st_size:
        shutil.copyfile(library, folder / "plotly.min.js")
    (folder / "views.css").write_text(css(), encoding="utf-8")
    (folder / "views.js").write_text(views_script(), encoding="utf-8")
    (folder / "replay.js").write_text(replay_script(), encoding="utf-8")
    for name in ("book.css", "book.js"):
        shutil.copyfile(HERE / name, folder / name)
    app.config.html_static_path = [*app.config.html_static_path, os.fspath(folder)]
    app.add_css_file("views.css")
    app.add_css_file("book.css")


def no_kernels(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Drop the scripts of `NOT_LOADED` from a page, and what Jupyter Book loads because it lies in ``_static``."""
    ours = ("views.js", "replay.js", "plotly.min.js")

    def kept(script: Any) -> bool:
        name = str(getattr(script, "filename", script) or "").partition("?")[0]
        body = str(getattr(script, "attributes", {}).get("body", ""))
        return not name.endswith((*NOT_LOADED, *ours)) and "THEBE_JS_URL" not in body

    context["script_files"] = [script for script in context.get("script_files", ()) if kept(script)]


def setup(app: Any) -> None:
    app.connect("builder-inited", write)
    app.connect("html-page-context", no_kernels, priority=900)
    app.add_js_file("book.js", loading_method="defer")
