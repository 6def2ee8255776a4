"""The command line of `paged-edu simulate`. Imports nothing heavy: `--help` answers at once."""
from __future__ import annotations

import argparse
from pathlib import Path

_OPTIONS = ("model", "gpu", "gpus", "utilization", "dataset", "prefix_tokens", "trace", "seconds", "block_size", "n", "beam", "seed", "capacity",
            "threshold", "metric")
"""Flags that are fields of `Options` by the same name."""


_GROUPS = (
    ("the server", "KV managers: paged, orca-max, orca-pow2, orca-oracle, grow."),
    ("the requests", """\
chat: rounds of conversations. translation: sentences after a prefix that all
prompts share, 80 tokens in the paper (one example) or 341 (five). A trace has
TIMESTAMP, ContextTokens, GeneratedTokens; with --rate it is played faster or
slower. Requests that have come are served to the end."""),
    ("what to find out", """\
Latencies at --rate, or the highest rate within --threshold (--capacity), to 2
in 100. normalized: mean of latency over output tokens; mean and p99: latencies."""),
    ("the paper's figures", """\
Replayed beside the paper's own points, on its servers and workloads, with
tables of errors. With --json: {figure: {system: [[x, y], ...]}}."""),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags that were not given are None: some of them make sense only with others."""
    server, load, ask, paper = (parser.add_argument_group(*group) for group in _GROUPS)
    add = server.add_argument
    add("--model", metavar="NAME", help="such as opt-13b (the default); see --list")
    add("--gpu", metavar="NAME", help="such as A100-40GB (the default); see --list")
    add("--gpus", type=int, metavar="N", help="cards that share the model (1)")
    add("--utilization", type=float, metavar="X", help="share of memory used (0.9; the paper's slots)")
    add("--kv-manager", nargs="+", metavar="NAME", help="see above (paged orca-max)")
    add("--block-size", type=int, metavar="N", help="slots of a block (16)")
    add = load.add_argument
    add("--dataset", metavar="NAME", help="sharegpt, alpaca, chat, translation (sharegpt)")
    add("--prefix-tokens", type=int, metavar="N", help="translation: the prefix that all share (80)")
    add("--trace", type=Path, metavar="FILE", help="requests of a CSV file, with Azure's columns")
    add("--rate", type=float, nargs="+", metavar="R", help="requests a second (0.5 1 1.5; a trace's own)")
    add("--seconds", type=float, metavar="S", help="how long requests arrive (600; all of a trace)")
    add("--n", type=int, metavar="N", help="samples of each request (1)")
    add("--beam", action="store_true", default=None, help="search with n beams instead")
    add("--seed", type=int, metavar="N", help="of arrivals and lengths (0)")
    add = ask.add_argument
    add("--capacity", action="store_true", default=None, help="search for the rate that each manager holds")
    add("--threshold", type=float, metavar="X", help="capacity: latency that is held (0.2 s/token)")
    add("--metric", metavar="NAME", help="capacity: normalized (s/token), mean, p99 [s]")
    add("--json", type=Path, metavar="FILE", help="write all numbers to FILE")
    add("--perfetto", type=Path, metavar="FILE", help="write one run as a timeline (ui.perfetto.dev)")
    add("--list", action="store_true", default=None, help="show the cards and models that are known")
    add = paper.add_argument
    add("--figure", nargs="+", metavar="NAME", help="fig2, fig12a, fig12 (all its panels), ...")
    add("--all", action="store_true", default=None, help="all of them: hours; see --scale")
    add("--scale", type=float, metavar="X", help="length of the traces, over the paper's (1)")
    add("--jobs", type=int, metavar="N", help="processes (all cores)")
    add("--html", type=Path, metavar="FILE", help="draw them into FILE")


def run(args: argparse.Namespace) -> int:
    """Carry the command out."""
    given = {name.replace("_", "-"): value for name, value in vars(args).items() if name not in ("run", "extra") and value is not None}
    from . import view

    if args.list:
        if len(given) > 1:
            raise ValueError(f"--list with --{next(name for name in given if name != 'list')}: it only shows what is known; leave one of them out")
        return view.show_presets()
    if args.figure is not None or args.all:
        return _figures(args, given)
    for name in ("scale", "jobs", "html"):
        if name in given:
            raise ValueError(f"--{name} without --figure or --all: it concerns the paper's figures")
    from .simulate import Options

    chosen = {name: getattr(args, name) for name in _OPTIONS if getattr(args, name) is not None}
    if args.rate is not None:
        chosen["rates"] = tuple(args.rate)
    if args.kv_manager is not None:
        chosen["kv_managers"] = tuple(args.kv_manager)
    return view.run(Options(**chosen), args.json, args.perfetto)


def _figures(args: argparse.Namespace, given: dict[str, object]) -> int:
    which = "figure" if args.figure is not None else "all"
    for name in given:
        if name not in (which, "scale", "jobs", "html", "json"):
            raise ValueError(f"--{name} with --{which}: the paper says what its figures ran; leave one of them out")
    from .replay import run_figures

    return run_figures(args.figure or (), args.json, args.html, 1.0 if args.scale is None else args.scale, args.jobs)
