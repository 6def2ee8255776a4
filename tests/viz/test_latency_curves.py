"""LatencyCurves: crossings and ratios in Python and in JavaScript, outputs, what is refused."""
from __future__ import annotations

import gc
import json
import math
import random
import shutil
import subprocess
import weakref
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from paged_edu.sim.panels import published
from paged_edu.sim.points import Run, Sample, crossing
from paged_edu.trace import EventLog
from paged_edu.viz import LatencyCurves, Views, crossings, palette
from paged_edu.viz.bundle import bundle
from paged_edu.viz.chart import nice
from paged_edu.viz.curves_svg import clipped, mark
from paged_edu.viz.fake_engine import trace24
from paged_edu.viz.figure import MOST_BYTES
from paged_edu.viz.page import page_html
from paged_edu.viz.view import PLOTLY_MIME

NODE = shutil.which("node")
JS = Path(palette.__file__).parent / "js"
PAPER = published()["fig12a"]
OURS = {name: [[x * 1.1, y] for x, y in points] for name, points in PAPER.items()}


def made_run(system: str, rate: float, parts: bool = True) -> Run:
    samples = tuple(Sample(i * 5.0, i % 9, i, (0.4, 0.2, 0.3, 0.1) if parts else None) for i in range(60))
    return Run(system, rate, 240.0, 0.1234, 6.94, 40.04, 99, 3, samples, ((50.0, 51.25, 80.5), (52.0, 52.5, 60.0, 66.0, 90.0)))


@pytest.fixture
def view():
    runs = {name: [made_run(name, x, name != "FasterTransformer") for x, _ in points] for name, points in OURS.items()}
    view = LatencyCurves("Fig. 12a", OURS, PAPER, runs, name="test curves")
    yield view
    view.close()


def test_the_papers_ratios_at_half_a_second():
    """LESSONS: 1.75 x over Oracle, 3.68 x over Max."""
    view = LatencyCurves("paper", PAPER, PAPER, name="paper")
    rows = {row.system: row for row in view.rows}
    assert rows["vLLM"].ours == pytest.approx(1.929, abs=1e-3)
    assert rows["Orca (Oracle)"].ratio == rows["Orca (Oracle)"].paper_ratio == pytest.approx(1.75, abs=0.01)
    assert rows["Orca (Max)"].ratio == pytest.approx(3.68, abs=0.01)
    assert rows["Orca (Max)"].error == 0
    assert view.sentence == "At 0.50 s/token: vLLM serves 1.93 requests/s, 1.75 × the best other, Orca (Oracle) (paper: 1.75 ×)"
    view.close()


def test_the_line_moves(view):
    assert view.threshold == 0.5
    before = view.rows
    assert view.seek(20).startswith("At 0.20 s/token: vLLM serves 2.05 requests/s")
    assert view.threshold == 0.2
    assert view.rows != before
    assert view.step().startswith("At 0.21 s/token")
    assert view.home().startswith("At 0.05 s/token")
    assert view.end().startswith("At 1.00 s/token")
    view.moved(33)                                          # the page
    assert view.threshold == 0.33
    assert repr(view).startswith("LatencyCurves 'Fig. 12a': At 0.33 s/token")


def test_every_output_says_the_numbers(view):
    bundle = view._repr_mimebundle_()
    assert {"image/svg+xml", "text/plain", PLOTLY_MIME} <= set(bundle)
    assert "Orca (Max)         0.577  0.525  +10.0 %        3.68 ×  3.68 ×" in bundle["text/plain"]
    assert view.sentence in bundle["text/plain"]
    svg = bundle["image/svg+xml"]
    root = ET.fromstring(svg)
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    for row in view.rows:
        assert {*crossings.cells(row)} <= {*words}
    assert root.get("aria-label").endswith(view.sentence)
    assert "id=" not in svg
    assert len(svg) < 30_000
    view.seek(20)
    assert "2.05" in view.svg()


def test_the_plotly_slider(view):
    figure = view.figure()
    pytest.importorskip("plotly.graph_objects").Figure(figure)
    (slider,) = figure["layout"]["sliders"]
    assert len(slider["steps"]) == 20
    assert slider["steps"][slider["active"]]["label"] == "0.50"
    assert figure["data"][-1]["y"] == [0.5, 0.5]
    for step in slider["steps"]:
        change, layout, traces = step["args"]
        level = float(step["label"])
        assert change == {"y": [[level, level]]}
        assert traces == [len(figure["data"]) - 1]
        view.seek(round(100 * level))
        assert view.sentence in layout["title.text"]
    names = [trace["name"] for trace in figure["data"]]
    assert names[:2] == ["FasterTransformer", "FasterTransformer, paper"]
    looks = {(trace["line"]["dash"], trace["marker"]["symbol"]) for trace in figure["data"][:-1] if trace["mode"] != "markers"}
    assert len(looks) == len(OURS), "never by colour alone"


def test_it_stays_small():
    """Five systems of nine points, with a run each."""
    points = [[round(0.1 + 0.05 * i, 3), 0.02 * 1.7**i] for i in range(9)]
    names = list(PAPER)
    samples = tuple(Sample(5.123456 * i, 30, 400, (0.4123, 0.2123, 0.3123, 0.1123)) for i in range(90))
    requests = tuple((61.12 + i, 92.15 + i, 103.16 + i) for i in range(40))
    runs = {name: [Run(name, x, 300.0, y, 33.3333, 444.4444, 600, 300, samples, requests) for x, y in points] for name in names}
    view = LatencyCurves("many", dict.fromkeys(names, points), PAPER, runs, name="many")
    assert len(json.dumps(view.page_data())) < MOST_BYTES
    assert len(json.dumps(view.figure())) < 40_000
    view.close()


def test_the_page_has_what_it_needs_and_nothing_more(view):
    data = view.page_data()
    assert data["bare"] is True
    assert data["tracks"] == [{"label": "", "levels": [5, 100], "count": 0}]
    systems = data["panes"][0]["options"]["systems"]
    assert [system["name"] for system in systems] == list(OURS)
    run = systems[1]["runs"][0]
    assert run["told"] == "Orca (Max) at 0.22 requests/s: 6.9 run, 40.0 wait on average; 0.123 s/token, 3 preemptions in 99 requests"
    assert run["parts"][0][:2] == [40.0, 40.0]
    assert systems[0]["runs"][0]["parts"] is None
    html = page_html(view)
    assert "http" not in html.replace("http://www.w3.org/2000/svg", "")
    assert len(html) < 350_000
    assert "<noscript><svg" in html
    view._repr_mimebundle_()
    assert view._live.widget.get_state()["data"]["bare"] is True


def test_systems_without_looks_and_without_paper():
    view = LatencyCurves("mine", {"a": [[1, 0.1], [2, 0.9]], "b": [[1, 0.01], [4, 0.9]]}, threshold=0.2, name="mine")
    assert [(row.system, row.paper, row.error) for row in view.rows] == [("a", None, None), ("b", None, None)]
    assert view.rows[0].ratio == pytest.approx(view.rows[1].ours / view.rows[0].ours)
    assert "1.46 × the best other, a" in view.sentence
    ET.fromstring(view.svg())
    assert view.paper == {}
    view.close()
    lone = LatencyCurves("lone", {"a": np.array([[1, 0.1]])}, {"z": [[2, 0.3]]}, name="lone")
    assert lone.sentence.endswith("no rate of ours for z; its curve does not cross this line")
    ET.fromstring(lone.svg())
    rows = crossings.compare({"vLLM": [[1, 0.1], [2, 0.9]], "a": [[1, 0.1]]}, {}, 0.5)
    assert crossings.told(rows, 0.5) == "At 0.50 s/token: vLLM serves 1.50 requests/s; no other curve of ours crosses this line"
    lone.close()


RUN = made_run("a", 1.0)


@pytest.mark.parametrize(("change", "words"), [
    ({"curves": {}}, "curves is empty: at least 1 system"), ({"curves": [1]}, r"curves must be a dict, system -> points, not \[1\]"),
    ({"curves": {"a": []}}, r"curves\['a'\] must be at least 1 point"),
    ({"curves": {"a": "xy"}}, r"curves\['a'\] must be at least 1 point .* not 'xy'"),
    ({"curves": {"a": [[1, 2, 3]]}}, r"a point is \[requests/s, s/token\], not \[1, 2, 3\]"), ({"curves": {"a": [1.0]}}, "a point is .* not 1.0"),
    ({"curves": {"a": [[2, 0.1], [1, 0.2]]}}, r"curves\['a'\]: rates must not fall, and 1 comes after 2"),
    ({"curves": {"a": [[1, math.nan]]}}, r"curves\['a'\]: each latency must be at least 0 and finite, not nan"),
    ({"curves": {"a": [[math.inf, 0.1]]}}, "each rate must be at least 0 and finite, not inf"),
    ({"curves": {"a": [[-1, 0.1]]}}, "each rate must be at least 0"),
    ({"curves": {"a": [["1", 0.1]]}}, "each rate must be a number, not '1'"),
    ({"paper": {"a": [[1, None]]}}, r"paper\['a'\]: each latency must be a number"),
    ({"curves": {name: [[1, 0.1]] for name in "abcd"}}, "4 systems in one picture have no colour of their own"),
    ({"threshold": 0}, "threshold must be at least 0.05 and at most 1, not 0"), ({"threshold": 1.5}, "at most 1, not 1.5"),
    ({"threshold": math.nan}, "threshold must be"), ({"threshold": "0.5"}, "threshold must be a number, not '0.5'"),
    ({"threshold": 0.123}, "threshold must be a whole number of hundredths of a second, not 0.123"),
    ({"runs": {"a": []}}, r"runs\['a'\] has 0 runs, and the curve has 1 point:"), ({"runs": {"b": [RUN]}}, "runs has 'b', and curves has only 'a'"),
    ({"runs": {"a": [1]}}, r"runs\['a'\] must be a list of Run, not \[1\]"), ({"runs": [RUN]}, "runs must be a dict"),
    ({"runs": {"a": [made_run("a", 2.0)]}}, "a run at 2 requests/s stands for the point at 1"),
])
def test_what_does_not_fit_is_refused(change, words):
    with pytest.raises(ValueError, match=words):
        LatencyCurves(**({"title": "bad", "curves": {"a": [[1.0, 0.1]]}} | change))


def test_it_is_no_view_of_a_log():
    log = EventLog.of(trace24().engine().scheduler)
    with pytest.raises(ValueError, match="no view is called 'curves'"):
        Views(log, ["curves"])


def test_close_frees_everything(view):
    view._repr_mimebundle_()
    widget, kept = view._live.widget, weakref.ref(view.tracks[0])
    again = LatencyCurves("another", OURS, name="test curves")
    assert view.tracks == [], "a view with the same name closes the one before"
    assert widget.comm is None or widget.comm._closed
    again.close()
    again.close()
    gc.collect()
    assert kept() is None
    assert again.sentence == ""


def test_two_pictures_in_a_notebook_stay_open():
    one, two = LatencyCurves("one", OURS), LatencyCurves("two", OURS)
    assert one.tracks
    one.close()
    two.close()


def random_points(rng: random.Random) -> list[list[float]]:
    x, points = 0.0, []
    for _ in range(rng.randrange(6)):
        x += rng.choice([0, rng.random(), round(rng.random(), 2), 20 * rng.random()])
        points.append([x, rng.choice([rng.random(), round(2 * rng.random(), 2), 0.5, 3.0])])
    return points


def test_a_page_computes_and_says_the_same():
    if NODE is None:
        pytest.skip("no node on this machine to run the views' JavaScript outside a browser")
    rng = random.Random(7)
    names = ["FasterTransformer", "Orca (Max)", "vLLM", "other"]
    cases = []
    for _ in range(1500):
        chosen = rng.sample(names, rng.randrange(1, 5))
        cases.append(([[name, random_points(rng), random_points(rng)] for name in chosen], rng.randrange(5, 101) / 100))
    cases += [([[name, OURS[name], PAPER[name]] for name in OURS], level / 100) for level in range(5, 101)]
    numbers = [0, 1e-3, 0.3, 0.4, 1, 2.4, 7.3, 33, 99.9, 412, 12345]
    values = [0.125, -0.125, 0.5, -0.001, 2.675, 1e5, 0.005, *(rng.uniform(-30, 30) for _ in range(200))]
    code = f"""
        import {{ cells, compare, fixed, rateText, told }} from "{(JS / 'crossings.js').as_uri()}";
        import {{ clipped, nice }} from "{(JS / 'axes.js').as_uri()}";
        const {{ cases, numbers, values }} = JSON.parse({json.dumps(json.dumps({"cases": cases, "numbers": numbers, "values": values}))});
        const one = ([systems, level]) => {{
          const rows = compare(systems.map(([name, ours, paper]) => ({{ name, ours, paper }})), level);
          const parts = systems.map(([, ours]) => clipped(ours, 1.1));
          return [rows.map((r) => [r.system, r.ours, r.paper, r.error, r.ratio, r.paperRatio]), rows.map(cells), told(rows, level), parts];
        }};
        console.log(JSON.stringify([cases.map(one), numbers.map(nice), values.map((value) => [fixed(value, 2), rateText(Math.abs(value))])]));
    """
    done = subprocess.run([NODE, "--input-type=module", "-"], input=code, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
    got, got_nice, got_values = json.loads(done.stdout)
    kinds = set()
    for (systems, level), (rows, words, said, parts) in zip(cases, got, strict=True):
        curves, paper = {name: ours for name, ours, _ in systems}, {name: theirs for name, _, theirs in systems}
        wanted = crossings.compare(curves, paper, level)
        assert rows == [[r.system, r.ours, r.paper, r.error, r.ratio, r.paper_ratio] for r in wanted]
        assert [row.ours for row in wanted] == [crossing(points, level) for points in curves.values()]
        assert words == [crossings.cells(row) for row in wanted]
        assert said == crossings.told(wanted, level)
        assert parts == json.loads(json.dumps([clipped(points) for points in curves.values()]))
        kinds.add((said[17:30], "paper" in said))
    assert len(kinds) > 5
    assert got_nice == [nice(number) for number in numbers]
    assert got_values == [[crossings.fixed(value, 2), crossings.rate_text(abs(value))] for value in values]


@pytest.mark.skipif(NODE is None, reason="no node on this machine to run the page's end outside a browser")
def test_page_and_kernel_show_the_same_line(view):
    view._repr_mimebundle_()
    state = json.loads(json.dumps(view._live.widget.get_state()))
    messages = [{"kind": "traits", "traits": {"shown": shown}} for shown in (20, 3, 400)]
    asked = json.dumps({"bundle": bundle(("curves",)), "runs": [{"state": state, "messages": messages}]})
    command = [NODE, str(Path(__file__).with_name("widget.mjs"))]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
    (page,) = json.loads(done.stdout)
    assert [seen["shown"] for seen in page["seen"]] == [50, 20, 5, 100]
    assert (page["sent"], page["left"]) == ([], 0)
    view._live.widget.shown = 77                            # the page says so
    assert view.threshold == 0.77


def test_a_line_is_cut_at_the_upper_edge():
    assert clipped([(0, 0.1), (1, 2.1)], 1.1) == [[(0, 0.1), (0.5, 1.1)]]
    assert clipped([(0, 2.1), (1, 0.1), (2, 0.2), (3, 1.2), (4, 3)], 1.1) == [[(0.5, 1.1), (1, 0.1), (2, 0.2), (pytest.approx(2.9), 1.1)]]
    assert clipped([(0, 0.1)], 1.1) == clipped([], 1.1) == clipped([(0, 2), (1, 3)], 1.1) == []


def test_every_system_has_a_look_of_its_own():
    looks = palette.system_looks(["vLLM", "vLLM, ShareGPT", "FasterTransformer", "Orca (Max)", "Orca (Pow2)", "Orca (Oracle)"])
    assert len({look.hue for look in looks.values()}) == len(looks), "Fig. 15's ShareGPT is not Orca (Max)'s colour"
    five = palette.system_looks(PAPER).values()
    assert len({look.dash for look in five}) == len({look.mark for look in five}) == 5
    assert all(mark(look.mark, 5, 5).endswith("z") for look in palette.SYSTEMS.values())
