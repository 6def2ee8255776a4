"""Exercises of lesson 11: the paper's metric, capacity off a curve, and Little's law. Judged by `serve` and `panels.crossing`."""
from __future__ import annotations

from statistics import median

from .exercise import Exercise, Misconception
from .loads import (
    capacity_fixed,
    draw_capacity,
    draw_held,
    draw_latency,
    extended,
    from_the_origin,
    held_at_the_ends,
    held_fixed,
    interpolated,
    latency_fixed,
    mean,
    on_the_line,
    passing,
    said,
    the_other_axis,
)
from .readers import number, optional

EXERCISES = (
    Exercise(
        name="11.a",
        title="The paper's metric",
        signature="normalized_latency(requests)",
        statement=(
            "Each request has `prompt` and `tokens`, the lengths of its prompt and of its answer, and `seconds`, from its arrival to its last token. "
            "Return the mean over requests of the seconds that a token of the answer took [s/token]. Two requests took 10 s each, one for 100 tokens "
            "and one for 10: 0.55."
        ),
        hints=(
            "Every request counts the same, whether its answer is long or short. So each needs a number of its own first.",
            "For the two of the statement these are 0.1 and 1.0 s/token.",
            "total of r.seconds / r.tokens over all requests; then / number of requests",
        ),
        judge="serve",
        passed=(
            "The request with 10 tokens had waited for 9 of its 10 s. Waiting weighs most on short answers: that is why the curves rise so "
            "steeply once there is a queue."
        ),
        read=number,
        fixed=latency_fixed,
        draw=draw_latency,
        say=said,
        misconceptions=(
            Misconception(
                "you divide the total of the seconds by the total of the tokens (0.18 instead of 0.55). Long answers then count for more than short "
                "ones; the paper takes the mean over *requests*.",
                lambda requests: sum(r.seconds for r in requests) / sum(r.tokens for r in requests),
            ),
            Misconception(
                "you take the median. A few requests that waited long hardly move it; the paper's mean feels every one of them.",
                lambda requests: median(r.seconds / r.tokens for r in requests),
            ),
            Misconception(
                "you have tokens per second, a speed, where more is better. The metric is seconds per token: divide the other way round.",
                lambda requests: mean([r.tokens / r.seconds for r in requests]),
            ),
            Misconception(
                "you average the speeds, in tokens/s, and turn the average over. That is another number than the mean of seconds per token.",
                lambda requests: 1 / mean([r.tokens / r.seconds for r in requests]),
            ),
            Misconception(
                "you count the prompt's tokens as well. Only those of the answer are divided by: a long prompt would make a slow server look quick.",
                lambda requests: mean([r.seconds / (r.prompt + r.tokens) for r in requests]),
            ),
            Misconception(
                "that is the mean latency, in seconds: it is not divided by the length of the answer. Half a minute is long for 10 tokens and short "
                "for 1,000.",
                lambda requests: mean([r.seconds for r in requests]),
            ),
            Misconception(
                "you divide by one token less, as for the time *between* tokens. Here the first token counts, and so does the wait for it.",
                lambda requests: mean([r.seconds / max(1, r.tokens - 1) for r in requests]),
            ),
        ),
    ),
    Exercise(
        name="11.b",
        title="Capacity, read off a curve",
        signature="capacity(curve, threshold)",
        statement=(
            "`curve` lists points `[rate, latency]` by rising rate [requests/s, s/token], and straight lines join them. Return the rate at which the "
            "curve first goes above `threshold`; None if it never does, or begins above it. `[[1, 0.1], [2, 0.3], [3, 0.7]]` goes above 0.5 at 2.5."
        ),
        hints=(
            "Find the two neighbours with the threshold between their latencies. The answer lies between their rates.",
            "Which share of the way up from the first point's latency to the second's is the threshold? The same share of the way from rate to rate.",
            "for (x0, y0), (x1, y1) in neighbours: if y0 <= threshold < y1: return x0 + (x1 - x0) * (threshold - y0) / (y1 - y0); at the end None",
        ),
        judge="panels.crossing",
        passed=(
            "For the paper's Fig. 12a at 0.5 s/token: 0.525 (Max), 0.774 (Pow2), 1.099 (Oracle) and 1.929 (vLLM) requests/s. So vLLM holds 1.75 "
            "times the rate of Oracle and 3.68 times that of Max. Say the threshold whenever you say the ratio."
        ),
        read=optional(number),
        fixed=capacity_fixed,
        draw=draw_capacity,
        say=said,
        misconceptions=(
            Misconception(
                "you give the last drawn point below the threshold. Where the next one is far off, as in Fig. 12, a good part of the rate is lost.",
                passing(lambda x0, y0, x1, y1, y: x0),
            ),
            Misconception(
                "you give the first drawn point above the threshold: the server did not hold that rate.", passing(lambda x0, y0, x1, y1, y: x1),
            ),
            Misconception(
                "you give the middle between the two points, wherever the threshold lies between their latencies.",
                passing(lambda x0, y0, x1, y1, y: (x0 + x1) / 2),
            ),
            Misconception(
                "you take the share from the wrong end: near the first point's latency, the rate is near the first point's rate.",
                passing(lambda x0, y0, x1, y1, y: x0 + (y1 - y) * (x1 - x0) / (y1 - y0)),
            ),
            Misconception(
                "you give the drawn point whose latency is nearest to the threshold. It may lie on either side, and a steep line between two points "
                "has few of them.",
                lambda curve, threshold: min(curve, key=lambda point: abs(point[1] - threshold))[0],
            ),
            Misconception(
                "you exchange the axes: that is the latency at a rate of `threshold`, and the rate at that latency was wanted.", the_other_axis,
            ),
            Misconception(
                "you use the last time that the curve goes above the threshold. Beyond the first one the server did not hold the rate, whatever luck "
                "a later point had.",
                passing(on_the_line, last=True),
            ),
            Misconception(
                "you go on along the last line, beyond the last drawn point. Nobody measured there, and a knee bends: the answer is None.", extended,
            ),
            Misconception(
                "you answer with an end of the curve where it does not pass the threshold. It may pass anywhere beyond, or it did before: None.",
                held_at_the_ends,
            ),
            Misconception(
                "`np.interp` never says no: where the threshold lies outside, it answers with an end of the curve. And it expects latencies that "
                "only rise.",
                interpolated,
            ),
            Misconception(
                "you begin at (0, 0), where there is no point. Even a request alone in the server takes some time for a token.", from_the_origin,
            ),
        ),
    ),
    Exercise(
        name="11.c",
        title="A bound for the knee",
        signature="rate_held(slots, reserved, tokens, step)",
        statement=(
            "A server keeps `reserved` slots for each request, of `slots` in all. Every answer has `tokens` tokens, one in each step, and a step "
            "takes `step` seconds. Somebody is always waiting. Return how many requests/s the server answers. Orca (Max) with OPT-13B has 15,728 "
            "slots and keeps 2,048 each; with 338 tokens and 0.03 s: 0.69."
        ),
        hints=(
            "Little's law: requests in the server = requests/s x seconds that each stays there. Two of the three are known.",
            "How many requests are in the server when it is full? How long does one stay, from its first step to its last?",
            "(slots // reserved) / (tokens * step)",
        ),
        judge="serve over ContiguousKVManager",
        passed=(
            "Seven places give 0.69 requests/s at most. The paper's curve of Orca (Max) passes 0.5 s/token sooner, at 0.525: arrivals come in "
            "bunches, lengths differ, and prompts take time too. What paging changes in this formula is the number of places."
        ),
        read=number,
        fixed=held_fixed,
        draw=draw_held,
        say=said,
        misconceptions=(
            Misconception(
                "you count a part of a place. What is left over after the last whole reservation serves nobody.",
                lambda slots, reserved, tokens, step: slots / reserved / (tokens * step),
            ),
            Misconception(
                "you serve one request at a time. As many run side by side as have a place, and each step gives each of them a token.",
                lambda slots, reserved, tokens, step: 1 / (tokens * step),
            ),
            Misconception(
                "these are tokens/s. A request is answered when it has all of its tokens.",
                lambda slots, reserved, tokens, step: slots // reserved / step,
            ),
            Misconception(
                "these are seconds per request: turn it over.", lambda slots, reserved, tokens, step: tokens * step / (slots // reserved),
            ),
            Misconception(
                "you let in as many requests as their tokens would fill the slots. This server keeps `reserved` slots for each, used or not.",
                lambda slots, reserved, tokens, step: slots // tokens / (tokens * step),
            ),
            Misconception(
                "you divide by the slots that are reserved instead of the tokens that are answered. An empty slot takes memory, not time.",
                lambda slots, reserved, tokens, step: slots // reserved / (reserved * step),
            ),
        ),
    ),
)
