"""The demo: contiguous reservations by hand, the numbers of a real run, and what the terminal shows."""
import io
import json
import os
import shlex
from dataclasses import asdict

import pytest
from rich.console import Console
from rich.text import Text

from paged_edu import cli, demo, demo_view
from paged_edu.demo import Sample, contiguous, summarise
from paged_edu.trace import TraceState


def test_one_reservation():
    """16 slots, 8 for each request."""
    usage = contiguous([(3, 2)], num_blocks=4, block_size=4, max_model_len=8)
    assert (usage.steps, usage.peak_running, usage.mean_finish, usage.waiting_steps) == (2, 1, 2, 0)
    # Nobody waits, so both steps count: 3 and 4 tokens in a reservation of 8 of 16 slots.
    assert usage.token_share == pytest.approx((3 + 4) / 2 / 16)
    assert usage.empty_share == pytest.approx((5 + 4) / 2 / 16)
    assert usage.free_share == pytest.approx(0.5)


def test_three_requests_in_two_reservations():
    """20 slots, 8 for each. Step 1: A (2 tokens) and B (1) run, C waits. A is done after step 1, B after step 3. Step 2: C (4) takes A's place,
    B has 2. Step 3: C has 5, B 3. Step 4: C has 6 and is done."""
    usage = contiguous([(2, 1), (1, 3), (4, 3)], num_blocks=5, block_size=4, max_model_len=8)
    assert (usage.steps, usage.peak_running, usage.waiting_steps) == (4, 2, 1)
    assert usage.mean_finish == pytest.approx((1 + 3 + 4) / 3)
    assert usage.token_share == pytest.approx(3 / 20)
    assert usage.empty_share == pytest.approx(13 / 20)
    assert usage.free_share == pytest.approx(4 / 20)


def test_one_reservation_after_the_other():
    usage = contiguous([(1, 2), (1, 2), (1, 2)], num_blocks=1, block_size=4, max_model_len=4)
    assert (usage.steps, usage.peak_running, usage.waiting_steps, usage.mean_finish) == (6, 1, 4, 4)
    assert usage.token_share == pytest.approx((1 + 2 + 1 + 2) / 4 / 4)


def test_summary_takes_the_crowded_steps_only():
    usage = summarise([Sample(1, 1, 2, 4, 8), Sample(2, 1, 4, 8, 8), Sample(1, 0, 1, 4, 8)], [2, 3])
    assert (usage.steps, usage.peak_running, usage.waiting_steps, usage.mean_finish) == (3, 2, 2, 2.5)
    assert (usage.token_share, usage.empty_share, usage.free_share) == (0.375, 0.375, 0.25)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """One whole `paged-edu demo --no-live --fast --json` into a pipe: ``(exit code, output, numbers)``."""
    file, out = tmp_path_factory.mktemp("demo") / "demo.json", io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", out)
        code = cli.main(["demo", "--no-live", "--fast", "--json", str(file)])
    return code, out.getvalue(), json.loads(file.read_text(encoding="utf-8"))


def test_the_numbers_hold_together(ran):
    code, _, numbers = ran
    assert code == 0
    requests, paged, reserved = numbers["requests"], numbers["paged"], numbers["contiguous"]
    assert len(requests) == len(demo.PROMPTS) == 24
    for side in (paged, reserved):
        assert side["token_share"] + side["empty_share"] + side["free_share"] == pytest.approx(1)
        assert 0 < side["waiting_steps"] < side["steps"]
    assert paged["steps"] == max(r["finish_step"] for r in requests)
    assert paged["mean_finish"] == pytest.approx(sum(r["finish_step"] for r in requests) / 24)
    assert numbers["num_preemptions"] == sum(r["preemptions"] for r in requests)
    assert numbers["slots"] == numbers["num_blocks"] * numbers["block_size"]
    lengths = [(r["prompt_tokens"], r["output_tokens"]) for r in requests]
    assert reserved == asdict(contiguous(lengths, numbers["num_blocks"], numbers["block_size"], numbers["reservation"]))
    # Without preemption a request would end o steps after it was admitted; it can't end earlier.
    assert all(r["finish_step"] >= r["output_tokens"] for r in requests)


def test_blocks_on_demand_beat_reservations(ran):
    numbers = ran[2]
    paged, reserved = numbers["paged"], numbers["contiguous"]
    assert reserved["peak_running"] == numbers["slots"] // numbers["reservation"]
    assert paged["peak_running"] > 2 * reserved["peak_running"]
    assert paged["token_share"] > 1.5 * reserved["token_share"]
    assert paged["steps"] < reserved["steps"]
    assert paged["mean_finish"] < reserved["mean_finish"]


def test_prompts_need_more_blocks_than_there_are(ran):
    """So that somebody waits from the first step on, whatever the model writes."""
    blocks = sum(-(-r["prompt_tokens"] // demo.BLOCK_SIZE) for r in ran[2]["requests"])
    assert blocks > demo.NUM_BLOCKS
    assert all(r["prompt_tokens"] < demo.MAX_MODEL_LEN // 2 for r in ran[2]["requests"])


def test_most_texts_end_by_themselves(ran):
    reasons = [r["finish_reason"] for r in ran[2]["requests"]]
    assert set(reasons) <= {"stop", "length"}
    assert reasons.count("stop") >= 12


def test_a_pipe_gets_plain_pictures_and_the_table(ran):
    _, out, numbers = ran
    assert "\x1b" not in out
    assert "\r" not in out
    assert "   0 A" in out                                          # a grid that starts with block 0, owned by A
    assert "step 1   running" in out
    assert f"{numbers['paged']['token_share']:.0%}" in out
    assert f"{numbers['contiguous']['token_share']:.0%}" in out
    assert "paged-edu lab" in out


def test_the_lab_extra_is_named_only_where_it_is_missing(monkeypatch):
    for found, named in ((None, True), (object(), False)):
        monkeypatch.setattr(demo_view, "find_spec", lambda name, found=found: found)
        out = io.StringIO()
        demo_view.print_next(Console(file=out))
        assert ("pip install 'paged-edu[lab]'" in out.getvalue()) is named


@pytest.mark.skipif(os.name != "posix", reason="quotes of a POSIX shell")
def test_the_way_to_the_lab_can_be_pasted(monkeypatch, tmp_path):
    """The environment lies in a folder with a space and a quote in its name, far from the current one, in a terminal of 40 columns."""
    home = tmp_path / "Ann's own projects, all of them in one place"
    monkeypatch.setattr(demo_view.sys, "executable", str(home / "bin" / "python"))
    monkeypatch.setattr(demo_view.shutil, "which", lambda name: None)
    out = io.StringIO()
    demo_view.print_next(Console(file=out, width=40))
    command = next(line for line in out.getvalue().splitlines() if line.endswith(" lab"))
    assert shlex.split(command) == [str(home / "bin" / "paged-edu"), "lab"]


@pytest.mark.parametrize(("fill", "bar"), [(0, "  "), (1, "▏ "), (8, "█ "), (9, "█▏"), (16, "██")])
def test_a_gauge_shows_every_token_of_a_block(fill, bar):
    assert demo_view.gauge(fill, 16, 2) == bar


def test_the_grid_names_owners_without_colour():
    from paged_edu.core import events as ev

    state = TraceState(18, 16)
    for event in (ev.RequestAdded("A", 0, tuple(range(20)), 4), ev.BlocksAllocated(0, (0, 17)), ev.TokensWritten(0, 20)):
        state.apply(event)
    wide = [line.plain for line in demo_view.grid(state, 80, ascii_only=False)]
    assert wide[0].startswith("   0 A██  · ")
    assert wide[1] == "  16  ·  A▌  "
    assert demo_view.grid(state, 80, ascii_only=True)[1].plain == "  16  .  A4  "
    assert len(demo_view.grid(state, 60, ascii_only=False)) == 3    # 8 columns


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (50, 20), (30, 10)])
def test_a_frame_fits_the_terminal(width, height):
    class Words:
        def decode(self, ids):
            return " ".join(f"word{i}" for i in ids)

    from paged_edu.core import events as ev

    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True)
    recorder = demo.Recorder.__new__(demo.Recorder)
    recorder.log, recorder.samples, recorder.finished = demo.EventLog(TraceState(48, 16)), [], {}
    recorder(ev.StepStarted(1))
    for i in range(24):
        recorder(ev.RequestAdded(demo_view.letter(i), i, tuple(range(20)), 4))
        recorder(ev.RequestAdmitted(demo_view.letter(i), 20, 0))
        recorder(ev.BlocksAllocated(i, (2 * i, 2 * i + 1)))
    recorder(ev.StepScheduled(1, dict.fromkeys(range(24), 20)))
    frame = demo_view.View(console, Words(), live=False, speed=0).frame(recorder)
    assert len(frame) <= height - 2
    assert all(isinstance(line, Text) and line.cell_len < width for line in frame)
    assert recorder.samples == [Sample(24, 0, 480, 768, 768)]
