"""The numbers of `paged-edu bench kernels` as a person reads them: tables in the terminal, and a roofline of the measured times.

Everything is made from the JSON that a run writes, so a run on one machine can be shown on another (``--load FILE``).
"""
from __future__ import annotations

import io
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from ..viz import palette
from ..viz.chart import HUES
from . import stored

NAMES = {
    "sdpa": "SDPA, contiguous", "sdpa gqa": "SDPA, enable_gqa", "naive": "0 naive", "tiled": "1 tiled", "split": "2 split", "unified": "3 unified",
}
LOOKS = {
    "SDPA": ("x", palette.LIGHT.ink), "naive": ("circle-open", HUES[1]), "tiled": ("square-open", HUES[3]), "split": ("diamond", HUES[0]),
    "unified": ("triangle-up", HUES[2]),
}
"""Kernel -> mark and colour: told apart without colours as well."""


def loaded(path: Path) -> dict[str, Any]:
    """What an earlier run wrote. Raises ValueError for another file."""
    def drawn(result: dict[str, Any]) -> None:
        rows = result["times"]["workloads"] if "times" in result else result["resources"]["rows"]
        if not rows:
            raise ValueError
        show(result, Console(file=io.StringIO()))
        if "times" in result and any(workload["rows"] for workload in rows) and find_spec("plotly") is not None:
            figure(result)                                  # without plotly nothing is drawn

    return stored.load(path, "bench kernels", drawn)


def wrong(result: dict[str, Any]) -> list[str]:
    """What is the matter with any kernel, in words."""
    found = list(result["resources"]["faults"]) if "resources" in result else []
    for workload in result.get("times", {}).get("workloads", ()):
        found += [f"{workload['name']}: {row['kernel']} is off by {row['error']:.2g}" for row in workload["rows"] if row["wrong"]]
    return found


# -- in the terminal -------------------------------------------------------------------------------------------------------------------
def show(result: dict[str, Any], console: Console | None = None) -> None:
    """Print what was measured, in 80 columns."""
    console = console or Console(highlight=False)
    if "times" in result:
        _show_times(result["times"], console)
    if "resources" in result:
        _show_resources(result["resources"], console)
    for line in wrong(result):
        console.print(f"WRONG: {line}", style="bold red", markup=False)


def _table(*headings: str) -> Table:
    table = Table(Column("", no_wrap=True))
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _show_times(part: dict[str, Any], console: Console) -> None:
    console.print(f"{part['card']['name']}: products of matrices reach {part['matmul_tflop_per_s']:,.0f} TFLOP/s", style="bold", markup=False)
    for workload in part["workloads"]:
        console.print(f"\n{workload['name']}" + (f", {workload['dtype']}" if "dtype" in workload else ""), style="bold", markup=False)
        if "skipped" in workload:
            console.print(f"left out: {workload['skipped']}", markup=False)
            continue
        console.print(_times(workload))
        said = f"least possible: {_ms(workload['floor_ms'])} ms at the copy's {workload['copy_gb_per_s']:,.0f} GB/s"
        if workload["chosen_splits"]:
            said += f"; split chose {workload['chosen_splits']}"
        if workload["published_ms"]:
            before, after = workload["published_ms"]
            said += f"; published (card not named): {before:.3f} ms, improved {after:.3f} ms"
        console.print(said, style="dim", markup=False)
    console.print(
        "\nMedians, taken in turns from cold caches. Against SDPA: the price of paging (the quicker of the two SDPA). Of the least: the "
        "bytes that must be read over the bandwidth of a copy, as a share of the time.", style="dim", markup=False,
    )


def _times(workload: dict[str, Any]) -> Table:
    table = _table("ms", "middle half", "against\nSDPA", "of the\nleast", "GB/s", "TFLOP/s")
    for row in workload["rows"]:
        forced = row["kernel"].startswith("split ")
        table.add_row(
            f"  forced {row['kernel']}" if forced else NAMES[row["kernel"]], _ms(row["median_ms"]), f"{_ms(row['low_ms'])}-{_ms(row['high_ms'])}",
            f"{row['against_sdpa'] - 1:+.1%}", f"{row['share_of_floor']:.0%}", f"{row['gb_per_s']:,.0f}", f"{row['tflop_per_s']:,.1f}",
            style="dim" if forced else None,
        )
    return table


def _ms(ms: float) -> str:
    return f"{ms:.3f}" if ms < 100 else f"{ms:,.0f}"


def _show_resources(part: dict[str, Any], console: Console) -> None:
    for arch in dict.fromkeys(row["arch"] for row in part["rows"]):
        console.print(f"\nsm_{arch}", style="bold", markup=False)
        table = Table(Column("kernel", no_wrap=True), Column("heads", no_wrap=True), Column("what", overflow="fold"))
        for heading in ("warps", "regis-\nters", "shared\nKiB", "spill\nbytes"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in part["rows"]:
            if row["arch"] == arch:
                table.add_row(*_resources(row), style="bold red" if row.get("spill_bytes") else None)
        console.print(table)
    console.print(
        "\nRegisters and spilled bytes of each thread, shared memory of each program. Nothing ran. b: block size, w: window, q: query tokens of each "
        "sequence, s: splits.", style="dim", markup=False,
    )


def _resources(row: dict[str, Any]) -> list[str]:
    what = [row["dtype"], f"b{row['block_size']}", *(["int8"] if row["int8"] else []), *([f"w{row['window']}"] if row["window"] else []),
            *([f"q{row['queries']}"] if row["queries"] > 1 else []), *([f"s{row['splits']}"] if row["splits"] > 1 else [])]
    heads = row["name"].split()[3]
    if "error" in row:
        return [row["kernel"], heads, " ".join(what), "", "", "", "failed"]
    numbers = (row["num_warps"], row["registers"], f"{row['shared_bytes'] / 1024:.1f}", row["spill_bytes"])
    return [row["kernel"], heads, " ".join(what), *map(str, numbers)]


# -- as a picture ----------------------------------------------------------------------------------------------------------------------
def drawable(part: str) -> None:
    """Raise, before anything is measured, where there is no plotly (ImportError) or nothing to draw (ValueError)."""
    if part != "times":
        raise ValueError("nothing to draw: --html draws times, and those need a GPU (or --load FILE with the numbers of one)")
    if find_spec("plotly") is None:
        raise ImportError("--html draws with plotly, which is not installed: pip install 'paged-edu[lab]'")


def figure(result: dict[str, Any]) -> Any:
    """The roofline: how many operations a byte a workload has to offer, and how many a second a kernel made of it, under the two measured roofs."""
    from plotly.graph_objects import Figure

    part = result["times"]
    measured = [workload for workload in part["workloads"] if workload["rows"]]
    fig = Figure()
    _roofs(fig, part, measured)
    for kernel in NAMES:
        points = [(workload, row) for workload in measured for row in workload["rows"] if row["kernel"] == kernel]
        if not points:
            continue
        symbol, colour = LOOKS["SDPA" if kernel.startswith("sdpa") else kernel]
        fig.add_scatter(
            x=[workload["flops"] / workload["bytes"] for workload, _ in points], y=[row["tflop_per_s"] for _, row in points], mode="markers",
            name=NAMES[kernel], marker={"symbol": symbol, "color": colour, "size": 11, "line": {"width": 2, "color": colour}},
            customdata=[[w["name"], row["median_ms"], row["share_of_floor"], row["against_sdpa"] - 1] for w, row in points],
            hovertemplate="%{customdata[0]}: %{customdata[1]:.3f} ms, %{customdata[2]:.0%} of the least time, %{customdata[3]:+.1%} against SDPA"
                          f"<extra>{NAMES[kernel]}</extra>",
        )
    title = f"{part['card']['name']}, {result['machine']['date'][:10]}: attention under its roofs"
    fig.update_layout(title=title, template="plotly_white", height=640, font_size=14, legend={"orientation": "h", "y": -0.16})
    fig.update_xaxes(type="log", title="operations for each byte that must be read")
    fig.update_yaxes(type="log", title="achieved TFLOP/s")
    return fig


def _roofs(fig: Any, part: dict[str, Any], measured: list[dict[str, Any]]) -> None:
    """The slope of the copy's bandwidth (its median over the workloads), and the flat of the matrix products."""
    speeds = sorted(workload["copy_gb_per_s"] for workload in measured)
    if not speeds:
        raise ValueError("nothing to draw: no workload was measured")
    bandwidth, peak = speeds[len(speeds) // 2], part["matmul_tflop_per_s"]
    corner = peak * 1e3 / bandwidth
    intensities = [workload["flops"] / workload["bytes"] for workload in measured]
    low, high = min([*intensities, corner]) / 3, max([*intensities, corner]) * 3
    slope = [low * (corner / low) ** (i / 20) for i in range(21)]
    roofs = {
        f"bandwidth of a copy, {bandwidth:,.0f} GB/s": (slope, [x * bandwidth / 1e3 for x in slope]),
        f"products of matrices, {peak:,.0f} TFLOP/s": ([corner, high], [peak, peak]),
    }
    for (name, (x, y)), dash in zip(roofs.items(), ("solid", "dash"), strict=True):
        assert all(math.isfinite(value) for value in (*x, *y))
        fig.add_scatter(x=x, y=y, mode="lines", name=name, line={"color": palette.LIGHT.ink, "width": 2, "dash": dash}, hoverinfo="name")


def write_html(result: dict[str, Any], path: Path) -> None:
    """The figure as one file that needs no network."""
    figure(result).write_html(path, include_plotlyjs=True)
