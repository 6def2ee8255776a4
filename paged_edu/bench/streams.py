"""What streaming costs: concurrent streams of an `AsyncEngine` against one `LLM.generate` of the same prompts.

``python -m paged_edu.bench.streams``: rounds of both, one after the other, so that a busy machine slows both alike; seconds on the clock and of
processor time. On a machine that others use, only the latter says something.
"""
from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from ..engine.async_engine import AsyncEngine
from ..engine.llm import LLM
from ..sampling.params import SamplingParams


def timed(work: Callable[[], list[str]]) -> tuple[list[str], float, float]:
    """``(what work returns, seconds on the clock, seconds of processor time)``."""
    clock, processor = time.perf_counter(), time.process_time()
    texts = work()
    return texts, time.perf_counter() - clock, time.process_time() - processor


def measure(model: str = "tiny-shakespeare", streams: int = 64, tokens: int = 48, rounds: int = 7) -> dict[str, Any]:
    """Both sides' output tokens a second, and the medians of the rounds' ratios, stream over generate: 1 would be a stream that costs nothing.

    Raises RuntimeError if the two sides' texts differ.
    """
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    prompts = [f"ROMEO: {i}" for i in range(streams)]
    options = {"num_gpu_blocks_override": streams * (tokens // 16 + 3), "enable_prefix_caching": False}
    llm, engine = LLM(model, **options), AsyncEngine(model, **options)

    async def read(prompt: str) -> str:
        return "".join([output.outputs[0].delta async for output in engine.generate(prompt, params)])

    async def read_all() -> list[str]:
        return list(await asyncio.gather(*map(read, prompts)))

    generated, streamed = [], []
    for _ in range(rounds + 1):                 # the first of each warms up
        generated.append(timed(lambda: [output.outputs[0].text for output in llm.generate(prompts, params, use_tqdm=False)]))
        streamed.append(timed(lambda: asyncio.run(read_all())))
        if generated[-1][0] != streamed[-1][0]:
            raise RuntimeError("the streams' texts are not those of LLM.generate")
    llm.close()
    engine.close()
    pairs = list(zip(generated[1:], streamed[1:], strict=True))
    return {
        "model": model, "streams": streams, "tokens": tokens, "rounds": rounds,
        "generate_tokens_per_s": streams * tokens / median(g[1] for g, _ in pairs),
        "stream_tokens_per_s": streams * tokens / median(s[1] for _, s in pairs),
        "ratio_on_the_clock": median(g[1] / s[1] for g, s in pairs), "ratio_of_processor_time": median(g[2] / s[2] for g, s in pairs),
    }


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
