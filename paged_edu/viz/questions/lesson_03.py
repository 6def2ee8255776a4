"""Knowledge checks of lesson 03: blocks and tables by hand."""
from __future__ import annotations

from .question import Question, right, wrong

CELLS = {
    "03-translate": "From position to slot",
    "03-third-block": "A block when it is needed",
    "03-last": "The last token is never written",
    "03-free": "Two requests",
    "03-cost": "What a table costs",
    "03-status": "OK, LATER, NEVER",
}
"""Cell id -> the words under which a reader finds it."""

QUESTIONS = (
    Question(
        "03.1", "Who translates a position into a slot?", "03-translate",
        (
            right(
                "Our own code, from a table of integers that it gets as an argument.",
                "The scheduler does it for the tokens that a step writes, the attention kernel for those that it reads.",
            ),
            wrong("The GPU's memory management unit.", "It translates addresses too, for every program, and knows nothing of blocks or tokens."),
            wrong("The device walks a linked list of blocks.", "A table is an array: any position is found in one step, by a division."),
            wrong("The table is built into the kernel.", "The kernel is compiled once. The tables change in every step and are passed to it."),
        ),
    ),
    Question(
        "03.2", "When is a block free again?", "03-free",
        (
            right("When the last reference to it goes.", "Each table entry counts. A block that two tables share is freed by the second."),
            wrong("When its prompt has been computed.", "Every later token still reads the prompt's keys and values."),
            wrong(
                "When a garbage collector comes by.",
                "It is free in the same moment in which its count reaches 0, and can be handed out in the same step.",
            ),
            wrong("When it has not been used for some time.", "While somebody refers to it, it is read in every step. Idle blocks are lesson 07."),
        ),
    ),
    Question(
        "03.3", "How large is the block table of 8,192 tokens of Llama-3-8B, B = 16?", "03-cost",
        (
            right("2 KiB: 512 entries of 4 bytes.", "The keys and values that it leads to are 1 GiB. Indirection costs next to no memory."),
            wrong("As large as the cache.", "It holds one number a block, and a block is 2 MiB."),
            wrong("32 KiB: one entry a token.", "One entry a *block*; the place within a block is the remainder of the division."),
            wrong(
                "It depends on the size of the pool.",
                "A sequence's table grows with the sequence. A pool ten times as large does not lengthen it.",
            ),
        ),
    ),
    Question(
        "03.4", "A prompt of 7 tokens with B = 4 has the table [7, 1]. In which step does it get its third block?", "03-third-block",
        (
            right(
                "In the step that writes position 8.",
                "Positions 0 to 7 fill the two blocks. A block is taken by the token that needs it, not a step earlier.",
            ),
            wrong(
                "In the step that writes position 7, when block 1 becomes full.",
                "That step ends with two full blocks. If the request ends there, a third was never needed.",
            ),
            wrong("At admission, for the longest possible answer.", "That is the contiguous way, and what paging does away with."),
            wrong("In the step that writes position 9.", "Then position 8 would have had no slot."),
        ),
    ),
    Question(
        "03.5", "A prompt of 16 tokens, one token to write, B = 16. How many blocks are needed?", "03-last",
        (
            right(
                "One.",
                "The written token's own keys and values would only be needed for a token after it, and there is none: ceil((16 + 1 - 1) / 16) = 1.",
            ),
            wrong("Two: 17 tokens.", "17 tokens exist, 16 are ever in the cache. The last sampled token is never fed to the model."),
            wrong("Two, one for the prompt and one for the answer.", "Prompt and answer are one sequence; they share blocks where they meet."),
            wrong("None: a single token needs no cache.", "The prompt's own attention reads keys and values through the cache as well."),
        ),
    ),
    Question(
        "03.6", "A pool of 4 blocks, 1 used. A request asks for 4. What is the answer, and how many blocks are free afterwards?", "03-status",
        (
            right("LATER, and 3.", "In an empty pool it would fit, so waiting helps. Until then nothing is taken: all or nothing."),
            wrong("NEVER, and 3.", "NEVER means: not even alone. Four of four blocks will do."),
            wrong(
                "LATER, and 0: it keeps the three until the fourth comes.",
                "Then the three would help nobody, and two requests that each hold half could wait for each other for ever.",
            ),
            wrong("OK, with 3 blocks.", "A prompt whose last tokens have no slot cannot be computed."),
        ),
    ),
)
