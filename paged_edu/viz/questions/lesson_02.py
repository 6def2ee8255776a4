"""Knowledge checks of lesson 02: three ways to waste a gigabyte."""
from __future__ import annotations

from .question import Question, right, wrong

CELLS = {
    "02-parts": "Fig. 2 from four formulas",
    "02-rows": "Four managers, one trace",
    "02-hole": "Free, and refused",
    "02-buddy": "A buddy allocator by hand",
    "02-grow": "Growing by doubling",
    "02-share": "Four identical prompts",
}
"""Cell id -> the words under which a reader finds it."""

QUESTIONS = (
    Question(
        "02.1", "How does reservation differ from internal fragmentation?", "02-parts",
        (
            right(
                "It will be used later, but keeps others out now.",
                "Internal fragmentation will never be used by anybody: the request ends before it gets there.",
            ),
            wrong("It does not; both are empty slots.", "Now both are empty. In the end one of them has held tokens, and the other has not."),
            wrong(
                "Reservation is the prompt.",
                "The prompt's tokens are token states from the first step on. Reservation is what the answer will still need.",
            ),
        ),
    ),
    Question(
        "02.2", "Orca (Oracle) knows every output length. Does it waste nothing?", "02-rows",
        (
            right(
                "It wastes: the future is reserved from the start, and rounding leaves holes.",
                "In the paper 38.2 % of its memory held tokens. Knowing the length only removes internal fragmentation.",
            ),
            wrong(
                "It wastes nothing: it reserves exactly what is needed.",
                "Exactly what is needed *in the end*. Until then most of it stands empty and keeps others waiting.",
            ),
            wrong("Only external fragmentation is left.", "The largest part is reservation: slots for tokens that come many steps later."),
        ),
    ),
    Question(
        "02.3", "Why not simply grow a sequence's tensor when it is full?", "02-grow",
        (
            right(
                "Growing copies, needs old and new at once, and a hole that is large enough.",
                "From 16 to 1,024 slots, 1,008 tokens are copied in all; the last move holds 1,536 slots while it copies 512.",
            ),
            wrong("Tensors cannot grow.", "They can be moved to a larger place. The manager `grow` does just that; look at its copies."),
            wrong(
                "It would be best: copying is free on a GPU.",
                "It costs bandwidth, the very thing decoding is short of, and the old place cannot be freed before the copy is done.",
            ),
            wrong("It would change the answer.", "Keys and values are the same wherever they lie."),
        ),
    ),
    Question(
        "02.4", "1,392 slots are free, and a request of 20 tokens is refused. Why?", "02-hole",
        (
            right(
                "It must have 2048 slots in one piece, and there is no such piece.",
                "7 x 2048 of 15,728 slots are taken. What is left is too small for an eighth reservation: external fragmentation.",
            ),
            wrong(
                "20 tokens do not fit into 1,392 slots.",
                "They would fit 69 times. The server does not ask for 20 slots, because the answer might become long.",
            ),
            wrong("The pool is full.", "1,392 slots of it are free, 9 %, and stay so as long as the seven run."),
            wrong("The batch is limited to 7.", "Nobody set such a limit. It is what the memory comes to when each takes 2048."),
        ),
    ),
    Question(
        "02.5", "Of four runs of 16 the 2nd and the 3rd are freed. A request for 32 slots is refused. Why?", "02-buddy",
        (
            right(
                "The two are neighbours and no buddies: 32 would have to begin at 0 or at 32.",
                "Runs begin at multiples of their size; that makes joining cheap, and this is its price.",
            ),
            wrong("There are only 16 free slots.", "There are 32, side by side."),
            wrong("Memory must be cleared before it is used again.", "Nothing is cleared; a free slot can be handed out at once."),
            wrong(
                "A mistake of the allocator: it should join them.",
                "It could, and would then have to keep track of free pieces of any length, which is what buddies avoid.",
            ),
        ),
    ),
    Question(
        "02.6", "Four samples of one prompt cost four slabs in a contiguous cache. Why is the prompt not stored once?", "02-share",
        (
            right(
                "Each sequence must lie in one piece, from its first token on.",
                "One copy of the prompt can be followed by one continuation only. The other three need copies of their own.",
            ),
            wrong("The four prompts have different keys and values.", "The same tokens at the same positions have the same ones."),
            wrong("Sharing would make the answers alike.", "Reading the same prompt does not make anybody choose the same words."),
        ),
    ),
)
