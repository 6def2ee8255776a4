"""`bench paper`: the structure of what it measures and what must hold of counts; nothing about how fast this machine is."""
import io
import json
from contextlib import ExitStack
from dataclasses import replace
from importlib.resources import files

import pytest
import torch
from rich.console import Console
from transformers import GPT2Config, GPT2LMHeadModel

from paged_edu import cli
from paged_edu.bench import memory, paper, paper_figures, paper_swap, paper_view
from paged_edu.bench.paper_figures import Setting
from paged_edu.bench.paper_numbers import FIG15, FIG18B, FIG19A
from paged_edu.bench.probe import PARTS

STORED = json.loads(files("paged_edu.data").joinpath("bench", "paper.json").read_text(encoding="utf-8"))
SETTING = Setting("tiny-shakespeare", "cpu", "float64", "sharegpt", 32, 2, 0, quick=True, seconds_per_request=1.0, share=0.0, least=0.5)
"""As small as it gets: nothing fits the share, so every measurement has its smallest size, or half of it."""
CROWDED = replace(SETTING, max_model_len=64, least=1.0)
"""Enough requests for somebody to wait, or to be preempted."""


def quiet(*arguments) -> None:
    pass


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    """A GPT-2 of one layer: nothing here asks how good its words are."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("tiny")
    GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=128, n_embd=16, n_layer=1, n_head=2, initializer_range=0.3)).save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def small(tiny) -> dict:
    """Every measurement once, at its smallest."""
    result = {"options": {}, "machine": {}, "speed": {}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paper_figures, "SPEED_REQUESTS", 8)
        paper_figures.measure_speed(SETTING, result["speed"], quiet, quiet)
        for name, measurement in paper.measurements().items():
            result[name] = {}
            measurement(replace(CROWDED if name in ("memory", "fig19") else SETTING, model=tiny), result[name], quiet, quiet)
    return result


def shown(result: dict, figures=tuple(paper.FIGURES)) -> str:
    out = io.StringIO()
    paper_view.show(result, figures, Console(file=out, width=80, highlight=False))
    return out.getvalue()


# -- the measurements ------------------------------------------------------------------------------------------------------------------
def test_the_parts_of_the_memory_add_up_and_paging_runs_the_most(small):
    part = small["memory"]
    assert [row["manager"] for row in part["rows"]] == ["orca-max", "orca-pow2", "orca-oracle", "paged"]
    for row in part["rows"]:
        assert sum(row["parts"][name]["mean"] for name in PARTS) == pytest.approx(1, abs=1e-4)
        assert row["same_tokens_as_paged"] == part["requests"]
        assert row["crowded_steps"] > 0
    running = [row["running"]["mean"] for row in part["rows"]]
    assert running == sorted(running)
    assert running[-1] > 2 * running[0]
    assert part["num_blocks"] == 15_728 * 64 // 2048 // 2 // 2
    assert part["summary"] == memory.summary(part["rows"])


def test_every_system_serves_every_request_at_every_rate(small):
    part = small["fig12"]
    assert {row["manager"] for row in part["rows"]} == {"orca-max", "paged"}
    assert len({row["rate"] for row in part["rows"]}) == 3
    assert len(part["rows"]) == 6
    assert {row["requests"] for row in part["rows"]} == {part["requests"]}
    assert len({row["output_tokens"] for row in part["rows"]}) == 1
    assert all(row["normalized_latency"] > 0 for row in part["rows"])
    assert set(part["capacity"]) == {"orca-max", "paged"}


def test_more_branches_share_more_and_beams_share_more_than_samples(small):
    saved = {(row["how"], row["n"]): row for row in small["fig15"]["rows"]}
    assert list(saved) == [("sampling", 2), ("sampling", 4), ("beam", 2), ("beam", 4)]
    for measure in (lambda row: row["saving"]["mean"], lambda row: row["saving_of_the_whole_run"]):
        for how in ("sampling", "beam"):
            assert 0 < measure(saved[how, 2]) < measure(saved[how, 4]) < 1
        assert measure(saved["beam", 4]) > measure(saved["sampling", 4])
    assert all(row["preemptions"] == 0 for row in saved.values())


def test_sharing_by_hand(tiny):
    """A prompt that fills a block, two samples of 4 tokens: in 3 of the 4 steps two tables have the block, and 3 blocks do the work of 4."""
    part = {"block_size": 4, "max_model_len": 32}
    row = paper_figures._sharing_row(replace(SETTING, model=tiny), [(4, 4)], part, "sampling", 2, 1, quiet)
    assert row["steps"] == 4
    assert row["saving"] == {"mean": pytest.approx(3 * 0.25 / 4), "min": 0, "max": 0.25}
    assert row["saving_of_the_whole_run"] == pytest.approx(3 / (1 + 3 * 4))


def test_the_same_slots_hold_fewer_sequences_in_blocks_that_are_too_large(small):
    part = small["fig18b"]
    assert sorted(row["block_size"] for row in part["rows"]) == list(paper_figures.QUICK_BLOCK_SIZES)
    assert part["num_slots"] == 128
    running = {row["block_size"]: row["running"] for row in part["rows"]}
    assert running[128] == 1                                            # one block of 128: one sequence
    assert running[1] > 1
    assert set(part["steps"]) == {str(size) for size in paper_figures.QUICK_BLOCK_SIZES}
    assert all(its["runs"] == 10 and its["median_ms"] > 0 for its in part["steps"].values())


def test_swapped_and_recomputed_requests_write_the_same(small):
    part = small["fig19"]
    assert part["same_tokens"] == part["requests"] == 24
    served = {row["mode"]: row for row in part["served"]}
    assert served["swap"]["preemptions"] > 0                             # or nothing would have been compared
    assert served["recompute"]["preemptions"] > 0
    assert served["swap"]["swapped_blocks"] > 0 == served["recompute"]["swapped_blocks"]
    assert [row["block_size"] for row in part["rows"]] == list(paper_figures.QUICK_BLOCK_SIZES)
    assert all(row[way]["median_ms"] > 0 and row[way]["runs"] >= 3 for row in part["rows"] for way in paper_swap.WAYS)


def test_the_ways_of_fig_19_move_every_block_out_and_back():
    with ExitStack() as stack:
        llm = SETTING.open(stack, 9, block_size=4, swap_space=None)
        ways = paper_swap._ways(llm, 31)
        ways["recompute"]()
        cache, away = llm.engine.runner.cache, llm.engine.runner.cpu_cache
        before = [stack[:, :8].clone() for stack in cache.stacks]
        away.fill_(7.0)
        ways["swap_out"]()
        cache.fill_(float("nan"))
        ways["swap_in"]()
        assert all((stack[:, :8] == old).all() for stack, old in zip(cache.stacks, before, strict=True))
        assert all(stack[:, 8:].isnan().all() for stack in cache.stacks)


def test_where_the_two_ways_cross():
    rows = [{"block_size": size} | {way: {"median_ms": ms} for way, ms in zip(paper_swap.WAYS, times, strict=True)} for size, times in FIG19A.items()]
    assert paper_swap.crossing(rows) == 32                              # the paper's own numbers
    assert paper_swap.crossing(rows[:3]) is None


def test_alpacas_own_lengths_fit_the_model():
    drawn = paper_figures.alpaca(500, 0, 512)
    assert len(drawn) == 500
    assert max(prompt + output for prompt, output in drawn) <= 512
    assert 50 < sum(output for _, output in drawn) / 500 < 65           # Paper §6.1: 58.45


# -- what is shown ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("which", ["small", "stored"])
def test_every_figure_has_a_table_of_80_columns(small, which):
    result = STORED if which == "stored" else small | {"options": STORED["options"], "machine": STORED["machine"]}
    out = shown(result)
    assert [out.count(title) for _, title, _ in paper_view.DRAWN.values()] == [1] * 6
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "not measured" not in out
    for figure in paper.FIGURES:
        assert shown(result, (figure,)).count("Fig.") >= 1


def test_the_papers_numbers_stand_beside():
    out = shown(STORED, ("fig15", "fig18b", "fig19"))
    assert all(f"{saved:.1%}" in out for saved in FIG15.values())
    assert all(f"{latency:.3f}" in out for latency in FIG18B.values())
    assert f"{38.6 / (21.6 + 18.5):.2f}" in out


def test_where_latency_bends():
    rows = [{"manager": "paged", "rate": rate, "normalized_latency": latency} for rate, latency in ((1.0, 0.1), (2.0, 0.15), (3.0, 0.35), (None, 9))]
    assert paper_view.bend(rows, "paged") == "2.2"                      # 0.2 lies a quarter of the way from 0.15 to 0.35
    assert paper_view.bend(rows[:2], "paged") == "above 2.0"
    assert paper_view.bend([*rows, {"manager": "orca-max", "rate": 1.0, "normalized_latency": 0.5}], "orca-max") == "below 1.0"
    assert paper_view.bend(rows, "orca-max") == "not measured"


def test_the_stored_run_is_whole_and_of_the_defaults():
    assert STORED["complete"]
    assert STORED["options"]["only"] == "all"
    assert STORED["options"]["seconds_budget"] == paper.SECONDS
    assert not STORED["options"]["quick"]
    rows = {row["manager"]: row for row in STORED["memory"]["rows"]}
    assert rows["orca-max"]["running"]["mean"] == 7.0                   # Paper Fig. 13
    assert rows["paged"]["running"]["mean"] > 2 * rows["orca-max"]["running"]["mean"]
    assert STORED["fig19"]["same_tokens"] == STORED["fig19"]["requests"]


# -- the command -----------------------------------------------------------------------------------------------------------------------
@pytest.fixture
def started(monkeypatch):
    """Nothing is measured; whether it would have been."""
    calls = []
    monkeypatch.setattr(paper, "measure", lambda *arguments: calls.append(arguments))
    return calls


@pytest.mark.parametrize(("flags", "message"), [
    (["--only", "fig3"], "--only must be one of 'fig2', 'fig12', 'fig13', 'fig15', 'fig18b', 'fig19', not 'fig3'"), (["--only", ""], "not ''"),
    (["--seconds-budget", "0"], "--seconds-budget must be at least 1 and at most 1e+06, not 0.0"), (["--seconds-budget", "nan"], "not nan"),
    (["--max-model-len", "16"], "--max-model-len must be between 32"), (["--block-size", "129"], "--block-size must be between 1 and 128, not 129"),
    (["--dataset", "pile"], "--dataset must be one of"), (["--seed", "-1"], "--seed must be"), (["--dtype", "int8"], "--dtype must be one of"),
    (["--json", "/no/such/folder/p.json"], "--json /no/such/folder/p.json: the directory"), (["--load", "/no/such.json"], "/no/such.json: No such"),
    (["--load", "x.json", "--quick"], "--load shows what was measured before: --quick has no meaning"),
    (["--load", "x.json", "--json", "y.json"], "--json has no meaning beside it"),
])
def test_bad_flags_are_refused_before_anything_runs(capsys, started, flags, message):
    assert cli.main(["bench", "paper", *flags]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err
    assert not started


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"memory": {"rows": [1]}}', json.dumps({**STORED, "fig12": {"rows": [{}]}})])
def test_a_file_that_is_something_else_is_refused(capsys, tmp_path, text):
    (tmp_path / "p.json").write_text(text, encoding="utf-8")
    assert cli.main(["bench", "paper", "--load", str(tmp_path / "p.json")]) == 2
    assert "p.json: no" in capsys.readouterr().err


def test_a_stored_run_is_shown(capsys):
    path = str(files("paged_edu.data").joinpath("bench", "paper.json"))
    assert cli.main(["bench", "paper", "--load", path, "--only", "fig19, fig2"]) == 0
    out = capsys.readouterr().out
    assert "Fig. 2: what" in out
    assert out.index("Fig. 2: what") < out.index("Fig. 19: swapping")
    assert "Fig. 12: normalized" not in out


def test_the_command_measures_shows_and_writes(capsys, tmp_path, monkeypatch, tiny):
    monkeypatch.setattr(paper_figures, "SPEED_REQUESTS", 8)
    flags = ["--only", "fig12", "--quick", "--max-model-len", "32", "--seconds-budget", "1", "--device", "cpu", "--seed", "5", "--model", tiny]
    assert cli.main(["bench", "paper", *flags, "--json", str(tmp_path / "p.json")]) == 0
    out, err = capsys.readouterr()
    result = json.loads((tmp_path / "p.json").read_text(encoding="utf-8"))
    assert set(result) == {"options", "machine", "complete", "speed", "fig12"}
    assert (result["complete"], result["options"]["seed"], result["options"]["only"]) == (True, 5, "fig12")
    assert {"date", "python", "paged_edu", "numpy", "torch", "cpu"} <= set(result["machine"])
    assert "all at once" in out
    assert "Fig. 19" not in out
    assert "measuring: Fig. 12" in err


def test_ctrl_c_keeps_what_there_is(capsys, tmp_path, monkeypatch):
    """In the middle of Fig. 15: two of its rows are there, and so is what came before."""
    rows = iter(STORED["fig15"]["rows"][:2])

    def interrupted(*arguments):
        for row in rows:
            return row
        raise KeyboardInterrupt

    monkeypatch.setattr(paper_figures, "SPEED_REQUESTS", 8)
    monkeypatch.setattr(paper_figures, "_sharing_row", interrupted)
    monkeypatch.setattr(paper_figures, "fig2_fig13", lambda setting, part, advance, begin: part.update(STORED["memory"]))
    flags = ["--only", "fig13,fig15,fig19", "--quick", "--max-model-len", "32", "--json", str(tmp_path / "p.json")]
    assert cli.main(["bench", "paper", *flags]) == 130
    out, err = capsys.readouterr()
    result = json.loads((tmp_path / "p.json").read_text(encoding="utf-8"))
    assert not result["complete"]
    assert (len(result["memory"]["rows"]), len(result["fig15"]["rows"]), "fig19" in result) == (4, 2, False)
    assert "paged-edu: interrupted" in err
    assert f"measured so far: memory, fig15; written to {tmp_path / 'p.json'}" in err
    assert "4 samples" in out
    assert "not measured: fig19" in out
    assert cli.main(["bench", "paper", "--load", str(tmp_path / "p.json")]) == 0


def test_ctrl_c_before_anything_was_measured(capsys, tmp_path, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(paper_figures, "measure_speed", interrupted)
    assert cli.main(["bench", "paper", "--json", str(tmp_path / "p.json")]) == 130
    out, err = capsys.readouterr()
    assert out == ""
    assert "nothing had been measured yet" in err
    assert not list(tmp_path.iterdir())


def test_a_model_without_so_many_positions_is_one_line(capsys):
    assert cli.main(["bench", "paper", "--only", "fig12", "--max-model-len", "1024"]) == 2
    err = capsys.readouterr().err.splitlines()
    assert "max_model_len is 1024; tiny-shakespeare has positions for 512 tokens" in err[-1]


def test_figures_and_their_time():
    assert paper.Options().parts == ("memory", "fig12", "fig15", "fig18b", "fig19") == tuple(paper.SHARES)
    assert sum(paper.SHARES.values()) == pytest.approx(1)
    assert paper.Options(only="fig13, fig2").figures == ("fig2", "fig13")
    assert paper.Options(only="fig13, fig2").parts == ("memory",)
    assert (paper.Options().positions, paper.Options(quick=True).positions, paper.Options(quick=True, max_model_len=256).positions) == (128, 64, 256)
    assert paper.Options(quick=True, seconds_budget=7).seconds == 7
    assert replace(SETTING, share=26.0, seconds_per_request=0.5).how_many(1.3, 10, 100) == 40
    assert tuple(paper.measurements()) == tuple(paper.SHARES)
    assert set(paper_view.DRAWN) == set(paper.FIGURES)
    assert {name: key for name, (key, _, _) in paper_view.DRAWN.items()} == paper.FIGURES
