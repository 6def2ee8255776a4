"""Train the embedded model: a small GPT-2 in Hugging Face layout, from one text file, on a CPU.

    python -m paged_edu.model.train --corpus tinyshakespeare.txt --out data/tiny-shakespeare
    python -m paged_edu.model.train --corpus tinyshakespeare.txt --evaluate data/tiny-shakespeare

The corpus is read as speeches separated by blank lines. Each blank line becomes one ``<|endoftext|>`` token, so the encoding loses
no character and the model learns to end a speech by itself: served requests then stop at varied lengths, as in a chat.
The last tenth of the characters is held out. The architecture and the optimiser are transformers' and torch's: this project
teaches serving, not training. A run can be stopped and started again; batches and dropout depend on (seed, step) only, so a
resumed run sees what an uninterrupted one would have seen.
"""
from __future__ import annotations

import argparse
import json
import math
import os
import time
from pathlib import Path
from typing import Any

END = "<|endoftext|>"
HELD_OUT = 0.1
SPEECH_SEPARATOR = "\n\n"
CARD = """# tiny-shakespeare

A GPT-2 small enough to ship with a package: {parameters:,} parameters ({layers} layers, {heads} heads, width {width}), {positions} positions,
a byte-level BPE tokenizer with {vocab:,} entries. It writes blank verse that looks like Shakespeare from far away, and it ends each speech with
`<|endoftext|>`, so that served requests end by themselves after varied lengths. For teaching and tests; it knows nothing and should be asked nothing.

| | |
|---|---|
| held-out loss | **{nats_per_character:.4f} nats a character**, over all {held_out_characters:,} characters of the held-out text |
| how it is measured | windows of {window} tokens, stride {stride}, every token scored once; a blank line is the end token and counts |
| weights | fp16; the figure is of these weights, computed in fp32 |
| training text | the first nine tenths of *tinyshakespeare* (1.1 MB of Shakespeare's plays, public domain); the last tenth is held out |
| size | {bytes:,} bytes with its tokenizer |

Measure it again, or train it again:

```
python -m paged_edu.model.train --corpus tinyshakespeare.txt --evaluate data/tiny-shakespeare
python -m paged_edu.model.train --corpus tinyshakespeare.txt --out my-model
```

Hugging Face layout; `transformers.AutoModelForCausalLM` loads it. Licence: Apache-2.0, as the project.
"""


def split_corpus(text: str) -> tuple[str, str]:
    """Training text and held-out text: the last tenth of the characters is held out."""
    cut = int(len(text) * (1 - HELD_OUT))
    return text[:cut], text[cut:]


def train_tokenizer(text: str, vocab_size: int) -> Any:
    """A byte-level BPE tokenizer with ``vocab_size`` entries (``<|endoftext|>`` included), learned from ``text`` alone."""
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
    """Token ids of ``text`` as int64 ``[N]``: every blank line is one end token, and one more opens the stream."""
    import torch

    end = tokenizer.convert_tokens_to_ids(END)
    ids = [end]
    for i, speech in enumerate(text.split(SPEECH_SEPARATOR)):
        if i:
            ids.append(end)
        ids.extend(tokenizer(speech, add_special_tokens=False)["input_ids"])
    return torch.tensor(ids, dtype=torch.int64)


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
    """Window and stride of the held-out figure: 512 and 256, or what a smaller model has room for."""
    window = min(512, positions)
    return window, window // 2


def learning_rate(step: int, steps: int, peak: float, warmup: int = 100) -> float:
    """Linear warm-up, then a cosine to zero."""
    if step < warmup:
        return peak * (step + 1) / warmup
    return 0.5 * peak * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def build_model(args: argparse.Namespace, vocab_size: int) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=vocab_size, n_positions=args.context, n_embd=args.width, n_layer=args.layers, n_head=args.heads,
        activation_function="gelu_pytorch_tanh",  # the same function as gelu_new, one fused operation
        embd_pdrop=args.dropout, resid_pdrop=args.dropout, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


def train(args: argparse.Namespace) -> None:
    import torch
    import torch.nn.functional as F
    from tqdm.auto import tqdm

    text = args.corpus.read_text(encoding="utf-8")
    train_text, held_text = split_corpus(text)
    torch.manual_seed(args.seed)
    tokenizer = train_tokenizer(train_text, args.vocab_size)
    ids, held = encode(tokenizer, train_text), encode(tokenizer, held_text)
    model = build_model(args, len(tokenizer))
    decay = [p for p in model.parameters() if p.dim() >= 2]
    plain = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": args.weight_decay}, {"params": plain, "weight_decay": 0.0}],
        lr=args.lr, betas=(0.9, 0.99), fused=True,
    )
    settings = {k: v for k, v in sorted(vars(args).items()) if k in (
        "batch", "context", "vocab_size", "layers", "width", "heads", "dropout", "lr", "weight_decay", "seed")}
    first = 0
    if args.checkpoint.exists():
        saved = torch.load(args.checkpoint, weights_only=True)
        if {k: saved["settings"][k] for k in settings} != settings:
            raise SystemExit(f"{args.checkpoint} was made with other settings ({saved['settings']}): remove it or pass --checkpoint")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
        print(f"resuming at step {first} of {args.steps}")
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters, {len(ids)} training tokens, "
          f"{len(train_text) / len(ids):.2f} characters a token")

    def checkpoint(step: int) -> None:
        part = args.checkpoint.with_suffix(".part")
        torch.save({"settings": settings, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, part)
        os.replace(part, args.checkpoint)

    bar = tqdm(range(first, args.steps), initial=first, total=args.steps, unit="step", mininterval=2)
    for step in bar:
        torch.manual_seed(args.seed * 1_000_003 + step)
        starts = torch.randint(0, len(ids) - args.context, (args.batch,))
        batch = torch.stack([ids[s : s + args.context + 1] for s in starts.tolist()])
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps, args.lr)
        model.train()
        logits = model(batch[:, :-1]).logits
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 20 == 0:
            bar.set_postfix(loss=f"{loss.item():.3f}")
        if (step + 1) % args.report_every == 0 or step + 1 == args.steps:
            checkpoint(step + 1)
            tqdm.write(f"step {step + 1}: held out {nats_per_character(model, held, len(held_text), *windows(args.context)):.4f} nats a character")
    save(args, model, tokenizer)
    report(args.out, args.corpus, write=True)


def save(args: argparse.Namespace, model: Any, tokenizer: Any) -> None:
    """Hugging Face layout, weights in fp16 (half the size; the figure of the card is measured on the stored weights)."""
    import torch

    args.out.mkdir(parents=True, exist_ok=True)
    model.config.activation_function = "gelu_new"
    model.to(torch.float16).save_pretrained(args.out)
    tokenizer.model_max_length = args.context
    tokenizer.save_pretrained(args.out)
    for file in args.out.iterdir():
        file.chmod(0o644)                       # safetensors makes private files; an installed package is read by everybody


def report(folder: Path, corpus: Path, write: bool) -> float:
    """Measure the stored model on the held-out tenth; ``write``: into its ``training.json`` and model card (README.md) as well."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    held_text = split_corpus(corpus.read_text(encoding="utf-8"))[1]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = encode(tokenizer, held_text)
    start = time.perf_counter()
    window, stride = windows(model.config.n_positions)
    figure = nats_per_character(model, ids, len(held_text), window, stride)
    result = {
        "nats_per_character": round(figure, 4), "held_out_characters": len(held_text), "held_out_tokens": len(ids) - 1,
        "parameters": sum(p.numel() for p in model.parameters()), "window": window, "stride": stride,
        "bytes": sum(f.stat().st_size for f in folder.iterdir() if f.suffix in (".safetensors", ".json") and f.name != "training.json"),
    }
    print(f"{figure:.4f} nats a character over {len(held_text):,} held-out characters ({time.perf_counter() - start:.1f} s)")
    if not write:
        return figure
    (folder / "training.json").write_text(json.dumps(result, indent=1) + "\n")
    (folder / "README.md").write_text(CARD.format(
        **result, positions=model.config.n_positions, layers=model.config.n_layer, width=model.config.n_embd, heads=model.config.n_head,
        vocab=model.config.vocab_size))
    return figure


def main(argv: list[str] | None = None) -> None:
    p = argparse.ArgumentParser(prog="python -m paged_edu.model.train", description=__doc__.split("\n")[0],
                                formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("--corpus", type=Path, required=True, help="a text file: speeches separated by blank lines")
    p.add_argument("--out", type=Path, default=Path("my-model"), help="folder for model and tokenizer")
    p.add_argument("--evaluate", type=Path, metavar="DIR", help="only measure the model in DIR on the held-out tenth and print the figure")
    p.add_argument("--checkpoint", type=Path, default=Path("tiny-shakespeare.ckpt"), help="resume file, rewritten as training goes on")
    p.add_argument("--steps", type=int, default=3000, help="a resumed run may change them: the learning rate then follows the new end")
    p.add_argument("--batch", type=int, default=4, help="windows a step")
    p.add_argument("--context", type=int, default=512, help="tokens a window, and the model's positions")
    p.add_argument("--vocab-size", type=int, default=1024)
    p.add_argument("--layers", type=int, default=6)
    p.add_argument("--width", type=int, default=192)
    p.add_argument("--heads", type=int, default=6)
    p.add_argument("--dropout", type=float, default=0.15)
    p.add_argument("--lr", type=float, default=2e-3, help="peak learning rate")
    p.add_argument("--weight-decay", type=float, default=0.1)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--report-every", type=int, default=500, help="steps between held-out figures and checkpoints")
    p.add_argument("--threads", type=int, default=0, help="CPU threads; 0: torch's choice")
    args = p.parse_args(argv)
    if not args.corpus.is_file():
        p.error(f"no such corpus: {args.corpus}")
    for name in ("steps", "batch", "context", "layers", "width", "heads", "report_every"):
        if getattr(args, name) < 1:
            p.error(f"--{name.replace('_', '-')} must be at least 1, not {getattr(args, name)}")
    if args.threads:
        import torch

        torch.set_num_threads(args.threads)
    if args.evaluate:
        report(args.evaluate, args.corpus, write=False)
    else:
        train(args)


if __name__ == "__main__":
    main()
