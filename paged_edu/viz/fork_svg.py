"""The branches of one request over the blocks that they share, as SVG and as letters (Paper §4.4, Fig. 8, 9)."""
from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..core import events as ev
from ..trace import Branch, EventLog, Lane, SequenceState, TraceState, history
from ..words import counted, percent
from .layout import Cell, Tree, lay_out
from .palette import AUTO, OUTLINE, Look, Theme, look
from .shapes import clean, document, num, rect, text, ticks

WIDTH, MARGIN, PITCH, WIDE, LABELS, TOP = 832, 16, 68, 46, 210, 96
MOST_ROWS = 16


class Family(NamedTuple):
    """One request's branches at a step."""

    lane: Lane
    live: dict[int, SequenceState]
    numbers: dict[int, int]
    """Sequence -> number of the branch, in the order in which they came, from 0 as in `CompletionOutput.index`."""
    refs: dict[int, int]
    """Block -> how many tables, of whoever, refer to it."""
    copies: list[tuple[int, int]]
    """``(source, copy)`` of the blocks that were copied in this step."""

    def paths(self) -> dict[int, list[int]]:
        """The live branches' tables; those of a swapped request are of host blocks."""
        return {seq_id: seq.blocks or seq.cpu_blocks for seq_id, seq in self.live.items()}

    @property
    def saved(self) -> tuple[int, int]:
        """``(blocks that the branches use, blocks without sharing)``."""
        tables = self.paths().values()
        return len({block for table in tables for block in table}), sum(map(len, tables))

    def ended(self, step: int) -> list[Branch]:
        """The branches that have ended by ``step`` and count as answers."""
        return [b for b in self.lane.branches if b.ended is not None and b.ended <= step and b.reason not in ("pruned", "")]


def family(log: EventLog, state: TraceState, wanted: str | None = None, lanes: list[Lane] | None = None) -> Family | None:
    """The branches of ``wanted``, or of the newest request that has several, or that has blocks, or that had several; None: there is no request.

    ``lanes``: the history of the log, for whoever asks at many steps.
    """
    there = [lane for lane in (history(log) if lanes is None else lanes) if lane.arrived <= state.step]
    live: dict[str, dict[int, SequenceState]] = {request_id: {} for request_id in state.requests}
    for seq_id, seq in sorted(state.sequences.items()):
        live[seq.request_id][seq_id] = seq

    def now(lane: Lane) -> dict[int, SequenceState]:
        mine = lane.request_id in live and state.requests[lane.request_id].arrival == lane.arrival
        return live[lane.request_id] if mine else {}

    rules: tuple[Callable[[Lane], bool], ...] = (
        lambda lane: lane.request_id == wanted, lambda lane: len(now(lane)) > 1,
        lambda lane: any(seq.blocks or seq.cpu_blocks for seq in now(lane).values()),
        lambda lane: sum(b.born <= state.step for b in lane.branches) > 1, lambda lane: True,
    )
    lane = next((lane for rule in rules for lane in reversed(there) if rule(lane)), None)
    if lane is None:
        return None
    refs = dict(enumerate(state.ref_counts()))
    own = now(lane).keys()
    copies = [(event.src, event.dst) for event in (log.events(state.step) if state.step > log.first_step else ())
              if isinstance(event, ev.BlockCopied) and event.seq_id in own]
    return Family(lane, now(lane), {b.seq_id: i for i, b in enumerate(lane.branches)}, refs, copies)


def headline(found: Family | None) -> str:
    """How many branches, how many blocks, what sharing saves."""
    if found is None:
        return "no request has arrived yet"
    name = look(found.lane.arrival).letter
    used, entries = found.saved
    if not found.live:
        return f"{name}: all branches have ended" if len(found.lane.branches) > 1 else f"{name} has ended"
    words = f"{name}: {counted(len(found.live), 'branch', 'branches')}, {counted(used, 'block')}"
    return words + (f" instead of {entries} without sharing ({percent(entries - used, entries)} saved)" if entries > used else "")


def happened(found: Family, step: int) -> str:
    """What changed in this step: forks, copies, beams that ended or were pruned."""
    parts = []
    born = [b for b in found.lane.branches if b.born == step and b.parent is not None]
    if born:
        pairs = ", ".join(f"{found.numbers[b.seq_id]} from {found.numbers[b.parent]}" for b in born[:8] if b.parent in found.numbers)
        parts.append(f"new branches: {pairs}" + (" ..." if len(born) > 8 else ""))
    if found.copies:
        pairs = ", ".join(f"{src} to {dst}" for src, dst in found.copies[:8])
        parts.append(f"copied before a write: block {pairs}" + (" ..." if len(found.copies) > 8 else ""))
    pruned = [found.numbers[b.seq_id] for b in found.lane.branches if b.ended == step and b.reason == "pruned"]
    if pruned:
        parts.append(f"nobody went on from {', '.join(map(str, pruned))}")
    return "; ".join(parts) or "no fork and no copy in this step"


def ended_words(found: Family, step: int) -> str:
    """The answers so far."""
    ended = found.ended(step)
    if not ended:
        return ""
    words = ", ".join(f"{found.numbers[b.seq_id]} ({b.reason}, {counted(len(b.output), 'token')})" for b in ended[:8])
    return f"ended: branch {words}" + (f" and {len(ended) - 8} more" if len(ended) > 8 else "")


def fork_svg(log: EventLog, state: TraceState, wanted: str | None = None, theme: Theme = AUTO) -> str:
    """The tree at a state."""
    found = family(log, state, wanted)
    body = [text(MARGIN, 26, headline(found), theme.ink, 16, weight=600), text(WIDTH - MARGIN, 26, f"step {state.step}", theme.ink, 14, "end", 600)]
    label = f"Branches at step {state.step}: {headline(found)}"
    if found is None:
        return document(WIDTH, 50, label, theme, body)
    body.append(text(MARGIN, 46, happened(found, state.step), theme.muted, 12))
    paths = dict(sorted(found.paths().items())[:MOST_ROWS])
    tree = lay_out(paths, (WIDTH - 2 * MARGIN - LABELS) // PITCH)
    row = max(20.0, min(42.0, 420 / max(1, len(tree.order))))
    owner = look(found.lane.arrival)
    if tree.columns:
        body += _prompt(found, tree, state.block_size, theme)
        body += _edges(tree, row, theme)
        body += [_cell(found, state, tree, cell, row, owner, theme) for cell in tree.cells]
        body += _copies(found, tree, row, theme)
    body += _labels(found, tree, row, state, owner, theme)
    y = TOP + max(1, len(tree.order)) * row + 18
    notes = [ended_words(found, state.step), f"the first {MOST_ROWS} of {len(found.live)} branches" if len(found.live) > MOST_ROWS else "",
             f"a block has {counted(state.block_size, 'slot')}; ×n and a double outline: n block tables refer to it; "
             "who writes to such a block copies it first"]
    for note in filter(None, notes):
        body.append(text(MARGIN, y, note, theme.muted, 11.5))
        y += 17
    return document(WIDTH, y, f"{label}; {happened(found, state.step)}", theme, body)


def _place(cell: Cell, row: float) -> tuple[float, float]:
    return MARGIN + cell.column * PITCH, TOP + 12 + cell.row * row


def _prompt(found: Family, tree: Tree, size: int, theme: Theme) -> list[str]:
    """A bracket over the columns that the prompt fills."""
    blocks, rest = divmod(found.lane.num_prompt_tokens, size)
    end = 0.0
    for i, (logical, left_out) in enumerate(tree.columns):
        if logical < blocks:
            end = i * PITCH + WIDE
        elif logical == blocks and rest and not left_out:
            end = i * PITCH + WIDE * rest / size
    if end <= 0:
        return []
    y = TOP - 26
    words = f"prompt, {counted(found.lane.num_prompt_tokens, 'token')}"
    return [f'<path d="M{MARGIN} {y + 6}v-6H{num(MARGIN + end)}v6" stroke="{OUTLINE}" fill="none"/>', text(MARGIN, y - 5, words, theme.muted, 11)]


def _edges(tree: Tree, row: float, theme: Theme) -> list[str]:
    """From each block to those after it, with the number of blocks that a stretch leaves out."""
    path = ""
    for a, b in tree.edges:
        (x, y), (u, v) = _place(tree.cells[a], row), _place(tree.cells[b], row)
        path += f"M{num(x + WIDE)} {num(y)}H{num(u - 11)}V{num(v)}H{num(u)}"
    left_out = [
        text(MARGIN + (tree.cells[a].column + 1) * PITCH + WIDE / 2, _place(tree.cells[b], row)[1] - 5,
             f"+ {tree.columns[tree.cells[a].column + 1][1]} blocks", theme.muted, 11, "middle")
        for a, b in tree.edges if tree.cells[b].column - tree.cells[a].column > 1
    ]
    return [f'<path d="{path}" stroke="{OUTLINE}" stroke-width="1.3" fill="none"/>', *left_out]


def _cell(found: Family, state: TraceState, tree: Tree, cell: Cell, row: float, owner: Look, theme: Theme) -> str:
    """One block: filled slots, its id, and ×n if several tables refer to it."""
    x, middle = _place(cell, row)
    high = min(34.0, row - 4)
    y = middle - high / 2
    seqs = [found.live[tree.order[r]] for r in cell.rows]
    fill = max(min(state.block_size, max(0, seq.num_computed - cell.logical * state.block_size)) for seq in seqs)
    away = not seqs[0].blocks
    refs = len(cell.rows) if away else found.refs[cell.block]
    strip, top = high - 16 if high >= 26 else high - 6, y + (13 if high >= 26 else 3)
    dash = 'stroke-dasharray="3 2"' if away else ""
    parts = rect(x, y, WIDE, high, theme.ground, 5) + rect(x, y, WIDE, high, owner.hue, 5, f'fill-opacity=".18" stroke="{OUTLINE}" {dash}'.strip())
    if refs > 1:
        parts += rect(x + 2.5, y + 2.5, WIDE - 5, high - 5, "none", 3, f'stroke="{OUTLINE}"')
    pitch = (WIDE - 8) / state.block_size
    parts += ticks(x + 4, top, pitch, strip, fill, state.block_size, theme.ink, 'fill-opacity=".13"')
    parts += ticks(x + 4, top, pitch, strip, 0, fill, owner.hue)
    if high >= 26:
        parts += text(x + 5, y + 11, str(cell.block), theme.ink, 9.5)
        parts += text(x + WIDE - 5, y + 11, f"×{refs}", theme.ink, 10, "end", 700) if refs > 1 else ""
    return f"<g><title>{clean(told(found, state, tree, cell))}</title>{parts}</g>"


def told(found: Family, state: TraceState, tree: Tree, cell: Cell) -> str:
    """What the tooltip of a block says."""
    seqs = [found.live[tree.order[r]] for r in cell.rows]
    fill = max(min(state.block_size, max(0, seq.num_computed - cell.logical * state.block_size)) for seq in seqs)
    names = ", ".join(str(found.numbers[tree.order[r]]) for r in cell.rows)
    where = "block" if seqs[0].blocks else "host block"
    lines = [f"{where} {cell.block}, logical block {cell.logical}: {fill} of {state.block_size} slots hold tokens"]
    lines.append(f"of branch {names}")
    if seqs[0].blocks and found.refs[cell.block] > len(cell.rows):
        lines.append(f"{found.refs[cell.block]} block tables refer to it, those of other requests too")
    return "\n".join(lines)


def _copies(found: Family, tree: Tree, row: float, theme: Theme) -> list[str]:
    """Source and copy in a thick outline, an arrow and the word."""
    at = {cell.block: cell for cell in tree.cells}
    parts = []
    for src, dst in found.copies:
        if dst not in at:
            continue
        high = min(34.0, row - 4)
        x, y = _place(at[dst], row)
        for block in (src, dst):
            if block in at:
                u, v = _place(at[block], row)
                parts.append(rect(u, v - high / 2, WIDE, high, "none", 5, f'stroke="{theme.ink}" stroke-width="3"'))
        if src in at:
            u, v = _place(at[src], row)
            bend = u - 9
            path = f"M{num(u)} {num(v)}H{num(bend)}V{num(y)}H{num(x - 1)}m-4 -3.5l4 3.5l-4 3.5"
            parts.append(f'<path d="{path}" stroke="{theme.ink}" stroke-width="2" fill="none"/>')
        parts.append(rect(x + WIDE - 20, y + high / 2 - 8, 34, 15, theme.ground, 7, f'stroke="{theme.ink}"'))
        parts.append(text(x + WIDE - 3, y + high / 2 + 3, "copy", theme.ink, 10, "middle", 600))
    return parts


def _labels(found: Family, tree: Tree, row: float, state: TraceState, owner: Look, theme: Theme) -> list[str]:
    """The branches at the right, each joined to its last block."""
    x = MARGIN + len(tree.columns) * PITCH + 14
    born = {b.seq_id: b for b in found.lane.branches if b.born == state.step and b.parent is not None}
    parts = []
    for r, seq_id in enumerate(tree.order):
        y = TOP + 12 + r * row
        if (end := tree.ends[r]) is not None:
            u, v = _place(tree.cells[end], row)
            bend = max(u + WIDE, x - PITCH + WIDE - 14 + 8)
            parts.append(f'<path d="M{num(u + WIDE)} {num(v)}H{num(bend)}V{num(y)}H{num(x - 4)}" stroke="{OUTLINE}" stroke-width="1.3" fill="none"/>')
        number = str(found.numbers[seq_id])
        wide = 16 + 7 * (len(number) - 1)
        parts.append(rect(x, y - 8, wide, 16, owner.hue, 4))
        parts.append(text(x + wide / 2, y + 4, number, owner.on_hue, 11, "middle", 700))
        seq = found.live[seq_id]
        words = f"{found.lane.num_prompt_tokens} + {counted(len(seq.tokens) - found.lane.num_prompt_tokens, 'token')}"
        if seq_id in born and born[seq_id].parent in found.numbers:
            words += f", from {found.numbers[born[seq_id].parent or 0]}"
        parts.append(text(x + wide + 8, y + 4, words, theme.ink, 12))
    return parts


def fork_text(log: EventLog, state: TraceState, wanted: str | None = None) -> str:
    """A branch a line, with its table; ×n behind a block that n tables refer to."""
    found = family(log, state, wanted)
    lines = [f"step {state.step}: {headline(found)}"]
    if found is None:
        return lines[0]
    lines.append(happened(found, state.step))
    for seq_id, table in sorted(found.paths().items())[:MOST_ROWS]:
        blocks = " ".join(f"{b}" + (f"×{found.refs[b]}" if found.live[seq_id].blocks and found.refs[b] > 1 else "") for b in table) or "no blocks"
        lines.append(f"branch {found.numbers[seq_id]}: [{blocks}] {counted(len(found.live[seq_id].tokens), 'token')}")
    return "\n".join(filter(None, [*lines, ended_words(found, state.step)]))
