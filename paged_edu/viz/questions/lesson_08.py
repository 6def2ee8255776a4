"""Knowledge checks of lesson 08: when memory runs out."""
from __future__ import annotations

from .question import Question, right, wrong

CELLS = {
    "08-pause": "Three requests, eight blocks",
    "08-fig19": "Fig. 19: swap or recompute",
    "08-resume": "When may it return?",
}
"""Cell id -> the words under which a reader finds it."""

QUESTIONS = (
    Question(
        "08.1", "What does the user of a preempted request see?", "08-pause",
        (
            right("A pause.", "C stops in step 4 and goes on in step 11, with the same words as if nothing had happened."),
            wrong("The answer starts over.", "Its tokens are kept; only their keys and values are computed again, or fetched."),
            wrong("A shorter answer.", "C writes its 10 tokens, as A and B do, seven steps later."),
            wrong("An error.", "Nothing failed. A request is refused only if it could not fit an empty pool."),
        ),
    ),
    Question(
        "08.2", "Is swapping better than recomputing?", "08-fig19",
        (
            right(
                "For large blocks, a small KV cache a token and fast links; otherwise recompute.",
                "Many small blocks are many small copies: in the paper 137.4 ms at B = 1 against 36.3 for recomputing. They cross between 16 and 32.",
            ),
            wrong(
                "Always: copying beats computing.",
                "A bus is slow, and each copy has a cost of its own. At B = 1 it takes nearly four times as long.",
            ),
            wrong(
                "Never: that is why engines dropped it.",
                "At B = 256 recomputing takes 1.17 times as long as swapping. Engines dropped it because small blocks and GQA made it rarely matter.",
            ),
        ),
    ),
    Question(
        "08.3", "The paper says that recomputation is never more than 20 % slower. Than what?", "08-fig19",
        (
            right("Than swapping.", "At B = 256: 39.1 ms against 33.4, 1.17 times. At B = 1 it is 0.26 times, far faster."),
            wrong("Than not being preempted at all.", "Being preempted always costs; the sentence compares two ways to come back."),
            wrong("It costs 20 % of swapping.", "The ratio goes from 0.26 to 1.17, by block size. It is a bound on how much worse it gets."),
            wrong("Than the first prefill.", "It is a prefill, of prompt and written tokens together, so it takes a little longer than the first."),
        ),
    ),
    Question(
        "08.4", "Why does the latest arrival step back?", "08-pause",
        (
            right(
                "First come, first served: so the oldest always finishes.",
                "Whoever has waited longest is never sent back by somebody younger, and the system always moves on.",
            ),
            wrong("It is the smallest.", "Size plays no part. C was as large as A and B."),
            wrong("At random.", "The order of arrival decides, so a run can be repeated and explained."),
            wrong(
                "It has written the fewest tokens, so least is lost.",
                "Often true, and not the rule: it would let a long request be sent back again and again.",
            ),
        ),
    ),
    Question(
        "08.5", "C has a prompt of 6 tokens and had written 3 when it stepped back. What does its return compute?", "08-pause",
        (
            right(
                "9 tokens, in one step.",
                "Its own words are part of its prompt now, so they need no step each. 8 of them had been computed before.",
            ),
            wrong("9 tokens, in nine steps.", "Known tokens can be computed side by side, like any prompt. Only unknown ones need a step each."),
            wrong("6 tokens: the prompt.", "Then the three written ones would have no keys and values, or would be sampled again."),
            wrong("3 tokens: the answer.", "All its blocks were given back, the prompt's too: all or nothing."),
        ),
    ),
    Question(
        "08.6", "C was swapped out with 2 blocks (8 tokens, B = 4) and has 9 tokens. 2 blocks are free. May it return?", "08-resume",
        (
            right(
                "No: its next token needs a third block.",
                "With 2 it would come back, find no block and leave again: 3 preemptions and 12 block moves instead of 1 and 4.",
            ),
            wrong("Yes: it gets as many blocks as it had.", "It comes back to go on. Its ninth token has no slot in two full blocks."),
            wrong("Yes: it can take the third block from A.", "A came first. Nobody is sent back for somebody who arrived later."),
            wrong(
                "No: a swapped request waits until all others have ended.",
                "It waits for blocks, not for people. With a third free block it would return.",
            ),
        ),
    ),
)
