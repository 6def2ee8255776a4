"""Log-probabilities against a plain log-softmax and a stable sort: which distribution, which tokens, ranks, ties, and what JSON can hold."""
import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizers import ADDED, BY_BYTES, EOT, KINDS, byte_id, tiny

from paged_edu import Logprob, SamplingParams
from paged_edu.core.plan import ScheduledSeq
from paged_edu.core.sequence import Request, Sequence
from paged_edu.sampling.detokenize import Detokenizer
from paged_edu.sampling.logprobs import LOWEST_LOGPROB, token_logprobs
from paged_edu.sampling.sampler import BrokenLogitsError, Sampler, SamplingState


def by_definition(logits, token, k):
    """``[(id, logprob, rank)]`` in order of rank, from one row in Python's floats."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    top = max(logits)
    log_sum = top + math.log(sum(math.exp(value - top) for value in logits))
    values = {i: max(logits[i] - log_sum, LOWEST_LOGPROB) for i in order}
    given = order[:k] + ([token] if token not in order[:k] else [])
    return [(i, values[i], order.index(i) + 1) for i in given]


@settings(max_examples=150, deadline=None)
@given(rows=st.lists(st.lists(st.sampled_from([0.0, 1.0, 1.0, 2.5, -3.0, 20.0, -math.inf]), min_size=7, max_size=7).filter(lambda r: max(r) > -9),
                     min_size=1, max_size=5), k=st.integers(0, 7), data=st.data())
def test_the_k_most_probable_and_the_own_token_in_order_of_rank(rows, k, data):
    """Full of ties, which are in order of ids."""
    tokens = [data.draw(st.integers(0, 6)) for _ in rows]
    for found, logits, token in zip(token_logprobs(torch.tensor(rows, dtype=torch.float64), tokens, k), rows, tokens, strict=True):
        expected = by_definition(logits, token, k)
        assert [(i, one.rank) for i, one in found.items()] == [(i, rank) for i, _, rank in expected]
        assert [one.logprob for one in found.values()] == pytest.approx([value for _, value, _ in expected], abs=1e-12)
        assert len(found) in (k, k + 1)
        assert token in found


def plan(request, branch=0, samples=1):
    """An item that has caught up, for `Sampler.branch`."""
    seq = Sequence(7, request, branch, list(request.prompt_token_ids))
    request.live.append(seq)
    return ScheduledSeq(request.request_id, 7, branch, tuple(seq.token_ids), 0, (0,), (0,), 0, samples)


def branches(logits, params, samples=1, **options):
    request = Request("r", (0,), n=samples)
    item = plan(request, samples=samples)
    return Sampler(**options).branch(torch.tensor([logits], dtype=torch.float64), [item], {"r": SamplingState(params, 1, request)})["r"]


def test_they_are_of_the_raw_distribution():
    """known fault B62: neither temperature nor filters, bias or penalties show."""
    params = SamplingParams(temperature=0.5, top_p=0.9, logprobs=4, logit_bias={2: 50}, repetition_penalty=3.0, presence_penalty=1)
    (branch,) = branches([1.0, 0.0, -1.0, -2.0], params)
    assert branch.tokens == (2,), "the bias decides which token it is"
    (entry,) = branch.logprobs
    assert [(i, one.rank) for i, one in entry.items()] == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert [one.logprob for one in entry.values()] == pytest.approx([-0.44019, -1.44019, -2.44019, -3.44019], abs=1e-5)


@pytest.mark.parametrize("k", [None, 0, 1, 3])
def test_how_many(k):
    params = SamplingParams(temperature=0, logit_bias={3: 100}, logprobs=k)
    (branch,) = branches([1.0, 0.0, -1.0, -2.0], params)
    if k is None:
        assert branch.logprobs is None
    else:
        assert list(branch.logprobs[0]) == [*range(k), 3]
        assert branch.logprobs[0][3].rank == 4


def test_every_sample_of_a_fan_out_has_its_own():
    found = branches([1.0, 0.9, 0.8, 0.7], SamplingParams(n=8, logprobs=1, seed=4), samples=8)
    assert len({branch.tokens for branch in found}) > 2
    for branch in found:
        assert list(branch.logprobs[0]) == sorted({0, *branch.tokens})


def test_minus_infinity_is_json():
    """known fault B64"""
    (branch,) = branches([5.0, -math.inf, -math.inf], SamplingParams(temperature=0, logprobs=3))
    values = {str(token): one.logprob for token, one in branch.logprobs[0].items()}
    assert json.loads(json.dumps(values, allow_nan=False)) == {"0": 0.0, "1": LOWEST_LOGPROB, "2": LOWEST_LOGPROB}


def test_padding_of_the_head_is_no_part_of_the_distribution():
    """known fault B58"""
    logits = torch.zeros(16)
    logits[12], logits[3] = 50.0, 1.0
    (branch,) = branches(logits.tolist(), SamplingParams(temperature=0, logprobs=2), vocab_limit=10)
    assert branch.tokens == (3,)
    assert list(branch.logprobs[0]) == [3, 0]
    assert sum(math.exp(one.logprob) for one in token_logprobs(logits[None, :10], [3], 10)[0].values()) == pytest.approx(1, abs=1e-6)
    # A prompt may have such a token: nothing could have made it.
    assert token_logprobs(logits[None, :10], [12], 1)[0] == {3: token_logprobs(logits[None, :10], [3], 0)[0][3], 12: Logprob(LOWEST_LOGPROB, 11)}


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_prompt_logits_that_are_not_finite_name_the_request(value):
    logits = torch.zeros(3, 5)
    logits[1, 4] = value
    with pytest.raises(BrokenLogitsError, match="logits of bad are not finite"):
        Sampler().prompt_token_logprobs("bad", logits, [1, 2, 3], 1)


# -- what a token is -------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["byte-level", "sentencepiece"])
def test_parts_of_a_character_keep_their_bytes(kind):
    """known fault B108"""
    detokenizer = Detokenizer(tiny(kind))
    parts = [detokenizer.token(byte_id(kind, byte)) for byte in "🔥".encode()]
    assert [list(data) for _, data in parts] == [[0xF0], [0x9F], [0x94], [0xA5]]
    assert [text for text, _ in parts] == ["\ufffd"] * 4
    assert b"".join(data for _, data in parts).decode() == "🔥"


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_of_the_tokens_are_the_bytes_of_the_text(kind):
    tokenizer, detokenizer = tiny(kind), Detokenizer(tiny(kind))
    ids = tokenizer("the cat größer 你好 🔥, stop" if kind in BY_BYTES else "the cat stop")["input_ids"]
    tokens = [detokenizer.token(i) for i in ids]
    assert detokenizer.token(ids[0]) is tokens[0], "looked at once"
    if kind in BY_BYTES:
        assert b"".join(data for _, data in tokens).decode().strip() == tokenizer.decode(ids).strip()
    for text, data in tokens:
        assert data is None or data.decode("utf-8", "replace") == text
    for name in (EOT, ADDED):       # special ones are shown as well
        assert detokenizer.token(tokenizer.convert_tokens_to_ids(name))[0].strip() == name
    assert detokenizer.token(100_000) == ("", b"")


def test_the_object_that_users_of_vllm_expect():
    one = Logprob(-0.5, 1)
    assert (one.logprob, one.rank, one.decoded_token, one.bytes) == (-0.5, 1, None, None)
