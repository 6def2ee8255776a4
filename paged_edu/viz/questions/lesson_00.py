"""Knowledge checks of lesson 00: one minute, twenty-four prompts."""
from __future__ import annotations

from .question import Question, right, wrong

CELLS = {
    "00-two-runs": "The same trace, two memories",
    "00-words": "The same words",
    "00-grid": "How to read the grid",
    "00-report": "How well is the memory used?",
    "00-preempted": "When memory runs out",
}
"""Cell id -> the words under which a reader finds it."""

QUESTIONS = (
    Question(
        "00.1", "What changed between the two runs?", "00-two-runs",
        (
            right(
                "Where keys and values are stored.",
                "One argument, `kv_manager`, decides which slots a request gets. Everything else is the same engine.",
            ),
            wrong(
                "The model is approximated.",
                "Every key and value is stored and read in full. Paging moves numbers to other addresses; it rounds and drops none.",
            ),
            wrong(
                "The prompts are shortened so that more of them fit.",
                "Both runs read the same 666 prompt tokens. A larger batch is more requests, not shorter ones.",
            ),
            wrong("The processor computes faster.", "A token costs the same work in both. What differs is how many requests take part in a step."),
        ),
    ),
    Question(
        "00.2", "Why do both runs write the same words?", "00-words",
        (
            right(
                "Attention reads the same numbers, only from other addresses.",
                "Where a vector lies does not enter the sum; the table says where to find it.",
            ),
            wrong(
                "The second run found the answers of the first in a cache.",
                "No answers are kept. What is cached are keys and values, here each request's own.",
            ),
            wrong(
                "By luck: the seed was the same.",
                "Here no seed is needed: the most likely token is taken each time. Other numbers would give other words.",
            ),
            wrong(
                "They are nearly the same; the differences are too small to see.",
                "The cell compares the token ids of all 24 requests, and a single difference would stop it.",
            ),
        ),
    ),
    Question(
        "00.3", "What limits the run with slabs?", "00-two-runs",
        (
            right(
                "Slots that are reserved and not used.",
                "Three slabs of 256 take 768 of 960 slots, and the rest is too small for a fourth. Few of them ever hold a token.",
            ),
            wrong("The arithmetic.", "It computes three tokens a step. The same machine computes twenty and more in the paged run."),
            wrong("The number of CPU threads.", "Both runs use the same. Look at how many requests are running: three."),
        ),
    ),
    Question(
        "00.4", "After step 1, 58 of 60 blocks are taken and 69 % of the slots hold tokens. What is in the other slots?", "00-grid",
        (
            right(
                "Nothing yet: the ends of last blocks, and two free blocks.",
                "A block is taken whole. Its empty slots belong to one request and wait for its next tokens.",
            ),
            wrong(
                "Tokens that are computed in advance.",
                "A token's keys and values are written in the step that computes it, not before. Look at the ticks of a block.",
            ),
            wrong("Holes that nobody can ever use.", "No hole is too small here: every free block fits every request."),
            wrong("The weights of the model.", "Weights have memory of their own. The pool holds keys and values only."),
        ),
    ),
    Question(
        "00.5", "Request X is preempted in step 13. What does its user see?", "00-preempted",
        (
            right("A pause.", "X gives its blocks back, waits, and is computed again when there is room. Nothing is lost but a little time."),
            wrong("An error: out of memory.", "Memory ran out, and the engine chose who waits. No request failed."),
            wrong("The answer starts over, with other words.", "The tokens it has written stay; only their keys and values are computed again."),
            wrong("A shorter answer.", "Each of the 24 gets as many tokens as it asked for, those that were preempted too."),
        ),
    ),
    Question(
        "00.6", "300 steps against 141. Is the paged run 2.1 times as fast in seconds?", "00-report",
        (
            right(
                "Not by that alone: a fuller step takes a little longer.",
                "A step with twenty requests does more than one with three. How much longer it takes is the subject of lesson 01.",
            ),
            wrong(
                "Yes, steps are seconds.",
                "A step is one pass through the model, for as many requests as run. Its time grows with them, though slowly.",
            ),
            wrong(
                "No, it is just as slow: the same tokens are computed.",
                "The same tokens, in half as many passes over the weights. On a GPU that is most of the time.",
            ),
        ),
    ),
)
