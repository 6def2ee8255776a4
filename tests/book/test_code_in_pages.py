"""The Python of the book's pages runs as it stands, and the commands name options that exist."""
from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from paged_edu import cli

BOOK = Path(__file__).parents[2] / "book"
BLOCKS = [
    (page.name, number, language, code)
    for page in sorted(BOOK.glob("*.md"))
    for number, (language, code) in enumerate(re.findall(r"^```(python|bash)\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE))
]


@pytest.mark.parametrize(("page", "number", "code"), [(page, number, code) for page, number, language, code in BLOCKS if language == "python"])
def test_a_block_of_python_runs(page, number, code, capsys):
    exec(compile(code, f"{page}, block {number}", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out


@pytest.mark.parametrize("line", [
    line.split("#")[0].strip().removeprefix(".venv/bin/") for _, _, language, code in BLOCKS if language == "bash" for line in code.splitlines()
    if "paged-edu " in line.split("#")[0]
])
def test_a_command_names_what_exists(line, capsys):
    line = line[line.index("paged-edu "):]
    command, *options = shlex.split(line)[1:]
    with pytest.raises(SystemExit) as stopped:
        cli.build_parser().parse_args([command, "--help"])
    assert stopped.value.code == 0
    said = capsys.readouterr().out
    for option in options:
        if option.startswith("--"):
            assert option in said, f"{line}: {option} is no option"
