"""Knowledge checks of lesson 09: from weights to text."""
from __future__ import annotations

from .question import Question, right, wrong

CELLS = {
    "09-weights": "From a name to weights",
    "09-layer": "A token's way through a layer",
    "09-decode": "First the prompt, then one token at a time",
    "09-gqa": "Nine heads ask, three answer",
    "09-rope": "A key knows its position",
    "09-parity": "The same logits",
    "09-sample": "From logits to text",
    "09-break": "Break it",
}
"""Cell id -> the words under which a reader finds it."""

QUESTIONS = (
    Question(
        "09.1", "A prompt has been computed, and its answer has 40 tokens so far. What is the model fed in the next decode step?", "09-decode",
        (
            right(
                "One token, the newest; its queries read the keys and values of all tokens before it.",
                "Everything else that attention needs of the older tokens lies in the cache. That is why a step of one token is cheap, and why the "
                "cache has to stay.",
            ),
            wrong(
                "The whole text again, prompt and answer.",
                "So it was without a cache. Here `input_ids` has one entry in a decode step; compare T = 5 and T = 1 in the layer stepper.",
                "09-layer",
            ),
            wrong(
                "The tokens of its last block: the others are stored away.",
                "A block is where keys and values lie, not what is computed. Attention reads all blocks of the table, and the model is fed one "
                "token.",
            ),
            wrong(
                "The hidden state that the last step ended with, so that it can go on from there.",
                "A hidden state is gone after its step. What connects two steps are a token id and the cache, nothing else.",
            ),
        ),
    ),
    Question(
        "09.2", "A step has just sampled a token. When are its keys and values written to the cache?", "09-decode",
        (
            right(
                "In the next step, which takes it as its input.",
                "Keys are made from a token's row of numbers, layer by layer, so the token has to run through the model first. The last token of "
                "an answer never does, and never has any.",
            ),
            wrong(
                "In the step that samples it, together with the others.",
                "That step ends with the choice. After the prefill of 5 tokens exactly 5 slots hold numbers, and none of them is the sixth token's.",
            ),
            wrong(
                "At the end of the request, when it is known that the token stays.",
                "The very next token needs them: it attends to this one. Nothing would be left to attend to if they came at the end.",
            ),
            wrong(
                "When its block is full: a block is written as a whole.",
                "Each token has a slot, and a slot is written on its own. That a block must be full matters for *sharing* a prefix, not for writing.",
            ),
        ),
    ),
    Question(
        "09.3", "In SmolLM2 three query heads form a group. What do they share?", "09-gqa",
        (
            right(
                "Keys and values; each looks at them with queries of its own, so their attention patterns differ.",
                "In the cell, the weights of heads 0, 1 and 2 differ although they read the same keys. Only what lies in the cache is divided by "
                "three.",
            ),
            wrong(
                "Everything: there are three heads, each computed once.",
                "Then they would give the same numbers. There are 9 queries for each token, and `o_proj` mixes 9 results.",
            ),
            wrong(
                "The queries, so that less has to be computed.",
                "Queries are what tells them apart. They are used in their own step and never stored, so sharing them would save no byte of the "
                "cache.",
            ),
            wrong(
                "The attention weights, which are applied to three different sets of values.",
                "It is the other way round: one set of values, three sets of weights.",
            ),
        ),
    ),
    Question(
        "09.4",
        "A full block with keys and values of the tokens \"the king is dead\" is cached for positions 0 to 3. May a text use it that has these "
        "tokens at positions 4 to 7?", "09-rope",
        (
            right(
                "No: its keys were turned by the angles of 0 to 3, and they were computed with nothing before them.",
                "That is why a cached block is found by its whole history, as a chain of keys, and not by its own tokens.",
            ),
            wrong(
                "Yes: the tokens are the same, so their keys and values are.",
                "Already in the first layer the keys differ once they are turned; in later layers the rows that they are made of differ as well.",
            ),
            wrong(
                "Yes, if the model turns queries and keys: then only distances count.",
                "Distances to what? A query at position 9 would meet these keys as if they stood at 0 to 3: four places too far away. And in later "
                "layers they hold what stood before them.",
            ),
            wrong(
                "Yes, if its block table names the block in second place.",
                "The table says where a position *lies*. What the key says about its position was fixed when it was written.",
            ),
        ),
    ),
    Question(
        "09.5", "The pool is paged, and the model is the ordinary one. Which lines of a layer know about blocks?", "09-layer",
        (
            right(
                "Two, and both are within `attend`: one writes the new keys and values, one reads through the block table.",
                "Every other line maps rows to rows of the same tokens. The same model runs on any attention backend, since `attend` is an argument.",
            ),
            wrong(
                "All of them: every line works on one block of tokens after the other.",
                "Look at the shapes: T tokens go through each line together, and no block size is among them.",
            ),
            wrong(
                "The projections: they put keys and values where they belong.",
                "`k_proj` and `v_proj` give rows in the order of the tokens. Where these go is the business of the slots that the step's plan names.",
            ),
            wrong(
                "None: the engine copies keys and values into blocks after the step.",
                "Then a layer could not read them in the same step, and a prompt's tokens have to see each other.",
            ),
        ),
    ),
    Question(
        "09.6", "Line 6 of the stepper has attention weights of [9, 5, 5] in the prefill and [9, 1, 6] in the decode step. Why 6?",
        "09-layer",
        (
            right(
                "5 tokens are in the cache, and the new one has just written its own keys: it looks at itself as well.",
                "The write (line 4) comes before the read (line 5). So a query always sees its own token, and the first token of a text sees "
                "something.",
            ),
            wrong(
                "5 tokens of the prompt, and one place is kept for the token that will be sampled.",
                "Nobody looks at a token that is not there yet. Its slot is written one step later.", "09-decode",
            ),
            wrong(
                "Two blocks hold up to 8 tokens, of which 2 are masked.",
                "The mask has nothing to do with blocks here: `seq_len` is 6, and what lies behind it is never read.",
            ),
            wrong(
                "The prompt's last token is computed twice, as the decode step starts from it.",
                "It ran in the prefill, which sampled the next token from it. The decode step runs that next token, at position 5.", "09-decode",
            ),
        ),
    ),
    Question(
        "09.7", "All positions of a model with rotary embeddings are one too high, in every step. What becomes of its perplexity?", "09-break",
        (
            right(
                "It stays as it was, up to rounding: every distance is the same.",
                "A score depends on how far apart query and key are. GPT-2 looks its positions up in a table instead, and there the next row is "
                "another row.",
            ),
            wrong(
                "It rises a little, as GPT-2's does.",
                "GPT-2 adds a vector that was learned for that very position. A rotation has no such memory: turn everything by one more, and "
                "nothing has turned against anything.",
            ),
            wrong(
                "It rises with each step, since the error adds up.",
                "Nothing adds up: an angle is computed from the position anew, and it is off by the same one for queries and keys.",
            ),
            wrong(
                "It becomes random: the keys in the cache no longer match.",
                "They do, as they were written one too high as well. It is different when only *some* are shifted: when a second chunk begins at 0 "
                "again.",
            ),
        ),
    ),
    Question(
        "09.8", "Our logits and those of transformers differ by a hundred-thousandth. What follows?", "09-parity",
        (
            right(
                "It is the same model: float32 sums taken in another order differ in their last digits.",
                "A real mistake shows in the first digits: one matrix on its head moved a logit by whole units.",
            ),
            wrong(
                "Paged attention is an approximation, and this is its price.",
                "It reads the same numbers from other addresses, none are left out. Whole, in chunks or one by one, the difference is of the same "
                "size.",
            ),
            wrong(
                "There is a small mistake somewhere, for instance in one layer of many.",
                "Small causes do not stay small: put one matrix of one layer on its head, and the logits move by whole units.",
            ),
            wrong(
                "Nothing: two programs can agree on one prompt by chance.",
                "They agree on 1,024 logits for each of 40 tokens, whole, in chunks, and token by token. That is no chance.",
            ),
        ),
    ),
    Question(
        "09.9", "Somebody loads GPT-2 into `torch.nn.Linear` layers and forgets to transpose. What does the loader say about the 768 x 768 `c_proj`?",
        "09-weights",
        (
            right(
                "Nothing: name and shape are right, and the model talks nonsense.",
                "A loader can check that every tensor is there once, with its shape. What the numbers mean, only a comparison of logits can tell.",
            ),
            wrong(
                "It refuses it: the shapes do not match.",
                "So it would with `c_attn`, 768 x 2304. A square has the same shape on its head.",
            ),
            wrong(
                "It transposes it by itself, since safetensors stores the layout.",
                "A safetensors file holds a name, a type, a shape and bytes. Which side is *in* is nowhere said.",
            ),
            wrong(
                "Nothing, and nothing is wrong: attention's output is symmetric in its heads.",
                "The matrix mixes heads into the hidden state; there is no reason why it should equal its transpose, and it does not.",
            ),
        ),
    ),
    Question(
        "09.10", "A prefill of 5 tokens runs in one step. How many rows of logits does the engine compute?", "09-sample",
        (
            right(
                "One, of the last token: only there is a next token wanted.",
                "Each row costs a product with the whole embedding matrix. The hidden states of the other rows have done their work: they left "
                "keys and values.",
            ),
            wrong(
                "Five, one a token, of which four are thrown away.",
                "The model could give them, and for `prompt_logprobs` it does. To sample, `logits_rows` names the last one only.",
            ),
            wrong(
                "None: the first token is sampled in the first decode step.",
                "The prefill's last row already says what comes next. The first decode step takes that token as its *input*.", "09-decode",
            ),
            wrong(
                "One for each token of the vocabulary.",
                "That is how long a row is: one logit for each token that could come next.",
            ),
        ),
    ),
)
