"""The Python of the book's pages runs as it stands, and the commands name options that exist."""
from __future__ import annotations

import re
import shlex
import subprocess
import sys
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
def test_a_block_of_python_runs(page, number, code, capsys, request):
    asks = "http://127.0.0.1:8000" in code
    if asks:                                                # a server of the smallest model, with a chat template, takes the part
        code = code.replace("http://127.0.0.1:8000", request.getfixturevalue("served")).replace("smollm2-135m-instruct", "tiny-shakespeare")
    exec(compile(code, f"{page}, block {number}", "exec"), {"__name__": "__main__"})
    assert asks or capsys.readouterr().out


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    template = tmp_path_factory.mktemp("template") / "chat.jinja"
    template.write_text("{% for message in messages %}{{ message.content }}\n{% endfor %}", encoding="utf-8")
    command = [sys.executable, "-m", "paged_edu", "serve", "--port", "0", "--num-gpu-blocks-override", "200", "--chat-template", str(template)]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=template.parent)
    try:
        assert server.stderr is not None
        found, said = None, ""
        while found is None:
            line = server.stderr.readline()
            said += line
            assert line, f"no server: {said}"
            found = re.search(r"http://[\d.:]+", line)
        yield found[0]
    finally:
        server.terminate()
        server.communicate(timeout=60)


@pytest.mark.parametrize("line", [
    part.strip().removeprefix(".venv/bin/") for _, _, language, code in BLOCKS if language == "bash" for line in code.splitlines()
    for part in line.split("#")[0].split("&&") if "paged-edu " in part
])
def test_a_command_names_what_exists(line, capsys):
    line = line[line.index("paged-edu "):]
    command, *options = shlex.split(line)[1:]
    commands = [command, options[0]] if command == "bench" else [command]
    with pytest.raises(SystemExit) as stopped:
        cli.build_parser().parse_args([*commands, "--help"])
    assert stopped.value.code == 0
    said = capsys.readouterr().out
    for option in options:
        if option.startswith("--"):
            assert option in said, f"{line}: {option} is no option"
