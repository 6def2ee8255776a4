"""Requests that arrive over time: Poisson arrivals, with lengths of the paper's workloads (Paper §6.1, §6.4, §6.5).

Every workload takes a ``seed``; where the paper does not publish a length, the assumption and what it rests on stand beside the constant.
"""
from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from .. import lengths
from ..checks import integer, number

WORKLOADS = (*lengths.DATASETS, "chat", "translation")

CHAT_TOKENS = 1024
"""Longest prompt and longest answer of the chatbot [tokens] (Paper §6.5)."""
MEAN_ROUNDS = 3.51
"""Rounds of a ShareGPT conversation: 330,239 in 94,145 conversations (Yan et al. 2025, arXiv:2512.17843, their table of public data sets)."""
ROUNDS_LOCATION, ROUNDS_WIDTH = 0.1049, 1.4
"""How many rounds a conversation has: the logarithm of a normal number with this mean and deviation, rounded up. *Assumed*: only the mean is public.
The width is the one free number; with it most prompts reach 1,024 tokens, as the paper says of its own (here 0.54 of them). Then 0.47 of the
conversations have a single round, one in ten has more than 7, one in a hundred more than 29."""
_MOST_ROUNDS = CHAT_TOKENS // 2
"""Earlier rounds are always cut off: each has 2 tokens at least."""

WORDS, WORDS_WIDTH = 21.4, 0.52
"""Words and punctuation marks of a sentence: mean, and deviation of the logarithm (normal). newstest2016, the test set of WMT16 English-German, has
2,999 sentences. The mean is that of its neighbours: sacreBLEU counts 64,399 in newstest2017's English (3,004 sentences) and 64,276 in
newstest2018's German (2,998). The deviation, half of the mean, is *assumed*: news sentences are skewed, from headlines to 60 words."""
ENGLISH, GERMAN = 1.3, 1.9
"""LLaMA tokens a word. *Assumed*, as usual for a vocabulary of 32,000 made mostly from English; no count for this tokenizer and test set was found.
The paper gives one check: its four more examples, sentence and translation, take (341 - 80) / 4 = 65 tokens each; here a pair takes 68."""
TRANSLATION_WIDTH = 0.15
"""How far a translation is from its sentence's length: deviation of the logarithm of their ratio. *Assumed*."""
ONE_EXAMPLE, FIVE_EXAMPLES = 80, 341
"""Tokens of the two prefixes of Paper §6.4."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: when it comes [s], and its lengths [tokens]."""

    time: float
    prompt_tokens: int
    output_tokens: int
    prefix_tokens: int = 0
    """The first tokens of the prompt, that all requests have in common; 0: none."""

    def prompt(self, number: int) -> tuple[int, ...]:
        """Token ids for request ``number`` (0, 1, ...): the prefix is everybody's, nothing else is anybody else's."""
        own = lengths.PAPER_MODEL_LEN + number * _APART
        return (*range(self.prefix_tokens), *range(own, own + self.prompt_tokens - self.prefix_tokens))


_APART = 2**24
"""More than any prompt has."""


def arrivals(
    name: str, rate: float, seconds: float, seed: int = 0, max_model_len: int = lengths.PAPER_MODEL_LEN, prefix_tokens: int = ONE_EXAMPLE,
) -> list[Arrival]:
    """A workload by its name in `WORKLOADS`. ``max_model_len`` concerns "sharegpt" and "alpaca", ``prefix_tokens`` "translation"."""
    if name == "chat":
        return chat(rate, seconds, seed)
    if name == "translation":
        return translation(rate, seconds, seed, prefix_tokens)
    return poisson(name, rate, seconds, seed, max_model_len)


def poisson(dataset: str, rate: float, seconds: float, seed: int = 0, max_model_len: int = lengths.PAPER_MODEL_LEN) -> list[Arrival]:
    """``rate`` requests a second on average for ``seconds``, with lengths of ``dataset`` ("sharegpt" or "alpaca").

    The same seed gives the same arrivals, only closer together, at any rate, and (nearly) the same lengths, see `Lengths.matched`.
    Raises ValueError for a rate or a time that is not above 0.
    """
    times = _times(rate, seconds, seed)
    if not times:
        return []
    drawn = lengths.load(dataset).matched(len(times), np.random.default_rng((seed, 1)), max_model_len)
    return [Arrival(t, p, o) for t, (p, o) in zip(times, drawn, strict=True)]


def chat(rate: float, seconds: float, seed: int = 0) -> list[Arrival]:
    """Rounds of conversations (Paper §6.5, Fig. 17): the prompt is all that was said before and the new question, its last 1,024 tokens.

    A request is a uniformly chosen round of all conversations, so long conversations have more of them. What was said before are prompts and answers
    with ShareGPT's lengths, independent of each other; answers end at 1,024 tokens. Nothing is kept from one round for the next, as in the paper. How
    many rounds conversations have is assumed, see `ROUNDS_WIDTH`. The same seed gives the same lengths and arrivals at any rate.
    Raises ValueError for a rate or a time that is not above 0.
    """
    times = _times(rate, seconds, seed)
    data = lengths.load("sharegpt")
    before = _rounds_before(np.random.default_rng((seed, 2)), len(times))
    asked, said = (_stream(side, (seed, stream)) for side, stream in ((data.input, 3), (data.output, 4)))
    answers = _stream(data.output, (seed, 5))
    found = []
    for time, rounds in zip(times, before, strict=True):
        prompt = next(asked)
        for _ in range(rounds):
            if prompt >= CHAT_TOKENS:
                break
            prompt += next(asked) + next(said)
        found.append(Arrival(time, min(prompt, CHAT_TOKENS), min(next(answers), CHAT_TOKENS)))
    return found


def translation(rate: float, seconds: float, seed: int = 0, prefix_tokens: int = ONE_EXAMPLE) -> list[Arrival]:
    """Sentences to translate from English to German after a prefix that all prompts share (Paper §6.4, Fig. 16; LLaMA-13B, WMT16).

    ``prefix_tokens``: instruction and examples, 80 in the paper with one example and 341 with five; 0: none. The paper does not give the lengths of
    sentences and translations: see `WORDS`, `ENGLISH`, `TRANSLATION_WIDTH`. A translation is as long as its sentence asks: words x tokens of a German
    word x a factor of its own around 1. The same seed gives the same lengths and arrivals at any rate. Raises ValueError for a rate or a time that
    is not above 0, and for a prefix that leaves no room for the longest sentence.
    """
    integer("prefix_tokens", prefix_tokens, 0, lengths.PAPER_MODEL_LEN // 2)
    times = _times(rate, seconds, seed)
    words, factors = (_normal((seed, stream), len(times)) for stream in (2, 3))
    found = []
    for time, word, factor in zip(times, words, factors, strict=True):
        count = WORDS * math.exp(WORDS_WIDTH * word - WORDS_WIDTH**2 / 2)                   # the mean of such a number is the factor in front
        output = count * GERMAN * math.exp(TRANSLATION_WIDTH * factor - TRANSLATION_WIDTH**2 / 2)
        sentence, output = (min(max(1, round(x)), _LONGEST) for x in (count * ENGLISH, output))
        found.append(Arrival(time, prefix_tokens + sentence, output, prefix_tokens))
    return found


_LONGEST = lengths.PAPER_MODEL_LEN // 4
"""Of a sentence or a translation [tokens]: one in a million would be longer."""


def _times(rate: float, seconds: float, seed: int) -> list[float]:
    """When requests come: exponential gaps."""
    number("rate", rate, 0, low_open=True)
    number("seconds", seconds, 0, low_open=True)
    integer("seed", seed, 0)
    gaps = np.random.default_rng((seed, 0))
    times: list[float] = []
    now = 0.0
    while True:
        now += float(gaps.exponential()) / rate
        if now >= seconds:
            return times
        times.append(now)


def _stream(histogram: lengths.Histogram, seed: tuple[int, int]) -> Iterator[int]:
    """Lengths without end: how many are taken changes nothing about the first ones."""
    rng = np.random.default_rng(seed)
    while True:
        yield from histogram.sample(1024, rng).tolist()


def _normal(seed: tuple[int, int], count: int) -> list[float]:
    """Normal numbers, one uniform number each (see `lengths.Histogram.sample`)."""
    inverse = NormalDist().inv_cdf
    return [inverse(max(uniform, 1e-12)) for uniform in np.random.default_rng(seed).random(count).tolist()]


def _rounds_before(rng: np.random.Generator, count: int) -> list[int]:
    """How many rounds came before a uniformly chosen one: round k is chosen as often as conversations have more than k rounds."""
    normal = NormalDist(ROUNDS_LOCATION, ROUNDS_WIDTH)
    longer = np.cumsum([1.0, *(1 - normal.cdf(math.log(k)) for k in range(1, _MOST_ROUNDS))])
    rounds: list[int] = np.searchsorted(longer, rng.random(count) * longer[-1], side="right").tolist()
    return rounds
