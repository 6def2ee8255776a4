"""``paged-edu generate``: complete prompts from the arguments, a file or a pipe; and the flags that it shares with ``chat``."""
from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .terminal import note, styled, visible
from .threads import one_thread_for_small_models
from .words import counted

if TYPE_CHECKING:
    from .engine.llm import LLM
    from .engine.outputs import CompletionOutput, RequestOutput
    from .sampling.beam import BeamSearchParams
    from .sampling.params import SamplingParams


# -- flags -------------------------------------------------------------------------------------------------------------------------
def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("prompts", nargs="*", metavar="PROMPT", help="the prompts; without any: one a line from stdin")
    add("--file", metavar="FILE", help="read prompts from FILE, one a line; - is stdin")
    add("--model", default="tiny-shakespeare", help="name or directory (default %(default)s)")
    add("--raw", action="store_true", help="complete the prompt as it is, no chat template")
    add("--stream", action="store_true", help="one text as it comes; several with --json")
    add("--n", type=int, default=1, metavar="N", help="texts a prompt (default %(default)s)")
    add("--beam-width", type=int, metavar="W", help="search with W beams instead of sampling")
    add("--length-penalty", type=float, metavar="P", help="of beams: above 0 favours length (default 1)")
    add_sampling_flags(parser, max_tokens=128)
    add("--prompt-logprobs", type=int, metavar="K", help="the same table for the tokens of the prompt")
    add_engine_flags(parser)
    add("--json", action="store_true", help="one JSON object a line instead of text")


ASKING, ASKING_FOR_SEVERAL, COMPLETING = 0.0, 0.7, 1.0
"""The temperature where the user does not say one. Small chat models know most when they say what is most probable; several have to differ."""


def add_sampling_flags(parser: argparse.ArgumentParser, *, max_tokens: int) -> None:
    add = parser.add_argument
    add("--max-tokens", type=int, default=max_tokens, metavar="N", help="at most N output tokens each (default %(default)s)")
    add("--temperature", type=float, metavar="T", help="0 is greedy (default 1; asking a chat model 0)")
    add("--top-p", type=float, default=1.0, metavar="P", help="likeliest tokens that make up P (default %(default)g)")
    add("--top-k", type=int, default=0, metavar="K", help="the K likeliest tokens; 0: all (default %(default)s)")
    add("--min-p", type=float, default=0.0, metavar="P", help="drop tokens below P x the likeliest (default %(default)g)")
    add("--presence-penalty", type=float, default=0.0, metavar="P", help="take P from the logit of tokens it has used")
    add("--frequency-penalty", type=float, default=0.0, metavar="P", help="take P for each time it has used them")
    add("--repetition-penalty", type=float, default=1.0, metavar="R", help="above 1: avoid tokens of prompt and output")
    add("--logit-bias", action="append", metavar="ID=B", help="add B to the logit of token ID; again for more")
    add("--logprobs", type=int, metavar="K", help="show each token's probability and the top K")
    add("--seed", type=int, default=0, metavar="N", help="the same seed gives the same texts (default %(default)s)")
    add("--stop", action="append", metavar="STR", help="end a text before STR; may be given again")
    add("--ignore-eos", action="store_true", help="go on after the model's end token")


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--block-size", type=int, default=16, metavar="N", help="tokens a block, 1 to 256 (default %(default)s)")
    add("--num-gpu-blocks-override", type=int, metavar="N", help="blocks in the pool (default: by memory)")
    add("--max-model-len", type=int, metavar="N", help="longest request (default: by model)")
    add("--kv-manager", default="paged", metavar="M", help="paged, orca-..., grow (default %(default)s)")
    add("--no-prefix-caching", action="store_true", help="never reuse blocks of equal beginnings")
    add("--preemption-mode", default="auto", metavar="M", help="auto, recompute or swap (default %(default)s)")
    add("--swap-space", type=float, metavar="GIB", help="host memory to swap to (default: by memory)")
    add("--dtype", default="auto", help="float32, float64, float16, ... (default %(default)s)")
    add("--quantization", metavar="Q", help="int8: 8-bit weights, on a CPU (default: none)")
    add("--device", default="auto", help="cpu, cuda or cuda:1 (default %(default)s)")


def checked(args: argparse.Namespace, *, asks: bool = False) -> tuple[dict[str, Any], SamplingParams]:
    """Engine options and sampling parameters; what is wrong with either is said before torch is imported."""
    from .config import EngineConfig
    from .sampling.params import SamplingParams

    options = {
        "enable_prefix_caching": False if args.no_prefix_caching else None, "preemption_mode": args.preemption_mode, "swap_space": args.swap_space,
        "kv_manager": args.kv_manager,
        "model": args.model, "seed": args.seed, "block_size": args.block_size, "num_gpu_blocks_override": args.num_gpu_blocks_override,
        "max_model_len": args.max_model_len, "dtype": args.dtype, "device": args.device,
        "quantization": args.quantization,
    }
    EngineConfig(**options)
    n = getattr(args, "n", 1)
    usual = COMPLETING if not asks else ASKING if n == 1 else ASKING_FOR_SEVERAL
    params = SamplingParams(
        temperature=usual if args.temperature is None else args.temperature, top_p=args.top_p, top_k=args.top_k, min_p=args.min_p,
        max_tokens=args.max_tokens, stop=args.stop, ignore_eos=args.ignore_eos, n=n, presence_penalty=args.presence_penalty,
        frequency_penalty=args.frequency_penalty, repetition_penalty=args.repetition_penalty, logit_bias=_biases(args.logit_bias),
        logprobs=args.logprobs, prompt_logprobs=getattr(args, "prompt_logprobs", None),
    )
    return options, params


def _biases(given: list[str] | None) -> dict[str, float]:
    """``--logit-bias ID=B``, as often as it was given; the ids are checked with the other parameters."""
    biases: dict[str, float] = {}
    for text in given or ():
        token, _, bias = text.partition("=")
        try:
            value = float(bias)
        except ValueError:
            raise ValueError(f"--logit-bias must be ID=B, a token id and a number, such as 198=-100; not {text!r}") from None
        if token in biases:
            raise ValueError(f"--logit-bias has the token {token} twice")
        biases[token] = value
    return biases


def _beam_params(args: argparse.Namespace) -> BeamSearchParams | None:
    from .sampling.beam import BeamSearchParams

    if args.beam_width is None:
        if args.length_penalty is not None:
            raise ValueError("--length-penalty is for a beam search: give --beam-width as well")
        return None
    for flag, given in (("--temperature", args.temperature is not None), ("--top-p", args.top_p != 1), ("--top-k", args.top_k != 0),
                        ("--min-p", args.min_p != 0), ("--presence-penalty", args.presence_penalty != 0),
                        ("--frequency-penalty", args.frequency_penalty != 0), ("--repetition-penalty", args.repetition_penalty != 1),
                        ("--logit-bias", bool(args.logit_bias)), ("--logprobs", args.logprobs is not None),
                        ("--prompt-logprobs", args.prompt_logprobs is not None), ("--stop", bool(args.stop)), ("--stream", args.stream)):
        if given:
            raise ValueError(f"{flag} does not go with --beam-width: a beam search does not sample, and its texts are certain at its end")
    return BeamSearchParams(
        beam_width=args.beam_width, n=args.n, max_tokens=args.max_tokens, ignore_eos=args.ignore_eos,
        length_penalty=1.0 if args.length_penalty is None else args.length_penalty,
    )


# -- the command -------------------------------------------------------------------------------------------------------------------
def run(args: argparse.Namespace) -> int:
    options, params = checked(args)
    beams = _beam_params(args)
    prompts = read_prompts(args.prompts, args.file)
    if args.stream and len(prompts) * args.n > 1 and not args.json:
        number = counted(len(prompts), "prompt") + (f" of {args.n} texts each" if args.n > 1 else "")
        verb = "is" if len(prompts) == 1 else "are"
        raise ValueError(f"--stream shows one text as it comes, and there {verb} {number}: add --json, or leave --stream out")
    watched = sys.stderr.isatty()
    note(f"loading {args.model} ...")
    from .engine.llm import LLM

    with LLM(**options) as llm:
        one_thread_for_small_models(llm)
        asks = not args.raw and bool(getattr(llm.tokenizer, "chat_template", None))
        inputs = [_question(llm, prompt) for prompt in prompts] if asks else list[Any](prompts)
        _, params = checked(args, asks=asks)
        start = time.perf_counter()
        if args.stream:
            outputs = _stream(llm, inputs, params, _stream_json if args.json else _stream_text, prompts[0] + "\n" * asks)
        elif beams is not None:
            outputs = llm.beam_search(inputs, beams, use_tqdm=watched)
        else:
            outputs = llm.generate(inputs, params, use_tqdm=watched)
        seconds = time.perf_counter() - start
    if not args.stream:
        for output in outputs:
            for done in output.outputs:
                print(json.dumps(_record(output, done))) if args.json else _print_text(output, done, "\n" * asks)
    tokens = sum(len(done.token_ids) for output in outputs for done in output.outputs)
    note(f"{counted(len(outputs), 'prompt')}, {counted(tokens, 'output token')} in {seconds:.1f} s")
    return 0


def _question(llm: LLM, prompt: str) -> dict[str, Any]:
    """The prompt as a chat model expects it: as what a user says."""
    return {"prompt": prompt, "prompt_token_ids": llm.render_chat([{"role": "user", "content": prompt}])}


def _stream(
    llm: LLM, inputs: list[Any], params: SamplingParams, show: Callable[[RequestOutput], None], first: str,
) -> list[RequestOutput]:
    if show is _stream_text:
        print(styled(_for_stdout(first), 1, sys.stdout), end="", flush=True)
    ended = []
    for output in llm.stream(inputs, params):
        show(output)
        if output.finished:
            ended.append(output)
    return ended


def _stream_text(output: RequestOutput) -> None:
    done = output.outputs[0]
    print(_for_stdout(done.delta), end="\n" if output.finished else "", flush=True)
    if output.finished:
        print_logprobs(output, done)
        note(_head(output, done))


def _stream_json(output: RequestOutput) -> None:
    """A line for each piece of text; the last ones of a prompt have everything."""
    for done in output.outputs:
        if output.finished:
            print(json.dumps({"request_id": output.request_id, "delta": done.delta} | _record(output, done)), flush=True)
        elif done.delta:
            print(json.dumps({"request_id": output.request_id, "index": done.index, "delta": done.delta}), flush=True)


def _for_stdout(text: str) -> str:
    return visible(text) if sys.stdout.isatty() else text


def _head(output: RequestOutput, done: CompletionOutput) -> str:
    reason = done.finish_reason if done.stop_reason is None else f"{done.finish_reason} ({done.stop_reason!r})"
    which = f"/{done.index}" if len(output.outputs) > 1 else ""
    score = "" if done.cumulative_logprob is None else f", log-probability {done.cumulative_logprob:.2f}"
    return f"[{output.request_id}{which}] {counted(len(output.prompt_token_ids), 'prompt token')} + {len(done.token_ids)} output, {reason}{score}"


def _print_text(output: RequestOutput, done: CompletionOutput, between: str) -> None:
    prompt, text = _for_stdout((output.prompt or "") + between), _for_stdout(done.text)
    print(f"{styled(_head(output, done), 2, sys.stdout)}\n{styled(prompt, 1, sys.stdout)}{text}\n")
    print_logprobs(output, done)


def print_logprobs(output: RequestOutput, done: CompletionOutput) -> None:
    """The tables that were asked for; that of the prompt with the first text only."""
    from .logprobs_view import print_table

    if output.prompt_logprobs is not None and done.index == 0:
        print_table("prompt", output.prompt_token_ids, output.prompt_logprobs)
        print()
    if done.logprobs:
        print_table("token", done.token_ids, done.logprobs)
        print()


def _record(output: RequestOutput, done: CompletionOutput) -> dict[str, Any]:
    from .logprobs_view import as_json

    record = {
        "request_id": output.request_id, "index": done.index, "prompt": output.prompt, "text": done.text, "token_ids": list(done.token_ids),
        "finish_reason": done.finish_reason, "stop_reason": done.stop_reason, "cumulative_logprob": done.cumulative_logprob,
    }
    if done.logprobs is not None:
        record["logprobs"] = as_json(done.logprobs)
    if output.prompt_logprobs is not None:
        record |= {"prompt_token_ids": list(output.prompt_token_ids), "prompt_logprobs": as_json(output.prompt_logprobs)}
    return record


# -- prompts -----------------------------------------------------------------------------------------------------------------------
def read_prompts(given: list[str], file: str | None) -> list[str]:
    """The prompts from the arguments, a file or the standard input; every one has something in it."""
    if given and file is not None:
        raise ValueError(f"give prompts or --file {file}, not both")
    if given:
        if "" in given:
            raise ValueError(f"prompt {given.index('') + 1} is '': at least 1 token is needed")
        return given
    if file is None and sys.stdin.isatty():
        raise ValueError("there is no prompt: give one, or --file FILE, or pipe one a line into the standard input")
    name = "the standard input" if file in (None, "-") else str(file)
    lines = [line.removesuffix("\r") for line in _read(name, file).removesuffix("\n").split("\n")]
    prompts = [line for line in lines if line.strip()]
    if not prompts:
        size = "no lines" if lines == [""] else f"{counted(len(lines), 'line')}, all of them empty"
        raise ValueError(f"there is no prompt in {name}: it has {size}")
    if len(prompts) < len(lines):
        empty = len(lines) - len(prompts)
        note(f"{counted(empty, 'empty line')} of {name} {'is' if empty == 1 else 'are'} skipped")
    return prompts


def _read(name: str, file: str | None) -> str:
    """The text, without a byte order mark. Bytes are read, since Python's text mode would make a line end of a lone carriage return."""
    if file not in (None, "-"):
        data = Path(str(file)).read_bytes()
    elif hasattr(sys.stdin, "buffer"):
        data = sys.stdin.buffer.read()
    else:
        return sys.stdin.read()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is no UTF-8 text: byte 0x{data[error.start]:02X} at position {error.start}") from error
