"""Knowledge checks of lesson 10: serving."""
from __future__ import annotations

from .question import Question, right, wrong

CELLS = {
    "10-ends": "How an answer ends",
    "10-async": "One engine, many clients",
    "10-text": "Between a token and a screen",
    "10-leave": "Somebody closes the tab",
    "10-metrics": "First token, next token",
    "10-little": "How many are in flight?",
}
"""Cell id -> the words under which a reader finds it."""

QUESTIONS = (
    Question(
        "10.1", "An answer comes back with finish_reason \"length\". What does that say?", "10-ends",
        (
            right(
                "A limit was reached: max_tokens, the context, or the pool in which it was alone.",
                "All three were in the table. Only the pool gives a stop reason as well, \"kv_pool\".",
            ),
            wrong(
                "The answer is complete: it has the length that the model wanted.",
                "An answer that the model ends has \"stop\". This one was cut, perhaps in the middle of a word.",
            ),
            wrong(
                "The server cut it because it had taken too long.",
                "The engine knows no time limit. A client that gives up leaves its loop, and gets no answer at all.",
            ),
            wrong(
                "It was preempted and could not be continued.",
                "A preempted request waits and goes on with the same tokens. Only alone in a full pool it has to end.",
            ),
        ),
    ),
    Question(
        "10.2", "64 streams are open on one engine. How are they served?", "10-async",
        (
            right(
                "Together: one batch a step has a token for each of them, as far as there is memory.",
                "Eight clients shared every step, with one set of weights. Whoever finds no room waits; the rest run side by side.",
            ),
            wrong(
                "Each has a copy of the model, so that they do not disturb each other.",
                "Weights are only read, so one copy serves all. What each has of its own are its blocks of keys and values.",
            ),
            wrong(
                "In turns: one request a step, then the next one.",
                "Then 64 streams would be 64 times as slow as one. The weights are read once a step, for everybody in the batch.",
            ),
            wrong(
                "Each by a thread of its own, which steps the engine when its client asks.",
                "One thread steps. The streams only read what it leaves for them, so a slow reader slows nobody down.",
            ),
        ),
    ),
    Question(
        "10.3", "What does streaming do to an answer?", "10-metrics",
        (
            right(
                "It is visible sooner, and finished at the same time.",
                "With its first token after 1 step and its last after 16, a request finishes in step 16, whether somebody watches or not.",
            ),
            wrong(
                "It is cheaper: tokens that were sent need not be kept.",
                "Their text was sent. Their keys and values are read by every later token.",
            ),
            wrong(
                "It becomes another one, since the text is put together from pieces.",
                "The pieces, joined, are the text, character by character; exercises a and b are about that.", "10-text",
            ),
            wrong(
                "It finishes sooner, since nobody waits for the end.",
                "Every token still takes its step. What is shorter is the wait before something can be read.",
            ),
        ),
    ),
    Question(
        "10.4", "1.5 requests/s, 338 tokens each, 0.037 s a token. How many requests are in flight, on average?", "10-little",
        (
            right(
                "19: each stays 12.5 s, and 1.5 come in every second of that.",
                "Little's law: 1.5 x 338 x 0.037 = 18.8. Nothing about memory is in it; memory decides whether so many *can* be in flight.",
            ),
            wrong(
                "1 or 2, since so many come in a second.",
                "That would be so if each were gone after a second. They stay for 12.5.",
            ),
            wrong(
                "36, since so many have room.",
                "That is what *fits*. How many *are* there is up to rate and length; where the second number is larger, a queue grows.",
            ),
            wrong(
                "It grows without end, since new ones always come.",
                "It grows while fewer leave than come. With 36 places a server holds this rate, with 7 it does not.",
            ),
        ),
    ),
    Question(
        "10.5", "A client closes its tab in the middle of an answer. When can others have its blocks?", "10-leave",
        (
            right(
                "In the next step.",
                "The request is dropped between two steps, and its blocks are free before the next one is planned: D got in at once.",
            ),
            wrong(
                "When the answer has reached max_tokens: the batch is fixed until then.",
                "That was static batching. Who takes part is decided anew in every step.",
            ),
            wrong(
                "After a timeout, since nobody knows whether it will come back.",
                "Whoever reads an answer is a loop in this process. When it is left, the engine is told.",
            ),
            wrong(
                "When the garbage collector has freed the tensors of its keys and values.",
                "The cache is one tensor from the beginning and is never freed. A block is free when its number is in the free queue.",
            ),
        ),
    ),
    Question(
        "10.6", "The stop string is \"END\" and the text so far is \"the E\". What may a stream show?", "10-text",
        (
            right(
                "\"the \": the E may be its beginning, the rest may not.",
                "The longest end of the text that begins a stop string is held back, and no character more.",
            ),
            wrong(
                "\"the E\": the stop string has not appeared yet.",
                "If \"ND\" follows, the E should never have been shown, and nobody can take it off the reader's screen again.",
            ),
            wrong(
                "Nothing: text is shown once the answer has ended.",
                "That would be no stream. Nothing that may follow can make \"the \" a part of \"END\".",
            ),
            wrong(
                "\"the\": the last two characters always wait, as many as may be missing.",
                "Nothing wrong is shown that way, but everything is late. The space before the E cannot begin \"END\".",
            ),
        ),
    ),
    Question(
        "10.7", "A server has 7 places, and more requests come than it can finish. Which time of a new request grows from minute to minute?",
        "10-metrics",
        (
            right(
                "The time to its first token: the queue before it gets longer.",
                "Those who waited for a place got their first token after 17 steps, and then a token in every step like everybody.",
            ),
            wrong(
                "The time between two of its tokens: everybody gets a smaller share.",
                "No more than 7 run at a time, so a step takes as long as before. Who runs, runs at full speed.",
            ),
            wrong(
                "Both, by the same factor.",
                "The two come apart just here. That is why a server's speed is told by two numbers.",
            ),
            wrong(
                "Neither: what cannot be served is refused.",
                "It is accepted and waits. Refusing is something that a server may do before, and a choice.",
            ),
        ),
    ),
)
