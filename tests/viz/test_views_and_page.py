"""Several views in one player, figures, and a page that plays by itself."""
import json
import re
import xml.etree.ElementTree as ET

import pytest
from viz_states import run

from paged_edu.trace import EventLog
from paged_edu.viz import BlockPoolView, BlockTableView, Views, save_html
from paged_edu.viz import view as views
from paged_edu.viz.fake_engine import FakeEngine, trace24
from paged_edu.viz.figure import MOST_BYTES, MOST_FRAMES, chosen_steps, states_at


@pytest.fixture(autouse=True)
def close_all():
    yield
    for view in list(views._open.values()):
        view.close()


def recorded() -> EventLog:
    engine = trace24().engine()
    log = EventLog.of(engine.scheduler)
    engine.listen(log)
    while engine.has_unfinished_requests():
        engine.step()
    return log


def test_parts_follow_one_slider():
    log = recorded()
    both = Views(log, ["pool", BlockTableView(log, name="mine", request="4")])
    both.seek(13)
    assert both.sentence == "step 13: X preempted, 1 block freed; 1 block taken; 19 tokens computed"
    root = ET.fromstring(both.svg())
    inner = root.findall("{http://www.w3.org/2000/svg}svg")
    assert [part.get("aria-label").split(":")[0] for part in inner] == ["Block pool at step 13", "Step 13"]
    tops = [(float(part.get("y")), float(part.get("height"))) for part in inner]
    assert tops[1][0] >= tops[0][0] + tops[0][1], "one below the other"
    assert root.get("viewBox").split()[3] == f"{sum(tops[1]):g}"
    assert "block table of E" in both.plain()
    assert [pane["module"] for pane in both.panes()] == ["pool", "table"]
    assert both.panes()[1]["options"] == {"request": "4"}
    assert both.figure()["layout"]["sliders"][0]["active"] > 0
    both.close()
    assert "mine" not in views._open
    with pytest.raises(ValueError, match="is not a view of this log"):
        Views(log, [BlockPoolView(recorded())])


def test_one_view_alone_is_its_own_picture():
    _, log = run(5, 4, [(7, 9)], 4, max_model_len=32)
    assert Views(log, "pool").svg() == BlockPoolView(log, name="x").svg()


@pytest.mark.parametrize(("first", "last", "shown", "most"), [
    (0, 0, 0, 60), (0, 59, 7, 60), (0, 60, 13, 60), (5, 1000, 501, 60), (0, 300, 0, 2), (3, 9, 9, 4),
])
def test_steps_of_a_figure(first, last, shown, most):
    steps = chosen_steps(first, last, shown, most)
    assert steps == sorted(set(steps))
    assert len(steps) <= most
    assert {first, last} <= set(steps)
    assert shown in steps or most == 2
    if last - first < most:
        assert len(steps) == last - first + 1


def test_a_figure_folds_once_and_shows_each_step():
    log = recorded()
    for state, step in zip(states_at(log, [0, 3, 4, 90, 141]), [0, 3, 4, 90, 141], strict=True):
        assert state == log.replay(step)
    view = BlockPoolView(log)
    view.seek(13)
    figure = view.figure()
    assert len(figure["frames"]) <= MOST_FRAMES
    frame = next(frame for frame in figure["frames"] if frame["name"] == "13")
    assert frame["layout"]["title"]["text"] == "step 13: 60 of 60 blocks, 86 % of slots hold tokens" == figure["layout"]["title"]["text"]
    state = log.replay(13)
    shown = [cell for row in frame["data"][0]["z"] for cell in row if cell is not None]
    assert shown == [1 + state.arrival(b.owners[0]) % 7 if b.owners else 0 for b in state.blocks()]
    assert frame["data"][1]["text"][0] == "A<br>16"
    slider = figure["layout"]["sliders"][0]
    assert slider["steps"][slider["active"]]["label"] == "13"
    assert {f["name"] for f in figure["frames"]} == {s["label"] for s in slider["steps"]}
    assert figure["layout"]["paper_bgcolor"] == "#FFFFFF"


def test_figures_of_a_large_pool_stay_small():
    engine = FakeEngine(1000, 16, 1024)
    engine.add([(30 * i + 1, 100) for i in range(30)])
    view = BlockPoolView.of(engine)
    while engine.has_unfinished_requests():
        engine.step()
    figure = view.figure()
    assert 2 <= len(figure["frames"]) <= MOST_FRAMES
    assert len(json.dumps(figure)) < MOST_BYTES
    bundle = view._repr_mimebundle_()
    assert len(json.dumps(bundle["application/vnd.plotly.v1+json"])) < MOST_BYTES
    assert len(bundle["image/svg+xml"]) < 1_000_000


def test_plotly_takes_the_figures():
    go = pytest.importorskip("plotly.graph_objects")
    log = recorded()
    for figure in (BlockPoolView(log).figure(), BlockTableView(log).figure()):
        assert len(go.Figure(figure).frames) == len(figure["frames"])


def test_a_page_of_its_own(tmp_path):
    log = recorded()
    path = tmp_path / "page.html"
    save_html(log, path, ["pool", "table"], title="</script><b>", step=13, decode=lambda ids: f"<{ids[0]}></script>")
    text = path.read_text(encoding="utf-8")
    assert not re.search(r'(?:src|href)\s*=|@import|url\(|fetch\(|XMLHttpRequest', text)
    assert text.count("</script>") == 2
    data = json.loads(re.search(r'<script type="application/json">(.*?)</script>', text)[1])
    assert data["shown"] == 13
    assert len(data["tracks"][0]["events"]) == log.num_events
    assert data["words"]["7"] == "<7></script>"
    assert views._open == {}
    save_html(log, path)
    assert json.loads(re.search(r'<script type="application/json">(.*?)</script>', path.read_text())[1])["shown"] == 0
    with pytest.raises(ValueError, match="no view is called 'nothing'"):
        save_html(log, path, ["nothing"])
