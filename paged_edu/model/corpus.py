"""A text to train on: read and checked, a tenth of it held out, a tokenizer learned from the rest, and text as token ids.

A corpus is speeches separated by blank lines. Each blank line becomes one ``<|endoftext|>`` token, so the encoding loses no character and
the model learns to end a speech by itself: served requests then stop at varied lengths, as in a chat.
"""
from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

END = "<|endoftext|>"
HELD_OUT = 0.1
SPEECH_SEPARATOR = "\n\n"
SMALLEST_VOCABULARY = 257
"""Every byte, and `END`."""


def read_corpus(path: Path) -> str:
    """The text in ``path``. Raises ValueError if it is no text, or none; OSError if it can't be read."""
    if not path.exists():
        raise ValueError(f"no such corpus: {path}")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}") from error
    if not all(map(str.strip, split_corpus(text))):
        raise ValueError(f"{path} has {len(text)} characters: too few, or too blank, to train on nine tenths and to hold one tenth out")
    return text


def fingerprint(text: str) -> str:
    """SHA-256 of a corpus, hexadecimal: whoever resumes a run must bring the same one."""
    return hashlib.sha256(text.encode()).hexdigest()


def split_corpus(text: str) -> tuple[str, str]:
    """Training text and held-out text: the last tenth of the characters is held out."""
    cut = int(len(text) * (1 - HELD_OUT))
    return text[:cut], text[cut:]


def train_tokenizer(text: str, vocab_size: int) -> Any:
    """A byte-level BPE tokenizer with ``vocab_size`` entries (``<|endoftext|>`` included; fewer if ``text`` has not so many), learned from
    ``text`` alone. ``vocab_size`` is at least `SMALLEST_VOCABULARY`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[END], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    bpe.train_from_iterator(text.split(SPEECH_SEPARATOR), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token=END, eos_token=END, unk_token=END, clean_up_tokenization_spaces=False,
    )


def encode(tokenizer: Any, text: str) -> Any:
    """Token ids of ``text`` as int64 ``[N]``: every blank line is one end token, and one more opens the stream.

    Raises ValueError for a tokenizer that does not know `END`.
    """
    import torch

    end = tokenizer.get_vocab().get(END)
    if end is None:
        raise ValueError(f"the tokenizer has no {END}, which stands for a blank line")
    ids = [end]
    for i, speech in enumerate(text.split(SPEECH_SEPARATOR)):
        if i:
            ids.append(end)
        # verbose=False: a speech longer than the model is no mistake here, windows of the stream are what the model gets
        ids.extend(tokenizer(speech, add_special_tokens=False, verbose=False)["input_ids"])
    return torch.tensor(ids, dtype=torch.int64)
