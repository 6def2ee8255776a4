"""The command line: ``paged-edu demo | generate | bench | lab``.

Only argparse is imported here; each command imports what it needs when it runs, so ``--help`` and ``--version`` answer at once. What a
user got wrong is one line on stderr and exit code 2; Ctrl-C is 130.
"""
from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from . import __version__
from .checks import one_line
from .words import counted

if TYPE_CHECKING:
    from .engine.outputs import RequestOutput

PROG = "paged-edu"


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, without the usage in front of it."""

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
    _add_bench(commands)
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
    add = _command(commands, "generate", _generate, "complete prompts", [
        f"{PROG} generate 'ROMEO:' 'JULIET:'", f"{PROG} generate --file prompts.txt --json > out.jsonl",
        f"echo 'First Citizen:' | {PROG} generate --temperature 0.8 --seed 7",
    ]).add_argument
    add("prompts", nargs="*", metavar="PROMPT", help="the prompts; without any: one a line from stdin")
    add("--file", metavar="FILE", help="read prompts from FILE, one a line; - is stdin")
    add("--model", default="tiny-shakespeare", help="name or directory (default %(default)s)")
    add("--max-tokens", type=int, default=128, metavar="N", help="at most N output tokens a prompt (default %(default)s)")
    add("--temperature", type=float, default=1.0, metavar="T", help="0 is greedy (default %(default)g)")
    add("--top-p", type=float, default=1.0, metavar="P", help="the likeliest tokens that make up P (default %(default)g)")
    add("--top-k", type=int, default=0, metavar="K", help="the K likeliest tokens; 0: all (default %(default)s)")
    add("--min-p", type=float, default=0.0, metavar="P", help="drop tokens below P x the likeliest (default %(default)g)")
    add("--seed", type=int, default=0, metavar="N", help="the same seed gives the same texts (default %(default)s)")
    add("--ignore-eos", action="store_true", help="go on after the model's end token")
    add("--block-size", type=int, default=16, metavar="N", help="tokens a block, 1 to 256 (default %(default)s)")
    add("--num-gpu-blocks-override", type=int, metavar="N", help="blocks in the pool (default: by memory)")
    add("--max-model-len", type=int, metavar="N", help="longest request (default: by model)")
    add("--dtype", default="auto", help="float32, float64, float16, ... (default %(default)s)")
    add("--device", default="auto", help="cpu, cuda or cuda:1 (default %(default)s)")
    add("--json", action="store_true", help="one JSON object a line instead of text")


def _add_bench(commands: Any) -> None:
    bench = commands.add_parser("bench", help="measure parts of the system on this machine", description="Measure parts of the system.")
    what = bench.add_subparsers(title="what", metavar="WHAT", required=True)
    add = _command(what, "scheduler", _bench_scheduler, "time a scheduler step, block allocation, and events", [
        f"{PROG} bench scheduler", f"{PROG} bench scheduler --quick --json scheduler.json",
    ]).add_argument
    add("--quick", action="store_true", help="fewer rounds: quicker, with noisier numbers")
    add("--json", type=Path, metavar="FILE", help="write all numbers, with the machine, to FILE")


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


def _generate(args: argparse.Namespace) -> int:
    from .config import EngineConfig
    from .sampling.params import SamplingParams

    options = {
        "model": args.model, "seed": args.seed, "block_size": args.block_size, "num_gpu_blocks_override": args.num_gpu_blocks_override,
        "max_model_len": args.max_model_len, "dtype": args.dtype, "device": args.device,
    }
    EngineConfig(**options)                         # what is wrong with the options is said before torch is imported
    params = SamplingParams(
        temperature=args.temperature, top_p=args.top_p, top_k=args.top_k, min_p=args.min_p, max_tokens=args.max_tokens,
        ignore_eos=args.ignore_eos,
    )
    prompts = _read_prompts(args.prompts, args.file)
    watched = sys.stderr.isatty()
    _note(f"loading {args.model} ...")
    from .engine.llm import LLM

    with LLM(**options) as llm:
        start = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=watched)
        seconds = time.perf_counter() - start
    for output in outputs:
        _print_json(output) if args.json else _print_text(output)
    tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    _note(f"{len(outputs)} prompts, {tokens} output tokens in {seconds:.1f} s")
    return 0


def _note(text: str) -> None:
    """Progress, for a person: on stderr, so that stdout holds nothing but the result."""
    print(f"{PROG}: {text}", file=sys.stderr, flush=True)


def _read_prompts(given: list[str], file: str | None) -> list[str]:
    """The prompts from the arguments, a file or the standard input; every one has something in it."""
    if given and file is not None:
        raise ValueError(f"give prompts or --file {file}, not both")
    if given:
        if "" in given:
            raise ValueError(f"prompt {given.index('') + 1} is '': at least 1 token is needed")
        return given
    if file is None and sys.stdin.isatty():
        raise ValueError("there is no prompt: give one, or --file FILE, or pipe one a line into the standard input")
    name = "the standard input" if file in (None, "-") else str(file)
    text = sys.stdin.read() if file in (None, "-") else Path(str(file)).read_text(encoding="utf-8")
    lines = text.splitlines()
    prompts = [line for line in lines if line.strip()]
    if not prompts:
        raise ValueError(f"there is no prompt in {name}: it has {len(lines)} lines" + (", all of them empty" if lines else ""))
    if len(prompts) < len(lines):
        _note(f"{len(lines) - len(prompts)} empty lines of {name} are skipped")
    return prompts


def _print_text(output: RequestOutput) -> None:
    completion = output.outputs[0]
    reason = completion.finish_reason if completion.stop_reason is None else f"{completion.finish_reason} ({completion.stop_reason})"
    head = f"[{output.request_id}] {len(output.prompt_token_ids)} prompt + {len(completion.token_ids)} output tokens, {reason}"
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb":
        print(f"\033[2m{head}\033[0m\n\033[1m{output.prompt}\033[0m{completion.text}\n")
    else:
        print(f"{head}\n{output.prompt}{completion.text}\n")


def _print_json(output: RequestOutput) -> None:
    completion = output.outputs[0]
    print(json.dumps({
        "request_id": output.request_id, "prompt": output.prompt, "text": completion.text, "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason, "stop_reason": completion.stop_reason,
    }))


def _bench_scheduler(args: argparse.Namespace) -> int:
    from .bench import scheduler

    return scheduler.run(quick=args.quick, json_file=args.json)


def _lab(args: argparse.Namespace) -> int:
    from . import lab

    if args.copy_only:
        copied = lab.copy_notebooks(args.dir)
        print(f"{counted(len(copied), 'file')} copied to {args.dir}" if copied else f"nothing new to copy: the notebooks are in {args.dir}")
        return 0
    return lab.open_lab(args.dir, not args.no_browser, args.extra)
