"""The parts of a step as a person reads them: a table in the terminal, and a page of bars that needs nothing but a browser."""
from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console

from ..viz.palette import LIGHT
from .memory_view import new_table
from .step_profile import KINDS, PARTS

HUES = dict(zip(PARTS, ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B0B0B0"), strict=True))
ON_HUES = dict(zip(PARTS, ("#FFFFFF", "#FFFFFF", "#FFFFFF", LIGHT.ink, LIGHT.ink), strict=True))
HEADS = {"products": "products", "other": "rest"}
WIDTH, LEFT, BAR, GAP = 880, 170, 40, 22


def show(profile: Mapping[str, Any], console: Console) -> None:
    """Print shares and ratio, in 80 columns."""
    console.print("\nWhere the time of a step goes", style="bold", markup=False)
    table = new_table("steps", "ms", "matrix\nproducts", "atten-\ntion", "samp-\nling", "sched-\nuling", "rest")
    for kind, its in profile["parts"].items():
        table.add_row(KINDS[kind], f"{its['steps']}", _mean_ms(its), *(f"{its['shares'][name]:.1%}" for name in PARTS))
    console.print(table)
    console.print(ratio(profile["against"]), markup=False)


def ms(seconds: float) -> str:
    """A time under a heading that says ms: three or four digits; where it says s itself, seconds."""
    value = 1e3 * seconds
    return f"{seconds:.1f} s" if seconds >= 10 else f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _mean_ms(its: Mapping[str, Any]) -> str:
    return ms(its["seconds"] / its["steps"])


def ratio(part: Mapping[str, Any]) -> str:
    """The decode step against its products, in a sentence."""
    step, alone, each = part["step_s"], part["products_s"], part["ratio_by_step"]
    return (
        f"A decode step of {part['sequences']} sequences takes {part['ratio']:.2f} times its {part['products']} matrix products alone: "
        f"{1e3 * step['median']:.2f} ms against {1e3 * alone['median']:.2f} ms, medians of {part['steps']} in turns "
        f"(middle half of the ratios {each['low']:.2f} to {each['high']:.2f})."
    )


# -- as a page -------------------------------------------------------------------------------------------------------------------------
STYLE = f"""
body {{ font: 16px/1.5 system-ui, sans-serif; color: {LIGHT.ink}; background: {LIGHT.ground}; margin: 2rem auto; max-width: 56rem; padding: 0 1rem }}
h1 {{ font-size: 1.4rem }} h2 {{ font-size: 1.1rem; margin-top: 2rem }} p.small {{ color: {LIGHT.muted}; font-size: .9rem }}
table {{ border-collapse: collapse }}
th, td {{ text-align: right; padding: .25rem .7rem; border-bottom: 1px solid #D5D8DD; font-weight: normal; white-space: nowrap }}
th:first-child {{ text-align: left }} svg {{ max-width: 100%; height: auto }}
.scroll {{ overflow-x: auto }}
"""


def write_html(result: Mapping[str, Any], path: Path) -> None:
    """Shares and ratio as one file that needs no network."""
    from .throughput_view import about, title

    profile = result["profile"]
    body = [
        "<h1>Where the time of a step goes</h1>", f"<p>{escape(title(result))}</p>", _picture(profile), _table(profile),
        "<p class=small>Matrix products: every layer that multiplies by weights, and the output head. Attention: writing keys and values, and "
        "reading them through the block table. Scheduling: the plan, the update after the step, and the tensors that tell the model of it. "
        "Everything else: norms, rotations, activations, additions, and the engine around the step.</p>",
        "<h2>Against its matrix products alone</h2>", _pair(profile["against"]), f"<p>{escape(ratio(profile['against']))}</p>",
        "<p class=small>The products are those of a real step: recorded once with their weights and inputs, then run again between whole steps.</p>",
        f"<p class=small>{escape(about(result))}</p>",
    ]
    html = f'<!doctype html>\n<html lang=en><meta charset=utf-8><meta name=viewport content="width=device-width">' \
           f"<title>Where the time of a step goes</title><style>{STYLE}</style>\n<body>\n" + "\n".join(body) + "\n</body></html>\n"
    path.write_text(html, encoding="utf-8")


def _svg(height: int, what: str, body: list[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img" aria-label="{escape(what)}" font-size="14">{"".join(body)}</svg>'


def _text(x: float, y: float, text: str, fill: str = LIGHT.ink, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" text-anchor="{anchor}">{escape(text)}</text>'


def _picture(profile: Mapping[str, Any]) -> str:
    """A bar of the same length for each kind of step, cut into its parts."""
    body, x = [], float(LEFT)
    for name, label in PARTS.items():
        body += [f'<rect x="{x:.1f}" y="4" width="14" height="14" fill="{HUES[name]}"/>', _text(x + 20, 16, label)]
        x += 44 + 7.4 * len(label)
    y = 36
    for kind, its in profile["parts"].items():
        body += [_text(LEFT - 12, y + 17, KINDS[kind], anchor="end"),
                 _text(LEFT - 12, y + 34, f"{its['steps']} of {_mean_ms(its)} ms", LIGHT.muted, "end")]
        x = float(LEFT)
        for name, label in PARTS.items():
            share = its["shares"][name]
            width = share * (WIDTH - LEFT)
            body.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{HUES[name]}" stroke="{LIGHT.ground}">'
                        f"<title>{label}: {share:.1%}</title></rect>")
            if width > 44:
                body.append(_text(x + width / 2, y + 25, f"{share:.0%}", ON_HUES[name], "middle"))
            x += width
        y += BAR + GAP
    return _svg(y, "shares of a step, by kind of step; the table below has the numbers", body)


def _table(profile: Mapping[str, Any]) -> str:
    head = "".join(f"<th>{label}</th>" for label in ("", "steps", "ms a step", *(HEADS.get(name, label) for name, label in PARTS.items())))
    rows = "".join(
        f"<tr><th>{KINDS[kind]}</th><td>{its['steps']}</td><td>{_mean_ms(its)}</td>"
        + "".join(f"<td>{its['shares'][name]:.1%}</td>" for name in PARTS) + "</tr>" for kind, its in profile["parts"].items())
    return f"<div class=scroll><table><tr>{head}</tr>{rows}</table></div>"


def _pair(part: Mapping[str, Any]) -> str:
    """Two bars from zero: the step, and its products."""
    times = {"whole step": (part["step_s"]["median"], "#B0B0B0"), "products alone": (part["products_s"]["median"], HUES["products"])}
    longest, body, y = max(seconds for seconds, _ in times.values()), [], 4
    for label, (seconds, hue) in times.items():
        width = (WIDTH - LEFT - 90) * seconds / longest
        body += [_text(LEFT - 12, y + 19, label, anchor="end"), f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="28" fill="{hue}"/>',
                 _text(LEFT + width + 10, y + 19, f"{1e3 * seconds:.2f} ms")]
        y += 40
    return _svg(y, ratio(part), body)
