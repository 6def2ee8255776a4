"""Knowledge checks of lesson 12: what to choose, and what paging does not fix."""
from __future__ import annotations

from .question import Question, right, wrong

CELLS = {
    "12-waste": "What a larger block wastes",
    "12-share": "What a larger block shares",
    "12-tables": "What a smaller block costs",
    "12-kernel": "What the kernel wants",
    "12-choose": "Choose",
    "12-batch": "A larger batch",
    "12-roofline": "Two limits",
    "12-not-fixed": "What paging does not fix",
    "12-break": "Break it",
}
"""Cell id -> the words under which a reader finds it."""

QUESTIONS = (
    Question(
        "12.1", "A running request of Alpaca has 78 tokens on average. With B = 256, how many slots of its blocks hold no token?", "12-waste",
        (
            right(
                "More than 180: nearly every request fits into one block, and leaves most of it empty.",
                "The rule (B - 1) / 2 is for ends that fall anywhere in a block. Whoever is shorter than a block ends early in the only one it has.",
            ),
            wrong(
                "127.5, as always: (B - 1) / 2.",
                "So it nearly is with ShareGPT, whose requests fill a block or two before their last one: 133. Alpaca's do not.",
            ),
            wrong(
                "178: an average request leaves 256 - 78.",
                "Close, and too few: some requests need a second block, and each of these adds 256 slots. The waste of the mean is not the mean of "
                "the waste.",
            ),
            wrong(
                "None for long: the next request that comes goes on where this one ends.",
                "A block belongs to one text. Somebody else's tokens never come into it; what is empty in it stays empty.",
            ),
        ),
    ),
    Question(
        "12.2", "All requests begin with the same 80 tokens. B is raised from 16 to 32. What is lost?", "12-share",
        (
            right(
                "16 of the 80 tokens: each request now computes and keeps them for itself.",
                "Only full blocks are shared. Five blocks of 16 are filled by the 80 tokens, but two of 32 by 64 of them.",
            ),
            wrong(
                "Nothing: the same 80 tokens are shared, whatever blocks they lie in.",
                "The third block of 32 holds 16 tokens of everybody and then somebody's own. It cannot be one block for two requests.",
            ),
            wrong(
                "All of it: 80 is no multiple of 32.",
                "Each full block counts for itself, and two of 32 are full. Nothing is shared where a block is longer than the prefix, at B = 128.",
            ),
            wrong(
                "Nothing: the block in which the 80 tokens end is copied when somebody writes to it.",
                "So it is with branches of *one* request, which begin with all that their parent has. Requests that come one by one find each "
                "other's full blocks, and no others.",
            ),
        ),
    ),
    Question(
        "12.3", "With B = 1 no slot is ever empty, and any prefix can be shared to its last token. Is it the best choice?", "12-tables",
        (
            right(
                "No: each token has a table entry, a look-up and a copy of its own.",
                "A block is what is read, moved and found in one piece. In Fig. 19a, swapping the same tokens out and in takes 137.4 ms at B = 1 and "
                "40.1 at B = 16.",
            ),
            wrong(
                "Yes: without waste the most requests fit, and that is what decides.",
                "At B = 16, 98 % of ShareGPT's slots hold tokens already: 2 % more is all there is to win. Fig. 18b has 2.301 s/token at B = 1, and "
                "0.085 at 16.",
                "12-kernel",
            ),
            wrong(
                "No: the tables become as large as the cache itself.",
                "An entry has 4 bytes; a token's keys and values have 819,200 in OPT-13B. The entries are many, not large.",
            ),
            wrong(
                "No: with a single token in each block, attention cannot work.",
                "It works, and gives the same numbers up to rounding. It goes from block to block, and does not ask how long one is.",
                "12-kernel",
            ),
        ),
    ),
    Question(
        "12.4", "The same server with larger and larger blocks. What becomes of its speed?", "12-kernel",
        (
            right(
                "It rises until the kernel has enough to read in one piece; later it falls, as fewer requests fit.",
                "Fig. 18b, with ShareGPT: 0.568 s/token at B = 8, 0.069 at 32, and 1.356 at 256.",
            ),
            wrong(
                "It rises all the way: the larger the pieces, the better they are read.",
                "The kernel has nothing against large pieces. But each request holds more and more slots that stay empty, and whoever finds no "
                "place waits.",
            ),
            wrong(
                "It falls all the way: the larger the blocks, the more slots are wasted.",
                "From B = 8 to 16 a request wastes 4 slots more, and in Fig. 18b the s/token fall from 0.568 to 0.085. What the kernel gains is far "
                "more.",
            ),
            wrong(
                "It stays: the same keys and values are read, wherever they lie.",
                "The same bytes, in other pieces. Each piece takes its look-up, and a very short one leaves most of the threads that read it without "
                "work.",
            ),
        ),
    ),
    Question(
        "12.5",
        "Fig. 18b, from B = 16 to 128: with ShareGPT the latency goes from 0.085 to 0.159 s/token, with Alpaca from 0.594 to 4.804. Why is it so "
        "much worse with Alpaca?",
        "12-choose",
        (
            right(
                "Its requests are shorter than a block of 128, so half of the slots that they hold stay empty.",
                "With Alpaca 52 % of them hold tokens, with ShareGPT nearly 90 %. As many requests come as before, and fewer fit: a queue forms.",
                "12-waste",
            ),
            wrong(
                "Short requests look up more blocks for each of their tokens.",
                "They look up fewer: at B = 128 most of them have a single block.",
                "12-tables",
            ),
            wrong(
                "The kernel reads the empty slots as well, and there are more of them.",
                "It knows how long each sequence is and stops there. An empty slot takes room, not time.",
                "12-kernel",
            ),
            wrong(
                "Its answers are short, so the fixed work for each request weighs more on a token.",
                "It does, and at B = 16 just as much. Between the two numbers nothing but the block size has changed.",
            ),
        ),
    ),
    Question(
        "12.6", "A server lets 16 requests run at once instead of 8. What do its users notice?", "12-batch",
        (
            right(
                "Each one's tokens come a little more slowly; all together they get far more.",
                "With OPT-13B, in the paper's Fig. 1, a step takes 11 % longer and gives 80 % more tokens/s. Your machine has other numbers, and the "
                "same two directions.",
            ),
            wrong(
                "Nothing: the requests run side by side.",
                "A step ends for all at the same time, and it has the keys and values of 16 contexts to read instead of 8.",
            ),
            wrong(
                "Each one's tokens come half as fast: twice as many share the machine.",
                "So it would be if all the work were somebody's own. The weights are read once for all of them.",
            ),
            wrong(
                "Each one's tokens come faster, as the tokens/s have risen.",
                "Those are the tokens of all. No step becomes shorter by having more to do.",
            ),
        ),
    ),
    Question(
        "12.7",
        "A prefill of 1,000 tokens and a decode of one token read the same weights. Why does arithmetic limit the one, and bandwidth the other?",
        "12-roofline",
        (
            right(
                "In the prefill each weight that is read serves 1,000 tokens, in the decode one.",
                "A weight takes 2 operations for each token. For one token they are done long before the next weights have come; for 1,000 the next "
                "weights wait.",
            ),
            wrong(
                "A decode has to read the cache as well, and a prefill has not.",
                "It has, but that is little for one sequence: 0.41 GB for 500 tokens of OPT-13B, beside 25.7 GB of weights.",
            ),
            wrong(
                "A token of a decode takes more operations, since it looks at all tokens before it.",
                "So does each token of a prompt. For both it is about 2 operations a weight.",
            ),
            wrong(
                "A decode cannot use the units that multiply matrices.",
                "It may use the same ones. They would wait for weights all the same: an A100 can do 200 operations in the time that a byte takes to "
                "come.",
            ),
        ),
    ),
    Question(
        "12.8", "Somebody is alone on an A100 (1,555 GB/s) with OPT-13B in 16 bits. How many tokens/s are possible?", "12-not-fixed",
        (
            right(
                "About 60, with paging and without: each token takes a reading of all weights.",
                "25.7 GB at 1,555 GB/s are 16.5 ms. Fewer bytes would help, or more tokens from one reading; where keys and values lie does not "
                "matter.",
            ),
            wrong(
                "About 60 without paging, and two to four times as many with it.",
                "Two to four times is the rate of requests of a server that is full. Whoever is alone has room in any case.",
            ),
            wrong(
                "About 12,000: 312 TFLOP/s, divided by 2 operations for each weight.",
                "The arithmetic could do it, if the weights were there. They have to be read first, and that takes 200 times as long.",
                "12-roofline",
            ),
            wrong(
                "That depends on how much memory is left for keys and values.",
                "It says how many can run at once. One request of 2,048 tokens needs 1.5625 GiB, and there are 12.",
            ),
        ),
    ),
    Question(
        "12.9", "FlashAttention or PagedAttention: which of them does a server need?", "12-not-fixed",
        (
            right(
                "Both: one is about how attention is computed, the other about where keys and values lie.",
                "FlashAttention never writes the scores to memory; PagedAttention never needs one long run of it. The kernels of today do the first "
                "through the block table of the second.",
            ),
            wrong(
                "PagedAttention: it is the newer answer to the same question.",
                "The question is another one. A paged kernel that wrote all scores to memory would be slow with long contexts, paged or not.",
            ),
            wrong(
                "FlashAttention: it saves memory as well, and needs no tables.",
                "It saves the memory of the scores, which nobody needs after the step. Keys and values stay as long as their request.",
            ),
            wrong(
                "Either: both go through keys and values block by block, so they are the same.",
                "Both say \"block\". One means a tile that fits the fastest memory of the chip, the other a piece of the cache that has an address.",
            ),
        ),
    ),
    Question(
        "12.10", "`max_model_len` is 256, and B is 256 as well. What is left of paging?", "12-break",
        (
            right(
                "Next to nothing: each request has a place of 256 slots, as before.",
                "One block for each, held whole from the first token on, and a table of one entry: it is Orca (Max) again, with the same four parts "
                "of memory.",
            ),
            wrong(
                "The main thing: blocks may lie anywhere, so nothing is lost.",
                "Nothing is lost *between* blocks. With B = 256 all the empty slots are within.",
            ),
            wrong(
                "The growth: a request still takes a block only when it needs one.",
                "It needs one for its first token, and never another one.",
            ),
            wrong(
                "The sharing: prompts that begin alike are still stored once.",
                "Full blocks are shared, and here none is full before its request has come to the very end.",
                "12-share",
            ),
        ),
    ),
)
