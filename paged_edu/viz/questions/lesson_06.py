"""Knowledge checks of lesson 06: share until you write."""
from __future__ import annotations

from .question import Question, right, wrong

CELLS = {
    "06-fork": "One prompt, four branches",
    "06-write": "The first write",
    "06-full": "A prompt that ends with a full block",
    "06-saving": "The saving fades",
    "06-beams": "Beams change parents",
    "06-history": "Where is it today?",
}
"""Cell id -> the words under which a reader finds it."""

QUESTIONS = (
    Question(
        "06.1", "When is a shared block copied?", "06-write",
        (
            right(
                "At the first write to it while its count is above 1.",
                "Until then everybody reads the same block; and whoever is the last with it writes in place.",
            ),
            wrong("At the fork.", "The fork copies a table, a few integers, and raises counts. Most shared blocks are never copied at all."),
            wrong("When a branch ends.", "Then its counts are lowered, nothing else."),
            wrong("Whenever two branches' texts differ.", "They differ in their newest tokens. Blocks before that stay shared for ever."),
        ),
    ),
    Question(
        "06.2", "What does `n=4` cost, compared with `n=1`?", "06-fork",
        (
            right(
                "One prefill, four decodes, and shared prompt blocks.",
                "The prompt is computed and stored once; after that every branch needs its own token in every step.",
            ),
            wrong(
                "One decode: the four come out of one pass.",
                "They come out of one *step*, in which four tokens are computed. Their contexts differ.",
            ),
            wrong("Four prefills.", "The keys and values of the prompt are the same for all. They are computed once and shared by the tables."),
            wrong("Four times the memory.", "After the first written token: 5 blocks instead of 8, for a prompt of 23 tokens and B = 16."),
        ),
    ),
    Question(
        "06.3", "Why did later versions of vLLM drop copy-on-write and beams from the core?", "06-history",
        (
            right(
                "Complexity against rare use.",
                "Beam search moved outside and leans on the prefix cache, which shares full blocks. That is enough for most people.",
            ),
            wrong("It was wrong: answers differed.", "It was exact, as you saw. Sharing does not change a number."),
            wrong("Paging cannot do it any more.", "Nothing about blocks and tables has changed. You have just run it."),
            wrong("Memory has become cheap.", "Contexts grew faster than memory did."),
        ),
    ),
    Question(
        "06.4", "A prompt of 32 tokens, n = 4, B = 16. How many copies does the first written token cause?", "06-full",
        (
            right("0.", "Both blocks are full; nobody writes to them again. Each branch takes a new block for its token."),
            wrong("3: n - 1.", "That is right where the last block has room. Here there is nothing in it to be written."),
            wrong("4: one a branch.", "A new block is no copy: it is empty when it is taken."),
            wrong("6: three for each of the two blocks.", "Only a block that is *written* is ever copied, and never more than one a branch."),
        ),
    ),
    Question(
        "06.5", "Why do beams share more than parallel samples?", "06-beams",
        (
            right(
                "Beams fork again and again, so they share written tokens too.",
                "When all four continue beam 1, its whole text is common to them. Samples have only the prompt in common.",
            ),
            wrong("Beams are shorter.", "They are as long. What they have in common is longer."),
            wrong("All beams are computed in one decode.", "Each needs its own token in every step, as samples do."),
            wrong(
                "A beam keeps only its best block.",
                "A beam needs every block of its text; those that it has in common with others are stored once.",
            ),
        ),
    ),
    Question(
        "06.6",
        "23 prompt tokens and n = 4: sharing saves 37.5 % of the blocks after the 2nd output token, and 7.5 % after 128. Why less?",
        "06-saving",
        (
            right(
                "The shared part stays as large as the prompt, and each branch's own part grows.",
                "Three saved blocks of 8 are much, three of 40 are little. Long prompts and short answers gain most.",
            ),
            wrong("Shared blocks are copied one after the other.", "Only the partial one was. The full prompt block is shared to the end."),
            wrong("Blocks are evicted.", "No block in use is evicted. The same three are saved all the time."),
            wrong("Counts are lowered with every token.", "A count changes when a table gains or loses an entry, not when a token is written."),
        ),
    ),
)
