"""Knowledge checks of lesson 00: one minute, twenty-four prompts."""
from __future__ import annotations

from .question import Question, right, wrong

CELLS = {
    "00-two-runs": "The same trace, two memories",
    "00-grid": "How to read the grid",
    "00-report": "How well is the memory used?",
    "00-preempted": "When memory runs out",
    "00-steps": "Half the steps",
    "00-words": "The same words",
}
"""Cell id -> the words under which a reader finds it."""

QUESTIONS = (
    Question(
        "00.1", "What was changed between the two servers?", "00-two-runs",
        (
            right(
                "The places in memory that a request gets for its keys and values.",
                "One argument, `kv_manager`, decides which slots a request gets, and how many at a time. Everything else is the same engine.",
            ),
            wrong(
                "The form in which keys and values are stored: blocks hold them with fewer digits, so that more of them fit.",
                "Every key and value is stored and read in full, one slot a token in both. Only their addresses differ.",
            ),
            wrong(
                "The part of each prompt that is computed: with blocks, only as much of it as there is room for.",
                "Of each request that is admitted, all of it: 666 tokens in step 1. With slabs no prompt is cut either; 21 of them are still "
                "waiting.",
            ),
            wrong(
                "The limit for requests that run at once: 3 with slabs, 24 with blocks.",
                "Nobody set such a limit. 3 and 24 are what comes of it when each gets 256 slots, or as many blocks as its tokens fill.",
            ),
        ),
    ),
    Question(
        "00.2", "After step 1 of the paged run, 58 of 60 blocks are taken and 69 % of the slots hold tokens. What is in the other slots?", "00-grid",
        (
            right(
                "Nothing yet: they are the ends of last blocks, and two free blocks.",
                "A block is taken whole. Its empty slots belong to one request and wait for its next tokens; look at the ticks.",
            ),
            wrong(
                "Room for the rest of each answer, up to the length that was asked for.",
                "That is what slabs do, and more. Here a block is taken when a token needs it: in step 2, 24 requests took one new block together.",
            ),
            wrong(
                "Gaps between the requests, each of them too small to be of use.",
                "No gap is too small here: blocks need not be neighbours, so every free block fits every request.",
            ),
            wrong(
                "The weights, and the numbers of the step that is running.",
                "Those have memory of their own. The pool holds keys and values only, and a slot is empty until its token is computed.",
            ),
        ),
    ),
    Question(
        "00.3", "With slabs, 21 requests wait in the first step. What keeps them waiting?", "00-report",
        (
            right(
                "Slots that are kept for tokens which have not come yet, or never will.",
                "Three slabs of 256 take 768 of 960 slots, and the rest is too small for a fourth. In step 12 most of them are empty.",
            ),
            wrong(
                "The keys and values of the three that run: they fill the memory.",
                "They fill 7 % of it in step 12. Taken and filled are two things.",
            ),
            wrong(
                "The arithmetic: a fourth request would make the steps too slow.",
                "The same machine computes 24 requests in the first step of the paged run.", "00-two-runs",
            ),
            wrong(
                "The scheduler: it lets a batch of requests finish before it starts the next.",
                "It starts the next one as soon as there is room: D came in the step after B had ended, while A and C went on.", "00-grid",
            ),
        ),
    ),
    Question(
        "00.4", "Request X is preempted in step 13. What does its user see?", "00-preempted",
        (
            right(
                "A pause in the answer, which later goes on where it was.",
                "X gives its block back, waits in the queue, and is computed again when there is room. Its tokens are kept.",
            ),
            wrong(
                "An answer that begins again, perhaps with other words.",
                "The tokens that X was given stay as they are; only their keys and values are computed again.",
            ),
            wrong(
                "An answer that ends with the token of the step before.",
                "X only waits, as the hollow letter says. An answer is cut only where the whole pool is too small for it, and X needs two blocks of "
                "60.",
            ),
            wrong(
                "An error, and the request has to be sent again.",
                "The engine keeps it in its queue. Memory ran out, and the engine chose who waits; no request failed.",
            ),
        ),
    ),
    Question(
        "00.5", "300 steps against 141. Is the paged run 2.1 times as fast in seconds?", "00-steps",
        (
            right(
                "Not quite: its steps are fuller, and a fuller step takes somewhat longer.",
                "The cell prints the tokens of a step, two and a half times as many (some of them computed once more). What that costs in time is "
                "the subject of lesson 01.",
            ),
            wrong(
                "Yes: a step is one pass through the model, and takes the same time however many take part.",
                "One pass, but for as many tokens as the step has, and paged ones have more. The time grows with them, though slowly.",
            ),
            wrong(
                "No: no fewer tokens are computed in the end, so it takes no less time.",
                "More are, even. But a part of a step costs the same whether it serves three or twenty: the weights, for one, are read once. "
                "Half the steps save half of that.",
            ),
        ),
    ),
    Question(
        "00.6", "Why do both runs give the same words?", "00-words",
        (
            right(
                "Attention reads the same keys and values, only from other addresses.",
                "Where a vector lies does not enter the sum; the plan of the step says where to find it.",
            ),
            wrong(
                "The second run takes over what the first one has computed.",
                "Each server has a model and a cache of its own, and computed all its tokens itself.",
            ),
            wrong(
                "Both runs start from the same seed, so they draw the same random numbers.",
                "Nothing is drawn: `temperature=0` takes the most likely token each time. Other keys and values would make others likely.",
            ),
            wrong(
                "Blocks hold an approximation of the keys and values that is good enough for the same words.",
                "They hold all of them in full. (Steps of different sizes may round the last digit differently; hence the double precision above.)",
            ),
        ),
    ),
)
