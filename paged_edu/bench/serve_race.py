"""The server against the library: `paged-edu serve` in a process of its own, and `LLM.generate` here, the same requests in turns."""
from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psutil
import torch

from ..engine.llm import LLM
from ..model.loader import load_spec, resolve
from ..sampling.params import SamplingParams
from ..threads import one_thread_for_small_models
from .contenders import Advance
from .contest import Begin
from .http_client import Target
from .request_list import Asked, check
from .serve import Options, load, middle, summary

BLOCK_SIZE = 16
PREFIX = "PAGED_EDU_SERVE_"


@contextmanager
def server(model: str, *flags: str) -> Iterator[tuple[str, Callable[[], float]]]:
    """The address of a server of our own, and what says how many seconds of a processor it has taken.

    Raises ValueError with what it said if it does not start.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    child = subprocess.Popen(
        [sys.executable, "-m", "paged_edu", "serve", "--model", model, "--port", "0", "--log-level", "warning", *flags],
        stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=environ,
    )
    assert child.stderr is not None
    said: list[str] = []
    try:
        for line in child.stderr:
            said.append(line)
            if found := re.search(r" at (http://\S+)/v1", line):
                break
        else:
            raise ValueError(f"the server did not start: {' '.join(said[-1:]).strip() or 'it said nothing'}")
        threading.Thread(target=child.stderr.read, daemon=True).start()         # so that it never waits for somebody to read
        yield found[1], lambda: processor_seconds(psutil.Process(child.pid))
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(30)
            except subprocess.TimeoutExpired:
                child.kill()
        child.wait()


def processor_seconds(process: psutil.Process) -> float:
    """On a machine that others use these say more than the clock."""
    times = process.cpu_times()
    return float(times.user + times.system)


def measure(options: Options, result: dict[str, Any], advance: Advance, begin: Begin) -> None:
    """``rounds`` rounds of both, into ``result``, which holds every round that has ended if somebody interrupts it."""
    model = options.model or "tiny-shakespeare"
    spec = load_spec(resolve(model))
    positions = min(options.max_model_len or 256, spec.max_positions)
    asked = options.asked(positions, spec.vocab_size)
    check(asked, spec.vocab_size, spec.max_positions)
    blocks = sum(-(-one.length // BLOCK_SIZE) + 1 for one in asked)
    flags = {"num_gpu_blocks_override": blocks, "block_size": BLOCK_SIZE, "max_num_seqs": max(256, len(asked)), "enable_prefix_caching": False}
    part: dict[str, Any] = {"model": model, "max_model_len": positions, "num_blocks": blocks, "threads": 0, "rounds": [], "summary": {}}
    result["serve"] = part
    todo = [Asked(it.prompt, it.n_out) for it in asked]
    command = ("--num-gpu-blocks-override", str(blocks), "--max-num-seqs", str(flags["max_num_seqs"]), "--no-prefix-caching", "--max-queue", "100000",
               "--max-body-bytes", str(2**26))
    with LLM(model, **flags) as llm, server(model, *command) as (url, taken):
        one_thread_for_small_models(llm)
        part["threads"] = torch.get_num_threads()
        target = Target(url)
        warm = [Asked(it.prompt, 2) for it in todo[:4]]
        generated(llm, warm)
        asyncio.run(load(options, target, model, warm, lambda count: None))
        tokens = sum(it.n_out for it in todo)
        for number in range(1 if options.quick else options.rounds):
            begin(f"round {number + 1}: LLM.generate", tokens)
            own = time.process_time()
            texts, seconds = generated(llm, todo)
            own, before = time.process_time() - own, taken()
            begin(f"round {number + 1}: {len(todo)} streams", tokens)
            run = asyncio.run(load(options, target, model, todo, advance))
            part["rounds"].append(_round(texts, tokens / seconds, run) | {"processor_ratio": own / (taken() - before)})
            part["run"] = run | {"rows": [{name: value for name, value in row.items() if name != "text"} for row in run["rows"]]}
            part["summary"] = _summary(part["rounds"], run)
    result["complete"] = True


def generated(llm: LLM, asked: Sequence[Asked]) -> tuple[list[str], float]:
    """The texts, and the seconds that they took."""
    params = [SamplingParams(max_tokens=it.n_out, seed=i, ignore_eos=True) for i, it in enumerate(asked)]
    start = time.perf_counter()
    outputs = llm.generate([list(it.prompt) for it in asked], params, use_tqdm=False)
    seconds = time.perf_counter() - start
    return [output.outputs[0].text for output in outputs], seconds


def _round(texts: Sequence[str], llm_speed: float, run: dict[str, Any]) -> dict[str, Any]:
    its = summary(run)
    same = sum(row["text"] == text for row, text in zip(run["rows"], texts, strict=True))
    speed = its["tokens_per_s"]
    return {"llm": llm_speed, "server": speed, "ratio": speed / llm_speed, "same_texts": same, "answered": its["answered"]}


def _summary(rounds: Sequence[dict[str, Any]], run: dict[str, Any]) -> dict[str, Any]:
    race = {name: middle([one[name] for one in rounds]) for name in ("llm", "server", "ratio", "processor_ratio")}
    return summary(run) | {"race": race, "rounds": len(rounds), "same_texts": min(one["same_texts"] for one in rounds)}
