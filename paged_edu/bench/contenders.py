"""Who serves the requests of `bench throughput` and `bench latency`: this engine under any memory manager, transformers, and other programs.

Each has a stopwatch of its own. It runs in real time while requests are served and jumps to the next arrival when there are none; what this
module does between two steps (counting, drawing the progress bar) isn't on it. Every contender answers greedily, to the last token that was
asked for, whether or not the model would have ended before.
"""
from __future__ import annotations

import json
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from ..config import CONTIGUOUS
from ..engine.llm import LLM
from ..sampling.params import SamplingParams
from .request_list import Asked

OURS = ("paged", *CONTIGUOUS)
"""This engine, by the name of the memory manager behind it."""
SYSTEMS = (*OURS, "transformers")

Advance = Callable[[int], object]
"""Called with how many tokens have been written."""


@dataclass
class Served:
    """What came of one run. Lists over requests are in the order in which they were asked."""

    seconds: float = 0.0
    """From the first arrival to the last token, on the contender's stopwatch."""
    times: list[list[float]] = field(default_factory=list)
    """Of each request, when each of its tokens was there [s on the stopwatch]. Empty for a program that doesn't say."""
    tokens: list[tuple[int, ...]] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    """Requests that are not done, in the batch of each step."""
    held: list[float] = field(default_factory=list)
    """Of each step, which share of the cache's slots that somebody holds has a token in it."""
    pool: list[float] = field(default_factory=list)
    """The same as a share of all slots."""
    preemptions: int = 0
    steps: list[float] = field(default_factory=list)
    """Seconds a step."""


class Contender(Protocol):
    """One who takes part."""

    about: dict[str, Any]
    """Who it is and how it was set up, as plain values."""

    def serve(self, asked: Sequence[Asked], advance: Advance = lambda count: None) -> Served:
        """Serve all requests; nothing is left of an earlier run."""
        ...

    def close(self) -> None:
        """Give its memory back."""
        ...


class Ours:
    """This engine. Its prefix cache must be off, or a second run would find what the first one computed."""

    def __init__(self, llm: LLM) -> None:
        manager = llm.engine.scheduler.manager
        self.llm = llm
        self.about: dict[str, Any] = {
            "kv_manager": llm.config.kv_manager, "num_blocks": manager.num_blocks, "block_size": manager.block_size,
            "quantization": llm.config.quantization, "kv_cache_dtype": llm.config.kv_cache_dtype,
        }

    def serve(self, asked: Sequence[Asked], advance: Advance = lambda count: None) -> Served:
        engine, served = self.llm.engine, Served(times=[[] for _ in asked], tokens=[()] * len(asked))
        now, at = asked[0].time, 0
        while at < len(asked) or engine.has_unfinished_requests():
            if not engine.has_unfinished_requests():
                now = max(now, asked[at].time)
            start = time.perf_counter()
            while at < len(asked) and asked[at].time <= now:
                params = SamplingParams(temperature=0.0, max_tokens=asked[at].n_out, ignore_eos=True)
                engine.add_request(str(at), list(asked[at].prompt), params)
                at += 1
            outputs = engine.step(finished_only=True)
            served.steps.append(time.perf_counter() - start)
            now += served.steps[-1]
            for output in outputs:
                served.tokens[int(output.request_id)] = tuple(output.outputs[0].token_ids)
            advance(self._note(served, now))
        served.seconds = now - asked[0].time
        for i, (one, tokens) in enumerate(zip(asked, served.tokens, strict=True)):
            if len(tokens) != one.n_out:
                raise ValueError(f"request {i} got {len(tokens)} of its {one.n_out} tokens: {self.about['num_blocks']} blocks are too few for it")
        return served

    def _note(self, served: Served, now: float) -> int:
        """Write down what the step did; how many tokens it gave."""
        plan, report = self.llm.engine.last_output, self.llm.memory_report()
        assert plan is not None
        sampled = [int(item.request_id) for item in plan.scheduled if item.num_samples]
        for i in sampled:
            served.times[i].append(now)
        served.running.append(len({item.request_id for item in plan.scheduled}))
        if report.num_used_blocks:                  # not after the last step, in which everybody left
            served.held.append(report.token_states / (report.num_used_blocks * self.about["block_size"]))
            served.pool.append(report.token_states / report.total)
        served.preemptions += len(plan.preempted)
        return len(sampled)

    def close(self) -> None:
        self.llm.close()


class Transformers:
    """``generate`` of Hugging Face transformers on batches that are padded on the left, each as long as its longest member.

    Requests are taken in their order, as many at a time as have come, ``most`` at most (0: no limit), and only as many as the model has positions
    for: the longest prompt and the longest output of a batch must fit together. A token counts as soon as it exists, as if it were streamed.
    """

    def __init__(self, path: Path, dtype: torch.dtype, device: torch.device, max_positions: int, most: int = 0) -> None:
        if path.is_file():
            raise ValueError(f"transformers is given directories in Hugging Face layout, and {path.name} is one file: --systems paged")
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).to(device).eval()
        self.model.generation_config.eos_token_id = None    # an end token is a token like others: it would be masked, or end a row
        self.device, self.max_positions, self.most = device, max_positions, most
        self.about: dict[str, Any] = {"dtype": str(dtype).removeprefix("torch."), "attention": self.model.config._attn_implementation}

    def batches(self, asked: Sequence[Asked]) -> list[int]:
        """How many of the requests go into each batch, if all of them have come."""
        sizes, at = [], 0
        while at < len(asked):
            sizes.append(self._fitting(asked[at:]))
            at += sizes[-1]
        return sizes

    def _fitting(self, waiting: Sequence[Asked]) -> int:
        width = longest = 0
        for i, one in enumerate(waiting[: self.most or None]):
            width, longest = max(width, len(one.prompt)), max(longest, one.n_out)
            if i and width + longest > self.max_positions:
                return i
        return min(len(waiting), self.most or len(waiting))

    def serve(self, asked: Sequence[Asked], advance: Advance = lambda count: None) -> Served:
        served, now, at = Served(), asked[0].time, 0
        while at < len(asked):
            now = max(now, asked[at].time)
            there = [one for one in asked[at:] if one.time <= now]
            batch = there[: self._fitting(there)]
            now += self._generate(batch, now, served, advance)
            at += len(batch)
        served.seconds = now - asked[0].time
        return served

    def _generate(self, batch: Sequence[Asked], now: float, served: Served, advance: Advance) -> float:
        """One batch from ``now`` on; its seconds."""
        from transformers import StoppingCriteriaList

        width, longest = max(len(one.prompt) for one in batch), max(one.n_out for one in batch)
        ends: list[float] = []
        away = 0.0

        def token(ids: torch.Tensor, scores: object, **rest: object) -> torch.Tensor:
            nonlocal away
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            reached = time.perf_counter()
            ends.append(reached - away)
            live = [one for one in batch if one.n_out >= len(ends)]
            served.running.append(len(live))
            served.held.append(sum(len(one.prompt) + len(ends) for one in live) / (len(batch) * (width + len(ends))))
            advance(len(live))
            away += time.perf_counter() - reached
            return torch.zeros(len(batch), dtype=torch.bool, device=ids.device)

        start = time.perf_counter()
        ids = torch.zeros(len(batch), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, one in enumerate(batch):
            ids[row, width - len(one.prompt) :] = torch.tensor(one.prompt)
            mask[row, width - len(one.prompt) :] = 1
        out = self.model.generate(
            input_ids=ids.to(self.device), attention_mask=mask.to(self.device), max_new_tokens=longest, do_sample=False, pad_token_id=0,
            stopping_criteria=StoppingCriteriaList([token]),
        ).tolist()
        seconds = time.perf_counter() - start - away
        served.steps += [end - before for before, end in zip([start, *ends], ends, strict=False)]
        served.times += [[now + end - start for end in ends[: one.n_out]] for one in batch]
        served.tokens += [tuple(row[width : width + one.n_out]) for row, one in zip(out, batch, strict=True)]
        return seconds

    @torch.inference_mode()
    def gap(self, tokens: Sequence[int], one: int, other: int) -> float:
        """How far apart the logits of two tokens are after ``tokens``: nearly nothing where rounding decided between them."""
        logits = self.model(torch.tensor([list(tokens)], device=self.device)).logits[0, -1]
        return float((logits[one] - logits[other]).abs())

    def close(self) -> None:
        del self.model


class Command:
    """Another program. The last line that it prints must say ``N tok/s``: output tokens over seconds, by its own clock.

    In ``command``, ``{workload}`` becomes a file with the requests, ``{model}`` the model's directory or file. There is no shell.
    """

    def __init__(self, command: str, model: Path) -> None:
        self.command, self.model = command, model
        self.about: dict[str, Any] = {"command": command}

    def serve(self, asked: Sequence[Asked], advance: Advance = lambda count: None) -> Served:
        """Raises ValueError where the program is not there, fails, or doesn't say how fast it was."""
        with tempfile.TemporaryDirectory(prefix="paged_edu_bench_") as folder:
            workload = Path(folder) / "workload.json"
            workload.write_text(json.dumps([{"prompt": list(one.prompt), "n_out": one.n_out} for one in asked]), encoding="utf-8")
            words = [word.replace("{workload}", str(workload)).replace("{model}", str(self.model)) for word in shlex.split(self.command)]
            try:
                done = subprocess.run(words, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
            except OSError as error:
                raise ValueError(f"{words[0]}: {error.strerror}") from None
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
            raise ValueError(f"exit code {done.returncode}: {said}")
        last = (done.stdout.strip().splitlines() or [""])[-1]
        found = re.search(r"(\d+(?:\.\d+)?) tok/s", last)
        if found is None or float(found[1]) <= 0:
            raise ValueError(f"its last line has no 'N tok/s': {last!r}")
        tokens = sum(one.n_out for one in asked)
        advance(tokens)
        return Served(seconds=tokens / float(found[1]))

    def close(self) -> None:
        pass
