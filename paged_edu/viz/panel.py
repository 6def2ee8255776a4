"""Panel: picture, sentence and buttons of a `BlockPoolView` as ipywidgets. The only module of the view that needs Jupyter.

Nothing here prints: what a callback prints lands in another cell or nowhere. Everything goes through traits.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from .shapes import clean

if TYPE_CHECKING:
    from .block_pool_view import BlockPoolView

VIEW_MIME = "application/vnd.jupyter.widget-view+json"

# A screen reader announces changes *inside* a live region. The stock HTML widget replaces its content, region and all, and is not heard.
_STATUS_JS = """
export default {
  render({ model, el }) {
    const line = document.createElement("div");
    line.setAttribute("role", "status");
    line.setAttribute("aria-live", "polite");
    line.style.cssText = "min-height:2.6em;line-height:1.3;font-size:14px;color:var(--jp-content-font-color1,inherit)";
    el.appendChild(line);
    const show = () => { line.textContent = model.get("text"); };
    show();
    model.on("change:text", show);
    return () => model.off("change:text", show);
  }
}
"""


def _status_line() -> Any:
    """A widget with a trait ``text``; without anywidget, None."""
    try:
        import anywidget
        import traitlets
    except ImportError:
        return None

    class StatusLine(anywidget.AnyWidget):  # type: ignore[misc]
        _esm = _STATUS_JS
        text = traitlets.Unicode("").tag(sync=True)

    return StatusLine()


class Panel:
    """The widgets of one view. ``show`` is all that the view calls."""

    def __init__(self, view: BlockPoolView) -> None:
        self._quiet = False
        self._view: BlockPoolView | None = view
        self.picture = widgets.HTML()
        self.status = _status_line()
        self.fallback = None if self.status is not None else widgets.HTML()
        self.buttons = {
            name: self._button(name, tip, action) for name, tip, action in (
                ("Home", "The oldest recorded step", view.home), ("Back", "One step backwards, replayed", view.back),
                ("Step", "One step forwards; at the newest step the engine runs one", view.step),
                ("Play", "Step by itself, or pause", view.toggle), ("End", "The newest recorded step", view.end),
            )
        }
        # Not continuous: while the kernel moves it, a page that lags behind must not send an old position back.
        self.slider = widgets.IntSlider(description="step", continuous_update=False, layout=widgets.Layout(width="300px"))
        self.slider.observe(self._seek, "value")
        self.speed = widgets.FloatSlider(
            value=view.speed, min=0.5, max=10, step=0.5, description="steps/s", readout_format=".1f", layout=widgets.Layout(width="260px"),
        )
        self.speed.observe(self._set_speed, "value")
        wrap = widgets.Layout(flex_flow="row wrap", align_items="center")
        self.rows = (widgets.HBox([*self.buttons.values()], layout=wrap), widgets.HBox([self.slider, self.speed], layout=wrap))
        self.widget = widgets.VBox([self.rows[0], self.status if self.status is not None else self.fallback, self.picture, self.rows[1]])

    def _button(self, name: str, tip: str, action: Callable[[], object]) -> Any:
        icons = {"Home": "fast-backward", "Back": "step-backward", "Step": "step-forward", "Play": "play", "End": "fast-forward"}
        button = widgets.Button(description=name, tooltip=tip, icon=icons[name], layout=widgets.Layout(width="auto", min_width="76px"))
        button.on_click(lambda _: self._view.attempt(action) if self._view is not None else None)
        return button

    def _seek(self, change: Any) -> None:
        view, step = self._view, int(change["new"])
        if view is not None and not self._quiet:
            view.pause()
            view.attempt(lambda: view.seek(step))

    def _set_speed(self, change: Any) -> None:
        if self._view is not None:
            self._view.speed = float(change["new"])

    def show(self, svg: str, sentence: str, steps: tuple[int, int, int], playing: bool) -> None:
        """Picture, sentence, (oldest, shown, newest) step, and whether the view plays."""
        self._quiet = True
        try:
            first, shown, last = steps
            with self.slider.hold_sync():                   # limits and value together: a value outside its limits would be cut
                self.slider.max = max(last, self.slider.min)
                self.slider.min, self.slider.max, self.slider.value = first, last, shown
        finally:
            self._quiet = False
        self.picture.value = svg
        if self.status is not None:
            self.status.text = sentence
        elif self.fallback is not None:
            self.fallback.value = f'<div role="status" aria-live="polite">{clean(sentence)}</div>'
        button = self.buttons["Play"]
        button.description, button.icon = ("Pause", "pause") if playing else ("Play", "play")

    def mimebundle(self) -> dict[str, object]:
        """What makes a front end show the widget."""
        return {VIEW_MIME: {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}}

    def close(self) -> None:
        """Take every widget, with its layout and style, out of ipywidgets' registry, which would otherwise keep them for ever."""
        self._view = None
        self.slider.unobserve_all()
        self.speed.unobserve_all()
        everything = [*self.buttons.values(), self.slider, self.speed, self.picture, self.status, self.fallback, *self.rows, self.widget]
        for widget in everything:
            if widget is not None:
                for part in (getattr(widget, "style", None), getattr(widget, "layout", None), widget):
                    if isinstance(part, widgets.Widget):
                        part.close()


