"""Knowledge checks of lesson 07: remember what was computed."""
from __future__ import annotations

from .question import Question, right, wrong

CELLS = {
    "07-second": "The second request",
    "07-clock": "A clock in the first line",
    "07-size": "A prefix and the size of a block",
    "07-whole": "A prompt that is cached whole",
    "07-evict": "Who is evicted first",
    "07-salt": "Salt",
}
"""Cell id -> the words under which a reader finds it."""

QUESTIONS = (
    Question(
        "07.1", "All prompts start alike, and the hit rate is 0. What may be the reason?", "07-clock",
        (
            right(
                "The common part is shorter than a block, or something early in it differs.",
                "Only full blocks are kept, and a block's key contains everything before it. A clock time in the first line is enough.",
            ),
            wrong(
                "The cache is off.",
                "It is on unless you switch it off. `num_cached_tokens` would be 0 then as well, but look at the prompts first.",
            ),
            wrong(
                "Equal blocks in the middle should have matched: a bug.",
                "The same words after another beginning have other keys and values. They must not match.",
            ),
            wrong("The cache needs some requests to warm up.", "The second request hits already: 96 of its tokens, where the system prompt has 100."),
        ),
    ),
    Question(
        "07.2", "Can another user see my text through a shared cache?", "07-salt",
        (
            right(
                "Not read it; but a faster first token can betray that a guessed prefix was there.",
                "A salt chosen by the server separates tenants (CVE-2025-46570). It becomes a part of every key.",
            ),
            wrong(
                "Yes: blocks are shared, so text leaks.",
                "A block is found only by somebody who sent the very same tokens. It shows nobody anything new.",
            ),
            wrong("No, there is no risk at all.", "Nothing can be read. The time until the first token is an answer to a guess all the same."),
            wrong("Only if the hashes collide.", "This index compares tokens, not only hashes: a collision cannot hand out somebody else's block."),
        ),
    ),
    Question(
        "07.3", "What does a prefix cache speed up?", "07-second",
        (
            right(
                "The prefill of beginnings that are known.",
                "Of 100 tokens 96 need not be computed again. After that each new token costs what it always costs.",
            ),
            wrong("Decoding.", "A decode step reads the same keys and values, wherever they came from."),
            wrong("Every request after the first.", "Only those that begin like an earlier one, over at least one full block."),
            wrong("The same question gets its stored answer back.", "No answers are stored. The answer is sampled anew, with its own seed."),
        ),
    ),
    Question(
        "07.4", "A prompt of 96 tokens is cached whole (B = 16). What is computed?", "07-whole",
        (
            right(
                "Its last token, once more.",
                "Somebody must give the logits for the first answer token. Its keys and values are there, so it is queried and nothing is written.",
            ),
            wrong("Nothing.", "Then there would be no logits to sample from: the cache keeps keys and values, not predictions."),
            wrong("Its last block, 16 tokens.", "One token is enough: the other 15 are found in the cache like the rest."),
            wrong("All 96, to be safe.", "Warm equals cold; there is nothing to be safe from."),
        ),
    ),
    Question(
        "07.5", "A finished chain of three cached blocks; the pool needs one block. Which one goes?", "07-evict",
        (
            right("The last of the chain.", "A lookup goes from the first block on, so two hits are left. Without the first, none would be."),
            wrong("The first: it is the oldest.", "Then nothing after it can be reached: 0 hits, and two blocks still held."),
            wrong(
                "All three: a chain belongs together.",
                "A shorter chain is worth less, not nothing. Every block that is left can still be hit from the front.",
            ),
            wrong("The one with the fewest tokens.", "All have the same number: only full blocks are kept."),
        ),
    ),
    Question(
        "07.6", "240 tokens are common to all prompts. How many of them are reused with B = 128, and with B = 256?", "07-size",
        (
            right("128 and 0.", "Whole blocks only: 240 holds one block of 128 and none of 256. With B = 16 all 240 are reused."),
            wrong("240 and 240.", "A partly equal block cannot be used: its other tokens have keys and values of somebody else's text."),
            wrong("256 and 256: rounded up.", "What is not the same cannot be reused. It is rounded down."),
            wrong("128 and 240.", "No block of 256 is full with 240 common tokens, so none matches."),
        ),
    ),
)
