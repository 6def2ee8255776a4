"""Exercises of lesson 10: whole characters of a stream, and what may be shown of it while a stop string may begin. Judged by `sampling`'s classes."""
from __future__ import annotations

from .exercise import Exercise, Misconception
from .guard import NoAnswerError
from .pieces import (
    all_of_it,
    all_or_nothing,
    at_the_end,
    draw_stop,
    draw_text,
    each_alone,
    flushed,
    forgets,
    longest,
    one_by_one,
    one_token_late,
    only_when_whole,
    right_pieces,
    shortest,
    shown_by,
    stop_fixed,
    text_fixed,
    text_so_far,
    told_text,
    too_early,
    what_is_longer,
    whole_answer,
)
from .readers import kind_of, list_of


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise NoAnswerError(f"one of the pieces is {kind_of(value)}, and text was wanted")
    return str(value)


_pieces = list_of(_text, "a list of pieces of text")

EXERCISES = (
    Exercise(
        name="10.a",
        title="Whole characters",
        signature="stream_text(token_bytes)",
        statement=(
            "`token_bytes` are the bytes of an answer's tokens, in order; together they are UTF-8, and a token may begin or end in the middle of a "
            "character. Return a list with one piece of text for each token: what can be shown after it that could not be shown before. Never half a "
            "character, and nothing later than need be. The four tokens of 🔥 give `['', '', '', '🔥']`. (The answer may still go on after the last "
            "token, so the beginning of a character at the very end is not shown.)"
        ),
        hints=(
            "Bytes that are no whole character yet have to wait for those that follow. What is whole need not wait.",
            "Keep the bytes that are not shown yet. `data.decode(errors=\"ignore\")` gives the text without a character that is cut off at the end.",
            "for each token: held += its bytes; text = the whole characters of held; append text; of held, drop the bytes of text",
        ),
        judge="the engine's ByteStream",
        passed=(
            "That is what stands between a model and a reader in every server. The pieces, joined, are the text, and nothing that was shown is ever "
            "taken back. (The engine feeds the bytes to Python's incremental decoder, which does the same.)"
        ),
        read=_pieces,
        fixed=text_fixed,
        draw=draw_text,
        tell=told_text,
        misconceptions=(
            Misconception(
                "you decode each token by itself, so half a character becomes U+FFFD, the sign for broken text, on somebody's screen.",
                one_by_one("replace"),
            ),
            Misconception(
                "you decode each token by itself and drop what is not whole, so a character that lies in two tokens is lost.", one_by_one("ignore"),
            ),
            Misconception("you decode each token strictly: a token that ends within a character raises an error.", one_by_one("strict")),
            Misconception(
                "you make a character of every byte. That works for English, and for nothing else.",
                lambda token_bytes: [data.decode("latin-1") for data in token_bytes],
            ),
            Misconception(
                "you decode everything again and show what the text is longer by. U+FFFD is a character too: it is shown, and the real one, which "
                "takes its place, is not.",
                what_is_longer,
            ),
            Misconception(
                "you hold back whole characters because half a one follows them. Of `H` and half an `é`, the `H` can be shown.", all_or_nothing,
            ),
            Misconception("you give the whole text so far; a piece is what is new in it.", text_so_far),
            Misconception("you give everything with the last token. It is right, and no stream.", at_the_end),
            Misconception("you are one token late: a whole character can be shown with the token that completes it.", one_token_late),
            Misconception(
                "you end with U+FFFD where the last token ends within a character. The answer may still go on; only when it has ended is that so.",
                flushed,
            ),
            Misconception(
                "you leave the empty pieces out, so nobody knows which token a piece belongs to.",
                lambda token_bytes: [piece for piece in right_pieces(token_bytes) if piece],
            ),
        ),
    ),
    Exercise(
        name="10.b",
        title="What may be shown",
        signature="show(deltas, stop)",
        statement=(
            "An answer grows by the texts in `deltas`, and it ends before the first `stop` in it. Return what is shown with each delta. Nothing of "
            "the stop string may be shown, and nothing may wait longer than it must. With the delta that completes the stop string the list ends. If "
            "it never comes, what is still held back is shown with the last delta. `show(['the ', 'E', 'ND', ' of'], 'END')` is "
            "`['the ', '', '']`; with `['the ', 'E', 'XIT']` it is `['the ', '', 'EXIT']`."
        ),
        hints=(
            "Only the end of a text can still become a stop string. Which part of the end?",
            "Look at what is held back and the new delta as one text: does it contain `stop`? If not, which beginning of `stop` does it end with?",
            "held += delta; if stop is in held: show what stands before it, done. keep = the greatest k < len(stop) with held ending in stop[:k]; "
            "show all but the last keep characters of held. At the end show the rest",
        ),
        judge="the engine's OutputText",
        passed=(
            "The longest end of the text that begins a stop string is held back, and no character more. For every delta you look at a text of at "
            "most len(stop) - 1 characters more than the delta has, however long the answer is."
        ),
        read=_pieces,
        fixed=stop_fixed,
        draw=draw_stop,
        misconceptions=(
            Misconception("\"E\" is shown: you find the stop string in the whole text, but by then its beginning is on the screen.", too_early),
            Misconception("you look at one delta at a time. A stop string may lie across two: \"E\" and \"ND\".", each_alone),
            Misconception(
                "you always hold back as many characters as may be missing. Nothing wrong is shown, but all of it late: wait only where the end "
                "could begin the stop string.",
                shown_by(lambda text, stop: min(len(text), len(stop) - 1)),
            ),
            Misconception(
                "you hold back a whole delta because of its end. Of \"the E\", \"the \" can be shown at once.", shown_by(all_of_it),
            ),
            Misconception(
                "you hold back the shortest end that begins the stop string. Several may: of \"aa\", with the stop string \"aab\", both have to "
                "wait.",
                shown_by(shortest),
            ),
            Misconception(
                "you hold text back only where all of it begins the stop string. In \"the E\" it begins in the middle.", shown_by(only_when_whole),
            ),
            Misconception("you show the stop string too. The answer ends before it.", shown_by(longest, include=True)),
            Misconception(
                "what was held back is never shown if no stop string comes. When the answer has ended it is text like any other.",
                shown_by(longest, release=False),
            ),
            Misconception(
                "what was held back to the end belongs to the last piece; there is one piece for each delta.", shown_by(longest, apart=True),
            ),
            Misconception("after a false alarm you lose what was held back: \"E\" and \"XIT\" are \"EXIT\".", forgets),
            Misconception("the answer goes on after the stop string. It ends there.", shown_by(longest, go_on=True)),
            Misconception("you cut at the last stop string. The first one ends the answer.", shown_by(longest, last=True)),
            Misconception(
                "you give pieces for deltas after the stop string. They are never made: the list ends.", shown_by(longest, padded=True),
            ),
            Misconception("you wait for the whole answer. It is right, and no stream.", whole_answer),
            Misconception("you show everything, the stop string too, and go on after it. The answer ends before it.", lambda deltas, stop: [*deltas]),
        ),
    ),
)
