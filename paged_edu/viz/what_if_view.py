"""WhatIf: sliders over a simulated server, and what each of the paper's systems then holds (Paper §6.2); lesson 11.

With a running kernel any combination is simulated. Single changes are stored, so they are there at once, and in pages without a kernel too: a
plotly figure with a slider over them, an SVG and a table.
"""
from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..checks import one_of
from ..sim.what_if import DATASETS, FACTORS, SYSTEMS, Results, Setting, all_held, stored
from .palette import AUTO, LIGHT, OUTLINE
from .palette import SYSTEMS as LOOKS
from .shapes import FONT, document, num, rect, text
from .sliders import Sliders

LABELS = {
    "memory": "memory for keys and values", "bandwidth": "bandwidth of that memory", "compute": "arithmetic of the card",
    "host": "time in the serving program", "prompts": "length of prompts", "answers": "length of answers",
}
NAMES = {"sharegpt": "ShareGPT", "alpaca": "Alpaca"}


def told(name: str, value: float) -> str:
    """A factor as people say it."""
    fractions = {0.25: "¼", 0.5: "½"}
    return f"{LABELS[name]} × {fractions.get(value, f'{value:g}')}"


def said(setting: Setting) -> str:
    """What is changed."""
    return ", ".join(told(name, value) for name, value in setting.changes().items()) or "as in the paper"


class WhatIf(Sliders):
    """OPT-13B on the paper's card under a queue that never runs dry: ``WhatIf()``, or ``WhatIf("alpaca")``.

    ``change(memory=2)`` does what a slider does. A new one closes the one that had its ``name`` before.
    """

    def __init__(self, dataset: str = "sharegpt", name: str = "what if") -> None:
        one_of("dataset", dataset, DATASETS)
        self.known = stored()
        self.setting = Setting(dataset=dataset)
        super().__init__(name)

    # -- what is asked ---------------------------------------------------------------------------------------------------------------
    @property
    def base(self) -> Results:
        """As in the paper, with the chosen dataset."""
        return self.known[Setting(dataset=self.setting.dataset)]

    @property
    def results(self) -> Results:
        """Of the present setting."""
        return self.known[self.setting]

    def change(self, **factors: Any) -> WhatIf:
        """Change factors (`FACTORS`) or ``dataset``; what is not named stays. Simulates what is not known yet: some seconds.

        Raises ValueError, and changes nothing, for what `paged_edu.sim.what_if.held` refuses and for a factor that there is not.
        """
        for name in factors:
            one_of("factor", name, ("dataset", *FACTORS))
        setting = replace(self.setting, **factors)
        one_of("dataset", setting.dataset, DATASETS)
        if setting not in self.known:
            self.known[setting] = all_held(setting)
        self.setting, self.notice = setting, ""
        self._show()
        return self

    def _summary(self) -> str:
        now, base = self.results, self.base
        rate, others = now["vLLM"].rate, [system for system in SYSTEMS if system != "vLLM"]
        ratios = ", ".join(f"{rate / now[system].rate:.2f} × {system}" for system in (others[0], others[-1]))
        before = f" ({base['vLLM'].rate:.3g} in the paper's setting)" if self.setting.changes() else ""
        return f"{NAMES[self.setting.dataset]}, {said(self.setting)}: vLLM holds {rate:.3g} requests/s{before}, {ratios}."

    # -- without a kernel --------------------------------------------------------------------------------------------------------------
    def __str__(self) -> str:
        """One line for each change that is stored."""
        width = max(len(said(setting)) for setting in self._stored())
        lines = [f"{NAMES[self.setting.dataset]}: requests/s that each system holds",
                 " " * width + "".join(f"{system:>15}" for system in SYSTEMS) + "   vLLM / Max   vLLM / Oracle"]
        for setting, now in self._stored().items():
            rate = now["vLLM"].rate
            lines.append(f"{said(setting):{width}}" + "".join(f"{now[system].rate:15.3g}" for system in SYSTEMS)
                         + f"{rate / now[SYSTEMS[0]].rate:13.2f}{rate / now['Orca (Oracle)'].rate:16.2f}")
        return "\n".join(lines)

    __repr__ = __str__

    def _stored(self) -> dict[Setting, Results]:
        return {setting: now for setting, now in self.known.items() if setting.dataset == self.setting.dataset and len(setting.changes()) < 2}

    def svg(self) -> str:
        """A bar a system; the paper's setting as a line across it."""
        left, width, row, results, base = 130, 470, 44, self.results, self.base
        most = max(*(one.rate for one in results.values()), *(one.rate for one in base.values()))
        body = [text(12, 24, f"{NAMES[self.setting.dataset]}, {said(self.setting)}", AUTO.ink, 15, weight=600)]
        for i, system in enumerate(SYSTEMS):
            y, now = 42 + i * row, results[system]
            long, mark = width * now.rate / most, left + width * base[system].rate / most
            body += [
                text(left - 10, y + 20, system, AUTO.ink, 13, "end"),
                rect(left, y, max(1.0, long), 30, LOOKS[system].hue, 3),
                f'<path d="M{num(mark)} {num(y - 4)}v38" stroke="{AUTO.ground}" stroke-width="5"/>',
                f'<path d="M{num(mark)} {num(y - 4)}v38" stroke="{AUTO.ink}" stroke-width="2" stroke-dasharray="4 2"/>',
                text(max(left + long, mark) + 10, y + 14, f"{now.rate:.3g} requests/s", AUTO.ink, 13, weight=600),
                text(max(left + long, mark) + 10, y + 29, f"{now.running:.1f} at once, {1e3 * now.step:.0f} ms a step", AUTO.muted, 12),
            ]
        y = 42 + len(SYSTEMS) * row + 12
        body.append(text(left, y, "requests/s while somebody always waits; dashed: the paper's setting", AUTO.muted, 12))
        return document(left + width + 190, y + 14, self.sentence, AUTO, body)

    def figure(self) -> dict[str, Any]:
        """The plotly figure as a plain dict: a slider over the stored changes."""
        settings = self._stored()
        base, now = self.base, self.setting if self.setting in settings else Setting(dataset=self.setting.dataset)

        def shown(results: Results) -> dict[str, Any]:
            words = [f"{results[s].rate:.3g} requests/s, {results[s].running:.1f} at once" for s in SYSTEMS]
            return {"x": [[round(results[s].rate, 4) for s in SYSTEMS]], "text": [words]}

        def axis(results: Results) -> list[float]:
            return [0, round(1.4 * max(results["vLLM"].rate, base["vLLM"].rate), 2)]

        steps = [{"label": said(setting), "method": "update",
                  "args": [shown(results), {"title.text": said(setting), "xaxis.range": axis(results)}, [0]]}
                 for setting, results in settings.items()]
        data = [
            {"type": "bar", "orientation": "h", "y": list(SYSTEMS), "x": shown(settings[now])["x"][0], "text": shown(settings[now])["text"][0],
             "textposition": "outside", "cliponaxis": False, "marker": {"color": [LOOKS[s].hue for s in SYSTEMS]}, "hoverinfo": "text"},
            {"type": "scatter", "mode": "markers", "y": list(SYSTEMS), "x": [round(base[s].rate, 4) for s in SYSTEMS], "hoverinfo": "x+name",
             "name": "in the paper's setting", "marker": {"symbol": "line-ns-open", "size": 30, "color": OUTLINE, "line": {"width": 2}}},
        ]
        layout = {
            "height": 380, "title": {"text": said(now), "x": 0.01, "font": {"size": 15}}, "showlegend": False,
            "paper_bgcolor": LIGHT.ground, "plot_bgcolor": LIGHT.ground, "font": {"family": FONT, "color": LIGHT.ink, "size": 12},
            "xaxis": {"title": {"text": "requests/s (grey: in the paper's setting)"}, "range": axis(settings[now]), "gridcolor": "#E4E6EA"},
            "yaxis": {"autorange": "reversed", "fixedrange": True}, "margin": {"l": 100, "r": 20, "t": 50, "b": 20},
            "sliders": [{"active": list(settings).index(now), "steps": steps, "currentvalue": {"prefix": f"{NAMES[now.dataset]}, "}, "pad": {"t": 40},
                         "ticklen": 0, "font": {"color": LIGHT.ground, "size": 1}}],
        }
        layout["sliders"][0]["currentvalue"]["font"] = {"color": LIGHT.ink, "size": 13}  # type: ignore[index]
        return {"data": data, "layout": layout}

    # -- in Jupyter --------------------------------------------------------------------------------------------------------------------
    def _build(self) -> Any:
        """The widget: a dataset, a slider a factor, the picture. Raises ImportError without ipywidgets."""
        import ipywidgets as w

        wide = {"description_width": "200px"}
        dataset = w.ToggleButtons(options=[(NAMES[name], name) for name in DATASETS], value=self.setting.dataset, description="requests of",
                                  style={"description_width": "80px", "button_width": "100px"})
        sliders = {
            name: w.SelectionSlider(
                options=[("× " + told("memory", value).rpartition(" × ")[2], value) for value in values], value=getattr(self.setting, name),
                description=LABELS[name], style=wide, layout=w.Layout(width="430px"), continuous_update=False)
            for name, values in FACTORS.items()
        }
        reset = w.Button(description="as in the paper", tooltip="All sliders back to 1")
        picture, status = w.HTML(), w.HTML()
        quiet = [False]

        def show() -> None:
            quiet[0] = True                                 # what is set here was not asked for by a reader
            try:
                dataset.value = self.setting.dataset
                for name, slider in sliders.items():
                    value = getattr(self.setting, name)
                    if value in FACTORS[name]:              # `change` takes others too: the sentence names them
                        slider.value = value
            finally:
                quiet[0] = False
            picture.value, status.value = self.svg(), self._said()

        def asked(_: object) -> None:
            if quiet[0]:
                return
            wanted = {name: slider.value for name, slider in sliders.items()} | {"dataset": dataset.value}
            if replace(self.setting, **wanted) not in self.known:
                status.value = '<div aria-live="polite">Four systems are simulated: some seconds …</div>'
            self._attempt(lambda: self.change(**wanted))

        def back(_: object) -> None:
            self.change(**dict.fromkeys(FACTORS, 1))

        for control in (dataset, *sliders.values()):
            control.observe(asked, "value")
        reset.on_click(back)
        self._show = show
        show()
        return w.VBox([dataset, w.HBox([w.VBox([*sliders.values(), reset]), picture], layout=w.Layout(flex_flow="row wrap")), status])
