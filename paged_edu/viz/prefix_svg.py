"""The prefix cache as a tree of blocks, as SVG and as letters: who uses which beginning of a text, and what is overwritten first (Paper §4.4)."""
from __future__ import annotations

from collections.abc import Sequence

from ..trace import EventLog, Lane, TraceState, history
from ..words import counted
from .layout import Cell, Tree, lay_out
from .palette import AUTO, OUTLINE, Theme, look
from .shapes import clean, document, hatch, num, rect, text
from .track import Decode

WIDTH, MARGIN, PITCH, WIDE, HIGH, LABELS, ROW = 832, 16, 66, 48, 32, 210, 40
MOST_ROWS, MOST_STRIP = 10, 22


def sections(state: TraceState) -> list[tuple[str | None, dict[int, list[int]]]]:
    """For each salt the texts that can be found: entry of the last block -> all its blocks. Beginnings of other texts are not listed apart."""
    blocks = {entry.entry: block for block, entry in state.entries.items()}
    inner = {entry.parent for entry in state.entries.values()}
    found: dict[str | None, dict[int, list[int]]] = {}
    for block, entry in state.entries.items():
        if entry.entry in inner:
            continue
        path, at = [block], entry
        while at.parent in blocks:
            path.append(blocks[at.parent])
            at = state.entries[path[-1]]
        if at.parent == 0:
            found.setdefault(entry.salt, {})[entry.entry] = path[::-1]
    return sorted(((salt, dict(sorted(paths.items()))) for salt, paths in found.items()), key=lambda pair: (pair[0] is not None, pair[0] or ""))


def lost(state: TraceState) -> list[int]:
    """Blocks that are cached and cannot be found: the beginning of their text is gone."""
    reached = {block for _, paths in sections(state) for path in paths.values() for block in path}
    return [block for block in state.entries if block not in reached]


def users(state: TraceState) -> dict[int, list[int]]:
    """Block -> arrival numbers of the requests whose tables refer to it."""
    found: dict[int, list[int]] = {}
    for seq_id, seq in sorted(state.sequences.items()):
        for block in seq.blocks:
            if (arrival := state.arrival(seq_id)) not in found.setdefault(block, []):
                found[block].append(arrival)
    return found


def headline(state: TraceState) -> str:
    """How much is cached, and how much of that somebody uses."""
    if not state.entries:
        return "the prefix cache is empty: it keeps blocks that are full and computed"
    idle = len(state.cached_blocks())
    return f"{counted(len(state.entries), 'block')} can be found: {len(state.entries) - idle} in use, {idle} cached for later"


def hits(lanes: Sequence[Lane], state: TraceState) -> str:
    """What the latest admissions found."""
    latest = max((when for lane in lanes for when, _, _ in lane.cached if when <= state.step), default=None)
    if latest is None:
        return "nobody has been admitted yet"
    parts = [
        f"{look(lane.arrival).letter} found {cached or 'none'} of its {counted(total, 'token')}"
        + (f" in the cache ({counted(-(-cached // state.block_size), 'block')})" if cached else "")
        for lane in lanes for when, total, cached in lane.cached if when == latest
    ]
    return f"step {latest}: {'; '.join(parts[:4])}" + (f" and {len(parts) - 4} more" if len(parts) > 4 else "")


def waits(state: TraceState) -> str:
    """What a new block would be taken from."""
    used = len({block for seq in state.sequences.values() for block in seq.blocks})
    cached = state.cached_blocks()
    free = state.num_blocks - used - len(cached)
    return f"next to be taken: {counted(free, 'free block')}" + (", then the one not used for the longest time" if cached else "")


def notes(state: TraceState) -> list[str]:
    """What was overwritten, and what cannot be found any more."""
    found = []
    if state.evicted:
        found.append(f"overwritten in this step: block {', '.join(map(str, state.evicted[:12]))}" + (" ..." if len(state.evicted) > 12 else ""))
    if gone := lost(state):
        found.append(f"kept but out of reach, the beginning of the text is gone: block {', '.join(map(str, gone[:12]))}")
    return found


def kept(paths: dict[int, list[int]], state: TraceState) -> dict[int, list[int]]:
    """The texts that are drawn: those in use, then the newest ones."""
    used = users(state)
    order = sorted(paths, key=lambda leaf: (paths[leaf][-1] not in used, -leaf))
    return {leaf: paths[leaf] for leaf in sorted(order[:MOST_ROWS])}


def prefix_svg(log: EventLog, state: TraceState, decode: Decode | None = None, theme: Theme = AUTO) -> str:
    """The tree at a state, a part a salt, and the cached blocks in the order in which they go."""
    lanes = history(log)
    body = [text(MARGIN, 26, headline(state), theme.ink, 16, weight=600), text(WIDTH - MARGIN, 26, f"step {state.step}", theme.ink, 14, "end", 600),
            text(MARGIN, 46, hits(lanes, state), theme.ink, 12.5)]
    y = 66.0
    parts = sections(state)
    used = users(state)
    for salt, paths in parts:
        if len(parts) > 1 or salt is not None:
            words = "no salt" if salt is None else f"salt {salt!r}: found by requests with the same salt only"
            body.append(text(MARGIN, y + 10, words, theme.muted, 12))
            y += 18
        shown = kept(paths, state)
        tree = lay_out(shown, (WIDTH - 2 * MARGIN - LABELS) // PITCH)
        body += _tree(state, tree, shown, used, y, decode, theme)
        y += len(tree.order) * ROW
        if len(paths) > len(shown):
            body.append(text(MARGIN, y + 10, f"and {len(paths) - len(shown)} more texts", theme.muted, 12))
            y += 18
        y += 6
    body += _strip(state, y, theme)
    y += 64
    size = counted(state.block_size, "slot")
    lines = [*notes(state), f"a block has {size}; letters: who uses it now; hatched: nobody does, the letter says whose text it is"]
    for note in lines:
        body.append(text(MARGIN, y, note, theme.muted, 11.5))
        y += 17
    return document(WIDTH, y, f"Prefix cache at step {state.step}: {headline(state)}; {hits(lanes, state)}", theme, body)


def _tree(
    state: TraceState, tree: Tree, paths: dict[int, list[int]], used: dict[int, list[int]], top: float, decode: Decode | None, theme: Theme,
) -> list[str]:
    def place(cell: Cell) -> tuple[float, float]:
        return MARGIN + cell.column * PITCH, top + (cell.row + 0.5) * ROW

    path, body = "", []
    for a, b in tree.edges:
        (x, y), (u, v) = place(tree.cells[a]), place(tree.cells[b])
        path += f"M{num(x + WIDE)} {num(y)}H{num(u - 9)}V{num(v)}H{num(u)}"
        if tree.cells[b].column - tree.cells[a].column > 1:
            column = tree.cells[a].column + 1
            words = f"+ {tree.columns[column][1]} blocks"
            body.append(text(MARGIN + column * PITCH + WIDE / 2, v - 5, words, theme.muted, 11, "middle"))
    body.insert(0, f'<path d="{path}" stroke="{OUTLINE}" stroke-width="1.3" fill="none"/>')
    for cell in tree.cells:
        body.append(block_mark(state, cell.block, used.get(cell.block, []), *place(cell), told(state, cell.block, used, decode), theme))
    for row, leaf in enumerate(tree.order):
        end = tree.ends[row]
        x, y = place(tree.cells[end if end is not None else 0])
        count = len(paths[leaf])
        words = f"{counted(count, 'block')}, {counted(count * state.block_size, 'token')}"
        body.append(text(x + WIDE + 12, y + 4, words, theme.ink, 12))
    return body


def block_mark(state: TraceState, block: int, arrivals: list[int], x: float, middle: float, tip: str, theme: Theme) -> str:
    """A cached block: letters of its users, or hatched with the letter of whose text it is; its id."""
    y = middle - HIGH / 2
    by = state.entered_by.get(block)
    owners = [look(a) for a in arrivals[:3]]
    hue = owners[0].hue if owners else look(by).hue if by is not None else OUTLINE
    shade = 'fill-opacity=".3"' if owners else 'fill-opacity=".12"'
    parts = rect(x, y, WIDE, HIGH, theme.ground, 5) + rect(x, y, WIDE, HIGH, hue, 5, f'{shade} stroke="{OUTLINE}"')
    if len(owners) > 1:
        parts += rect(x + 2.5, y + 2.5, WIDE - 5, HIGH - 5, "none", 3, f'stroke="{OUTLINE}"')
    if owners:
        for i, owner in enumerate(owners):
            wide = 13 + 6 * (len(owner.letter) - 1)
            left = x + 3 + i * 14
            parts += rect(left, y + 3, wide, 13, owner.hue, 3) + text(left + wide / 2, y + 13, owner.letter, owner.on_hue, 10, "middle", 700)
    else:
        parts += f'<path d="{hatch(x + 1, y + 1, WIDE - 2, HIGH - 2, "rising", 6)}" stroke="{hue}" stroke-width="1" stroke-opacity=".6"/>'
        if by is not None:
            parts += rect(x + 3, y + 3, 13 + 6 * (len(look(by).letter) - 1), 13, theme.ground, 3)
            parts += text(x + 9.5 + 3 * (len(look(by).letter) - 1), y + 13, look(by).letter, theme.ink, 10, "middle", 700)
    count = f"×{len(arrivals)}" if len(arrivals) > 3 else ""
    parts += text(x + 4, y + HIGH - 4, count, theme.ink, 9.5, weight=700) if count else ""
    label = str(block)
    parts += rect(x + WIDE - 6 * len(label) - 5, y + HIGH - 13, 6 * len(label) + 3, 11, theme.ground, 2, 'fill-opacity=".75"')
    parts += text(x + WIDE - 4, y + HIGH - 4, label, theme.ink, 9.5, "end")
    return f"<g><title>{clean(tip)}</title>{parts}</g>"


def told(state: TraceState, block: int, used: dict[int, list[int]], decode: Decode | None = None) -> str:
    """What the tooltip of a block says."""
    entry, arrivals = state.entries[block], used.get(block, [])
    by = state.entered_by.get(block)
    lines = [f"block {block}" + (f", computed by {look(by).letter}" if by is not None else "")]
    names = ", ".join(look(a).letter for a in arrivals)
    lines.append(f"in use by {names}" if names else "nobody uses it: it can be found until it is overwritten")
    more = " ..." if len(entry.tokens) > 16 else ""
    lines.append(f"text: {decode(entry.tokens[:16])!r}{more}" if decode else f"tokens: {' '.join(map(str, entry.tokens[:16]))}{more}")
    return "\n".join(lines)


def _strip(state: TraceState, y: float, theme: Theme) -> list[str]:
    """The cached blocks, the one that goes first at the left."""
    cached = state.cached_blocks()
    body = [text(MARGIN, y + 12, waits(state), theme.muted, 12)]
    for i, block in enumerate(cached[:MOST_STRIP]):
        x, by = MARGIN + i * 34, state.entered_by.get(block)
        hue, name = (look(by).hue, look(by).letter) if by is not None else (OUTLINE, "")
        frame = rect(x, y + 20, 30, 24, hue, 4, f'fill-opacity=".18" stroke="{OUTLINE}"')
        label = text(x + 4, y + 31, name, theme.ink, 9.5, weight=700) + text(x + 27, y + 41, str(block), theme.ink, 9.5, "end")
        body.append(f"<g><title>block {block}, number {i + 1} to be overwritten</title>{frame}{label}</g>")
    if not cached:
        body.append(text(MARGIN, y + 36, "no cached block is waiting to be overwritten", theme.muted, 11))
    if len(cached) > MOST_STRIP:
        body.append(text(MARGIN + MOST_STRIP * 34 + 2, y + 36, f"+ {len(cached) - MOST_STRIP}", theme.muted, 11))
    return body


def prefix_text(log: EventLog, state: TraceState) -> str:
    """A text a line, with its blocks and who uses the last one."""
    used = users(state)
    lines = [f"step {state.step}: {headline(state)}", hits(history(log), state)]
    for salt, paths in sections(state):
        for path in kept(paths, state).values():
            names = ", ".join(look(a).letter for a in used.get(path[-1], [])) or "nobody"
            lines.append(f"[{' '.join(map(str, path))}] {counted(len(path) * state.block_size, 'token')}, used by {names}"
                         + (f", salt {salt!r}" if salt is not None else ""))
    cached = state.cached_blocks()
    lines.append(waits(state) + (f": {' '.join(map(str, cached[:MOST_STRIP]))}" if cached else ""))
    return "\n".join([*lines, *notes(state)])
