"""2,000 requests over loopback in a tiny pool: a tenth of the clients go in mid-stream, a tenth send nonsense, the others get the right texts."""
import asyncio
import gc
import json
import random

import httpx
import psutil
import pytest
from serving import serving

from paged_edu import LLM, AsyncEngine, SamplingParams
from paged_edu.engine.output_stream import OutputStream
from paged_edu.engine.prepared import PreparedRequest
from paged_edu.server.params import Job
from paged_edu.server.replies import Reply

REQUESTS, AT_ONCE, KINDS = 2000, 48, 80
OPTIONS = {"num_gpu_blocks_override": 24, "block_size": 4, "max_num_seqs": 24, "swap_space": 0.001}
NAMES = ("ROMEO:", "JULIET:", "First Citizen:\n", "KING RICHARD III:\n", "Nurse:")


def kinds():
    """Different requests, each of which comes many times: prompt and parameters."""
    params = [{"seed": i, "max_tokens": 2 + i % 9, "n": 2 if i % 7 == 0 else 1, "temperature": 0.9} for i in range(KINDS)]
    return [(f"{NAMES[i % 5]}{'abcdefgh'[i % 8]}", its) for i, its in enumerate(params)]


NONSENSE = (b"{", b'{"model": "tiny-shakespeare"}', b'{"model": "x", "prompt": "y"}', b'{"model": "tiny-shakespeare", "prompt": "y", "n": 0}',
            b'{"model": "tiny-shakespeare", "prompt": "y", "tools": 1}', b'{"model": "tiny-shakespeare", "prompt": [999999]}')


async def good(client, i, prompt, params, wanted):
    body = {"model": "tiny-shakespeare", "prompt": prompt, "stream": i % 2 == 0} | params
    if not body["stream"]:
        answer = await client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        assert [choice["text"] for choice in answer.json()["choices"]] == wanted
        return
    texts = [""] * len(wanted)
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    texts[choice["index"]] += choice["text"]
    assert line in ("", "data: [DONE]")
    assert texts == wanted


async def leaves(client, prompt, i):
    """Goes after the first event, or a few more."""
    body = {"model": "tiny-shakespeare", "prompt": prompt, "stream": True, "max_tokens": 60, "ignore_eos": True, "n": 1 + i % 3}
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        seen = 0
        async for line in answer.aiter_lines():
            seen += line.startswith("data: ")
            if seen > i % 4:
                break


async def nonsense(client, i):
    answer = await client.post("/v1/completions", content=NONSENSE[i % len(NONSENSE)], headers={"content-type": "application/json"})
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["message"]


def alive():
    """Objects that belong to a request."""
    gc.collect()
    return sum(isinstance(o, Job | Reply | OutputStream | PreparedRequest) for o in gc.get_objects())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*alone, it has filled the pool")
def test_soak():
    asked = kinds()
    with LLM("tiny-shakespeare", **OPTIONS) as llm:
        outputs = llm.generate([prompt for prompt, _ in asked], [SamplingParams(**params) for _, params in asked], use_tqdm=False)
    wanted = [[done.text for done in output.outputs] for output in outputs]
    order = random.Random(0)
    todo = ["leaves"] * (REQUESTS // 10) + ["nonsense"] * (REQUESTS // 10) + ["good"] * (REQUESTS * 8 // 10)
    order.shuffle(todo)
    memory = []

    async def main(served):
        numbers = iter(range(REQUESTS))
        limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=AT_ONCE)

        async def worker(client):
            for i in numbers:
                kind = asked[i % KINDS]
                if todo[i] == "good":
                    await good(client, i, *kind, wanted[i % KINDS])
                else:
                    await (leaves(client, kind[0], i) if todo[i] == "leaves" else nonsense(client, i))
                if i % (REQUESTS // 4) == REQUESTS // 4 - 1:
                    memory.append(psutil.Process().memory_info().rss)

        async with httpx.AsyncClient(base_url=served.url, timeout=120, limits=limits) as client:
            await asyncio.gather(*[worker(client) for _ in range(AT_ONCE)])

    with serving(AsyncEngine("tiny-shakespeare", **OPTIONS), stream_interval=0.002, max_queue=100) as served:
        asyncio.run(main(served))
        served.nothing_left()
        assert alive() == 0
        stats, steps = served.service.stats, served.service.engine_stats
        assert stats.finished + stats.dropped == REQUESTS * 9 // 10
        assert stats.failed == 0
        assert stats.dropped > REQUESTS // 15               # some had been answered before they could go
        assert sum(steps.preemptions.values()) > 100
        assert len(served.server.server_state.tasks) == 0
    assert memory[-1] - memory[0] < 24 * 2**20, memory      # three quarters of the requests: 16 KB for each would show


def test_the_texts_differ():
    """Else equal texts would say little."""
    with LLM("tiny-shakespeare", **OPTIONS) as llm:
        outputs = llm.generate([prompt for prompt, _ in kinds()], [SamplingParams(**params) for _, params in kinds()], use_tqdm=False)
    assert len({done.text for output in outputs for done in output.outputs}) > KINDS * 3 // 4
