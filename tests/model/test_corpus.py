"""A corpus as token ids loses nothing, and what is no corpus is refused."""
import logging

import pytest

from paged_edu.model import corpus

TEXT = "".join(f"ROMEO:\nWhat light {i} through yonder window\n\nJULIET:\nAy me {i * 7}!\n\n" for i in range(60)) + "\n\nNURSE:\n  Ends oddly\n"


@pytest.fixture(scope="module")
def tokenizer():
    return corpus.train_tokenizer(corpus.split_corpus(TEXT)[0], 300)


def test_the_encoding_loses_no_character(tokenizer):
    for text in (TEXT, "", "\n\n", "\n\n\n", "a\n\n\n\nb", "end\n\n"):
        ids = corpus.encode(tokenizer, text).tolist()
        assert ids[0] == tokenizer.eos_token_id
        speeches = [[]]
        for token in ids[1:]:
            if token == tokenizer.eos_token_id:
                speeches.append([])
            else:
                speeches[-1].append(token)
        assert corpus.SPEECH_SEPARATOR.join(tokenizer.decode(s) for s in speeches) == text


def test_the_last_tenth_is_held_out():
    first, last = corpus.split_corpus(TEXT)
    assert first + last == TEXT
    assert len(last) == pytest.approx(len(TEXT) / 10, abs=1)


@pytest.mark.parametrize(("content", "message"), [
    (None, "no such corpus"), (b"", "0 characters"), (b"\n\n \n", "4 characters"), (b"a", "1 characters?"), (b"x" * 20 + b"\n" * 20, "too blank"),
    (b"PK\x03\x04\xff\xfe", "not UTF-8 text: byte 4 is 0xff"),
])
def test_what_is_no_corpus(tmp_path, content, message):
    path = tmp_path / "corpus.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        corpus.read_corpus(path)
    assert str(path) in str(caught.value)


def test_another_text_has_another_fingerprint():
    assert corpus.fingerprint("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert corpus.fingerprint("abd") != corpus.fingerprint("abc")


def test_a_long_speech_is_no_alarm(tokenizer, caplog):
    """transformers warns once a process and tokenizer of a text that is longer than the model."""
    tokenizer.model_max_length = 8
    logging.getLogger("transformers").addHandler(caplog.handler)
    try:
        assert len(corpus.encode(tokenizer, "word " * 100)) > 50
    finally:
        logging.getLogger("transformers").removeHandler(caplog.handler)
    assert caplog.text == ""


def test_a_tokenizer_without_an_end_token_is_refused():
    class Other:
        def get_vocab(self):
            return {"a": 0}

    with pytest.raises(ValueError, match=r"no <\|endoftext\|>"):
        corpus.encode(Other(), "a")
