"""The README's picture: the stored bytes are what the code draws, and its numbers are those of the engine."""
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

from paged_edu.core.sequence import Status
from paged_edu.viz.fake_engine import trace24
from paged_edu.viz.palette import letter
from paged_edu.viz.picture import STEP, readme_picture, served

STORED = Path(__file__).parents[2] / "book" / "images" / "paged_vs_contiguous.svg"


def test_the_stored_picture_is_what_the_code_draws():
    assert STORED.read_text(encoding="utf-8") == readme_picture(), "run: python -m paged_edu.viz.picture book/images/paged_vs_contiguous.svg"


def test_the_module_writes_it(tmp_path):
    path = tmp_path / "picture.svg"
    subprocess.run([sys.executable, "-W", "error", "-m", "paged_edu.viz.picture", str(path)], check=True)
    assert path.read_bytes() == STORED.read_bytes()
    assert subprocess.run([sys.executable, "-m", "paged_edu.viz.picture"], capture_output=True, check=False).returncode == 1


def test_it_is_well_formed_says_its_numbers_and_has_an_opaque_ground():
    root = ET.fromstring(readme_picture())
    assert root.get("aria-label").endswith(
        "Contiguous: 3 run, 20 wait, 7 % of the slots hold tokens. Paged: 20 run, 0 wait, 85 % hold tokens.")
    ground = root.find("{http://www.w3.org/2000/svg}rect")
    assert ground.get("fill") == "#FFFFFF"
    assert root.get("viewBox") == f"0 0 {ground.get('width')} {ground.get('height')}"


def slabs(step: int) -> dict[int, tuple[str, int]]:
    """First block of each slab -> its letter and the slots that hold a token, at the end of ``step``."""
    state, _ = served(trace24(), step, "orca-max")
    held = [(seq.blocks, state.requests[seq.request_id].arrival, seq.num_computed) for seq in state.sequences.values() if seq.blocks]
    assert all(blocks == list(range(blocks[0], blocks[0] + 16)) for blocks, *_ in held)
    return {blocks[0]: (letter(arrival), tokens) for blocks, arrival, tokens in held}


def test_the_contiguous_side_by_hand():
    """60 blocks are runs of 32, 16, 8 and 4: A gets the run that just fits, B and C the halves of the large one."""
    assert slabs(1) == {32: ("A", 8), 0: ("B", 4), 16: ("C", 25)}
    # B leaves after its second token; D takes its place in step 3.
    assert set(slabs(2)) == {32, 16}
    assert slabs(3)[0][0] == "D"
    state, sampled = served(trace24(), 10, "orca-max")
    assert (state.token_states(), sampled, state.num_finished) == (17 + 8 + 34, 30, 1)
    assert len(state.with_status(Status.WAITING)) == 20
    assert served(trace24(), 60, "orca-max")[0].num_finished == 3
    whole, sampled = served(trace24(), 300, "orca-max")
    assert (whole.num_finished, sampled, whole.token_states()) == (24, 884, 0)
    assert served(trace24(), 299, "orca-max")[0].num_finished == 23


def test_the_paged_side_is_the_step_at_which_the_pool_is_full_and_nobody_has_stepped_back():
    state, sampled = served(trace24(), STEP, "paged")
    assert sum(bool(b.owners) for b in state.blocks()) == 60
    assert (len(state.with_status(Status.RUNNING)), state.num_finished, state.num_preemptions) == (20, 4, 0)
    assert sampled == 259
    assert served(trace24(), STEP + 1, "paged")[0].num_preemptions == 1


def test_the_trace_is_the_one_of_the_core_tests():
    assert sum(p for p, _ in trace24().requests) == 666
    assert sum(o for _, o in trace24().requests) == 884
    assert len(trace24().requests) == 24


def test_every_step_can_be_drawn():
    for step in (0, 1, 13, 60, 141):
        ET.fromstring(readme_picture(step))
