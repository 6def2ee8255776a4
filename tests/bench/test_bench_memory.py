"""`bench memory`: what it measures, by hand and against the paper; the stored numbers are what the code measures, and the README is what they say."""
import io
import json
import re
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from paged_edu import cli, lengths
from paged_edu.bench import memory, memory_view
from paged_edu.bench.probe import PARTS, Probe
from paged_edu.viz.fake_engine import FakeEngine

ROOT = Path(__file__).parents[2]
STORED = json.loads(files("paged_edu.data").joinpath("bench", "memory.json").read_text(encoding="utf-8"))
FIG2 = {        # token states, reservation, internal, external [%], as printed
    "orca-max": (20.4, 13.3, 57.3, 8.9), "orca-pow2": (26.8, 17.9, 13.6, 41.6), "orca-oracle": (38.2, 25.2, 0, 36.6),
    "paged": (96.3, 1.04, 1.04, 1.65),
}


def quiet(count: int) -> None:
    pass


def stored_row(part: str, **wanted) -> dict:
    (row,) = [row for row in STORED[part]["rows"] if all(row[key] == value for key, value in wanted.items())]
    return row


# -- what must hold --------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("manager", FIG2)
def test_every_part_is_within_five_points_of_the_papers_figure(manager):
    for row in STORED["paper"]["rows"]:             # with every seed, not only on average
        if row["manager"] == manager:
            measured = [100 * row["parts"][part]["mean"] for part in PARTS]
            assert measured == pytest.approx(FIG2[manager], abs=5), row["seed"]
            assert sum(measured) == pytest.approx(100, abs=0.001)
    assert memory.PAPER_FIG2[manager] == pytest.approx([share / 100 for share in FIG2[manager]])


def test_at_the_papers_lengths_nearly_all_memory_in_use_holds_tokens():
    for seed in range(STORED["paper"]["seeds"]):
        assert stored_row("paper", manager="paged", seed=seed)["in_use"]["mean"] >= 0.95


@pytest.mark.parametrize("part", ["paper", "engine"])
def test_paging_runs_more_than_twice_as_many_requests_in_the_same_memory(part):
    for row in STORED[part]["rows"]:
        if row["manager"] == "paged":
            base = stored_row(part, manager="orca-max", seed=row["seed"])
            assert row["running"]["mean"] >= 2 * base["running"]["mean"]
            assert row["steps"] < base["steps"] / 2
    assert STORED[part]["summary"]["orca-max"]["running"]["mean"] == 7.0       # Paper Fig. 13, and Table 1: 15,728 / 2048
    assert STORED[part]["num_blocks"] == 15_728 * STORED[part]["max_model_len"] // 2048 // 16


def test_every_manager_gave_the_same_tokens():
    assert {row["manager"] for row in STORED["engine"]["rows"]} == set(memory.MANAGERS)
    assert all(row["same_tokens_as_paged"] == STORED["engine"]["requests"] for row in STORED["engine"]["rows"])


def test_preemptions_copies_and_waiting_happened():
    for part in ("paper", "engine"):
        counts = STORED[part]["summary"]
        assert counts["grow"]["copied_blocks"]["min"] > 0
        assert counts["paged"]["preemptions"]["min"] > 0
        assert all(row["crowded_steps"] > 100 for row in STORED[part]["rows"])
    assert all(row["copied_blocks"] > 0 and 0.05 < row["sharing_saving"]["mean"] < 0.15 for row in STORED["sharing"]["rows"])


# -- the stored numbers are those of the code ------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("manager", memory.MANAGERS)
def test_a_run_at_the_papers_size_gives_the_stored_counts_again(manager):
    part = STORED["paper"]
    assert memory.paper_row(manager, part["dataset"], part["requests"], 0, quiet) == stored_row("paper", manager=manager, seed=0), \
        "run: paged-edu bench memory --json data/bench/memory.json && python -m paged_edu.bench.memory_view README.md"


@pytest.mark.slow
def test_a_run_with_samples_gives_the_stored_counts_again():
    assert memory.paper_row("paged", "alpaca", STORED["sharing"]["requests"], 0, quiet, 2) | {"n": 2} == stored_row("sharing", n=2)


@pytest.mark.parametrize("manager", memory.MANAGERS)
def test_memory_does_not_depend_on_the_model(manager):
    """The same lengths over the fake runner: what the real model's memory held, step by step, is what the stored numbers say."""
    part = STORED["engine"]
    engine = FakeEngine(part["num_blocks"], part["block_size"], part["max_model_len"], 2048, manager)
    engine.add(lengths.load(part["dataset"]).sample(part["requests"], np.random.default_rng(0), part["max_model_len"]))
    row = memory.serve(engine, Probe(engine.scheduler))
    stored = stored_row("engine", manager=manager)
    assert row == {name: stored[name] for name in row}


def test_the_summary_is_that_of_the_rows():
    for part in ("paper", "engine"):
        assert STORED[part]["summary"] == memory.summary(STORED[part]["rows"])


def test_the_readme_says_what_is_stored():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert memory_view.with_section(readme, STORED) == readme, "run: python -m paged_edu.bench.memory_view README.md"


def test_the_readme_has_no_other_numbers_about_memory_held():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    before, rest = readme.split(memory_view.BEGIN)
    assert not re.search(r"\d %", before + rest.split(memory_view.END)[1])


def test_the_module_writes_the_section_into_a_file(tmp_path):
    copy, numbers = tmp_path / "README.md", tmp_path / "numbers.json"
    changed = json.loads(json.dumps(STORED))
    changed["paper"]["summary"]["paged"]["parts"]["token_states"]["mean"] = 0.123
    numbers.write_text(json.dumps(changed), encoding="utf-8")
    copy.write_text(f"# A\n{memory_view.BEGIN}\nold\n{memory_view.END}\nafter\n", encoding="utf-8")
    memory_view.main([str(copy), str(numbers)], say=lambda text: None)
    written = copy.read_text(encoding="utf-8")
    assert "| paged | 12.3 % (96.3 %) |" in written
    assert "\nold\n" not in written
    assert written.startswith("# A\n")
    assert written.endswith(f"{memory_view.END}\nafter\n")
    with pytest.raises(ValueError, match="must have one line"):
        memory_view.with_section("no markers", STORED)
    with pytest.raises(SystemExit, match="usage"):
        memory_view.main([])


# -- what is measured, by hand ---------------------------------------------------------------------------------------------------------
def probed(manager: str, requests: list[tuple[int, int]], n: int = 1, **options) -> dict:
    engine = FakeEngine(4, 4, 8, 256, manager)
    engine.add(requests, n)
    return memory.serve(engine, Probe(engine.scheduler, **options))


def test_slabs_by_hand():
    """16 slots, 8 a request. Step 1: A writes 3 and B 1, C waits. Step 2: A has 4, B 2, and A is done. From step 3 on nobody waits.
    A will have written 4 at its end and B 3, so 7 of the 16 slots are ever used."""
    row = probed("orca-max", [(3, 2), (1, 3), (2, 3)])
    assert (row["steps"], row["crowded_steps"], row["measured_steps"], row["samples"]) == (5, 2, 2, 2)
    assert row["parts"]["token_states"] == {"mean": 5 / 16, "min": 4 / 16, "max": 6 / 16}
    assert row["parts"]["reservation"] == {"mean": 2 / 16, "min": 1 / 16, "max": 3 / 16}
    assert row["parts"]["internal"] == {"mean": 9 / 16, "min": 9 / 16, "max": 9 / 16}
    assert row["parts"]["external"]["max"] == 0
    assert row["in_use"]["mean"] == 5 / 16
    assert row["running"] == {"mean": 2, "min": 2, "max": 2}


def test_blocks_by_hand():
    """A block each for three requests; step 1 writes 3 + 1 + 2 tokens, step 2 one more each, step 3 B's and C's last. Nobody waits: all count."""
    row = probed("paged", [(3, 2), (1, 3), (2, 3)])
    assert (row["steps"], row["crowded_steps"], row["measured_steps"]) == (3, 0, 3)
    assert row["parts"]["token_states"] == {"mean": round((6 + 9 + 7) / 3 / 16, 6), "min": 6 / 16, "max": 9 / 16}
    assert row["in_use"] == {"mean": round((6 / 12 + 9 / 12 + 7 / 8) / 3, 6), "min": 0.5, "max": 0.875}
    assert row["running"] == {"mean": round(8 / 3, 6), "min": 2, "max": 3}


def test_sharing_by_hand():
    """A prompt that fills a block, two samples, 4 tokens each: from step 2 on two tables have the block, 3 blocks do the work of 4."""
    row = probed("paged", [(4, 4)], n=2)
    assert row["sharing_saving"] == {"mean": round(3 * 0.25 / 4, 6), "min": 0, "max": 0.25}
    assert row["in_use"] == {"mean": round((4 / 4 + 6 / 12 + 8 / 12 + 10 / 12) / 4, 6), "min": 0.5, "max": 1}


def test_the_start_and_the_end_are_left_out():
    engine = FakeEngine(4, 4, 8, 256)
    probe = Probe(engine.scheduler)
    probe.running, probe.waiting = [9, 9, 4, 4, 4, 4, 4, 4, 1], [0, 3, 3, 3, 2, 2, 1, 1, 0]
    assert probe.measured() == [2, 3, 4, 5, 6, 7]          # seven steps with a queue, the first quarter of them (one) not
    with pytest.raises(ValueError, match="9 steps are too few"):
        probe.row()


def test_the_memory_is_looked_at_every_so_often():
    often, seldom = probed("orca-max", [(3, 5)] * 8), probed("orca-max", [(3, 5)] * 8, every=5)
    assert (often["samples"], seldom["samples"]) == (12, 2)
    assert often["running"] == seldom["running"]


# -- the command -----------------------------------------------------------------------------------------------------------------------
@pytest.fixture
def started(monkeypatch):
    """Nothing is measured; whether it would have been."""
    calls = []
    monkeypatch.setattr(memory, "measure", lambda *arguments: calls.append(arguments))
    return calls


@pytest.mark.parametrize(("flags", "message"), [
    (["--json", "/no/such/folder/m.json"], "--json /no/such/folder/m.json: the directory"), (["--html", "."], "--html .: that is a directory"),
    (["--requests", "5"], "--requests must be between 20 and 1000000, not 5"), (["--seeds", "0"], "--seeds must be between 1 and 1000, not 0"),
    (["--part", "engines"], "--part must be one of 'all', 'paper', 'sharing', 'engine', not 'engines'"),
    (["--dataset", "pile"], "--dataset must be one of 'sharegpt', 'alpaca', not 'pile'"), (["--block-size", "257"], "--block-size must be between"),
    (["--dtype", "int8"], "--dtype must be one of"), (["--engine-requests", "0"], "--engine-requests must be"),
    (["--max-model-len", "8"], "--max-model-len must be between 16"), (["--html", "m.html", "--part", "sharing"], "nothing to draw"),
])
def test_bad_flags_are_refused_before_anything_runs(capsys, started, flags, message):
    assert cli.main(["bench", "memory", *flags]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err
    assert not started


def test_html_without_plotly_is_refused_before_anything_runs(capsys, started, monkeypatch, tmp_path):
    monkeypatch.setattr(memory_view, "find_spec", lambda name: None)
    assert cli.main(["bench", "memory", "--html", str(tmp_path / "m.html")]) == 2
    assert "pip install 'paged-edu[lab]'" in capsys.readouterr().err
    assert not started
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_command_with_a_real_model(capsys, tmp_path):
    """Small, in float64: every manager gives exactly the same tokens, and the files hold what the terminal says."""
    flags = ["--part", "engine", "--engine-requests", "70", "--max-model-len", "64", "--block-size", "2", "--dtype", "float64"]
    assert cli.main(["bench", "memory", *flags, "--json", str(tmp_path / "m.json"), "--html", str(tmp_path / "m.html")]) == 0
    out = capsys.readouterr().out
    result = json.loads((tmp_path / "m.json").read_text(encoding="utf-8"))
    part = result["engine"]
    assert set(result) == {"options", "machine", "engine"}
    assert {"date", "python", "paged_edu", "numpy", "torch", "cpu"} <= set(result["machine"])
    assert [row["manager"] for row in part["rows"]] == list(memory.MANAGERS)
    assert [row["same_tokens_as_paged"] for row in part["rows"]] == [70] * 5
    assert part["summary"]["paged"]["running_against_orca_max"] >= 2
    assert part["summary"]["grow"]["copied_blocks"]["mean"] > 0
    assert part["num_blocks"] == 15_728 * 64 // 2048 // 2
    assert "Every manager gave the same tokens, for all 70 requests." in out
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "\x1b" not in out
    assert "plotly" in (tmp_path / "m.html").read_text(encoding="utf-8")


def test_other_tokens_are_said():
    part = {"requests": 9, "rows": [{"manager": "orca-max", "same_tokens_as_paged": 7}, {"manager": "paged", "same_tokens_as_paged": 9}]}
    assert memory_view.same_tokens(part).startswith("Requests with other tokens than under paging, of 9: Orca Max 2, paged 0.")


def test_managers_under_which_nobody_waited_are_named():
    rows = [{"manager": "orca-max", "crowded_steps": 9}, {"manager": "grow", "crowded_steps": 0}, {"manager": "paged", "crowded_steps": 0}]
    assert memory_view.never_full({"rows": rows}, "--requests").startswith("Nobody ever waited under doubling, paged: means over all steps")
    assert memory_view.never_full({"rows": rows[:1]}, "--requests") == ""
    out = io.StringIO()
    part = memory.measure(memory.Options(part="paper", requests=20, seeds=1, dataset="alpaca"))
    memory_view.show(part, Console(file=out, width=80))
    assert "More --requests fill the memory." in " ".join(out.getvalue().split())


@pytest.mark.parametrize("dataset", lengths.DATASETS)
def test_progress_reaches_its_end_and_every_part_is_shown(dataset):
    options = memory.Options(part="paper", requests=20, seeds=1, dataset=dataset)
    counts = []
    result = memory.measure(options, counts.append)
    assert sum(counts) == options.num_requests() == 100
    out = io.StringIO()
    memory_view.show(STORED | result, Console(file=out, width=80))
    assert ("Fig. 2" in out.getvalue()) is (dataset == "sharegpt")
    assert out.getvalue().count("│ Orca Oracle") == 4
    assert "6 samples" in out.getvalue()


def test_quick_is_a_part_of_the_whole():
    whole = memory.Options()
    assert whole.quick() == memory.Options(seeds=1, engine_requests=60)
    assert (whole.requests, whole.seeds, whole.engine_requests) == tuple(STORED["options"][n] for n in ("requests", "seeds", "engine_requests"))


def test_bars_fill_the_whole_memory():
    figure = memory_view.figure(STORED)
    stacks = [trace for trace in figure.data if trace.type == "bar" and trace.name != "measured"]
    assert [trace.name for trace in stacks] == 2 * list(memory_view.LABELS.values())
    for row in (stacks[:4], stacks[4:]):
        assert np.sum([trace.y for trace in row], axis=0) == pytest.approx(1, abs=0.011)       # the figure's printed labels are rounded
    assert list(zip(*stacks[0].x))[:2] == [("Orca Max", "measured"), ("Orca Max", "Fig. 2")]
    assert stacks[0].y[:2] == pytest.approx((STORED["paper"]["summary"]["orca-max"]["parts"]["token_states"]["mean"], 0.204))
