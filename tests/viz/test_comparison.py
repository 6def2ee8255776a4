"""Still pictures of two engines: side by side where a notebook's page has room for them, else one below the other."""
import re

import pytest

from paged_edu.viz.engine_stepper import EngineStepper
from paged_edu.viz.fake_engine import trace24
from paged_edu.viz.figure import MOST_ACROSS
from paged_edu.viz.palette import AUTO
from paged_edu.viz.shapes import document
from paged_edu.viz.views import stacked


@pytest.mark.parametrize(("widths", "across"), [((400, 400), True), ((460, 460), False)])
def test_pictures_stand_side_by_side_where_there_is_room(widths, across):
    pictures = [document(width, 100, f"picture {i}", AUTO, []) for i, width in enumerate(widths)]
    svg = stacked(pictures, ["left", "right"], across=2)
    (x0, y0), (x1, y1) = [(float(x), float(y)) for x, y in re.findall(r'<svg x="([\d.]+)" y="([\d.]+)"', svg)]
    width, height = map(float, re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)', svg).groups())
    assert (y0 == y1) is across
    assert (x0 == x1) is not across
    assert width <= MOST_ACROSS
    assert height >= max(y0, y1) + 100
    assert 'aria-label="left: picture 0. right: picture 1"' in svg


def test_the_tours_figure_fits_the_page():
    view = EngineStepper.compare({name: trace24().engine(name) for name in ("orca-max", "paged")}, name="wide")
    view.step()
    assert view.figure()["layout"]["width"] <= MOST_ACROSS
    view.close()


def test_timelines_stand_one_above_the_other():
    """They are as wide as the page; both over the same steps, each kind once in the legend."""
    view = EngineStepper.compare(
        {name: trace24().engine(name) for name in ("orca-max", "paged")}, ["timeline"], name="lanes", fill=lambda engine: engine.add([(40, 9)] * 5),
    )
    while view.live == "unfinished":
        view.step()
    figure = view.figure()
    layout = figure["layout"]
    assert "width" not in layout
    assert layout["yaxis"]["domain"][0] > layout["yaxis2"]["domain"][1]
    assert layout["xaxis"]["domain"] == layout["xaxis2"]["domain"] == [0, 1]
    assert layout["xaxis"]["range"] == layout["xaxis2"]["range"] == [-0.5 + view.tracks[0].log.first_step + 1, view.last_step + 0.5]
    assert layout["annotations"][0]["y"] > layout["annotations"][1]["y"]
    shown = [trace["name"] for trace in figure["data"] if trace.get("showlegend")]
    assert len(shown) == len({*shown}) >= 3
    tops = re.findall(r'<svg x="0" y="([\d.]+)"', view.svg())
    assert len(tops) == 2
    assert [pane["options"] for pane in view.panes()] == [{"basis": MOST_ACROSS}] * 2, "in a notebook too"
    view.close()
