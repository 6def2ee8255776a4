"""The colours of every picture: requests, memory parts, and the neutral ink and ground of a light, a dark or an unknown page.

Requests take the seven Okabe-Ito hues in order of arrival and then the same ones again under a hatch. A hue is never hashed from an id
(two requests could collide) and never stands alone: the request's letter is always beside it.
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

HUES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
"""Okabe and Ito's colours without black: any two of them stay apart under the three common kinds of colour vision deficiency."""
HATCHES = ("solid", "rising", "falling", "crossed")
"""How the first seven requests, the next seven, ... are told apart when their hue is the same."""
OUTLINE = "#7B7B7B"
"""The one grey with a contrast of 4.2 : 1 on the light and on the dark ground."""

TOKENS, RESERVED, INTERNAL, EXTERNAL = "#0072B2", "#56B4E9", "#E69F00", "#B0B0B0"
"""Memory parts (Paper Fig. 2): token states solid, reservation dotted, internal hatched, external or free cross-hatched."""


@dataclass(frozen=True, slots=True)
class Look:
    """How one request looks in every picture."""

    letter: str
    hue: str
    on_hue: str
    """Colour of the letter on the hue: contrast 4.88 or better."""
    hatch: str


@dataclass(frozen=True, slots=True)
class SystemLook:
    """How a serving system's curve looks in every picture. Its hue never stands alone: dash and mark differ as well."""

    hue: str
    dash: str
    """Of an SVG's ``stroke-dasharray``; "" for a whole line."""
    mark: str
    """A plotly symbol: open for the paper's points, filled for ours."""


SYSTEMS = {
    "FasterTransformer": SystemLook(OUTLINE, "2 3", "triangle-down"), "Orca (Max)": SystemLook(HUES[1], "10 3 2 3", "square"),
    "Orca (Pow2)": SystemLook(HUES[2], "7 4", "diamond"), "Orca (Oracle)": SystemLook(HUES[3], "14 4", "triangle-up"),
    "vLLM": SystemLook(HUES[0], "", "circle"), "vLLM, ShareGPT": SystemLook(HUES[4], "5 3", "circle"),
    "Existing systems": SystemLook(HUES[1], "10 3 2 3", "square"),
}
"""Name in the paper -> look."""
OTHERS = (SystemLook(HUES[4], "5 3", "square"), SystemLook(HUES[5], "3 2", "diamond"), SystemLook(HUES[6], "9 2", "triangle-up"))
"""For systems that have no look of their own, in order."""


def system_looks(names: Iterable[str]) -> dict[str, SystemLook]:
    """Looks for the curves of one picture. Raises ValueError for more systems than can be told apart."""
    names = list(names)
    unknown = [name for name in names if name not in SYSTEMS]
    if len(unknown) > len(OTHERS):
        raise ValueError(f"{len(unknown)} systems in one picture have no colour of their own ({', '.join(unknown)}); at most {len(OTHERS)} can")
    return {name: SYSTEMS[name] if name in SYSTEMS else OTHERS[unknown.index(name)] for name in names}


@dataclass(frozen=True, slots=True)
class Theme:
    """The neutral colours of a picture. ``style`` is CSS that must stand in the SVG: it defines the variables that the others name."""

    ink: str
    ground: str
    muted: str
    style: str = ""


LIGHT = Theme(ink="#1A1D23", ground="#FFFFFF", muted="#5B6270")
DARK = Theme(ink="#E8EAED", ground="#16181D", muted="#A3A9B4")

# A page says what its ink and ground are: JupyterLab, VS Code and the Sphinx book theme each by variables of their own. A picture in an <img>
# has no page; there the operating system's preference decides, and ink and ground change together, so it stays legible on any page.
_PAGE_INK = "var(--jp-content-font-color1, var(--vscode-editor-foreground, var(--pst-color-text-base, {})))"
_PAGE_GROUND = "var(--jp-layout-color0, var(--vscode-editor-background, var(--pst-color-background, {})))"
_PAGE_MUTED = "var(--jp-content-font-color2, var(--vscode-descriptionForeground, var(--pst-color-text-muted, {})))"


def _rule(theme: Theme) -> str:
    return (
        f".paged-edu{{--pe-ink:{_PAGE_INK.format(theme.ink)};--pe-ground:{_PAGE_GROUND.format(theme.ground)};"
        f"--pe-muted:{_PAGE_MUTED.format(theme.muted)}}}"
    )


AUTO = Theme(
    ink="var(--pe-ink)", ground="var(--pe-ground)", muted="var(--pe-muted)",
    style=f"{_rule(LIGHT)}@media (prefers-color-scheme:dark){{{_rule(DARK)}}}",
)


def letter(arrival: int) -> str:
    """Name of the request that arrived as number ``arrival`` (from 0): A ... Z, then A2 ... Z2, A3 ..."""
    if arrival < 0:
        raise ValueError(f"arrival counts from 0, not {arrival}")
    lap, index = divmod(arrival, 26)
    return chr(ord("A") + index) + (str(lap + 1) if lap else "")


def look(arrival: int) -> Look:
    """Letter, hue and hatch of the request that arrived as number ``arrival`` (from 0)."""
    name = letter(arrival)
    lap, index = divmod(arrival, len(HUES))
    return Look(name, HUES[index], "#FFFFFF" if index == 0 else "#111111", HATCHES[lap % len(HATCHES)])
