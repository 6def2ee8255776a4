"""Knowledge checks of lesson 03: blocks and tables by hand."""
from __future__ import annotations

from .question import Question, right, wrong

CELLS = {
    "03-third-block": "A block when it is needed",
    "03-translate": "From position to slot",
    "03-last": "Blocks for a whole life",
    "03-status": "OK, LATER, NEVER",
    "03-cost": "What a table costs",
    "03-54": "What must always be true",
    "03-58": "Break it",
}
"""Cell id -> the words under which a reader finds it."""

QUESTIONS = (
    Question(
        "03.1", "A prompt of 7 tokens with B = 4 has the table [7, 1]. In which step does it get its third block?", "03-third-block",
        (
            right(
                "In the step that computes position 8.",
                "Positions 0 to 7 fill the two blocks. A block is taken for the token that needs it, not a step earlier.",
            ),
            wrong(
                "In the step that computes position 7, because that fills block 1.",
                "That step ends with two full blocks. If the request ended there, a third would never have been needed.",
            ),
            wrong(
                "At its admission, so that the answer is sure to have room.",
                "A slab works like that: it keeps room for the longest possible answer. Here the prompt's own blocks are taken first, and no other.",
            ),
            wrong(
                "In the step after position 8, once both blocks have overflowed.",
                "Position 8 would have had no slot: keys and values need a place in the very step that computes them.",
            ),
        ),
    ),
    Question(
        "03.2", "Who turns a position into a slot?", "03-translate",
        (
            right(
                "The engine's own code: it divides, and looks into a table of integers.",
                "The scheduler does it for the tokens that a step computes, the attention kernel for those that it reads.",
            ),
            wrong(
                "The memory management unit of the GPU, as it does for the pages of any program.",
                "It translates addresses too, for every program, and knows nothing of blocks or tokens.",
            ),
            wrong(
                "The engine's own code: it follows a pointer from each block to the next one.",
                "A table is an array: any position is found in one step, by a division. Nobody walks along a list.",
            ),
            wrong(
                "The engine's own code: the tables are compiled into it when the engine starts.",
                "Tables change while requests run. They are data: the attention code is handed them in every step.",
            ),
        ),
    ),
    Question(
        "03.3", "A prompt of 16 tokens, an answer of one token, B = 16. How many blocks does the engine hand out?", "03-last",
        (
            right(
                "One: the prompt fills it, and nothing else is ever cached.",
                "The answer token's own keys and values would only be needed for a token after it, and there is none: ceil((16 + 1 - 1) / 16) = 1.",
            ),
            wrong(
                "Two: the seventeenth token is one more than a block holds.",
                "17 tokens exist, 16 are ever cached. The last sampled token is never fed to the model.",
            ),
            wrong(
                "Two: one for the prompt, and another where the answer begins.",
                "Prompt and answer are one sequence; where they meet they share a block if it has room. With 10 + 6 tokens one block is enough.",
            ),
            wrong(
                "None: nobody comes after the only answer token to read a cache.",
                "The prompt's tokens read each other's keys and values, and all of them are cached. The first row of the table says 1.",
            ),
        ),
    ),
    Question(
        "03.4", "A pool of 4 blocks, 1 in use. A request asks for 4. What is it told, and how many blocks are free afterwards?", "03-status",
        (
            right("LATER, and 3: nothing is taken.", "In an empty pool it would fit, so waiting helps. Until then it holds nothing: all or nothing."),
            wrong("NEVER, and 3: it asks for more than is free.", "NEVER means: not even alone in the pool. Four of four blocks will do."),
            wrong(
                "LATER, and 0: it keeps the three until the fourth comes.",
                "Then the three would help nobody, and two requests that each hold half could wait for each other for ever.",
            ),
            wrong(
                "OK, and 0: it begins with three and gets the fourth in time.",
                "The whole prompt's blocks are taken at once, even where computing it takes several steps. With half of them it could be stuck and "
                "hold what others need.",
            ),
        ),
    ),
    Question(
        "03.5", "How large is the block table of 8,192 tokens of Llama-3-8B, with B = 16?", "03-cost",
        (
            right(
                "2 KiB: an entry of 4 bytes for each block that its tokens lie in.",
                "512 entries of 4 bytes lead to 1 GiB of keys and values, 2 MiB a block. Indirection costs next to no memory.",
            ),
            wrong(
                "32 KiB: an entry of 4 bytes for each of its tokens.",
                "One entry a *block*; the place within a block is the remainder of the division.",
            ),
            wrong(
                "64 KiB: a table of 2 KiB for each of the 32 layers.",
                "One table serves all layers: a block's number means the same place in the cache of every layer.",
            ),
            wrong(
                "That depends on the pool: it has an entry for each block that there is, used or not.",
                "A table grows with its sequence. A pool ten times as large does not lengthen it.",
            ),
        ),
    ),
    Question(
        "03.6", "When is a block free again?", "03-54",
        (
            right(
                "When the last of the block tables that list it has let go of it.",
                "Then its reference count is 0. Here the first table was the last one too; once tables share blocks, that makes a difference.",
            ),
            wrong(
                "When the prompt in it has been computed, since attention is done with it.",
                "Every later token still reads the prompt's keys and values.",
            ),
            wrong(
                "When the pool's next clean-up finds that its request has ended.",
                "Nothing cleans up from time to time. In the moment in which the count reaches 0, the block goes to the tail of the queue.",
            ),
            wrong(
                "When no step has read it for some time, as in any other cache.",
                "A running request reads all its blocks in every step, and one that has ended none. Time plays no part in it.",
            ),
        ),
    ),
    Question(
        "03.7", "After every step a pool finds that free + used = all its blocks. What does that prove?", "03-58",
        (
            right(
                "Only that as many blocks are counted as there are.",
                "A lost block counts as used, and one counted twice could even hide one that is not counted at all. Only a comparison with the "
                "tables finds it.",
            ),
            wrong(
                "No block has been lost since the pool was made.",
                "The forgetful `free` lost blocks from step 2 on, and 1 + 59 was still 60.",
            ),
            wrong(
                "No block is listed by the tables of two requests by mistake.",
                "The sum does not know of tables. A block in two of them is one used block, as it should be.",
            ),
            wrong(
                "Every computed token has a slot in its request's table.",
                "That is the third invariant, and it is about tables. The sum looks at none.",
            ),
        ),
    ),
)
