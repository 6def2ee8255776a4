"""Knowledge checks of lesson 02: three ways to waste a gigabyte."""
from __future__ import annotations

from .question import Question, right, wrong

CELLS = {
    "02-slab": "One request, one slab",
    "02-hole": "Free, and out of reach",
    "02-rows": "Four managers, one trace",
    "02-buddy": "A buddy allocator by hand",
    "02-grow": "Growing by doubling",
    "02-share": "Four identical prompts",
}
"""Cell id -> the words under which a reader finds it."""

QUESTIONS = (
    Question(
        "02.1", "How does reservation differ from internal fragmentation?", "02-slab",
        (
            right(
                "Reserved slots will hold tokens of this request; the others never will.",
                "A's slab has 2 of the first kind and 2038 of the second. As long as A runs, nobody else can have either.",
            ),
            wrong(
                "Reserved slots may be lent to other requests until they are needed; the others may not.",
                "Neither may be lent: the slab is A's alone. That is why reservation counts as waste as long as it is empty.",
            ),
            wrong(
                "Reservation is what is kept for the prompt, internal fragmentation what is kept for the answer.",
                "The prompt's tokens are token states from the first step on. Both parts are kept for the answer, which fills only one of them.",
            ),
            wrong(
                "Only in name: both are slots that stay empty until the request ends.",
                "Both are empty now. When A ends, two more of its slots hold tokens, and 2038 still hold none.",
            ),
        ),
    ),
    Question(
        "02.2", "1,392 slots are free, and a request of 20 tokens must wait. Why?", "02-hole",
        (
            right(
                "It is to have 2048 slots in one run, and there is no free run of that length.",
                "7 x 2048 of 15,728 slots are taken. What is left is too small for an eighth slab: external fragmentation.",
            ),
            wrong(
                "The free slots lie scattered between the slabs, and no 20 of them are neighbours.",
                "They lie together, at the end, and would hold 20 tokens 69 times. Nobody asks for 20: the answer might become long.",
            ),
            wrong(
                "The free slots are kept for tokens that the seven other requests will still get.",
                "Those have slots in the seven slabs already. The 1,392 slots, 9 % of the pool, belong to nobody.",
            ),
            wrong(
                "The server was set to run seven requests at the same time, and seven are running.",
                "Nobody set such a limit. Seven is what the memory comes to when each takes 2048.",
            ),
        ),
    ),
    Question(
        "02.3", "Orca (Oracle) knows every output length. What does it still waste?", "02-rows",
        (
            right(
                "Slots for tokens of later steps, and what its slabs are rounded up by.",
                "In step 31 that is 154 and 274 slots of 960; 521 hold tokens. Knowing the length removes internal fragmentation (but for one slot "
                "each), and only that.",
            ),
            wrong(
                "Nothing: each slab is exactly as long as its request will be.",
                "As it will be in the end. Until then a part of it is empty and keeps others waiting: 154 slots in step 31.",
            ),
            wrong(
                "Only what its slabs are rounded up by, since all that it asks for will be used.",
                "Used, but later: 154 slots of its slabs are empty in step 31, and nobody else can have them.",
            ),
            wrong(
                "As much as Max, because a slab stays a slab, however long it is.",
                "Its slabs are shorter, so more of them fit: 11 requests run in step 31 and not 3, with 521 tokens and not 285.",
            ),
        ),
    ),
    Question(
        "02.4", "Of four runs of 16 the 2nd and the 3rd are freed, and nobody gets 32 slots. Why?", "02-buddy",
        (
            right(
                "The two are no buddies: a run of 32 would begin at 0 or at 32.",
                "Runs begin at multiples of their size; that makes joining cheap, and this is its price.",
            ),
            wrong(
                "They came back in the wrong order; the 3rd should have been freed first.",
                "The order does not matter. The buddy of the 2nd is the 1st, that of the 3rd is the 4th, and both are taken.",
            ),
            wrong(
                "The allocator halves runs and does not join them again while it is in use.",
                "It joins two buddies as soon as both are free. Free the 1st as well, and the first half is one run of 32.",
            ),
            wrong(
                "Slots that were used have to be cleared before they can be part of a longer run.",
                "Nothing is cleared; a free slot can be handed out at once, and whoever gets it overwrites it.",
            ),
        ),
    ),
    Question(
        "02.5", "What is the trouble with slabs that grow by doubling?", "02-grow",
        (
            right(
                "The larger run must be free while the old one is still held.",
                "The last move to 1,024 slots holds 1,536, old and new, while it copies 512. Whoever finds no such run steps back, even in a pool "
                "that is half empty.",
            ),
            wrong(
                "Each move copies all tokens, which soon takes most of the time.",
                "It copies all, but each move comes after twice as many steps: 1,008 tokens in all on the way to 1,024, one for each.",
            ),
            wrong(
                "After a move, keys and values are no longer valid and must be computed again.",
                "They are the same numbers wherever they lie. They are copied, and nothing is computed.",
            ),
            wrong(
                "A tensor's length is fixed, so the request has to end when its slab is full.",
                "The slab's is, and so the request moves to a longer one. The manager `grow` does just that.",
            ),
        ),
    ),
    Question(
        "02.6", "Four samples of one prompt cost four slabs in a contiguous cache. Why is the prompt not stored once?", "02-share",
        (
            right(
                "Each sample must lie in one run, and only one can follow the prompt directly.",
                "The slots after the stored prompt have room for one continuation. The other three need copies of the prompt before theirs.",
            ),
            wrong(
                "Each answer changes the prompt's keys and values, so each needs its own.",
                "Attention is causal: what comes later changes nothing before it. The four copies hold the same numbers.",
            ),
            wrong(
                "Two sequences cannot read the same slots in one step, so each needs slots of its own.",
                "Reading is no problem, for any number of them: under paging, all four read the two blocks of the prompt.",
            ),
            wrong(
                "The four samples would come out alike if they read the same keys and values.",
                "They do read the same, stored once or four times. They differ because each draws its own tokens.",
            ),
        ),
    ),
)
