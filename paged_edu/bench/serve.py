"""`paged-edu bench serve`: load for any server with OpenAI's interface, as a Poisson process or all at once, and how long its clients wait.

With ``against_llm`` it starts `paged-edu serve` itself and races it with `LLM.generate` on the same requests, in turns.
"""
from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from .. import lengths
from ..checks import integer, number, one_of
from . import request_list
from .contenders import Advance
from .contest import Begin, header, microseconds
from .http_client import AnswerError, Target
from .request_list import Asked

POINTS = (50, 90, 99)
QUICK_REQUESTS = 16
WORD = "the "
"""What text prompts are made of: a token in most vocabularies."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to ask, and of whom. Raises ValueError with the value and its limits."""

    url: str = "http://127.0.0.1:8000"
    model: str | None = None
    """None: the first one in /v1/models; of ``against_llm``: tiny-shakespeare."""
    api_key: str | None = field(default=None, repr=False)
    workload: Path | None = None
    dataset: str = "sharegpt"
    requests: int = 64
    rate: float | None = None
    """Requests a second; None: all at once, or when the file says."""
    max_concurrency: int = 0
    """Requests in flight, at most; the others wait here, and that counts. 0: no limit."""
    max_model_len: int | None = None
    """What lengths are scaled to; None: what the server says, at most 512."""
    vocab_size: int = 1000
    """Prompts are random ids below it."""
    text: bool = False
    """Prompts are text, for servers that take no token ids; a word each."""
    chat: bool = False
    """/v1/chat/completions, with text prompts."""
    no_ignore_eos: bool = False
    """Leave out the field ignore_eos, which is not OpenAI's: then texts may end early."""
    timeout: float = 600.0
    against_llm: bool = False
    rounds: int = 3
    """Of ``against_llm``."""
    quick: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        Target(self.url)
        one_of("--dataset", self.dataset, lengths.DATASETS)
        for name, low, high in (("requests", 1, 1_000_000), ("max_concurrency", 0, 100_000), ("vocab_size", 2, 2**31), ("rounds", 1, 1000),
                                ("seed", 0, 2**32)):
            integer(f"--{name.replace('_', '-')}", getattr(self, name), low, high)
        if self.rate is not None:
            number("--rate", self.rate, 0, 1e6, low_open=True)
        if self.max_model_len is not None:
            integer("--max-model-len", self.max_model_len, 2, 2**20)
        number("--timeout", self.timeout, 0, 1e6, low_open=True)
        for name, default in (("dataset", "sharegpt"), ("requests", 64)):
            if self.workload is not None and getattr(self, name) != default:
                raise ValueError(f"--workload {self.workload} brings its requests: --{name} has no meaning beside it")
        if self.against_llm:
            for name in ("url", "api_key", "rate", "max_concurrency", "text", "chat", "no_ignore_eos"):
                if getattr(self, name) != getattr(type(self), name, None):
                    flag = f"--{name.replace('_', '-')}"
                    raise ValueError(f"{flag} has no meaning beside --against-llm, which starts its own server and asks all at once")

    def asked(self, positions: int, vocab_size: int) -> list[Asked]:
        """The requests, in the order in which they come."""
        if self.workload is not None:
            found = request_list.read(self.workload)[: QUICK_REQUESTS if self.quick else None]
            if not self.text and not self.chat:
                request_list.check(found, 2**31, 2**31)
        else:
            count = min(self.requests, QUICK_REQUESTS) if self.quick else self.requests
            found = request_list.drawn(self.dataset, count, self.seed, positions, vocab_size)
        return found if self.rate is None else request_list.at_rate(found, self.rate, self.seed)

    def stored(self) -> dict[str, Any]:
        """For the file of results: never the key."""
        return asdict(self) | {"workload": None if self.workload is None else str(self.workload), "api_key": None}


def body_of(options: Options, model: str, asked: Asked, seed: int) -> tuple[str, dict[str, Any]]:
    """``(path, body)`` of a request. The same seed every time, so that two runs ask for the same texts."""
    body: dict[str, Any] = {"model": model, "max_tokens": asked.n_out, "seed": seed, "stream": True, "stream_options": {"include_usage": True}}
    if not options.no_ignore_eos:
        body["ignore_eos"] = True
    if options.chat:
        return "/chat/completions", body | {"messages": [{"role": "user", "content": WORD * len(asked.prompt)}]}
    return "/completions", body | {"prompt": WORD * len(asked.prompt) if options.text else list(asked.prompt)}


async def send(target: Target, path: str, body: dict[str, Any], timeout: float) -> dict[str, Any]:
    """One request, and when its events came [s on `time.perf_counter`]. Never raises: what went wrong is in ``error``."""
    row: dict[str, Any] = {"sent": time.perf_counter(), "events": [], "tokens": 0, "text": "", "error": None}
    try:
        async with asyncio.timeout(timeout):
            async for event in target.events(path, body):
                choices = event.get("choices") or []
                said = "".join(choice.get("text") or (choice.get("delta") or {}).get("content") or "" for choice in choices)
                if said or any(choice.get("finish_reason") for choice in choices):
                    row["events"].append(time.perf_counter())
                    row["text"] += said
                if event.get("usage"):
                    row["tokens"] = event["usage"]["completion_tokens"]
        row["tokens"] = row["tokens"] or len(row["events"])
        if not row["events"]:
            row["error"] = "no text"
    except AnswerError as error:
        row["error"] = str(error)
    except TimeoutError:
        row["error"] = f"no end within {timeout:g} s"
    except (KeyError, TypeError, AttributeError) as error:
        row["error"] = f"an event of another form: {error!r}"
    row["ended"] = time.perf_counter()
    return row


async def load(
    options: Options, target: Target, model: str, asked: Sequence[Asked], advance: Advance, ended: dict[int, dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """All requests at their times; a row for each, with times from the beginning [s]. ``ended`` gets the rows as they end, by their places."""
    places = asyncio.Semaphore(options.max_concurrency or len(asked))
    begin = time.perf_counter() + 0.01
    rows: dict[int, dict[str, Any]] = {} if ended is None else ended

    async def one(i: int, it: Asked) -> None:
        await asyncio.sleep(max(0.0, begin + it.time - time.perf_counter()))
        async with places:
            row = await send(target, *body_of(options, model, it, i), options.timeout)
        advance(row["tokens"])
        events = [microseconds(when - begin) for when in row["events"]]
        rows[i] = {"arrival": it.time, "sent": microseconds(row["sent"] - begin), "events": events, "ended": microseconds(row["ended"] - begin),
                   "tokens": row["tokens"], "prompt_tokens": len(it.prompt), "error": row["error"], "text": row["text"]}

    await asyncio.gather(*[one(i, it) for i, it in enumerate(asked)])
    return in_order(rows)


def in_order(rows: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
    """A run, of the rows that have ended."""
    return {"rows": [rows[i] for i in sorted(rows)], "seconds": max(row["ended"] for row in rows.values())}


def summary(run: dict[str, Any]) -> dict[str, Any]:
    """What clients saw: percentiles over the requests that were answered, latencies from when a request came, not from when it was sent."""
    rows = [row for row in run["rows"] if row["error"] is None]
    tokens = sum(row["tokens"] for row in rows)
    found: dict[str, Any] = {
        "requests": len(run["rows"]), "answered": len(rows), "errors": dict(Counter(row["error"] for row in run["rows"] if row["error"] is not None)),
        "tokens": tokens, "seconds": run["seconds"], "tokens_per_s": tokens / run["seconds"], "requests_per_s": len(rows) / run["seconds"],
    }
    values = {
        "ttft_s": [row["events"][0] - row["arrival"] for row in rows],
        "gap_s": [b - a for row in rows for a, b in zip(row["events"], row["events"][1:], strict=False)],
        "tpot_s": [(row["events"][-1] - row["events"][0]) / (row["tokens"] - 1) for row in rows if row["tokens"] > 1],
        "latency_s": [row["ended"] - row["arrival"] for row in rows],
        "normalized_s": [(row["ended"] - row["arrival"]) / row["tokens"] for row in rows if row["tokens"]],
    }
    for name, its in values.items():
        if its:
            found[name] = {f"p{point}": float(value) for point, value in zip(POINTS, np.percentile(its, POINTS), strict=True)}
            found[name] |= {"mean": float(np.mean(its))}
    return found


def measure(options: Options, result: dict[str, Any], advance: Advance = lambda count: None, begin: Begin = lambda what, total: None) -> None:
    """Everything that was asked for, into ``result``. Raises ValueError if there is no such server."""
    if options.workload is not None:
        request_list.read(options.workload)                 # what is wrong with it is said before anybody is asked
    result |= header(options.stored())
    if options.against_llm:
        from . import serve_race

        serve_race.measure(options, result, advance, begin)
        return

    async def main() -> None:
        target = Target(options.url, options.api_key)
        try:
            card = await known_model(target, options.model)
        except AnswerError as error:
            raise ValueError(f"--url {options.url}: {error}") from error
        positions = options.max_model_len or min(512, int(card.get("max_model_len") or 512))
        asked = options.asked(positions, options.vocab_size)
        begin(f"{len(asked)} requests to {card['id']}", sum(it.n_out for it in asked))
        rows: dict[int, dict[str, Any]] = {}
        try:
            await load(options, target, card["id"], asked, advance, rows)
        finally:                                            # Ctrl-C comes as a cancellation
            if rows:
                run = in_order(rows)
                result["serve"] = {"model": card["id"], "max_model_len": positions, "asked": len(asked), "run": run, "summary": summary(run)}

    asyncio.run(main())
    result["complete"] = True


async def known_model(target: Target, name: str | None) -> dict[str, Any]:
    """The card of a model that the server has, the first one where no name is given."""
    cards = (await target.get("/models")).get("data", [])
    for card in cards:
        if name is None or card.get("id") == name:
            return dict(card)
    raise AnswerError(404, f"there is no model {name!r}; it has {', '.join(repr(card.get('id')) for card in cards) or 'none'}")


def middle(values: Sequence[float]) -> dict[str, float]:
    """Median, least and greatest."""
    return {"median": median(values), "low": min(values), "high": max(values)}


def run(options: Options, json_file: Path | None = None, html_file: Path | None = None, load_file: Path | None = None) -> int:
    """Measure (or load what an earlier run wrote), print, and write the files that were asked for. 1: nobody was answered."""
    from . import contest_run, serve_view

    answered = True

    def measured(result: dict[str, Any], advance: Advance, begin: Begin) -> None:
        nonlocal answered
        measure(options, result, advance, begin)
        answered = result["serve"]["summary"]["answered"] > 0

    files = {"--json": json_file, "--html": html_file}
    return contest_run.run("serve", options, measured, serve_view.show, {"--html": serve_view.write}, files, load_file) or int(not answered)
