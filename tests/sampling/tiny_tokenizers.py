"""Tokenizers of every kind, trained in a moment: byte-level BPE, byte-fallback BPE (Llama 2), Metaspace, WordPiece, BPE with word ends.

Each has an end token that is special and an added token that is not, with a space and an umlaut in it."""
from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

LINES = ["the cat sat on the mat, didn't it?", "User: hello there! Assistant: I'm fine.", "größer, 你好 and ď 🔥 do not stop",
         "aaa ababab ### \n\nUser:", " ' quoted ' . , ! n't 's 've"] * 3
EOT, ADDED = "<|eot|>", "<ädd ed>"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def _byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(LINES, trainers.BpeTrainer(
        vocab_size=330, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=[EOT], show_progress=False,
    ))
    return tokenizer


def _sentencepiece() -> Tokenizer:
    """Llama 2's pipeline: spaces as U+2581, one put before the text and taken away again, bytes for unknown characters."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained.train_from_iterator([line for line in LINES if "🔥" not in line], trainers.BpeTrainer(vocab_size=150, show_progress=False))
    vocab = {token: i for i, token in enumerate(["<unk>", EOT, *BYTES])}
    vocab |= {token: len(vocab) + i for i, token in enumerate(sorted(set(trained.get_vocab()) - set(vocab)))}
    import json

    merges = [tuple(pair) for pair in json.loads(trained.to_str())["model"]["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = trained.normalizer
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return tokenizer


def _metaspace() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.train_from_iterator(LINES, trainers.UnigramTrainer(
        vocab_size=120, special_tokens=["<unk>", EOT], unk_token="<unk>", show_progress=False,
    ))
    return tokenizer


def _wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    tokenizer.train_from_iterator(LINES, trainers.WordPieceTrainer(vocab_size=200, special_tokens=["<unk>", EOT], show_progress=False))
    return tokenizer


def _word_ends() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Whitespace(), decoders.BPEDecoder()
    tokenizer.train_from_iterator(LINES, trainers.BpeTrainer(
        vocab_size=200, special_tokens=["<unk>", EOT], end_of_word_suffix="</w>", show_progress=False,
    ))
    return tokenizer


def _no_decoder() -> Tokenizer:
    tokenizer = _word_ends()
    tokenizer.decoder = None
    return tokenizer


KINDS = {"byte-level": _byte_level, "sentencepiece": _sentencepiece, "metaspace": _metaspace, "wordpiece": _wordpiece, "word-ends": _word_ends,
         "no-decoder": _no_decoder}
BY_BYTES = ("byte-level", "sentencepiece", "metaspace")


@cache
def tiny(kind: str, clean_up: bool = False) -> PreTrainedTokenizerFast:
    tokenizer = KINDS[kind]()
    tokenizer.add_special_tokens([AddedToken(EOT, special=True)])
    tokenizer.add_tokens([AddedToken(ADDED, special=False)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOT, clean_up_tokenization_spaces=clean_up)


def byte_id(kind: str, byte: int) -> int:
    """The id of a token that is one byte."""
    from paged_edu.sampling.detokenize import _ALPHABET

    name = BYTES[byte] if kind == "sentencepiece" else next(char for char, value in _ALPHABET.items() if value == byte)
    return int(tiny(kind).convert_tokens_to_ids(name))
