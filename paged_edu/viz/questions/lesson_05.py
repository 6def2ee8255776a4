"""Knowledge checks of lesson 05: who runs next?"""
from __future__ import annotations

from .question import Question, right, wrong

CELLS = {
    "05-batching": "Static and continuous",
    "05-rule": "One rule",
    "05-step": "Read a step",
    "05-chunks": "A long prompt in chunks",
    "05-one-token": "Break it",
    "05-padding": "What padding costs",
}
"""Cell id -> the words under which a reader finds it."""

QUESTIONS = (
    Question(
        "05.1", "What is continuous batching?", "05-batching",
        (
            right(
                "Before every step it is decided anew who takes part.",
                "A place is given away in the step after it has become free: 18 steps for the twelve requests, not 31.",
            ),
            wrong("Waiting a few milliseconds to collect requests.", "That is dynamic batching. Once its batch runs, nobody enters or leaves it."),
            wrong(
                "Answering requests one after the other, without a pause.",
                "Several run in the same step; that is what shares the reading of the weights.",
            ),
            wrong("Padding all requests to the longest.", "Nothing is padded: a step's tokens stand one behind the other, of whatever sequence."),
        ),
    ),
    Question(
        "05.2", "What does chunked prefill change?", "05-chunks",
        (
            right(
                "Others' tokens come more steadily; the long prompt's first token a little later.",
                "Its chunks share their steps with everybody's decodes, so no step is long.",
            ),
            wrong("Everything becomes faster.", "The work is the same. It is spread over more steps, which pleases those who wait for a next token."),
            wrong(
                "Attention becomes approximate at the borders of chunks.",
                "A chunk's tokens read all keys before them, through the table. The result is the same.",
            ),
            wrong("The prompt is cut and its beginning forgotten.", "Chunks are computed one after the other, and all of them stay in the cache."),
        ),
    ),
    Question(
        "05.3", "A prompt of 50 tokens and 3 decodes share a step, and all catch up. For how many tokens are logits needed?", "05-step",
        (
            right(
                "4: one for each sequence that has caught up.",
                "Only the last token of a sequence says what comes next. For the other 49 of the prompt it is known.",
            ),
            wrong("53: one for each token.", "Their keys and values are computed, their logits are not: nobody would look at them."),
            wrong("3: the prompt writes nothing yet.", "It has caught up at the end of this step, so its first token is sampled now."),
            wrong(
                "They cannot share a step: prompts and decodes need two passes.",
                "One pass for all of them: a decode is a sequence with one new token.",
            ),
        ),
    ),
    Question(
        "05.4", "How does the scheduler know whether a request is in prefill or in decode?", "05-rule",
        (
            right(
                "It need not know: what is computed catches up with what is there.",
                "With 20 tokens missing it computes up to 20, with one missing one. Chunks and recomputation are the same rule.",
            ),
            wrong("By a flag that is set after the prompt.", "There is none. Compare `num_computed_tokens` and `num_tokens`."),
            wrong("Prompts are in another queue.", "A waiting request has no blocks yet; once it runs, it is in the same list as all others."),
            wrong("By the number of steps it has run.", "With chunks a prompt may take many steps, and after a preemption it starts again."),
        ),
    ),
    Question(
        "05.5", "A single request, `max_num_batched_tokens=1`. What happens?", "05-one-token",
        (
            right("The same text, in many more steps.", "A prompt of p tokens takes p steps; then one step a token, so p + L - 1 for L tokens."),
            wrong("The prompt is refused: it has more than one token.", "It is computed in chunks of one token."),
            wrong("Only the last token of the prompt is read.", "All are, one a step. The first answer token comes after the last of them."),
            wrong("The text changes: the model sees one token at a time.", "It always reads all earlier keys and values from the cache."),
        ),
    ),
    Question(
        "05.6", "Requests of 12, 64, 7 and 33 tokens are padded to the longest. How much of the work is wasted?", "05-padding",
        (
            right("54.7 %.", "4 x 64 = 256 places hold 116 tokens. In a flattened batch all 116 stand side by side, and nothing else."),
            wrong(
                "Nothing: a GPU computes the padding at the same time.",
                "It computes it, and that takes time and memory which others could have used.",
            ),
            wrong("45.3 %.", "That is the share of the work that is useful: 116 of 256."),
            wrong("25 %: one request in four is long.", "What counts is how far the others are from the longest."),
        ),
    ),
)
