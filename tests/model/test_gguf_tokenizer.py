"""Tokenizers out of GGUF metadata: the same ids as the tokenizer that the metadata was written from."""
from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import gguf
import pytest
from ggufs import add
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from paged_edu.engine.build import load_tokenizer
from paged_edu.model.gguf_tokenizer import SPLITS, load_gguf_tokenizer
from paged_edu.model.loader import ModelLoadError

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's 12345 o'clock; they're here, I'll go, we'd LOVE it.", "def f(x):\n    return x + 10 ** 3\n\n",
    "Grüße aus Köln – 東京タワー は 333 m.", "  two spaces,   three\t tabs \r\n and lines\n\n\n", "aaa bbb abab abba baba " * 3, "naïve café e\u0301",
]
TEXTS = st.text(st.sampled_from("abteTE 'sdl\n\t\r1234.,!?é東\U0001f600é\u0301▁_<|>"), max_size=40) | st.sampled_from(CORPUS)
QUIET = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}
SPECIAL = ["<|end|>", "<|im_start|>", "<|im_end|>"]


def write(path: Path, metadata: dict[str, Any], **more: Any) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    prefixed = {f"tokenizer.ggml.{key}": value for key, value in {**metadata, **more}.items()}
    for key, value in {"llama.context_length": 77, **prefixed}.items():
        add(writer, key.replace("tokenizer.ggml.chat", "tokenizer.chat"), value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def byte_level(*steps: Any, use_regex: bool = True) -> Tokenizer:
    """A tokenizer trained here, cutting text with ``steps`` and then as ByteLevel does."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)])
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(CORPUS * 2, trainer)
    return tokenizer


def metadata_of(tokenizer: Tokenizer, pre: str) -> dict[str, Any]:
    import json

    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return {
        "model": "gpt2", "pre": pre, "tokens": tokens, "token_type": [3 if token in SPECIAL else 1 for token in tokens],
        "merges": [" ".join(pair) for pair in model["merges"]], "eos_token_id": 2, "bos_token_id": 1, "unknown_token_id": 0,
    }


PLAIN = {"gpt-2": [], "smollm": [pre_tokenizers.Digits(individual_digits=True)]}


@pytest.mark.parametrize("pre", PLAIN)
@settings(max_examples=150, **QUIET)
@given(text=TEXTS)
def test_byte_level_gives_the_same_ids(tmp_path_factory: pytest.TempPathFactory, pre: str, text: str) -> None:
    want, ours = pair(tmp_path_factory, pre)
    assert ours(text)["input_ids"] == want.encode(text).ids
    assert ours.decode(ours(text)["input_ids"]) == text


MADE: dict[str, Any] = {}


def pair(tmp_path_factory: pytest.TempPathFactory, pre: str) -> Any:
    if pre not in MADE:
        want = byte_level(*PLAIN[pre])
        MADE[pre] = want, load_gguf_tokenizer(write(tmp_path_factory.mktemp("t") / "x.gguf", metadata_of(want, pre)))
    return MADE[pre]


@pytest.mark.parametrize(("pre", "text", "pieces"), [
    ("smollm", "it's 1234 x", ["it", "'s", " ", "1", "2", "3", "4", " x"]),
    ("gpt-2", "it's 1234 x", ["it", "'s", " 1234", " x"]),
    ("llama-bpe", "IT'S 1234 x\n\n y", ["IT", "'S", " ", "123", "4", " x", "\n\n", " y"]),
    ("qwen2", "IT'S 1234 x\n\n y", ["IT", "'S", " ", "1", "2", "3", "4", " x", "\n\n", " y"]),
    ("tekken", "HelloWorld it's 12 a/b//\n", ["Hello", "World", " it", "'s", " ", "1", "2", " a", "/b", "//\n"]),
    ("llama-bpe", "(ab)  cd ?!\n", ["(ab", ")", " ", " cd", " ?!\n"]),
])
def test_how_text_is_cut(tmp_path: Path, pre: str, text: str, pieces: list[str]) -> None:
    tokenizer = load_gguf_tokenizer(write(tmp_path / "x.gguf", metadata_of(byte_level(), pre), add_bos_token=False))
    cut = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in cut] == pieces


def of_transformers(module: str, name: str) -> Any:
    """Something that newer versions of transformers have; a skip where it is missing."""
    found = getattr(pytest.importorskip(module), name, None)
    return found if found is not None else pytest.skip(f"this version of transformers has no {name}")


@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2", "tekken"])
@settings(max_examples=150, **QUIET)
@given(text=TEXTS)
def test_patterns_cut_as_transformers_do(pre: str, text: str) -> None:
    theirs = of_transformers("transformers.integrations.gguf.gguf_tokenizer_mapping", "GGUF_PRE_TOKENIZER_SPLITS")
    cut = [pre_tokenizers.Split(Regex(pattern), behavior="isolated").pre_tokenize_str(text) for pattern in (SPLITS[pre].pattern, theirs[pre])]
    assert cut[0] == cut[1]


def test_smollm_is_cut_as_smollm_and_not_as_gpt2(tmp_path: Path) -> None:
    metadata = metadata_of(byte_level(), "smollm")
    theirs = of_transformers("transformers.integrations.gguf", "convert_gguf_tokenizer")
    backend, _ = theirs("llama", {"tokenizer_type": "gpt2", "pre_tokenizer_type": "smollm", **metadata})
    ours = load_gguf_tokenizer(write(tmp_path / "x.gguf", metadata))
    assert len(ours("12345")["input_ids"]) == 5
    assert len(backend.encode("12345").ids) < 5, "transformers cuts as SmolLM does now: gguf_tokenizer's docstring can be shorter"


def test_whole_tokens_of_llama3_and_composed_text_of_qwen2(tmp_path: Path) -> None:
    """With ignore_merges a piece that is a token is taken whole, though no merge leads there."""
    metadata = metadata_of(byte_level(), "llama-bpe")
    metadata |= {"tokens": [*metadata["tokens"], "xyzzy"], "token_type": [*metadata["token_type"], 1]}
    assert load_gguf_tokenizer(write(tmp_path / "x.gguf", metadata, add_bos_token=False))("xyzzy")["input_ids"] == [len(metadata["tokens"]) - 1]
    assert len(load_gguf_tokenizer(write(tmp_path / "x.gguf", metadata, pre="gpt-2"))("xyzzy")["input_ids"]) > 1
    qwen = load_gguf_tokenizer(write(tmp_path / "x.gguf", metadata, pre="qwen2"))
    assert qwen("cafe\u0301")["input_ids"] == qwen("café")["input_ids"]


# --- SentencePiece ---


@pytest.fixture(scope="module")
def spm() -> Any:
    sentencepiece = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 20), model_writer=model, vocab_size=420, model_type="bpe", byte_fallback=True, minloglevel=2,
        normalization_rule_name="identity", remove_extra_whitespaces=False, allow_whitespace_only_pieces=True, hard_vocab_limit=False,
        character_coverage=0.98, num_threads=1, user_defined_symbols=["<tool>"],
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def spm_metadata(spm: Any) -> dict[str, Any]:
    def kind(i: int) -> int:
        return 2 if spm.IsUnknown(i) else 3 if spm.IsControl(i) else 6 if spm.IsByte(i) else 4 if spm.IdToPiece(i) == "<tool>" else 1

    ids = range(spm.vocab_size())
    return {
        "model": "llama", "pre": "default", "tokens": [spm.IdToPiece(i) for i in ids], "scores": [float(spm.GetScore(i)) for i in ids],
        "token_type": [kind(i) for i in ids], "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0,
    }


@settings(max_examples=300, **QUIET)
@given(text=TEXTS)
def test_sentencepiece_gives_the_same_ids(tmp_path_factory: pytest.TempPathFactory, spm: Any, text: str) -> None:
    if "spm" not in MADE:
        MADE["spm"] = load_gguf_tokenizer(write(tmp_path_factory.mktemp("t") / "x.gguf", spm_metadata(spm), add_bos_token=False))
    ours = MADE["spm"]
    assert ours(text)["input_ids"] == spm.encode(text)
    assert ours.decode(ours(text)["input_ids"]) == text.replace("▁", " ")


def test_sentencepiece_flags_and_special_tokens(tmp_path: Path, spm: Any) -> None:
    metadata = spm_metadata(spm)
    ours = load_gguf_tokenizer(write(tmp_path / "x.gguf", metadata))
    assert ours("the dog")["input_ids"] == [1, *spm.encode("the dog")], "a bos unless the file says no"
    assert ours("the</s>the")["input_ids"] == [1, *spm.encode("the"), 2, *spm.encode("the")]
    assert ours.decode(ours("the dog</s>")["input_ids"], skip_special_tokens=True) == "the dog"
    tool = spm.PieceToId("<tool>")
    assert tool in ours("x<tool>y")["input_ids"]
    assert "<tool>" in ours.decode([tool], skip_special_tokens=True)
    bare = load_gguf_tokenizer(write(tmp_path / "x.gguf", metadata, add_bos_token=False, add_eos_token=True, add_space_prefix=False))
    assert bare("the")["input_ids"] == [*(i for i in bare.convert_tokens_to_ids(bare.tokenize("the"))), 2]
    assert not bare.tokenize("the")[0].startswith("▁")
    with pytest.raises(ModelLoadError, match=r"tokenizer\.ggml\.scores is missing"):
        load_gguf_tokenizer(write(tmp_path / "x.gguf", metadata, scores=None))


# --- what the metadata says besides ---


@pytest.fixture(scope="module")
def trained() -> dict[str, Any]:
    return metadata_of(byte_level(), "gpt-2")


def test_special_and_user_defined_tokens(tmp_path: Path, trained: dict[str, Any]) -> None:
    tokens = [*trained["tokens"], "<think>", "[PAD0]", "[PAD1]"]
    types = [*trained["token_type"], 4, 5, 5]
    tokenizer = load_gguf_tokenizer(write(tmp_path / "x.gguf", trained, tokens=tokens, token_type=types, chat_template="{{ messages }}"))
    assert len(tokenizer) == len(tokens) - 2, "tokens that fill the table up are none"
    ids = tokenizer("a<|im_start|>b<think>c<|im_end|>")["input_ids"]
    assert {1, 2, len(tokens) - 3} <= set(ids)
    assert tokenizer.decode(ids, skip_special_tokens=True) == "ab<think>c"
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id, tokenizer.pad_token) == (1, 2, 0, None)
    assert tokenizer.model_max_length == 77
    assert tokenizer.chat_template == "{{ messages }}"


def test_bos_and_eos_around_a_text(tmp_path: Path, trained: dict[str, Any]) -> None:
    plain = load_gguf_tokenizer(write(tmp_path / "x.gguf", trained))("dog")["input_ids"]
    for pre, flags, before, after in (
        ("gpt-2", {"add_bos_token": True}, [1], []), ("gpt-2", {"add_bos_token": True, "add_eos_token": True}, [1], [2]),
        ("gpt-2", {"add_eos_token": True}, [], [2]), ("llama-bpe", {}, [1], []), ("llama-bpe", {"add_bos_token": False}, [], []),
    ):
        tokenizer = load_gguf_tokenizer(write(tmp_path / "x.gguf", trained, pre=pre, **flags))
        ids = tokenizer("dog")["input_ids"]
        assert ids == [*before, *tokenizer("dog", add_special_tokens=False)["input_ids"], *after]
        assert tokenizer("dog", add_special_tokens=False)["input_ids"] == plain or pre != "gpt-2"
    tokenizer = load_gguf_tokenizer(write(tmp_path / "x.gguf", trained, pre="llama-bpe", bos_token_id=None))
    assert 1 not in tokenizer("dog")["input_ids"], "nothing to add where there is none and none is asked for"


def test_several_chat_templates(tmp_path: Path, trained: dict[str, Any]) -> None:
    path = write(tmp_path / "x.gguf", trained, **{"chat_template": "A", "chat_template.tool_use": "B"})
    assert load_gguf_tokenizer(path).chat_template == {"default": "A", "tool_use": "B"}


@pytest.mark.parametrize("pre", ["default", None])
def test_no_word_on_how_text_is_cut_is_a_warning(tmp_path: Path, trained: dict[str, Any], pre: str | None) -> None:
    with pytest.warns(UserWarning, match=r"tokenizer\.ggml\.pre.*taken for gpt-2"):
        tokenizer = load_gguf_tokenizer(write(tmp_path / "x.gguf", trained, pre=pre))
    assert tokenizer("it's 123")["input_ids"] == load_gguf_tokenizer(write(tmp_path / "x.gguf", trained))("it's 123")["input_ids"]


@pytest.mark.parametrize(("changes", "message"), [
    ({"model": "bert"}, r"tokenizer\.ggml\.model 'bert' is not supported.*tokenizer=.*skip_tokenizer_init"),
    ({"model": None}, r"tokenizer\.ggml\.model None"),
    ({"pre": "brand-new"}, r"tokenizer\.ggml\.pre 'brand-new' is not supported; supported are default, gpt-2"),
    ({"tokens": None}, r"tokenizer\.ggml\.tokens must be"),
    ({"tokens": ["a", "b", "a"], "token_type": [1, 1, 1], "eos_token_id": None}, "has 'a' twice"),
    ({"token_type": [1, 1]}, r"token_type must have one entry for each of the \d+ tokens"),
    ({"merges": None}, r"merges must be a list of pairs of tokens"),
    ({"merges": ["a b c"]}, "merges must be a list of pairs"),
    ({"merges": ["nope nope"]}, "merges must be a list of pairs"),
    ({"eos_token_id": 100000}, r"tokenizer\.ggml\.eos_token_id must be below \d+, not 100000"),
    ({"add_bos_token": True, "bos_token_id": None}, r"add_bos_token is true, but there is no bos_token_id"),
    ({"add_bos_token": 1}, "add_bos_token must be true or false, not 1"),
], ids=str)
def test_refused_by_name(tmp_path: Path, trained: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message) as caught:
        load_gguf_tokenizer(write(tmp_path / "x.gguf", trained, **changes))
    assert "x.gguf" in str(caught.value)


def test_saved_and_loaded_again_it_is_the_same(tmp_path: Path, trained: dict[str, Any]) -> None:
    """As `pull` saves it: by AutoTokenizer, and by the short way around it."""
    from transformers import AutoTokenizer

    gguf_file = write(tmp_path / "x.gguf", trained, pre="smollm", add_bos_token=True, chat_template="{{ bos_token }}{{ messages[0]['content'] }}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = load_tokenizer(gguf_file)
    ours.save_pretrained(tmp_path / "saved")
    for config in (None, '{"model_type": "llama"}'):
        if config is not None:
            (tmp_path / "saved" / "config.json").write_text(config)
        for again in (load_tokenizer(tmp_path / "saved"), AutoTokenizer.from_pretrained(tmp_path / "saved")):
            for text in CORPUS:
                assert again(text)["input_ids"] == ours(text)["input_ids"]
            assert again.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False) == "<|im_start|>x"
            assert (again.eos_token, again.model_max_length) == ("<|im_end|>", 77)
        if config == '{"model_type": "llama"}':
            assert type(load_tokenizer(tmp_path / "saved")) is type(AutoTokenizer.from_pretrained(tmp_path / "saved"))
