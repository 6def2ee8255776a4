"""Output tokens a second of the engine on this machine's device, by number of requests; prints a table, writes JSON with card and date."""
from __future__ import annotations

import argparse
import datetime
import json
import statistics
import time

import torch

from paged_edu import LLM, SamplingParams


def measure(num_requests: int, tokens: int, rounds: int, device: str) -> dict[str, float]:
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    prompts = [[1 + i % 900, 5, 9, 14] for i in range(num_requests)]
    with LLM("tiny-shakespeare", device=device, num_gpu_blocks_override=num_requests * (-(-(tokens + 4) // 16))) as llm:
        llm.generate(prompts[:1], params, use_tqdm=False)
        seconds = []
        for _ in range(rounds):
            start = time.perf_counter()
            llm.generate(prompts, params, use_tqdm=False)
            seconds.append(time.perf_counter() - start)
    return {"requests": num_requests, "output_tokens_per_s": num_requests * tokens / statistics.median(seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    rows = [measure(n, 64, 3, args.device) for n in (1, 8, 32, 128)]
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"device": card, "date": datetime.date.today().isoformat(), "torch": torch.__version__, "rows": rows}, file, indent=1)
    print(f"{card}, tiny-shakespeare, reference attention")
    for row in rows:
        print(f"{row['requests']:5.0f} requests  {row['output_tokens_per_s']:9.0f} output tokens/s")


if __name__ == "__main__":
    main()
