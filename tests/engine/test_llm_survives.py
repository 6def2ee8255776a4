"""What must not wedge an `LLM`: extreme parameters, threads, refused batches, requests of others, prompts and models that are none."""
import threading

import pytest

from paged_edu import LLM, SamplingParams


@pytest.fixture(scope="module")
def llm():
    with LLM("tiny-shakespeare", num_gpu_blocks_override=64) as llm:
        yield llm


@pytest.mark.parametrize("options", [{"top_p": 1e-46}, {"top_k": 2**63}, {"temperature": 1e39, "min_tokens": 2}, {"temperature": 1e300, "top_k": 3},
                                     {"min_p": 1.0, "top_p": 1e-320}])
def test_extreme_parameters_sample_real_tokens(llm, options):
    """Values that underflow or overflow in float32 once passed the door and gave an id outside the vocabulary."""
    mate = SamplingParams(temperature=0, max_tokens=3)
    outputs = llm.generate(["ROMEO:"] * 2, [SamplingParams(max_tokens=4, ignore_eos=True, **options), mate], use_tqdm=False)
    assert len(outputs[0].outputs[0].token_ids) == 4
    assert all(0 <= token < 1024 for o in outputs for token in o.outputs[0].token_ids)
    assert outputs[1].outputs[0].token_ids == llm.generate("ROMEO:", mate, use_tqdm=False)[0].outputs[0].token_ids


def test_threads_take_turns(llm):
    results, errors = {}, []

    def work(i):
        try:
            results[i] = llm.generate(["ROMEO:"] * 2, SamplingParams(temperature=0, max_tokens=5 + i, ignore_eos=True), use_tqdm=False)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert {i: [len(o.outputs[0].token_ids) for o in r] for i, r in results.items()} == {i: [5 + i] * 2 for i in range(4)}


def test_a_refused_batch_leaves_no_trace_in_later_samples():
    texts = []
    for refuse in (False, True):
        with LLM("tiny-shakespeare", num_gpu_blocks_override=16) as llm:
            if refuse:
                with pytest.raises(ValueError, match="empty"):
                    llm.generate(["ROMEO:", "JULIET:", ""])
            texts.append(llm.generate("ROMEO:", SamplingParams(max_tokens=12, ignore_eos=True), use_tqdm=False)[0].outputs[0].text)
    assert texts[0] == texts[1]


def test_generate_never_touches_requests_of_others(llm):
    name = f"generate-{llm._num_calls}-0"
    llm.engine.add_request(name, "JULIET:", SamplingParams(max_tokens=2))
    with pytest.raises(ValueError, match="in use"):
        llm.generate("ROMEO:", use_tqdm=False)
    assert llm.engine.num_unfinished_requests == 1
    assert llm.generate("ROMEO:", SamplingParams(max_tokens=5, ignore_eos=True), use_tqdm=False)[0].finished
    assert [o.request_id for o in llm.engine.step()] == [name]


def test_prompts_that_are_no_text_or_beyond_the_model(llm, tmp_path):
    import numpy as np
    from parity import random_gpt2

    with pytest.raises(ValueError, match=r"lone surrogate '\\ud800' at position 2"):
        llm.generate("ab\ud800")
    with pytest.raises(TypeError, match="bytearray"):
        llm.generate(bytearray(b"abc"))
    assert llm.generate([np.int64(1), np.int64(2)], SamplingParams(max_tokens=1), use_tqdm=False)[0].prompt_token_ids == (1, 2)
    random_gpt2(tmp_path, vocab_size=90)
    with LLM(tmp_path, tokenizer="tiny-shakespeare", num_gpu_blocks_override=8) as small:
        with pytest.raises(ValueError, match=r"the tokenized prompt: the id .* is not in the vocabulary, 0 to 89"):
            small.generate("ROMEO: the tokenizer knows more words than the model")
        assert small.generate([1, 2], SamplingParams(max_tokens=2), use_tqdm=False)[0].finished


def test_what_is_no_model():
    for bad in (None, 5):
        with pytest.raises(TypeError, match="name or a directory"):
            LLM(bad)
    with pytest.raises(ValueError, match="tokenizer must be"):
        LLM("tiny-shakespeare", tokenizer=5)
    with pytest.raises(ValueError, match="num_gpu_blocks_override"):
        LLM("tiny-shakespeare", num_gpu_blocks_override=10**400)
    with pytest.raises(ValueError, match="temperature"):
        SamplingParams(temperature=10**400)
    closed = LLM("tiny-shakespeare", num_gpu_blocks_override=4)
    closed.close()
    with pytest.raises(RuntimeError, match="closed"), closed:
        pass
