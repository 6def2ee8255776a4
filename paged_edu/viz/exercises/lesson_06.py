"""Exercises of lesson 06: copy on write, and a step of beam search. Judged by `BlockTable.fork`, `copy_on_write` and `release` over a `BlockPool`."""
from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from ...core.block_pool import BlockPool
from ...core.block_table import BlockTable
from .exercise import Case, Exercise, Function, Misconception
from .readers import Reader, integer, list_of, optional, tuple_of

Tables = list[list[int]]


def _state(tables: Sequence[BlockTable], pool: BlockPool) -> tuple[Tables, list[int], list[int]]:
    return [list(table.blocks) for table in tables], list(pool.ref_counts), pool.free_blocks()


def branches(n: int, prompt_len: int, block_size: int) -> tuple[BlockPool, list[BlockTable]]:
    """A prompt that has fanned out into ``n`` branches, and a pool with room for all their writes."""
    blocks = -(-prompt_len // block_size)
    pool = BlockPool(blocks + n + 1)
    first = BlockTable(pool, block_size)
    first.grow(prompt_len)
    return pool, [first, *(first.fork() for _ in range(n - 1))]


def _write_case(n: int, prompt_len: int, block_size: int, writers: Sequence[int]) -> Case:
    """Let the branches write to the last block of their prompt, in turn."""
    pool, tables = branches(n, prompt_len, block_size)
    before, index = _state(tables, pool), len(tables[0]) - 1
    copies = [tables[i].copy_on_write(index) for i in writers]
    return Case((*before, index, list(writers)), ([tuple(copy) if copy else None for copy in copies], *_state(tables, pool)))


def _write_fixed() -> Sequence[Case]:
    return [_write_case(*args) for args in ((1, 3, 4, [0]), (2, 3, 4, [0]), (2, 3, 4, [0, 1]), (4, 23, 16, [0, 1, 2, 3]), (3, 6, 4, [2, 0, 2]))]


def _draw_write(random: Random) -> Case:
    n = random.randint(1, 5)
    writers = random.sample(range(n), random.randint(1, n))
    return _write_case(n, random.choice((1, 2, 3, 5, 7, 9)), 4, [*writers, *random.sample(writers, random.randint(0, len(writers)))])


def _write_drive(function: Function, args: tuple[Any, ...], read: Reader) -> Any:
    tables, counts, free, index, writers = args
    copies = [read(function(tables, seq, index, counts, free)) for seq in writers]
    return copies, _TABLES(tables), _IDS(counts), _IDS(free)


def _tell_write(case: Case) -> str:
    tables, counts, free, index, writers = case.args
    order = ' '.join(map(str, writers))
    return f"tables={tables}, counts={counts}, free={free}; branches {order} write to their logical block {index}, in this order"


def _say_write(value: Any) -> str:
    copies, tables, counts, free = value
    return f"copies {[copy for copy in copies if copy]}, tables {tables}, counts {counts}, free {free}"


_IDS = list_of(integer, "a list of numbers")
_TABLES = list_of(_IDS, "a list of tables")


def _write(copy_always: bool = False, lower: bool = True, take: bool = True, give_back: bool = False, whole: bool = False) -> Any:
    """`write` with a wrong idea in it."""

    def wrong(tables: Tables, seq: int, index: int, counts: list[int], free: list[int]) -> tuple[int, int] | None:
        made = None
        for i in range(len(tables[seq])) if whole else (index,):
            old = tables[seq][i]
            if counts[old] == 1 and not copy_always:
                continue
            new = free.pop(0) if take else free[0]
            counts[new] = 1
            if lower:
                counts[old] -= 1
            if give_back and counts[old] == 0:
                free.append(old)
            tables[seq][i] = new
            made = old, new
        return made

    return wrong


def _write_in_place(tables: Tables, seq: int, index: int, counts: list[int], free: list[int]) -> None:
    return None


def _beam_case(owned: Sequence[int], shared: int, parents: Sequence[int], held: int = 0) -> Case:
    """Beams whose first ``shared`` blocks are common and who own ``owned[i]`` further ones each; ``held`` blocks belong to somebody else."""
    total = shared + sum(owned) + held
    pool = BlockPool(total + 2)
    pool.allocate(held)
    first = BlockTable(pool, 1)
    first.grow(shared)
    beams = [first.fork() for _ in owned]
    first.release()
    for beam, own in zip(beams, owned):
        beam.grow(shared + own)
    before = _state(beams, pool)
    children = [beams[parent].fork() for parent in parents]
    for beam in beams:
        beam.release()
    after = _state(children, pool)
    return Case((*before, list(parents)), (after[0], after[1], sorted(after[2]), False))


def _beam_fixed() -> Sequence[Case]:
    return [_beam_case(*args) for args in (
        ([1], 1, [0]), ([1, 1], 1, [1, 0]), ([1, 1], 0, [0, 0]), ([1, 1, 1, 1], 1, [1, 1, 1, 1]), ([1, 1, 1, 1], 2, [0, 0, 2, 3]),
    )]


def _draw_beam(random: Random) -> Case:
    width = random.randint(1, 4)
    parents = [random.randrange(width) for _ in range(width)]
    return _beam_case([random.randint(0, 2) for _ in range(width)], random.randint(1, 3), parents, random.randint(0, 2))


def _beam_drive(function: Function, args: tuple[Any, ...], read: Reader) -> Any:
    """The new tables, the counts, the free blocks in any order, and whether two beams got the same list object."""
    tables, counts, free, parents = args
    answer = function(tables, counts, free, parents)
    same = isinstance(answer, list | tuple) and any(a is b for i, a in enumerate(answer) for b in answer[:i])
    return read(answer), _IDS(counts), sorted(_IDS(free)), same


def _say_beam(value: Any) -> str:
    tables, counts, free, same = value
    return f"tables {tables}, counts {counts}, free {free}" + ("; two beams share one list" if same else "")


def _beam(order: str) -> Any:
    """`beam_step` with a wrong idea in it."""

    def wrong(tables: Tables, counts: list[int], free: list[int], parents: list[int]) -> Tables:
        if order in ("free first", "no fork"):
            _lower(tables, counts, free)
        if order == "copy":
            children = [[free.pop(0) for _ in tables[p]] if len(free) >= len(tables[p]) else list(tables[p]) for p in parents]
        else:
            children = [tables[p] if order == "one list" else list(tables[p]) for p in parents]
        if order != "no fork":
            for child in children:
                for block in child:
                    counts[block] += 1
        if order in ("one list", "copy"):
            _lower(tables, counts, free)
        return children

    return wrong


def _lower(tables: Tables, counts: list[int], free: list[int]) -> None:
    for table in tables:
        for block in table:
            counts[block] -= 1
            if counts[block] == 0:
                free.append(block)


EXERCISES = (
    Exercise(
        name="06.a",
        title="Copy on write",
        signature="write(tables, seq, index, counts, free)",
        statement=(
            "Branch `seq` is about to write into its logical block `index`. `counts[block]` says how many tables refer to a block, `free` lists the"
            " free "
            "blocks, next one first. If another table refers to the block, give this branch one of its own and return (old, new), the copy that must "
            "run before the write; otherwise change nothing and return None. Four branches of a 23-token prompt, B = 16: copies (1,2), (1,3), (1,4), "
            "and counts 4, 1, 1, 1, 1 at the end."
        ),
        hints=(
            "Writing in place is fine for whoever is alone with the block. Who copies leaves it, so somebody becomes the last.",
            "Look at `counts[old]` before each write: 4, 3, 2, 1. What does the fourth writer find?",
            "note which block the table names now; if its count says that nobody else has it: None; otherwise take the next free block, bring the "
            "counts of both up to date (who has the new one? how many still have the old one?), put the new one into the table, and return both",
        ),
        judge="BlockTable.copy_on_write",
        passed="Of n branches n - 1 copy, one block each, and the last writes in place. The 16 tokens of the full block are still stored once.",
        read=optional(tuple_of(integer, integer, what="(old, new) or None")),
        fixed=_write_fixed,
        draw=_draw_write,
        drive=_write_drive,
        tell=_tell_write,
        say=_say_write,
        misconceptions=(
            Misconception("every branch copies, the last one too: 4 copies, and the old block is left to nobody.", _write(copy_always=True)),
            Misconception(
                "every branch copies, the last one too: 4 copies where 3 would do. Who is alone with a block writes in place.",
                _write(copy_always=True, give_back=True),
            ),
            Misconception(
                "you do not lower the count of the old block: the last writer believes that it is shared and copies as well, and nobody ever frees "
                "it.",
                _write(lower=False),
            ),
            Misconception("you copy the whole table, as if at the fork. Only the block that is written needs a copy.", _write(whole=True)),
            Misconception("you never copy: one branch's words would appear in the other branches' context.", _write_in_place),
            Misconception("you use a block and leave it in `free`: the next writer gets the same one.", _write(take=False)),
        ),
    ),
    Exercise(
        name="06.b",
        title="A step of beam search",
        signature="beam_step(tables, counts, free, parents)",
        statement=(
            "Beam i goes on from old beam `parents[i]`. Return the new tables, with `counts` and `free` brought up to date: a block nobody refers "
            "to any "
            "more goes back to `free`. No block is copied. With `parents = [1, 1, 1, 1]` all four continue beam 1."
        ),
        hints=(
            "A block that is still needed must never have a count of 0, not even for a moment.",
            "Two loops: one over the new tables, one over the old. Which one first?",
            "for each parent a copy of its table, and one more for every block in it; when all of them are made: for every block in the old tables "
            "one less, and whatever comes to 0 goes back to `free`",
        ),
        judge="BlockTable.fork and release",
        passed="Beams that change parents move numbers in tables. A candidate of 500 tokens of OPT-13B would be 391 MiB to copy.",
        read=_TABLES,
        fixed=_beam_fixed,
        draw=_draw_beam,
        drive=_beam_drive,
        tell=lambda case: f"beam_step(tables={case.args[0]}, counts={case.args[1]}, free={case.args[2]}, parents={case.args[3]})",
        say=_say_beam,
        misconceptions=(
            Misconception(
                "you free first: blocks that the children need go back to the pool in between, and are handed out while they are still read. Fork, "
                "then free.",
                _beam("free first"),
            ),
            Misconception("you never free the old beams: what no child continues is lost to everybody.", _beam("keep")),
            Misconception("the children's blocks are not counted: as soon as one ends, blocks of the others are freed.", _beam("no fork")),
            Misconception(
                "you gave two beams the same list: when one takes a new block, the other has it too. Copy the table (not the blocks).",
                _beam("one list"),
            ),
            Misconception(
                "you took new blocks for the children. Beams share what they have in common; nothing is copied until somebody writes.",
                _beam("copy"),
            ),
        ),
    ),
)
