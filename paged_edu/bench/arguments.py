"""The command line of `paged-edu bench`. Imports nothing heavy: `--help` answers at once; each command imports what it needs when it runs."""
from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..terminal import PROG

Command = Callable[..., argparse.ArgumentParser]
"""``command(commands, name, run, summary, examples)``: a parser of its own, with the look of all others."""


def add_arguments(commands: Any, command: Command) -> None:
    """``bench`` and everything that it measures. ``command`` adds one of them, with its summary and examples."""
    bench = commands.add_parser("bench", help="measure parts of the system on this machine", description="Measure parts of the system.")
    what = bench.add_subparsers(title="what", metavar="WHAT", required=True)
    add = command(what, "scheduler", _scheduler, "time a scheduler step, block allocation, and events", [
        f"{PROG} bench scheduler", f"{PROG} bench scheduler --quick --json scheduler.json",
    ]).add_argument
    add("--quick", action="store_true", help="fewer rounds: quicker, with noisier numbers")
    add("--json", type=Path, metavar="FILE", help="write all numbers, with the machine, to FILE")
    _add_memory(what, command)
    _add_paper(what, command)
    _add_kernels(what, command)
    _add_perplexity(what, command)


def _add_perplexity(what: Any, command: Command) -> None:
    add = command(what, "perplexity", _perplexity, "measure what a smaller KV cache costs in quality", [
        f"{PROG} bench perplexity --text book.txt", f"{PROG} bench perplexity --text book.txt --model tiny-shakespeare --window 256",
    ]).add_argument
    add("--text", type=Path, required=True, metavar="FILE", help="a text in UTF-8, cut into windows")
    add("--model", default="smollm2-135m-instruct", metavar="NAME", help="named as for `generate` (%(default)s)")
    add("--dtype", default="auto", metavar="TYPE", help="the model's numbers: auto, float32, ... (%(default)s)")
    add("--kv-cache-dtype", nargs="+", default=["auto", "int8"], metavar="TYPE",
        help="the cache's; the others are compared with the first (auto int8)")
    add("--window", type=int, default=512, metavar="N", help="tokens of a prompt (%(default)s)")
    add("--windows", type=int, default=40, metavar="N", help="how many prompts, at most (%(default)s)")
    add("--json", type=Path, metavar="FILE", help="write all numbers, with the machine, to FILE")


def _add_memory(what: Any, command: Command) -> None:
    add = command(what, "memory", _memory, "measure what the KV cache holds under every memory manager", [
        f"{PROG} bench memory", f"{PROG} bench memory --quick --json memory.json", f"{PROG} bench memory --part paper --html memory.html",
    ]).add_argument
    add("--part", default="all", metavar="PART", help="paper, sharing, engine (a real model) or %(default)s")
    add("--quick", action="store_true", help="one seed, half of the engine's requests")
    add("--dataset", default="sharegpt", metavar="NAME", help="whose lengths: %(default)s or alpaca")
    add("--requests", type=int, default=300, metavar="N", help="requests of a run at the paper's size (%(default)s)")
    add("--seeds", type=int, default=3, metavar="N", help="runs at the paper's size for each manager (%(default)s)")
    add("--model", default="tiny-shakespeare", metavar="NAME", help="the engine's model, named as for `generate`")
    add("--device", default="auto", metavar="DEVICE", help="where it runs: cpu, cuda, cuda:1 or %(default)s")
    add("--dtype", default="auto", metavar="TYPE", help="its numbers: auto, float32, float64, ... (%(default)s)")
    add("--max-model-len", type=int, default=512, metavar="N", help="positions to scale lengths and pool to (%(default)s)")
    add("--block-size", type=int, default=16, metavar="N", help="slots of the engine's blocks (%(default)s)")
    add("--engine-requests", type=int, default=120, metavar="N", help="requests to the engine for each manager (%(default)s)")
    add("--json", type=Path, metavar="FILE", help="write all numbers, with the machine, to FILE")
    add("--html", type=Path, metavar="FILE", help="draw them beside Fig. 2 into FILE (with plotly)")


def _add_paper(what: Any, command: Command) -> None:
    add = command(what, "paper", _paper, "repeat the paper's experiments, small, on the real engine", [
        f"{PROG} bench paper", f"{PROG} bench paper --quick --json paper.json", f"{PROG} bench paper --only fig12,fig15 --seconds-budget 300",
        f"{PROG} bench paper --load paper.json --only fig12",
    ]).add_argument
    add("--only", default="all", metavar="FIG,...", help="fig2, fig12, fig13, fig15, fig18b, fig19 (%(default)s)")
    add("--quick", action="store_true", help="about a minute: shorter requests, fewer rates and block sizes")
    add("--seconds-budget", type=float, metavar="S", help="how long all of it may take, roughly (220; 30 with --quick)")
    add("--model", default="tiny-shakespeare", metavar="NAME", help="named as for `generate` (%(default)s)")
    add("--device", default="auto", metavar="DEVICE", help="cpu, cuda, cuda:1 or %(default)s")
    add("--dtype", default="auto", metavar="TYPE", help="the model's numbers: auto, float32, float64, ... (%(default)s)")
    add("--dataset", default="sharegpt", metavar="NAME", help="whose lengths: %(default)s or alpaca (fig15: always alpaca)")
    add("--max-model-len", type=int, metavar="N", help="positions to scale lengths and pool to (128; 64 with --quick)")
    add("--block-size", type=int, default=2, metavar="N", help="slots of a block, but in fig15, fig18b and fig19 (%(default)s)")
    add("--seed", type=int, default=0, metavar="N", help="of lengths, arrivals and prompts (%(default)s)")
    add("--load", type=Path, metavar="FILE", help="show what an earlier run wrote with --json")
    add("--json", type=Path, metavar="FILE", help="write all numbers, with the machine, to FILE; after Ctrl-C, those that there are")


def _add_kernels(what: Any, command: Command) -> None:
    add = command(what, "kernels", _kernels, "time the attention kernels on a GPU; without one, count their registers and spills", [
        f"{PROG} bench kernels", f"{PROG} bench kernels --html roofline.html --json times.json",
        f"{PROG} bench kernels --batch 1,64 --context 4096 --heads 32/8x128", f"{PROG} bench kernels --part resources --arch 80,90 --quick",
    ]).add_argument
    add("--part", default="auto", metavar="PART", help="times (with a GPU), resources (without), or %(default)s")
    add("--quick", action="store_true", help="a handful of shapes, or of kernels")
    add("--batch", metavar="N,...", help="times: sequences (with these, every combination; 8)")
    add("--context", metavar="N,...", help="times: cached tokens of each sequence (4096)")
    add("--heads", metavar="Q/KVxD,...", help="times: query heads, KV heads, head size (32/8x128)")
    add("--queries", metavar="N,...", help="times: tokens of each sequence that ask; 1 is decode (1)")
    add("--dtype", default="auto", metavar="TYPE", help="times: bfloat16, float16, float32 or %(default)s (what the card has)")
    add("--block-size", type=int, default=16, metavar="N", help="times: slots of a block (%(default)s)")
    add("--rounds", type=int, default=100, metavar="N", help="times: runs of each kernel, in turns (%(default)s)")
    add("--no-graphs", action="store_true", help="times: launch from Python, without CUDA graphs")
    add("--arch", metavar="N,...", help="resources: compute capabilities to compile for (75,80,89,90)")
    add("--workers", type=int, default=0, metavar="N", help="resources: compiling processes (one a processor, at most 8)")
    add("--load", type=Path, metavar="FILE", help="show the numbers that an earlier run wrote with --json")
    add("--json", type=Path, metavar="FILE", help="write all numbers, with the machine, to FILE")
    add("--html", type=Path, metavar="FILE", help="draw the times under the card's roofs into FILE (with plotly)")


# -- the commands ------------------------------------------------------------------------------------------------------------------
def _scheduler(args: argparse.Namespace) -> int:
    from . import scheduler

    return scheduler.run(quick=args.quick, json_file=args.json)


def _memory(args: argparse.Namespace) -> int:
    from . import memory

    names = ("part", "dataset", "requests", "seeds", "model", "device", "dtype", "max_model_len", "block_size", "engine_requests")
    options = memory.Options(**{name: getattr(args, name) for name in names})
    return memory.run(options.quick() if args.quick else options, json_file=args.json, html_file=args.html)


def _perplexity(args: argparse.Namespace) -> int:
    from . import perplexity

    options = perplexity.Options(args.text, args.model, tuple(args.kv_cache_dtype), args.window, args.windows, args.dtype)
    return perplexity.run(options, json_file=args.json)


def _paper(args: argparse.Namespace) -> int:
    from . import paper

    names = ("only", "quick", "seconds_budget", "model", "device", "dtype", "dataset", "max_model_len", "block_size", "seed")
    return paper.run(paper.Options(**{name: getattr(args, name) for name in names}), json_file=args.json, load=args.load)


def _kernels(args: argparse.Namespace) -> int:
    from . import kernels

    names = ("part", "quick", "batch", "context", "heads", "queries", "dtype", "block_size", "rounds", "no_graphs", "arch", "workers")
    return kernels.run(kernels.Options(**{name: getattr(args, name) for name in names}), args.json, args.html, args.load)
