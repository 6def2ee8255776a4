"""The numbers of `paged-edu bench serve` as a person reads them: tables in the terminal, and a page of charts (with plotly)."""
from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from ..words import counted
from .memory_view import new_table
from .page import CHART, write_page
from .step_profile_view import ms
from .throughput_view import HUES, rate

ROWS = {
    "ttft_s": "to the first token", "tpot_s": "a token after it", "gap_s": "between two events", "latency_s": "to the end",
    "normalized_s": "to the end, a token",
}


def show(result: dict[str, Any], console: Console) -> None:
    """Print what was measured, in 80 columns."""
    console.print(title(result), style="bold", markup=False)
    console.print(about(result), style="dim", markup=False)
    tables(result, console)
    for line in sentences(result):
        console.print(line, markup=False)
    if not result["complete"]:
        many = result["serve"].get("asked")
        said = f": {counted(many, 'request')} had been asked for, and above are those that had ended." if many else "."
        console.print(f"This run was interrupted{said}", style="bold", markup=False)


def title(result: Mapping[str, Any]) -> str:
    """Who was asked what."""
    part, options = result["serve"], result["options"]
    where = options["workload"] or f"{options['dataset']} lengths scaled to {part['max_model_len']} positions"
    when = f"{options['rate']:g} requests/s" if options["rate"] is not None else "at their times" if options["workload"] else "all at once"
    whom = "its own server" if options["against_llm"] else options["url"]
    return f"{part['model']} at {whom}: {counted(part['summary']['requests'], 'request')} {when} ({where})"


def about(result: Mapping[str, Any]) -> str:
    machine = result["machine"]
    return f"client on {machine['cpu']}, {counted(machine['cpu_count'], 'processor')}, {machine['date'][:10]}"


def tables(result: Mapping[str, Any], console: Console) -> None:
    """Latencies, in milliseconds."""
    found = result["serve"]["summary"]
    table = new_table("mean, ms", "p50", "p90", "p99")
    for key, what in ROWS.items():
        if key in found:
            table.add_row(what, *(ms(found[key][name]) for name in ("mean", "p50", "p90", "p99")))
    console.print(table)


def sentences(result: Mapping[str, Any]) -> list[str]:
    found = result["serve"]["summary"]
    said = [f"{found['answered']} of {counted(found['requests'], 'request')} answered in {found['seconds']:.1f} s: "
            f"{rate(found['tokens_per_s'])} tokens/s, {found['requests_per_s']:.2f} requests/s."]
    said += [f"{count} times: {error}" for error, count in found["errors"].items()]
    if "race" in found:
        race, rounds, same = found["race"], counted(found["rounds"], "round"), found["same_texts"]
        said.append(
            f"LLM.generate: {rate(race['llm']['median'])} tokens/s; the server: {rate(race['server']['median'])}, {race['ratio']['median']:.1%} "
            f"of it ({race['ratio']['low']:.1%} to {race['ratio']['high']:.1%}; {rounds}). In seconds of a processor: "
            f"{race['processor_ratio']['median']:.1%}. Equal texts: {same} of {found['requests']}.")
    return said


def write(result: dict[str, Any], path: Path) -> None:
    """The page, one file that needs no network."""
    text = io.StringIO()
    tables(result, Console(file=text, width=96, highlight=False, color_system=None))
    write_page("bench serve", title(result), about(result), sentences(result), [waits(result), timeline(result)], text.getvalue(), path)


def _answered(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [row for row in result["serve"]["run"]["rows"] if row["error"] is None]


def waits(result: Mapping[str, Any]) -> Any:
    """How many of the requests had waited no longer than x: for the first token, and for the last."""
    from plotly.graph_objects import Figure

    fig, rows = Figure(), _answered(result)
    for name, colour, values in (("first token", HUES[0], [row["events"][0] - row["arrival"] for row in rows]),
                                 ("last token", HUES[1], [row["ended"] - row["arrival"] for row in rows])):
        ordered = sorted(values)
        fig.add_scatter(x=ordered, y=[(i + 1) / len(ordered) for i in range(len(ordered))], mode="lines", name=name,
                        line={"color": colour, "width": 2, "shape": "hv"}, hovertemplate="%{y:.0%} within %{x:,.3f} s")
    fig.update_layout(title="How long requests waited", **CHART)
    fig.update_layout(showlegend=True, legend={"orientation": "h", "y": -0.25})
    fig.update_xaxes(title="s since it came", rangemode="tozero")
    fig.update_yaxes(title="share of the requests", tickformat=".0%", range=[0, 1.02])
    return fig


def timeline(result: Mapping[str, Any]) -> Any:
    """A line for each request: hollow while it waits for its first token, full while it is answered."""
    from plotly.graph_objects import Figure

    fig, rows = Figure(), _answered(result)
    spans = [(row["arrival"], row["events"][0], row["ended"]) for row in rows]
    for name, colour, width, part in (("waits", "#C9CDD4", 2, 0), ("is answered", HUES[0], 4, 1)):
        x: list[float | None] = []
        y: list[int | None] = []
        for i, span in enumerate(spans):
            x += [span[part], span[part + 1], None]
            y += [i, i, None]
        fig.add_scatter(x=x, y=y, mode="lines", name=name, line={"color": colour, "width": width}, hovertemplate="request %{y}: %{x:,.3f} s")
    fig.update_layout(title="Requests over time", **CHART)
    fig.update_layout(showlegend=True, legend={"orientation": "h", "y": -0.25}, height=max(380, min(1200, 8 * len(rows))))
    fig.update_xaxes(title="s")
    fig.update_yaxes(title="request", autorange="reversed")
    return fig
