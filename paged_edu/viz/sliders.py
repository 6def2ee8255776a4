"""Sliders: what views have in common whose picture follows settings, not steps: one a name, what Jupyter is given, nothing left when closed."""
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakValueDictionary

from .shapes import clean
from .view import NO_WIDGETS, PLOTLY_MIME

_open: WeakValueDictionary[str, Sliders] = WeakValueDictionary()


class Sliders(ABC):
    """A subclass says what is shown (`svg`, `_summary`, ``str``), without a kernel too (`figure`), and makes its controls (`_build`).

    A new one closes the one that had its ``name`` before, so running a cell again does not leave a second one behind.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.notice = ""
        """What is said in place of the sentence: why a change was refused."""
        self._widget: Any = None
        self._show: Callable[[], None] = lambda: None
        """Brings the widget up to date; `_build` sets it."""
        if (before := _open.get(name)) is not None:
            before.close()
        _open[name] = self

    @property
    def sentence(self) -> str:
        """The main numbers in words, or why a change was refused."""
        return self.notice or self._summary()

    @abstractmethod
    def _summary(self) -> str:
        """The main numbers in words."""

    @abstractmethod
    def svg(self) -> str:
        """The picture as an SVG document."""

    @abstractmethod
    def figure(self) -> dict[str, Any]:
        """A plotly figure with a slider, as a plain dict."""

    @abstractmethod
    def _build(self) -> Any:
        """The widget. Raises ImportError without ipywidgets."""

    def _said(self) -> str:
        """The sentence as HTML that screen readers read out when it changes."""
        return f'<div aria-live="polite">{clean(self.sentence)}</div>'

    def _attempt(self, action: Callable[[], object]) -> None:
        """For controls: what goes wrong is said, because what a callback raises is shown nowhere."""
        try:
            action()
        except Exception as error:
            self.notice = str(error)
            self._show()
            self.notice = ""

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Mapping[str, object]:
        svg = self.svg()
        bundle: dict[str, object] = {"text/plain": f"{self}\n{self.sentence}", "image/svg+xml": svg, PLOTLY_MIME: self.figure()}
        try:
            if self._widget is None:
                self._widget = self._build()
        except ImportError:
            return bundle | {"text/html": f"{svg}<p>{NO_WIDGETS}</p>"}
        widget: Mapping[str, object] = self._widget._repr_mimebundle_()
        return bundle | {kind: value for kind, value in widget.items() if kind.startswith("application/")}

    def close(self) -> None:
        """Take the widget out of the page; twice is as good as once."""
        self._show = lambda: None
        if self._widget is not None:
            _close(self._widget)
            self._widget = None
        if _open.get(self.name) is self:
            del _open[self.name]


def _close(widget: Any) -> None:
    """A widget with all in it: ipywidgets keeps each one until it is closed by itself."""
    for child in getattr(widget, "children", ()):
        _close(child)
    for part in ("layout", "style"):
        owner: Any = getattr(widget, part, None)
        if hasattr(owner, "close"):
            owner.close()
    widget.close()
