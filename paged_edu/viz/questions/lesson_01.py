"""Knowledge checks of lesson 01: where the memory goes."""
from __future__ import annotations

from .question import Question, right, wrong

CELLS = {
    "01-formula": "One formula",
    "01-20": "From model to model",
    "01-29": "Room for all, or room for what is there",
    "01-batch": "Batch size is throughput",
    "01-calculator": "A card, divided up",
}
"""Cell id -> the words under which a reader finds it."""

QUESTIONS = (
    Question(
        "01.1", "Why are queries not cached, when keys and values are?", "01-formula",
        (
            right(
                "A token's query is used in its own step, and never after that.",
                "Later tokens look back at earlier keys and values, with queries of their own. What nobody reads need not be kept.",
            ),
            wrong(
                "Every new token changes the queries of the tokens before it.",
                "Attention is causal: nothing that comes later changes a token's query, key or value. The query is right, and nobody asks for it.",
            ),
            wrong(
                "There are more query heads than KV heads, so they would take too much memory.",
                "In some models there are, in others (GPT-2) there are not. Whatever their size: nobody would read them.",
            ),
            wrong(
                "A query is cheaper to compute again than a key or a value.",
                "A query head costs the same multiplications as a key head. But it is not computed again: it is needed once.",
            ),
        ),
    ),
    Question(
        "01.2", "Grouped-query attention (GQA) with 32 query heads and 8 KV heads divides what by 4?", "01-20",
        (
            right(
                "The bytes that a token takes in the KV cache.",
                "Only KV heads are stored. Llama-3-8B takes 131,072 bytes a token; with 32 KV heads it would be 524,288.",
            ),
            wrong(
                "The multiplications of attention, since 8 heads are left to compute.",
                "Each of the 32 query heads still computes its scores against all tokens; four of them read the same keys.",
            ),
            wrong(
                "The weights of the model, which are mostly those of attention.",
                "Only the matrices that make keys and values become smaller. The feed-forward part (MLP), which is most of the weights, is "
                "untouched.",
            ),
            wrong(
                "The number of earlier tokens that a new token looks back at.",
                "It looks back at all of them, as before (some models limit that, by other means). Each of them takes less memory.",
            ),
        ),
    ),
    Question(
        "01.3", "12 GiB are left for the cache of OPT-13B, which takes 819,200 bytes a token. Why do they serve 7 people and not 31?", "01-29",
        (
            right(
                "Each is given room for 2048 tokens and has about 500 in the end.",
                "1.5625 GiB for each, so 7 fit. The same memory holds the 500 tokens of an average conversation 31 times.",
            ),
            wrong(
                "The card computes fast enough for 7, and would be too slow for 31.",
                "The cell counts bytes only, and they end at 7. What more people mean for speed is the next section.",
            ),
            wrong(
                "Each of them needs the weights as well as the cache.",
                "Weights are read and not changed, so one copy serves everybody. They are outside of the 12 GiB already.",
            ),
            wrong(
                "A part of the 12 GiB is lost to the difference between GB and GiB.",
                "That difference is 7 %, and GiB are what is counted here. The factor between 7 and 31 is more than four.",
            ),
        ),
    ),
    Question(
        "01.4", "From batch 8 to 16 a step takes 11 % longer and gives 80 % more tokens a second. Why so little longer?", "01-batch",
        (
            right(
                "A large part of a step is the same for any batch, above all reading the weights.",
                "26 ms are there whoever is served, and at least 17 of them go into the weights. A further request adds 0.419 ms: its own cache to "
                "read, its own arithmetic.",
            ),
            wrong(
                "The arithmetic is done once for all requests of the batch.",
                "Each request has its own numbers, so 16 of them are twice the arithmetic of 8. In decoding that is not what takes long.",
            ),
            wrong(
                "The requests of a batch read the same keys and values.",
                "Each has a cache of its own, which is read for it alone; that is a part of the 0.419 ms that it adds.",
            ),
            wrong(
                "The requests take turns, so that a step always computes about as many of them.",
                "Every running request gets its token in every step: 16 tokens, not 8.",
            ),
        ),
    ),
    Question(
        "01.5", "You lower `gpu_memory_utilization` from 0.9 to 0.5. What becomes smaller?", "01-calculator",
        (
            right(
                "What is left for the KV cache, and nothing else.",
                "Weights need what they need. The cache is what remains of the budget, so it bears the whole cut.",
            ),
            wrong(
                "Weights and KV cache, each in the same proportion.",
                "A weight cannot shrink because the budget does. Drag the slider and watch the bars.",
            ),
            wrong(
                "The weights, which are stored in fewer bits until they fit.",
                "Fewer bits (quantisation) is another switch, and changes what the model computes. This one only divides memory.",
            ),
            wrong(
                "The part of the card's computing power that the server may use.",
                "The name suggests it, and `nvidia-smi` uses the word so. Here it is a share of memory; the card computes as before.",
            ),
        ),
    ),
    Question(
        "01.6", "GPT-2, 124 million parameters, takes 90 % of the card in the picture when it starts, before any request. Why?", "01-calculator",
        (
            right(
                "The whole budget is taken at the start, for blocks that are given out later.",
                "Half a GiB of weights, and all the rest of the budget is cache. From then on the engine asks for no more.",
            ),
            wrong(
                "The activations of a step take that much, however small the model is.",
                "Activations are small here, and come from what lies outside the budget. The bar shows what fills it: blocks for the cache.",
            ),
            wrong(
                "The weights are there twice: as they were read from disk, and as they are used.",
                "They are there once, and even twice would be little: half a GiB of the 36 in the picture.",
            ),
            wrong(
                "An earlier run has left its memory behind, and nobody has freed it.",
                "It would be the same on a card that nobody has used: the engine takes it on purpose. Look at the bar of GPT-2.",
            ),
        ),
    ),
)
