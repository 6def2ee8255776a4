"""LLM.stream and LLM.chat: outputs as they grow, leaving early, other calls meanwhile, threads; conversations and their template."""
import gc
import threading

import pytest
from test_engine import empty

from paged_edu import LLM, SamplingParams, UnsupportedError

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}{{ m.role|upper }}:\n{{ m.content }}\n\n"
    "{% endfor %}{% if add_generation_prompt %}ASSISTANT:\n{% endif %}"
)
TALK = [{"role": "user", "content": "Speak, I charge thee."}]
LONG = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)


def greedy(n, **options):
    return SamplingParams(temperature=0, max_tokens=n, ignore_eos=True, **options)


@pytest.fixture(scope="module")
def loaded():
    with LLM("tiny-shakespeare", num_gpu_blocks_override=24) as llm:
        yield llm


@pytest.fixture
def llm(loaded):
    yield loaded
    gc.collect()
    assert empty(loaded.engine)
    assert loaded._abandoned == set()


def test_deltas_join_to_what_generate_gives(llm):
    params = [greedy(30), SamplingParams(temperature=0.8, seed=3, max_tokens=60, stop=["\n\n", "the"]), greedy(5)]
    prompts = ["ROMEO:", "First Citizen:\nWe are", "O"]
    whole = llm.generate(prompts, params, use_tqdm=False)
    texts, last, order = {}, {}, []
    for output in llm.stream(prompts, params):
        done = output.outputs[0]
        texts[output.prompt] = texts.get(output.prompt, "") + done.delta
        assert texts[output.prompt] == done.text
        last[output.prompt] = done
        order.append(output.prompt)
    assert [last[o.prompt].text for o in whole] == [o.outputs[0].text for o in whole]
    assert [last[o.prompt].token_ids for o in whole] == [o.outputs[0].token_ids for o in whole]
    assert [last[o.prompt].finish_reason for o in whole] == [o.outputs[0].finish_reason for o in whole]
    assert order[:6] == prompts * 2, "they interleave"
    assert list(llm.stream([])) == []


@pytest.mark.parametrize("how", ["break", "error", "close", "throw"])
def test_leaving_early_frees_the_blocks_at_once(llm, how):
    stream = llm.stream(["ROMEO:", "JULIET:"], LONG)
    assert not llm.engine.has_unfinished_requests(), "nothing is queued before the first next"
    next(stream)
    assert llm.engine.scheduler.manager.pool.num_used > 0
    if how == "close":
        stream.close()
    elif how == "throw":
        with pytest.raises(KeyboardInterrupt):
            stream.throw(KeyboardInterrupt)
    elif how == "error":
        with pytest.raises(ZeroDivisionError):
            raise_in(stream)
    else:
        for _ in stream:
            break
        del stream
    assert llm.engine.scheduler.manager.pool.num_used == 0
    assert llm.engine.num_unfinished_requests == 0


def raise_in(stream):
    try:
        for _ in stream:
            raise ZeroDivisionError
    finally:
        stream.close()


def test_a_bad_prompt_raises_at_the_call(llm):
    for bad, error in (("", ValueError), ([9999], ValueError), (None, TypeError)):
        with pytest.raises(error):
            llm.stream(["ROMEO:", bad])
    with pytest.raises(ValueError, match="2 sampling_params for 1 prompts"):
        llm.stream(["ROMEO:"], [LONG, LONG])
    llm.stream("ROMEO:").close()


def test_generate_while_a_stream_is_open(llm):
    alone = llm.generate("ROMEO:", greedy(20), use_tqdm=False)[0].outputs[0]
    stream = llm.stream("ROMEO:", greedy(20))
    pieces = [next(stream).outputs[0].delta for _ in range(3)]
    assert llm.generate("JULIET:", greedy(5), use_tqdm=False)[0].finished
    output = next(stream).outputs[0]
    assert len(output.token_ids) >= 8, "it grew with the other call"
    pieces.append(output.delta)
    llm.generate("JULIET:", LONG, use_tqdm=False)       # it ends meanwhile
    rest = list(stream)
    assert len(rest) == 1
    assert "".join(pieces) + rest[0].outputs[0].delta == rest[0].outputs[0].text == alone.text


def test_two_streams_in_one_thread(llm):
    wanted = [llm.generate(p, greedy(n), use_tqdm=False)[0].outputs[0].text for p, n in (("ROMEO:", 25), ("JULIET:", 9))]
    one, two, texts = llm.stream("ROMEO:", greedy(25)), llm.stream("JULIET:", greedy(9)), ["", ""]
    for i, stream in [(0, one), (1, two)] * 30:
        texts[i] += take(stream)
    assert texts == wanted


def take(stream):
    output = next(stream, None)
    return "" if output is None else output.outputs[0].delta


def test_a_stream_inside_the_loop_of_another_and_by_hand(llm):
    seen = []
    llm.engine.add_request("mine", "O", greedy(3))
    for output in llm.stream("ROMEO:", greedy(6)):
        seen.append(output.request_id)
        for inner in llm.stream("JULIET:", greedy(2)):
            seen.append(inner.request_id)
    assert len({name.split("-")[1] for name in seen if name.startswith("stream")}) > 2
    assert [o.request_id for o in llm.engine.step()] == ["mine"], "kept for whoever asks for it"


def test_taking_the_outputs_by_hand_ends_a_stream_with_an_error(llm):
    stream = llm.stream("ROMEO:", greedy(3))
    next(stream)
    while llm.engine.has_unfinished_requests():
        llm.engine.step()
    with pytest.raises(RuntimeError, match="was ended outside of this call"):
        next(stream)


def test_a_forgotten_stream_is_found_in_the_middle_of_a_step(llm):
    """The garbage collector closes it whenever it likes: in the middle of a step of the same thread, or in another one. Nothing waits."""
    streams = [llm.stream("ROMEO:", LONG) for _ in range(2)]
    for stream in streams:
        next(stream)
    execute, events = llm.engine.runner.execute, []

    def collected(*args):
        if streams:
            streams.pop().close()                           # the same thread
            thread = threading.Thread(target=streams.pop().close)
            thread.start()
            thread.join(10)
            assert not thread.is_alive()
            events.append(1)
        return execute(*args)

    llm.engine.runner.execute = collected
    try:
        assert llm.generate("JULIET:", greedy(3), use_tqdm=False)[0].finished
    finally:
        llm.engine.runner.execute = execute
    assert events == [1]
    assert empty(llm.engine)


def test_streams_in_threads(llm):
    wanted, got = llm.generate("ROMEO:", greedy(12), use_tqdm=False)[0].outputs[0].text, {}

    def work(i):
        got[i] = "".join(output.outputs[0].delta for output in llm.stream("ROMEO:", greedy(12)))
        llm.generate("JULIET:", greedy(2), use_tqdm=False)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert got == dict.fromkeys(range(4), wanted)


def test_closing_the_llm_ends_its_streams():
    llm = LLM("tiny-shakespeare", num_gpu_blocks_override=8)
    stream = llm.stream("ROMEO:", LONG)
    next(stream)
    llm.close()
    with pytest.raises(RuntimeError, match="closed"):
        next(stream)


# -- conversations -------------------------------------------------------------------------------------------------------------------


def test_chat_is_generate_after_the_template(llm):
    text = "USER:\nSpeak, I charge thee.\n\nASSISTANT:\n"
    expected = llm.generate(text, greedy(12), use_tqdm=False)[0]
    one = llm.chat(TALK, greedy(12), chat_template=TEMPLATE, use_tqdm=False)
    assert [(o.prompt_token_ids, o.outputs[0].text) for o in one] == [(expected.prompt_token_ids, expected.outputs[0].text)]
    several = llm.chat([TALK, TALK], [greedy(12), greedy(3)], chat_template=TEMPLATE, use_tqdm=False)
    assert [len(o.outputs[0].token_ids) for o in several] == [12, 3]
    ids = llm.render_chat(TALK, chat_template=TEMPLATE)
    assert "".join(o.outputs[0].delta for o in llm.stream(ids, greedy(12))) == expected.outputs[0].text
    parts = [{"role": "user", "content": [{"type": "text", "text": "Speak, I"}, {"type": "text", "text": "charge thee."}]}]
    assert llm.tokenizer.decode(llm.render_chat(parts, chat_template=TEMPLATE)) == text.replace(", I ", ", I\n")


def test_how_the_prompt_of_a_chat_ends(llm):
    talk = [*TALK, {"role": "assistant", "content": "I will"}]
    whole = llm.tokenizer.decode(llm.render_chat(talk, chat_template=TEMPLATE, add_generation_prompt=False))
    assert whole.endswith("I will\n\n")
    begun = llm.render_chat(talk, chat_template=TEMPLATE, add_generation_prompt=False, continue_final_message=True)
    assert llm.tokenizer.decode(begun).endswith("ASSISTANT:\nI will")
    with pytest.raises(ValueError, match="set one to False"):
        llm.render_chat(talk, chat_template=TEMPLATE, continue_final_message=True)


def test_no_second_begin_token(tmp_path):
    """A tokenizer that puts a begin token before every text, and a template that writes it too."""
    from tiny_tokenizers import EOT, tiny
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    from paged_edu.engine.messages import as_conversations, render

    inner = tiny("byte-level").backend_tokenizer
    copy = type(inner).from_str(inner.to_str())
    copy.post_processor = TemplateProcessing(single=f"{EOT} $A", special_tokens=[(EOT, copy.token_to_id(EOT))])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=copy, bos_token=EOT, chat_template="{{ bos_token }}" + TEMPLATE)
    begin = tokenizer.bos_token_id
    assert tokenizer("a")["input_ids"][0] == begin
    ids = render(tokenizer, as_conversations(TALK)[0])
    assert ids[0] == begin
    assert ids.count(begin) == 1


@pytest.mark.parametrize(("messages", "error", "message"), [
    ([], ValueError, "at least 1 message"), ([[]], ValueError, "conversation 0, messages is empty"), ("hello", TypeError, "not str"),
    (5, TypeError, "not int"), ({"role": "user", "content": "x"}, TypeError, "not dict"), ([5], TypeError, "message 0 must be a dict"),
    ([*TALK, {"content": "x"}], ValueError, "message 1 has no 'role'"), ([*TALK, {"role": "user"}], ValueError, "message 1 has no 'content'"),
    ([{"role": 3, "content": "x"}], TypeError, "message 0: 'role' must be text, not int"),
    ([{"role": "", "content": "x"}], ValueError, "'role' is empty"),
    ([{"role": "user", "content": None}], TypeError, "message 0: 'content' must be text, not NoneType"),
    ([TALK, [{"role": "user", "content": 4}]], TypeError, "conversation 1, message 0: 'content' must be text, not int"),
    ([TALK, "x"], TypeError, "message 0 must be a dict"),
    ([{"role": "user", "content": "\ud800"}], ValueError, "lone surrogate"),
    ([{"role": "user", "content": "x", "colour": 1}], ValueError, "'colour'"),
    ([{"role": "user", "content": "x", "tool_calls": []}], UnsupportedError, "message 0: 'tool_calls' is not served yet"),
    ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], UnsupportedError, "type 'image_url' is not served yet"),
    ([{"role": "user", "content": [{"text": "x"}]}], TypeError, "with 'type'"),
    ([{"role": "user", "content": [{"type": "text"}]}], ValueError, "a part of type 'text'"),
    ([{"role": "tool", "content": "x"}], ValueError, "could not render the conversation: no tools here"),
])
def test_what_is_no_conversation(llm, messages, error, message):
    with pytest.raises(error, match=message):
        llm.chat(messages, chat_template=TEMPLATE, use_tqdm=False)


def test_no_chat_template(llm):
    """known fault B115"""
    with pytest.raises(ValueError, match="no chat template: pass chat_template"):
        llm.chat(TALK)
    with pytest.raises(ValueError, match="could not render"):
        llm.chat(TALK, chat_template="{% for %}")
    with pytest.raises(TypeError, match="chat_template must be text"):
        llm.chat(TALK, chat_template=5)
    with pytest.raises(ValueError, match="add_generation_prompt must be True or False"):
        llm.chat(TALK, chat_template=TEMPLATE, add_generation_prompt=1)
    with pytest.raises(ValueError, match="2 conversations"):
        llm.render_chat([TALK, TALK], chat_template=TEMPLATE)
    with pytest.raises(UnsupportedError, match="tools are not served yet"):
        llm.chat(TALK, tools=[{}])
    with pytest.raises(TypeError, match="documents"):
        llm.chat(TALK, documents=[])
    assert llm.generate("ROMEO:", greedy(1), use_tqdm=False)[0].finished
