"""The branches of a request together: how they fan out and are pruned after a step, and how a group comes back (Paper §4.4, §4.5).

Parallel samples and beams are one mechanism. A step's result names, for each branch that goes on, the parent that it continues. The first
child of a parent goes on in its place; the others fork its table, which shares every block; a parent without a child is freed.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count

from .plan import Branch
from .sequence import Branching, Request, Sequence

Fork = tuple[Sequence, Sequence]
"""``(parent, child)``."""


def branch_out(request: Request, branches: Iterable[Branch], seq_ids: Iterator[int]) -> tuple[Branching, list[Fork]]:
    """What ``branches``, all survivors and hypotheses of the request, make of its live sequences. Nothing is changed yet, but that
    log-probabilities run ahead of their tokens.

    Raises ValueError for a branch of an unknown parent, more survivors than the request has places for, or, unless it is a beam search,
    anything but one branch for each live sequence (n of them when it fans out).
    """
    parents = {seq.seq_id: seq for seq in request.live}
    branches = sorted(branches, key=lambda branch: branch.finish_reason is not None)       # survivors first; the order is kept otherwise
    unknown = [branch.parent for branch in branches if branch.parent not in parents]
    survivors = sum(branch.finish_reason is None for branch in branches)
    sampled = [branch.parent for branch in branches] == ([*parents] if request.forked else [*parents] * request.n) and survivors == len(branches)
    if unknown or survivors > request.n or not (sampled or request.beam):
        raise ValueError(
            f"request {request.request_id!r}: branches of {[b.parent for b in branches]} ({survivors} go on, at most {request.n} may) "
            f"answer sequences {sorted(parents)}"
        )
    numbers = _unused_numbers(request, {branch.parent for branch in branches if branch.finish_reason is None})
    tokens, children, forks, placed = [], [], [], set[int]()
    going_on: list[Sequence] = []
    ended: list[tuple[Sequence, str]] = []
    for branch in branches:
        parent = seq = parents[branch.parent]
        if parent.seq_id in placed:
            number = next(numbers) if branch.finish_reason is None else parent.branch
            seq = Sequence(next(seq_ids), request, number, [], parent.num_computed_tokens)
            seq.logprobs = parent.logprobs[: parent.num_output_tokens]
            children.append(seq)
            forks.append((parent, seq))
        placed.add(parent.seq_id)
        if branch.logprobs is not None:
            seq.logprobs[parent.num_output_tokens :] = branch.logprobs
        tokens.append((seq, parent.token_ids + list(branch.tokens), branch.tokens, parent.cumulative_logprob + branch.logprob))
        if branch.finish_reason is None:
            going_on.append(seq)
        else:
            ended.append((seq, branch.finish_reason))
    ended += [(parents[seq_id], "pruned") for seq_id in parents if seq_id not in placed]
    return Branching(tuple(tokens), request.sequences + children, going_on, ended), forks


def _unused_numbers(request: Request, continued: set[int]) -> Iterator[int]:
    """Branch numbers for new branches: the smallest that no branch which goes on has."""
    taken = {seq.branch for seq in request.live if seq.seq_id in continued}
    return (number for number in count() if number not in taken)


def assign_leaders(request: Request, block_size: int) -> None:
    """For each pending branch, who computes the beginning of its tokens: the branch before it with most full blocks in common.

    Each block of the group's tree of texts is computed and stored once, so the group comes back into no more blocks than it needs to go on
    (Paper §4.5 recomputes one sequence; this is its extension to groups). The last token of a branch is never led: somebody must query it.
    """
    first: dict[tuple[int, tuple[int, ...]], tuple[int, Sequence]] = {}     # (node before, tokens of a block) -> node, the first branch there
    for seq in request.pending:
        seq.leader, seq.num_led_tokens = None, 0
    waiting = {seq.seq_id for seq in request.pending}
    for seq in (*(seq for seq in request.live if seq.seq_id not in waiting), *request.pending):
        node = 0
        for end in range(block_size, seq.num_tokens, block_size):       # whole blocks, without the last token
            known = first.setdefault((node, tuple(seq.token_ids[end - block_size : end])), (len(first) + 1, seq))
            node = known[0]
            if known[1] is not seq and seq.seq_id in waiting:
                seq.leader, seq.num_led_tokens = known[1], end
