"""The fold in JavaScript is Python's fold is the manager's own snapshot, at every step, forwards, backwards and here and there."""
from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import test_scheduler_machine as machines
from driving import make, request
from driving import step as one_step
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from paged_edu.core.events import EVENT_TYPES
from paged_edu.trace import EventLog, Lane, TraceState, history, memory_report
from paged_edu.trace.wire import wire_event, wire_log, wire_state
from paged_edu.viz import fork_svg, fragmentation_svg, palette, prefix_svg, timeline_svg
from paged_edu.viz.fake_engine import FakeEngine
from paged_edu.viz.layout import lay_out
from paged_edu.viz.prefix_svg import lost, sections, users
from paged_edu.viz.sentence import step_sentence
from paged_edu.viz.svg import just_written

NODE = shutil.which("node")
JS = Path(palette.__file__).parent / "js"
pytestmark = pytest.mark.skipif(NODE is None, reason="no node on this machine to run the views' JavaScript outside a browser")
RECORDED: list[EventLog] = []


class Recording:
    """Beside the machine's own checks (its fold is the scheduler's and the manager's state after every rule and step), keep the events."""

    def start(self, caching: bool) -> None:
        super().start(caching)
        fold, log = self.state.apply, EventLog(TraceState(self.state.num_blocks, self.state.block_size), snapshot_every=9)
        self.log = log

        def emit(event: Any) -> None:
            fold(event)
            log(event)

        self.scheduler.emit = self.scheduler.manager.emit = emit

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "log") and self.log.last_step:
            RECORDED.append(self.log)


class RecordingScheduler(Recording, machines.SchedulerMachine):
    pass


class RecordingGrow(Recording, machines.GrowMachine):
    pass


class RecordingOracle(Recording, machines.OracleMachine):
    pass


def expected(state: TraceState) -> dict[str, Any]:
    host = {block for seq in state.sequences.values() for block in seq.cpu_blocks}
    return {
        "step": state.step, "num_arrived": state.num_arrived, **wire_state(state),
        "blocks": [[v.owners, v.fill, v.logical, v.cached, v.reserved_by] for v in state.blocks()],
        "host": sorted(host),
        "cached": state.cached_blocks(), "layout": layout(state), "prefix": prefix(state), "memory": memory(state),
        "written": sorted((block, *slots) for block, slots in just_written(state).items()),
    }


def layout(state: TraceState) -> dict[str, Any]:
    tree = lay_out({seq_id: seq.blocks for seq_id, seq in state.sequences.items() if seq.blocks}, 5)
    return tree._asdict() | {"cells": [cell._asdict() for cell in tree.cells]}


def prefix(state: TraceState) -> list[Any]:
    return [[[salt, list(paths.items())] for salt, paths in sections(state)], lost(state), sorted(users(state).items()), prefix_svg.headline(state)]


def memory(state: TraceState) -> list[int]:
    r = memory_report(state)
    return [r.total, r.token_states, r.reservation, r.internal, r.external, r.cached, r.num_sequences, r.shared_saved, r.num_used_blocks]


def lanes(log: EventLog) -> list[Any]:
    return [
        [lane.request_id, lane.arrival, lane.num_prompt_tokens, lane.max_tokens, lane.arrived, lane.ended, lane.reason, lane.cached,
         [[span.kind, span.first, span.tokens] for span in lane.spans],
         [[b.seq_id, b.parent, b.born, b.ended, b.reason, b.output] for b in lane.branches]]
        for lane in history(log)
    ]


def words(log: EventLog, step: int, all_lanes: list[Lane]) -> list[Any]:
    """What the views say beside their pictures."""
    state = log.replay(step)
    found = fork_svg.family(log, state, lanes=all_lanes)
    report = memory_report(state)
    return [
        fork_svg.headline(found), fork_svg.happened(found, step) if found else "", fragmentation_svg.headline(report),
        fragmentation_svg.numbers(report), prefix_svg.hits(all_lanes, state), [timeline_svg.told(lane, step).split("\n")[0] for lane in all_lanes],
    ]


def trace(log: EventLog, file: str | None = None) -> dict[str, Any]:
    steps = range(log.first_step, log.last_step + 1)
    whole, seen = wire_log(log), history(log)
    return {"header": whole["header"], "events": whole["events"], "states": [expected(log.replay(step)) for step in steps],
            "sentences": [step_sentence(log, step) for step in steps], "lanes": lanes(log),
            "words": [words(log, step, seen) for step in steps], "file": file}


def fold(traces: list[dict[str, Any]], refused: list[Any] = ()) -> dict[str, Any]:
    looks = [[x.letter, x.hue, x.on_hue, x.hatch] for x in map(palette.look, range(60))]
    parts = [palette.TOKENS, palette.RESERVED, palette.INTERNAL, palette.EXTERNAL]
    asked = {"traces": traces, "names": sorted(EVENT_TYPES), "looks": looks, "refused": refused,
             "constants": [palette.HUES, palette.HATCHES, palette.OUTLINE, parts]}
    command = [NODE, str(Path(__file__).with_name("fold.mjs")), str(JS)]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def aborted_in_host_memory() -> EventLog:
    """Somebody is swapped out and gives up there, which random runs seldom do."""
    scheduler, runner = make(num_blocks=4, block_size=2, cpu_blocks=8, preemption_mode="swap")
    log = EventLog.of(scheduler)
    scheduler.emit = scheduler.manager.emit = log
    for name in ("a", "b"):
        scheduler.add(request(name, 3, max_tokens=5))
    while not log.state.num_swapped_out:
        one_step(scheduler, runner)
    scheduler.abort("b")
    while scheduler.has_unfinished():
        one_step(scheduler, runner)
    return log


def swapped_in_over_cached_text() -> EventLog:
    """Blocks come back from host memory into blocks whose text the prefix index still knew."""
    engine = FakeEngine(8, 2, 64, num_cpu_blocks=20, prefix_caching=True, preemption_mode="swap")
    log = EventLog.of(engine.scheduler)
    over: set[int] = set()

    def heard(event: Any) -> None:
        if type(event).__name__ == "BlocksSwappedIn":
            over.update(set(event.copied) & log.state.entered)
        log(event)

    engine.listen(heard)
    engine.add([(5, 14)] * 6)
    while engine.has_unfinished_requests():
        engine.step()
    assert over
    assert engine.scheduler.manager.reset_prefix_cache()        # and in the end every text is forgotten, while the blocks are cached
    return log


def test_every_state_and_sentence_of_random_runs(tmp_path):
    RECORDED.clear()
    few = settings(max_examples=30, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck), database=None,
                   phases=[Phase.generate], derandomize=True)
    for machine in (RecordingScheduler, RecordingGrow, RecordingOracle):
        run_state_machine_as_test(machine, settings=few)
    RECORDED[:0] = [aborted_in_host_memory(), swapped_in_over_cached_text()]
    seen = {type(event).__name__ for log in RECORDED for event in log}
    assert seen == set(EVENT_TYPES), "what does not occur is not compared"
    RECORDED[-1].save(tmp_path / "trace.jsonl")
    traces = [trace(log) for log in RECORDED]
    traces[-1] = trace(RECORDED[-1], (tmp_path / "trace.jsonl").read_text())
    answer = fold(traces)
    assert answer["problems"] == []
    assert answer["steps"] > 5000


def test_a_log_that_begins_in_mid_run_and_one_that_has_forgotten_its_beginning():
    scheduler, runner = make(num_blocks=6, block_size=2, prefix_caching=True)
    for i in range(4):
        scheduler.add(request(f"r<{i}>", 5, max_tokens=9))
    for _ in range(3):
        one_step(scheduler, runner)
    logs = [EventLog.of(scheduler), EventLog.of(scheduler, max_steps=6, snapshot_every=3)]
    scheduler.emit = scheduler.manager.emit = lambda event: [log(event) for log in logs]
    while scheduler.has_unfinished():
        one_step(scheduler, runner)
    assert logs[1].first_step > logs[0].first_step == 3
    answer = fold([trace(log) for log in logs])
    assert answer["problems"] == []


def test_what_random_runs_seldom_do():
    """A recovery between two steps, a contiguous run with runs set aside for its branches, a prefix cache that is emptied under a running request."""
    def driven(name: str, then: Any, steps: int, length: int = 9, n: int = 1, **sizes: Any) -> EventLog:
        scheduler, runner = make(**sizes)
        log = EventLog.of(scheduler)
        scheduler.emit = scheduler.manager.emit = log
        scheduler.add(request(name, length, max_tokens=8, n=n))
        for _ in range(steps):
            one_step(scheduler, runner)
        then(scheduler)
        while scheduler.has_unfinished():
            one_step(scheduler, runner)
        return log

    logs = [
        driven("a", lambda scheduler: scheduler.recover(), 2),
        driven("b", lambda scheduler: None, 1, n=3, reservation="max", num_blocks=64, budget=4),
        driven("c", lambda scheduler: scheduler.manager.reset_prefix_cache(), 3, block_size=2, num_blocks=16, prefix_caching=True),
    ]
    assert any(seq.reserved for seq in logs[1].replay(1).sequences.values())
    assert any(prefix_svg.lost(logs[2].replay(step)) for step in range(logs[2].last_step))
    assert fold([trace(log) for log in logs])["problems"] == []


def test_what_python_refuses_is_refused():
    added = ["RequestAdded", "r", 0, [1, 2], 4]
    assert wire_event(EVENT_TYPES["RequestAdded"]("r", 0, (1, 2), 4)) == ["RequestAdded", "r", 0, (1, 2), 4]
    refused = [
        [["What", 1]], [["StepStarted", 2]], [["RequestFinished", "r"]], [["TokensWritten", 3, 1]], [added, added],
        [added, ["BlocksAllocated", 0, [4]]], [added, ["BlocksAllocated", 0, [2]], ["BlocksFreed", 0, [3]]],
        [["SequenceFinished", "r", 1, "stop", None]],
    ]
    assert fold([], refused)["problems"] == []
