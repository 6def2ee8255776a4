"""`paged-edu bench perplexity`: what fewer bits cost, of keys and values or of the weights, as the model's perplexity on a text.

Each window of the text is a prompt whose tokens' log-probabilities the engine reports (`SamplingParams.prompt_logprobs`). Prompts too write
their keys and values and read them back through the block table, so what is measured is the cache that serving uses. Every combination of weights
and cache sees the same windows.
"""
from __future__ import annotations

import json
import math
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tqdm.auto import tqdm

from .. import checks
from ..engine.llm import LLM
from ..sampling.params import SamplingParams
from ..words import counted
from .machine import machine


@dataclass(frozen=True)
class Options:
    """What to measure. Raises ValueError naming option, value and limit."""

    text: Path
    model: str = "smollm2-135m-instruct"
    kv_cache_dtypes: tuple[str, ...] = ("auto", "int8")
    window: int = 512
    windows: int = 40
    dtype: str = "auto"
    quantizations: tuple[str, ...] = ("none",)

    def __post_init__(self) -> None:
        checks.integer("--window", self.window, 2)
        checks.integer("--windows", self.windows, 1)
        if not self.kv_cache_dtypes or len(set(self.kv_cache_dtypes)) < len(self.kv_cache_dtypes):
            raise ValueError(f"--kv-cache-dtype needs one or more different types, such as auto int8, not {' '.join(self.kv_cache_dtypes) or 'none'}")
        if not self.quantizations or len(set(self.quantizations)) < len(self.quantizations):
            raise ValueError(f"--quantization needs one or more different kinds, such as none int8, not {' '.join(self.quantizations) or 'nothing'}")


def measure(options: Options) -> dict[str, Any]:
    """Perplexity for each kind of weights and cache, its ratio to the first one's, and how many tokens' most likely token changed."""
    try:
        text = options.text.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"--text {options.text} is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}") from error
    rows: list[dict[str, Any]] = []
    first: list[int] = []
    for weights, kind in product(options.quantizations, options.kv_cache_dtypes):
        quantization = None if weights == "none" else weights
        with LLM(
            options.model, dtype=options.dtype, kv_cache_dtype=kind, quantization=quantization, max_num_seqs=1, enable_prefix_caching=False,
        ) as llm:
            tokens = list(llm.tokenizer.encode(text, add_special_tokens=False, verbose=False))
            count = min(options.windows, len(tokens) // options.window)
            if not count:
                raise ValueError(f"--text {options.text} has {counted(len(tokens), 'token')}, not enough for one window of {options.window}")
            longest = llm.engine.scheduler.config.max_model_len - 1
            if options.window > longest:
                raise ValueError(f"--window must be at most {longest} for {options.model}, not {options.window}")
            windows = [tokens[i * options.window : (i + 1) * options.window] for i in range(count)]
            total, best = 0.0, []
            params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1)
            for window in tqdm(windows, desc=f"weights {weights}, KV cache {kind}", unit="window"):
                output = llm.generate([window], params, use_tqdm=False)[0]
                for token, entry in zip(window[1:], (output.prompt_logprobs or [])[1:], strict=True):
                    total -= entry[token].logprob if entry is not None else math.nan
                    best.append(next(t for t, e in (entry or {}).items() if e.rank == 1))
            plan = llm.memory_plan
        first = first or best
        rows.append({
            "quantization": quantization, "weight_bytes": plan.weight_bytes, "kv_cache_dtype": kind, "bytes_per_block": plan.bytes_per_block,
            "perplexity": math.exp(total / len(best)), "tokens": len(best),
            "other_top_token": sum(a != b for a, b in zip(first, best, strict=True)) / len(best),
        })
    for row in rows:
        row["ratio"] = row["perplexity"] / rows[0]["perplexity"]
    return {"machine": machine(), "model": options.model, "text": options.text.name, "window": options.window, "windows": count, "rows": rows}


def run(options: Options, json_file: Path | None = None) -> int:
    """Measure, print a table, write JSON."""
    if json_file is not None:
        checks.writable_file("--json", json_file)
    found = measure(options)
    table = Table(title=f"{found['model']}: {found['windows']} windows of {found['window']} tokens of {found['text']}")
    for name in ("weights, KV", "KiB a block", "perplexity", "ratio", "most likely token differs"):
        table.add_column(name, justify="left" if name == "weights, KV" else "right")
    for row in found["rows"]:
        table.add_row(
            f"{row['quantization'] or 'none'}, {row['kv_cache_dtype']}", f"{row['bytes_per_block'] / 1024:.1f}", f"{row['perplexity']:.4f}",
            f"{row['ratio']:.5f}", f"{row['other_top_token']:.2%}",
        )
    Console().print(table)
    if json_file is not None:
        json_file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0
