"""The command line as a user meets it. Most tests call `main` in this process; the few that need a shell's view start one."""
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from paged_edu import __version__, cli

COMMANDS = {
    ("demo",): ["--no-live", "--speed", "--fast", "--all", "--json"],
    ("generate",): ["--model", "--max-tokens", "--temperature", "--top-p", "--top-k", "--min-p", "--seed", "--stop", "--ignore-eos",
                    "--block-size", "--num-gpu-blocks-override", "--max-model-len", "--dtype", "--device", "--file", "--json", "--stream",
                    "--raw", "--n", "--presence-penalty", "--frequency-penalty", "--repetition-penalty", "--logit-bias", "--logprobs",
                    "--prompt-logprobs",
                    "--beam-width", "--length-penalty", "--no-prefix-caching", "--preemption-mode", "--swap-space", "--quantization"],
    ("chat",): ["--model", "--system", "--max-tokens", "--temperature", "--top-p", "--top-k", "--min-p", "--seed", "--stop", "--ignore-eos",
                "--block-size", "--num-gpu-blocks-override", "--max-model-len", "--dtype", "--device", "--no-prefix-caching",
                "--preemption-mode", "--swap-space", "--presence-penalty", "--frequency-penalty", "--repetition-penalty", "--logit-bias",
                "--logprobs", "--quantization"],
    ("serve",): ["--config", "--host", "--port", "--api-key", "--model", "--max-queue", "--request-timeout", "--log-prompts",
                 "--num-gpu-blocks-override", "--scheduling-policy", "--stream-interval"],
    ("pull",): ["--from", "--force"],
    ("bench", "scheduler"): ["--quick", "--json"],
    ("bench", "memory"): ["--part", "--quick", "--dataset", "--requests", "--seeds", "--model", "--dtype", "--max-model-len", "--block-size",
                          "--engine-requests", "--json", "--html"],
    ("bench", "throughput"): ["--workload", "--dataset", "--requests", "--rate", "--systems", "--rounds", "--quick", "--max-model-len",
                              "--num-gpu-blocks-override", "--max-num-seqs", "--hf-batch", "--peer", "--profile", "--quantization", "--threads",
                              "--load", "--json", "--html"],
    ("bench", "latency"): ["--batch", "--input-len", "--output-len", "--systems", "--rounds", "--quick", "--load", "--json", "--html"],
    ("bench", "serve"): ["--url", "--api-key", "--rate", "--workload", "--dataset", "--requests", "--max-concurrency", "--against-llm", "--load",
                         "--json", "--html"],
    ("simulate",): ["--model", "--gpu", "--gpus", "--utilization", "--kv-manager", "--block-size", "--dataset", "--prefix-tokens", "--trace",
                    "--rate", "--seconds", "--n", "--beam", "--seed", "--capacity", "--threshold", "--metric", "--json", "--perfetto", "--list"],
    ("lab",): ["--no-browser", "--copy-only"],
}


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = cli.main(list(argv))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_every_flag_and_shows_an_example(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run(capsys, *command, "--help")
    assert code == 0
    assert all(re.search(rf"^  {flag}\b", out, re.M) for flag in COMMANDS[command]), out
    assert not re.search(r"^ {12,}\S", out.split("options:")[1], re.M), out         # each flag in one line
    assert f"  paged-edu {' '.join(command)}" in out.split("examples:")[1]


def test_the_main_help_names_every_command(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert all(re.search(rf"^    {command[0]} ", out, re.M) for command in COMMANDS)


def test_version(capsys):
    assert run(capsys, "--version") == (0, f"paged-edu {__version__}\n", "")


def test_help_and_version_import_nothing_heavy():
    code = "import sys\nfrom paged_edu import cli\ncli.main(['--help'])\ncli.main(['--version'])\n" \
           "sys.exit(', '.join({'torch', 'transformers', 'rich', 'numpy', 'jupyterlab'} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("argv", "parts"), [
    (["generate", "x", "--temperature", "nan"], ["temperature", "nan", "at least 0"]),
    (["generate", "x", "--temperature", "warm"], ["--temperature", "'warm'"]),
    (["generate", "x", "--top-p", "0"], ["top_p", "above 0", "at most 1"]),
    (["generate", "x", "--max-tokens", "0"], ["max_tokens", "at least 1", "not 0"]),
    (["generate", "x", "--block-size", "0"], ["block_size", "between 1 and 256", "not 0"]),
    (["generate", "x", "--num-gpu-blocks-override", "0"], ["num_gpu_blocks_override", "between 1 and", "not 0"]),
    (["generate", "x", "--seed", "-1"], ["seed", "between 0", "not -1"]),
    (["generate", "x", "--dtype", "int3"], ["dtype", "'int3'", "'float32'"]),
    (["generate", "x", "--no-such-flag"], ["--no-such-flag"]),
    (["generate", "x", "--file", "y"], ["prompts or --file y"]),
    (["generate", "--file", "/no/such/file"], ["/no/such/file", "No such file"]),
    (["generate", "x", "--stop", ""], ["stop", "empty string"]),
    (["generate", "x", "y", "--stream"], ["--stream", "2 prompts", "--json"]),
    (["chat", "--top-p", "2"], ["top_p", "at most 1", "not 2"]),
    (["generate", ""], ["prompt 1", "''", "at least 1 token"]),
    (["demo", "--speed", "0"], ["--speed", "above 0", "not 0"]),
    (["demo", "--json", "/no/such/directory/x.json"], ["--json", "/no/such/directory"]),
    (["bench", "scheduler", "--json", "/no/such/directory/x.json"], ["--json", "/no/such/directory"]),
    (["frobnicate"], ["frobnicate", "demo"]),
    ([], ["COMMAND"]),
    (["bench"], ["WHAT"]),
])
def test_a_mistake_is_one_line_that_names_value_and_limit(capsys, argv, parts):
    code, out, err = run(capsys, *argv)
    assert (code, out) == (2, "")
    assert err.startswith("paged-edu: ")
    assert err.count("\n") == 1
    assert all(part in err for part in parts), err


@pytest.mark.parametrize(("argv", "parts"), [
    (["--model", "./no/such/model"], ["./no/such/model", "no such directory"]),
    (["--device", "toaster"], ["device must be 'auto', 'cpu', 'cuda' or 'cuda:N'", "toaster"]),
    (["--device", "cuda:-1"], ["device must be", "'cuda:N'", "cuda:-1"]),
    (["--device", "cuda:99"], ["cuda:99", "torch sees", "'cpu'"]),
    (["--device", "meta"], ["device must be", "'meta'"]),
    (["--max-model-len", "100000"], ["max_model_len", "100000", "512"]),
])
def test_a_mistake_that_only_loading_finds(capsys, argv, parts):
    code, out, err = run(capsys, "generate", "x", *argv)
    assert (code, out) == (2, "")
    said = err.splitlines()
    assert len(said) == 2                       # "loading ..." and what is wrong
    assert said[1].startswith("paged-edu: ")
    assert all(part in said[1] for part in parts), err


def test_a_model_that_the_hub_does_not_give(capsys, monkeypatch):
    """Without a network the hub's client fails in its own way: still one line."""
    from paged_edu.model import loader

    def fail(name):
        raise loader.ModelLoadError(f"{name!r} is no short name\nand the hub\n  did not give it")

    monkeypatch.setattr(loader, "_download", fail)
    code, _, err = run(capsys, "generate", "x", "--model", "nobody/nothing")
    assert code == 2
    assert err.splitlines()[1] == "paged-edu: 'nobody/nothing' is no short name and the hub did not give it"


def test_a_warning_is_one_line(capsys):
    """A request that fills the pool alone ends early; the user reads why."""
    code, out, err = run(capsys, "generate", "ROMEO:", "--num-gpu-blocks-override", "1", "--block-size", "4", "--ignore-eos", "--json")
    assert code == 0
    assert json.loads(out)["stop_reason"] == "kv_pool"
    warning = next(line for line in err.splitlines() if "warning" in line)
    assert warning.startswith("paged-edu: warning: request 'generate-0-0' ended with")


def test_ctrl_c_is_130_without_a_traceback(capsys, monkeypatch):
    def interrupted(args):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_demo", interrupted)
    code, _, err = run(capsys, "demo")
    assert (code, err) == (130, "\npaged-edu: interrupted\n")


def test_lab_copies_and_passes_the_rest_on(capsys, monkeypatch, tmp_path):
    from paged_edu import lab

    calls = []
    monkeypatch.setattr(lab, "open_lab", lambda target, open_browser, extra: calls.append((target, open_browser, list(extra))) or 0)
    monkeypatch.setattr(lab, "copy_notebooks", lambda target: [target / "a.ipynb"])
    assert run(capsys, "lab", str(tmp_path), "--copy-only") == (0, f"1 file copied to {tmp_path}\n", "")
    assert run(capsys, "lab", str(tmp_path), "--no-browser", "--", "--port=8890")[0] == 0
    assert run(capsys, "lab")[0] == 0
    assert run(capsys, "lab", "--", "--ip", "::1")[0] == 0
    here = Path("paged_edu_notebooks")
    assert calls == [(tmp_path, False, ["--port=8890"]), (here, True, []), (here, True, ["--ip", "::1"])]


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell pipeline")
def test_a_reader_that_goes_away_is_no_traceback():
    """As in `paged-edu generate --json | head`: the pipe closes while there is more to say."""
    writer = "from paged_edu import cli; cli._demo = lambda args: print('x' * 10**6) or 0; raise SystemExit(cli.main(['demo']))"
    command = f"{sys.executable} -c \"{writer}\" | head -c 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (1, "x", "")


CLOSED = {
    ">&-": ["--help", "generate ROMEO: --max-tokens 1", "lab --copy-only lessons"],
    "2>&-": ["demo --speed 0", "generate x --num-gpu-blocks-override 1 --block-size 4 --ignore-eos"],      # the second one warns
    "<&-": ["generate"],
    "<&- >&- 2>&-": ["generate", "generate ROMEO: --max-tokens 1"],
}


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell closes the streams")
@pytest.mark.parametrize(("streams", "command"), [(streams, command) for streams, commands in CLOSED.items() for command in commands])
def test_a_closed_stream_is_no_traceback(tmp_path, streams, command):
    """Whatever is closed: the command runs, or fails for its own reason, and what can be read is no traceback."""
    program = f"{sys.executable} -c 'import sys; from paged_edu import cli; sys.exit(cli.main(sys.argv[1:]))'"
    done = subprocess.run(["bash", "-c", f"{program} {command} {streams}"], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == (2 if command in ("generate", "demo --speed 0") else 0), done
    assert "Traceback" not in done.stdout + done.stderr
    assert "Exception ignored" not in done.stdout + done.stderr


def test_the_package_runs_as_a_module():
    found = subprocess.run([sys.executable, "-m", "paged_edu", "--version"], capture_output=True, text=True, check=True)
    assert found.stdout.split()[-1] == __version__
