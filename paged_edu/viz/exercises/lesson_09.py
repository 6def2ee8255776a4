"""Exercises of lesson 09: the KV head of a query head, the positions of a chunk, GPT-2's transposed weights (cases: `shapes_and_positions`)."""
from __future__ import annotations

from .exercise import Exercise, Misconception
from .readers import integer, list_of
from .shapes_and_positions import (
    chunk_fixed,
    draw_chunk,
    draw_head,
    draw_weight,
    head_fixed,
    matrix,
    say_matrix,
    tell_weight,
    weight_drive,
    weight_fixed,
)

EXERCISES = (
    Exercise(
        name="09.a",
        title="Whose keys does a head read?",
        signature="kv_head(q, heads, kv_heads)",
        statement=(
            "A layer has `heads` query heads and `kv_heads` heads of keys and values, and the first is a multiple of the second. Neighbouring query "
            "heads share: return the number of the KV head that query head `q` reads. Of SmolLM2's 9 query heads, head 4 reads KV head 1 of 3."
        ),
        hints=(
            "How many query heads read the same KV head? They stand side by side.",
            "SmolLM2: heads 0, 1, 2 read KV head 0; heads 3, 4, 5 read KV head 1; heads 6, 7, 8 read KV head 2.",
            "group = heads / kv_heads; return q / group, rounded down",
        ),
        judge="`reference.attend`",
        passed=(
            "For SmolLM2 this is q // 3. With q % 3 every shape fits, nothing is refused, and the text is wrong: only a comparison with another "
            "implementation finds it."
        ),
        read=integer,
        fixed=head_fixed,
        draw=draw_head,
        misconceptions=(
            Misconception(
                "you deal the heads out like cards, q % kv_heads. The shapes are right and the text is wrong: these models were trained with "
                "neighbours sharing.", lambda q, heads, kv_heads: q % kv_heads,
            ),
            Misconception(
                "you divide by the number of KV heads; divide by how many query heads share one. For SmolLM2 both are 3, for others not.",
                lambda q, heads, kv_heads: q // kv_heads,
            ),
            Misconception(
                "that is the place of the head within its group. Wanted is the group.", lambda q, heads, kv_heads: q % (heads // kv_heads),
            ),
            Misconception(
                "you give each query head keys of its own; there are only kv_heads of them in the cache.", lambda q, heads, kv_heads: q,
            ),
            Misconception("3 is SmolLM2's group. Others have other ones: heads // kv_heads.", lambda q, heads, kv_heads: q // 3),
            Misconception("you let all query heads read the first KV head; that is right with a single one.", lambda q, heads, kv_heads: 0),
        ),
    ),
    Exercise(
        name="09.b",
        title="Where a chunk stands",
        signature="positions(seq, n)",
        statement=(
            "The next `n` tokens of `seq` are computed in this step. It has `num_tokens` tokens, and the first `num_computed_tokens` of them are in "
            "the cache. Return the list of the positions that the model is told, one for each of the `n`. With 8 of 20 tokens computed and n = 8: "
            "8 to 15."
        ),
        hints=(
            "A position counts from the beginning of the text, however the text is cut into steps.",
            "What is in the cache stands before these tokens: positions 0 to `num_computed_tokens` - 1 are taken.",
            "start = seq.num_computed_tokens; return [start, start + 1, ..., start + n - 1]",
        ),
        judge="`build_input`",
        passed=(
            "One rule for a whole prompt, for a chunk, for a decode step and for a hit in the prefix cache: the first new token stands at "
            "num_computed_tokens."
        ),
        read=list_of(integer, "a list of positions"),
        fixed=chunk_fixed,
        draw=draw_chunk,
        misconceptions=(
            Misconception(
                "you begin at 0 in every step. The first chunk is right, and from the second on the text derails: its tokens claim to stand where "
                "others stand already.", lambda seq, n: list(range(n)),
            ),
            Misconception(
                "you count back from the end of the text. That is right for the last chunk and for a decode step; tokens that are not computed yet "
                "come after this chunk.", lambda seq, n: list(range(seq.num_tokens - n, seq.num_tokens)),
            ),
            Misconception(
                "you begin one too late: positions count from 0, so the first free one is num_computed_tokens.",
                lambda seq, n: list(range(seq.num_computed_tokens + 1, seq.num_computed_tokens + n + 1)),
            ),
            Misconception(
                "you begin one too early: position num_computed_tokens - 1 is in the cache already.",
                lambda seq, n: list(range(seq.num_computed_tokens - 1, seq.num_computed_tokens + n - 1)),
            ),
            Misconception(
                "you give all tokens of the chunk the same position. Each has its own.", lambda seq, n: [seq.num_computed_tokens] * n,
            ),
            Misconception(
                "you list the positions of all tokens up to the end of the chunk. Those in the cache are not computed again.",
                lambda seq, n: list(range(seq.num_computed_tokens + n)),
            ),
            Misconception(
                "you list all tokens that are not computed. Only n of them are computed in this step.",
                lambda seq, n: list(range(seq.num_computed_tokens, seq.num_tokens)),
            ),
        ),
    ),
    Exercise(
        name="09.c",
        title="A square that stands on its head",
        signature="linear_weight(name, stored, shape)",
        statement=(
            "GPT-2's checkpoint keeps the four matrices of each layer (`c_attn`, `c_fc` and both `c_proj`) as `[in, out]`, for x @ W. torch's "
            "`Linear` keeps `[out, in]`, and computes x @ W.T. Embeddings (`wte`, `wpe`) are tables, a row an id, in both. Given a tensor `stored` "
            "called `name`, return it as a `Linear` or an `Embedding` wants it, whose parameter has the given `shape`. For `h.0.mlp.c_fc.weight` "
            "that is `stored.T`."
        ),
        hints=(
            "Which matrices are transposed is a fact about their *names*. Does the shape always betray it?",
            "`h.0.attn.c_proj.weight` is 768 x 768 in GPT-2: its transpose fits as well as itself.",
            "if the name has \"c_attn\", \"c_fc\" or \"c_proj\" in it: return stored.T, else stored",
        ),
        judge="GPT-2's own `Conv1D`",
        passed=(
            "768 x 768 loads without any error when the transpose is forgotten, and the model talks nonsense. Our `Conv1D` keeps the checkpoint's "
            "layout, so that nothing is ever transposed."
        ),
        read=matrix,
        fixed=weight_fixed,
        draw=draw_weight,
        drive=weight_drive,
        tell=tell_weight,
        say=say_matrix,
        misconceptions=(
            Misconception(
                "you transpose only what does not fit. A square `c_proj` fits both ways: it loads without any error, and it is wrong.",
                lambda name, stored, shape: stored if tuple(stored.shape) == shape else stored.T,
            ),
            Misconception("you transpose nothing. What is not square has the wrong shape then; what is square is wrong unnoticed.",
                          lambda name, stored, shape: stored),
            Misconception("you transpose embeddings too. They are tables with a row for each id, and no matrices that x is multiplied with.",
                          lambda name, stored, shape: stored.T),
            Misconception(
                "you forced the shape: `reshape` keeps the numbers in their order and only cuts the rows elsewhere. A transpose moves them.",
                lambda name, stored, shape: stored.reshape(shape),
            ),
            Misconception(
                "you transpose the two `c_proj` only; `c_attn` and `c_fc` are stored the same way.",
                lambda name, stored, shape: stored.T if "c_proj" in name else stored,
            ),
            Misconception(
                "you transpose attention's matrices only; the feed-forward network has `c_fc` and a `c_proj` of its own.",
                lambda name, stored, shape: stored.T if "attn" in name else stored,
            ),
        ),
    ),
)
