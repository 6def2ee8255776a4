"""Exercises of lesson 12: the empty slots of a block size, and a block size for a workload. Judged by `PagedKVManager` and the simulator."""
from __future__ import annotations

from dataclasses import replace

from ...sim.block_sizes import SIZES
from .exercise import Exercise, Misconception
from .loads import mean
from .readers import number
from .sizes import (
    batch,
    blocks,
    choice_fixed,
    choose,
    draw_choice,
    draw_waste,
    empty,
    highest,
    one_block,
    one_of_the_sizes,
    speed,
    told_choice,
    told_waste,
    waste_fixed,
)

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
    Exercise(
        name="12.b",
        title="A block size for your workload",
        signature="choose_block_size(workload)",
        statement=(
            "Return the block size, one of 1, 2, 4, ... 256, with which a server answers the most requests/s. What one knows beforehand of its "
            "`workload`: `lengths`, the tokens of typical requests at their ends; `prefix`, the first of these tokens, which are the same for all "
            "(full blocks of them are kept once); `slots`, all that there are; and `step(B, batch)`, the seconds of a step of `batch` requests, at "
            "most 256, in blocks of `B`. The simulator has run six workloads at all nine sizes: your choice has to hold 95 % of what the best size "
            "holds, for each of them. For ShareGPT's chats the best is 16."
        ),
        hints=(
            "A step gives each of its requests a token. So tokens/s are the requests that fit, divided by the seconds of a step; both depend on B.",
            "How many blocks has the server? How many does a request need, and how many of those are everybody's?",
            "for each B: shared = prefix // B; own = average of (length / B, rounded up, - shared); batch = (slots // B - shared) / own, rounded "
            "down, at least 1. Return the B with the highest batch / step(B, batch)",
        ),
        judge="the simulator",
        passed=(
            "A few lines find what 54 runs of the simulator find. The shorter the requests, and the odder the prefix, the smaller the best block; "
            "the longer they are, the more it matters that the kernel is fed. (The simulator's gains nothing beyond 16; others do.) On a real server "
            "reckon like this, then measure the two or three sizes around the answer."
        ),
        read=one_of_the_sizes,
        fixed=choice_fixed,
        draw=draw_choice,
        num_drawn=0,
        drive=choose,
        tell=told_choice,
        say=str,
        misconceptions=(
            Misconception(
                "16 for every workload. It is a good default; it also comes out where one counts tokens instead of blocks, or leaves out the memory. "
                "But where requests have 20 tokens, blocks of 2 let 40 % more of them run.",
                lambda workload: 16,
            ),
            Misconception(
                "32 for every workload: the best of the paper's Fig. 18b, for both of its traces. Shorter requests leave more of a block empty, and "
                "of a prefix of 80 tokens 64 are shared.",
                lambda workload: 32,
            ),
            Misconception(
                "1 for every workload: it wastes nothing, so the most requests fit. But its steps are long, since the kernel goes on block by block: "
                "chats get less than half of their rate. Divide by the seconds of a step.",
                lambda workload: 1,
            ),
            Misconception(
                "256 for every workload: tables are shortest, and so are the steps. They are short because so few requests fit into one. Divide the "
                "requests by the seconds of a step.",
                lambda workload: 256,
            ),
            Misconception(
                "you choose the smallest block that holds an average request. A table may have many entries; a block for each request is a "
                "reservation, as before paging.",
                one_block,
            ),
            Misconception(
                "you choose the largest block that the prefix fills exactly, and without a prefix the largest of all. What is shared is one part; "
                "what stays empty at the end of each request is another.",
                lambda workload: max(B for B in SIZES if workload.prefix % B == 0),
            ),
            Misconception(
                "you forget that the prefix is shared. Only full blocks of it are: where 248 tokens begin every request, blocks of 8 share them all, "
                "and blocks of 16 only 240.",
                highest(lambda workload, B: speed(replace(workload, prefix=0), B)),
            ),
            Misconception(
                "you choose the size with which the most requests fit, whatever a step takes. What counts are tokens/s: divide by the seconds of a "
                "step.",
                lambda workload: max(reversed(SIZES), key=lambda B: batch(workload, B)),
            ),
            Misconception(
                "you divide by the step of a single request. A step of all that fit takes longer, and by how much depends on the size.",
                highest(lambda workload, B: batch(workload, B) / workload.step(B, 1)),
            ),
            Misconception(
                "you choose the worst size: seconds of a step by requests are seconds for each token, and the fewest of these are the best.",
                highest(lambda workload, B: 1 / speed(workload, B)),
            ),
        ),
    ),
)
