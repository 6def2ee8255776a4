"""Knowledge checks of lesson 08: when memory runs out."""
from __future__ import annotations

from .question import Question, right, wrong

CELLS = {
    "08-pause": "Three requests, eight blocks",
    "08-resume": "When may it return?",
    "08-fig19": "Fig. 19: swap or recompute",
}
"""Cell id -> the words under which a reader finds it."""

QUESTIONS = (
    Question(
        "08.1", "Blocks run out. Which request steps back, and why?", "08-pause",
        (
            right(
                "The latest arrival, so that the oldest is sure to finish.",
                "Nobody is sent back for somebody younger. When the oldest has finished, the next one is the oldest: the system moves on.",
            ),
            wrong(
                "The largest, since it gives the most blocks back at once.",
                "Two large requests could then throw each other out for ever. Size plays no part: A, B and C held the same.",
            ),
            wrong(
                "The one with the fewest computed tokens, so that the least work is lost.",
                "Often that is the latest, and yet it is not the rule: a short old request would be sent back again and again.",
            ),
            wrong(
                "The one with the most tokens still to come, so that the others end soon.",
                "Nobody knows how long an answer will be. The order of arrival is known.",
            ),
        ),
    ),
    Question(
        "08.2",
        "C has a prompt of 6 tokens and 3 tokens of its answer when it is preempted. It is recomputed. What does the step of its return compute?",
        "08-pause",
        (
            right(
                "9 tokens: the prompt and the answer so far, all of them side by side.",
                "All are known, so they run like a prompt of 9, in one step. Eight of them are computed for the second time.",
            ),
            wrong(
                "6 tokens: the prompt; the answer's three follow in a step each.",
                "Only an *unknown* token needs a step of its own. These three are known.",
            ),
            wrong(
                "6 tokens: the prompt, from which the answer is then sampled once more.",
                "The user has seen three tokens of it. They stay, and what follows must follow on them.",
            ),
            wrong(
                "8 tokens: those whose keys and values were in the cache before.",
                "The ninth, sampled in step 3, had not run yet. It runs now as well: from its scores comes the next one.",
            ),
        ),
    ),
    Question(
        "08.3", "What does the user of a preempted request see?", "08-pause",
        (
            right(
                "The stream stands still for some steps and then goes on.",
                "C stops in step 4, goes on in step 11, and gets its 10 tokens, seven steps later than with enough memory: the same tokens.",
            ),
            wrong(
                "The answer starts over, perhaps with other words.",
                "Its tokens are kept. Only their keys and values are computed again, or fetched.",
            ),
            wrong(
                "The answer ends where it was, with finish reason \"length\".",
                "C gets all of its 10 tokens. Only a request that has outgrown the whole pool, alone in it, has to end.",
            ),
            wrong(
                "The rest of the answer comes more slowly, out of the host's memory.",
                "Attention reads the pool and nothing else. Whatever lies in host memory is brought back before the request runs.",
            ),
        ),
    ),
    Question(
        "08.4", "C was swapped out with 2 blocks (8 tokens, B = 4) and has 9 tokens. 2 blocks are free. May it return?", "08-resume",
        (
            right(
                "No: it comes back to run its ninth token, and that needs a third block.",
                "With 2 it would come back, find no block and leave again. Under “Thrashing” you saw it: 3 preemptions and 12 block moves instead of "
                "1 and 4.",
            ),
            wrong(
                "Yes: there is room for its two blocks, and all its keys and values are in these.",
                "There is, but not for its ninth token. It would have come back for nothing.",
            ),
            wrong(
                "Yes: the third block can be taken from whoever arrived last.",
                "That is C. Nobody who arrived earlier is sent back for it.",
            ),
            wrong(
                "No: whoever was swapped out waits until those who stayed have ended.",
                "It waits for blocks, not for people. With a third free block it would return while A and B run.",
            ),
        ),
    ),
    Question(
        "08.5", "When is swapping quicker than recomputing?", "08-fig19",
        (
            right(
                "With large blocks, a fast link and a small cache per token.",
                "At B = 256 recomputing takes 1.17 times as long as swapping, and a model with a smaller cache has still less to move.",
            ),
            wrong(
                "With small blocks, since then each copy is a small one.",
                "There are as many bytes, in more copies, and each copy has a cost of its own: at B = 1, 137.4 ms against 36.3 for recomputing.",
            ),
            wrong(
                "Wherever the host has room, since copying is less work than computing.",
                "It is less work over a slow link. Up to B = 16 recomputing was quicker in the paper; they cross between 16 and 32.",
            ),
            wrong(
                "On no machine of today, which is why later engines gave it up.",
                "They gave it up to keep the engine simple. With a small cache per token it is well ahead: 5.3 against 23.9 ms for Llama-3-8B.",
            ),
        ),
    ),
    Question(
        "08.6",
        "The overhead of recomputation is \"never higher than 20 % of swapping's latency\", says the paper. What does its Fig. 19a show?",
        "08-fig19",
        (
            right(
                "Recomputing takes at most a fifth longer than swapping out and in again.",
                "1.17 times as long at B = 256; at B = 1 it is 0.26 times, far quicker.",
            ),
            wrong(
                "Recomputing takes at most a fifth of the time of swapping.",
                "The ratio goes from 0.26 to 1.17, by block size. A fifth would be 0.20.",
            ),
            wrong(
                "A preempted request ends at most a fifth later than without preemption.",
                "The figure compares two ways to come back. How long somebody waits before is not in it: C waited for seven steps.",
            ),
            wrong(
                "Recomputing takes at most a fifth longer than the first prefill did.",
                "The figure does not compare these two. How much longer it takes depends on how much has been answered.",
            ),
        ),
    ),
)
