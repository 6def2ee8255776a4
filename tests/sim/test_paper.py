"""The replayed figures: what goes into an experiment, crossings, names, the command."""
from __future__ import annotations

import inspect
import json

import pytest

from paged_edu.cli import main
from paged_edu.sim import panels, paper, replay
from paged_edu.sim.panels import PANELS, crossing, published, rates_of
from paged_edu.sim.presets import PAPER_SERVERS
from paged_edu.sim.systems import PAPER_SYSTEMS


def test_only_model_workload_and_system_go_into_an_experiment(monkeypatch):
    """No constant, no slot count and no card of one's own: whatever a figure runs goes through `panels.run`, and that hands `build` these alone."""
    seen = []
    real = panels.build

    def spy(server, system, **options):
        seen.append((server, system, options))
        return real(server, system, **options)

    monkeypatch.setattr(panels, "build", spy)
    for name in ("fig2", "fig12a", "fig14d", "fig15", "fig16b", "fig17", "fig18b", "fig19"):
        for job in paper.jobs([name]):
            monkeypatch.setattr(panels, "rates_of", lambda figure, system: [0.05, 0.1])
            monkeypatch.setattr(panels, "TOP", 0.0)
            job.run(0.004, lambda: None)
    assert len(seen) > 40
    assert {id(server) for server, _, _ in seen} <= {id(server) for server in PAPER_SERVERS.values()}
    assert {system for _, system, _ in seen} <= set(PAPER_SYSTEMS.values())
    assert {key for _, _, options in seen for key in options} == {"block_size", "prefix_caching", "preemption_mode"}
    for module in (panels, paper):
        source = inspect.getsource(module)
        assert "Constants" not in source
        assert "constants" not in source


def test_every_panel_of_the_paper_is_there_and_named_as_its_points():
    assert set(PANELS) == {f"fig12{x}" for x in "abcdef"} | {f"fig14{x}" for x in "abcdef"} | {"fig16a", "fig16b", "fig17"}
    for figure, systems in published().items():
        if figure in PANELS:
            assert set(systems) == set(PANELS[figure].systems)
    assert not {"fig12c", "fig12f", "fig14c", "fig14f", "fig16b", "fig17"} & set(published())
    assert rates_of("fig12a", "Orca (Max)") == [0.2, 0.3, 0.4, 0.5, 0.5912]
    assert rates_of("fig17", "vLLM") == []


def test_crossings_are_the_papers_own():
    """The capacities that the paper's drawn lines give (read off them independently)."""
    for figure, system, at_02, at_05 in (
        ("fig12a", "vLLM", 1.864, 1.929), ("fig12a", "Orca (Max)", 0.507, 0.525), ("fig12e", "Orca (Pow2)", 6.08, 6.29),
        ("fig14b", "vLLM", 10.10, 10.33), ("fig16a", "Orca (Oracle)", 29.39, 30.12), ("fig12d", "FasterTransformer", 1.192, 2.527),
    ):
        points = published()[figure][system]
        assert crossing(points, 0.2) == pytest.approx(at_02, rel=2e-3)
        assert crossing(points, 0.5) == pytest.approx(at_05, rel=2e-3)
    assert crossing([[1.0, 0.3], [2.0, 0.6]], 0.2) is None
    assert crossing([[1.0, 0.1], [2.0, 0.1]], 0.2) is None


def test_the_rate_of_fig_18b_is_read_from_fig_12():
    assert paper.steady_rate("sharegpt") == pytest.approx(1.64, abs=0.01)
    assert paper.steady_rate("alpaca") == pytest.approx(28.07, abs=0.03)


def test_a_curve_without_points_of_the_paper_finds_its_own_rates(monkeypatch):
    """Doubling to beyond 1 s/token, finer where it is steep."""
    latency = {}

    def fake(model, workload, system, rate, seconds, **more):
        latency[rate] = 0.03 if rate < 1.3 else 0.03 + 4 * (rate - 1.3)
        return type("Served", (), {"normalized_latency": latency[rate]})()

    monkeypatch.setattr(panels, "run", fake)
    points = panels.curve(PANELS["fig17"], "vLLM", 100, lambda: None)
    assert points == sorted(points)
    assert points[-1][1] > 1.0
    assert crossing(points, 0.2) == pytest.approx(1.3425, rel=0.02)
    assert len(points) < 30


def test_a_curve_goes_on_until_it_leaves_the_axes(monkeypatch):
    """The paper's Orca (Max) has left them at 0.5912 requests a second; one that holds there is followed further."""
    monkeypatch.setattr(panels, "run", lambda *a, **k: type("Served", (), {"normalized_latency": 0.05 if a[3] < 0.7 else 1.6})())
    points = panels.curve(PANELS["fig12a"], "Orca (Max)", 100, lambda: None)
    assert [x for x, _ in points] == [0.2, 0.3, 0.4, 0.5, 0.5912, 0.682, 0.819]
    assert crossing(points, 0.5) is not None


def test_a_wide_gap_between_the_papers_points_is_filled_where_the_curve_rises(monkeypatch):
    """Fig. 16a has no point of Orca (Oracle) between 1 and 24 requests a second; a straight line from one to the other would say nothing."""
    monkeypatch.setattr(panels, "run", lambda *a, **k: type("Served", (), {"normalized_latency": 0.03 if a[3] < 22 else 0.03 + 2 * (a[3] - 22)})())
    points = panels.curve(PANELS["fig16a"], "Orca (Oracle)", 100, lambda: None)
    assert [x for x, _ in points][:4] == [1, 12.5, 18.2, 21.1]
    assert crossing(points, 0.2) == pytest.approx(22.085, rel=0.05)


@pytest.mark.parametrize(("flags", "message"), [
    (["--figure", "fig18a"], "--figure fig18a: there are fig1, fig2"), (["--figure", "fig12a", "--rate", "1"], "--rate with --figure"),
    (["--all", "--model", "opt-13b"], "--model with --all"), (["--all", "--figure", "fig2"], "--all with --figure"),
    (["--scale", "0.5"], "--scale without --figure or --all"), (["--figure", "fig1", "--scale", "0"], "--scale must be above 0"),
    (["--figure", "fig1", "--jobs", "0"], "--jobs must be"), (["--figure", "fig1", "--html", "/no/such/folder/a.html"], "--html"),
    (["--figure", "fig1", "--json", "{}/a", "--html", "{}/a"], "--json and --html both write"),
])
def test_bad_flags(flags, message, capsys, tmp_path):
    assert main(["simulate", *(flag.replace("{}", str(tmp_path)) for flag in flags)]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_figures_from_the_command_line(tmp_path, capsys):
    numbers, page = tmp_path / "paper.json", tmp_path / "paper.html"
    assert main(["simulate", "--figure", "fig1", "fig12a", "--scale", "0.01", "--json", str(numbers), "--html", str(page)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "0.01 of the paper's length" in said
    curves = json.loads(numbers.read_text())
    assert list(curves) == ["fig1_memory", "fig1_throughput", "fig12a"]
    assert list(curves["fig12a"]) == ["FasterTransformer", "Orca (Max)", "Orca (Pow2)", "Orca (Oracle)", "vLLM"]
    given = rates_of("fig12a", "vLLM")
    assert [x for x, _ in curves["fig12a"]["vLLM"]][: len(given)] == given
    assert curves["fig12a"]["vLLM"][-1][0] > given[-1]                      # so short a trace overloads nobody
    assert all(y >= 0 for points in curves["fig12a"].values() for _, y in points)
    assert page.stat().st_size > 1e6


def test_errors_are_ours_over_the_papers():
    curves = {"fig12a": {"vLLM": [[1.0, 0.0], [3.0, 0.4]], "Orca (Max)": [[0.0, 0.0], [1.0, 0.4]]}, "fig17": {"vLLM": [[0.1, 0.1], [1.0, 1.0]]}}
    rows = replay.capacities(curves, 0.2)
    assert [(row["system"], row["ours"]) for row in rows] == [("vLLM", 2.0), ("Orca (Max)", 0.5), ("vLLM", pytest.approx(0.2))]
    assert rows[0]["error"] == pytest.approx(2.0 / 1.864 - 1, abs=1e-3)
    assert (rows[2]["paper"], rows[2]["error"]) == (None, None)
    (ratio,) = replay.ratios(rows)
    assert (ratio["over"], ratio["ours"]) == ("Orca (Max)", 4.0)
