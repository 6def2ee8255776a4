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
        "07.1", "What does a prefix cache speed up?", "07-second",
        (
            right(
                "Computing a prompt, as far as it begins like one that was computed before.",
                "Of Juliet's 110 tokens 96 were found and 14 computed. Each token of the answer after that costs what it always costs.",
            ),
            wrong(
                "Every step of the answer, because attention has fewer tokens left to look at.",
                "Attention looks at all of them, wherever their keys and values came from. They were found, not left out.",
            ),
            wrong(
                "Whole requests, because the answer to a known prompt is stored with it.",
                "The cache keeps keys and values, no answers. The answer is computed and sampled anew, with its own seed.",
            ),
            wrong(
                "All requests after the first, because the server has warmed up by then.",
                "Only those that begin like an earlier one, over at least one full block. Others find nothing, however long the server has been "
                "running.",
            ),
        ),
    ),
    Question(
        "07.2",
        "A service puts the same 300 words into every prompt. Its prefix cache is on, and its hit rate stays 0. What may be the reason?",
        "07-clock",
        (
            right(
                "A number near the top of the prompt, a clock time or a counter, is different each time.",
                "A block key contains everything before the block, so from that number on nothing is found.",
            ),
            wrong(
                "Every user asks something else at the end, and a prompt is found only as a whole.",
                "Blocks are found one by one, from the first on. Juliet's end was not Romeo's, and 96 of the 100 common tokens were found.",
            ),
            wrong(
                "The earlier requests have ended, and a block can be found only while somebody uses it.",
                "Romeo's request was gone when Juliet's came. A block can be found until it is overwritten.",
            ),
            wrong(
                "The engine has a fault: the words are the same, so their blocks must match wherever they stand.",
                "After another beginning the same words have other keys and values. They must not match.",
            ),
        ),
    ),
    Question(
        "07.3", "240 tokens are common to all prompts. How many of them are reused with B = 128, and with B = 256?", "07-size",
        (
            right(
                "128 and 0: only blocks that lie wholly in the common part are found.",
                "240 holds one whole block of 128 and none of 256. With B = 16 all 240 are reused.",
            ),
            wrong(
                "240 and 240: a block is used up to the first token that differs.",
                "A block is found under all of its tokens, or not at all. The rest of a partly equal block belongs to somebody else's text.",
            ),
            wrong(
                "256 and 256: as when memory is given out, the last block is rounded up.",
                "Rounding up would hand out keys and values of tokens that are not the same. Here it is rounded down.",
            ),
            wrong(
                "128 and 240: a text that is shorter than a block is kept as it is.",
                "A block is entered when it is full. With B = 256 the 240 common tokens share their block with the words that follow.",
            ),
        ),
    ),
    Question(
        "07.4", "A prompt of 96 tokens is cached whole (B = 16). What does the next request with this prompt compute first?", "07-whole",
        (
            right(
                "The prompt's last token once more, for the scores of the next one.",
                "Something has to look at the 96 keys. The token's own key and value are stored already, so nothing is written.",
            ),
            wrong(
                "Nothing: the first token of its answer can be sampled at once.",
                "Sampled from what? The cache keeps keys and values, not the scores of the next token.",
            ),
            wrong(
                "The first token of its answer, at position 96.",
                "That one is not known yet. It is sampled from the scores that the token at position 95 gives.",
            ),
            wrong(
                "The prompt's last block, 16 tokens, since a block is computed as a whole.",
                "A block is *found* as a whole. One token is enough for the scores; the plan says: position 95.",
            ),
        ),
    ),
    Question(
        "07.5", "A text of three blocks is cached and nobody uses it. The pool has no free block and needs one. Which one is evicted?", "07-evict",
        (
            right(
                "The last of the three: then two of them can still be found.",
                "A lookup begins at the first block and stops at the first that is missing. Of A, block 2 went, and 2 of 3 were found.",
            ),
            wrong(
                "The first of the three: it was computed first, so it is the oldest.",
                "They were given back together, the last one first. Without the first none would be found, and two would take up room for nothing.",
            ),
            wrong(
                "All three: with one of them missing, the others cannot be found.",
                "Those after it cannot, those before it can. And no more is evicted than is needed.",
            ),
            wrong(
                "None: the request waits until somebody gives back a block that is not cached.",
                "A cached block counts as available. Nobody ever waits because of the cache.",
            ),
        ),
    ),
    Question(
        "07.6", "Strangers share this engine, and no salt is set. What can one of them learn about another one's prompt?", "07-salt",
        (
            right(
                "Whether a text that he guesses has been sent, by the time until his first token.",
                "More tokens are found for the right guess: 48 instead of 32. A salt that the server sets separates tenants (CVE-2025-46570).",
            ),
            wrong(
                "What it says: the other one's keys and values become part of his own context.",
                "He gets a block only by sending the very tokens that are in it. It tells the model nothing that his prompt does not say.",
            ),
            wrong(
                "Nothing: with or without the cache, his answer consists of the same tokens.",
                "The tokens are the same, and the time until the first one is not. That time answers his guess.",
            ),
            wrong(
                "What it says, as soon as one of his blocks happens to have the same hash.",
                "This index compares the tokens, not only hashes. A collision cannot hand out somebody else's block.",
            ),
        ),
    ),
)
