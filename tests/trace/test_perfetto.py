"""The timeline file: valid, its spans nest, add up and agree with the run, for the simulator's clock and the engine's."""
from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paged_edu import LLM, SamplingParams
from paged_edu.core.contiguous import ContiguousKVManager
from paged_edu.core.paged import PagedKVManager
from paged_edu.core.scheduler import SchedulerConfig
from paged_edu.sim.cost_model import CostModel
from paged_edu.sim.presets import GPUS, MODELS
from paged_edu.sim.serve import serve
from paged_edu.sim.sim_runner import SimRunner
from paged_edu.sim.timed import TimedScheduler
from paged_edu.sim.workload import Arrival
from paged_edu.trace.perfetto import ENGINE, REQUESTS, PerfettoTrace

COST = CostModel(MODELS["opt-13b"], GPUS["A100-40GB"])
ARRIVALS = [Arrival(0.5, 60, 100), Arrival(0.6, 30, 150), Arrival(0.61, 100, 80), Arrival(0.9, 16, 1), Arrival(30.0, 20, 10)]


def simulated(path, arrivals=ARRIVALS, manager=None, num_blocks=20, n=1, mode="auto", **options):
    """The events of a run, and the run."""
    manager = manager or PagedKVManager(num_blocks, 16, prefix_caching=False, num_cpu_blocks=40)
    scheduler = TimedScheduler(SchedulerConfig(512, preemption_mode=mode), manager)
    latencies = {}
    scheduler.ended = lambda request, latency: latencies.update({request.request_id: latency})
    with PerfettoTrace(path, scheduler, scheduler.clock, **options) as trace:
        scheduler.emit = trace
        served = serve(scheduler, SimRunner(COST), arrivals, n)
    assert list(path.parent.iterdir()) == [path]
    return read(path), served, latencies, trace


def read(path):
    data = json.loads(path.read_text(encoding="ascii"))
    assert data["displayTimeUnit"] == "ms"
    return data["traceEvents"]


def nested(events):
    """Track -> its outermost spans as (name, begin, end, args, inner spans); checks that spans nest, in the order of the file too."""
    tracks, stacks = defaultdict(list), defaultdict(list)
    last = defaultdict(int)
    for event in events:
        track = event["pid"], event["tid"]
        if event["ph"] not in "BEX":
            continue
        assert event["ts"] >= last[track], "the order of the file is the order of time"
        last[track] = event["ts"]
        if event["ph"] == "E":
            name, begin, _, args, inner = stacks[track].pop()
            assert name == event["name"]
            span = name, begin, event["ts"], args | event["args"], inner
            assert all(begin <= b <= e <= event["ts"] for _, b, e, _, _ in inner)
        else:
            span = event["name"], event["ts"], event["ts"] + event.get("dur", 0), event.get("args", {}), []
        if event["ph"] == "B":
            stacks[track].append(span)
        else:
            (stacks[track][-1][4] if stacks[track] else tracks[track]).append(span)
    assert not any(stacks.values()), "every begin has its end"
    for spans in (*tracks.values(), *(span[4] for outer in tracks.values() for span in outer)):
        assert all(a[2] <= b[1] for a, b in pairwise(spans)), "no two overlap"
    return tracks


def of_requests(tracks):
    return {span[0].removeprefix("request "): span for (process, _), spans in tracks.items() if process == REQUESTS for span in spans}


@pytest.mark.parametrize(("mode", "n", "state"), [("recompute", 1, "preempted"), ("swap", 1, "swapped"), ("auto", 2, "swapped")])
def test_a_simulated_run(tmp_path, mode, n, state):
    events, served, latencies, trace = simulated(tmp_path / "run.json", mode=mode, n=n, num_blocks=20 if n == 1 else 30)
    requests = of_requests(nested(events))
    assert len(requests) == len(ARRIVALS) == served.num_requests
    for name, (_, begin, end, args, inner) in requests.items():
        arrival = ARRIVALS[int(name)]
        assert begin == round(arrival.time * 1e6)
        assert end - begin == pytest.approx(latencies[name] * 1e6, abs=2)
        assert sum(e - b for _, b, e, _, _ in inner) == end - begin            # waiting, running, preempted: nothing between
        assert (args["prompt tokens"], args["output tokens"]) == (arrival.prompt_tokens, n * arrival.output_tokens)
        assert args["preemptions"] == sum(kind == state for kind, *_ in inner)
        assert {kind for kind, *_ in inner} <= {"waiting", "running", state}
    assert served.num_preemptions == sum(args["preemptions"] for _, _, _, args, _ in requests.values()) > 0
    assert trace.cut_at is None


def test_the_steps_take_what_the_run_took(tmp_path):
    events, served, _, _ = simulated(tmp_path / "run.json")
    steps = nested(events)[ENGINE, 0]
    assert len(steps) == served.num_steps
    assert steps[0][0] == "step 1: 1 sequence, 60 tokens"
    assert steps[0][1:3] == (500_000, pytest.approx(500_000 + (COST.constants.request_overhead + COST.forward(60, 1)) * 1e6, abs=1))
    assert steps[-1][2] == round(served.seconds * 1e6)
    assert sum(len(args.get("preempted", ())) for _, _, _, args, _ in steps) == served.num_preemptions
    assert sum(args["scheduled tokens"] for _, _, _, args, _ in steps) >= sum(a.prompt_tokens + a.output_tokens - 1 for a in ARRIVALS)


@pytest.mark.parametrize("manager", [None, "contiguous"])
def test_the_counters_are_the_pools_and_the_queues(tmp_path, manager):
    manager = ContiguousKVManager(32, 16, "max", 256) if manager else None
    events, _, _, _ = simulated(tmp_path / "run.json", [Arrival(0.0, 40, 60)] * 4, manager, 32)
    blocks = [e["args"] for e in events if e["ph"] == "C" and e["name"] == "blocks"]
    queues = [e["args"] for e in events if e["ph"] == "C" and e["name"] == "requests"]
    assert all(b["in use"] + b["free"] == 32 for b in blocks)
    assert blocks[0]["in use"] == (32 if manager else 12)                       # two slabs of 16 blocks, or four times 3
    assert queues[0] == ({"running": 2, "waiting": 2} if manager else {"running": 4, "waiting": 0})


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(1, 120), st.integers(1, 80)), min_size=1, max_size=8), st.integers(14, 40), st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_any_run_nests_and_adds_up(tmp_path_factory, requests, num_blocks, n):
    arrivals = [Arrival(time, prompt, output) for time, prompt, output in sorted(requests)]
    events, served, latencies, _ = simulated(tmp_path_factory.mktemp("t") / "run.json", arrivals, num_blocks=num_blocks, n=n)
    found = of_requests(nested(events))
    assert len(found) == len(arrivals)
    assert latencies.keys() <= found.keys()
    for _, begin, end, _, inner in found.values():
        assert sum(e - b for _, b, e, _, _ in inner) == end - begin
    assert len(latencies) == served.num_requests


def test_a_real_engine_with_its_own_clock(tmp_path):
    path = tmp_path / "real.json"
    with LLM("tiny-shakespeare", block_size=8, num_gpu_blocks_override=14, max_model_len=100, max_num_batched_tokens=40, max_num_seqs=8) as llm:
        engine = llm.engine
        engine.add_request("early", "ROMEO:", SamplingParams(max_tokens=5, ignore_eos=True))
        with PerfettoTrace(path, engine.scheduler, engine.clock) as trace:
            stop = engine.listen(trace)
            for i in range(4):
                engine.add_request(f"r{i}", "First Citizen:\nBefore we proceed any further", SamplingParams(max_tokens=40, ignore_eos=True))
            engine.add_request('"gone"', "O", SamplingParams(max_tokens=50))
            before = engine.clock()
            for _ in range(3):
                engine.step()
            engine.abort_request('"gone"')
            while engine.has_unfinished_requests():
                engine.step()
            took = engine.clock() - before
            engine.add_request("late", "O", SamplingParams(max_tokens=5))
            stop()
    tracks = nested(read(path))
    requests = of_requests(tracks)
    assert [requests[f"r{i}"][3]["output tokens"] for i in range(4)] == [40] * 4
    assert sum(requests[f"r{i}"][3]["preemptions"] for i in range(4)) > 0
    assert {name: span[3]["ended by"] for name, span in requests.items()} == {
        "early": "length", '"gone"': "abort", "late": "not finished", **{f"r{i}": "length" for i in range(4)}}
    steps = sum(end - begin for _, begin, end, _, _ in tracks[ENGINE, 0])
    assert 0.5 * took < steps / 1e6 <= took


def test_an_interrupted_step_leaves_a_valid_file(tmp_path):
    path = tmp_path / "run.json"
    with LLM("tiny-shakespeare", block_size=8, num_gpu_blocks_override=40) as llm:
        engine = llm.engine
        with PerfettoTrace(path, engine.scheduler, engine.clock) as trace:
            engine.listen(trace)
            engine.add_request("a", "ROMEO:", SamplingParams(max_tokens=6, ignore_eos=True))
            engine.step()
            execute, engine.runner.execute = engine.runner.execute, None
            with pytest.raises(TypeError):
                engine.step()
            engine.runner.execute = execute
            while engine.has_unfinished_requests():
                engine.step()
    (span,) = of_requests(nested(read(path))).values()
    assert [kind for kind, *_ in span[4]].count("preempted") == 1
    assert span[3]["output tokens"] == 6


def test_a_full_file_is_cut_says_so_and_stays_valid(tmp_path):
    whole, *_ = simulated(tmp_path / "whole.json")
    (tmp_path / "whole.json").unlink()
    events, _, _, trace = simulated(tmp_path / "cut.json", most_bytes=3000)
    assert trace.cut_at is not None
    assert trace.num_bytes < 6000
    (mark,) = [e for e in events if e["ph"] == "i"]
    assert mark["ts"] == round(trace.cut_at * 1e6)
    assert "cut" in mark["name"]
    assert 0 < len(of_requests(nested(events))) < len(of_requests(nested(whole)))


def test_nothing_half_written_stays(tmp_path):
    path = tmp_path / "run.json"
    path.write_text("mine")
    scheduler = TimedScheduler(SchedulerConfig(512), PagedKVManager(10, 16))

    def interrupted():
        with PerfettoTrace(path, scheduler, scheduler.clock):
            assert len(list(tmp_path.iterdir())) == 2
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text() == "mine"
    with pytest.raises(OSError, match="none"):
        PerfettoTrace(tmp_path / "none" / "run.json", scheduler, scheduler.clock)
    link = tmp_path / "link.json"
    link.symlink_to(path)
    with PerfettoTrace(link, scheduler, scheduler.clock):
        pass
    assert link.is_symlink()
    assert read(path)
