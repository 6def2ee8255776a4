"""The README's picture: the stored bytes are what the code draws, and its numbers are those of the engine."""
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

from paged_edu.core.sequence import Status
from paged_edu.viz.contiguous_trace import contiguous
from paged_edu.viz.fake_engine import trace24
from paged_edu.viz.picture import STEP, paged, readme_picture

STORED = Path(__file__).parents[2] / "book" / "images" / "paged_vs_contiguous.svg"


def test_the_stored_picture_is_what_the_code_draws():
    assert STORED.read_text(encoding="utf-8") == readme_picture(), "run: python -m paged_edu.viz.picture book/images/paged_vs_contiguous.svg"


def test_the_module_writes_it(tmp_path):
    path = tmp_path / "picture.svg"
    subprocess.run([sys.executable, "-m", "paged_edu.viz.picture", str(path)], check=True)
    assert path.read_bytes() == STORED.read_bytes()
    assert subprocess.run([sys.executable, "-m", "paged_edu.viz.picture"], capture_output=True, check=False).returncode == 1


def test_it_is_well_formed_says_its_numbers_and_has_an_opaque_ground():
    root = ET.fromstring(readme_picture())
    assert root.get("aria-label").endswith(
        "Contiguous: 3 run, 20 wait, 7 % of the slots hold tokens. Paged: 20 run, 0 wait, 85 % hold tokens.")
    ground = root.find("{http://www.w3.org/2000/svg}rect")
    assert ground.get("fill") == "#FFFFFF"
    assert root.get("viewBox") == f"0 0 {ground.get('width')} {ground.get('height')}"


def test_the_contiguous_side_by_hand():
    trace = trace24()
    first = contiguous(trace, 1)
    assert [(s.arrival, s.live, s.end) for s in first.slabs] == [(0, 8, 68), (1, 4, 5), (2, 25, 44)]
    assert len(first.waiting) == 21
    # B leaves after its second token; D takes its place in step 3.
    assert contiguous(trace, 2).slabs[1] is None
    assert contiguous(trace, 3).slabs[1].arrival == 3
    tenth = contiguous(trace, 10)
    assert (tenth.live, tenth.num_sampled, tenth.num_finished) == (17 + 8 + 34, 30, 1)
    whole = contiguous(trace)
    assert (whole.steps, whole.num_finished, whole.num_sampled, whole.live) == (300, 24, 884, 0)
    assert contiguous(trace, 60).num_finished == 3


def test_the_paged_side_is_the_step_at_which_the_pool_is_full_and_nobody_has_stepped_back():
    state, sampled = paged(trace24(), STEP)
    assert sum(bool(b.owners) for b in state.blocks()) == 60
    assert (len(state.with_status(Status.RUNNING)), state.num_finished, state.num_preemptions) == (20, 4, 0)
    assert sampled == 259
    assert paged(trace24(), STEP + 1)[0].num_preemptions == 1


def test_the_trace_is_the_one_of_the_core_tests():
    assert sum(p for p, _ in trace24().requests) == 666
    assert sum(o for _, o in trace24().requests) == 884
    assert len(trace24().requests) == 24


def test_every_step_can_be_drawn():
    for step in (0, 1, 13, 60, 141):
        ET.fromstring(readme_picture(step))
