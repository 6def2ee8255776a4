"""The numbers of `paged-edu bench memory` as a person reads them: tables in the terminal, the README's section, bars beside Paper Fig. 2.

``python -m paged_edu.bench.memory_view README.md [FILE]`` writes the README's section again, from FILE or from the numbers that the package brings;
a test compares the two.
"""
from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from ..viz import palette
from ..words import counted
from .memory import PAPER_FIG2, PAPER_RUNNING, PAPER_SHARING
from .probe import PARTS

NAMES = {
    "orca-max": "Orca Max", "orca-pow2": "Orca Pow2", "orca-oracle": "Orca Oracle", "grow": "doubling", "paged": "paged",
}
LABELS = dict(zip(PARTS, ("token states", "reservation", "internal fragmentation", "external fragmentation and others"), strict=True))
BEGIN, END = "<!-- memory: generated, see paged_edu/bench/memory_view.py -->", "<!-- memory: end -->"
STORED = files("paged_edu.data").joinpath("bench", "memory.json")


# -- in the terminal -------------------------------------------------------------------------------------------------------------------
def show(result: dict[str, Any], console: Console | None = None) -> None:
    """Print what was measured, in 80 columns."""
    console = console or Console(highlight=False)
    if "paper" in result:
        part = result["paper"]
        drawn = f"{part['dataset']} lengths up to {part['max_model_len']} tokens"
        console.print(_title(f"At the paper's size: {drawn}", part), style="bold", markup=False)
        console.print(memory_table(part, _figure(part)), serving_table(part, PAPER_RUNNING[part["dataset"]]), sep="\n")
        console.print(never_full(part, "--requests"), end="", markup=False)
    if "sharing" in result:
        console.print("\nBlocks saved by sharing: parallel samples of alpaca requests, paged", style="bold", markup=False)
        console.print(_sharing(result["sharing"]))
    if "engine" in result:
        part = result["engine"]
        scaled = f"{part['model']} ({part['dtype']}), {part['dataset']} lengths scaled to {part['max_model_len']} positions"
        console.print(_title(f"\nWith a model: {scaled}", part), style="bold", markup=False)
        console.print(memory_table(part, {}), serving_table(part, {}), sep="\n")
        console.print(never_full(part, "--engine-requests"), end="", markup=False)
        console.print(same_tokens(part), markup=False)
    console.print(
        "\nMeans over the steps in which requests wait, without the first quarter; below them the lowest and the highest such step. The four parts "
        "are shares of all slots; in use: token states as a share of the blocks that somebody holds.", style="dim", markup=False,
    )


def _title(what: str, part: dict[str, Any]) -> str:
    seeds = f", {counted(part['seeds'], 'seed')}" if "seeds" in part else ""
    return f"{what}\n{part['num_blocks']} blocks of {part['block_size']} slots, {counted(part['requests'], 'request')}{seeds}"


def _figure(part: dict[str, Any]) -> Mapping[str, tuple[float, ...]]:
    """The printed parts that go with the lengths."""
    return PAPER_FIG2 if part["dataset"] == "sharegpt" else {}


def new_table(*headings: str) -> Table:
    """A column of names, then numbers under ``headings``."""
    table = Table(Column("", no_wrap=True))
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def memory_table(part: dict[str, Any], printed: Mapping[str, tuple[float, ...]]) -> Table:
    """The four parts of Fig. 2, and how full the memory is that somebody holds."""
    table = new_table("token\nstates", "reser-\nvation", "internal\nfragm.", "external\nfragm.", "in use")
    for manager, its in part["summary"].items():
        cells = [*(its["parts"][name] for name in PARTS), its["in_use"]]
        table.add_row(NAMES[manager], *(f"{cell['mean']:.1%}" for cell in cells))
        rows = [row["parts"] | {"in_use": row["in_use"]} for row in part["rows"] if row["manager"] == manager]
        table.add_row("", *(_low_high([row[name] for row in rows], 100) for name in (*PARTS, "in_use")), style="dim")
        if manager in printed:
            table.add_row("  paper, Fig. 2", *(f"{share:.1%}" for share in printed[manager]), "", style="dim")
    return table


def _low_high(spans: list[dict[str, float]], scale: int = 1) -> str:
    return f"{scale * min(span['min'] for span in spans):.0f}-{scale * max(span['max'] for span in spans):.0f}"


def serving_table(part: dict[str, Any], printed: Mapping[str, float]) -> Table:
    """Who runs at once, and what that means for the run as a whole."""
    table = new_table("requests\nat once", "low-\nhigh", *(("paper,\nFig. 13",) if printed else ()), "times\nMax's", "steps",
                   "preemp-\ntions", "blocks\ncopied")
    for manager, its in part["summary"].items():
        paper = (f"{printed[manager]:.1f}" if manager in printed else "",) if printed else ()
        span = _low_high([row["running"] for row in part["rows"] if row["manager"] == manager])
        counts = (f"{its[name]['mean']:,.0f}" for name in ("steps", "preemptions", "copied_blocks"))
        table.add_row(NAMES[manager], f"{its['running']['mean']:.1f}", span, *paper, f"{its['running_against_orca_max']:.2f}", *counts)
    return table


def _sharing(part: dict[str, Any]) -> Table:
    table = new_table("saved", "low-\nhigh", "paper,\nFig. 15", "requests\nat once", "blocks\ncopied")
    for row in part["rows"]:
        saved = row["sharing_saving"]
        table.add_row(
            f"{row['n']} samples", f"{saved['mean']:.1%}", _low_high([saved], 100), f"{PAPER_SHARING[row['n']]:.1%}",
            f"{row['running']['mean']:.1f}", f"{row['copied_blocks']:,}",
        )
    return table


def never_full(part: dict[str, Any], option: str) -> str:
    """A line about the managers under which all requests fitted at once: their means are over all steps, and no comparison with the others."""
    roomy = dict.fromkeys(NAMES[row["manager"]] for row in part["rows"] if not row["crowded_steps"])
    if not roomy:
        return ""
    return f"Nobody ever waited under {', '.join(roomy)}: means over all steps, not to be compared with the others. More {option} fill the memory.\n"


def same_tokens(part: dict[str, Any]) -> str:
    """Whether every manager gave the same texts, in a sentence."""
    fewest = min(row["same_tokens_as_paged"] for row in part["rows"])
    if fewest == part["requests"]:
        return f"Every manager gave the same tokens, for all {part['requests']} requests."
    different = [f"{NAMES[row['manager']]} {part['requests'] - row['same_tokens_as_paged']}" for row in part["rows"]]
    return f"Requests with other tokens than under paging, of {part['requests']}: {', '.join(different)}. In float64 there should be none."


# -- in the README ---------------------------------------------------------------------------------------------------------------------
def readme_section(result: dict[str, Any]) -> str:
    """Markdown: the table of the paper's part, and what the parts say in sentences. Every number comes from ``result``."""
    part, engine, sharing = result["paper"], result["engine"], result["sharing"]
    lines = [
        "| | token states | reservation | internal fragmentation | external | requests at once | steps | preemptions | copied blocks |",
        "|---|" + "--:|" * 8,
    ]
    for manager, its in part["summary"].items():
        shares = [_against(its["parts"][name]["mean"], PAPER_FIG2.get(manager, ())[i : i + 1], "{:.1%}") for i, name in enumerate(PARTS)]
        printed = PAPER_RUNNING[part["dataset"]].get(manager)
        running = _against(its["running"]["mean"], () if printed is None else (printed,), "{:.1f}")
        counts = [f"{its[name]['mean']:,.0f}" for name in ("steps", "preemptions", "copied_blocks")]
        lines.append(f"| {NAMES[manager]} | {' | '.join([*shares, running, *counts])} |".replace("%", " %"))
    return "\n".join([*lines, "", _words(part, engine, sharing)])


def _against(value: float, printed: tuple[float, ...], form: str) -> str:
    return form.format(value) + "".join(f" ({form.format(number)})" for number in printed)


def _words(part: dict[str, Any], engine: dict[str, Any], sharing: dict[str, Any]) -> str:
    paged, real = part["summary"]["paged"], engine["summary"]
    apart = max(
        abs(its["parts"][name]["mean"] - PAPER_FIG2[manager][i])
        for manager, its in part["summary"].items() if manager in PAPER_FIG2 for i, name in enumerate(PARTS)
    )
    saved = ", ".join(f"{row['n']}: {row['sharing_saving']['mean']:.1%} ({PAPER_SHARING[row['n']]:.1%})" for row in sharing["rows"])
    return (
        f"Means over {counted(part['seeds'], 'seed')} of {part['requests']} requests; in brackets the paper's Fig. 2 and 13. No part is more than "
        f"{100 * apart:.1f} points from the figure. Under paging {paged['in_use']['mean']:.1%} of the memory that somebody holds is tokens, "
        f"{paged['running_against_orca_max']:.1f} times as many requests run as under Orca Max ({paged['running']['min']:.1f} to "
        f"{paged['running']['max']:.1f}, depending on the seed), and all are done after {paged['steps_against_orca_max']:.0%} of its steps.\n\n"
        f"Samples of a request share its prompt. Blocks that this saves, by number of samples (Alpaca lengths; in brackets Fig. 15): {saved}.\n\n"
        f"With a real model (`{engine['model']}`, lengths and pool scaled to {engine['max_model_len']} positions: {engine['num_blocks']} blocks of "
        f"{engine['block_size']} slots, {engine['requests']} requests) {real['paged']['running']['mean']:.1f} requests run at once under paging and "
        f"{real['orca-max']['running']['mean']:.1f} under Orca Max, {real['paged']['running_against_orca_max']:.1f} times as many, and "
        f"{real['paged']['in_use']['mean']:.1%} of the memory that somebody holds is tokens: for requests this short the last block weighs more. "
        f"{same_tokens(engine)}"
    ).replace("%", " %")


def with_section(readme: str, result: dict[str, Any]) -> str:
    """``readme`` with the section between its two markers written anew. Raises ValueError if they are not there."""
    if readme.count(BEGIN) != 1 or readme.count(END) != 1 or readme.index(BEGIN) > readme.index(END):
        raise ValueError(f"the file must have one line {BEGIN!r} and, after it, one {END!r}")
    before, rest = readme.split(BEGIN)
    return f"{before}{BEGIN}\n{readme_section(result)}\n{END}{rest.split(END)[1]}"


# -- as a picture ----------------------------------------------------------------------------------------------------------------------
DRAWN = ("paper", "engine")


def drawable(parts: Iterable[str]) -> None:
    """Raise, before anything is measured, where there is no plotly (ImportError) or nothing to draw (ValueError)."""
    if not set(parts) & set(DRAWN):
        raise ValueError(f"--html: nothing to draw; it shows the parts {' and '.join(DRAWN)}")
    if find_spec("plotly") is None:
        raise ImportError("--html draws with plotly, which is not installed: pip install 'paged-edu[lab]'")


def figure(result: dict[str, Any]) -> Any:
    """A plotly figure: for each part with managers a row, memory as stacked bars beside Paper Fig. 2, and the requests that run."""
    from plotly.subplots import make_subplots

    rows = [name for name in DRAWN if name in result]
    titles = {"paper": "at the paper's size", "engine": f"{result.get('engine', {}).get('model')}, scaled"}
    fig = make_subplots(
        len(rows), 2, column_widths=[0.68, 0.32], vertical_spacing=0.24,
        subplot_titles=[title for name in rows for title in (f"KV memory, {titles[name]}", "requests that run")],
    )
    for place, name in enumerate(rows, 1):
        _stacks(fig, place, result[name]["summary"], _figure(result[name]) if name == "paper" else {})
        printed = PAPER_RUNNING[result[name]["dataset"]] if name == "paper" else {}
        _running(fig, place, result[name]["summary"], printed)
    legend = {"orientation": "h", "y": 1.08, "yanchor": "bottom"}
    fig.update_layout(barmode="stack", template="plotly_white", height=120 + 440 * len(rows), font_size=14, legend=legend)
    fig.update_yaxes(tickformat=".0%", range=[0, 1], col=1)
    fig.update_yaxes(rangemode="tozero", col=2)
    return fig


def _stacks(fig: Any, row: int, summary: dict[str, Any], printed: Mapping[str, tuple[float, ...]]) -> None:
    looks = zip(PARTS, (palette.TOKENS, palette.RESERVED, palette.INTERNAL, palette.EXTERNAL), ("", ".", "/", "x"), strict=True)
    for i, (part, colour, shape) in enumerate(looks):
        bars = [(NAMES[manager], "measured", its["parts"][part]["mean"]) for manager, its in summary.items()]
        bars += [(NAMES[manager], "Fig. 2", shares[i]) for manager, shares in printed.items()]
        bars.sort(key=lambda bar: ([NAMES[manager] for manager in summary].index(bar[0]), bar[1] != "measured"))
        fig.add_bar(
            x=[[bar[0] for bar in bars], [bar[1] for bar in bars]] if printed else [bar[0] for bar in bars], y=[bar[2] for bar in bars],
            name=LABELS[part], marker={"color": colour, "pattern": {"shape": shape, "fgcolor": "#FFFFFF"}},
            text=[f"{bar[2]:.0%}" if bar[2] >= 0.06 else "" for bar in bars], textposition="inside", legendgroup=part, showlegend=row == 1,
            hovertemplate="%{x}: %{y:.1%}<extra>" + LABELS[part] + "</extra>", row=row, col=1,
        )


def _running(fig: Any, row: int, summary: dict[str, Any], printed: dict[str, float]) -> None:
    fig.add_bar(
        x=[NAMES[manager] for manager in summary], y=[its["running"]["mean"] for its in summary.values()], marker={"color": palette.TOKENS},
        text=[f"{its['running']['mean']:.1f}" for its in summary.values()], name="measured", showlegend=False, row=row, col=2,
    )
    if printed:
        fig.add_scatter(
            x=[NAMES[manager] for manager in printed], y=list(printed.values()), mode="markers", name="paper, Fig. 13",
            marker={"symbol": "line-ew-open", "size": 26, "line": {"width": 3}, "color": palette.LIGHT.ink}, row=row, col=2,
        )


def write_html(result: dict[str, Any], path: Path) -> None:
    """The figure as one file that needs no network."""
    figure(result).write_html(path, include_plotlyjs=True)


def main(arguments: list[str], say: Callable[[str], object] = print) -> None:
    """Write the README's section: ``README [FILE]``."""
    if not 1 <= len(arguments) <= 2:
        raise SystemExit("usage: python -m paged_edu.bench.memory_view README.md [FILE.json]")
    readme, stored = Path(arguments[0]), STORED if len(arguments) == 1 else Path(arguments[1])
    text = with_section(readme.read_text(encoding="utf-8"), json.loads(stored.read_text(encoding="utf-8")))
    readme.write_bytes(text.encode())       # the same bytes on every system
    say(f"{readme}: {counted(text.count(chr(10)), 'line')}")


if __name__ == "__main__":
    main(sys.argv[1:])
