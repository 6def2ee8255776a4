"""The training script: an encoding that loses nothing, a figure that counts every token once, and a run that can be resumed."""
import json
import math
import types

import pytest
import torch

from paged_edu import LLM, SamplingParams
from paged_edu.model import train

TEXT = "".join(f"ROMEO:\nWhat light {i} through yonder window\n\nJULIET:\nAy me {i * 7}!\n\n" for i in range(60)) + "\n\nNURSE:\n  Ends oddly\n"


@pytest.fixture(scope="module")
def tokenizer():
    return train.train_tokenizer(train.split_corpus(TEXT)[0], 300)


def test_the_encoding_loses_no_character(tokenizer):
    for text in (TEXT, "", "\n\n", "\n\n\n", "a\n\n\n\nb", "end\n\n"):
        ids = train.encode(tokenizer, text).tolist()
        assert ids[0] == tokenizer.eos_token_id
        speeches = [[]]
        for token in ids[1:]:
            if token == tokenizer.eos_token_id:
                speeches.append([])
            else:
                speeches[-1].append(token)
        assert train.SPEECH_SEPARATOR.join(tokenizer.decode(s) for s in speeches) == text


def test_the_last_tenth_is_held_out():
    first, last = train.split_corpus(TEXT)
    assert first + last == TEXT
    assert len(last) == pytest.approx(len(TEXT) / 10, abs=1)


@pytest.mark.parametrize("length", [2, 5, 8, 9, 12, 13, 16, 17, 40])
def test_every_token_is_scored_once_with_enough_context(length):
    """A model whose loss at a position is the position's own number: the sum says which positions were scored, and how often."""
    ids = torch.arange(length) % 7
    seen = []

    class Model(torch.nn.Module):
        def forward(self, chunk):
            start = 0 if not seen else seen[-1] + 4
            seen.append(start)
            logits = torch.zeros(1, chunk.shape[1], 7)
            for i in range(chunk.shape[1] - 1):
                logits[0, i, chunk[0, i + 1]] = float(start + i)     # a loss that depends on where the window lies
            return types.SimpleNamespace(logits=logits)

    figure = train.nats_per_character(Model(), ids, 1, window=8, stride=4)
    expected = sum(math.log(6 + math.exp(p)) - p for p in range(length - 1))
    assert figure == pytest.approx(expected, rel=1e-6)


def test_a_uniform_model_costs_log_v_a_token():
    class Uniform(torch.nn.Module):
        def forward(self, chunk):
            return types.SimpleNamespace(logits=torch.zeros(1, chunk.shape[1], 50))

    assert train.nats_per_character(Uniform(), torch.zeros(2000, dtype=torch.int64), 4000) == pytest.approx(math.log(50) * 1999 / 4000)


def test_learning_rate_warms_up_and_ends_at_zero():
    rates = [train.learning_rate(s, 1000, 2e-3) for s in range(1001)]
    assert rates[0] < rates[50] < rates[100] == 2e-3 == max(rates)
    assert rates[1000] == pytest.approx(0)


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, capsys):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(TEXT)
    small = ["--corpus", str(corpus), "--layers", "1", "--width", "16", "--heads", "2", "--context", "32", "--vocab-size", "300", "--batch", "2"]

    def run(name, *extra):
        train.main([*small, "--out", str(tmp_path / name), "--checkpoint", str(tmp_path / f"{name}.ckpt"), *extra])
        return (tmp_path / name / "model.safetensors").read_bytes()

    whole = run("whole", "--steps", "6", "--report-every", "3")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "learning_rate", _stop_at(4))
        with pytest.raises(KeyboardInterrupt):
            run("cut", "--steps", "6", "--report-every", "3")
    assert run("cut", "--steps", "6", "--report-every", "3") == whole
    assert "resuming at step 3 of 6" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="other settings"):
        run("cut", "--steps", "6", "--lr", "0.5")
    figures = json.loads((tmp_path / "whole" / "training.json").read_text())
    assert f"{figures['nats_per_character']:.4f}" in (tmp_path / "whole" / "README.md").read_text()
    with LLM(str(tmp_path / "whole"), num_gpu_blocks_override=8) as llm:
        assert llm.generate("ROMEO:", SamplingParams(max_tokens=4, ignore_eos=True), use_tqdm=False)[0].finished
    train.main(["--corpus", str(corpus), "--evaluate", str(tmp_path / "whole")])


def _stop_at(step):
    inner = train.learning_rate

    def rate(now, steps, peak):
        if now == step:
            raise KeyboardInterrupt
        return inner(now, steps, peak)

    return rate


def test_a_missing_corpus_is_named(capsys):
    with pytest.raises(SystemExit):
        train.main(["--corpus", "nowhere.txt"])
    assert "no such corpus: nowhere.txt" in capsys.readouterr().err
