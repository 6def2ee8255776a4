"""Decode steps padded to a few sizes: the same tokens, whatever the padding, and nothing of the padding in the cache. On CUDA they are graphs."""
from __future__ import annotations

import pytest
import torch
from llamas import random_llama

from paged_edu import LLM, SamplingParams
from paged_edu.engine.graphs import SIZES, DecodeGraphs, sizes_for

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OPTIONS = {"device": DEVICE, "dtype": "float32", "block_size": 4, "num_gpu_blocks_override": 40, "max_num_seqs": 12, "skip_tokenizer_init": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Two query heads, one KV head, one layer: the interpreter takes milliseconds for each program."""
    folder = tmp_path_factory.mktemp("llama")
    random_llama(folder, "grouped queries", num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, hidden_size=16)
    return str(folder)


def test_sizes_end_with_the_largest_batch():
    assert sizes_for(1) == (1,)
    assert sizes_for(4) == (1, 2, 4)
    assert sizes_for(12) == (1, 2, 4, 8, 12)
    assert sizes_for(256) == SIZES
    assert sizes_for(1000) == SIZES                                     # larger batches run eagerly


def with_graphs(llm: LLM) -> DecodeGraphs:
    runner = llm.engine.runner
    if runner.graphs is None:
        runner.graphs = DecodeGraphs(runner.model, runner.cache, runner.attend, runner.device, 12, 96)
    return runner.graphs


def test_batches_that_shrink_through_the_sizes_give_the_same_tokens(model):
    """Six requests that end one after the other: 6 run padded to 8, 5 to 8, ... 1 to 1; rows that larger batches left behind are padding then."""
    prompts = [[1 + i, 5, 9, *range(20, 20 + i)] for i in range(6)]
    params = [SamplingParams(temperature=0.8, seed=i, max_tokens=2 + i, ignore_eos=True) for i in range(6)]
    with LLM(model, attention_backend="reference", **OPTIONS) as llm:
        expected = [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)]
    with LLM(model, attention_backend="triton", **OPTIONS) as llm:
        graphs = with_graphs(llm)
        llm.engine.runner.cache.fill_(float("nan"))
        found = [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)]
        assert graphs.num_replays == 6                                  # every step but the first, which runs the prompts
        written = set(range(40)) - {b for b in range(40) if llm.engine.runner.cache[0][0][b].isnan().all()}
        assert len(written) == sum(-(-(len(p) + s.max_tokens - 1) // 4) for p, s in zip(prompts, params))
    assert found == expected


def test_only_decode_steps_are_padded(model):
    with LLM(model, attention_backend="triton", max_num_batched_tokens=16, **OPTIONS) as llm:
        graphs = with_graphs(llm)
        params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
        llm.generate([[1, 2, 3]], params, use_tqdm=False)
        assert graphs.num_replays == 2
        llm.generate([list(range(1, 41))], params, use_tqdm=False)      # three chunks, of 16, 16 and 8 tokens
        assert graphs.num_replays == 4


@pytest.mark.parametrize("size", [1, 3, 12])
def test_a_batch_is_written_over_what_an_earlier_one_left(model, size):
    with LLM(model, attention_backend="triton", **OPTIONS) as llm:
        graphs = with_graphs(llm)
        llm.generate([[1, 2]] * 12, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True), use_tqdm=False)
        llm.generate([[3, 4]] * size, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True), use_tqdm=False)
        padded = next(s for s in graphs.sizes if s >= size)
        assert (graphs.buffers.slot_mapping[:size] >= 0).all()
        assert (graphs.buffers.slot_mapping[size:padded] == -1).all()
        assert (graphs.buffers.seq_lens[size:padded] == 0).all()
