"""Exercises of lesson 12: the empty slots of a block size, and a block size for a workload. Judged by `PagedKVManager` and the simulator."""
from __future__ import annotations

from .exercise import Exercise, Misconception
from .loads import mean
from .readers import number
from .sizes import blocks, draw_waste, empty, told_waste, waste_fixed

EXERCISES = (
    Exercise(
        name="12.a",
        title="Empty slots",
        signature="expected_waste(B, lengths)",
        statement=(
            "Each sequence lies in blocks of `B` slots that are its own, and `lengths` says how many tokens each has. Return how many slots of its "
            "blocks hold no token, on average over the sequences. With B = 16 and lengths of 16, 17 and 40 these are 0, 15 and 8: 7.67."
        ),
        hints=(
            "Only the last block of a sequence can have empty slots. How many blocks are there, and how many slots?",
            "A sequence of 40 tokens with B = 16: three blocks, 48 slots. And one of 16 tokens: one block, 16 slots.",
            "for each length: blocks = length / B, rounded up; empty slots += blocks * B - length. At the end: empty slots / number of lengths",
        ),
        judge="PagedKVManager.report",
        passed=(
            "For ShareGPT's running requests this is 7.5 at B = 16, as the rule (B - 1) / 2 says: less than 2 % of their slots. Alpaca's lose as "
            "many, and that is 9 % of theirs. At B = 256 they lose more than 180 each, not 127.5: the rule is for sequences longer than a block."
        ),
        read=number,
        fixed=waste_fixed,
        draw=draw_waste,
        tell=told_waste,
        say=lambda slots: f"{slots:.6g}",
        misconceptions=(
            Misconception(
                "that is the rule (B - 1) / 2, for ends that fall anywhere in a block. You have the lengths, so count; where sequences are shorter "
                "than a block, the rule is far off.",
                lambda B, lengths: (B - 1) / 2,
            ),
            Misconception(
                "half a block is half a slot too many even as a rule: 0 to B - 1 slots are empty, never all B. And you have the lengths, so count.",
                lambda B, lengths: B / 2,
            ),
            Misconception(
                "where a sequence ends with a full block you count another, empty one. The next block is taken when there is a token to write.",
                lambda B, lengths: mean([B - length % B for length in lengths]),
            ),
            Misconception(
                "those are the tokens *in* the last block. The empty slots are behind them.",
                lambda B, lengths: mean([length % B for length in lengths]),
            ),
            Misconception(
                "you take the waste of the average length. A sequence of 16 and one of 17 tokens have 16.5 on average, and waste 0 and 15.",
                lambda B, lengths: -mean(lengths) % B,
            ),
            Misconception("that is the total. Divide by the number of sequences.", lambda B, lengths: sum(empty(B, lengths))),
            Misconception(
                "that is the share of the slots which is empty. Slots were wanted; the share depends on how long the sequences are as well.",
                lambda B, lengths: sum(empty(B, lengths)) / sum(blocks(length, B) * B for length in lengths),
            ),
            Misconception(
                "you divide by the tokens. Divide by the number of sequences.", lambda B, lengths: sum(empty(B, lengths)) / sum(lengths),
            ),
            Misconception(
                "that is the average over the blocks. Divide by the number of sequences.",
                lambda B, lengths: sum(empty(B, lengths)) / sum(blocks(length, B) for length in lengths),
            ),
            Misconception(
                "you pack the sequences one behind the other, so that only the last one leaves a block unfilled. A block belongs to one sequence.",
                lambda B, lengths: -sum(lengths) % B / len(lengths),
            ),
            Misconception(
                "you pad every sequence to the longest. Nobody's blocks depend on somebody else's length; that was the batch before lesson 05.",
                lambda B, lengths: max(blocks(length, B) for length in lengths) * B - mean(lengths),
            ),
            Misconception(
                "you give each sequence a single block. Those that are longer have empty slots in their last block too.",
                lambda B, lengths: mean([max(0, B - length) for length in lengths]),
            ),
            Misconception(
                "you leave out the sequences that fill their last block. They count in the average, with 0.",
                lambda B, lengths: sum(empty(B, lengths)) / max(1, sum(slots > 0 for slots in empty(B, lengths))),
            ),
            Misconception("you rounded: an average of whole numbers need not be one.", lambda B, lengths: sum(empty(B, lengths)) // len(lengths)),
        ),
    ),
)
