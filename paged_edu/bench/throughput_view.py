"""The numbers of `paged-edu bench throughput` as a person reads them: a table in the terminal, and a page of charts (with plotly)."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ..words import counted
from . import step_profile_view
from .contest import NEAR_TIE, POINTS
from .memory_view import NAMES as MANAGERS
from .memory_view import new_table

HUES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#5B6270")


def name_of(system: str) -> str:
    """As in the tables of other commands."""
    return MANAGERS.get(system, system)


def show(result: dict[str, Any], console: Console) -> None:
    """Print what was measured, in 80 columns."""
    console.print(title(result), style="bold", markup=False)
    console.print(about(result), style="dim", markup=False)
    tables(result, console)
    for line in sentences(result["throughput"]):
        console.print(line, markup=False)
    if result.get("profile", {}).get("parts"):
        step_profile_view.show(result["profile"], console)
    if not result["complete"]:
        console.print("This run was interrupted: what is above is all that had been measured.", style="bold", markup=False)


def tables(result: Mapping[str, Any], console: Console) -> None:
    """Speeds, latencies, and what the batches and the memory held."""
    found = result["throughput"]["summary"]
    table = new_table("tokens/s", "middle half", f"speed of\n{name_of(next(iter(found)))}\nover this", "low-high", "steps")
    for name, its in found.items():
        speed, ratio = its["tokens_per_s"], its.get("first_against_it")
        table.add_row(
            name_of(name), rate(speed["median"]), f"{rate(speed['low'])}-{rate(speed['high'])}" if its["rounds"] > 1 else "",
            f"{ratio['ratio']:.2f}" if ratio else "", f"{ratio['low']:.2f}-{ratio['high']:.2f}" if ratio and its["rounds"] > 1 else "",
            f"{its['steps']:,.0f}" if "steps" in its else "")
    console.print(table)
    console.print(_latencies(found))
    console.print(_batches(found))
    console.print("Of the slots: the share with a token in it, a mean over steps. transformers holds a slot for each place of its padded batch.",
                  style="dim", markup=False)


def rate(tokens_per_s: float) -> str:
    """Tokens a second, to three digits where there are few."""
    return f"{tokens_per_s:,.1f}" if tokens_per_s >= 10 else f"{tokens_per_s:.2f}"


def title(result: Mapping[str, Any]) -> str:
    """What was served."""
    part, options = result["throughput"], result["options"]
    where = options["workload"] or f"{options['dataset']} lengths scaled to {options['max_model_len']} positions"
    when = "all at once" if part["at_once"] else f"{options['rate']:g} requests/s" if options["rate"] is not None else "at their times"
    return f"{options['model']}: {counted(part['requests'], 'request')} {when}, {part['output_tokens']:,} tokens to write ({where})"


def about(result: Mapping[str, Any]) -> str:
    """On which machine, and how long it was measured."""
    return ran(result, [result["throughput"]])


def ran(result: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> str:
    """The same of any contests."""
    machine, systems = result["machine"], [its for part in parts for its in part["systems"].values()]
    loads = [one["load_average"] for its in systems for one in its["rounds"] if one["load_average"] is not None]
    low_high = dict.fromkeys((f"{min(loads):.1f}", f"{max(loads):.1f}")) if loads else ()
    load = f", load average {' to '.join(low_high)}" if loads else ""
    runs = counted(max(len(its["rounds"]) for its in systems), "round")
    setup = dict.fromkeys(str(its["about"][key]) for its in systems for key in ("dtype", "quantization") if its["about"].get(key))
    return (f"{runs} in turns, {counted(parts[0]['threads'], 'thread')}, {', '.join(setup)}; {machine['cpu']}{load}; torch {machine['torch']}, "
            f"transformers {machine['transformers']}, {machine['date'][:10]}")


def _latencies(found: Mapping[str, Any]) -> Any:
    table = new_table("first token\np50, ms", "\np90", "\np99", "next token\np50, ms", "\np90", "\np99")
    for name, its in found.items():
        if "ttft_s" in its:
            cells = (step_profile_view.ms(its[key][f"p{p}"]) if key in its else "" for key in ("ttft_s", "tpot_s") for p in POINTS)
            table.add_row(name_of(name), *cells)
    return table


def _batches(found: Mapping[str, Any]) -> Any:
    table = new_table("requests\nat once", "at\nmost", "of the slots\nthat are held", "of all\nslots", "preemp-\ntions")
    for name, its in found.items():
        if "running" in its:
            shares = (f"{its[key]:.1%}" if key in its else "" for key in ("held", "pool"))
            table.add_row(name_of(name), f"{its['running']['mean']:.1f}", f"{its['running']['max']}", *shares, f"{its['preemptions']:.0f}")
    return table


def sentences(part: Mapping[str, Any]) -> list[str]:
    """How the first compares with the others, who wrote the same, who was left out."""
    first, *others = part["summary"]
    lines = []
    for name in others:
        its = part["summary"][name]["first_against_it"]
        times = f"{its['ratio']:.2f} times the tokens of {name_of(name)} in a second"
        rounds = f" (in single rounds {its['low']:.2f} to {its['high']:.2f})" if its["low"] < its["high"] else ""
        lines.append(f"{name_of(first)} writes {times}{rounds}.")
    return [*lines, *same_tokens(part), *reasons(part)]


def same_tokens(part: Mapping[str, Any]) -> list[str]:
    """Who wrote what the first of ours wrote, and where not, whether that was a near tie."""
    same = part.get("same_tokens")
    if not same:
        return []
    lines = []
    for name, its in same["others"].items():
        base, requests = name_of(same["with"]), counted(same["requests"], "request")
        if its["different"]:
            lines.append(f"{name_of(name)} wrote other tokens than {base} in {its['different']} of {requests}{_why(its)}.")
        else:
            lines.append(f"{name_of(name)} wrote the same tokens as {base} ({requests}).")
    return lines


def reasons(part: Mapping[str, Any]) -> list[str]:
    """Who was left out, and why."""
    return [f"{name} was left out: {why}" for name, why in part["left_out"].items()]


def _why(its: Mapping[str, Any]) -> str:
    if not its.get("gaps"):
        return ""
    ties, looked = its["near_ties"], len(its["gaps"])
    where = "" if looked == its["different"] else f" of the {looked} that were looked at"
    if ties == looked:
        return f": each{where} after a near tie (logits less than {NEAR_TIE:g} apart)"
    return f": {ties}{where} after a near tie (logits less than {NEAR_TIE:g} apart), the others by up to {max(its['gaps']):.2g}"


# -- as a page -------------------------------------------------------------------------------------------------------------------------
def write_html(result: dict[str, Any], path: Path) -> None:
    """Speeds of every round, the times to the first token and a token after it: one file that needs no network."""
    from .page import write

    write(result, path)


PAGES = {"--html": write_html, "--profile": step_profile_view.write_html}
