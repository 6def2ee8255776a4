"""The training script: a run that can be resumed, and one line for everything that a user can get wrong before the hour of training."""
import json

import pytest
import torch

from paged_edu import LLM, SamplingParams
from paged_edu.model import train

TEXT = "".join(f"ROMEO:\nWhat light {i} through yonder window\n\nJULIET:\nAy me {i * 7}!\n\n" for i in range(60)) + "\n\nNURSE:\n  Ends oddly\n"


def refused(capsys, *argv):
    """The one line with which the script ends."""
    with pytest.raises(SystemExit) as stop:
        train.main(list(argv))
    assert stop.value.code == 2
    err = [line for line in capsys.readouterr().err.splitlines() if line and "step/s" not in line]      # without the progress bar
    assert len(err) == 1, err
    assert err[0].startswith("python -m paged_edu.model.train: ")
    return err[0]


def test_learning_rate_warms_up_and_ends_at_zero():
    rates = [train.learning_rate(s, 1000, 2e-3) for s in range(1001)]
    assert rates[0] < rates[50] < rates[100] == 2e-3 == max(rates)
    assert rates[1000] == pytest.approx(0)


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)                 # the default folders are relative
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(TEXT)
    other = tmp_path / "other.txt"
    other.write_text(TEXT[:-1] + "?")
    small = ["--corpus", str(corpus), "--layers", "1", "--width", "16", "--heads", "2", "--context", "32", "--vocab-size", "300", "--batch", "2"]

    def run(name, *extra):
        train.main([*small, "--out", str(tmp_path / name), "--checkpoint", str(tmp_path / f"{name}.ckpt"), *extra])
        return (tmp_path / name / "model.safetensors").read_bytes()

    whole = run("whole", "--steps", "6", "--report-every", "3")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "learning_rate", _stop_at(4))
        with pytest.raises(SystemExit, match="130"):
            run("cut", "--steps", "6", "--report-every", "3")
    assert run("cut", "--steps", "6", "--report-every", "3") == whole
    assert "resuming at step 3 of 6" in capsys.readouterr().out
    for extra, said in (
        (["--lr", "0.5"], "lr 0.002 there, 0.5 here"), (["--corpus", str(other)], "corpus_sha256"), (["--steps", "5"], "at least the 6"),
    ):
        assert said in refused(capsys, *small, "--steps", "6", "--checkpoint", str(tmp_path / "cut.ckpt"), *extra)
    figures = json.loads((tmp_path / "whole" / "training.json").read_text())
    assert f"{figures['nats_per_character']:.4f}" in (tmp_path / "whole" / "README.md").read_text()
    assert "*corpus* (" in (tmp_path / "whole" / "README.md").read_text()
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


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a corpus and some files that are none."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text(TEXT)
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "binary.txt").write_bytes(bytes(range(128, 256)))
    (tmp_path / "junk.ckpt").write_bytes(b"junk")
    torch.save({"model": {}}, tmp_path / "strange.ckpt")
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.mark.parametrize(("argv", "parts"), [
    ("--corpus nowhere.txt", ["no such corpus: nowhere.txt"]),
    ("--corpus folder", ["folder: Is a directory"]),
    ("--corpus empty.txt", ["empty.txt", "0 characters"]),
    ("--corpus binary.txt", ["binary.txt", "UTF-8"]),
    ("--context 100000", ["--context", "training tokens of corpus.txt", "not 100000"]),
    ("--context 1", ["--context", "between 2", "not 1"]),
    ("--heads 5", ["--width", "--heads (5)", "not 192"]),
    ("--lr nan", ["--lr", "above 0", "nan"]),
    ("--lr -1", ["--lr", "above 0", "-1.0"]),
    ("--lr inf", ["--lr", "finite", "inf"]),
    ("--dropout 1", ["--dropout", "below 1", "1.0"]),
    ("--weight-decay nan", ["--weight-decay", "nan"]),
    ("--vocab-size 256", ["--vocab-size", "between 257", "not 256"]),
    ("--threads -1", ["--threads", "between 0", "not -1"]),
    ("--seed -1", ["--seed", "between 0", "not -1"]),
    ("--steps 0", ["--steps", "between 1", "not 0"]),
    ("--report-every 0", ["--report-every", "between 1", "not 0"]),
    ("--width 1200000 --layers 99", ["GiB", "--width 1200000"]),
    ("--batch 100000000", ["GiB", "--batch 100000000"]),
    ("--out corpus.txt", ["--out corpus.txt", "no folder"]),
    ("--out corpus.txt/below", ["--out corpus.txt/below", "no folder"]),
    ("--checkpoint folder", ["--checkpoint folder", "is a directory"]),
    ("--checkpoint nosuch/x.ckpt", ["--checkpoint nosuch/x.ckpt", "does not exist"]),
    ("--checkpoint junk.ckpt", ["junk.ckpt is no checkpoint"]),
    ("--checkpoint strange.ckpt", ["strange.ckpt is no checkpoint"]),
    ("--corpus-name=", ["--corpus-name", "one line"]),
    ("--evaluate nosuch", ["nosuch", "no config.json"]),
    ("--evaluate folder", ["folder", "no config.json"]),
    ("--evaluate corpus.txt", ["corpus.txt", "no config.json"]),
    ("--evaluate folder --steps 5", ["--evaluate", "--steps would do nothing"]),
])
def test_a_mistake_is_one_line_and_leaves_nothing_behind(here, capsys, argv, parts):
    before = sorted(here.rglob("*"))
    said = refused(capsys, "--corpus", "corpus.txt", *argv.split())
    assert all(part in said for part in parts), said
    assert sorted(here.rglob("*")) == before


def test_a_loss_that_is_no_number_stops_the_run(here, capsys, monkeypatch):
    monkeypatch.setattr(train, "learning_rate", lambda *_: 1e30)
    small = ["--layers", "1", "--width", "16", "--heads", "2", "--context", "32", "--vocab-size", "300", "--batch", "2", "--steps", "20"]
    assert "the loss is nan after 20 steps" in refused(capsys, "--corpus", "corpus.txt", *small)
    assert not (here / "tiny-shakespeare.ckpt").exists()
    assert not (here / "my-model").exists()


def test_the_card_names_the_text_as_asked(here):
    small = ["--layers", "1", "--width", "16", "--heads", "2", "--context", "32", "--vocab-size", "300", "--batch", "2", "--steps", "1"]
    train.main(["--corpus", "corpus.txt", *small, "--corpus-name", "Romeo, again and again", "--out", "model"])
    card = (here / "model" / "README.md").read_text()
    assert "*Romeo, again and again*" in card
    assert card.startswith("# model\n")
    assert "(1 layer, 2 heads, width 16)" in card
    assert "akespeare" not in card
    assert str(here) not in card
