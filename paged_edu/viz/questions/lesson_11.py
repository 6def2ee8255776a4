"""Knowledge checks of lesson 11: the paper, replayed. Numbers are the paper's own (text and curves), never the simulator's."""
from __future__ import annotations

from .question import Question, right, wrong

CELLS = {
    "11-curve": "A curve and its knee",
    "11-threshold": "A ratio needs a threshold",
    "11-memory": "Where the memory went",
    "11-static": "Twenty-two times?",
    "11-held-out": "The panels we had not seen",
    "11-what-if": "What if?",
    "11-text": "Where text and curves disagree",
}
"""Cell id -> the words under which a reader finds it."""

QUESTIONS = (
    Question(
        "11.1", "vLLM held 2 to 4 times the request rate of the Orca systems. Where does the factor come from?", "11-memory",
        (
            right(
                "More requests fit the memory at once, so each step serves more of them.",
                "On OPT-13B with ShareGPT a batch had 30.42 requests, against 13.62 with Oracle and 7.00 with Max. The weights are read once for "
                "all of them.",
            ),
            wrong(
                "Its attention kernel is faster, since it reads small blocks in place.",
                "The kernel was *slower*, by 20 to 26 %: it has to look up each block. More requests a step made up for that many times over.",
            ),
            wrong(
                "It admits and ends requests in every step, not batch by batch.",
                "So do the three Orcas: continuous batching came with Orca. It tells them from FasterTransformer, not from vLLM.",
            ),
            wrong(
                "Its requests need fewer steps, since nothing is computed twice.",
                "An answer of 338 tokens takes 338 steps in each of them. Only how many requests share a step is different.",
            ),
        ),
    ),
    Question(
        "11.2", "One request comes every four seconds, far below anybody's knee. How do the systems compare?", "11-curve",
        (
            right(
                "They are nearly equal: a request hardly ever has company.",
                "The three Orcas take 0.030 s/token there. Memory that nobody asks for makes nobody faster.",
            ),
            wrong(
                "vLLM is ahead by the same factor as at high rates.",
                "The factor is one of *rates* at the knee. Left of it nobody waits, and a step takes about as long in each system.",
            ),
            wrong(
                "vLLM is behind by a fifth or more, since its attention kernel is slower.",
                "The kernel is a small part of a step with few requests. Reading the weights takes most of it, and that is the same for all.",
            ),
            wrong(
                "Orca (Max) is slowest, since it sets 2,048 slots aside for each request.",
                "To set slots aside takes no time. It takes places, and with one request in the server there are plenty.",
            ),
        ),
    ),
    Question(
        "11.3",
        "At 3 requests a second, more than any system of Fig. 12a holds, the trace is made twice as long. What does the mean normalized latency do?",
        "11-curve",
        (
            right(
                "It about doubles: the queue grows as long as requests come.",
                "Each request finds a longer queue than the one before. Beyond the knee a point says how long the experiment ran, so read the rate "
                "where the curve turns up, not the height.",
            ),
            wrong(
                "It stays: it is a mean over requests, and twice as many are measured.",
                "A mean settles where things repeat. Here they get worse all the time: whoever comes later waits longer.",
            ),
            wrong(
                "It falls a little: the first requests, in an empty server, count for less.",
                "The first ones are the lucky ones. More of the others can only raise the mean.",
            ),
            wrong(
                "It rises a little: batches become larger, and each step takes longer.",
                "The batch is full already and stays as it is. What grows is the time before a request gets into it.",
            ),
        ),
    ),
    Question(
        "11.4",
        "vLLM over FasterTransformer, OPT-13B with ShareGPT: 14.5 times the rate at 0.2 s/token, 8.4 times at 0.5. Which of the two is right?",
        "11-threshold",
        (
            right(
                "Both: each is right for its threshold, and wrong without it.",
                "FasterTransformer's curve rises early and slowly, vLLM's late and steeply, so the ratio depends on the height of the line. Over "
                "Orca (Max), whose curve is steep too, it is 3.68 at both.",
            ),
            wrong(
                "14.5: the stricter limit is the more honest one.",
                "A stricter limit asks for another kind of service. Whoever can choose the limit afterwards can choose the ratio.",
            ),
            wrong(
                "8.4: there both servers are loaded to their limit.",
                "No height of the line is *the* limit of a server. At 0.9 s/token both are loaded more, and the ratio is another one again.",
            ),
            wrong(
                "Neither: what counts is the ratio of the highest rates that were drawn.",
                "A curve ends where it leaves the picture, at 1.6 s/token in Fig. 12a. That is a threshold too, only nobody chose it.",
            ),
        ),
    ),
    Question(
        "11.5", "\"Up to 22x\" over FasterTransformer, says the paper about ShareGPT. What do its own curves of OPT-13B show?", "11-static",
        (
            right(
                "Anything from 7 to 28 times, depending on the threshold.",
                "28 at 0.05 s/token, 7 near 1 s/token. Somewhere between lies a threshold for 22, and for many other numbers.",
            ),
            wrong(
                "22 times at most, whatever the threshold.",
                "At 0.05 s/token it is 28. A claim without its threshold cannot even be too high or too low.",
            ),
            wrong(
                "22 times at any threshold: a better server moves the whole curve.",
                "That would hold for two curves of the same shape. A padded batch makes everybody wait for its longest answer, so latency climbs "
                "early and slowly.",
            ),
            wrong(
                "22 times shorter latencies at the same rate.",
                "The factor compares rates at the same latency. Beyond one system's knee a ratio of latencies depends on how long the trace is.",
                "11-threshold",
            ),
        ),
    ),
    Question(
        "11.6", "Orca (Oracle) knows how long each answer will be. Still only 38.2 % of its KV memory holds tokens. Where is the rest?", "11-memory",
        (
            right(
                "Kept for tokens still to come, and lost to the rounding of its runs.",
                "In Fig. 2, 25.2 % is kept for later and 36.6 % is external or other: a buddy allocator gives powers of two, and gaps stay between "
                "them.",
            ),
            wrong(
                "Behind the ends of the answers, in slots that will never be used.",
                "That is 57.3 % of Max's memory and none of Oracle's: it knows where each answer ends.",
            ),
            wrong(
                "In the model's weights, which lie in the same memory.",
                "They take 26 of the card's 40 GB, and are no part of these percentages: 100 % is what is left for keys and values.",
            ),
            wrong(
                "In full reservations of 2,048 slots, as the length may be guessed wrong.",
                "Oracle does not guess. That is Max, which knows nothing and keeps the most that any request could need.",
            ),
        ),
    ),
    Question(
        "11.7",
        "OPT-175B with Alpaca (Fig. 12f): 264 GB for the cache, and short requests. What becomes of vLLM's lead over Orca (Oracle) and Orca (Pow2)?",
        "11-held-out",
        (
            right(
                "It shrinks: they can batch many requests too, and computing becomes the limit.",
                "60.1K slots, and 78 tokens a request: even with half of them wasted, there is room for hundreds. More room then buys little.",
            ),
            wrong(
                "It grows: a larger model has more bytes a token to waste.",
                "The bytes a token grew, and the memory grew more. What counts is how many requests fit, and here that is enough for all three.",
            ),
            wrong(
                "It stays: what share of memory is wasted depends on the lengths alone.",
                "The share may stay. A waste of room hurts only where room is what is missing.",
            ),
            wrong(
                "It is gone, over Orca (Max) as well: there is memory for everybody.",
                "Not for Max: with 2,048 slots for each, short or not, it has 29 places.",
            ),
        ),
    ),
    Question(
        "11.8",
        "The simulator's constants come from kernel times and from latencies well below the knees. Why not choose them so that the knees agree?",
        "11-held-out",
        (
            right(
                "Then agreement at the knees would be put in, and would show nothing.",
                "What went in cannot be a test of what comes out. As it is, a knee in the right place means that the model of the server is right "
                "there.",
            ),
            wrong(
                "It would give the same constants, and be slower to compute.",
                "It would give others: they would take over whatever the simulator leaves out, and be wrong for the next card or workload.",
            ),
            wrong(
                "The simulator would agree less well with the paper.",
                "With the panels it was fitted to it would agree *better*, whether it is right or not. That is the trouble.",
            ),
            wrong(
                "The paper's curves are not exact enough at their knees.",
                "They are steep there, so the rates can be read well. Steep or not, whatever is fitted to is no longer a test.",
            ),
        ),
    ),
    Question(
        "11.9", "You ask the simulator about a card that you do not have. Which part of the answer has really been run?", "11-what-if",
        (
            right(
                "Scheduler and KV manager: each admission, each block, each preemption.",
                "They are the engine's own, unchanged. Only how long a step takes is a formula, and on that formula the seconds depend.",
            ),
            wrong(
                "The attention kernel: its times were measured on a smaller card.",
                "No kernel runs. Bytes, operations and some constants give its time; a new kernel on a new card may be quicker or slower.",
            ),
            wrong(
                "The model: its answers decide how long requests stay.",
                "No model runs. Lengths are drawn beforehand, and the tokens mean nothing.",
            ),
            wrong(
                "The whole server, front end included, only with a faster clock.",
                "Receiving, tokenizing and streaming are one constant a request. A busy front end, a slow network and other tenants are left out.",
            ),
        ),
    ),
    Question(
        "11.10",
        "\"2.7x-8x\" over Orca (Max) on ShareGPT, says the text. The curves of OPT-13B and OPT-66B stay below 6.7 at every threshold. What do you "
        "test a simulator against?",
        "11-text",
        (
            right(
                "The curves, at a threshold that is said beforehand.",
                "Anybody can read the same points again. The text may speak of a panel, a threshold or a drawn point that it does not name.",
            ),
            wrong(
                "The text: its authors knew the data behind the curves.",
                "They did, and yet a range without panel and threshold cannot be computed again, so it cannot be a test.",
            ),
            wrong(
                "Whichever of the two the simulator is nearer to.",
                "With two targets and a free choice one hits more often, and knows less. Choose first, then look.",
            ),
            wrong(
                "Neither: a paper that disagrees with itself proves nothing.",
                "The text sums up, and sums up loosely; recomputing at \"never higher than 20 %\" of swapping was such a case. The points are still "
                "measurements.",
            ),
        ),
    ),
)
