"""The options of `paged-edu serve`: one table, read from flags, the environment and a TOML file. Imports nothing heavy: `--help` answers at once.

A flag goes before the environment, the environment before the file, the file before the default. ``--max-queue`` is ``PAGED_EDU_SERVE_MAX_QUEUE`` in
the environment and ``max-queue`` (or ``max_queue``) in the file.
"""
from __future__ import annotations

import argparse
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

PREFIX = "PAGED_EDU_SERVE_"
YES, NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Option:
    """One option: ``kind`` is str, int, float or bool (a flag without a value)."""

    name: str
    kind: type
    default: Any
    metavar: str
    help: str
    repeated: bool = False
    """May be given several times: its value is a tuple."""

    @property
    def flag(self) -> str:
        return f"--{self.name}"

    @property
    def field(self) -> str:
        return self.name.replace("-", "_")


SERVER = (
    Option("host", str, "127.0.0.1", "ADDR", "where to listen (%(default)s: local only)"),
    Option("port", int, 8000, "N", "0: any free one (%(default)s)"),
    Option("api-key", str, (), "KEY", "ask clients for it; again for more keys", repeated=True),
    Option("allowed-host", str, (), "NAME", "a Host served without a key; may repeat", repeated=True),
    Option("served-model-name", str, (), "NAME", "what clients call it (--model's name)", repeated=True),
    Option("chat-template", str, None, "FILE", "a Jinja template in place of the model's"),
    Option("max-queue", int, 512, "N", "requests that may wait; then 429 (%(default)s)"),
    Option("max-body-bytes", int, 2**21, "N", "largest request body (%(default)s)"),
    Option("max-prompt-tokens", int, None, "N", "longest prompt (what the model can do)"),
    Option("max-prompts", int, 64, "N", "prompts in one request (%(default)s)"),
    Option("request-timeout", float, 600.0, "S", "longest answer, queue included (%(default)g)"),
    Option("drain-timeout", float, 60.0, "S", "after SIGTERM: for open requests (%(default)g)"),
    Option("stream-interval", float, 0.02, "S", "between two events of a text (%(default)g)"),
    Option("log-level", str, "info", "LEVEL", "debug, info, warning or error (%(default)s)"),
    Option("log-prompts", bool, False, "", "log and show prompts and answers"),
    Option("no-page", bool, False, "", "no live page at /"),
)

ENGINE = (
    Option("model", str, "tiny-shakespeare", "NAME", "name or folder (%(default)s)"),
    Option("tokenizer", str, None, "NAME", "if it lies elsewhere than the model"),
    Option("dtype", str, "auto", "TYPE", "float32, float64, float16, ... (%(default)s)"),
    Option("quantization", str, None, "Q", "int8: 8-bit weights, on a CPU (none)"),
    Option("kv-cache-dtype", str, "auto", "TYPE", "the cache's: auto or int8 (%(default)s)"),
    Option("device", str, "auto", "DEVICE", "cpu, cuda or cuda:1 (%(default)s)"),
    Option("attention-backend", str, "auto", "B", "reference, cpu, triton (%(default)s)"),
    Option("enforce-eager", bool, False, "", "no CUDA graphs"),
    Option("seed", int, 0, "N", "of requests without a seed (%(default)s)"),
    Option("max-model-len", int, None, "N", "longest request (default: by model)"),
    Option("max-num-seqs", int, 256, "N", "sequences that run at once (%(default)s)"),
    Option("max-num-batched-tokens", int, None, "N", "tokens of a step (2048 or more)"),
    Option("long-prefill-token-threshold", int, 0, "N", "longest chunk of a prompt (0: no limit)"),
    Option("no-chunked-prefill", bool, False, "", "compute a prompt in one step"),
    Option("block-size", int, 16, "N", "tokens a block, 1 to 256 (%(default)s)"),
    Option("num-gpu-blocks-override", int, None, "N", "blocks in the pool (default: by memory)"),
    Option("gpu-memory-utilization", float, 0.9, "P", "share of the memory to use (%(default)g)"),
    Option("swap-space", float, None, "GIB", "host memory to swap to (by memory)"),
    Option("watermark", float, 0.0, "P", "blocks that admission keeps free (%(default)g)"),
    Option("no-prefix-caching", bool, False, "", "never reuse blocks of equal beginnings"),
    Option("preemption-mode", str, "auto", "M", "auto, recompute or swap (%(default)s)"),
    Option("scheduling-policy", str, "fcfs", "P", "fcfs, or priority: requests name it"),
    Option("kv-manager", str, "paged", "M", "paged, orca-..., grow (%(default)s)"),
)
ALL = {option.field: option for option in (*SERVER, *ENGINE)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A flag for each option. What was not given is left out of the namespace, so that environment and file can speak."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="read options from FILE (TOML): port = 8001")
    for option in ALL.values():
        shown = option.help % {"default": option.default}
        settings: dict[str, Any] = {"default": argparse.SUPPRESS, "help": shown.replace("%", "%%"), "dest": option.field}
        if option.kind is bool:
            parser.add_argument(option.flag, action="store_true", **settings)
        elif option.repeated:
            parser.add_argument(option.flag, action="append", metavar=option.metavar, **settings)
        else:
            parser.add_argument(option.flag, type=option.kind, metavar=option.metavar, **settings)


def collect(given: Mapping[str, Any], environ: Mapping[str, str], config: Path | None) -> dict[str, Any]:
    """Every option's value. Raises ValueError that names the source and the nearest option, OSError for a file that cannot be read."""
    values = {name: option.default for name, option in ALL.items()}
    if config is not None:
        values |= _from_file(config)
    values |= _from_environment(environ)
    values |= {name: tuple(value) if ALL[name].repeated else value for name, value in given.items() if name in ALL}
    return values


def engine_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of `AsyncEngine`, ``model`` among them."""
    chosen = {option.field: values[option.field] for option in ENGINE}
    chosen["enable_prefix_caching"] = False if chosen.pop("no_prefix_caching") else None
    chosen["enable_chunked_prefill"] = not chosen.pop("no_chunked_prefill")
    return chosen


def _known(source: str, name: str) -> Option:
    option = ALL.get(name.replace("-", "_").lower())
    if option is None:
        near = get_close_matches(name.replace("-", "_").lower(), ALL, 1)
        help_ = f"; did you mean {ALL[near[0]].name!r}?" if near else "; see paged-edu serve --help"
        raise ValueError(f"{source}: there is no option {name!r}{help_}")
    return option


def _from_file(path: Path) -> dict[str, Any]:
    try:
        stored = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"--config {path}: no TOML ({error})") from None
    found = {}
    for name, value in stored.items():
        option = _known(f"--config {path}", name)
        source = f"--config {path}: {option.name}"
        if option.repeated:
            items = value if isinstance(value, list) else [value]
            found[option.field] = tuple(_checked(source, option, item) for item in items)
        else:
            found[option.field] = _checked(source, option, value)
    return found


def _checked(source: str, option: Option, value: Any) -> Any:
    """A value from the file, which has types of its own."""
    if option.kind is float and type(value) is int:
        return float(value)
    if type(value) is not option.kind:
        raise ValueError(f"{source} must be {_a(option.kind)}, not {'...' if option.name == 'api-key' else repr(value)}")
    return value


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for variable, text in environ.items():
        if not variable.startswith(PREFIX) or not text:      # an empty variable counts as unset
            continue
        option = _known("environment", variable.removeprefix(PREFIX))
        try:
            value = _boolean(text) if option.kind is bool else option.kind(text)
        except ValueError:
            shown = "..." if option.name == "api-key" else repr(text)
            raise ValueError(f"{variable} must be {_a(option.kind)}, not {shown}") from None
        found[option.field] = (value,) if option.repeated else value
    return found


def _boolean(text: str) -> bool:
    if text.lower() in YES:
        return True
    if text.lower() in NO:
        return False
    raise ValueError(text)


def _a(kind: type) -> str:
    return {str: "text", int: "an integer", float: "a number", bool: "true or false"}[kind]
