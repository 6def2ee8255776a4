"""How good a trained model is: nats a character on text that it has not seen, and the model card that says so."""
from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from ..checks import one_line
from ..words import counted
from .corpus import encode, read_corpus, split_corpus

CARD = """# {title}

A small GPT-2: {parameters:,} parameters ({layers}, {heads}, width {width}), {positions} positions, a byte-level BPE tokenizer with
{vocab:,} entries. It was trained on one text and knows nothing else. Where that text has a blank line, the model writes `<|endoftext|>`, so that
served requests end by themselves after varied lengths. For teaching and tests.

| | |
|---|---|
| held-out loss | **{nats_per_character:.4f} nats a character**, over all {held_out_characters:,} characters of the held-out text |
| how it is measured | windows of {window} tokens, stride {stride}, every token scored once; a blank line is the end token and counts |
| weights | fp16; the figure is of these weights, computed in fp32 |
| training text | the first nine tenths of *{corpus}* ({characters:,} characters in all); the last tenth is held out |
| size | {bytes:,} bytes with its tokenizer |

Measure it again, or train it again:

```
python -m paged_edu.model.train --corpus {corpus_file} --evaluate {title}
python -m paged_edu.model.train --corpus {corpus_file} --out {title}
```

Hugging Face layout; `transformers.AutoModelForCausalLM` loads it.
"""


def nats_per_character(model: Any, ids: Any, num_characters: int, window: int = 512, stride: int = 256) -> float:
    """Held-out loss in nats per character: windows of ``window`` tokens, each advancing by ``stride``; every token but the
    opening end token is scored exactly once, with at least ``window - stride`` tokens of context after the first window."""
    import torch
    import torch.nn.functional as F

    model.eval()
    total, scored = 0.0, 1                      # position 0 only opens the stream
    with torch.inference_mode():
        for start in range(0, len(ids), stride):
            chunk = ids[start : start + window]
            first_new = scored - start          # tokens of this window that an earlier window has scored
            if first_new >= len(chunk):
                break
            logits = model(chunk[None]).logits[0, :-1].float()
            losses = F.cross_entropy(logits, chunk[1:], reduction="none")
            total += losses[first_new - 1 :].double().sum().item()
            scored = start + len(chunk)
    assert scored == len(ids)
    return total / num_characters


def windows(positions: int) -> tuple[int, int]:
    """Window and stride of the held-out figure: 512 and 256, or what a smaller model has room for. ``positions``: 2 or more."""
    window = min(512, positions)
    return window, window // 2


def load(folder: Path) -> tuple[Any, Any]:
    """Model (fp32) and tokenizer out of a folder in Hugging Face layout. Raises ValueError, in one line, if it holds none."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} is not a folder with a model: it has no config.json")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    except Exception as error:                  # transformers, tokenizers and safetensors raise a dozen types, some of them bare Exception
        raise ValueError(f"the model in {folder} can't be loaded: {one_line(error)}") from error
    return model, tokenizer


def measure(folder: Path, corpus: Path) -> tuple[dict[str, Any], Any]:
    """The figures of a stored model on the held-out tenth of ``corpus``, and the model's config."""
    held_text = split_corpus(read_corpus(corpus))[1]
    model, tokenizer = load(folder)
    ids = encode(tokenizer, held_text)
    if int(ids.max()) >= model.config.vocab_size:
        raise ValueError(f"the tokenizer in {folder} gives token {int(ids.max())}; the model's vocabulary has {model.config.vocab_size} entries")
    start = time.perf_counter()
    window, stride = windows(model.config.max_position_embeddings)
    figure = nats_per_character(model, ids, len(held_text), window, stride)
    print(f"{figure:.4f} nats a character over {len(held_text):,} held-out characters ({time.perf_counter() - start:.1f} s)")
    files = [f for f in folder.iterdir() if f.suffix in (".safetensors", ".json") and f.name != "training.json"]
    return {
        "nats_per_character": round(figure, 4), "held_out_characters": len(held_text), "held_out_tokens": len(ids) - 1,
        "parameters": sum(p.numel() for p in model.parameters()), "window": window, "stride": stride,
        "bytes": sum(f.stat().st_size for f in files),
    }, model.config


def write_card(folder: Path, corpus: Path, corpus_name: str) -> None:
    """Measure the GPT-2 in ``folder`` and write the figures to its ``training.json`` and its model card (README.md)."""
    result, config = measure(folder, corpus)
    (folder / "training.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(CARD.format(
        **result, title=folder.resolve().name, corpus=corpus_name, corpus_file=corpus.name, characters=len(read_corpus(corpus)),
        positions=config.n_positions, layers=counted(config.n_layer, "layer"),
        heads=counted(config.n_head, "head"), width=config.n_embd, vocab=config.vocab_size,
    ), encoding="utf-8")
