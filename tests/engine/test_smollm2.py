"""The pulled SmolLM2 against transformers: logits, greedy tokens, tokenizer, chat. Skipped where `paged-edu pull` has not been run.

tests/run.sh pulls the model first and, where that worked, sets PAGED_EDU_TEST_SMOLLM2=required: a skip is then a failure.
"""
import os
from pathlib import Path

import pytest
import torch
from logits import difference, expected, run
from parity import generate, greedy, theirs
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from paged_edu import LLM, SamplingParams
from paged_edu.engine.build import load_tokenizer
from paged_edu.model.catalog import PULLED, model_dir
from paged_edu.model.loader import load_model, load_spec, resolve

NAME = "smollm2-135m-instruct"
TEXT = (Path(__file__).parents[2] / "LICENSE").read_text()
PROMPTS = ["The capital of France is", "def fibonacci(n):\n", "In 1969, the first", "Water boils at"]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder():
    if not model_dir(NAME).is_dir():
        reason = f"{NAME} is not in the cache: run paged-edu pull {NAME}"
        pytest.fail(reason) if os.environ.get("PAGED_EDU_TEST_SMOLLM2") == "required" else pytest.skip(reason)
    return resolve(NAME)


@pytest.fixture(scope="module")
def hf(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()


@pytest.fixture(scope="module")
def llm(folder):
    with LLM(NAME, max_model_len=1024, num_gpu_blocks_override=80) as llm:
        yield llm


def test_logits_of_512_tokens(folder, hf):
    ids = load_tokenizer(folder)(TEXT)["input_ids"][:512]
    model, spec = load_model(folder, torch.float32, "cpu")
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.vocab_size) == (30, 9, 3, 64, 49152)
    assert difference(run(model, [ids], [200], dtype=torch.float32), expected(hf, [ids])) < 5e-4


def test_greedy_tokens_up_to_near_ties(llm, hf):
    prompts = [llm.tokenizer(p)["input_ids"] for p in PROMPTS]
    outputs, rows = generate(llm, prompts, [greedy(16)] * len(prompts))
    ties = 0
    for output, logits in zip(outputs, rows):
        want = theirs(hf, output)
        assert (logits - want).abs().max() < 5e-4
        for token, row, (first, second) in zip(output.outputs[0].token_ids, want, want.topk(2).values.tolist()):
            if token != int(row.argmax()):
                assert first - second < 1e-3
                ties += 1
                print(f"near tie: {first - second:.2g}")
    assert ties <= 1


def test_logprobs_of_prompt_and_output(llm, hf):
    """Against transformers' log-softmax, within the bound of the logits; the bytes of the tokens are the bytes of the text."""
    prompts = [TEXT[:900], "Zwölf Boxkämpfer jagen 🔥"]
    params = greedy(12, logprobs=5, prompt_logprobs=3, repetition_penalty=1.1)
    for output in llm.generate(prompts, params, use_tqdm=False):
        done = output.outputs[0]
        ids = [*output.prompt_token_ids, *done.token_ids]
        with torch.inference_mode():
            table = torch.log_softmax(hf(torch.tensor([ids])).logits[0], -1)
        found = [*output.prompt_logprobs, *done.logprobs]
        assert found[0] is None
        assert len(found) == len(ids)
        for i, (token, entry) in enumerate(zip(ids[1:], found[1:])):
            k = 3 if i + 1 < len(output.prompt_token_ids) else 5
            assert [one.logprob for one in entry.values()][:k] == pytest.approx(table[i].topk(k).values.tolist(), abs=5e-4)
            assert all(one.logprob == pytest.approx(float(table[i, other]), abs=5e-4) for other, one in entry.items())
            assert token in entry
        text = b"".join(entry[token].bytes for token, entry in zip(ids[1:], found[1:])).decode("utf-8", "replace")
        assert text == llm.tokenizer.decode(ids[1:])


def test_the_gguf_file_is_the_same_model(folder):
    """Tensor for tensor: what was pulled, our reading of the file, and transformers' reading of it."""
    file = folder / Path(PULLED[NAME].member).name
    pulled, _ = load_model(folder, torch.float32, "cpu")
    ours, _ = load_model(file, torch.float32, "cpu")
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    tensors = load_gguf_checkpoint(file, return_tensors=True, model_to_load=skeleton)
    state = ours.state_dict()
    assert state.keys() == pulled.state_dict().keys()
    for name, tensor in pulled.state_dict().items():
        assert torch.equal(state[name], tensor), name
    assert len(tensors["tensors"]) == len(state) - 1, "the head is tied"
    for name, tensor in tensors["tensors"].items():
        assert torch.equal(state[name.removeprefix("model.")], tensor), name
    config = tensors["config"]
    spec = load_spec(file)
    assert (config["num_key_value_heads"], config["max_position_embeddings"], config["rope_theta"]) == (
        spec.num_kv_heads, spec.max_positions, spec.config["rope_parameters"]["rope_theta"])


def test_tokenizer(folder):
    ours, auto = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    from_gguf = load_tokenizer(folder / Path(PULLED[NAME].member).name)
    assert type(ours) is type(auto)
    for text in (TEXT, "it's 12345 + 67", "<|im_start|>user\nhi<|im_end|>", " naïve  東京 \U0001f600\n\n"):
        ids = ours(text)["input_ids"]
        assert ids == auto(text)["input_ids"] == from_gguf(text)["input_ids"]
        assert ours.decode(ids) == text
    assert ours("12345")["input_ids"] == [ours.convert_tokens_to_ids(d) for d in "12345"]
    chat = [{"role": "user", "content": "Hi"}]
    assert ours.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n")


def test_a_chat_turn_ends(llm):
    spec = load_spec(resolve(NAME))
    names = llm.tokenizer.convert_ids_to_tokens(list(spec.eos_token_ids))
    assert names == ["<|im_end|>", "<|endoftext|>"]
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = llm.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    completion = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=60), use_tqdm=False)[0].outputs[0]
    assert "Paris" in completion.text
    assert completion.finish_reason == "stop"
    assert completion.token_ids[-1] == spec.eos_token_ids[0]
    assert "<|im_end|>" not in completion.text


def test_generate_asks_a_chat_model(folder, capsys):
    """``paged-edu generate`` puts a prompt to a chat model as a question, greedily, unless --raw is given."""
    from paged_edu import cli

    common = ["generate", "--model", NAME, "--max-model-len", "512"]
    assert cli.main([*common, "What is the capital of France?", "--max-tokens", "20"]) == 0
    assert "What is the capital of France?\nThe capital of France is Paris.\n" in capsys.readouterr().out
    assert cli.main([*common, "The capital of France is", "--raw", "--temperature", "0", "--max-tokens", "2", "--stream"]) == 0
    assert capsys.readouterr().out.startswith("The capital of France is Paris")
