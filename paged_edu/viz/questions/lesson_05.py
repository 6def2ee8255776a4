"""Knowledge checks of lesson 05: who runs next?"""
from __future__ import annotations

from .question import Question, right, wrong

CELLS = {
    "05-batching": "Static and continuous",
    "05-rule": "One rule",
    "05-padding": "What padding costs",
    "05-chunks": "A long prompt in chunks",
    "05-admission": "Who gets in",
    "05-one-token": "Break it",
}
"""Cell id -> the words under which a reader finds it."""

QUESTIONS = (
    Question(
        "05.1", "What is continuous batching?", "05-batching",
        (
            right(
                "To decide before every step who takes part in it.",
                "A place is given away in the step after it has become free: 18 steps for the twelve requests, not 31.",
            ),
            wrong(
                "To wait a few milliseconds until a batch has filled up, then to run it.",
                "That is dynamic batching. Once its batch runs, nobody enters or leaves it.",
            ),
            wrong(
                "To start a batch at once when the last has ended, so that the model is never idle.",
                "A static server does that too. What stood empty there were places within a batch, not the time between two.",
            ),
            wrong(
                "To let several requests share a step, so that the weights are read once for all.",
                "That is batching of any kind, the static one too. What differs is when somebody may join.",
            ),
        ),
    ),
    Question(
        "05.2", "How does the scheduler know whether a request is in prefill or in decode?", "05-rule",
        (
            right(
                "It does not: what is known and not yet computed runs, within the budget.",
                "With 20 tokens missing it computes up to 20, with one missing one. Prompts, chunks and decodes are the same rule.",
            ),
            wrong(
                "By a flag of the request, which is set when its prompt has been computed.",
                "There is none, and none is needed: `num_computed_tokens` and `num_tokens` say how far behind it is.",
            ),
            wrong(
                "By the queue in which it stands: prompts wait in one, decodes in another.",
                "Once a request runs, it is in the same list as all others, whatever is left of its prompt.",
            ),
            wrong(
                "By its steps: the first is the prefill, and each later one is a decode.",
                "A prompt in chunks takes several steps: three in the table, before the first token was sampled.",
            ),
        ),
    ),
    Question(
        "05.3", "A prompt of 50 tokens and 3 decodes share a step, and all of them catch up. How many rows of logits are made?", "05-padding",
        (
            right(
                "4: one for each sequence, the prompt included.",
                "Only the last token of a sequence says what comes next. For the other 49 of the prompt that is known.",
            ),
            wrong("53: one for each token that is computed.", "Their keys and values are computed, their logits are not: nobody would look at them."),
            wrong("3: the prompt gets its first token a step later.", "It has caught up at the end of this step, so its first token is sampled now."),
            wrong(
                "1: all who share a step sample from the same scores.",
                "They share the reading of the weights. Each has a past of its own, so each needs scores of its own.",
            ),
        ),
    ),
    Question(
        "05.4", "What does chunked prefill change?", "05-chunks",
        (
            right(
                "The others' tokens come more steadily; the long prompt's own first token at about the same time, or later.",
                "No step is long, since the chunks leave room for everybody's decodes. With small chunks the long prompt pays: it took 319 ms with a "
                "budget of 64, and 129 ms in one step.",
            ),
            wrong(
                "Everybody's answers come much sooner, the long prompt's as well, since small steps use the processor better.",
                "The work is the same, and small steps use it less well: with a budget of 64 the long prompt's first token took 319 ms, not 129.",
            ),
            wrong(
                "Attention becomes an approximation: the tokens of a chunk read that chunk and the one before it.",
                "They read all keys and values before them, through the table: the result is the same as in one step.",
            ),
            wrong(
                "A prompt that is longer than the budget is cut, and the answer goes by what is left of it.",
                "Nothing is left out: 253 + 253 + 253 + 241 are all of the 1,000 tokens, one chunk after the other.",
            ),
        ),
    ),
    Question(
        "05.5",
        "4 blocks are free. The first in line needs 6 for its prompt, the next one 2; places and budget are enough for both. What happens?",
        "05-admission",
        (
            right(
                "Neither starts: the second waits behind the first, until 6 blocks are free.",
                "Only the first in line is looked at. Where small requests may pass, a large one may wait for ever on a busy day.",
            ),
            wrong(
                "The second starts, since the blocks that it needs would otherwise lie idle.",
                "They lie idle, and that is the price of the promise: C waited behind B for two steps, with a block free for it.",
            ),
            wrong(
                "The first starts with 4 blocks and takes the others as its prompt is computed.",
                "It starts when there are blocks for its whole prompt. With half of them it would hold memory and might never get the rest.",
            ),
            wrong(
                "The latest of those who run gives up its blocks, so that the first can start.",
                "Who waits takes nothing from those who run. That a running request steps back for another *running* one is lesson 08.",
            ),
        ),
    ),
    Question(
        "05.6", "A single request, with `max_num_batched_tokens=1` and `max_num_seqs=1`. What happens?", "05-one-token",
        (
            right(
                "The same text comes out, in many more steps.",
                "A prompt of p tokens takes p steps, the last of which samples the first token: p + L - 1 for L tokens.",
            ),
            wrong(
                "It is refused, since its prompt is longer than a step.",
                "It is computed in chunks of one token. Only with more places than tokens does the engine refuse to start.",
            ),
            wrong(
                "The text gets worse, since the model sees one token at a time.",
                "It computes one at a time, and reads the keys and values of all before it from the cache.",
            ),
            wrong(
                "A token is sampled in every step, from the first one on.",
                "In the middle of the prompt the next token is known: it is the prompt's. The first is sampled when all of them are computed.",
            ),
        ),
    ),
)
