"""Knowledge checks of lesson 06: share until you write."""
from __future__ import annotations

from .question import Question, right, wrong

CELLS = {
    "06-fork": "One prompt, four branches",
    "06-write": "The first write",
    "06-full": "Prompts of other lengths",
    "06-saving": "What sharing saves",
    "06-once": "The prompt is computed once",
    "06-beams": "Beams change parents",
    "06-history": "Where is it today?",
}
"""Cell id -> the words under which a reader finds it."""

QUESTIONS = (
    Question(
        "06.1", "A prompt of 23 tokens has been computed, with `n=4` and B = 16. What happens in memory when it forks?", "06-fork",
        (
            right(
                "Three more tables of two numbers are made, and two counts rise to 4.",
                "Two blocks are in use before and after. No key and no value moves, and with 2,000 tokens none would.",
            ),
            wrong(
                "The prompt's blocks are copied three times, once for each new branch.",
                "That is how slabs do it. With tables, the new branches name the blocks that are there.",
            ),
            wrong(
                "The second block is copied three times; only the full one is shared.",
                "It will be, but not yet: until somebody writes, all four can read the same 7 tokens in it.",
            ),
            wrong(
                "Nothing: from now on all four branches use one and the same table.",
                "Each has a table of its own. With a single one, a block that one branch adds would appear in all four texts.",
            ),
        ),
    ),
    Question(
        "06.2", "When is a shared block copied?", "06-write",
        (
            right(
                "When a branch is about to write to it and its count is above 1.",
                "Until then everybody reads the same block; and whoever is the last with it writes in place.",
            ),
            wrong(
                "At the fork, so that every branch has a place for its next token.",
                "The fork copies tables, a few integers, and raises counts. Most shared blocks are never copied at all.",
            ),
            wrong(
                "Whenever one of its branches writes to it, the last one included.",
                "The last one is alone with it by then: its count has come down to 1. Four wrote, and 3 copies were made.",
            ),
            wrong(
                "As soon as two of its branches have sampled different tokens.",
                "What a block holds is the past, which they have in common. Only a write into it matters, whatever the token is.",
            ),
        ),
    ),
    Question(
        "06.3", "A prompt of 32 tokens, n = 4, B = 16. How many copies are made when the branches first write?", "06-full",
        (
            right("0: each takes a new block.", "Both blocks are full, so nobody writes to them again. Nothing is copied into a new one."),
            wrong("3: all but the last copy.", "That is right where the last block has room. Here nobody has to write into it."),
            wrong("4: each has a block of its own.", "It has, but a new one, which begins with this token. Nothing is copied into it."),
            wrong("6: three copy both blocks.", "Only a block that is *written* is ever copied, and never more than one a branch."),
        ),
    ),
    Question(
        "06.4",
        "23 prompt tokens and n = 4: sharing saves 37.5 % of the blocks after the 2nd output token, and 7.5 % after 128. Why less?",
        "06-saving",
        (
            right(
                "The saved blocks stay three, while each branch adds blocks of its own.",
                "Three saved blocks of 8 are much, three of 40 are little. Long prompts and short answers gain most.",
            ),
            wrong(
                "The texts differ more and more, so fewer of their blocks are equal.",
                "Nobody compares blocks. What the branches share is the prompt's full block, and that does not change.",
            ),
            wrong(
                "Sooner or later each branch must have a copy of its whole past.",
                "It needs its past to read, and reading needs no copy. The full prompt block is shared to the end.",
            ),
            wrong(
                "Each new token lowers the counts of the blocks that come before it.",
                "A count changes when a table gains or loses an entry. Block 0 keeps its 4 as long as the branches live.",
            ),
        ),
    ),
    Question(
        "06.5", "What does `n=4` cost, compared with `n=1`?", "06-once",
        (
            right(
                "One prefill, then four decodes a step; the prompt's full blocks are there once.",
                "For four answers of 8 and a prompt of 23, 51 tokens instead of 120. In memory, after the first write, 5 blocks instead of 8.",
            ),
            wrong(
                "One prefill, then one decode a step, from whose scores four tokens are drawn.",
                "That is so for the first token only. From then on the branches have different pasts, and each needs scores of its own.",
            ),
            wrong(
                "Four prefills and four decodes a step, as for four requests; what is saved is memory.",
                "The prompt's keys and values are the same for all four. They are computed once: 23 tokens, not 4 x 23.",
            ),
            wrong(
                "Four times the memory; what is saved is computing the prompt again and again.",
                "Both are saved. Four tables name the prompt's full blocks, which exist once.",
            ),
        ),
    ),
    Question(
        "06.6", "Why do beams share more than parallel samples?", "06-beams",
        (
            right(
                "They fork again and again, so parts of their answers are common to them too.",
                "When all four continue beam 1, its whole text is common to them. Samples have only the prompt in common.",
            ),
            wrong(
                "They are computed in one decode, so that one cache is enough for all of them.",
                "Each computes its own token in every step, as samples do, and has a table of its own.",
            ),
            wrong(
                "They end earlier than samples, while the shared prompt is still a large part.",
                "All of them ran for 64 tokens, beams and samples. What beams have in common is longer.",
            ),
            wrong(
                "A beam that is dropped hands its blocks on to those that survive.",
                "What it had alone goes back to the pool. Survivors share what they have from a common parent.",
            ),
        ),
    ),
    Question(
        "06.7", "Why did later versions of vLLM take copy-on-write and beam search out of their core?", "06-history",
        (
            right(
                "Few people used them, and every new feature had to get along with them.",
                "Complexity against rare use. Outside the core a beam is a request, and the prefix cache finds the full blocks in common.",
            ),
            wrong(
                "Copying blocks in mid-step took more time than the sharing saved.",
                "A step copies a block a branch at most, which is little beside what a beam shares. The reason was the engine's code, not its speed.",
            ),
            wrong(
                "Branches sometimes wrote to the same block, so that answers went wrong.",
                "That is what happens *without* copy-on-write, as in “Break it”. With it, sharing does not change a number.",
            ),
            wrong(
                "The prefix cache came to share the same blocks, partly filled ones too.",
                "It shares full blocks only. The partly filled one is computed by each beam for itself; people could live with that.",
            ),
        ),
    ),
)
