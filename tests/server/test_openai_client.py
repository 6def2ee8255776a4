"""The server through the real ``openai`` client, whole and streamed: the same texts as `LLM`, every parameter, every field."""
import math

import openai
import pytest
from serving import TALK, TEMPLATE, serving

from paged_edu import LLM, AsyncEngine, BeamSearchParams, SamplingParams

PROMPT = "ROMEO:"
MODEL = "tiny-shakespeare"
OPTIONS = {"num_gpu_blocks_override": 64, "scheduling_policy": "priority", "max_num_seqs": 16}


@pytest.fixture(scope="module")
def llm():
    with LLM(MODEL, **OPTIONS) as llm:
        yield llm


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    template = tmp_path_factory.mktemp("chat") / "template.jinja"
    template.write_text(TEMPLATE)
    with serving(AsyncEngine(MODEL, **OPTIONS), chat_template=str(template), served_model_name=(MODEL, "bard")) as served:
        yield served


@pytest.fixture(scope="module")
def client(served):
    with served.openai() as client:
        yield client


def generated(llm, prompt=PROMPT, **params):
    return llm.generate(prompt, SamplingParams(**params), use_tqdm=False)[0]


def gathered(stream):
    """``(texts, finish reasons, usage)`` of a stream of completions or of a chat."""
    texts, reasons, usage = {}, {}, None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            assert choice.index not in reasons, "text after the end"
            text = choice.text if hasattr(choice, "text") else choice.delta.content or ""
            texts[choice.index] = texts.get(choice.index, "") + text
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    return texts, reasons, usage


def test_models(client):
    assert [model.id for model in client.models.list()] == [MODEL, "bard"]
    card = client.models.retrieve("bard")
    assert (card.id, card.owned_by, card.max_model_len) == ("bard", "paged_edu", 512)
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-4'"):
        client.models.retrieve("gpt-4")
    with pytest.raises(openai.NotFoundError, match="this server has 'tiny-shakespeare', 'bard'") as raised:
        client.completions.create(model="gpt-4", prompt=PROMPT)
    assert (raised.value.code, raised.value.param) == ("model_not_found", "model")


@pytest.mark.parametrize("params", [
    {"temperature": 0, "max_tokens": 20},
    {"seed": 3, "max_tokens": 20, "n": 3},
    {"seed": 4, "temperature": 0.7, "top_p": 0.8, "max_tokens": 12},
    {"temperature": 0, "max_tokens": 20, "presence_penalty": 1.5, "frequency_penalty": 0.5},
    {"temperature": 0, "max_tokens": 40, "stop": ["\n", ","]},
    {"temperature": 0, "max_tokens": 8, "logit_bias": {"199": -100, "12": 5}},
    {"seed": 1},
    {"seed": 5, "max_tokens": 9, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.3},
    {"temperature": 0, "max_tokens": 5, "stop_token_ids": [199]},
    {"temperature": 0, "max_tokens": 30, "stop": "\n", "include_stop_str_in_output": True},
    {"temperature": 0, "max_tokens": 3, "ignore_eos": True},
], ids=str)
def test_completions_are_those_of_the_library(client, llm, params):
    own = ("top_k", "min_p", "repetition_penalty", "stop_token_ids", "include_stop_str_in_output", "ignore_eos")
    extra = {name: params[name] for name in own if name in params}
    asked = {name: value for name, value in params.items() if name not in extra} | {"model": MODEL, "prompt": PROMPT, "extra_body": extra}
    wanted = generated(llm, **params)
    whole = client.completions.create(**asked)
    assert [choice.text for choice in whole.choices] == [done.text for done in wanted.outputs]
    assert [choice.finish_reason for choice in whole.choices] == [done.finish_reason for done in wanted.outputs]
    assert [choice.index for choice in whole.choices] == list(range(params.get("n", 1)))
    count = sum(len(done.token_ids) for done in wanted.outputs)
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (len(wanted.prompt_token_ids), count)
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + count
    assert (whole.object, whole.model) == ("text_completion", MODEL)
    assert whole.id.startswith("cmpl-")
    texts, reasons, usage = gathered(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert texts == {choice.index: choice.text for choice in whole.choices}
    assert reasons == {choice.index: choice.finish_reason for choice in whole.choices}
    assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, count)


def test_several_prompts_as_text_and_as_token_ids(client, llm):
    prompts = ["ROMEO:", "JULIET:\nO", "First Citizen:"]
    wanted = [generated(llm, prompt, seed=2, max_tokens=8, n=2) for prompt in prompts]
    texts = [done.text for output in wanted for done in output.outputs]
    asked = {"model": MODEL, "seed": 2, "max_tokens": 8, "n": 2}
    assert [choice.text for choice in client.completions.create(prompt=prompts, **asked).choices] == texts
    ids = [list(output.prompt_token_ids) for output in wanted]
    assert [choice.text for choice in client.completions.create(prompt=ids, **asked).choices] == texts
    streamed, reasons, _ = gathered(client.completions.create(prompt=prompts, stream=True, **asked))
    assert [streamed[i] for i in range(6)] == texts
    assert len(reasons) == 6
    assert [choice.text for choice in client.completions.create(prompt=ids[0], **asked).choices] == texts[:2]


def most(prompt_tokens):
    """Tokens that the cache can give: full blocks, and never the last token."""
    return min(prompt_tokens // 16 * 16, prompt_tokens - 1)


def test_cached_tokens_are_in_the_usage(client):
    prompt = "KING HENRY:\nI know thee well, and will a while uphold the unyoked humour of your idleness; yet herein will I imitate the sun."
    asked = {"model": MODEL, "prompt": prompt, "max_tokens": 2, "temperature": 0}
    first, second = client.completions.create(**asked), client.completions.create(**asked)
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert second.usage.prompt_tokens_details.cached_tokens == most(first.usage.prompt_tokens) > 0
    salted = client.completions.create(**asked, extra_body={"cache_salt": "mine"})
    assert salted.usage.prompt_tokens_details.cached_tokens == 0


def test_echo(client, llm):
    wanted = generated(llm, temperature=0, max_tokens=6)
    asked = {"model": MODEL, "prompt": PROMPT, "temperature": 0, "echo": True}
    assert client.completions.create(**asked, max_tokens=6).choices[0].text == PROMPT + wanted.outputs[0].text
    assert gathered(client.completions.create(**asked, max_tokens=6, stream=True))[0] == {0: PROMPT + wanted.outputs[0].text}
    ids = asked | {"prompt": list(wanted.prompt_token_ids)}
    assert client.completions.create(**ids, max_tokens=6).choices[0].text == PROMPT + wanted.outputs[0].text
    nothing = client.completions.create(**asked, max_tokens=0, n=2)
    assert [(c.text, c.finish_reason) for c in nothing.choices] == [(PROMPT, "length")] * 2
    assert nothing.usage.completion_tokens == 0
    assert gathered(client.completions.create(**asked, max_tokens=0, stream=True)) == ({0: PROMPT}, {0: "length"}, None)
    with pytest.raises(openai.BadRequestError, match="max_tokens must be at least 1, not 0"):
        client.completions.create(**asked | {"echo": False}, max_tokens=0)


@pytest.mark.parametrize("max_tokens", [0, 5])
def test_echoed_logprobs_begin_with_null_and_are_aligned(client, llm, max_tokens):
    """known fault B118"""
    wanted = generated(llm, temperature=0, max_tokens=max(1, max_tokens), logprobs=2, prompt_logprobs=2)
    asked = {"model": MODEL, "prompt": PROMPT, "temperature": 0, "echo": True, "logprobs": 2, "max_tokens": max_tokens}
    found = client.completions.create(**asked).choices[0]
    entries = list(zip(wanted.prompt_token_ids, wanted.prompt_logprobs))
    entries += list(zip(wanted.outputs[0].token_ids, wanted.outputs[0].logprobs)) if max_tokens else []
    assert found.logprobs.token_logprobs == [None, *[pytest.approx(entry[token].logprob) for token, entry in entries[1:]]]
    assert found.logprobs.tokens[1:] == [entry[token].decoded_token for token, entry in entries[1:]]
    assert found.logprobs.top_logprobs[0] is None
    assert all(len(top) in (2, 3) for top in found.logprobs.top_logprobs[1:])
    for token, offset in zip(found.logprobs.tokens, found.logprobs.text_offset):
        assert found.text[offset : offset + len(token)] == token
    chunks = [chunk.choices[0] for chunk in client.completions.create(**asked, stream=True)]
    assert "".join(chunk.text for chunk in chunks) == found.text
    for name in ("tokens", "token_logprobs", "text_offset"):
        assert [value for chunk in chunks for value in getattr(chunk.logprobs, name)] == getattr(found.logprobs, name)


def test_prompt_logprobs_do_not_read_the_prefix_cache(client):
    """known fault B119"""
    prompt = "HAMLET:\nO that this too too solid flesh would melt, thaw, and resolve itself into a dew, or that the Everlasting had not fixed"
    asked = {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 1}
    first, second = (client.completions.create(**asked, echo=True, logprobs=1) for _ in range(2))
    plain, third = client.completions.create(**asked), client.completions.create(**asked, echo=True, logprobs=1)
    cached = [one.usage.prompt_tokens_details.cached_tokens for one in (first, second, plain, third)]
    assert cached == [0, 0, most(first.usage.prompt_tokens), 0]
    for one in (second, third):
        assert one.choices[0].logprobs == first.choices[0].logprobs
    assert len(first.choices[0].logprobs.tokens) == first.usage.prompt_tokens + 1


def test_chat(client, llm):
    wanted = llm.chat(TALK, SamplingParams(temperature=0, max_tokens=12), chat_template=TEMPLATE, use_tqdm=False)[0]
    asked = {"model": MODEL, "messages": TALK, "temperature": 0}
    for name in ("max_tokens", "max_completion_tokens"):
        whole = client.chat.completions.create(**asked, **{name: 12})
        assert whole.choices[0].message.content == wanted.outputs[0].text
        assert (whole.choices[0].message.role, whole.choices[0].finish_reason, whole.object) == ("assistant", "length", "chat.completion")
        assert whole.usage.prompt_tokens == len(wanted.prompt_token_ids)
    chunks = list(client.chat.completions.create(**asked, max_tokens=12, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert [bool(chunk.choices) for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    assert gathered(chunks)[:2] == ({0: wanted.outputs[0].text}, {0: "length"})
    again = [*TALK, whole.choices[0].message, {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]}]
    assert client.chat.completions.create(**asked | {"messages": again}, max_tokens=2).choices[0].message.content
    begun = [*TALK, {"role": "assistant", "content": "I will"}]
    more = client.chat.completions.create(**asked | {"messages": begun}, max_tokens=2, extra_body={"continue_final_message": True})
    assert more.usage.prompt_tokens == len(llm.render_chat(begun, chat_template=TEMPLATE, add_generation_prompt=False, continue_final_message=True))
    several = client.chat.completions.create(**asked | {"temperature": 1}, n=2, seed=3, max_tokens=6, stream=True)
    assert len(gathered(several)[1]) == 2


def test_the_logprobs_of_a_chat(client, llm):
    wanted = llm.chat(TALK, SamplingParams(temperature=0, max_tokens=6, logprobs=3), chat_template=TEMPLATE, use_tqdm=False)[0].outputs[0]
    asked = {"model": MODEL, "messages": TALK, "temperature": 0, "max_tokens": 6, "logprobs": True, "top_logprobs": 3}
    content = client.chat.completions.create(**asked).choices[0].logprobs.content
    streamed = [one for chunk in client.chat.completions.create(**asked, stream=True) for choice in chunk.choices if choice.logprobs
                for one in choice.logprobs.content]
    for found in (content, streamed):
        assert [one.logprob for one in found] == pytest.approx([entry[t].logprob for t, entry in zip(wanted.token_ids, wanted.logprobs)])
        assert b"".join(bytes(one.bytes) for one in found).decode() == wanted.text
        assert [len(one.top_logprobs) for one in found] == [3] * 6
        assert all(one.top_logprobs[0].logprob >= one.top_logprobs[1].logprob for one in found)
    alone = client.chat.completions.create(**asked | {"top_logprobs": None}).choices[0].logprobs.content
    assert [one.top_logprobs for one in alone] == [[]] * 6


def test_beam_search(client, llm):
    wanted = llm.beam_search(PROMPT, BeamSearchParams(beam_width=4, n=2, max_tokens=8), use_tqdm=False)[0].outputs
    asked = {"model": MODEL, "prompt": PROMPT, "n": 2, "max_tokens": 8}
    beams = {"beam_width": 4, "length_penalty": 1.0}
    assert [c.text for c in client.completions.create(**asked, extra_body=beams).choices] == [done.text for done in wanted]
    assert gathered(client.completions.create(**asked, extra_body=beams, stream=True))[0] == {i: done.text for i, done in enumerate(wanted)}
    wide = llm.beam_search(PROMPT, BeamSearchParams(beam_width=2, max_tokens=8), use_tqdm=False)[0].outputs
    assert [c.text for c in client.completions.create(**asked, extra_body={"use_beam_search": True}).choices] == [done.text for done in wide]
    for name, value in {"temperature": 0.5, "seed": 1, "stop": "x", "logprobs": 1}.items():
        with pytest.raises(openai.BadRequestError, match=f"{name} does not go with a beam search"):
            client.completions.create(**asked, extra_body=beams, **{name: value})
    with pytest.raises(openai.BadRequestError, match="length_penalty is for a beam search"):
        client.completions.create(**asked, extra_body={"length_penalty": 2})


def test_priority_and_room(client, served):
    asked = {"model": MODEL, "prompt": PROMPT, "temperature": 0}
    assert client.completions.create(**asked, max_tokens=2, extra_body={"priority": -3}).choices[0].text
    assert client.completions.create(**asked).usage.completion_tokens == 16
    long = client.completions.create(**asked, max_tokens=10_000, extra_body={"ignore_eos": True})
    assert long.usage.total_tokens == 512
    assert long.choices[0].finish_reason == "length"
    with pytest.raises(openai.BadRequestError, match="the prompt has 600 tokens; max_model_len is 512") as raised:
        client.completions.create(**asked | {"prompt": [5] * 600})
    assert raised.value.code == "context_length_exceeded"
    chat = client.chat.completions.create(model=MODEL, messages=TALK, temperature=0, extra_body={"ignore_eos": True})
    assert chat.usage.total_tokens == 512
    assert served.service.stats.failed == 0


@pytest.mark.parametrize(("body", "said"), [
    ({"tools": [{"type": "function"}]}, "tools is not served"),
    ({"response_format": {"type": "json_object"}}, "response_format is not served"),
    ({"suffix": "x"}, "there is no parameter"),
    ({"temprature": 1}, "did you mean temperature"),
    ({"reasoning_effort": "high"}, "reasoning_effort is not"),
    ({"chat_template": "{{ x }}"}, "chat_template is not served"),
    ({"top_logprobs": 2}, "top_logprobs needs logprobs=true"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs must be between 0 and 20, not 21"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, "two names"),
    ({"stop": ["a"] * 17}, "stop has 17 texts; at most 16"),
    ({"n": 17}, "max_num_seqs is 16"),
    ({"stream_options": {}}, "stream_options are for stream"),
    ({"temperature": math.pi * -1}, "temperature must be at least 0"),
    ({"store": True}, "store is not served"),
    ({"n": 1.5}, "n must be an integer"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "no tools here"),
    ({"messages": [{"role": "user"}]}, "message 0 has no 'content'"),
])
def test_what_is_not_served_is_refused_by_name(client, body, said):
    with pytest.raises(openai.BadRequestError, match=said):
        client.chat.completions.create(model=MODEL, messages=TALK, extra_body=body)


@pytest.mark.parametrize("wrong", [
    {"n": 0}, {"n": 17}, {"max_tokens": 0}, {"temperature": -1}, {"top_p": 2}, {"top_k": -5}, {"min_p": 7}, {"stop": [""]},
    {"logit_bias": {"1": 1000}}, {"logit_bias": {"70000": 1}}, {"presence_penalty": 9}, {"min_tokens": 999},
    {"stop_token_ids": [70_000]}, {"beam_width": 99}, {"best_of": 2},
])
def test_an_error_names_its_field(client, wrong):
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(model=MODEL, prompt=PROMPT, extra_body=wrong)
    assert raised.value.param == next(iter(wrong)), raised.value.message


def test_what_asks_for_nothing_is_taken(client):
    neutral = {"tools": [], "response_format": {"type": "text"}, "store": False, "metadata": None, "service_tier": "auto", "modalities": ["text"],
               "tool_choice": "none", "user": "me", "parallel_tool_calls": True}
    assert client.chat.completions.create(model=MODEL, messages=TALK, max_tokens=1, extra_body=neutral).choices
    assert client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=1, seed=-1, best_of=1, suffix="").choices
    with pytest.raises(openai.BadRequestError, match="best_of=3 is not served"):
        client.completions.create(model=MODEL, prompt=PROMPT, best_of=3)


def test_the_async_client_and_many_at_once(served, llm):
    import asyncio

    prompts = [f"{name}:\n{word}" for name in ("ROMEO", "JULIET") for word in "abcdefgh"]
    wanted = [generated(llm, prompt, seed=i, max_tokens=12).outputs[0].text for i, prompt in enumerate(prompts)]

    async def main():
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0) as client:
            async def one(i):
                text = ""
                async for chunk in await client.completions.create(model=MODEL, prompt=prompts[i], seed=i, max_tokens=12, stream=True):
                    text += chunk.choices[0].text
                return text

            return await asyncio.gather(*[one(i) for i in range(16)])

    assert asyncio.run(main()) == wanted
