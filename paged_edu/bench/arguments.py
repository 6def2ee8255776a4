"""The command line of `paged-edu bench`. Imports nothing heavy: `--help` answers at once; each command imports what it needs when it runs."""
from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..terminal import PROG

Command = Callable[..., argparse.ArgumentParser]
"""``command(commands, name, run, summary, examples)``: a parser of its own, with the look of all others."""


def add_arguments(commands: Any, command: Command) -> None:
    """``bench`` and everything that it measures. ``command`` adds one of them, with its summary and examples."""
    bench = commands.add_parser("bench", help="measure parts of the system on this machine", description="Measure parts of the system.")
    what = bench.add_subparsers(title="what", metavar="WHAT", required=True)
    add = command(what, "scheduler", _scheduler, "time a scheduler step, block allocation, and events", [
        f"{PROG} bench scheduler", f"{PROG} bench scheduler --quick --json scheduler.json",
    ]).add_argument
    add("--quick", action="store_true", help="fewer rounds: quicker, with noisier numbers")
    add("--json", type=Path, metavar="FILE", help="write all numbers, with the machine, to FILE")
    _add_throughput(what, command)
    _add_latency(what, command)
    _add_serve(what, command)
    _add_memory(what, command)
    _add_paper(what, command)
    _add_kernels(what, command)
    _add_perplexity(what, command)


def _add_perplexity(what: Any, command: Command) -> None:
    add = command(what, "perplexity", _perplexity, "measure what fewer bits for KV cache or weights cost in quality", [
        f"{PROG} bench perplexity --text book.txt", f"{PROG} bench perplexity --text book.txt --model tiny-shakespeare --window 256",
        f"{PROG} bench perplexity --text book.txt --quantization none int8 --kv-cache-dtype auto",
    ]).add_argument
    add("--text", type=Path, required=True, metavar="FILE", help="a text in UTF-8, cut into windows")
    add("--model", default="smollm2-135m-instruct", metavar="NAME", help="named as for `generate` (%(default)s)")
    add("--dtype", default="auto", metavar="TYPE", help="the model's numbers: auto, float32, ... (%(default)s)")
    add("--kv-cache-dtype", nargs="+", default=["auto", "int8"], metavar="TYPE",
        help="the cache's; the others are compared with the first (auto int8)")
    add("--quantization", nargs="+", default=["none"], metavar="Q", help="the weights': none, int8, or both to compare (none)")
    add("--window", type=int, default=512, metavar="N", help="tokens of a prompt (%(default)s)")
    add("--windows", type=int, default=40, metavar="N", help="how many prompts, at most (%(default)s)")
    add("--json", type=Path, metavar="FILE", help="write all numbers, with the machine, to FILE")


def _add_throughput(what: Any, command: Command) -> None:
    add = command(what, "throughput", _throughput, "race this engine against transformers and older managers on many requests", [
        f"{PROG} bench throughput", f"{PROG} bench throughput --quick --profile", f"{PROG} bench throughput --systems paged,orca-max,orca-oracle",
        f"{PROG} bench throughput --model smollm2-135m-instruct --workload mixed.json --json out.json",
        f"{PROG} bench throughput --peer 'mine=./mine --requests {{workload}}'      (its last line: N tok/s)",
    ]).add_argument
    _add_setting(add)
    add("--workload", type=Path, metavar="FILE", help='JSON: [{"prompt": [ids], "n_out": N}, ...]')
    add("--dataset", default="sharegpt", metavar="NAME", help="or lengths as in: %(default)s, alpaca")
    add("--requests", type=int, default=48, metavar="N", help="of the data set (%(default)s)")
    add("--rate", type=float, metavar="R", help="requests a second (all at once)")
    add("--max-model-len", type=int, metavar="N", help="scale lengths to N (256; a file's longest)")
    add("--num-gpu-blocks-override", type=int, metavar="N", help="blocks of each pool (enough for all)")
    add("--max-num-seqs", type=int, default=256, metavar="N", help="our requests at once, at most (%(default)s)")
    add("--hf-batch", type=int, default=0, metavar="N", help="transformers' batch, at most (0: no limit)")
    add("--peer", action="append", default=[], metavar="NAME=CMD", help="race another program as well")
    add("--seed", type=int, default=0, metavar="N", help="of lengths, prompts and arrivals (%(default)s)")
    add("--profile", type=Path, nargs="?", const=Path("profile.html"), metavar="FILE", help="parts of a step, into FILE (profile.html)")
    _add_files(add)


def _add_latency(what: Any, command: Command) -> None:
    add = command(what, "latency", _latency, "time one batch of equal requests, token by token", [
        f"{PROG} bench latency", f"{PROG} bench latency --batch 1,8,32 --html latency.html",
        f"{PROG} bench latency --model smollm2-135m-instruct --json latency.json",
    ]).add_argument
    _add_setting(add)
    add("--batch", default="1", metavar="N,...", help="requests at once (%(default)s)")
    add("--input-len", type=int, default=32, metavar="N", help="tokens of a prompt (%(default)s)")
    add("--output-len", type=int, default=128, metavar="N", help="tokens to write (%(default)s)")
    add("--seed", type=int, default=0, metavar="N", help="of the prompts (%(default)s)")
    _add_files(add)


def _add_serve(what: Any, command: Command) -> None:
    add = command(what, "serve", _serve, "send load to a server with OpenAI's interface, and time what its clients see", [
        f"{PROG} bench serve --rate 4 --requests 100", f"{PROG} bench serve --url http://127.0.0.1:8001 --dataset alpaca --html serve.html",
        f"{PROG} bench serve --against-llm      (starts a server here, and races it with LLM.generate)",
    ]).add_argument
    add("--url", default="http://127.0.0.1:8000", metavar="URL", help="the server (%(default)s)")
    add("--api-key", metavar="KEY", help="its key ($OPENAI_API_KEY)")
    add("--model", metavar="NAME", help="one of its models (the first one)")
    add("--rate", type=float, metavar="R", help="requests a second, as a Poisson process")
    add("--workload", type=Path, metavar="FILE", help='JSON: [{"prompt": [ids], "n_out": N}, ...]')
    add("--dataset", default="sharegpt", metavar="NAME", help="or lengths as in: %(default)s, alpaca")
    add("--requests", type=int, default=64, metavar="N", help="of the data set (%(default)s)")
    add("--max-concurrency", type=int, default=0, metavar="N", help="in flight at once, at most (0: no limit)")
    add("--max-model-len", type=int, metavar="N", help="scale lengths to N (the server's, to 512)")
    add("--vocab-size", type=int, default=1000, metavar="N", help="prompts are ids below N (%(default)s)")
    add("--text", action="store_true", help="prompts are text, not token ids")
    add("--chat", action="store_true", help="ask /v1/chat/completions, with text")
    add("--no-ignore-eos", action="store_true", help="texts may end early; for OpenAI's own")
    add("--timeout", type=float, default=600.0, metavar="S", help="seconds for an answer (%(default)g)")
    add("--against-llm", action="store_true", help="race a server of our own with LLM.generate")
    add("--rounds", type=int, default=3, metavar="N", help="of that race (%(default)s)")
    add("--quick", action="store_true", help="16 requests, one round")
    add("--seed", type=int, default=0, metavar="N", help="of lengths, prompts and arrivals (%(default)s)")
    _add_files(add)


def _add_setting(add: Callable[..., object]) -> None:
    add("--model", default="tiny-shakespeare", metavar="NAME", help="named as for `generate` (%(default)s)")
    add("--systems", default="paged,transformers", metavar="NAME,...", help="also orca-max, -pow2, -oracle, grow")
    add("--device", default="auto", metavar="DEVICE", help="cpu, cuda, cuda:1 or %(default)s")
    add("--dtype", default="auto", metavar="TYPE", help="numbers: auto, float32, ... (%(default)s)")
    add("--quantization", metavar="TYPE", help="of our weights: int8, where it is served")
    add("--kv-cache-dtype", default="auto", metavar="TYPE", help="of our cache: auto or int8 (%(default)s)")
    add("--block-size", type=int, default=16, metavar="N", help="slots of a block (%(default)s)")
    add("--threads", type=int, default=0, metavar="N", help="of torch (0: its choice; 1 for a small model)")
    add("--rounds", type=int, default=5, metavar="N", help="runs of each, in turns (%(default)s)")
    add("--quick", action="store_true", help="two rounds of something smaller")


def _add_files(add: Callable[..., object]) -> None:
    add("--load", type=Path, metavar="FILE", help="show what an earlier run wrote with --json")
    add("--json", type=Path, metavar="FILE", help="write all numbers, with the machine, to FILE")
    add("--html", type=Path, metavar="FILE", help="draw them into FILE (with plotly)")


def _add_memory(what: Any, command: Command) -> None:
    add = command(what, "memory", _memory, "measure what the KV cache holds under every memory manager", [
        f"{PROG} bench memory", f"{PROG} bench memory --quick --json memory.json", f"{PROG} bench memory --part paper --html memory.html",
    ]).add_argument
    add("--part", default="all", metavar="PART", help="paper, sharing, engine (a real model) or %(default)s")
    add("--quick", action="store_true", help="one seed, half of the engine's requests")
    add("--dataset", default="sharegpt", metavar="NAME", help="whose lengths: %(default)s or alpaca")
    add("--requests", type=int, default=300, metavar="N", help="requests of a run at the paper's size (%(default)s)")
    add("--seeds", type=int, default=3, metavar="N", help="runs at the paper's size for each manager (%(default)s)")
    add("--model", default="tiny-shakespeare", metavar="NAME", help="the engine's model, named as for `generate`")
    add("--device", default="auto", metavar="DEVICE", help="where it runs: cpu, cuda, cuda:1 or %(default)s")
    add("--dtype", default="auto", metavar="TYPE", help="its numbers: auto, float32, float64, ... (%(default)s)")
    add("--max-model-len", type=int, default=512, metavar="N", help="positions to scale lengths and pool to (%(default)s)")
    add("--block-size", type=int, default=16, metavar="N", help="slots of the engine's blocks (%(default)s)")
    add("--engine-requests", type=int, default=120, metavar="N", help="requests to the engine for each manager (%(default)s)")
    add("--json", type=Path, metavar="FILE", help="write all numbers, with the machine, to FILE")
    add("--html", type=Path, metavar="FILE", help="draw them beside Fig. 2 into FILE (with plotly)")


def _add_paper(what: Any, command: Command) -> None:
    add = command(what, "paper", _paper, "repeat the paper's experiments, small, on the real engine", [
        f"{PROG} bench paper", f"{PROG} bench paper --quick --json paper.json", f"{PROG} bench paper --only fig12,fig15 --seconds-budget 300",
        f"{PROG} bench paper --load paper.json --only fig12",
    ]).add_argument
    add("--only", default="all", metavar="FIG,...", help="fig2, fig12, fig13, fig15, fig18b, fig19 (%(default)s)")
    add("--quick", action="store_true", help="about a minute: shorter requests, fewer rates and block sizes")
    add("--seconds-budget", type=float, metavar="S", help="how long all of it may take, roughly (220; 30 with --quick)")
    add("--model", default="tiny-shakespeare", metavar="NAME", help="named as for `generate` (%(default)s)")
    add("--device", default="auto", metavar="DEVICE", help="cpu, cuda, cuda:1 or %(default)s")
    add("--dtype", default="auto", metavar="TYPE", help="the model's numbers: auto, float32, float64, ... (%(default)s)")
    add("--dataset", default="sharegpt", metavar="NAME", help="whose lengths: %(default)s or alpaca (fig15: always alpaca)")
    add("--max-model-len", type=int, metavar="N", help="positions to scale lengths and pool to (128; 64 with --quick)")
    add("--block-size", type=int, default=2, metavar="N", help="slots of a block, but in fig15, fig18b and fig19 (%(default)s)")
    add("--seed", type=int, default=0, metavar="N", help="of lengths, arrivals and prompts (%(default)s)")
    add("--load", type=Path, metavar="FILE", help="show what an earlier run wrote with --json")
    add("--json", type=Path, metavar="FILE", help="write all numbers, with the machine, to FILE; after Ctrl-C, those that there are")


def _add_kernels(what: Any, command: Command) -> None:
    add = command(what, "kernels", _kernels, "time the attention kernels on a GPU; without one, count their registers and spills", [
        f"{PROG} bench kernels", f"{PROG} bench kernels --html roofline.html --json times.json",
        f"{PROG} bench kernels --batch 1,64 --context 4096 --heads 32/8x128", f"{PROG} bench kernels --part resources --arch 80,90 --quick",
    ]).add_argument
    add("--part", default="auto", metavar="PART", help="times (with a GPU), resources (without), or %(default)s")
    add("--quick", action="store_true", help="a handful of shapes, or of kernels")
    add("--batch", metavar="N,...", help="times: sequences (with these, every combination; 8)")
    add("--context", metavar="N,...", help="times: cached tokens of each sequence (4096)")
    add("--heads", metavar="Q/KVxD,...", help="times: query heads, KV heads, head size (32/8x128)")
    add("--queries", metavar="N,...", help="times: tokens of each sequence that ask; 1 is decode (1)")
    add("--dtype", default="auto", metavar="TYPE", help="times: bfloat16, float16, float32 or %(default)s (what the card has)")
    add("--block-size", type=int, default=16, metavar="N", help="times: slots of a block (%(default)s)")
    add("--rounds", type=int, default=100, metavar="N", help="times: runs of each kernel, in turns (%(default)s)")
    add("--no-graphs", action="store_true", help="times: launch from Python, without CUDA graphs")
    add("--arch", metavar="N,...", help="resources: compute capabilities to compile for (75,80,89,90)")
    add("--workers", type=int, default=0, metavar="N", help="resources: compiling processes (one a processor, at most 8)")
    add("--load", type=Path, metavar="FILE", help="show the numbers that an earlier run wrote with --json")
    add("--json", type=Path, metavar="FILE", help="write all numbers, with the machine, to FILE")
    add("--html", type=Path, metavar="FILE", help="draw the times under the card's roofs into FILE (with plotly)")


# -- the commands ------------------------------------------------------------------------------------------------------------------
def _scheduler(args: argparse.Namespace) -> int:
    from . import scheduler

    return scheduler.run(quick=args.quick, json_file=args.json)


_SETTING = ("model", "systems", "device", "dtype", "quantization", "kv_cache_dtype", "block_size", "threads", "rounds", "quick")


def _throughput(args: argparse.Namespace) -> int:
    from . import throughput

    names = (*_SETTING, "workload", "dataset", "requests", "rate", "max_model_len", "num_gpu_blocks_override", "max_num_seqs", "hf_batch", "seed")
    options = {name: getattr(args, name) for name in names} | {"peer": tuple(args.peer), "profile": args.profile is not None}
    return throughput.run(throughput.Options(**options), args.json, args.html, args.load, args.profile)


def _latency(args: argparse.Namespace) -> int:
    from . import latency

    names = (*_SETTING, "batch", "input_len", "output_len", "seed")
    return latency.run(latency.Options(**{name: getattr(args, name) for name in names}), args.json, args.html, args.load)


def _serve(args: argparse.Namespace) -> int:
    import os

    from . import serve

    names = ("url", "model", "workload", "dataset", "requests", "rate", "max_concurrency", "max_model_len", "vocab_size", "text", "chat",
             "no_ignore_eos", "timeout", "against_llm", "rounds", "quick", "seed")
    key = args.api_key or (None if args.against_llm or args.load else os.environ.get("OPENAI_API_KEY") or None)
    options = serve.Options(api_key=key, **{name: getattr(args, name) for name in names})
    return serve.run(options, args.json, args.html, args.load)


def _memory(args: argparse.Namespace) -> int:
    from . import memory

    names = ("part", "dataset", "requests", "seeds", "model", "device", "dtype", "max_model_len", "block_size", "engine_requests")
    options = memory.Options(**{name: getattr(args, name) for name in names})
    return memory.run(options.quick() if args.quick else options, json_file=args.json, html_file=args.html)


def _perplexity(args: argparse.Namespace) -> int:
    from . import perplexity

    options = perplexity.Options(args.text, args.model, tuple(args.kv_cache_dtype), args.window, args.windows, args.dtype, tuple(args.quantization))
    return perplexity.run(options, json_file=args.json)


def _paper(args: argparse.Namespace) -> int:
    from . import paper

    names = ("only", "quick", "seconds_budget", "model", "device", "dtype", "dataset", "max_model_len", "block_size", "seed")
    return paper.run(paper.Options(**{name: getattr(args, name) for name in names}), json_file=args.json, load=args.load)


def _kernels(args: argparse.Namespace) -> int:
    from . import kernels

    names = ("part", "quick", "batch", "context", "heads", "queries", "dtype", "block_size", "rounds", "no_graphs", "arch", "workers")
    return kernels.run(kernels.Options(**{name: getattr(args, name) for name in names}), args.json, args.html, args.load)
