"""Two engines in one still picture and in one plotly figure: each pool as its own view draws it, at the same step or at its own end."""
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paged_edu.trace import EventLog
from paged_edu.viz import BlockPoolView
from paged_edu.viz.engine_stepper import EngineStepper
from paged_edu.viz.fake_engine import FakeEngine
from paged_edu.viz.palette import AUTO
from paged_edu.viz.shapes import document
from paged_edu.viz.svg import headline
from paged_edu.viz.views import MOST_ACROSS, stacked

requests = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 8)), min_size=1, max_size=5)


def both(lengths):
    """A stepper over the same requests under two managers, run to the end."""
    engines = {"slabs": FakeEngine(16, 4, 32, kv_manager="orca-max"), "paged": FakeEngine(16, 4, 32)}
    view = EngineStepper.compare(engines, fill=lambda engine: engine.add(lengths), name="both")
    while view.live == "unfinished":
        view.step()
    return view


@settings(max_examples=20, deadline=None)
@given(requests)
def test_each_pool_of_the_figure_is_what_its_own_view_says(lengths):
    view = both(lengths)
    figure = view.figure()
    heats = [trace for trace in figure["data"] if trace["type"] == "heatmap"]
    letters = [trace for trace in figure["data"] if trace["type"] == "scatter" and len(trace["x"]) > 1]
    assert len(heats) == len(letters) == 2
    assert min(letters[1]["y"]) > max(letters[0]["y"]), "one below the other"
    assert [heat["y0"] for heat in heats] == [min(one["y"]) for one in letters]
    for frame in figure["frames"]:
        step = int(frame["name"])
        for i, track in enumerate(view.tracks):
            log: EventLog = track.log
            at = min(step, log.last_step)
            alone = BlockPoolView(log, name="alone")
            alone.seek(at)
            mine, theirs = (dict(heats[i]) | frame["data"][3 * i]), alone.figure()["data"][0]
            assert mine["z"] == theirs["z"]
            heading = figure["data"][3 * i + 2] | frame["data"][3 * i + 2]
            assert heading["text"] == [f"<b>{track.label}</b>: {headline(log.replay(at))}"]
            alone.close()
    view.close()


@pytest.mark.parametrize(("widths", "across"), [((430, 430), True), ((460, 460), False)])
def test_pictures_stand_side_by_side_where_there_is_room(widths, across):
    pictures = [document(width, 100, f"picture {i}", AUTO, []) for i, width in enumerate(widths)]
    svg = stacked(pictures, ["left", "right"], across=2)
    (x0, y0), (x1, y1) = [(float(x), float(y)) for x, y in re.findall(r'<svg x="([\d.]+)" y="([\d.]+)"', svg)]
    width, height = map(float, re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)', svg).groups())
    assert (y0 == y1) is across
    assert (x0 == x1) is not across
    assert width <= MOST_ACROSS + 8
    assert height >= max(y0, y1) + 100
    assert 'aria-label="left: picture 0. right: picture 1"' in svg
