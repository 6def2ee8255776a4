"""Where the blocks of several tables stand when what they have in common is drawn once: a tree, from left to right.

The branches of a request and the texts in the prefix cache are both laid out here: a path is a list of physical blocks, a row is a path, and
a block that several paths share stands once, in the middle of their rows.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple


class Cell(NamedTuple):
    """One physical block."""

    column: int
    """Place in `Tree.columns`."""
    logical: int
    block: int
    rows: tuple[int, ...]
    """The rows of the paths that go through it: a range without holes."""

    @property
    def row(self) -> float:
        """Its height, in rows."""
        return (self.rows[0] + self.rows[-1]) / 2


class Tree(NamedTuple):
    """Paths, laid out."""

    order: list[int]
    """The paths' keys, one a row."""
    columns: list[tuple[int, int]]
    """``(logical block, blocks that are left out)``; of a column with the second above 0 only the number is drawn."""
    cells: list[Cell]
    edges: list[tuple[int, int]]
    """Places in ``cells``: from a block to the one after it that is drawn."""
    ends: list[int | None]
    """For each row, the place of its last cell; None if the path is empty."""


def lay_out(paths: Mapping[int, Sequence[int]], most_columns: int) -> Tree:
    """Paths by their keys, smallest key first wherever the tree leaves the choice. Long stretches without a fork are shortened to their ends."""
    first: dict[tuple[int, int], int] = {}                  # (logical block, block) -> smallest key of the paths through it
    for key in sorted(paths):
        for logical, block in enumerate(paths[key]):
            first.setdefault((logical, block), key)
    order = sorted(paths, key=lambda key: ([first[logical, block] for logical, block in enumerate(paths[key])], key))
    rows = {key: row for row, key in enumerate(order)}
    length = max((len(path) for path in paths.values()), default=0)
    groups: list[dict[int, list[int]]] = [{} for _ in range(length)]
    for key in order:
        for logical, block in enumerate(paths[key]):
            groups[logical].setdefault(block, []).append(rows[key])
    columns = _columns([sorted(group.values()) for group in groups], most_columns)
    cells = [
        Cell(column, logical, block, tuple(members)) for column, (logical, left_out) in enumerate(columns) if not left_out
        for block, members in groups[logical].items()
    ]
    edges, last = [], dict[int, int]()
    for place, cell in enumerate(cells):
        if cell.rows[0] in last:
            edges.append((last[cell.rows[0]], place))
        last |= dict.fromkeys(cell.rows, place)
    return Tree(order, columns, cells, edges, [last.get(row) for row in range(len(order))])


def _columns(shapes: list[list[list[int]]], most: int) -> list[tuple[int, int]]:
    """All logical blocks, or, if those are more than ``most``, of each stretch in which nothing forks or ends its first and last one.

    If that is too much still, of each stretch in which nothing forks.
    """
    if len(shapes) <= most:
        return [(logical, 0) for logical in range(len(shapes))]
    columns = _stretches(shapes, lambda before, after: before == after)
    return columns if len(columns) <= most else _stretches(shapes, _no_fork)


def _no_fork(before: list[list[int]], after: list[list[int]]) -> bool:
    """Whether no two groups of ``after`` were one in ``before``."""
    group = {row: i for i, rows in enumerate(before) for row in rows}
    return len({group[rows[0]] for rows in after}) == len(after)


def _stretches(shapes: list[list[list[int]]], same: Callable[[list[list[int]], list[list[int]]], bool]) -> list[tuple[int, int]]:
    columns: list[tuple[int, int]] = []
    start = 0
    for stop in range(1, len(shapes) + 1):
        if stop < len(shapes) and same(shapes[stop - 1], shapes[stop]):
            continue
        if stop - start <= 3:
            columns += [(logical, 0) for logical in range(start, stop)]
        else:
            columns += [(start, 0), (start + 1, stop - start - 2), (stop - 1, 0)]
        start = stop
    return columns
