"""The way of a prompt to the kernel, drawn from the code: each hop is looked up, its call is found in the caller, its sentence is its docstring's.

A hop that is renamed, moved or no longer called raises, and the book is not built.
"""
from __future__ import annotations

import ast
from dataclasses import dataclass
from textwrap import wrap

from paged_edu.viz.palette import AUTO, HUES, OUTLINE
from paged_edu.viz.shapes import document, rect, text

from .assets import ROOT
from .plots import picture
from .source_pages import GoneError, find, first_sentence, tree


@dataclass(frozen=True)
class Hop:
    """A function on the way, and the call in an earlier one that leads to it."""

    reference: str
    caller: str = ""
    """``path::name`` of the function with the call: the hop before, or what it delegates to in the same file."""
    call: str = ""
    """What is called there, as it is written."""
    carries: str = ""
    """What goes along, in a few words."""


HOPS = (
    Hop("paged_edu/engine/llm.py::LLM.generate"),
    Hop("paged_edu/engine/engine.py::Engine.step", "paged_edu/engine/llm.py::LLM._run", "engine.step", "the ids of the requests it waits for"),
    Hop("paged_edu/core/scheduler.py::Scheduler.schedule", "paged_edu/engine/engine.py::Engine._advance", "self.scheduler.schedule",
        "nothing: the queues are there"),
    Hop("paged_edu/engine/runner.py::ModelRunner.execute", "paged_edu/engine/engine.py::Engine._advance", "self.runner.execute",
        "the plan: who runs which tokens, into which slots"),
    Hop("paged_edu/model/gpt2.py::GPT2.forward", "paged_edu/engine/runner.py::ModelRunner.execute", "self.model",
        "token ids, positions, cache, tables"),
    Hop("paged_edu/attention/triton.py::attend", "paged_edu/model/gpt2.py::Attention.forward", "attend",
        "q, k, v of the new tokens; the layer's cache"),
    Hop("kernels/split.py::split_attention", "paged_edu/attention/triton.py::attend", "split_attention",
        "queries, pages, block tables, lengths"),
)
LEFT, WIDTH, BOX, GAP = 54, 760, 58, 46


def line_of_call(hop: Hop) -> int:
    """Where the caller calls. Raises GoneError if it does not."""
    path, _, name = hop.caller.partition("::")
    for node in ast.walk(find(path, name)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == hop.call:
            return node.lineno
    raise GoneError(f"{hop.caller} does not call {hop.call}")


def said(hop: Hop) -> str:
    """What a hop does: the first sentence of its docstring, of its class's or of its file's, the first that does not send the reader elsewhere."""
    path, _, name = hop.reference.partition("::")
    find(path, name)                                        # the name itself must be there
    for scope in (name, name.rpartition(".")[0]):
        if scope:
            try:
                sentence = first_sentence(path, scope)
            except GoneError:
                continue
            if not sentence.startswith(("See ", "As ")):
                return _plain(sentence)
    return _plain((ast.get_docstring(tree(path)) or "").partition("\n\n")[0].partition(" (Paper")[0])


def _plain(sentence: str) -> str:
    whole = " ".join(sentence.replace("`", "").split())
    return whole if len(whole) <= 100 else whole.partition("; ")[0]


def svg() -> str:
    """The diagram."""
    body, told = [], []
    for i, hop in enumerate(HOPS):
        path, _, name = hop.reference.partition("::")
        line = int(find(path, name).lineno)
        y = 8 + i * (BOX + GAP)
        if hop.caller:
            caller, _, function = hop.caller.partition("::")
            where = f"{function}, {caller.rpartition('/')[2]}:{line_of_call(hop)}"
            body += _arrow(y - GAP, f"{hop.call}(…)", f"in {where}", hop.carries)
        body += [
            rect(LEFT, y, WIDTH - LEFT - 8, BOX, "none", 8, f'stroke="{OUTLINE}" stroke-width="1.3"'),
            rect(LEFT, y, 5, BOX, HUES[0], 2),
            text(LEFT - 16, y + BOX / 2 + 8, str(i), AUTO.muted, 22, "end", 700),
            text(LEFT + 18, y + 25, name, AUTO.ink, 17, weight=700),
            text(WIDTH - 20, y + 25, f"{path}:{line}", AUTO.muted, 12.5, "end"),
            *(text(LEFT + 18, y + 45, words, AUTO.ink, 13.5) for words in wrap(said(hop), 104)[:1]),
        ]
        told.append(f"{i}: {name} in {path}")
    height = 16 + len(HOPS) * BOX + (len(HOPS) - 1) * GAP
    return document(WIDTH, height, "From a prompt to the kernel in six hops. " + ", then ".join(told), AUTO, body, scales=True)


def _arrow(y: float, call: str, where: str, carries: str) -> list[str]:
    x = LEFT + 30
    return [
        f'<path d="M{x} {y + 2}V{y + GAP - 9}" stroke="{HUES[0]}" stroke-width="2"/>',
        f'<path d="M{x - 6} {y + GAP - 10}h12l-6 9z" fill="{HUES[0]}"/>',
        text(x + 16, y + 20, call, AUTO.ink, 13, weight=600), text(WIDTH - 20, y + 20, where, AUTO.muted, 12.5, "end"),
        text(x + 16, y + 37, carries, AUTO.muted, 12.5),
    ]


def hops() -> list[tuple[str, str]]:
    """The diagram, and below it the same with links."""
    lines = ["| hop | function | called in | what goes along |", "|---|---|---|---|"]
    for i, hop in enumerate(HOPS):
        called = f"{{src}}`{hop.caller}`" if hop.caller else "your program"
        lines.append(f"| {i} | {{src}}`{hop.reference}` | {called} | {hop.carries or 'prompts and parameters'} |")
    return [("html", picture(svg())), ("markdown", "\n".join(lines))]


def folders() -> list[tuple[str, str]]:
    """What lies where: each folder with the first sentence of its docstring, its files and lines of code."""
    lines = ["| folder | what it holds | files | lines |", "|---|---|--:|--:|"]
    for folder in sorted({path.parent for path in (ROOT / "paged_edu").rglob("*.py")} | {ROOT / "kernels"}):
        own = sorted(folder.glob("*.py"))
        name = folder.relative_to(ROOT).as_posix()
        init = f"{name}/__init__.py"
        if not (ROOT / init).is_file():
            continue
        doc = (ast.get_docstring(tree(init)) or "").partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")
        count = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in own)
        lines.append(f"| `{name}` | {doc} | {len(own)} | {count:,} |")
    return [("markdown", "\n".join(lines))]
