"""The tokenizer that a GGUF file holds in its metadata, as one of transformers' fast tokenizers.

Two kinds are served, byte pair encoding both. ``gpt2`` cuts text with a regular expression (``tokenizer.ggml.pre`` names it: `SPLITS`), writes
it as bytes, and merges by a list of merges. ``llama`` (SentencePiece) writes spaces as "▁", falls back on bytes for characters that
it does not know, and merges the pair whose result has the best score. What transformers 5.24 builds from a GGUF file knows some of the
regular expressions only: it cuts SmolLM2's numbers, for one, as GPT-2 would.
"""
from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .gguf_file import GGUFFile
from .spec import ModelLoadError

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5     # tokenizer.ggml.token_type; 1 is normal, 6 a byte

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_NO_WORD = r"[^\r\n\p{L}\p{N}]?"
_LETTERS = rf"{_NO_WORD}\p{{L}}+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


@dataclass(frozen=True)
class Split:
    """How text is cut before bytes are merged. Without a pattern: as GPT-2 does it."""

    pattern: str | None = None
    single_digits: bool = False
    """Every digit is cut off first, on its own."""
    ignore_merges: bool = False
    """A piece that is a token as a whole is that token, whatever its merges would make of it."""
    nfc: bool = False
    """Text is brought to Unicode's composed form first."""
    adds_bos: bool = False
    """Where the file does not say."""


_GPT2, _DIGITS = Split(), Split(single_digits=True)
_LLAMA3 = Split(rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}{{1,3}}|{_REST}", ignore_merges=True, adds_bos=True)
_QWEN2 = Split(rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}|{_REST}", nfc=True)
_TEKKEN = Split(
    rf"{_NO_WORD}{_UPPER}*{_LOWER}+|{_NO_WORD}{_UPPER}+{_LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ignore_merges=True, adds_bos=True,
)

SPLITS: dict[str, Split] = {
    **dict.fromkeys(("gpt-2", "phi-2", "mellum", "gigachat"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell", "minerva-7b"), _DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), _QWEN2),
    "tekken": _TEKKEN,
}
"""``tokenizer.ggml.pre`` -> how it cuts. "default" and no name at all are taken for gpt-2, with a warning; others are refused."""


def load_gguf_tokenizer(path: Path) -> Any:
    """The tokenizer of a GGUF file, a ``PreTrainedTokenizerFast`` with its special tokens and chat template.

    Raises ModelLoadError naming the metadata key where there is no tokenizer, or one of a kind that isn't served.
    """
    from transformers import PreTrainedTokenizerFast

    file = GGUFFile(path)
    source = _Source(file)
    tokenizer = _sentencepiece(source) if source.kind == "llama" else _byte_level(source)
    _add_special_tokens(tokenizer, source)
    _add_ends(tokenizer, source)
    special = {f"{name}_token": source.tokens[i] for name, i in source.ids.items()}
    loaded = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, model_max_length=_context(file), padding_side="left", **special,
    )
    loaded.chat_template = _chat_template(file)
    return loaded


class _Source:
    """What the metadata says about the tokenizer, checked."""

    def __init__(self, file: GGUFFile) -> None:
        self.path, self.metadata = file.path, file.metadata
        self.kind = self.get("model")
        if self.kind not in ("gpt2", "llama"):
            raise ModelLoadError(
                f"{self.path}: tokenizer.ggml.model {self.kind!r} is not supported; supported are gpt2 and llama: pass tokenizer=..., or "
                "skip_tokenizer_init=True"
            )
        tokens = self.get("tokens")
        if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
            raise ModelLoadError(f"{self.path}: tokenizer.ggml.tokens must be a list of texts")
        self.tokens, self.types = self._without_padding(tokens, self.array("token_type", len(tokens)) or [1] * len(tokens))
        self.vocab = {token: i for i, token in enumerate(self.tokens)}
        if len(self.vocab) < len(self.tokens):
            twice = next(token for i, token in enumerate(self.tokens) if self.vocab[token] != i)
            raise ModelLoadError(f"{self.path}: tokenizer.ggml.tokens has {twice!r} twice")
        names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
        self.ids = {ours: i for ours, theirs in names.items() if (i := self.get(f"{theirs}_token_id")) is not None}
        for name, i in self.ids.items():
            if not isinstance(i, int) or not 0 <= i < len(self.tokens):
                raise ModelLoadError(f"{self.path}: tokenizer.ggml.{names[name]}_token_id must be below {len(self.tokens)}, not {i!r}")

    def get(self, key: str, default: Any = None) -> Any:
        return self.metadata.get(f"tokenizer.ggml.{key}", default)

    def array(self, key: str, length: int) -> list[Any] | None:
        value = self.get(key)
        if value is not None and (not isinstance(value, list) or len(value) != length):
            raise ModelLoadError(f"{self.path}: tokenizer.ggml.{key} must have one entry for each of the {length} tokens")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise ModelLoadError(f"{self.path}: tokenizer.ggml.{key} must be true or false, not {value!r}")
        return value

    @staticmethod
    def _without_padding(tokens: list[str], types: list[int]) -> tuple[list[str], list[int]]:
        """Unused tokens at the end fill the embedding up to a round number: they are none that the model may write."""
        count = len(tokens)
        while count > 1 and types[count - 1] == _UNUSED:
            count -= 1
        return tokens[:count], types[:count]


def _byte_level(source: _Source) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    split = _split(source)
    merges = source.get("merges")
    pairs = [tuple(merge.split(" ")) for merge in merges] if isinstance(merges, list) else []
    if not pairs or any(len(pair) != 2 or not set(pair) <= source.vocab.keys() or "".join(pair) not in source.vocab for pair in pairs):
        raise ModelLoadError(f"{source.path}: tokenizer.ggml.merges must be a list of pairs of tokens, each making a token")
    tokenizer = Tokenizer(models.BPE(vocab=source.vocab, merges=pairs, ignore_merges=split.ignore_merges))
    prefix = source.flag("add_space_prefix", False)
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if split.single_digits else []
    if split.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(split.pattern), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=split.pattern is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if split.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _split(source: _Source) -> Split:
    name = source.get("pre", "default")
    if name == "default":
        warnings.warn(
            f"{source.path} does not say how its tokenizer cuts text (tokenizer.ggml.pre); it is taken for gpt-2, and tokens may differ from the "
            "model's own", stacklevel=2,
        )
        return _GPT2
    if name not in SPLITS:
        raise ModelLoadError(f"{source.path}: tokenizer.ggml.pre {name!r} is not supported; supported are default, {', '.join(SPLITS)}")
    return SPLITS[name]


def _sentencepiece(source: _Source) -> Any:
    """As SentencePiece and llama.cpp have it: a space goes before the text, and before what follows a special token within it."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    unknown = source.ids.get("unk", source.types.index(_UNKNOWN) if _UNKNOWN in source.types else None)
    tokenizer = Tokenizer(models.BPE(
        vocab=source.vocab, merges=_merges_by_score(source), unk_token=None if unknown is None else source.tokens[unknown], fuse_unk=True,
        byte_fallback=True,
    ))
    prefix = source.flag("add_space_prefix", True)
    first = [normalizers.Prepend("▁")] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*first, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(content=" ", left=1)] if prefix else []
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return tokenizer


def _merges_by_score(source: _Source) -> list[tuple[str, str]]:
    """SentencePiece merges the neighbours whose union has the best score, so the unions in that order are the list of merges."""
    scores = source.array("scores", len(source.get("tokens")))
    if scores is None:
        raise ModelLoadError(f"{source.path}: tokenizer.ggml.scores is missing")
    reserved = {token for token, kind in zip(source.tokens, source.types) if kind in (_UNKNOWN, _CONTROL)}
    pieces = [(token, score) for token, score in zip(source.tokens, scores) if len(token) > 1 and token not in reserved]
    merges = []
    for token, _ in sorted(pieces, key=lambda piece: -piece[1]):
        halves = ((token[:i], token[i:]) for i in range(1, len(token)))
        merges += [pair for pair in halves if reserved.isdisjoint(pair) and set(pair) <= source.vocab.keys()]
    return merges


def _add_special_tokens(tokenizer: Any, source: _Source) -> None:
    """Control tokens are matched whole in a text and left out of what is decoded; user-defined ones are matched whole."""
    from tokenizers import AddedToken

    special = {_CONTROL, _UNKNOWN} if source.kind == "llama" else {_CONTROL}
    named = {source.tokens[i] for i in source.ids.values()}
    typed = list(zip(source.tokens, source.types))
    tokenizer.add_special_tokens([
        AddedToken(token, normalized=False, special=True) for token, kind in typed if kind in special or token in named
    ])
    tokenizer.add_tokens([
        AddedToken(token, normalized=False, special=False) for token, kind in typed if kind == _USER_DEFINED and token not in named
    ])


def _add_ends(tokenizer: Any, source: _Source) -> None:
    """Put bos before and eos after every text, where the file says so; SentencePiece and llama-bpe have a bos unless it says no."""
    from tokenizers import processors

    adds_bos = source.kind == "llama" or SPLITS.get(source.get("pre"), _GPT2).adds_bos
    parts, ends = ["$A"], {}
    for name, default in (("bos", adds_bos), ("eos", False)):
        key = f"add_{name}_token"
        if not source.flag(key, default):
            continue
        if name not in source.ids:
            if source.get(key) is None:
                continue
            raise ModelLoadError(f"{source.path}: tokenizer.ggml.{key} is true, but there is no {name}_token_id")
        token = source.tokens[source.ids[name]]
        parts, ends[token] = [token, *parts] if name == "bos" else [*parts, token], source.ids[name]
    steps: list[Any] = [] if source.kind == "llama" else [processors.ByteLevel(trim_offsets=False)]
    if ends:
        pair = [part.replace("$A", "$B") for part in parts]
        steps.append(processors.TemplateProcessing(single=parts, pair=[*parts, *(f"{part}:1" for part in pair)], special_tokens=list(ends.items())))
    if steps:
        tokenizer.post_processor = processors.Sequence(steps)


def _chat_template(file: GGUFFile) -> str | dict[str, str] | None:
    """The template, or several by name where the file has more than the default one."""
    prefix = "tokenizer.chat_template"
    default = file.metadata.get(prefix)
    named = {key.removeprefix(f"{prefix}."): text for key, text in file.metadata.items() if key.startswith(f"{prefix}.")}
    return {"default": default, **named} if named and default is not None else default


def _context(file: GGUFFile) -> int:
    context = file.metadata.get(f"{file.metadata.get('general.architecture')}.context_length")
    return context if isinstance(context, int) else int(1e30)
