"""The stored replay of the paper: some of it is run again, and what issue and book claim of it is read off it."""
from __future__ import annotations

from statistics import median

import pytest

from paged_edu.sim import panels, replay, watching
from paged_edu.sim.panels import PANELS, published, replayed
from paged_edu.sim.paper import jobs
from paged_edu.sim.watching import watched_curve


def test_every_panel_is_there_with_all_its_systems():
    assert {*PANELS} <= {*replayed()}
    for panel in PANELS.values():
        assert set(replayed()[panel.figure]) == {*panel.systems}
        for points in replayed()[panel.figure].values():
            assert points == sorted(points)
    assert {"fig1_memory", "fig1_throughput", "fig2", "fig11_sharegpt", "fig13a", "fig13b", "fig15a", "fig15b", "fig18b", "fig19a", "fig19b"} \
        <= set(replayed())


@pytest.mark.parametrize("figure", ["fig1", "fig11"])
def test_what_is_quick_is_run_again(figure):
    for job in jobs([figure]):
        for name, curves in job.run(1.0, lambda: None).items():
            assert set(curves) == set(replayed()[name])
            for system, points in curves.items():
                assert [pytest.approx(point) for point in points] == replayed()[name][system]


@pytest.mark.parametrize(("figure", "system", "index"), [
    ("fig12a", "Orca (Max)", 0), ("fig12e", "Orca (Max)", 0), ("fig16b", "vLLM", 0), ("fig14a", "Orca (Max)", 0), ("fig14f", "Orca (Max)", 0),
])
def test_a_point_is_run_again(figure, system, index):
    panel, (rate, latency) = PANELS[figure], replayed()[figure][system][index]
    found = panels.run(panel.model, panel.workload, system, rate, panel.seconds_at(rate), n=panel.n, beam=panel.beam)
    assert found.normalized_latency == pytest.approx(latency)
    assert panel.seconds_at(rate) == (panel.seconds if panel.n == 1 else 3600)      # an hour: few requests come


def test_a_watched_run_is_run_again_and_is_the_replays():
    kept = watching.stored()
    panel = PANELS[watching.FIGURE]
    for system, runs in kept.items():
        assert [[run.rate, pytest.approx(run.latency)] for run in runs] == replayed()[watching.FIGURE][system]
    first = kept["Orca (Max)"][0]
    points, (run,) = watched_curve(panel.model, panel.workload, "Orca (Max)", [first.rate], panel.seconds)
    assert points == [[first.rate, pytest.approx(first.latency)]]
    assert run.requests == first.requests
    assert [(sample.running, sample.waiting) for sample in run.samples] == [(sample.running, sample.waiting) for sample in first.samples]


def test_memory_and_batches_are_the_papers():
    """Fig. 2: each part within 4 points; Fig. 13a: within 12 %. Fig. 13b's vLLM, which memory does not explain, is left out."""
    for system, parts in replayed()["fig2"].items():
        for ours, theirs in zip(parts, published()["fig2"][system], strict=True):
            assert ours[1] == pytest.approx(theirs[1], abs=4), system
    for figure in ("fig13a", "fig13b"):
        for system, ((_, ours),) in replayed()[figure].items():
            if (figure, system) != ("fig13b", "vLLM"):
                assert ours == pytest.approx(published()[figure][system][0][1], rel=0.12)


def test_sharing_is_the_papers():
    """Fig. 15, Alpaca: within 4 points."""
    for figure in ("fig15a", "fig15b"):
        theirs = dict(published()[figure]["vLLM"])
        for n, saved in replayed()[figure]["vLLM"]:
            assert saved == pytest.approx(theirs[n], abs=4)


@pytest.mark.parametrize("threshold", replay.THRESHOLDS)
def test_capacities_are_the_papers(threshold):
    """Orca and vLLM in the panels that are given: the median error at most 12 %, every ratio within 18 %, but vLLM's over Orca (Max) with beams:
    there Orca comes out too fast, and the lesson says so."""
    rows = replay.capacities(replayed(), threshold)
    errors = [abs(row["error"]) for row in rows if row["error"] is not None and row["system"] != "FasterTransformer"]
    assert len(errors) == 34
    assert median(errors) <= 0.12
    ratios = [row for row in replay.ratios(rows) if row["error"] is not None]
    assert len(ratios) >= 17
    off = {(row["figure"], row["over"]): round(row["error"], 3) for row in ratios if abs(row["error"]) > 0.18}
    assert set(off) == {("fig14d", "Orca (Max)"), ("fig14e", "Orca (Max)")}


def test_shapes_of_block_sizes_and_swapping():
    """Fig. 18b: ShareGPT is best from 16 to 128, Alpaca at 16 and 32. Fig. 19a: swapping gets quicker than recomputing around 16 to 32."""
    best = {name: min(points, key=lambda point: point[1])[0] for name, points in replayed()["fig18b"].items()}
    assert 16 <= best["ShareGPT"] <= 128
    assert best["Alpaca"] in (16, 32)
    times = {name: dict(points) for name, points in replayed()["fig19a"].items()}
    quicker = [size for size in times["Recompute"] if times["Swap in + out"][size] < times["Recompute"][size]]
    assert min(quicker) in (16, 32)
