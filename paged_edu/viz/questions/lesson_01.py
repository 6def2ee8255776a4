"""Knowledge checks of lesson 01: where the memory goes."""
from __future__ import annotations

from .question import Question, right, wrong

CELLS = {
    "01-formula": "One formula",
    "01-batch": "Batch size is throughput",
    "01-calculator": "A card, divided up",
    "01-start": "What the engine says when it starts",
}
"""Cell id -> the words under which a reader finds it."""

QUESTIONS = (
    Question(
        "01.1", "A model of 125 million parameters fills 90 % of the card as soon as it starts. Why?", "01-start",
        (
            right(
                "The pool of blocks is allocated at once and managed inside.",
                "The engine takes all that its budget leaves beside the weights, and divides it into blocks; it never asks for more.",
            ),
            wrong("A memory leak.", "The number does not grow while it serves. It was taken on purpose, before the first request."),
            wrong("The weights are stored twice.", "They are there once, and small. The line that the engine prints names both parts."),
            wrong(
                "`gpu_memory_utilization` is a share of what is free.",
                "It is a share of the whole card: weights, activations and cache must all fit into it.",
            ),
        ),
    ),
    Question(
        "01.2", "Why are queries not cached, when keys and values are?", "01-formula",
        (
            right(
                "A past query is never used again.",
                "Later tokens look back at earlier keys and values. Nobody asks an earlier token's question again: attention is causal.",
            ),
            wrong("They are too large.", "A query head is as large as a key head. Size is not the reason."),
            wrong("They change in every step.", "They do not change; they are used once, in the step of their own token, and never again."),
        ),
    ),
    Question(
        "01.3", "Grouped-query attention (GQA) with 32 query heads and 8 KV heads divides what by 4?", "01-formula",
        (
            right("The KV cache.", "Only KV heads are stored. Llama-3-8B takes 131,072 bytes a token; with 32 KV heads it would be 524,288."),
            wrong(
                "The arithmetic of attention.",
                "Each of the 32 query heads still computes its scores against all tokens; four of them read the same keys.",
            ),
            wrong("The weights of the MLP.", "GQA concerns the projections of keys and values. The MLP, most of the weights, is untouched."),
            wrong("The length of the context.", "The model reads as many tokens as before. Each of them takes less memory."),
        ),
    ),
    Question(
        "01.4", "From batch 8 to 16 a step takes 11 % longer and gives 80 % more tokens. Why so little longer?", "01-batch",
        (
            right(
                "The weights are read once a step, whatever the batch.",
                "In decoding that reading is most of the time; a further request adds only its own keys and values.",
            ),
            wrong("The GPU skips some of the requests.", "Every running request gets its token in every step."),
            wrong("Requests in a batch share their keys and values.", "They do not share any here: each brings its own cache, and its own 0.419 ms."),
            wrong("The model runs in lower precision when the batch is large.", "Nothing about the numbers changes with the batch."),
        ),
    ),
    Question(
        "01.5", "You lower `gpu_memory_utilization` from 0.9 to 0.5. What becomes smaller?", "01-calculator",
        (
            right("Only the KV cache.", "Weights and activations need what they need. The cache is what is left, so it bears the whole cut."),
            wrong("Everything in proportion.", "A weight cannot shrink because the budget does. Drag the slider and watch the bars."),
            wrong("The weights: they are compressed.", "Quantisation is another switch. This one only divides memory."),
            wrong("Only the speed of a single answer.", "A single request hardly notices. What falls is how many can run at once."),
        ),
    ),
    Question(
        "01.6", "12 GiB are left for the cache of OPT-13B, which takes 819,200 bytes a token. Why 7 people and not 31?", "01-calculator",
        (
            right(
                "Each gets room for 2048 tokens and uses about 500.",
                "7 reservations of 1.5625 GiB fit. The same memory holds the 500 tokens that people really have 31 times.",
            ),
            wrong("The GPU has not enough compute for 31.", "Fig. 1 of the paper: a step with 30 requests takes a third longer than one with 7."),
            wrong("The other 24 lack weights.", "The weights are shared by everybody: one copy serves any batch."),
            wrong("A GiB is larger than a GB.", "That is 7 %, and the wrong way round. The factor here is more than four."),
        ),
    ),
)
