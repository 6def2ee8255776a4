"""The block table of one request as SVG: logical block, physical block, filled slots, and an arrow into the pool (Paper §4.3, Fig. 6)."""
from __future__ import annotations

from ..core.block_table import block_fills
from ..trace import TraceState
from ..trace.state import SequenceState
from ..words import counted
from .palette import AUTO, OUTLINE, Look, Theme, look
from .shapes import clean, document, num, rect, text

ROW, LEFT, TOP, WIDTH = 22, 214, 74, 760
MOST_ROWS, HEAD_ROWS, MARGIN = 24, 8, 16


def rows_shown(count: int) -> list[int | None]:
    """The rows of a table that are shown: all of them, or its beginning and its end with None for what is between."""
    if count <= MOST_ROWS:
        return list(range(count))
    return [*range(HEAD_ROWS), None, *range(count - (MOST_ROWS - HEAD_ROWS - 1), count)]


def chosen(state: TraceState, wanted: str | None = None) -> str | None:
    """The request whose table is shown: ``wanted`` if it is unfinished, else the newest that has blocks, else the newest; None: there is none."""
    if wanted in state.requests:
        return wanted
    held = {seq.request_id for seq in state.sequences.values() if seq.blocks or seq.cpu_blocks}
    ids = sorted(state.requests, key=lambda name: -state.requests[name].arrival)
    return next((name for name in ids if name in held), ids[0] if ids else None)


def first_sequence(state: TraceState, request_id: str) -> SequenceState:
    """The request's oldest live sequence."""
    return state.sequences[min(seq_id for seq_id, seq in state.sequences.items() if seq.request_id == request_id)]


def translation(seq: SequenceState, size: int) -> str:
    """The division with remainder behind an address, for the last token that was written; "" if none was."""
    position = seq.num_computed - 1
    logical, offset = divmod(position, size)
    if position < 0 or logical >= len(seq.blocks):
        return ""
    block = seq.blocks[logical]
    return (
        f"position {position}: {position} = {logical} × {size} + {offset}, so logical block {logical}, offset {offset}; "
        f"it is in physical block {block}: slot {block} × {size} + {offset} = {block * size + offset}"
    )


def table_title(state: TraceState, request_id: str | None) -> str:
    """Whose table it is and how full it is."""
    if request_id is None:
        return "no request is unfinished: there is no block table"
    request, seq = state.requests[request_id], first_sequence(state, request_id)
    away = bool(seq.cpu_blocks)
    count = len(seq.cpu_blocks if away else seq.blocks)
    held = f"{counted(seq.num_computed, 'token')} in {counted(count, 'host block' if away else 'block')}"
    words = held if count else f"empty, it is {request.status}"
    return f"block table of {look(request.arrival).letter} (request {request_id}): {words}"


def table_text(state: TraceState, wanted: str | None = None) -> str:
    """The table in letters, an entry a line."""
    request_id = chosen(state, wanted)
    lines = [f"step {state.step}: {table_title(state, request_id)}"]
    if request_id is not None:
        seq = first_sequence(state, request_id)
        fills = block_fills(seq.num_computed, state.block_size, len(seq.blocks))
        lines += [f"{i:>4} -> {block:<6}{filled}/{state.block_size}" for i, (block, filled) in enumerate(zip(seq.blocks, fills, strict=True))]
        lines += [f"{i:>4} -> host {block}" for i, block in enumerate(seq.cpu_blocks)]
    return "\n".join(lines)


def pool_columns(num_blocks: int) -> int:
    """Blocks in a row of the small pool beside the table."""
    for columns in (8, 16, 24, 32, 40, 48, 64):
        if -(-num_blocks // columns) * min(30, (WIDTH - LEFT - 60) / columns) <= 420:
            return min(columns, num_blocks)
    return 64


def table_svg(state: TraceState, wanted: str | None = None, theme: Theme = AUTO) -> str:
    """The table of ``wanted`` (see `chosen`) beside a small pool, as an SVG document."""
    request_id = chosen(state, wanted)
    title = table_title(state, request_id)
    body = [text(MARGIN, 26, title, theme.ink, 15, weight=600), text(WIDTH - MARGIN, 26, f"step {state.step}", theme.ink, 15, "end", 600)]
    if request_id is None:
        return document(WIDTH, 44, f"Step {state.step}: {title}", theme, body)
    seq, owner = first_sequence(state, request_id), look(state.requests[request_id].arrival)
    away = bool(seq.cpu_blocks)
    table = seq.cpu_blocks if away else seq.blocks
    rows = rows_shown(len(table))
    note = "swapped out: the table points into host memory until there is room again" if away else translation(seq, state.block_size)
    body.append(text(MARGIN, 46, note, theme.muted, 11.5))
    for x, words in ((MARGIN + 3, "logical"), (MARGIN + 61, "host" if away else "physical"), (MARGIN + 123, "filled")):
        body.append(text(x, TOP - 7, words, theme.muted, 11))
    columns = pool_columns(state.num_blocks)
    cell = max(5, min(30, (WIDTH - LEFT - 72) // columns))
    for line, index in enumerate(rows):
        y = TOP + line * ROW
        if index is None:
            body.append(text(MARGIN + 4, y + 15, f"... {len(table) - (MOST_ROWS - 1)} more ...", theme.muted, 11))
        else:
            filled = min(state.block_size, max(0, seq.num_computed - index * state.block_size))
            body += _row(index, table[index], filled, state.block_size, y, owner, theme, away)
    height = TOP + max(len(rows) * ROW, 0 if away else -(-state.num_blocks // columns) * cell, ROW) + 12
    if not away:
        body.append(text(MARGIN + LEFT + 40, TOP - 7, f"the pool, {counted(state.num_blocks, 'block')}", theme.muted, 11))
        body += _pool(state, seq, columns, cell, theme)
        if len(table) <= MOST_ROWS:
            body += [_arrow(TOP + i * ROW + ROW / 2, block, columns, cell, f'stroke="{owner.hue}" stroke-opacity=".3" stroke-width="1.5"')
                     for i, block in enumerate(table[:-1])]
        for stroke in (f'stroke="{theme.ink}" stroke-opacity=".55" stroke-width="4.5"', f'stroke="{owner.hue}" stroke-width="2.5"'):
            body += [_arrow(TOP + (len(rows) - 0.5) * ROW, block, columns, cell, stroke) for block in table[-1:]]      # the block that was taken last
    entries = ", ".join(f"{i} to {block}" for i, block in enumerate(table))
    return document(WIDTH, height, f"Step {state.step}: {title}. {entries}", theme, body)


def _row(index: int, block: int, filled: int, size: int, y: float, owner: Look, theme: Theme, away: bool) -> list[str]:
    dashes = ' stroke-dasharray="3 2"' if away else ""
    return [
        rect(MARGIN, y + 1, LEFT - 4, ROW - 2, owner.hue, 4, f'fill-opacity=".12" stroke="{OUTLINE}" stroke-opacity=".5"{dashes}'),
        text(MARGIN + 9, y + 15, str(index), theme.ink, 12), text(MARGIN + 67, y + 15, str(block), theme.ink, 12, weight=700),
        rect(MARGIN + 123, y + 6, 52, ROW - 12, theme.ink, extra='fill-opacity=".13"'),
        rect(MARGIN + 123, y + 6, 52 * filled / size, ROW - 12, owner.hue),
        text(MARGIN + LEFT - 9, y + 15, f"{filled}/{size}", theme.ink, 10, "end"),
    ]


def _pool(state: TraceState, seq: SequenceState, columns: int, cell: float, theme: Theme) -> list[str]:
    mine, body = set(seq.blocks), []
    for view in state.blocks():
        x, y = MARGIN + LEFT + 40 + view.block % columns * cell, TOP + view.block // columns * cell
        owner = look(state.arrival(view.owners[0])) if view.owners else None
        own = view.block in mine
        line = f'stroke="{theme.ink if own else OUTLINE}" stroke-opacity="{1 if own else .5}" fill-opacity="{.85 if own else .25}"'
        name = owner.letter if owner else "free"
        box = rect(x + 1, y + 1, cell - 2, cell - 2, owner.hue if owner else "none", min(4, cell / 5), line)
        words = str(view.block) if own else owner.letter if owner else ""
        ink = owner.on_hue if own and owner else theme.muted
        if words and cell >= 18:
            box += text(x + cell / 2, y + cell / 2 + 3.5, words, ink, 10 if cell >= 26 else 8, "middle")
        body.append(f"<g><title>{clean(f'block {view.block}: {name}')}</title>{box}</g>")
    return body


def _arrow(y: float, block: int, columns: int, cell: float, line: str) -> str:
    """An orthogonal line with at most one bend, from a row to a block."""
    left, top = MARGIN + LEFT + 40 + block % columns * cell, TOP + block // columns * cell
    x, start = left + cell / 2, MARGIN + LEFT - 2
    if top <= y <= top + cell:
        path = f"M{num(start)} {num(y)}H{num(left)}M{num(left - 5)} {num(y - 3.5)}L{num(left)} {num(y)}L{num(left - 5)} {num(y + 3.5)}"
    else:
        edge, back = (top, top - 5) if y < top else (top + cell, top + cell + 5)
        path = f"M{num(start)} {num(y)}H{num(x)}V{num(edge)}M{num(x - 3.5)} {num(back)}L{num(x)} {num(edge)}L{num(x + 3.5)} {num(back)}"
    return f'<path d="{path}" fill="none" {line}/>'
