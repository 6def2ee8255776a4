"""What a checkpoint says reaches the end: its bfloat16 weights run on a CPU, and each of its end tokens ends a text."""
import json

import pytest
import torch
from ggufs import write_gguf
from llamas import VOCAB, load_theirs, random_llama
from parity import check, generate, greedy, prompts_of, theirs

from paged_edu import LLM, SamplingParams

OPTIONS = {"block_size": 4, "num_gpu_blocks_override": 30, "skip_tokenizer_init": True}


@pytest.fixture(params=["safetensors", "gguf"])
def bfloat16(request, tmp_path):
    """``(path, transformers' model in float32)`` of a checkpoint in bfloat16."""
    hf = random_llama(tmp_path / "float32", "grouped queries", dtype=torch.float32)
    if request.param == "gguf":
        return tmp_path / "x.gguf", write_gguf(tmp_path / "x.gguf", hf, ("BF16",))
    hf.bfloat16().save_pretrained(tmp_path / "bfloat16")
    assert json.loads((tmp_path / "bfloat16" / "config.json").read_text())["dtype"] == "bfloat16"
    return tmp_path / "bfloat16", load_theirs(tmp_path / "bfloat16", torch.float32)


def test_bfloat16_as_float32(bfloat16):
    path, hf = bfloat16
    with LLM(path, **OPTIONS) as llm:
        assert {p.dtype for p in llm.engine.runner.model.parameters()} == {torch.float32}
        check(llm, hf, prompts_of((17, 1, 40), VOCAB), [greedy(n) for n in (12, 20, 7)], atol=1e-4)


def test_bfloat16_as_it_is(bfloat16):
    path, hf = bfloat16
    with LLM(path, dtype="bfloat16", **OPTIONS) as llm:
        assert {p.dtype for p in llm.engine.runner.model.parameters()} == {torch.bfloat16}
        assert llm.engine.runner.cache[0][0].dtype == torch.bfloat16
        outputs, rows = generate(llm, prompts_of((17, 1, 40), VOCAB), [greedy(n) for n in (12, 20, 7)])
    ours = theirs_off = 0.0
    for output, logits in zip(outputs, rows):
        exact = theirs(hf.float(), output)
        ours = max(ours, float((logits.float() - exact).abs().max()))
        theirs_off = max(theirs_off, float((theirs(hf.bfloat16(), output).float() - exact).abs().max()))
    assert 0 < ours < 2 * theirs_off, "no further from float32 than transformers in bfloat16"


@pytest.mark.parametrize("place", ["config.json", "generation_config.json", "both"])
def test_every_end_token_ends_a_text(tmp_path, place):  # B61
    random_llama(tmp_path, "llama 1, multi-head")
    prompt = {"prompt_token_ids": prompts_of((9,), VOCAB)[0]}

    def completions(*options):
        params = [SamplingParams(max_tokens=24, temperature=0, **o) for o in options]
        with LLM(tmp_path, **OPTIONS) as llm:
            return [o.outputs[0] for o in llm.generate([prompt] * len(params), params, use_tqdm=False)]

    text = list(completions({"ignore_eos": True})[0].token_ids)
    firsts = list(dict.fromkeys(text))
    unused = next(t for t in range(VOCAB) if t not in text)
    for end in (firsts[2], firsts[4]):
        lists = {"config.json": [unused, end], "generation_config.json": [end, unused]}
        if place == "both":
            lists = {"config.json": unused, "generation_config.json": [unused, end]}
        for name, ids in lists.items():
            content = json.loads((tmp_path / name).read_text())
            content["eos_token_id"] = ids if place in (name, "both") else None
            (tmp_path / name).write_text(json.dumps(content))
        stopped, whole, by_id = completions({}, {"ignore_eos": True}, {"ignore_eos": True, "stop_token_ids": [end]})
        assert list(stopped.token_ids) == list(by_id.token_ids) == text[: text.index(end) + 1]
        assert stopped.finish_reason == "stop"
        assert list(whole.token_ids) == text
