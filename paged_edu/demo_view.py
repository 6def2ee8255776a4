"""The demo in a terminal: the block grid, drawn live from the engine's events, then texts, a table and where to go from here.

A request has a letter and a hue (`viz.palette`), and the letter is always there: without colour (NO_COLOR, a pipe, a file) the picture
says the same. A block is the letter and a gauge of its filled slots; free blocks are dots.
"""
from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from . import demo
from .checks import writable_file
from .core import events as ev
from .core.sequence import Status
from .trace import TraceState
from .viz.palette import letter, look
from .words import counted

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_STYLES = {"solid": "", "rising": " underline", "falling": " bold", "crossed": " bold underline"}
"""A terminal has no hatches: the second seven requests are underlined, the third bold."""
_TEXTS = 6
_PLAIN_STEPS = (1, 30, 90)
_HAPPENINGS = 3


def badge(arrival: int) -> tuple[str, str]:
    """The letter of a request and its style: on the request's hue."""
    its = look(arrival)
    return its.letter, f"{its.on_hue} on {its.hue}{_STYLES[its.hatch]}"


def gauge(fill: float, size: float, width: int, ascii_only: bool = False) -> str:
    """``fill`` of ``size`` as a bar ``width`` characters long."""
    if ascii_only:
        return ("#" * round(fill * width / size)).ljust(width, ".")
    full, part = divmod(round(fill * width * 8 / size), 8)
    return ("█" * full + (_EIGHTHS[part] if part else "")).ljust(width)


def grid(state: TraceState, width: int, ascii_only: bool) -> list[Text]:
    """The physical blocks, 16 a line (8 where the terminal is narrow): the owner's letter and a gauge of the filled slots, or a dot."""
    columns = 16 if width >= 70 else 8
    lines: list[Text] = []
    for view in state.blocks():
        if view.block % columns == 0:
            lines.append(Text.assemble((f"{view.block:>4} ", "dim")))
        if not view.owners:
            lines[-1].append(" .  " if ascii_only else " ·  ", style="dim")
            continue
        arrival = state.arrival(view.owners[0])
        lines[-1].append(*badge(arrival))
        if ascii_only:      # two characters would round too much: the number of tokens instead
            lines[-1].append(f"{view.fill:<2} ")
        else:
            lines[-1].append(gauge(view.fill, state.block_size, 2) + " ", style=look(arrival).hue)
    return lines


def legend(ascii_only: bool) -> Text:
    """What a block of the grid says."""
    full, part, free = ("16", "4 ", ".") if ascii_only else (gauge(16, 16, 2), gauge(4, 16, 2), "·")
    text = Text("     ")
    for fill, meaning in ((full, "full block of A"), (part, "4 of 16 slots filled")):
        text.append(*badge(0)).append(fill, style=look(0).hue).append(f" {meaning}     ", style="dim")
    return text.append(f"{free}   free block", style="dim")


def meters(state: TraceState, width: int, ascii_only: bool) -> list[Text]:
    """Blocks in use, slots that hold tokens, and the counters."""
    used = sum(view.ref_count > 0 for view in state.blocks())
    tokens, slots = state.token_states(), state.num_blocks * state.block_size
    running, bar = len(state.with_status(Status.RUNNING)), max(4, min(32, width - 36))
    counters = {
        "step": state.step, "running": running, "waiting": len(state.requests) - running, "finished": state.num_finished,
        "preemptions": state.num_preemptions,
    }
    blocks_bar, tokens_bar = (gauge(*fill, bar, ascii_only) for fill in ((used, state.num_blocks), (tokens, slots)))
    return [
        Text.assemble("     blocks in use      ", (blocks_bar, "cyan"), f" {used} of {state.num_blocks}"),
        Text.assemble("     slots with a token ", (tokens_bar, "cyan"), f" {tokens / slots:.0%}"),
        Text("     ").append_text(Text("   ").join(Text.assemble(f"{name} ", (str(n), "bold")) for name, n in counters.items())),
    ]


def queues(state: TraceState, finished: Iterable[int]) -> list[Text]:
    """The letters of those who run, wait and have ended."""
    running, waiting = state.with_status(Status.RUNNING), state.with_status(Status.WAITING, Status.PREEMPTED)
    rows = {
        "running": [state.requests[r].arrival for r in running], "waiting": [state.requests[r].arrival for r in waiting],
        "finished": list(finished),
    }
    lines = []
    for name, arrivals in rows.items():
        lines.append(Text(f"     {name:<9}"))
        for arrival in arrivals:
            lines[-1].append(*badge(arrival)).append(" ")
    return lines


def happenings(events: Iterable[ev.Event], step: int) -> list[Text]:
    """What a step brought, one line a preemption and an end."""
    lines: list[Text] = []
    freed: dict[int, int] = {}
    for event in events:
        text = ""
        match event:
            case ev.BlocksFreed(seq_id, blocks):
                freed[seq_id] = len(blocks)
            case ev.RequestPreempted(_, lost):
                text = f" steps back: its {counted(lost, 'token')} will be computed again"
            case ev.SequenceFinished(_, seq_id, reason, _):
                text = f" {'ends by itself' if reason == 'stop' else 'reaches its limit'}; blocks freed: {freed.get(seq_id, 0)}"
            case _:
                pass
        if text and isinstance(event, ev.RequestPreempted | ev.SequenceFinished):
            lines.append(Text.assemble((f"     step {step:<4}", "dim"), badge(_arrival(event.request_id)), text))
    return lines


def _arrival(request_id: str) -> int:
    return _LETTERS[request_id]


_LETTERS = {letter(i): i for i in range(len(demo.PROMPTS))}
"""The demo names its requests by their letters."""


class View:
    """Called after every step: draws the step (live) or, into a pipe or a file, a few of them."""

    def __init__(self, console: Console, tokenizer: Any, live: bool, speed: float) -> None:
        self.console = console
        self.tokenizer = tokenizer
        self.ascii_only = not console.encoding.lower().startswith("utf")
        self.pause = 1 / speed if speed else 0.0
        self.recent: deque[Text] = deque(maxlen=_HAPPENINGS)
        self.next_frame = time.monotonic()
        self.live = Live(console=console, auto_refresh=False, vertical_overflow="crop") if live else None

    def __enter__(self) -> View:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def __call__(self, recorder: demo.Recorder) -> None:
        state = recorder.log.state
        events = recorder.log.events(state.step)
        self.recent.extend(happenings(events, state.step))
        if self.live is not None:
            self.live.update(Text("\n").join(self.frame(recorder)), refresh=True)
            # Sleep only as long as the step itself was quicker than a person can follow.
            self.next_frame = max(self.next_frame + self.pause, time.monotonic())
            time.sleep(self.next_frame - time.monotonic() if self.next_frame > time.monotonic() else 0)
        elif state.step in _PLAIN_STEPS:
            lines = [*grid(state, self.console.width, self.ascii_only), *meters(state, self.console.width, self.ascii_only), Text()]
            self.console.print(Text("\n").join(lines))

    def frame(self, recorder: demo.Recorder) -> list[Text]:
        """Everything that one frame shows, as many lines as the terminal has."""
        state, (width, height) = recorder.log.state, self.console.size
        lines = [*grid(state, width, self.ascii_only), legend(self.ascii_only), Text(), *meters(state, width, self.ascii_only), Text(),
                 *queues(state, map(_arrival, recorder.finished)), Text()]
        lines += [*self.recent, *[Text()] * (_HAPPENINGS - len(self.recent)), Text()]
        lines += self.texts(state, height - 2 - len(lines), width)
        for line in lines:
            line.no_wrap = True
            line.truncate(width - 1, overflow="ellipsis")
        return lines[: height - 2]

    def texts(self, state: TraceState, rows: int, width: int) -> list[Text]:
        """What the first requests have written, newest words last; with their block tables where there is room; then those who wait."""
        lines = []
        sequences = {seq.request_id: seq for seq in state.sequences.values()}
        unfinished = state.with_status(Status.RUNNING) + state.with_status(Status.WAITING, Status.PREEMPTED)
        for request_id in unfinished[: max(0, rows)]:
            seq, request = sequences[request_id], state.requests[request_id]
            counts = f" {request.num_prompt_tokens:>3} + {len(seq.tokens) - request.num_prompt_tokens:<3} "
            line = Text.assemble("     ", badge(request.arrival), (counts, "dim"))
            if width >= 110:
                where = f"blocks {' '.join(map(str, seq.blocks))}" if seq.blocks else f"{request.status}, holds no block"
                line.append(f"{where[:40]:<42}", style="dim")
            room = width - len(line) - 2
            text = " ".join(self.tokenizer.decode(seq.tokens[-room:]).split())
            lines.append(line.append(text[-room:], style="" if seq.blocks else "dim"))
        return [*lines, *[Text()] * (rows - len(lines))]


def print_texts(console: Console, result: demo.DemoResult, everything: bool) -> None:
    """The texts: all of them, or a few that ended by themselves and are neither tiny nor long."""
    good = [o for o in result.outputs if o.outputs[0].finish_reason == "stop" and 15 <= len(o.outputs[0].token_ids) <= 80]
    shown = result.outputs if everything else (good or result.outputs)[:_TEXTS]
    for output in shown:
        completion = output.outputs[0]
        head = f" {len(output.prompt_token_ids)} prompt + {len(completion.token_ids)} output tokens, {completion.finish_reason}"
        console.print(Text.assemble("\n", badge(_arrival(output.request_id)), (head, "dim")), soft_wrap=True)
        console.print(Text.assemble((output.prompt or "", "bold"), completion.text.rstrip()), soft_wrap=True)
    if len(shown) < len(result.outputs):
        console.print(Text(f"\n({len(shown)} of {counted(len(result.outputs), 'text')}; --all shows every one)", style="dim"))


def print_numbers(console: Console, result: demo.DemoResult) -> None:
    """The table: blocks on demand against contiguous reservations."""
    paged, contiguous = result.paged, result.contiguous
    slots = demo.NUM_BLOCKS * demo.BLOCK_SIZE
    table = Table()
    table.add_column("")
    table.add_column(f"blocks of {demo.BLOCK_SIZE}\n(this run)", justify="right")
    table.add_column(f"reservations of {demo.MAX_MODEL_LEN}\n(without model)", justify="right")
    rows = [
        ("most requests running at once", f"{paged.peak_running}", f"{contiguous.peak_running}"),
        ("steps until the last one ended", f"{paged.steps}", f"{contiguous.steps}"),
        ("a request ended, on average, in step", f"{paged.mean_finish:.0f}", f"{contiguous.mean_finish:.0f}"),
        ("steps in which somebody waited", f"{paged.waiting_steps}", f"{contiguous.waiting_steps}"),
        ("  memory then: holds tokens", f"{paged.token_share:.0%}", f"{contiguous.token_share:.0%}"),
        ("  memory then: allocated, empty", f"{paged.empty_share:.0%}", f"{contiguous.empty_share:.0%}"),
        ("  memory then: free", f"{paged.free_share:.0%}", f"{contiguous.free_share:.0%}"),
    ]
    for row in rows:
        table.add_row(*row)
    console.print(Text(f"\nThe same {len(result.outputs)} requests in the same {slots} slots of KV memory", style="bold"))
    console.print(table)
    console.print(Text(
        f"Reservations: kv_manager='orca-max', every request holds {demo.MAX_MODEL_LEN} adjacent slots from start to end; the same scheduler, "
        f"the lengths of this run, no model. Preemptions in this run: {result.num_preemptions}; what they computed twice is part of its steps.",
        style="dim",
    ))


def print_next(console: Console) -> None:
    """How to go on, in words that work where the demo was started: the environment may not be on the PATH."""
    here = "" if shutil.which("paged-edu") else f"{Path(sys.executable).parent}{os.sep}"
    if here and Path(here).is_relative_to(Path.cwd()):
        here = f"{Path(here).relative_to(Path.cwd())}{os.sep}"
    missing = [name for name in ("jupyterlab", "ipywidgets", "anywidget", "plotly") if find_spec(name) is None]
    console.print("\nThe notebooks show how it works, block by block:", markup=False)
    for command in [[f"{here}pip", "install", "paged-edu[lab]"]] * bool(missing) + [[f"{here}paged-edu", "lab"]]:
        console.print(f"  {_shell(command)}", markup=False, soft_wrap=True)
    console.print()


def _shell(command: list[str]) -> str:
    """A command as one pastes it: quoted where a folder has a space."""
    return shlex.join(command) if os.name == "posix" else subprocess.list2cmdline(command)


def run(*, live: bool = True, speed: float = 25.0, everything: bool = False, json_file: Path | None = None) -> int:
    """The whole demo; ``speed``: at most that many steps a second, 0: as fast as they come."""
    if json_file is not None:
        writable_file("--json", json_file)
    console = Console(highlight=False)
    plain = not console.is_terminal or console.is_dumb_terminal
    console.print(Text.assemble(
        ("PagedAttention: ", "bold"), f"{len(demo.PROMPTS)} requests share {demo.NUM_BLOCKS} blocks of {demo.BLOCK_SIZE} tokens",
    ))
    with nullcontext() if plain else console.status(f"loading {demo.MODEL} ..."):
        llm = demo.load()
    with llm, View(console, llm.tokenizer, live and not plain, speed) as view:
        result = demo.serve(llm, view)
    print_texts(console, result, everything)
    print_numbers(console, result)
    if json_file is not None:
        json_file.write_text(json.dumps(result.as_json(), indent=1) + "\n", encoding="utf-8")
    print_next(console)
    return 0
