"""Output tokens a second of the engine on this machine's device, by number of requests: reference attention, kernels, and kernels in CUDA graphs.

Prints a table, writes JSON with card and date. The ways take turns in each round; a figure is the median of the rounds.
"""
from __future__ import annotations

import argparse
import datetime
import json
import statistics
import time
from pathlib import Path

import torch

from paged_edu import LLM, SamplingParams

WAYS = {
    "reference": {"attention_backend": "reference"},
    "kernels": {"attention_backend": "triton", "enforce_eager": True},
    "graphs": {"attention_backend": "triton"},
}


def measure(ways: list[str], num_requests: int, tokens: int, rounds: int, device: str, dtype: str) -> dict[str, float]:
    """Output tokens a second of each way."""
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    prompts = [[1 + i % 900, 5, 9, 14] for i in range(num_requests)]
    blocks = num_requests * -(-(tokens + 4) // 16)
    llms = {way: LLM("tiny-shakespeare", device=device, dtype=dtype, num_gpu_blocks_override=blocks, **WAYS[way]) for way in ways}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(rounds + 1):
        for way, llm in llms.items():
            start = time.perf_counter()
            llm.generate(prompts, params, use_tqdm=False)
            if turn:                                    # the first of each warms up
                seconds[way].append(time.perf_counter() - start)
    for llm in llms.values():
        llm.close()
    return {"requests": num_requests} | {way: num_requests * tokens / statistics.median(times) for way, times in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers to FILE")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (%(default)s)")
    parser.add_argument("--dtype", default="float16", help="the model's numbers (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    args = parser.parse_args()
    cuda = torch.cuda.is_available() and args.device != "cpu"
    card = torch.cuda.get_device_name() if cuda else "CPU"
    ways = list(WAYS) if cuda else ["reference"]
    rows = [measure(ways, n, 64, args.rounds, args.device, args.dtype) for n in (1, 8, 32, 128)]
    if args.json:
        versions = {"torch": torch.__version__, "date": datetime.date.today().isoformat(), "device": card, "dtype": args.dtype}
        args.json.write_text(json.dumps(versions | {"rows": rows}, indent=1) + "\n", encoding="utf-8")
    print(f"{card}, tiny-shakespeare, {args.dtype}, output tokens/s")
    print("requests  " + "  ".join(f"{way:>10}" for way in ways))
    for row in rows:
        print(f"{row['requests']:8.0f}  " + "  ".join(f"{row[way]:10,.0f}" for way in ways))


if __name__ == "__main__":
    main()
