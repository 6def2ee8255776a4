"""Knowledge checks of lesson 04: attention through a table, formula to kernel."""
from __future__ import annotations

from .question import Question, right, wrong

CELLS = {
    "04-walk": "Four steps of a query",
    "04-online": "The loop",
    "04-wrong": "What matters and what does not",
    "04-tie": "Exact, and not equal to the last digit",
    "04-page": "Rung 1: a tile at a time",
    "04-splits": "Rung 2: a long context for many programs",
    "04-poison": "Break it",
}
"""Cell id -> the words under which a reader finds it."""

QUESTIONS = (
    Question(
        "04.1", "A block brings a score larger than any before. What happens to l and acc?", "04-walk",
        (
            wrong(
                "Nothing: a softmax divides by the sum in the end, so m cancels out.",
                "It cancels if all weights were made with the same m. Those before the block were made with a smaller one.",
            ),
            right(
                "Both are multiplied by exp(m_old - m_new) before the block's weights are added.",
                "That turns each earlier weight exp(s - m_old) into exp(s - m_new), without looking at any earlier key again.",
            ),
            wrong(
                "Both are computed again from the first block on, now that the larger m is known.",
                "One multiplication corrects all earlier terms at once. That is why a single pass over the cache is enough.",
            ),
            wrong(
                "acc is multiplied by exp(m_old - m_new); l is a count of what was added, and stays.",
                "l does not count tokens: it is the sum of the weights that are in acc, and all of those were made with the old m.",
            ),
        ),
    ),
    Question(
        "04.2", "Attention reads a request's keys and values block by block. What has become of the softmax over all tokens?", "04-online",
        (
            right(
                "It is the same sum over all tokens, only collected piece by piece.",
                "m, l and acc end where one softmax over everything would end.",
            ),
            wrong(
                "Each block has a softmax of its own, and the results are averaged.",
                "Then a block of large scores would count no more than one of small ones; on the lesson's numbers that is off by 0.41.",
            ),
            wrong(
                "It is approximated: what is far back in the context is left out.",
                "No block is skipped. Methods that drop old tokens exist, and paging is none of them.",
            ),
            wrong(
                "It runs over the newest block, and older blocks come in as a summary.",
                "l and acc are sums over every earlier token, each with its exact weight; nothing is summarised.",
            ),
        ),
    ),
    Question(
        "04.3", "Two *full* blocks of a table are exchanged by mistake. A token that is generated next sees almost the same result. Why?", "04-wrong",
        (
            wrong(
                "The kernel visits blocks in the order of their first positions, whatever the table says.",
                "It has no other way of knowing an order than the table, and takes the blocks as they stand there.",
            ),
            wrong(
                "Softmax gives old tokens little weight, so that hardly anything hangs on the early blocks.",
                "Nothing in a softmax knows of age; in the lesson's numbers the largest score is in the second of four blocks.",
            ),
            right(
                "It sums over the same tokens, and each one's position is part of its key.",
                "Only the order of adding changes, and with it the last digit. With the partly filled block it would be plainly wrong.",
            ),
        ),
    ),
    Question(
        "04.4", "At temperature 0 another engine gives the same 200 tokens as ours, and then another word. What is the likely reason?", "04-tie",
        (
            wrong(
                "Paging loses some precision in every step, and after 200 steps it shows.",
                "It moves keys and values without changing a bit; two placements agree bit for bit.",
            ),
            wrong(
                "A block of another request got into the table when this one grew past a border.",
                "That changes every logit from then on, by far more than a rounding: the text falls apart, instead of taking another turn.",
            ),
            wrong(
                "Temperature 0 still draws at random, among those words that are the most likely.",
                "It takes the largest logit, every time. Which one is largest can hang on a rounding.",
            ),
            right(
                "Two words were almost equally likely, and other sums round differently.",
                "Sums of floats depend on their order by some 1e-7 of their size. From the first other word on, the texts go apart.",
            ),
        ),
    ),
    Question(
        "04.5", "Every lane could look anywhere. Why does the cache store 16 tokens of a head side by side?", "04-page",
        (
            right(
                "Sixteen lanes find one entry, and what they load is one piece of memory.",
                "A GPU fetches neighbouring addresses together. In Llama-3-8B it is 4 KiB of keys (and another one of values): 16 tokens, 128 "
                "numbers of 2 bytes.",
            ),
            wrong(
                "The matrix products of a softmax need 16 tokens, or they are not exact.",
                "`tl.dot` likes tiles of 16 and more, for speed. Rung 0 takes one token at a time and is as exact.",
            ),
            wrong(
                "16 tokens fill a page of the GPU's own memory management.",
                "The hardware's pages are much larger (2 MiB, say), and know nothing of tokens. A block size of 32 or 8 works too.",
            ),
            wrong(
                "Tokens of a block belong together, and a query looks at most of them or at none.",
                "Where a block ends is a matter of counting, and a sentence may go across it. Every block gets its weights.",
            ),
        ),
    ),
    Question(
        "04.6", "When does it pay to split one request's context among many programs?", "04-splits",
        (
            wrong(
                "With every request: more programs always mean more work side by side.",
                "Once every multiprocessor is busy, more programs wait in line, and their parts have to be merged on top of that.",
            ),
            wrong(
                "When the context is longer than some number of tokens that was measured for the card.",
                "A long context in a batch of hundreds needs no split. Length matters together with how many programs there are.",
            ),
            right(
                "When the context is long and there would be too few programs for the card.",
                "Then processors stand idle while a few read everything. Merging costs little beside that.",
            ),
            wrong(
                "When a context is so long that its sum of weights would overflow in one program.",
                "m keeps every weight at most 1, however long the context. Splitting is about time only.",
            ),
        ),
    ),
    Question(
        "04.7", "All slots that were never written hold NaN, and the answers stay the same. What does that prove?", "04-poison",
        (
            wrong(
                "That numbers which are no numbers are taken for 0 before anything is added.",
                "Nobody looks at the values. What the sequence's length excludes is not loaded.",
            ),
            wrong(
                "That unwritten slots get the softmax weight 0, and with it any value is harmless.",
                "0 times NaN is NaN: your own loop without the cut shows it. Values must be left out, not only weighed with 0.",
            ),
            right(
                "That no slot beyond a sequence's tokens has any influence on its answer.",
                "A single NaN that got into a sum would make the whole result NaN. With leftover *finite* numbers such a fault goes unnoticed.",
            ),
        ),
    ),
)
