"""Live: the widget of a view, an anywidget. The only module of the views that needs Jupyter.

The page is sent the whole log once, when it first shows the widget, and from then on new events only, at most every 50 ms while a cell runs.
Recorded steps play in the page. Nothing here prints: what a callback prints lands in another cell or nowhere.
"""
from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import anywidget
import ipywidgets
import traitlets

from .bundle import bundle, css

if TYPE_CHECKING:
    from .view import View

VIEW_MIME = "application/vnd.jupyter.widget-view+json"
PAUSE = 0.05
"""Seconds between two messages with events while a cell keeps the event loop busy."""


NOTHING: dict[str, Any] = {"tracks": [], "panes": [], "words": {}, "controls": None, "name": ""}


def _whole(_: object, widget: PlayerWidget) -> dict[str, Any]:
    """What a page is sent that asks for the widget's state: made when it asks, so that it is never old and never kept."""
    data: dict[str, Any] = widget.whole() if widget.whole is not None else NOTHING
    return data


class PlayerWidget(anywidget.AnyWidget):  # type: ignore[misc]
    """The traits that page and kernel share; see ``viz/js/widget.js``."""

    _esm = traitlets.Unicode("").tag(sync=True)
    _css = traitlets.Unicode("").tag(sync=True)
    data = traitlets.Any(None).tag(sync=True, to_json=_whole)
    count = traitlets.Int(0).tag(sync=True)
    shown = traitlets.Int(0).tag(sync=True)
    speed = traitlets.Float(2.0).tag(sync=True)
    live = traitlets.Unicode("none").tag(sync=True)
    notice = traitlets.Unicode("").tag(sync=True)
    playing = traitlets.Bool(False).tag(sync=True)
    whole: Any = traitlets.Any(None)                        # not sent: the function that makes ``data``


class Live:
    """The widget of one view, and what goes to and fro."""

    def __init__(self, view: View) -> None:
        self._view: View | None = view
        self._thread = threading.get_ident()
        self._sent = 0.0
        self._due = False
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None
        for track in view.tracks:
            track.watch(self._heard)
            track.take_new()
        modules = tuple(dict.fromkeys(pane["module"] for pane in view.panes()))
        self.widget = PlayerWidget(
            whole=self._whole, _esm=bundle(modules), _css=css(), count=self._count(), shown=view.shown, speed=view.speed, live=view.live,
            notice=view.notice, playing=view.playing,
        )
        self.widget.on_msg(self._asked)
        self.widget.observe(self._moved, "shown")
        self.widget.observe(self._set_speed, "speed")

    # -- to the page -----------------------------------------------------------------------------------------------------------------
    def _whole(self) -> dict[str, Any]:
        view = self._view
        return view.page_data() if view is not None else NOTHING

    def _count(self) -> int:
        return sum(track.num_sent for track in self._view.tracks) if self._view is not None else 0

    def _heard(self, event: object) -> None:
        """An event: send it soon. While a cell runs in this thread the loop cannot, so now and then it is sent from here."""
        if self._loop is not None and not self._due:
            self._due = True
            self._loop.call_soon_threadsafe(self.flush)
        if threading.get_ident() == self._thread and type(event).__name__ == "StepStarted" and time.monotonic() - self._sent > PAUSE:
            self.flush()

    def flush(self) -> None:
        """Send what is new: events first, then where the view stands."""
        self._due = False
        view = self._view
        if view is None:
            return
        for index, track in enumerate(view.tracks):
            start, events, words = track.take_new()
            if events:
                self._sent = time.monotonic()
                self.widget.send({"kind": "events", "track": index, "from": start, "events": events, "words": words})
        self._show(view)

    def resend(self) -> None:
        """Send everything again: the page has missed something, or the log is another one."""
        if self._view is not None:
            for track in self._view.tracks:
                track.take_new()
            self.widget.send({"kind": "reset", "data": self._whole()})
            self._show(self._view)

    def _show(self, view: View) -> None:
        with self.widget.hold_sync():
            self.widget.unobserve(self._moved, "shown")
            self.widget.count, self.widget.live, self.widget.speed = self._count(), view.live, view.speed
            self.widget.shown, self.widget.notice, self.widget.playing = view.shown, view.notice, view.playing
            self.widget.observe(self._moved, "shown")

    # -- from the page ---------------------------------------------------------------------------------------------------------------
    def _moved(self, change: Any) -> None:
        if self._view is not None:
            self._view.moved(int(change["new"]))

    def _set_speed(self, change: Any) -> None:
        if self._view is not None and 0 < float(change["new"]) <= 10:
            self._view.speed = float(change["new"])

    def _asked(self, widget: object, content: dict[str, Any], buffers: object) -> None:
        view = self._view
        if view is None:
            return
        if content.get("kind") == "resend":
            self.resend()
        else:
            view.asked(content)
            self.widget.send({"kind": "answer"})

    def mimebundle(self) -> dict[str, object]:
        """What makes a front end show the widget."""
        return {VIEW_MIME: {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}}

    def close(self) -> None:
        """Take the widget and its layout out of ipywidgets' registry, which would otherwise keep them for ever."""
        self._view = self.widget.whole = None
        self.widget.unobserve_all()
        self.widget.on_msg(self._asked, remove=True)
        if isinstance(self.widget.layout, ipywidgets.Widget):
            self.widget.layout.close()
        self.widget.close()
