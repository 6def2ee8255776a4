"""Knowledge checks of lesson 13: a policy and a manager, raced."""
from __future__ import annotations

from .question import Question, right, wrong

CELLS = {
    "13-order": "Short ones first",
    "13-known": "If one knew",
    "13-tail": "Who pays",
    "13-illegal": "What no policy may do",
    "13-break": "Break it",
    "13-manager": "Which blocks",
}
"""Cell id -> the words under which a reader finds it."""

QUESTIONS = (
    Question(
        "13.1", "The mean fell from 87.2 to 54.5 with the same memory. Where does that come from?", "13-order",
        (
            right(
                "From the order: many short requests no longer wait behind a few long ones.",
                "Memory, blocks and tokens are the same. A long request in front makes everybody behind it late; a short one hardly anybody.",
            ),
            wrong(
                "From paging: no slot is wasted.",
                "Both ran on the same paged manager. Paging says how much fits, the policy who of them it is.",
            ),
            wrong(
                "From fewer tokens: less had to be computed again.",
                "More was: 775 tokens instead of 592. A mean can get better while the machine does more work.",
            ),
            wrong(
                "From shorter total time: the last request ends earlier.",
                "It ends later, in step 191 instead of 184. The mean is about everybody; the last one is only one.",
            ),
        ),
    ),
    Question(
        "13.2", "When is fairness lost?", "13-tail",
        (
            right(
                "When newcomers may always pass somebody who waits.",
                "As long as they keep coming, that one never gets in, however much memory there is. It needs a rule under which waiting counts.",
            ),
            wrong(
                "As soon as anybody is preempted.",
                "First come, first served preempts 15 times on TRACE24, and everybody ends. Who steps back returns to its place in the line.",
                "13-order",
            ),
            wrong(
                "As soon as there are priorities at all.",
                "Any order but that of arrival prefers somebody, for a while. With ageing that runs out: whoever waits comes first one day.",
            ),
            wrong(
                "When the pool is too small for all.",
                "Then somebody must wait, and that is all. Under first come, first served each one's turn comes, in any pool in which it fits.",
            ),
        ),
    ),
    Question(
        "13.3", "Which of the scheduler's invariants may a policy break?", "13-illegal",
        (
            right(
                "None: it only chooses among legal steps.",
                "It is asked for an order of those who wait and for one of those who run. What then happens, and whether, the scheduler says.",
            ),
            wrong(
                "All or nothing: it may let somebody keep half of its blocks.",
                "The victim is one request, and it gives back every block. Half of a context is of no use to anybody.",
            ),
            wrong(
                "The token budget, for a request that is urgent.",
                "Budget, places and blocks are counted by the scheduler, whoever comes first. Who is at the head waits until there is room.",
            ),
            wrong(
                "That everybody is kept: it may leave out who would take too long.",
                "Leaving somebody out raises a `ChoiceError` that names it, and nobody is lost. At the end of the line is as far as one can be put.",
            ),
        ),
    ),
    Question(
        "13.4", "Somebody knows how long each answer gets and serves the shortest first. Why does it take 238 steps and not 184?", "13-known",
        (
            right(
                "The long answers come last, when there is nobody left to run beside them.",
                "A step costs the same for one request as for twenty. A tail of long answers, alone in the pool, is made of nearly empty steps.",
            ),
            wrong(
                "It preempts more often.",
                "Less often: 6 times, and first come, first served 15 times. Short answers leave before memory gets tight.",
            ),
            wrong(
                "It computes more tokens again.",
                "289 instead of 592. All the same, it takes longer: the steps are not full.",
            ),
            wrong(
                "Sorting by length takes time.",
                "Steps are counted here, and a step is a step, however long the scheduler thinks.",
            ),
        ),
    ),
    Question(
        "13.5", "Why does the paper preempt whoever came last?", "13-break",
        (
            right(
                "Then the oldest can always end, so that, one after the other, all can.",
                "Nobody ever takes a block from it. Whoever is the oldest after it is in the same position: it cannot go on like this for ever.",
            ),
            wrong(
                "It is the one with the fewest tokens, so the least is computed again.",
                "Often, and not always: the last to come may have the longest prompt. The reason is that everything moves on.",
            ),
            wrong(
                "It is chosen as if at random, and that is fair to all.",
                "Nothing is random in it. Let the oldest give way instead, while newcomers pass, and the first request never ends.",
            ),
            wrong(
                "Any victim would do as well, since the request comes back anyway.",
                "It comes back, and may be the victim once more before it has got any further. With the oldest as victim that goes on and on.",
            ),
        ),
    ),
    Question(
        "13.6", "On the hidden workload shortest prompt first halves the mean. Who pays for it?", "13-tail",
        (
            right(
                "The few with long prompts: one of them waits 394 steps, where first come, first served lets nobody wait for more than 170.",
                "The mean is made by the many, the tail by the few. A leaderboard that shows only the mean does not show them.",
            ),
            wrong(
                "Nobody: the mean says that a request takes half as long.",
                "On average. Within 212 steps first come, first served is done with 99 % of them; shortest prompt first needs 418 for that.",
            ),
            wrong(
                "Everybody a little.",
                "Most end much earlier. The bill goes to those who are passed again and again.",
            ),
            wrong(
                "The operator: the server needs more steps in all.",
                "552 instead of 563: it makes hardly a difference. On TRACE24 it is 191 against 184.",
                "13-order",
            ),
        ),
    ),
    Question(
        "13.7", "Large blocks of 16 slots for what is long, small ones of 4 for the rest. What is empty at the end of a sequence, on average?",
        "13-manager",
        (
            right(
                "1.5 slots: the end lies in a small block.",
                "(4 - 1) / 2, as with blocks of 4 alone; and a long prompt can lie in rows of 16 all the same, as long as large ones are whole.",
            ),
            wrong(
                "7.5 slots: (16 - 1) / 2.",
                "So it would be if the last block were a large one. `take` gives a large one for a full four of small ones only.",
            ),
            wrong(
                "9 slots: those of both sizes together.",
                "Only the last block of a sequence is not full, and that is a single one of 4 slots.",
            ),
            wrong(
                "None: what is left of a large block goes to somebody else.",
                "It does, in pieces of 4. Within the last small block of a sequence up to 3 slots stay empty.",
            ),
        ),
    ),
)
