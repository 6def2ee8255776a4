"""The package's source inside the book: the role ``{src}`` and a page for each file that it names.

``{src}`` with ``paged_edu/core/paged.py::PagedKVManager.fork`` as its text links to the line where that is defined; a file or a name that is not
there (any more) is a warning, so a changed API breaks the build. Nothing is imported: names are looked up in the syntax tree.
"""
from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from html import escape
from typing import Any

from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxRole

from .assets import ROOT, up

log = logging.getLogger(__name__)
FOLDER = "source"


class GoneError(LookupError):
    """A file or a name that is not there."""


@cache
def tree(path: str) -> ast.Module:
    """The syntax tree of a file of the repository. Raises GoneError."""
    file = ROOT / path
    if not file.is_file():
        raise GoneError(f"there is no file {path}")
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def find(path: str, name: str) -> ast.AST:
    """The definition of ``name`` (dotted: a class, a function, a method, a constant, a field) in a file. Raises GoneError."""
    scope: ast.AST = tree(path)
    for step in name.split("."):
        scope = _child(scope, step, f"{path} has no {name}")
    return scope


def _child(scope: ast.AST, name: str, why: str) -> ast.AST:
    for node in getattr(scope, "body", ()):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return node
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return node
    raise GoneError(why)


def line_of(reference: str) -> tuple[str, int]:
    """``path::name`` or ``path`` -> the file and the line where the name is defined (1 for a file). Raises GoneError."""
    path, _, name = reference.partition("::")
    if not name:
        if not (ROOT / path).exists():
            raise GoneError(f"there is no {path}")
        return path, 1
    return path, int(find(path, name).lineno)


def first_sentence(path: str, name: str) -> str:
    """The first sentence of a docstring. Raises GoneError where there is none."""
    text = ast.get_docstring(find(path, name))  # type: ignore[arg-type]
    if not text:
        raise GoneError(f"{path}: {name} has no docstring")
    return re.split(r"(?<=[.:])\s", text.partition("\n\n")[0].replace("\n", " "), maxsplit=1)[0].rstrip(":.")


def address(reference: str, docname: str) -> str:
    """The link from a page to a reference. Raises GoneError."""
    path, line = line_of(reference)
    return f"{up(docname)}{FOLDER}/{path}.html" + (f"#L-{line}" if "::" in reference else "")


class SourceRole(SphinxRole):
    """``{src}`` and a reference; ``{src}`` with ``text <reference>`` shows something else. In a table the file stands beside the name."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        shown, reference = self.text, self.text
        if found := re.fullmatch(r"(.+?)\s*<([^<>]+)>", self.text, re.DOTALL):
            shown, reference = found[1], found[2]
        else:
            shown = reference.partition("::")[2] or reference
        try:
            target = address(reference, self.env.docname)
        except GoneError as gone:
            log.warning("%s", gone, location=self.get_location(), type="paged_book", subtype="src")
            return [nodes.literal(shown, shown)], []
        used(self.env).setdefault(self.env.docname, set()).add(reference.partition("::")[0])
        link = nodes.reference("", "", nodes.literal(shown, shown), refuri=target, reftitle=reference, classes=["src"])
        path, _, name = reference.partition("::")
        where = [nodes.inline("", f" {path.removeprefix('paged_edu/')}", classes=["src-file"])] if name and shown == name else []
        return [link, *where], []


def used(env: Any) -> dict[str, set[str]]:
    """Page -> the files that it names."""
    if not hasattr(env, "paged_book_sources"):
        env.paged_book_sources = {}
    found: dict[str, set[str]] = env.paged_book_sources
    return found


def _purge(app: Any, env: Any, docname: str) -> None:
    used(env).pop(docname, None)


def _merge(app: Any, env: Any, docnames: set[str], other: Any) -> None:
    used(env).update(used(other))


def pages(app: Any) -> Iterator[tuple[str, dict[str, Any], str]]:
    """A page for each file, with a number and an anchor a line, and the pages of the book that lead to it."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import get_lexer_for_filename

    where: dict[str, list[str]] = {}
    for docname, paths in used(app.env).items():
        for path in paths:
            where.setdefault(path, []).append(docname)
    formatter = HtmlFormatter(linenos="inline", lineanchors="L", anchorlinenos=True, wrapcode=True)
    for path in sorted(path for path in where if (ROOT / path).is_file()):
        code = highlight((ROOT / path).read_text(encoding="utf-8"), get_lexer_for_filename(path), formatter)
        here = f"{FOLDER}/{path}"
        back = ", ".join(f'<a href="{up(here)}{name}.html">{escape(app.env.titles[name].astext())}</a>' for name in sorted(where[path]))
        body = f'<section><h1><code>{escape(path)}</code></h1><p>Named in: {back}.</p><div class="pe-source">{code}</div></section>'
        yield here, {"title": path, "body": body, "parents": [{"link": f"{up(here)}index.html", "title": "paged_edu"}]}, "page.html"




def setup(app: Any) -> None:
    app.add_role("src", SourceRole())
    app.connect("env-purge-doc", _purge)
    app.connect("env-merge-info", _merge)
    app.connect("html-collect-pages", pages)
