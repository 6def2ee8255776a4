"""``paged-edu chat``: talk with a model in the terminal, or send it a message a line through a pipe.

The conversation is a list of messages. Each answer is one request whose prompt is the whole conversation, rendered by the model's chat template;
when that no longer fits, the oldest turns are left out, with a note. Ctrl-C stops the answer and keeps it as far as it came.
"""
from __future__ import annotations

import argparse
import sys
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from . import generate
from .terminal import note, styled
from .words import counted

if TYPE_CHECKING:
    from .engine.llm import LLM
    from .engine.outputs import RequestOutput
    from .sampling.params import SamplingParams

DEFAULT_MODEL = "smollm2-135m-instruct"
HELP = """\
/system TEXT   what the model is told first; without TEXT: show it
/undo          take the last message and its answer back
/reset         forget the conversation
/help          this list
/exit          leave; so do Ctrl-D and Ctrl-C (in an answer Ctrl-C stops it)"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=DEFAULT_MODEL, help="name or folder (default %(default)s)")
    parser.add_argument("--system", metavar="TEXT", help="what the model is told before the conversation")
    generate.add_sampling_flags(parser, max_tokens=512)
    generate.add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    options, params = generate.checked(args, asks=True)
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    note(f"loading {args.model} ...")
    from .engine.llm import LLM
    from .model.spec import ModelLoadError

    try:
        llm = LLM(**options)
    except ModelLoadError as error:
        if args.model != DEFAULT_MODEL or "paged-edu pull" in str(error):
            raise
        raise ModelLoadError(f"{DEFAULT_MODEL} is not here: get it with paged-edu pull {DEFAULT_MODEL}, or name another --model") from error
    with llm:
        if not getattr(llm.tokenizer, "chat_template", None):
            raise ValueError(f"{args.model} has no chat template: it was not trained to chat; try paged-edu generate")
        chat = Chat(llm, params, args.system, interactive)
        if interactive:
            with suppress(ImportError):
                import readline  # noqa: F401  line editing and history in input(); not on every platform
            note(f"{args.model}: {chat.limit} tokens of conversation; /help has commands")
        return chat.talk()


class Chat:
    """A conversation with one model. ``interactive``: with a prompt, a line of numbers after each answer, and a live one below it."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None, interactive: bool) -> None:
        self.llm, self.params, self.system, self.interactive = llm, params, system, interactive
        self.turns: list[tuple[str, str]] = []
        """What was asked and answered."""
        scheduler = llm.engine.scheduler
        self.limit = min(scheduler.config.max_model_len, scheduler.manager.num_blocks * scheduler.manager.block_size)

    def talk(self) -> int:
        """Read messages and commands to the end of the input; returns the exit code."""
        while (line := self._read()) is not None:
            if line.lstrip().startswith("/"):
                if not self._command(line.strip()):
                    break
            elif line.strip():
                try:
                    self._turn(line)
                except KeyboardInterrupt:       # just before or after the answer
                    if not self.interactive:
                        raise
                    print()
        return 0

    def _read(self) -> str | None:
        """The next message; None at the end."""
        if not self.interactive:
            line = sys.stdin.readline()
            return line.rstrip("\r\n") if line else None
        try:
            return input("> ")
        except (EOFError, KeyboardInterrupt):
            print()
            return None

    def _command(self, line: str) -> bool:
        """Do what a command says; False to leave."""
        command, _, rest = line.partition(" ")
        rest = rest.strip()
        if command in ("/exit", "/quit"):
            return False
        if command == "/help":
            print(HELP)
        elif command == "/reset":
            self.turns.clear()
            self._say("the conversation is forgotten")
        elif command == "/undo":
            self._say("taken back: " + self.turns.pop()[0] if self.turns else "there is nothing to take back")
        elif command == "/system":
            self.system = rest or self.system
            self._say(f"system: {self.system}" if self.system else "no system message; the model's template may have its own")
        else:
            self._say(f"there is no command {command}; /help lists them")
        return True

    def _say(self, text: str) -> None:
        """A word of the program's own: dim beside the answers, or on stderr in a pipe."""
        print(styled(f"({text})", 2, sys.stdout)) if self.interactive else note(text)

    # -- a turn --------------------------------------------------------------------------------------------------------------------
    def _turn(self, message: str) -> None:
        try:
            prompt = self._fit(message)
        except ValueError as error:             # this message cannot be sent; the conversation goes on
            self._say(str(error))
            return
        answer, interrupted = self._answer(prompt)
        if answer:
            self.turns.append((message, answer))
        else:
            self._say("there is no answer" + (" yet" if interrupted else "") + "; the message is not kept")

    def _fit(self, message: str) -> list[int]:
        """The conversation with ``message`` as prompt token ids. The oldest turns go when it leaves an answer too little room."""
        room = min(self.params.max_tokens, self.limit // 4)
        for num_dropped in range(len(self.turns) + 1):
            prompt = self.llm.render_chat(self._messages(self.turns[num_dropped:], message))
            if len(prompt) + room <= self.limit:
                break
        if len(prompt) >= self.limit:           # alone, too
            raise ValueError(f"this message makes a prompt of {len(prompt)} tokens; there is room for {self.limit - 1}. It is not sent")
        if num_dropped:
            del self.turns[:num_dropped]
            self._say(f"the oldest {counted(num_dropped, 'turn')} left out: the conversation is longer than {self.limit} tokens")
        return prompt

    def _messages(self, turns: list[tuple[str, str]], message: str) -> list[dict[str, str]]:
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        said = [pair for question, answer in turns for pair in (("user", question), ("assistant", answer))]
        return system + [{"role": role, "content": content} for role, content in (*said, ("user", message))]

    def _answer(self, prompt: list[int]) -> tuple[str, bool]:
        """Stream the answer; ``(text, whether Ctrl-C stopped it)``."""
        from .chat_view import LiveView, PlainView

        view = LiveView() if self.interactive and LiveView.possible() else PlainView()
        watch, interrupted = _Watch(self.llm), False
        with view:
            try:
                with closing(self.llm.stream(prompt, self.params)) as stream:
                    for output in stream:
                        watch.see(output)
                        view.show(output.outputs[0].delta, str(watch))
            except KeyboardInterrupt:
                if not self.interactive:
                    raise
                interrupted = True
        if self.interactive:
            self._say(f"{watch}; stopped" if interrupted else str(watch))
        watch.print_logprobs()
        return watch.text, interrupted


class _Watch:
    """The numbers of one answer."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._start = self._end = time.perf_counter()
        self._output: RequestOutput | None = None
        self._num_blocks = 0
        self.text = ""

    def see(self, output: RequestOutput) -> None:
        self._end, self._output, self.text = time.perf_counter(), output, output.outputs[0].text
        report, manager = self._llm.memory_report(), self._llm.engine.scheduler.manager
        if not output.finished:                 # whoever has ended has given its blocks back
            self._num_blocks = (report.total - report.external) // manager.block_size

    def print_logprobs(self) -> None:
        """The table of ``--logprobs``."""
        if self._output is not None:
            generate.print_logprobs(self._output, self._output.outputs[0])

    def __str__(self) -> str:
        if self._output is None:
            return "no token yet"
        done, seconds = self._output.outputs[0], self._end - self._start
        parts = [counted(len(done.token_ids), "token"), f"{len(done.token_ids) / seconds:.1f} tokens/s" if seconds else ""]
        parts += [f"{self._num_blocks}/{self._llm.engine.scheduler.manager.num_blocks} KV blocks"] if self._num_blocks else []
        parts += [f"{self._output.num_cached_tokens} of {counted(len(self._output.prompt_token_ids), 'prompt token')} cached"]
        parts += ["cut at --max-tokens"] if done.finish_reason == "length" else []
        return ", ".join(part for part in parts if part)
