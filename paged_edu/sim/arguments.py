"""The command line of `paged-edu simulate`. Imports nothing heavy: `--help` answers at once."""
from __future__ import annotations

import argparse
from pathlib import Path

_OPTIONS = ("model", "gpu", "gpus", "utilization", "dataset", "prefix_tokens", "trace", "seconds", "block_size", "n", "beam", "seed", "capacity",
            "threshold", "metric")
"""Flags that are fields of `Options` by the same name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags that were not given are None: some of them make sense only with others."""
    server, load, ask = (parser.add_argument_group(name) for name in ("the server", "the requests", "what to find out"))
    add = server.add_argument
    add("--model", metavar="NAME", help="such as opt-13b (the default), llama-13b, llama-3-8b; --list has all")
    add("--gpu", metavar="NAME", help="such as A100-40GB (the default), H100-80GB, L4-24GB; --list has all")
    add("--gpus", type=int, metavar="N", help="cards that share the model (1)")
    add("--utilization", type=float, metavar="X", help="share of their memory for weights and cache (0.9; the paper's servers: its own slots)")
    add("--kv-manager", nargs="+", metavar="NAME", help="paged, orca-max, orca-pow2, orca-oracle, grow (paged orca-max)")
    add("--block-size", type=int, metavar="N", help="slots of a block (16)")
    add = load.add_argument
    add("--dataset", metavar="NAME", help="sharegpt (the default), alpaca, chat: rounds of conversations, translation: one prefix for all")
    add("--prefix-tokens", type=int, metavar="N", help="translation: tokens of the shared prefix, 341 for five examples (80: one)")
    add("--trace", type=Path, metavar="FILE", help="requests of a CSV file with TIMESTAMP, ContextTokens, GeneratedTokens instead")
    add("--rate", type=float, nargs="+", metavar="R", help="requests a second, Poisson arrivals (0.5 1 1.5); a trace: played at that rate (its own)")
    add("--seconds", type=float, metavar="S", help="how long requests arrive (600; all of a trace); those that came are served to the end")
    add("--n", type=int, metavar="N", help="samples of each request (1)")
    add("--beam", action="store_true", default=None, help="search with n beams instead")
    add("--seed", type=int, metavar="N", help="of arrivals and lengths (0)")
    add = ask.add_argument
    add("--capacity", action="store_true", default=None, help="search for the rate that each manager holds, to 2 %%, instead of trying --rate")
    add("--threshold", type=float, metavar="X", help="capacity: the latency that counts as held (0.2 s/token)")
    add("--metric", metavar="NAME", help="capacity: normalized (mean latency over output tokens; the default), mean or p99 [s]")
    add("--json", type=Path, metavar="FILE", help="write all numbers to FILE")
    add("--perfetto", type=Path, metavar="FILE", help="write the run as a timeline for ui.perfetto.dev; one manager, one rate")
    add("--figure", nargs="+", metavar="NAME", help="replay figures of the paper (fig2, fig12a, fig12 for all its panels, ...) beside its own points")
    add("--all", action="store_true", default=None, help="replay all of them; takes long, see --scale")
    add("--scale", type=float, metavar="X", help="figures: length of the traces, over the paper's (1)")
    add("--jobs", type=int, metavar="N", help="figures: processes (all cores)")
    add("--html", type=Path, metavar="FILE", help="figures: draw them into FILE")
    add("--list", action="store_true", default=None, help="show the cards and models that are known, with their numbers, and stop")


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
