"""The directive ``{generated}``: a page says what stands here, and a function of this extension makes it out of the code or of stored numbers.

A function returns HTML, or parts: ``("html", text)`` and ``("markdown", text)``. Whatever it raises is a warning that names it, and fails the build.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from . import choosing, engine_map, figures, performance, replay
from .assets import up

log = logging.getLogger(__name__)
Parts: TypeAlias = str | Sequence[tuple[str, str]]
MAKERS: dict[str, Callable[[], Parts]] = {
    "replay": replay.html,
    "engine.hops": engine_map.hops,
    "engine.folders": engine_map.folders,
    "performance.throughput": performance.throughput,
    "performance.latency": performance.latency,
    "performance.serving": performance.serving,
    "performance.profile": performance.profile,
    "performance.memory": performance.memory,
    "performance.kernels": performance.kernels,
    "performance.perplexity": performance.perplexity,
    "performance.stored": performance.stored_runs,
    "figures.curves": figures.curves,
    "figures.latency": figures.latency,
    "figures.others": figures.others,
    "figures.capacities": figures.capacities,
    "figures.ratios": figures.ratios,
    "figures.differences": figures.differences,
    "figures.engine": figures.engine,
    "choosing.block_sizes": choosing.block_sizes,
    "choosing.budget": choosing.budget,
    "choosing.what_if": choosing.what_if,
}
SCRIPTS = {"replay": "replay.js", "figures.curves": "views.js"}
"""Makers whose HTML needs a script; a page loads each once."""


def script(name: str, docname: str) -> str:
    return f'<script type="module" src="{up(docname)}_static/{name}"></script>'


class Generated(SphinxDirective):
    """``{generated} NAME``, one of `MAKERS`."""

    required_arguments = 1
    has_content = False

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        self.env.note_reread()                              # numbers and code change without the page
        try:
            made = MAKERS[name]()
        except Exception as error:
            log.warning("nothing could be generated for %r: %s: %s", name, type(error).__name__, error, location=self.get_location(),
                        type="paged_book", subtype="generated")
            return []
        parts = [("html", made)] if isinstance(made, str) else list(made)
        if name in SCRIPTS:
            parts.append(("html", script(SCRIPTS[name], self.env.docname)))
        found: list[nodes.Node] = []
        for kind, text in parts:
            if kind == "html":
                found.append(nodes.raw("", text, format="html"))
            else:
                box = nodes.container(classes=["generated"])
                self.state.nested_parse(StringList(text.splitlines(), source=f"generated {name}"), self.content_offset, box)
                found.append(box)
        return found


def setup(app: Any) -> None:
    app.add_directive("generated", Generated)
