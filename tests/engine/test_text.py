"""The text of outputs, through the engine: deltas, stop strings, tiny pools, interruptions. What a request says is scripted; all else is real."""
import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interrupting import interrupt_at
from scripted import PROMPT, add, follow, scripted
from test_engine import empty, make
from test_stop import by_definition
from tiny_tokenizers import EOT, tiny

from paged_edu import LLM, SamplingParams
from paged_edu.engine import completions
from paged_edu.sampling.detokenize import Detokenizer

TOKENIZER = tiny("byte-level")
END = TOKENIZER.eos_token_id
BYTES = {char: TOKENIZER.convert_tokens_to_ids(char) for char in "ABCabcd#"}
TEXTS = ["größer 🔥 du ### end", "你好 and more User: never seen", "plain words and some more of them", "ď🔥ď🔥ď🔥 User", "#a##b###c"]
STOPS = ["###", "User:"]


def single(script, params, **options):
    """One request alone: its outputs, the engine."""
    engine = scripted(TOKENIZER, **options)
    add(engine, "a", script, params)
    seen = follow(engine)["a"]
    assert empty(engine)
    return seen, engine


def expected(script, params, kind="byte-level"):
    """``(text, tokens, reason)`` of a script by the definition: text cut at the stop, or by max_tokens."""
    ids = tiny(kind)(script)["input_ids"][: params.max_tokens]
    reader = Detokenizer(tiny(kind)).stream()
    pieces = [reader.push([i]) for i in ids]
    pieces[-1] += reader.finish()
    text, stop = by_definition(pieces, params.stop, params.min_tokens, params.include_stop_str_in_output)
    return text, (tuple(ids[: stop.num_tokens]) if stop else tuple(ids)), ("stop" if stop else "length"), stop.string if stop else None


def lengths(script, **options):
    """Parameters with max_tokens at the end of the script."""
    return SamplingParams(max_tokens=len(TOKENIZER(script)["input_ids"]), **options)


@pytest.mark.parametrize("num_blocks", [64, 9])
def test_texts_are_the_same_in_a_tiny_pool(num_blocks):
    engine = scripted(TOKENIZER, num_blocks=num_blocks)
    params = {f"r{i}": lengths(text, stop=STOPS) for i, text in enumerate(TEXTS)}
    for (name, one), text in zip(params.items(), TEXTS):
        add(engine, name, text, one)
    requests = [record.request for record in engine._records.values()]
    seen = follow(engine)
    preemptions = sum(request.num_preemptions for request in requests)
    assert preemptions == 0 if num_blocks == 64 else preemptions > 2
    for (name, one), text in zip(params.items(), TEXTS):
        last = seen[name][-1]
        assert (last.text, last.token_ids, last.finish_reason, last.stop_reason) == expected(text, one)
        assert "".join(done.delta for done in seen[name]) == last.text
    assert {seen[f"r{i}"][-1].finish_reason for i in range(5)} == {"stop", "length"}
    assert empty(engine)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), num_blocks=st.integers(9, 20), block_size=st.integers(1, 5), width=st.integers(1, 3))
def test_any_requests_in_any_pool(data, num_blocks, block_size, width):
    engine, wanted = scripted(TOKENIZER, num_blocks * 4, block_size, width=width), {}
    for i in range(data.draw(st.integers(1, 5))):
        text = data.draw(st.text("ab#ď🔥 ", min_size=1, max_size=10))
        stops = data.draw(st.lists(st.text("ab#ď🔥 ", min_size=1, max_size=3), max_size=2))
        limit = len(TOKENIZER(text)["input_ids"])
        limit -= limit % width if limit > width else 0
        params = SamplingParams(max_tokens=max(limit, 1), stop=stops, include_stop_str_in_output=data.draw(st.booleans()))
        if limit >= width:
            add(engine, f"r{i}", text, params)
            wanted[f"r{i}"] = expected(text, params)
    seen = follow(engine)
    got = {name: (o[-1].text, o[-1].token_ids, o[-1].finish_reason, o[-1].stop_reason) for name, o in seen.items()}
    got = {name: value if value[3] != "kv_pool" else wanted[name] for name, value in got.items()}
    assert got == wanted
    assert empty(engine)


def test_a_stop_string_frees_the_blocks_in_the_step_that_completes_it():
    engine = scripted(TOKENIZER)
    add(engine, "a", "a#b###cd", SamplingParams(max_tokens=50, stop="###"))
    while True:
        (output,) = engine.step()
        if output.finished:
            break
        assert engine.scheduler.manager.pool.num_used > 0
    assert (output.outputs[0].text, output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("a#b", "stop", "###")
    assert engine.scheduler.manager.pool.num_used == 0
    assert empty(engine)


@pytest.mark.parametrize(("pieces", "stop", "deltas"), [
    ("a#b##cd", "###", ["a", "", "#b", "", "", "##c", "d"]),            # known fault B105, its "##" in two tokens
    ("abc#", "#d", ["a", "b", "c", "#"]),                             # known fault B104: released at "length", with the last token
    ("abc", "c", ["a", "b", ""]),                                       # the last token may stop as well
    ("a", "a", [""]),
])
def test_deltas(pieces, stop, deltas):
    seen, _ = single([BYTES[char] for char in pieces], SamplingParams(max_tokens=len(pieces), stop=stop))
    assert [done.delta for done in seen] == deltas
    assert [done.finish_reason for done in seen][:-1] == [None] * (len(pieces) - 1)
    assert seen[-1].finish_reason == ("stop" if stop in pieces else "length")


def test_held_back_text_is_released_at_every_other_end():
    """known fault B104"""
    script, params = [BYTES[char] for char in "ab##"], SamplingParams(max_tokens=100, stop="###", stop_token_ids=[BYTES["d"]])
    seen, _ = single([*script, END], params, eos=[END])
    assert (seen[-1].text, seen[-1].delta, seen[-1].finish_reason, len(seen[-1].token_ids)) == ("ab##", "##", "stop", 5)
    seen, _ = single([*script, BYTES["d"]], params)
    assert (seen[-1].text, seen[-1].delta, seen[-1].stop_reason) == ("ab##", "##", BYTES["d"])
    with pytest.warns(RuntimeWarning, match="filled the pool"):
        seen, _ = single(script, SamplingParams(max_tokens=100, stop="####x"), num_blocks=2)
    assert (seen[-1].text, seen[-1].stop_reason) == ("ab" + "#" * 4, "kv_pool")
    engine = scripted(TOKENIZER)
    add(engine, "a", script, params)
    shown = [engine.step()[0].outputs[0].text for _ in range(4)]
    assert shown == ["a", "ab", "ab", "ab"]
    aborted = engine.abort_request("a").outputs[0]
    assert (aborted.text, aborted.delta, aborted.finish_reason) == ("ab##", "##", "abort")
    assert empty(engine)


@pytest.mark.parametrize(("options", "eos", "text", "tokens", "reason", "why"), [
    ({"stop": [EOT]}, False, "AB", 3, "length", None),                  # looked for in the visible text: it is not there
    ({"stop": [EOT], "skip_special_tokens": False}, False, "A", 2, "stop", EOT),
    ({"stop_token_ids": [END]}, False, "A", 2, "stop", END),
    ({"stop_token_ids": [END], "skip_special_tokens": False}, False, "A", 2, "stop", END),
    ({"stop_token_ids": [END], "skip_special_tokens": False, "include_stop_str_in_output": True}, False, "A" + EOT, 2, "stop", END),
    ({}, True, "A", 2, "stop", None),
    ({"skip_special_tokens": False}, True, "A", 2, "stop", None),
    ({"skip_special_tokens": False, "include_stop_str_in_output": True}, True, "A" + EOT, 2, "stop", None),
    ({"include_stop_str_in_output": True}, True, "A", 2, "stop", None),
    ({"ignore_eos": True}, True, "AB", 3, "length", None),
])
def test_special_tokens_and_stops(options, eos, text, tokens, reason, why):
    """known fault B107"""
    seen, _ = single([BYTES["A"], END, BYTES["B"]], SamplingParams(max_tokens=3, **options), eos=[END] if eos else ())
    assert (seen[-1].text, len(seen[-1].token_ids), seen[-1].finish_reason, seen[-1].stop_reason) == (text, tokens, reason, why)
    assert "".join(done.delta for done in seen) == text


def test_min_tokens_and_the_stop_in_the_output():
    script = [BYTES[char] for char in "#a#b#c"]
    seen, _ = single(script, SamplingParams(max_tokens=6, min_tokens=3, stop="#"))
    assert (seen[-1].text, len(seen[-1].token_ids)) == ("#a", 3)
    seen, _ = single(script, SamplingParams(max_tokens=6, min_tokens=4, stop="#", include_stop_str_in_output=True))
    assert (seen[-1].text, len(seen[-1].token_ids)) == ("#a#b#", 5)
    assert [done.delta for done in seen] == ["#", "a", "#", "b", "#"]


def test_invalid_bytes_come_out_at_the_end():
    """known fault B99"""
    seen, _ = single([BYTES["a"], TOKENIZER.convert_tokens_to_ids("Ä")], SamplingParams(max_tokens=2))
    assert [done.delta for done in seen] == ["a", "�"]


# -- interruptions -------------------------------------------------------------------------------------------------------------------


def test_an_interruption_between_a_token_and_its_text_does_not_lose_the_stop():
    engine = scripted(TOKENIZER)
    add(engine, "a", "one ### two", SamplingParams(max_tokens=50, stop="###"))
    look, calls = engine._end_at_stop_strings, []

    def interrupted(sequences):
        calls.append(1)
        seq = engine.scheduler.requests["a"].live[0]
        if "###" in TOKENIZER.decode(seq.output_token_ids) and not interrupted.done:
            interrupted.done = True
            raise KeyboardInterrupt
        look(sequences)

    interrupted.done = False
    engine._end_at_stop_strings = interrupted
    with pytest.raises(KeyboardInterrupt):
        follow(engine)
    steps, (output,) = engine.scheduler.step, engine.step()
    assert (output.outputs[0].text, output.outputs[0].token_ids) == expected("one ### two", SamplingParams(max_tokens=50, stop="###"))[:2]
    assert engine.scheduler.step == steps, "nothing was computed after the stop"
    assert empty(engine)


def test_aborting_after_such_an_interruption_cuts_as_well():
    engine = scripted(TOKENIZER)
    add(engine, "a", "one ### two", SamplingParams(max_tokens=50, stop="###"))
    engine._end_at_stop_strings = lambda sequences: None
    for _ in range(40):
        engine.step(finished_only=True)
    output = engine.abort_request("a").outputs[0]
    assert (output.text, output.token_ids, output.finish_reason, output.stop_reason) == expected(
        "one ### two", SamplingParams(max_tokens=50, stop="###"))
    assert output.delta == output.text
    assert empty(engine)


def test_a_sequence_that_is_ahead_is_cut_at_its_stop():
    """Several tokens a step: those after the stop are no part of the output."""
    params = SamplingParams(max_tokens=50, stop="#")
    for width in (1, 2, 3, 4):
        seen, _ = single([BYTES[char] for char in "ab#cdabcd"], params, width=width)
        assert (seen[-1].text, len(seen[-1].token_ids), seen[-1].stop_reason) == ("ab", 3, "#")


def serve(engine, texts, done):
    while engine.has_unfinished_requests():
        for output in engine.step():
            texts[output.request_id] += output.outputs[0].delta
            done[output.request_id] = output.outputs[0]
            assert texts[output.request_id] == output.outputs[0].text


def test_an_interruption_at_any_line_loses_no_text():
    """KeyboardInterrupt at hundreds of places inside a step, text and stop strings included: what was returned still joins to the text."""
    chance, cut = random.Random(1), 0
    wanted = {f"r{i}": expected(text, lengths(text, stop=STOPS)) for i, text in enumerate(TEXTS)}
    for at in [*range(1, 200), *(chance.randrange(200, 12000) for _ in range(200))]:
        engine = scripted(TOKENIZER, num_blocks=9)
        for name, text in zip(wanted, TEXTS):
            add(engine, name, text, lengths(text, stop=STOPS))
        texts, done = dict.fromkeys(wanted, ""), {}

        sys.settrace(interrupt_at(at))
        try:
            serve(engine, texts, done)
        except KeyboardInterrupt:
            cut += 1
        finally:
            sys.settrace(None)
        serve(engine, texts, done)
        assert {name: (o.text, o.token_ids, o.finish_reason, o.stop_reason) for name, o in done.items()} == wanted, at
        assert {name: o.text for name, o in done.items()} == texts
        assert empty(engine), at
    assert cut > 300


# -- who reads what ------------------------------------------------------------------------------------------------------------------


def test_no_text_is_made_that_nobody_reads(monkeypatch):
    engine, read = scripted(TOKENIZER), []
    push = completions.OutputText.read
    monkeypatch.setattr(completions.OutputText, "read", lambda self, ids: read.append(len(ids)) or push(self, ids))
    add(engine, "a", "plain words", lengths("plain words"))
    outputs = []
    while engine.has_unfinished_requests():
        assert read == []
        outputs += engine.step(finished_only=True)
    assert len(read) == 1
    assert outputs[0].outputs[0].delta == outputs[0].outputs[0].text == "plain words"


def test_a_step_for_some_requests_keeps_the_words_and_the_ends_of_the_others():
    engine = scripted(TOKENIZER)
    add(engine, "a", "abcabc", SamplingParams(max_tokens=10))
    add(engine, "b", "abcabc", SamplingParams(max_tokens=8))
    first = [{o.request_id: o.outputs[0].delta for o in engine.step(only=wanted)} for wanted in (("a",), ("b",), (), ("a", "b"))]
    script = engine.runner.scripts["a"]
    ids = [TOKENIZER.decode([script[min(i, len(script) - 1)]]) for i in range(10)]
    assert first == [{"a": ids[0]}, {"b": "".join(ids[:2])}, {}, {"a": "".join(ids[1:4]), "b": "".join(ids[2:4])}]
    rest = ""
    while engine.knows("a"):
        for output in engine.step(only=("a",)):
            assert output.request_id == "a"
            rest += output.outputs[0].delta
    assert rest == "".join(ids[4:])
    assert engine.knows("b"), "its end is kept for whoever asks"
    (last,) = engine.step(only=("b",))
    assert (last.outputs[0].delta, last.outputs[0].text) == ("".join(ids[4:8]), "".join(ids[:8]))
    assert empty(engine)


def test_stop_strings_need_a_tokenizer():
    with pytest.raises(ValueError, match=r"stop=\['x'\] is looked for in the text, and this engine has no tokenizer"):
        make().add_request("a", [1], SamplingParams(stop="x"))


def test_the_embedded_model_streams_what_it_generates():
    with LLM("tiny-shakespeare", num_gpu_blocks_override=64) as llm:
        params = SamplingParams(temperature=0, max_tokens=60)
        whole = llm.generate("ROMEO:", params, use_tqdm=False)[0].outputs[0]
        cut = llm.generate("ROMEO:", SamplingParams(temperature=0, max_tokens=60, stop=[whole.text[20:23]]), use_tqdm=False)[0].outputs[0]
        assert cut.text == whole.text[: whole.text.index(whole.text[20:23])]
        assert cut.finish_reason == "stop"
        assert whole.text == llm.tokenizer.decode(whole.token_ids, skip_special_tokens=True)
        assert PROMPT
