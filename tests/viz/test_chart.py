"""Chart: axes that begin at zero and hold every point, marks where the numbers are, words for those without a picture."""
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paged_edu.viz.chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Chart, nice

values = st.floats(0, 1e6, allow_nan=False)
points = st.lists(st.tuples(values, values), min_size=1, max_size=8)


@given(st.floats(1e-6, 1e9))
def test_marks_of_an_axis(largest):
    marks = nice(largest)
    step = marks[1] - marks[0]
    assert marks[0] == 0
    assert marks[-1] >= largest * (1 - 1e-9)
    assert marks[-1] - largest < step * (1 + 1e-9)
    assert 2 <= len(marks) <= 8


@given(points, points)
def test_every_point_is_inside_the_frame(one, two):
    svg = ET.fromstring(Chart("title", "x", "y", {"one": one, "two": two}, marks=["one"]).svg())
    circles = list(svg.iter("{http://www.w3.org/2000/svg}circle"))
    assert len(circles) == len(one)
    for circle in circles:
        assert LEFT - 0.01 <= float(circle.get("cx")) <= WIDTH - RIGHT + 0.01
        assert TOP - 0.01 <= float(circle.get("cy")) <= HEIGHT - BOTTOM + 0.01


def test_a_point_lies_where_its_numbers_say():
    svg = Chart("t", "x", "y", {"a": [(0, 0), (5, 10), (10, 20)]}).svg()
    path = next(found for found in re.findall(r'd="M([^"]*)" stroke="#0072B2"', svg))
    (x0, y0), (x1, y1), (x2, y2) = ([float(n) for n in pair.split()] for pair in path.split("L"))
    assert (x0, y0) == (LEFT, HEIGHT - BOTTOM)
    assert x1 - x0 == pytest.approx(x2 - x1)
    assert y1 - y0 == pytest.approx(y2 - y1)


def test_words():
    chart = Chart("Steps", "requests", "ms", {"measured": [(4, 27.23), (8, 29.93)]}, marks=["measured"])
    assert str(chart) == "Steps: ms over requests\n  measured: 4: 27.23, 8: 29.93"
    assert "4: 27.23" in chart._repr_mimebundle_()["image/svg+xml"]     # the description of the picture


@pytest.mark.parametrize(("series", "words"), [({}, "at least one point"), ({"a": []}, "at least one point"), ({"a": [(-1, 0)]}, "not negative"),
                                               ({"a": [(float("nan"), 0)]}, "finite"), ({str(i): [(1, 1)] for i in range(5)}, "at most 4")])
def test_what_cannot_be_drawn_is_refused(series, words):
    with pytest.raises(ValueError, match=words):
        Chart("t", "x", "y", series)
