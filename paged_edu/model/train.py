"""Train the embedded model: a small GPT-2 in Hugging Face layout, from one text file, on a CPU.

    python -m paged_edu.model.train --corpus tinyshakespeare.txt --out my-model
    python -m paged_edu.model.train --corpus tinyshakespeare.txt --evaluate my-model

`corpus` reads the text, `held_out` measures and writes the model card. The last tenth of the characters is held out. The architecture and the
optimiser are transformers' and torch's: this project teaches serving, not training. A run can be stopped and started again; batches and
dropout depend on (seed, step) only, so a resumed run sees what an uninterrupted one would have seen.
"""
from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..checks import integer, number, one_line, writable_file
from .corpus import SMALLEST_VOCABULARY, encode, fingerprint, read_corpus, split_corpus, train_tokenizer
from .held_out import measure, nats_per_character, windows, write_card

ARCHITECTURE = ("batch", "context", "vocab_size", "layers", "width", "heads", "dropout", "lr", "weight_decay", "seed")
"""What a resumed run must not change, besides the corpus."""
_LARGEST = 2**31 - 1


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


class Run:
    """A training run: tokens, model, optimiser, and how far it is. Raises ValueError for what cannot be trained or resumed."""

    def __init__(self, args: argparse.Namespace) -> None:
        import torch

        text = read_corpus(args.corpus)
        self.args = args
        self.settings = {name: getattr(args, name) for name in ARCHITECTURE} | {"corpus_sha256": fingerprint(text)}
        self.step = 0
        train_text, self.held_text = split_corpus(text)
        torch.manual_seed(args.seed)
        self.tokenizer = train_tokenizer(train_text, args.vocab_size)
        self.ids, self.held = encode(self.tokenizer, train_text), encode(self.tokenizer, self.held_text)
        if len(self.ids) <= args.context:
            raise ValueError(f"--context must be below the {len(self.ids)} training tokens of {args.corpus}, not {args.context}")
        check_memory(args, len(self.tokenizer))
        self.model = build_model(args, len(self.tokenizer))
        decay = [p for p in self.model.parameters() if p.dim() >= 2]
        plain = [p for p in self.model.parameters() if p.dim() < 2]
        self.optimizer = torch.optim.AdamW(
            [{"params": decay, "weight_decay": args.weight_decay}, {"params": plain, "weight_decay": 0.0}],
            lr=args.lr, betas=(0.9, 0.99), fused=True,
        )
        if args.checkpoint.exists():
            self.resume(args.checkpoint)
        print(f"{sum(p.numel() for p in self.model.parameters()) / 1e6:.2f} M parameters, {len(self.ids)} training tokens, "
              f"{len(train_text) / len(self.ids):.2f} characters a token")

    def resume(self, checkpoint: Path) -> None:
        """Go on where ``checkpoint`` stopped, if it is one of this very run."""
        import torch

        try:
            saved = torch.load(checkpoint, weights_only=True)
            settings, step = dict(saved["settings"]), int(saved["step"])
            model, optimizer = saved["model"], saved["optimizer"]
        except Exception as error:              # torch, pickle and zipfile raise many types for a file that is something else
            raise ValueError(f"{checkpoint} is no checkpoint of this script, or a damaged one: remove it or pass --checkpoint") from error
        differ = [f"{name} {settings.get(name)!r} there, {value!r} here" for name, value in self.settings.items() if settings.get(name) != value]
        if differ:
            raise ValueError(f"{checkpoint} was made with other settings ({'; '.join(differ)}): remove it or pass --checkpoint")
        if step > self.args.steps:
            raise ValueError(f"--steps must be at least the {step} that {checkpoint} has taken, not {self.args.steps}")
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)
        self.step = step
        print(f"resuming at step {step} of {self.args.steps}")

    def save_checkpoint(self) -> None:
        import torch

        part = _part(self.args.checkpoint)
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step, "settings": self.settings}
        torch.save(state, part)
        os.replace(part, self.args.checkpoint)

    def advance(self) -> Any:
        """One step of the optimiser; returns the loss."""
        import torch
        import torch.nn.functional as F

        args = self.args
        torch.manual_seed(args.seed * 1_000_003 + self.step)
        starts = torch.randint(0, len(self.ids) - args.context, (args.batch,))
        batch = torch.stack([self.ids[s : s + args.context + 1] for s in starts.tolist()])
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.step, args.steps, args.lr)
        self.model.train()
        logits = self.model(batch[:, :-1]).logits
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        return loss


def train(args: argparse.Namespace) -> None:
    """Train, or go on training; then store the model and measure what was stored."""
    from tqdm.auto import tqdm

    run = Run(args)
    bar = tqdm(range(run.step, args.steps), initial=run.step, total=args.steps, unit="step", mininterval=2)
    for _ in bar:
        loss = run.advance()
        last = run.step == args.steps
        if run.step % 20 == 0 or last:
            bar.set_postfix(loss=f"{loss.item():.3f}")
            if not math.isfinite(loss.item()):      # before it gets into the checkpoint
                raise ValueError(f"the loss is {loss.item()} after {run.step} steps: try a smaller --lr than {args.lr}")
        if run.step % args.report_every == 0 or last:
            run.save_checkpoint()
            figure = nats_per_character(run.model, run.held, len(run.held_text), *windows(args.context))
            tqdm.write(f"step {run.step}: held out {figure:.4f} nats a character")
    save(args, run.model, run.tokenizer)
    write_card(args.out, args.corpus, args.corpus_name or args.corpus.stem)


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


# -- what the user says ------------------------------------------------------------------------------------------------------------
def check(args: argparse.Namespace, given: Sequence[str]) -> None:
    """Refuse, before anything is read, what could never work. ``given``: the options that the user has set. Raises ValueError."""
    integer("--threads", args.threads, 0, 4096)
    if args.evaluate is not None:
        ignored = [_flag(name) for name in given if name not in ("corpus", "evaluate", "threads")]
        if ignored:
            raise ValueError(f"--evaluate only measures: {', '.join(ignored)} would do nothing")
        return
    for name in ("steps", "batch", "layers", "width", "heads", "report_every"):
        integer(_flag(name), getattr(args, name), 1, _LARGEST)
    integer("--context", args.context, 2, _LARGEST)
    integer("--vocab-size", args.vocab_size, SMALLEST_VOCABULARY, 2**20)
    integer("--seed", args.seed, 0, 2**40)
    if args.width % args.heads:
        raise ValueError(f"--width must be a multiple of --heads ({args.heads}), not {args.width}")
    number("--dropout", args.dropout, 0, 1, high_open=True)
    number("--lr", args.lr, 0, low_open=True)
    number("--weight-decay", args.weight_decay, 0)
    if args.corpus_name is not None and (not args.corpus_name.strip() or "\n" in args.corpus_name):
        raise ValueError(f"--corpus-name must be one line, not {args.corpus_name!r}")
    writable_file("--checkpoint", args.checkpoint)
    writable_file("--checkpoint", _part(args.checkpoint))
    nearest = next(folder for folder in (args.out, *args.out.absolute().parents) if folder.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise ValueError(f"--out {args.out}: {nearest} is no folder that can be written to")


def check_memory(args: argparse.Namespace, vocab_size: int) -> None:
    """Refuse a model that this machine cannot hold. A lower bound: weights, gradients and Adam's two moments, and the logits of a batch twice."""
    import psutil

    parameters = 12 * args.layers * args.width**2 + (vocab_size + args.context) * args.width
    needed, free = 4 * (4 * parameters + 2 * args.batch * args.context * vocab_size), psutil.virtual_memory().available
    if needed > free:
        raise ValueError(
            f"training needs {needed / 2**30:,.1f} GiB or more and {free / 2**30:,.1f} GiB are free: --batch {args.batch}, --context {args.context}, "
            f"--layers {args.layers} or --width {args.width} is too much"
        )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _part(checkpoint: Path) -> Path:
    """Where a checkpoint is written before it takes the place of the one before."""
    return checkpoint.with_name(f"{checkpoint.name}.part")


def build_parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m paged_edu.model.train", description=(__doc__ or "").split("\n")[0],
                                formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("--corpus", type=Path, required=True, help="a text file: speeches separated by blank lines")
    p.add_argument("--corpus-name", help="what the model card calls the text; by default the file's name")
    p.add_argument("--out", type=Path, default=Path("my-model"), help="folder for model and tokenizer")
    p.add_argument("--evaluate", type=Path, metavar="DIR", help="only measure the model in DIR on the held-out tenth and print the figure")
    p.add_argument("--checkpoint", type=Path, default=Path("tiny-shakespeare.ckpt"), help="resume file, rewritten as training goes on")
    p.add_argument("--steps", type=int, default=3000, help="a resumed run may change them: the learning rate then follows the new end")
    p.add_argument("--batch", type=int, default=4, help="windows a step")
    p.add_argument("--context", type=int, default=512, help="tokens a window, and the model's positions")
    p.add_argument("--vocab-size", type=int, default=1024, help="tokenizer entries, 257 or more")
    p.add_argument("--layers", type=int, default=6)
    p.add_argument("--width", type=int, default=192, help="a multiple of the heads")
    p.add_argument("--heads", type=int, default=6)
    p.add_argument("--dropout", type=float, default=0.15)
    p.add_argument("--lr", type=float, default=2e-3, help="peak learning rate")
    p.add_argument("--weight-decay", type=float, default=0.1)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--report-every", type=int, default=500, help="steps between held-out figures and checkpoints")
    p.add_argument("--threads", type=int, default=0, help="CPU threads; 0: torch's choice")
    return p


def main(argv: list[str] | None = None) -> None:
    """Exits with 2 and one line for what the user got wrong, with 130 for Ctrl-C."""
    p = build_parser()
    args = p.parse_args(argv)
    try:
        check(args, [name for name, value in vars(args).items() if value != p.get_default(name)])
        if args.threads:
            import torch

            torch.set_num_threads(args.threads)
        if args.evaluate is not None:
            measure(args.evaluate, args.corpus)
        else:
            train(args)
    except (ValueError, OSError) as error:
        p.exit(2, f"{p.prog}: {one_line(error)}\n")
    except KeyboardInterrupt:
        p.exit(130, f"\n{p.prog}: interrupted; the same command goes on from {args.checkpoint} if that is there\n")


if __name__ == "__main__":
    main()
