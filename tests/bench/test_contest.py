"""Who takes part in `bench throughput`, what is counted of them, and what the profile lays around an engine."""
import io
import random
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from rich.console import Console
from transformers import GPT2Config, GPT2LMHeadModel

from paged_edu.bench import contest, request_list, step_profile, throughput, throughput_view
from paged_edu.bench.contenders import Command, Ours, Served, Transformers
from paged_edu.bench.request_list import Asked
from paged_edu.engine.llm import LLM
from paged_edu.model import int8
from paged_edu.sampling.params import SamplingParams

PEER = f"{sys.executable} -c"
ASKED = [Asked((5, 6, 7), 4), Asked((8,), 9), Asked((9, 10, 11, 12, 13), 1)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    """A GPT-2 of one layer: nothing here asks how good its words are."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("tiny")
    GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=64, n_embd=16, n_layer=1, n_head=2, initializer_range=0.3)).save_pretrained(path)
    return str(path)


# -- the contenders --------------------------------------------------------------------------------------------------------------------
def test_times_and_tokens_of_every_request(tiny):
    with LLM(tiny, max_model_len=16, num_gpu_blocks_override=8, enable_prefix_caching=False, skip_tokenizer_init=True, dtype="float64") as llm:
        served = Ours(llm).serve(ASKED)
        late = Ours(llm).serve([ASKED[0], Asked(ASKED[1].prompt, 9, time=5.0)])
    hf = Transformers(request_path(tiny), torch.float64, torch.device("cpu"), 64).serve(ASKED)
    for run in (served, hf):
        assert [len(times) for times in run.times] == [len(tokens) for tokens in run.tokens] == [4, 9, 1]
        assert all(0 < a < b <= run.seconds for times in run.times for a, b in pairwise(times))
    assert served.tokens == hf.tokens
    assert hf.running == [3, 2, 2, 2, 1, 1, 1, 1, 1]
    assert hf.held[:2] == pytest.approx([(9 + 3) / (3 * 6), (4 + 4) / (3 * 7)])
    assert late.times[1][0] > 5                                         # the stopwatch jumps: nobody waits for five seconds
    assert late.seconds > 5


def request_path(model):
    return throughput.Options(model=model).spec()[0]


def test_transformers_batches_have_room_for_their_longest(tiny):
    hf = Transformers.__new__(Transformers)
    hf.max_positions, hf.most = 10, 0
    assert hf.batches([Asked((1,) * 6, 4), Asked((1,), 4), Asked((1,), 9), Asked((1,), 1)]) == [2, 2]
    hf.most = 1
    assert hf.batches(ASKED) == [1, 1, 1]


@pytest.mark.parametrize(("code", "message"), [
    ("print('done')", "no 'N tok/s': 'done'"), ("print('0 tok/s')", "no 'N tok/s'"),
    ("import sys; sys.exit('out of memory')", "exit code 1: out of memory"),
])
def test_other_programs_say_how_fast_they_were(tmp_path, code, message):
    with pytest.raises(ValueError, match=message):
        Command(f'{PEER} "{code}"', tmp_path).serve(ASKED)
    with pytest.raises(ValueError, match="no_such_program: No such file"):
        Command("no_such_program", tmp_path).serve(ASKED)


def test_other_programs_get_the_requests_and_the_model(tmp_path):
    script = tmp_path / "peer.py"
    script.write_text("import json, sys\nrows = json.load(open(sys.argv[1]))\nprint(sys.argv[2])\nprint(sum(r['n_out'] for r in rows), 'tok/s')\n")
    served = Command(f"{sys.executable} {script} {{workload}} {{model}}", tmp_path).serve(ASKED)
    assert served.seconds == 1                                          # 14 tokens at 14 tok/s


# -- what came of it -------------------------------------------------------------------------------------------------------------------
def test_percentiles_and_quartiles_are_numpys():
    rng = random.Random(1)
    for count in (1, 2, 3, 10, 101):
        values = [rng.random() for _ in range(count)]
        assert list(contest.percentiles(values).values()) == pytest.approx(np.percentile(values, [50, 90, 99]).tolist())
        assert [contest.spread(values)[key] for key in ("low", "median", "high")] == pytest.approx(np.percentile(values, [25, 50, 75]).tolist())


def test_other_tokens_are_counted_and_near_ties_told_apart(tiny):
    hf = Transformers(request_path(tiny), torch.float32, torch.device("cpu"), 64)
    own = hf.serve(ASKED)
    row = list(own.tokens[1])
    row[4] = (row[4] + 1) % 64
    found = contest.agreement({"transformers": hf}, ASKED, {"paged": own, "transformers": Served(tokens=[own.tokens[0], tuple(row), own.tokens[2]])})
    its = found["others"]["transformers"]
    assert (its["different"], its["near_ties"], len(its["gaps"])) == (1, 0, 1)
    with torch.inference_mode():
        logits = hf.model(torch.tensor([[8, *row[:4]]])).logits[0, -1]
    assert its["gaps"][0] == pytest.approx(float(logits.max() - logits[row[4]]), abs=1e-6)
    assert "paged in 1 of 3 requests: 0 after a near tie" in throughput_view.same_tokens({"same_tokens": found})[0]


def test_requests_are_drawn_alike_and_scaled():
    drawn = request_list.drawn("alpaca", 20, 3, 64, 50)
    assert drawn == request_list.drawn("alpaca", 20, 3, 64, 50)
    assert max(one.length for one in drawn) <= 64
    assert all(0 <= token < 50 for one in drawn for token in one.prompt)
    times = [one.time for one in request_list.at_rate(drawn, 2.0, 3)]
    assert times == sorted(times)
    assert [one.time for one in request_list.at_rate(drawn, 4.0, 3)] == pytest.approx([time / 2 for time in times])


# -- the profile -----------------------------------------------------------------------------------------------------------------------
def test_everything_is_as_it_was_when_the_stopwatches_are_gone(tiny):
    import torch.nn.functional as functional

    before = functional.linear, torch.addmm
    with LLM(tiny, num_gpu_blocks_override=16, skip_tokenizer_init=True) as llm:
        engine = llm.engine
        modules = [dict(vars(module)) for module in engine.runner.model.modules()]
        with step_profile.watched(engine) as watches:
            assert functional.linear is not before[0]
            llm.generate([[1, 2, 3]], use_tqdm=False)
        taken = watches.taken()
        assert all(taken[part] > 0 for part in ("products", "attention", "sampling", "scheduling"))
        assert not any(watches.taken().values())
        assert (functional.linear, torch.addmm) == before
        assert modules == [dict(vars(module)) for module in engine.runner.model.modules()]
        assert not {"schedule", "update"} & set(vars(engine.scheduler))


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_every_layer_with_weights_is_a_product(tiny, quantization):
    """However it holds them: packed for oneDNN or as int8 codes, and the tied head that stays as it was."""
    if quantization and int8.ENGINE not in torch.backends.quantized.supported_engines:
        pytest.skip("torch has no x86 engine here")
    with LLM(tiny, num_gpu_blocks_override=16, skip_tokenizer_init=True, quantization=quantization) as llm:
        layers = len(llm.engine.runner.model.h)
        with step_profile.watched(llm.engine) as watches:
            watches.record = []
            llm.generate([[1, 2, 3]], SamplingParams(max_tokens=1), use_tqdm=False)
        assert len(watches.record) == 4 * layers + 1        # qkv, output, two of the MLP; the head
        for call in watches.record:
            call()


def test_the_products_are_run_again_with_the_same_weights(tiny):
    with LLM(tiny, num_gpu_blocks_override=64, skip_tokenizer_init=True, enable_prefix_caching=False) as llm:
        part = step_profile.against_products(llm, [Asked((1, 2, 3), 8), Asked((4,), 2)], 64, 4)
        assert part["mean_context"] == pytest.approx((7 + 2) / 2 + 2)
        assert not llm.engine.has_unfinished_requests()
        with pytest.raises(ValueError, match="room for 16 tokens, and the longest request has 15"):
            step_profile.check(Ours(llm), 15)


def test_a_run_of_somebody_who_only_says_how_fast_it_was_is_shown():
    out = io.StringIO()
    rounds = [{"seconds": 1.0, "tokens_per_s": 4.0, "load_average": None}]
    part = {"at_once": True, "requests": 1, "output_tokens": 4, "threads": 1, "left_out": {}, "systems": {"paged": {"about": {}, "rounds": rounds}}}
    part["summary"] = contest.summary(part)
    result = {
        "options": {"workload": "w.json", "model": "m", "rate": None}, "complete": False, "throughput": part,
        "machine": {"cpu": "c", "torch": "2", "transformers": "5", "date": "2026-01-01"},
    }
    throughput_view.show(result, Console(file=out, width=80))
    assert "interrupted" in out.getvalue()
