"""Options of ``paged-edu mark``; nothing else is imported until it runs."""
from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("paths", nargs="+", type=Path, metavar="PATH", help="notebooks, a student's folder, or a folder of those")
    add("--json", type=Path, metavar="FILE", help="write statuses and sentences to FILE")
    add("--csv", type=Path, metavar="FILE", help="write a line a student to FILE")
    add("--lessons", nargs="+", default=[], metavar="NN", help="mark these only, e.g. 03 06")
    add("--timeout", type=float, default=120.0, metavar="S", help="seconds an exercise may take (default %(default)g)")


def run(args: argparse.Namespace) -> int:
    from . import report

    return report.run(args.paths, args.lessons, args.timeout, args.json, args.csv)
