"""The directive ``{api}``: a class or a function with its signature and docstrings, read from the source.

Nothing is imported. Signatures, defaults and the documented fields and methods are the code's; a name that is gone is a warning, so the reference
cannot describe what is not there. Docstrings are read as the Markdown that they are.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from .source_pages import GoneError, find

log = logging.getLogger(__name__)
Function = ast.FunctionDef | ast.AsyncFunctionDef
FENCE = "`````"


def signature(node: Function, bound: bool) -> str:
    """Parameters with types and defaults, and what comes back; ``bound`` drops ``self``."""
    arguments = ast.unparse(node.args)
    if bound and not any(ast.unparse(mark) == "staticmethod" for mark in node.decorator_list):
        arguments = arguments.partition(", ")[2] if "," in arguments else ""
        arguments = arguments.removeprefix("/, ")
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    return f"{node.name}({arguments}){returns}"


def entry(kind: str, title: str, doc: str, inside: str = "", mark: str = FENCE) -> str:
    return f"{mark}{{py:{kind}}} {title}\n\n{markdown(doc)}\n\n{inside}\n{mark}\n"


def class_text(name: str, node: ast.ClassDef, path: str) -> str:
    """A class: how it is made, its fields, its public methods."""
    init = next((item for item in node.body if isinstance(item, Function) and item.name == "__init__"), None)
    made = signature(init, True).replace("__init__", name, 1).partition(" -> ")[0] if init is not None else f"{name}{_fields_of(node)}"
    doc = ast.get_docstring(node) or ""
    if init is not None and (more := ast.get_docstring(init)):
        doc += f"\n\n{more}"
    members = "".join(entry(*member, mark="````") for member in _members(node))
    source = f"Source: {{src}}`{path} <{path}::{node.name}>`"
    return entry("class", made, f"{doc}\n\n{source}", members)


def _fields_of(node: ast.ClassDef) -> str:
    fields = [f"{_target(item)}{' = ' + ast.unparse(item.value) if item.value is not None else ''}" for item in node.body
              if isinstance(item, ast.AnnAssign) and not _target(item).startswith("_") and "ClassVar" not in ast.unparse(item.annotation)]
    return f"({', '.join(fields)})" if fields else ""


def _target(item: ast.AnnAssign) -> str:
    return ast.unparse(item.target)


def _members(node: ast.ClassDef) -> Iterator[tuple[str, str, str]]:
    """(kind, title, docstring) of fields, properties and methods that are public and say something."""
    for item, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(item, ast.AnnAssign) and not _target(item).startswith("_"):
            doc = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            if isinstance(doc, str) and doc:
                default = f"\n:value: {ast.unparse(item.value)}" if item.value is not None and len(ast.unparse(item.value)) < 60 else ""
                yield "attribute", f"{_target(item)}\n:type: {ast.unparse(item.annotation)}{default}", _clean(doc)
        elif isinstance(item, Function) and not item.name.startswith("_") and (doc := ast.get_docstring(item)):
            marks = {ast.unparse(mark) for mark in item.decorator_list}
            if marks & {"property", "cached_property"}:
                returns = f"\n:type: {ast.unparse(item.returns)}" if item.returns is not None else ""
                yield "property", f"{item.name}{returns}", doc
            else:
                options = "\n:async:" if isinstance(item, ast.AsyncFunctionDef) else "\n:classmethod:" if "classmethod" in marks else ""
                yield "method", f"{signature(item, True)}{options}", doc


def markdown(doc: str) -> str:
    """A docstring as Markdown: what is typed at a prompt becomes a block of code."""
    found = []
    for paragraph in doc.split("\n\n"):
        if paragraph.startswith(">>> "):
            lines = [line[4:] if line.startswith((">>> ", "... ")) else line for line in paragraph.splitlines()]
            paragraph = "```python\n" + "\n".join(lines) + "\n```"
        found.append(paragraph)
    return "\n\n".join(found)


def _clean(doc: str) -> str:
    return " ".join(line.strip() for line in doc.splitlines())


class Api(SphinxDirective):
    """``{api} paged_edu.LLM`` with ``:file: paged_edu/engine/llm.py``: the class or function ``LLM`` of that file."""

    required_arguments = 1
    option_spec = {"file": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()
        name, path = self.arguments[0], self.options["file"]
        own = name.rpartition(".")[2]
        try:
            node = find(path, own)
        except GoneError as gone:
            log.warning("%s", gone, location=self.get_location(), type="paged_book", subtype="api")
            return []
        if isinstance(node, ast.ClassDef):
            text = class_text(own, node, path)
        elif isinstance(node, Function):
            text = entry("function", signature(node, False), ast.get_docstring(node) or "")
        else:
            log.warning("%s is neither a class nor a function", name, location=self.get_location(), type="paged_book", subtype="api")
            return []
        box = nodes.container(classes=["pe-api"])
        self.state.nested_parse(StringList(text.splitlines(), source=path), self.content_offset, box)
        return [box]


def setup(app: Any) -> None:
    app.add_directive("api", Api)
