"""The block grid as SVG: every physical block of the pool, who owns it and how many of its slots hold a token (Paper Fig. 6, 7).

`pool_svg` is a pure function of a `TraceState`: the same state gives the same bytes, in a widget, in a stored notebook and in a test.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..checks import integer
from ..core.sequence import Status
from ..trace import BlockView, TraceState
from ..words import counted
from .palette import AUTO, OUTLINE, Look, Theme, look
from .shapes import MIN_TICK, clean, document, dots, hatch, rect, text, ticks

Decode = Callable[[Sequence[int]], str]
WIDTH, MAX_GRID_HEIGHT, MARGIN = 800, 500, 16
CELL_SIZES = (48, 36, 28, 20, 14, 10, 7, 5)
MIN_WIDTH = 520


@dataclass(frozen=True, slots=True)
class Grid:
    """Where the blocks stand: ``shown`` cells of ``cell`` pixels, ``columns`` in a row."""

    cell: int
    columns: int
    shown: int

    @property
    def rows(self) -> int:
        return -(-self.shown // self.columns)

    @property
    def width(self) -> int:
        return self.cell * min(self.columns, self.shown)

    @property
    def height(self) -> int:
        return self.cell * self.rows

    @property
    def gap(self) -> float:
        """Space between two blocks."""
        return 4 if self.cell >= 36 else 2 if self.cell >= 14 else 1

    def place(self, block: int) -> tuple[float, float]:
        """Top left corner of a block, from the grid's own."""
        row, column = divmod(block, self.columns)
        return column * self.cell + self.gap / 2, row * self.cell + self.gap / 2


def fit(num_blocks: int, columns: int | None = None) -> Grid:
    """The grid with the largest cells that keeps cell and picture on one screen; a pool of more than 16,000 blocks shows its first ones.

    ``columns``: blocks in a row, 1 or more; ValueError otherwise.
    """
    if columns is not None:
        integer("columns", columns, 1)
    for cell in CELL_SIZES:
        across = columns or WIDTH // cell
        if across * cell <= WIDTH and -(-num_blocks // across) * cell <= MAX_GRID_HEIGHT:
            return Grid(cell, across, num_blocks)
    across = min(columns or WIDTH, WIDTH // CELL_SIZES[-1])
    return Grid(CELL_SIZES[-1], across, min(num_blocks, across * (MAX_GRID_HEIGHT // CELL_SIZES[-1])))


def headline(state: TraceState) -> str:
    """The two numbers that a picture of memory is about."""
    blocks = state.blocks()
    used, slots = sum(bool(b.owners) for b in blocks), state.num_blocks * state.block_size
    return f"{used} of {counted(state.num_blocks, 'block')}, {100 * sum(b.fill for b in blocks) / slots:.0f} % of slots hold tokens"


def counts(state: TraceState) -> str:
    """How many requests run, wait and have finished."""
    running = len(state.with_status(Status.RUNNING))
    preempted = len(state.with_status(Status.PREEMPTED, Status.SWAPPED))
    waiting = len(state.with_status(Status.WAITING)) + preempted
    paused = f" ({preempted} preempted)" if preempted else ""
    return f"{running} running, {waiting} waiting{paused}, {state.num_finished} finished"


def pool_svg(state: TraceState, theme: Theme = AUTO, columns: int | None = None, decode: Decode | None = None) -> str:
    """The pool as an SVG document.

    ``columns`` fixes the blocks in a row; by default cells are as large as the screen allows. ``decode`` turns token ids into the text of
    the tooltips, which show ids without it.
    """
    grid = fit(state.num_blocks, columns)
    width = max(grid.width, MIN_WIDTH) + 2 * MARGIN
    top = 58
    body = [
        text(MARGIN, 26, headline(state), theme.ink, 16, weight=600),
        text(width - MARGIN, 26, f"step {state.step}", theme.ink, 16, "end", 600),
        text(MARGIN, 46, counts(state), theme.muted, 12),
    ]
    written = just_written(state)
    body.append(f'<g transform="translate({MARGIN} {top})">')
    body += [_block(state, view, grid, theme, written.get(view.block), decode) for view in state.blocks()[: grid.shown]]
    body.append("</g>")
    y = top + grid.height + 8
    if hosted := host_blocks(state):
        body += _host(state, hosted, y, grid, theme, decode)
        y += 22 + grid.cell * -(-len(hosted) // grid.columns)
    body += _legend(state, y, width, theme)
    return document(width, y + 76, f"Block pool at step {state.step}: {headline(state)}; {counts(state)}", theme, body)


def just_written(state: TraceState) -> dict[int, tuple[int, int]]:
    """Slots ``first .. stop - 1`` of each block that the current step wrote."""
    size = state.block_size
    found: dict[int, tuple[int, int]] = {}
    for seq_id, new in state.scheduled.items():
        seq = state.sequences.get(seq_id)
        if seq is None:                                     # it finished in this step, and its blocks are free again
            continue
        start, stop = max(0, seq.num_computed - new), seq.num_computed
        for index in range(start // size, min(-(-stop // size), len(seq.blocks))):
            found[seq.blocks[index]] = max(0, start - index * size), min(size, stop - index * size)
    return found


def host_blocks(state: TraceState) -> list[BlockView]:
    """The blocks in host memory, by their ids there."""
    owners: dict[int, list[int]] = {}
    where: dict[int, tuple[int, int]] = {}
    for seq_id, seq in sorted(state.sequences.items()):
        for logical, block in enumerate(seq.cpu_blocks):
            owners.setdefault(block, []).append(seq_id)
            fill = min(state.block_size, max(0, seq.num_computed - logical * state.block_size))
            first, most = where.get(block, (logical, 0))
            where[block] = first, max(most, fill)
    return [BlockView(block, tuple(owners[block]), where[block][1], where[block][0]) for block in sorted(owners)]


def _host(state: TraceState, hosted: list[BlockView], y: float, grid: Grid, theme: Theme, decode: Decode | None) -> list[str]:
    """Swapped blocks in a strip of their own, with dashed outlines."""
    body = [text(MARGIN, y + 10, f"host memory: {counted(len(hosted), 'swapped block')}", theme.muted, 12),
            f'<g transform="translate({MARGIN} {y + 16})" stroke-dasharray="3 2">']
    for i, view in enumerate(hosted):
        x, top = grid.place(i)
        body.append(_used(state, view, (x, top), grid, theme, None, f"host {describe(state, view, decode)}\nswapped out"))
    return [*body, "</g>"]


def _block(state: TraceState, view: BlockView, grid: Grid, theme: Theme, new: tuple[int, int] | None, decode: Decode | None) -> str:
    """One physical block: outline, letters, a strip of slots, its id, and what the mouse reads."""
    x, y = grid.place(view.block)
    if not view.owners:
        return _unused(state, view, x, y, grid.cell - grid.gap, theme)
    return _used(state, view, (x, y), grid, theme, new, describe(state, view, decode))


def _unused(state: TraceState, view: BlockView, x: float, y: float, side: float, theme: Theme) -> str:
    """A free block; one that is set aside for branches (dotted); one that nobody uses and the prefix cache still finds (hatched)."""
    corner, words, inside = min(5.0, side / 5), "free", ""
    arrival = state.arrival(view.reserved_by) if view.reserved_by is not None else state.entered_by.get(view.block) if view.cached else None
    if view.cached or view.reserved_by is not None:
        hue = OUTLINE if arrival is None else look(arrival).hue
        inside = rect(x + 0.5, y + 0.5, side - 1, side - 1, hue, corner, 'fill-opacity=".35"')
        marks = dots(x + 1, y + 1, side - 2, side - 2) if not view.cached else hatch(x + 1, y + 1, side - 2, side - 2, "rising", 6)
        inside += f'<path d="{marks}" stroke="{hue}" stroke-width="1.2" stroke-opacity=".5" stroke-linecap="round" fill="none"/>'
        name = "" if arrival is None else look(arrival).letter
        words = f"set aside for the branches of {name}" if not view.cached else f"cached{f', text of {name}' if name else ''}; nobody uses it now"
        if name and (chip := _chip_height(side)):
            inside += text(x + chip / 2, y + 0.79 * chip, name, theme.ink, 0.76 * chip, "middle", 700)
    frame = rect(x + 0.5, y + 0.5, side - 1, side - 1, "none" if inside else theme.ground, corner, f'stroke="{OUTLINE}" stroke-opacity=".45"')
    return f"<g><title>block {view.block}: {words}</title>{inside}{frame}{_number(view.block, x, y, side, theme)}</g>"


def _used(
    state: TraceState, view: BlockView, place: tuple[float, float], grid: Grid, theme: Theme, new: tuple[int, int] | None, tip: str,
) -> str:
    """A block that somebody's table refers to."""
    x, y = place
    side = grid.cell - grid.gap
    corner = min(5.0, side / 5)
    looks = [look(a) for a in dict.fromkeys(state.arrival(s) for s in view.owners)][:3]
    parts = [f"<title>{clean(tip)}</title>", _frame(x, y, side, corner, looks[0], len(view.owners) > 1)]
    chip = _chip_height(side)
    parts += _letters(x, y, chip, corner, looks, view.ref_count, side, theme)
    pad = 3 if side >= 32 else 2 if side >= 14 else 0
    strip_y, strip_height = y + chip + pad, side - chip - 2 * pad - (10 if side >= 32 else 0)
    pitch = (side - 2 * pad) / state.block_size
    if pitch >= MIN_TICK:                                   # the empty slots, so that one can count
        parts.append(ticks(x + pad, strip_y, pitch, strip_height, view.fill, state.block_size, theme.ink, 'fill-opacity=".13"'))
    band = strip_height / len(looks)
    for i, owner in enumerate(looks):
        parts.append(ticks(x + pad, strip_y + i * band, pitch, band, 0, view.fill, owner.hue))
    if new and side >= 14:
        left, right = x + pad + new[0] * pitch, x + pad + new[1] * pitch
        outline = f'stroke="{theme.ink}" stroke-width="1.3"'
        parts.append(rect(left - 0.9, strip_y - 0.9, right - left + 0.9, strip_height + 1.8, "none", 1, outline))
    parts.append(_number(view.block, x, y, side, theme))
    return f"<g>{''.join(parts)}</g>"


def _frame(x: float, y: float, side: float, corner: float, owner: Look, shared: bool) -> str:
    """Ground, tint and outline; two outlines when several tables refer to the block."""
    line = f'stroke="{OUTLINE}"'
    frame = rect(x + 0.5, y + 0.5, side - 1, side - 1, owner.hue, corner, f'fill-opacity=".2" {line}')
    if owner.hatch != "solid" and side >= 10:               # only beside the letter: slots and id stay readable
        lines = hatch(x + 1, y + 1, side - 2, (_chip_height(side) or side - 1) - 1, owner.hatch, 5)
        frame += f'<path d="{lines}" stroke="{owner.hue}" stroke-width="1.3" fill="none"/>'
    if shared:
        frame += rect(x + 2.5, y + 2.5, side - 5, side - 5, "none", max(0, corner - 2), line)
    return frame


def _chip_height(side: float) -> float:
    return 15 if side >= 32 else 0.5 * side if side >= 14 else 0


def _letters(x: float, y: float, chip: float, corner: float, looks: list[Look], refs: int, side: float, theme: Theme) -> list[str]:
    """The owners' letters in a row from the top left corner; ``×n`` at the top right if n tables refer to the block."""
    if not chip:
        return []
    size, parts = 0.76 * chip, []
    room = side if side < 32 or refs == 1 else side - 17
    shown = looks if side >= 32 else looks[:1]
    wide = min(max(chip, 4 + 0.68 * size * max(len(o.letter) for o in shown)), room / len(shown))
    for i, owner in enumerate(shown):
        parts.append(rect(x + i * wide, y, wide, chip, owner.hue, corner if i == 0 else 0))
        parts.append(text(x + (i + 0.5) * wide, y + 0.79 * chip, owner.letter, owner.on_hue, size, "middle", 700))
    if refs > 1 and side - len(shown) * wide >= 8:
        parts.append(text(x + side - 2, y + 0.76 * chip, f"×{refs}", theme.ink, 0.7 * chip, "end", 700))
    return parts


def _number(block: int, x: float, y: float, side: float, theme: Theme) -> str:
    return text(x + side - 4, y + side - 3.5, str(block), theme.muted, 8.5, "end") if side >= 24 else ""


def describe(state: TraceState, view: BlockView, decode: Decode | None = None) -> str:
    """What the tooltip of a used block says: owner, fill, who shares it and, in a pool that one can look over, its tokens."""
    first = state.sequences[view.owners[0]]
    owner = look(state.requests[first.request_id].arrival).letter
    lines = [f"block {view.block}: {owner} (request {first.request_id}), logical block {view.logical}",
             f"{view.fill} of {'1 slot holds a token' if state.block_size == 1 else f'{state.block_size} slots hold tokens'}"]
    if view.ref_count > 1:
        names = sorted({look(state.arrival(s)).letter for s in view.owners})
        lines.append(f"{view.ref_count} block tables refer to it: {', '.join(names)}")
    if view.logical is not None and view.fill and state.num_blocks <= 256:
        tokens = first.tokens[view.logical * state.block_size :][: min(view.fill, 16)]
        more = " ..." if view.fill > 16 else ""
        lines.append(f"text: {decode(tokens)!r}{more}" if decode else f"tokens: {' '.join(map(str, tokens))}{more}")
    return "\n".join(lines)


def _legend(state: TraceState, y: float, width: float, theme: Theme) -> list[str]:
    """Who runs, who waits, and what a mark means. Always three rows, so that stepping does not move the page."""
    rows = [("running", state.with_status(Status.RUNNING)),
            ("waiting", state.with_status(Status.WAITING, Status.PREEMPTED, Status.SWAPPED))]
    body = []
    for row, (name, ids) in enumerate(rows):
        base = y + 12 + row * 22
        body.append(text(MARGIN, base, name, theme.muted, 12))
        body += _chips(state, ids, base, width, theme) if ids else [text(MARGIN + 58, base, "nobody", theme.muted, 12)]
    size = state.block_size
    slots = f"a block has {counted(size, 'slot')}"
    note = f"{slots}; filled: holds a token; outlined: written in this step; ×n: n block tables refer to the block"
    return [*body, text(MARGIN, y + 58, note if width > 620 else f"{slots}; filled: holds a token", theme.muted, 11)]


def _chips(state: TraceState, ids: list[str], base: float, width: float, theme: Theme) -> list[str]:
    body, x = [], MARGIN + 58.0
    for position, request_id in enumerate(ids):
        request = state.requests[request_id]
        owner = look(request.arrival)
        wide = 18 + 7.5 * (len(owner.letter) - 1)
        if x + wide > width - MARGIN - 62:
            body.append(text(x + 2, base, f"+ {len(ids) - position} more", theme.muted, 12))
            break
        tip = f"{owner.letter}: request {request_id}, {request.status.value}, {counted(request.num_prompt_tokens, 'prompt token')}"
        if request.status is Status.RUNNING:
            shape = rect(x, base - 12, wide, 16, owner.hue, 4)
            ink = owner.on_hue
        else:                                               # hollow: it holds no block; the owner's outline once it has run
            line = owner.hue if request.status is not Status.WAITING else OUTLINE
            shape = rect(x + 0.75, base - 11.25, wide - 1.5, 14.5, "none", 4, f'stroke="{line}" stroke-width="1.5"')
            ink = theme.ink
        name = text(x + wide / 2, base, owner.letter, ink, 11, "middle", 700)
        body.append(f"<g><title>{clean(tip)}</title>{shape}{name}</g>")
        x += wide + 5
    return body


def plain_text(state: TraceState, columns: int | None = None) -> str:
    """The grid in letters, for a terminal and for whoever cannot see pictures: "." is a free block."""
    grid = fit(state.num_blocks, columns)
    names = [look(state.arrival(b.owners[0])).letter if b.owners else "." for b in state.blocks()[: grid.shown]]
    wide = max(map(len, names))
    rows = [" ".join(name.ljust(wide) for name in names[i : i + grid.columns]).rstrip() for i in range(0, len(names), grid.columns)]
    return "\n".join([f"step {state.step}: {headline(state)}; {counts(state)}", *rows])


__all__ = ["Decode", "Grid", "counts", "describe", "fit", "headline", "just_written", "plain_text", "pool_svg"]
