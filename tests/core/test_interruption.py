"""Ctrl-C at any line of a plan or of taking a result in: samples and beams go on from whole branches, with the tokens they would have had."""
import random
import sys

import pytest
from driving import VOCAB, assert_empty, expected, hypotheses, make, request, snapshot_equal

from paged_edu.engine.fake_runner import FakeBeam, expected_beams
from paged_edu.trace import TraceState

POOLS = {
    "paged": {"prefix_caching": True, "cpu_blocks": 12}, "grow": {"reservation": "grow", "num_blocks": 32, "max_model_len": 14},
    "oracle": {"reservation": "oracle", "num_blocks": 40, "max_model_len": 14},
}


def crowd(kind):
    options = {"num_blocks": 24} | POOLS[kind]
    scheduler, runner = make(block_size=2, seqs=12, **options)
    state = TraceState(options["num_blocks"], 2)
    scheduler.emit = scheduler.manager.emit = state.apply
    made = [request("a", 5, n=3, max_tokens=6), request("b", 5, n=4, beam=True, max_tokens=6), request("c", 7, max_tokens=5)]
    for r in made:
        scheduler.add(r)
        if r.beam:
            runner.beams[r.request_id] = FakeBeam(r.n, 5, r.max_tokens)
    return scheduler, runner, state, made


def drive(scheduler, runner, tracer=None):
    """To the end; ``tracer`` may raise KeyboardInterrupt inside the core. Returns how often it did."""
    cuts = 0
    for _ in range(300):
        if not scheduler.has_unfinished():
            return cuts
        sys.settrace(tracer)
        try:
            output = scheduler.schedule()
            result = runner.execute(output)
            scheduler.update(output, result)
        except KeyboardInterrupt:
            sys.settrace(None)
            cuts += 1
            scheduler.recover()
        finally:
            sys.settrace(None)
        scheduler.manager.check()
    raise AssertionError("not finished after 300 steps")


def check(scheduler, state, made):
    for r in made:
        if r.beam:
            assert sorted(hypotheses(r)) == sorted(expected_beams(r.prompt_token_ids, FakeBeam(r.n, 5, r.max_tokens), VOCAB))
        else:
            assert [s.branch for s in r.sequences] == list(range(r.n))
            for seq in r.sequences:
                assert seq.output_token_ids == expected(r, seq.branch)
                assert len(seq.output_token_ids) == r.max_tokens
    assert_empty(scheduler.manager)
    assert not scheduler.sequences
    snapshot_equal(state, scheduler)


@pytest.mark.parametrize("kind", POOLS)
def test_an_interruption_at_any_line_leaves_whole_branches(kind):
    chance = random.Random(3)
    lines_seen = 0

    def counting(frame, kind, arg):
        nonlocal lines_seen
        if "paged_edu/core" not in frame.f_code.co_filename.replace("\\", "/"):
            return None
        lines_seen += kind == "line"
        return counting

    scheduler, runner, state, made = crowd(kind)
    drive(scheduler, runner, counting)
    check(scheduler, state, made)
    assert sum(r.num_preemptions for r in made) > 0 or kind == "oracle"
    assert runner.num_copies > 0
    total, lines_seen = lines_seen, 0
    cut = 0
    for at in sorted(chance.sample(range(1, total), 250 if kind == "paged" else 120)):
        seen = 0

        def tracer(frame, kind, arg, at=at):
            nonlocal seen
            if "paged_edu/core" not in frame.f_code.co_filename.replace("\\", "/"):
                return None
            if kind == "line":
                seen += 1
                if seen == at:
                    raise KeyboardInterrupt
            return tracer

        scheduler, runner, state, made = crowd(kind)
        cut += drive(scheduler, runner, tracer)
        check(scheduler, state, made)
    assert cut > 100
