"""The JavaScript of the views in one piece: the modules of ``viz/js/`` that a page needs, one after the other, without any build tool.

A module becomes a function that is called at once and returns what it exports. So that a few regular expressions can do that, a module keeps
to a small grammar, which `bundle` checks: ``import { a, b as c } from "./x.js";`` on one line, and ``export`` in front of ``function``,
``class`` or a ``const`` that declares one name.
"""
from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files

_IMPORT = re.compile(r'^import \{ ([^}]+) \} from "\./([a-z_]+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
_LEFT_OVER = re.compile(r"^\s*(?:import|export)\b.*$", re.MULTILINE)


Extra = tuple[tuple[str, str], ...]
"""Modules of somebody else's, (name, text) each, in the same grammar; they may import those of ``viz/js/`` and one another."""


@cache
def source(name: str) -> str:
    """The text of ``viz/js/NAME.js``. Raises ValueError if there is none."""
    try:
        return files(__package__).joinpath("js", f"{name}.js").read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ValueError(f"there is no module {name}.js in viz/js") from error


@cache
def css() -> str:
    """The style sheet of all views."""
    return files(__package__).joinpath("js", "style.css").read_text(encoding="utf-8")


def exports(text: str) -> list[str]:
    """The names that a module exports, in order."""
    return _EXPORT.findall(text)


def _text(name: str, extra: Extra) -> str:
    own = dict(extra)
    return own[name] if name in own else source(name)


def _wrapped(name: str, extra: Extra) -> str:
    text = _text(name, extra)
    names = exports(text)
    text = _IMPORT.sub(lambda found: f"const {{ {found[1].replace(' as ', ': ')} }} = ${found[2]};", text)
    text = _EXPORT.sub("", text)
    if left := _LEFT_OVER.search(text):
        raise ValueError(f"{name}.js: the bundler does not read {left[0].strip()!r}; see viz/js/README.md")
    return f"const ${name} = (() => {{\n{text}return {{ {', '.join(names)} }};\n}})();\n"


def _order(names: Iterable[str], extra: Extra = ()) -> list[str]:
    """The modules and what they import, each after its own imports. Raises ValueError for a circle."""
    done: list[str] = []

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in above:
            raise ValueError(f"modules import each other in a circle: {' -> '.join((*above, name))}")
        if name not in done:
            for _, other in _IMPORT.findall(_text(name, extra)):
                visit(other, (*above, name))
            done.append(name)

    for name in names:
        visit(name, ())
    return done


@cache
def bundle(views: tuple[str, ...], entry: str = "widget", extra: Extra = ()) -> str:
    """One script with the modules of ``views`` and of an entry: "widget" ends in anywidget's ``export default``, others in a call of their ``start``.

    ``extra`` are modules that are not in ``viz/js/``, for a page that draws something of its own.
    """
    modules = "".join(_wrapped(name, extra) for name in _order([*views, entry], extra))
    table = "{ " + ", ".join(f"{name}: ${name}" for name in views) + " }"
    end = f"export default $widget.widget({table});\n" if entry == "widget" else f"${entry}.start({table});\n"
    return modules + end
